//! The contents of a slot, and what a hash says about where a key may lie.

/// Bits of an item reference in a word; the tag lies above them.
pub(super) const REFERENCE_BITS: u32 = 48;
const REFERENCE_MASK: u64 = (1 << REFERENCE_BITS) - 1;

/// A slot's contents: a 16-bit tag above a 48-bit item reference. Zero is an empty slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// An empty slot.
    pub(super) const EMPTY: Self = Self(0);
    /// A slot of a bucket that moved to the next table. No item has tag 0, so none matches it.
    pub(super) const MOVED: Self = Self(1);

    #[inline]
    pub(super) fn new(tag: Tag, reference: u64) -> Self {
        debug_assert!(reference != 0 && reference <= REFERENCE_MASK, "a reference has 48 bits");
        Self(u64::from(tag.0) << REFERENCE_BITS | reference)
    }

    #[inline]
    pub(super) fn tag(self) -> Tag {
        Tag((self.0 >> REFERENCE_BITS) as u16)
    }

    #[inline]
    pub(super) fn reference(self) -> u64 {
        self.0 & REFERENCE_MASK
    }

    /// Whether the word names an item: it is neither empty nor the mark of a moved bucket.
    #[inline]
    pub(super) fn is_item(self) -> bool {
        self.0 >> REFERENCE_BITS != 0
    }
}

/// The part of a key's hash that a slot holds next to the item's reference; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(pub(super) u16);

impl Tag {
    /// What is xored to a bucket's index to get the other bucket of a key with this tag; valid for
    /// tables of any size, which take its low bits. It is odd, so the two
    /// buckets of a key are never the same.
    #[inline]
    pub(super) fn offset(self) -> u64 {
        // The low bits of a product depend on the low bits of its factors only: take the high ones.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        (u64::from(self.0).wrapping_mul(MULTIPLIER) >> 16) | 1
    }
}

/// What the number of slots in a bucket decides: the number of tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry<const SLOTS: usize>;

impl<const SLOTS: usize> Geometry<SLOTS> {
    /// 4 slots go with the paper's one-byte tags, 8 slots with all 16 bits.
    const TAG_MASK: u16 = if SLOTS == 4 { 0xff } else { 0xffff };

    /// The tag of a hash: its highest bits, as the bucket's index is its lowest.
    #[inline]
    pub(super) fn tag(hash: u64) -> Tag {
        let tag = (hash >> REFERENCE_BITS) as u16 & Self::TAG_MASK;
        Tag(tag + u16::from(tag == 0))
    }
}
