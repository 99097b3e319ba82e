//! The two kinds of words of the index, laid out as in figure 6, and the addresses in them.
//!
//! ```text
//! link    63 Rehash   62 Occupied   48..62 counter of the item    47 Upper    0..47 next item
//! head    63 Active   60..63 patience   48..60 total counter       47 Moving   0..47 hot item
//! ```
//!
//! While a head movement is announced, the moving worker's number takes the place of patience and
//! counter.
//!
//! An address has 47 bits below the flag in bit 47: the top bits of the item's tag, then the item's
//! place in memory. The numbers of bits of both are fixed when the index opens.

/// Bit of [`Link`]: the item that holds the link is a rehash item.
const REHASH: u64 = 1 << 63;
/// Bit of [`Link`]: the item that holds the link is deleted or replaced; the link is frozen.
const OCCUPIED: u64 = 1 << 62;
/// Bit of [`Link`]: the rehash item is the second (upper) one of its pair.
const UPPER: u64 = 1 << 47;
/// Bit of [`Link`]: both rehash items of the pair are in the ring. (The bit belongs to the counter
/// of plain items; rehash items have no counter.)
const PAIRED: u64 = 1 << 61;
/// Bit of [`Head`]: accesses to the ring are being sampled.
const ACTIVE: u64 = 1 << 63;
/// Bit of [`Head`]: a movement of the head is announced.
const MOVING: u64 = 1 << 47;
const COUNTER_SHIFT: u32 = 48;
const ADDRESS_BITS: u32 = 47;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// The highest value of an item's counter.
pub(super) const MOST_COUNTED: u64 = (1 << 14) - 1;
/// The highest value of a head's counter of samples.
pub(super) const MOST_SAMPLES: u64 = (1 << 12) - 1;
/// The largest number of workers, whose numbers must fit a head.
pub(super) const MOST_WORKERS: u64 = (1 << 15) - 1;
const PATIENCE_SHIFT: u32 = 60;
/// The highest patience of a head.
pub(super) const MOST_PATIENCE: u64 = (1 << 3) - 1;

/// An item's place in memory, in the unit that the [`Space`](super::space::Space) chooses; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node(pub(super) u64);

/// The division of addresses into tag and place, and of hashes into bucket and tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    place_mask: u64,
    /// The tag's bits, moved to the top of a word.
    tag_mask: u64,
    /// The number of high bits of the hash that precede the tag. The table always has at least
    /// 2^`tag_start` buckets, so within a ring the order of tags agrees with that of hashes.
    tag_start: u32,
}

impl Bits {
    /// The division for places below 2^`place_bits` and tables of at least 2^`bucket_bits` buckets.
    ///
    /// # Panics
    ///
    /// If no bit is left for tags, or the table has all bits of the hash.
    pub(super) fn new(place_bits: u32, bucket_bits: u32) -> Self {
        assert!(place_bits < ADDRESS_BITS && bucket_bits < 64, "addresses hold place and tag");
        Self {
            place_mask: (1 << place_bits) - 1,
            tag_mask: !0 << (64 - ADDRESS_BITS + place_bits),
            tag_start: bucket_bits,
        }
    }

    /// The tag of `hash`, at the top of the word.
    #[inline]
    pub(super) fn tag_of_hash(&self, hash: u64) -> u64 {
        (hash << self.tag_start) & self.tag_mask
    }

    /// The tag in an address, at the top of the word.
    #[inline]
    pub(super) fn tag_of(&self, address: Address) -> u64 {
        (address.0 << (64 - ADDRESS_BITS)) & self.tag_mask
    }

    /// The item's place; None for the empty address.
    #[inline]
    pub(super) fn node_of(&self, address: Address) -> Option<Node> {
        let place = address.0 & self.place_mask;
        (place != 0).then_some(Node(place))
    }

    /// The address of the item at `node`, whose key has this hash.
    #[inline]
    pub(super) fn address(&self, node: Node, hash: u64) -> Address {
        debug_assert!(node.0 & !self.place_mask == 0, "a place beyond the arena");
        Address(node.0 | self.tag_of_hash(hash) >> (64 - ADDRESS_BITS))
    }
}

/// An item's tag and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(u64);

/// An item's link to the next.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub(super) u64);

impl Link {
    pub(super) fn to(address: Address) -> Self {
        Self(address.0)
    }

    pub(super) fn of_rehash_item(next: Address, is_upper: bool) -> Self {
        Self(REHASH | if is_upper { UPPER } else { 0 } | next.0)
    }

    #[inline]
    pub(super) fn address(self) -> Address {
        Address(self.0 & ADDRESS_MASK)
    }

    /// Whether the item is neither deleted nor a rehash item.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (REHASH | OCCUPIED) == 0
    }

    #[inline]
    pub(super) fn is_occupied(self) -> bool {
        self.0 & OCCUPIED != 0
    }

    #[inline]
    pub(super) fn is_rehash(self) -> bool {
        self.0 & REHASH != 0
    }

    #[inline]
    pub(super) fn is_upper(self) -> bool {
        self.0 & UPPER != 0
    }

    /// Whether both rehash items of the pair are in the ring.
    #[inline]
    pub(super) fn is_paired(self) -> bool {
        self.0 & PAIRED != 0
    }

    #[inline]
    pub(super) fn paired(self) -> Self {
        Self(self.0 | PAIRED)
    }

    /// The number of accesses to the item that were counted since sampling began.
    #[inline]
    pub(super) fn count(self) -> u64 {
        self.0 >> COUNTER_SHIFT & MOST_COUNTED
    }

    /// This link with another next item.
    #[inline]
    pub(super) fn with_address(self, next: Address) -> Self {
        Self(self.0 & !ADDRESS_MASK | next.0)
    }

    /// This link of an item that is deleted or replaced.
    #[inline]
    pub(super) fn occupied(self) -> Self {
        Self(self.0 | OCCUPIED)
    }

    /// This link with one more access counted. The counter saturates.
    #[inline]
    pub(super) fn counted(self) -> Self {
        if self.count() == MOST_COUNTED { self } else { Self(self.0 + (1 << COUNTER_SHIFT)) }
    }

    #[inline]
    pub(super) fn uncounted(self) -> Self {
        Self(self.0 & !(MOST_COUNTED << COUNTER_SHIFT))
    }
}

