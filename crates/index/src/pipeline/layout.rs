//! The meaning of each word of the slot memory. It is the contract with the hardware;
//! `docs/pipeline.md` states it in full.
//!
//! A bucket consists of [`LINES`] *memory lines*; each line holds one *stripe* of 8 bytes of every
//! slot, slot 0 first. So a slot is a column and a comparator sees the same slot in every line:
//!
//! ```text
//! line 0   locator of slot 0 | slot 1 | …       bits 0..48  where the value is; 0: free
//!                                               bits 48..56 check: the hash's top byte
//!                                               bits 56..64 length of the key in bytes
//! line 1…  key     of slot 0 | slot 1 | …       8 bytes of the key each, zeros behind its end
//! last     terms   of slot 0 | slot 1 | …       bits 0..32  expiry in seconds, 0 never
//!                                               bits 32..62 length of the value in bytes
//! ```

use amalgam_op::Expiry;

use crate::mem::padded;
use crate::sync::AtomicU64;

/// The bytes of a memory line that belong to one slot.
pub(super) const STRIPE_BYTES: usize = 8;
/// The number of memory lines that hold keys.
pub(super) const KEY_LINES: usize = 2;
/// The number of memory lines of a bucket.
pub(super) const LINES: usize = KEY_LINES + 2;
/// The index of the line that holds the locators.
pub(super) const LOCATORS: usize = 0;
/// The first line of keys, next to the locators: for keys of one stripe, a read touches one pair of
/// lines.
pub(super) const KEYS: usize = 1;
/// The line of terms, which reads do not touch.
pub(super) const TERMS: usize = KEYS + KEY_LINES;
/// A slot holds keys of up to this many bytes in full, and the last bytes of longer ones.
pub(super) const SLOT_KEY_BYTES: usize = KEY_LINES * STRIPE_BYTES;

/// One memory line: a stripe of each slot.
pub(super) type Line<const SLOTS: usize> = [AtomicU64; SLOTS];
/// One bucket.
pub(super) type Bucket<const SLOTS: usize> = [Line<SLOTS>; LINES];

/// Bits of a locator that hold a reference.
const REFERENCE_BITS: u32 = 48;
const REFERENCE_MASK: u64 = (1 << REFERENCE_BITS) - 1;
/// The bit at which terms hold the length of the value.
const VALUE_SHIFT: u32 = 32;

/// The first word of a slot's header: the tag of its key, and the reference to the item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Locator(pub(super) u64);

impl Locator {
    /// The locator of a free slot.
    pub(super) const FREE: Self = Self(0);

    /// The locator of the item at `reference`, whose key has this pattern.
    #[inline]
    pub(super) fn new(pattern: &Pattern, reference: u64) -> Self {
        debug_assert!(reference != 0 && reference <= REFERENCE_MASK, "a reference has 48 bits");
        Self(pattern.tag << REFERENCE_BITS | reference)
    }

    /// The reference to the item; 0 for a free slot.
    #[inline]
    pub(super) fn reference(self) -> u64 {
        self.0 & REFERENCE_MASK
    }

    /// A locator for the same key whose item lies at `reference`.
    #[inline]
    pub(super) fn moved_to(self, reference: u64) -> Self {
        Self(self.0 & !REFERENCE_MASK | reference)
    }

    #[inline]
    pub(super) fn is_free(self) -> bool {
        self == Self::FREE
    }
}

/// The second word of a slot's header: its expiry, and the length of the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms(pub(super) u64);

impl Terms {
    /// The terms of a free slot.
    pub(super) const FREE: Self = Self(0);

    #[inline]
    pub(super) fn new(expiry: Expiry, value_bytes: usize) -> Self {
        Self(u64::from(expiry.0) | (value_bytes as u64) << VALUE_SHIFT)
    }

    /// The expiry of the slot.
    #[inline]
    pub(super) fn expiry(self) -> Expiry {
        Expiry(self.0 as u32)
    }
}

/// The representation of a key that the comparators use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    /// Key length and check byte: the bits of a locator above the reference.
    pub(super) tag: u64,
    /// The stripes of the key or, if it is longer than [`SLOT_KEY_BYTES`], of its last bytes.
    pub(super) stripes: [u64; KEY_LINES],
    /// The number of stripes that the key covers; the others are neither compared nor written.
    pub(super) lines: usize,
}

impl Pattern {
    /// The pattern of a key of 1 to 250 bytes with this hash.
    #[inline]
    pub(super) fn new(key: &[u8], hash: u64) -> Self {
        let tag = tag_of(key, hash);
        let (_, end) = key.split_at(key.len().saturating_sub(SLOT_KEY_BYTES));
        match end.split_at_checked(STRIPE_BYTES) {
            Some((first, rest)) if !rest.is_empty() => {
                Self { tag, stripes: [padded(first), padded(rest)], lines: 2 }
            }
            _ => Self { tag, stripes: [padded(end), 0], lines: 1 },
        }
    }

    /// The check byte: the top byte of the hash.
    #[inline]
    pub(super) fn check(&self) -> usize {
        self.tag as usize & 0xff
    }
}

/// The tag of a key with this hash: its length and check byte, as in a locator above the reference.
#[inline]
pub(super) fn tag_of(key: &[u8], hash: u64) -> u64 {
    (key.len() as u64) << 8 | hash >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_holds_a_key_or_its_end() {
        let short = Pattern::new(b"a", 0x7700_0000_0000_0000);
        assert_eq!(short, Pattern { tag: 0x177, stripes: [0x61, 0], lines: 1 });
        let whole = Pattern::new(b"0123456789abcdef", 0);
        let stripes = [*b"01234567", *b"89abcdef"].map(u64::from_le_bytes);
        assert_eq!(whole, Pattern { tag: 16 << 8, stripes, lines: 2 });
        let long = Pattern::new(b"prefix 0123456789abcdef", 0);
        assert_eq!(long, Pattern { tag: 23 << 8, stripes, lines: 2 });
    }

    #[test]
    fn locators_and_terms_keep_their_parts() {
        let pattern = Pattern::new(&[7; 250], u64::MAX);
        let locator = Locator::new(&pattern, 0xffff_ffff_fff8);
        assert_eq!(locator.0, 0xfaff_ffff_ffff_fff8);
        assert_eq!(locator.moved_to(8).0, 0xfaff_0000_0000_0008);
        assert_eq!(locator.moved_to(8).reference(), 8);
        let terms = Terms::new(Expiry(u32::MAX), (1 << 30) - 1);
        assert_eq!(terms.0, 0x3fff_ffff_ffff_ffff);
        assert_eq!(terms.expiry(), Expiry(u32::MAX));
    }
}