/// A word of the table: leads to the first item of a walk.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(pub(super) u64);

impl Head {
    /// The ring has no item.
    pub(super) const EMPTY: Self = Self(0);
    /// The ring is reached through the next table (during a rehash).
    pub(super) const MOVED: Self = Self(MOVING);

    pub(super) fn to(address: Address) -> Self {
        Self(address.0)
    }

    #[inline]
    pub(super) const fn address(self) -> Address {
        Address(self.0 & ADDRESS_MASK)
    }

    #[inline]
    pub(super) fn is_active(self) -> bool {
        self.0 & ACTIVE != 0
    }

    #[inline]
    pub(super) fn is_moving(self) -> bool {
        self.0 & MOVING != 0
    }

    /// The number of samples still to take while sampling is active.
    #[inline]
    pub(super) fn counter(self) -> u64 {
        self.0 >> COUNTER_SHIFT & MOST_SAMPLES
    }

    /// A measure of how often the head was confirmed. With sampling, it counts the rounds that left
    /// the head in place, and the next round starts the later the higher it is; with random
    /// movement, see `movement`.
    #[inline]
    pub(super) fn patience(self) -> u64 {
        if self.is_moving() { 0 } else { self.0 >> PATIENCE_SHIFT & MOST_PATIENCE }
    }

    /// This head with neither sampling nor a movement under way and with this patience, at most
    /// [`MOST_PATIENCE`].
    pub(super) fn with_patience(self, patience: u64) -> Self {
        Self(self.0 & ADDRESS_MASK | patience.min(MOST_PATIENCE) << PATIENCE_SHIFT)
    }

    /// This head with sampling active for `samples` accesses.
    pub(super) fn activated(self, samples: u64) -> Self {
        Self(self.settled().0 | ACTIVE | samples.min(MOST_SAMPLES) << COUNTER_SHIFT)
    }

    /// This head with one sample fewer to take.
    ///
    /// # Panics
    ///
    /// Under overflow checks, if none was left.
    #[inline]
    pub(super) fn sampled(self) -> Self {
        debug_assert!(self.counter() > 0, "the last sample ends the round");
        Self(self.0 - (1 << COUNTER_SHIFT))
    }

    /// This head with a movement announced by worker `number`.
    pub(super) fn announced(self, number: u64) -> Self {
        debug_assert!(number <= MOST_WORKERS, "a worker's number fits the head");
        Self(self.0 & ADDRESS_MASK | MOVING | number << COUNTER_SHIFT)
    }

    /// This head with neither sampling nor a movement under way.
    #[inline]
    pub(super) fn settled(self) -> Self {
        self.with_patience(self.patience())
    }
}

const _: () = assert!(size_of::<Link>() == 8 && size_of::<Head>() == 8);
const _: () = assert!(REHASH & OCCUPIED == 0 && OCCUPIED >> 14 == 1 << COUNTER_SHIFT);
const _: () = assert!(ACTIVE >> 15 == 1 << COUNTER_SHIFT && UPPER == ADDRESS_MASK + 1);
const _: () = assert!(MOST_WORKERS + 1 == (MOST_SAMPLES + 1) * (MOST_PATIENCE + 1));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counters_saturate_and_spill_nowhere() {
        let bits = Bits::new(29, 10);
        let address = bits.address(Node((1 << 29) - 1), u64::MAX);
        for flags in [Link::to(address), Link::of_rehash_item(address, true).occupied()] {
            let mut link = flags;
            for count in 0..20_000 {
                assert_eq!(link.count(), count.min(MOST_COUNTED));
                assert_eq!(link.uncounted(), flags);
                link = link.counted();
            }
        }
        let mut head = Head::to(address).with_patience(u64::MAX).activated(u64::MAX);
        for left in (0..=MOST_SAMPLES).rev() {
            assert!(head.is_active() && !head.is_moving());
            assert_eq!((head.counter(), head.address()), (left, address));
            assert_eq!(head.patience(), MOST_PATIENCE);
            head = if left == 0 { head } else { head.sampled() };
        }
        assert_eq!(head.settled(), Head::to(address).with_patience(MOST_PATIENCE));
        let announced = head.announced(MOST_WORKERS);
        assert!(announced.is_moving() && !announced.is_active());
        assert_eq!(announced.settled(), Head::to(address));
    }

    #[test]
    fn addresses_keep_place_and_tag() {
        for (place_bits, bucket_bits) in [(20, 1), (38, 30), (46, 0)] {
            let bits = Bits::new(place_bits, bucket_bits);
            for place in [1, 2, (1 << place_bits) - 1] {
                for hash in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
                    let address = bits.address(Node(place), hash);
                    assert_eq!(bits.node_of(address), Some(Node(place)));
                    assert_eq!(bits.tag_of(address), bits.tag_of_hash(hash));
                    assert_eq!(Link::to(address).address(), address);
                }
            }
        }
        assert_eq!(Bits::new(20, 1).node_of(Head::MOVED.address()), None);
    }
}
