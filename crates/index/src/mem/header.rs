//! The 8-byte header of an item, and where the item's other fields lie.
//!
//! ```text
//! bit   0      live: linked, about to be, or just unlinked; not in a slot that was never used
//! bit   1..4   reads (meta h, CLOCK)
//! bit   4      stale (meta X)          5  won (meta W, Z)
//! bit   6      sealed: the word is final
//! bit   7..11  which fields follow: word, CAS id, flags, expiry
//! bit  11..17  flush generation
//! bit  17..25  key bytes
//! bit  25..55  value bytes
//! bit  55..64  the second of the last access, about
//! ```
//!
//! The fields that the item has follow the header in this order: word (8 bytes: a value of up to 8
//! bytes, the only field that may change in place), CAS id (8), flags (4), expiry (4), key, value
//! of more than 8 bytes. An engine that links items asks for a link word *before* the header; with
//! `SlotLayout::Linked`, header and word are aligned to 16 bytes and can be exchanged by one
//! instruction.

use amalgam_op::{ItemWrite, MetaFlags, Now, PlainSet};

/// The longest value that lives in the item's word.
pub const WORD_BYTES: usize = 8;

/// A snapshot of an item's header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header(pub(super) u64);

const READS_SHIFT: u32 = 1;
// What is known of an item's reads, a number of three bits. It tells an item that was read again
// after its first read from one that was read once, and how often the hand still spares it.
// `amalgam_sketch`'s `policy.rs` simulates it with the same numbers.
const UNREAD: u64 = 0;
/// Read once, and not spared any more.
const ONCE: u64 = 1;
/// Read more than once, and not spared any more.
const AGAIN: u64 = 3;
/// How often the hand spares an item after its first read, and after any later one.
const SPARED_ONCE: u64 = 1;
const SPARED_AGAIN: u64 = 3;
const STALE_SHIFT: u32 = 4;
const WON_SHIFT: u32 = 5;
const FIELDS_SHIFT: u32 = 7;
const HAS_WORD: u64 = 1 << FIELDS_SHIFT;
const HAS_CAS: u64 = 2 << FIELDS_SHIFT;
const HAS_FLAGS: u64 = 4 << FIELDS_SHIFT;
const HAS_EXPIRY: u64 = 8 << FIELDS_SHIFT;
const GENERATION_SHIFT: u32 = 11;
const GENERATION_MASK: u64 = 63;
const KEY_SHIFT: u32 = 17;
const VALUE_SHIFT: u32 = 25;
const ACCESS_SHIFT: u32 = 55;
/// The number of bits of an access time that are kept after its most significant one.
const ACCESS_BITS: u32 = 4;
/// The longest value, in bytes, that a header can describe.
pub(super) const MAX_VALUE_BYTES: usize = (1 << 30) - 1;

impl Header {
    /// Set in the header of a live item, and taken off when the item is retired.
    pub(super) const LIVE: u64 = 1;
    /// The bits of the item's reads.
    pub(super) const READS: u64 = 7 << READS_SHIFT;
    /// Those after the first read.
    pub(super) const FIRST_READ: u64 = (ONCE + SPARED_ONCE) << READS_SHIFT;
    /// Those after a later read, which change only when the hand passes.
    pub(super) const LATER_READ: u64 = (AGAIN + SPARED_AGAIN) << READS_SHIFT;

    /// Whether the item was filled and not retired: it is linked, is about to be, or was just
    /// unlinked.
    #[inline]
    pub fn is_live(self) -> bool {
        self.0 & Self::LIVE != 0
    }

    #[inline]
    fn reads(self) -> u64 {
        (self.0 & Self::READS) >> READS_SHIFT
    }

    /// Whether the CLOCK hand spares the item when it next passes.
    #[inline]
    pub fn is_recent(self) -> bool {
        !matches!(self.reads(), UNREAD | ONCE | AGAIN)
    }

    /// Whether a client has read the item since it was written.
    #[inline]
    pub fn is_fetched(self) -> bool {
        self.reads() != UNREAD
    }

    /// Whether a read changes nothing.
    #[inline]
    pub(super) fn is_read_enough(self) -> bool {
        self.0 & Self::READS >= Self::LATER_READ
    }

    /// This header after the hand has spared the item, which is recent: once less is left, or with
    /// CLOCK's single bit nothing.
    pub(super) fn passed(self, has_one_bit: bool) -> Self {
        let reads = self.reads();
        let least = if reads > AGAIN { AGAIN } else { ONCE };
        let left = if has_one_bit { least } else { reads - 1 };
        Self(self.0 & !Self::READS | left << READS_SHIFT)
    }

    /// This header with the reads of `other`.
    pub(super) fn with_reads_of(self, other: Self) -> Self {
        Self(self.0 & !Self::READS | other.0 & Self::READS)
    }

    /// Key length in bytes.
    #[inline]
    pub fn key_bytes(self) -> usize {
        (self.0 >> KEY_SHIFT) as u8 as usize
    }

    /// Value length in bytes.
    #[inline]
    pub fn value_bytes(self) -> usize {
        (self.0 >> VALUE_SHIFT) as usize & MAX_VALUE_BYTES
    }

    /// Whether the value lives in the item's word.
    #[inline]
    pub fn has_word(self) -> bool {
        self.0 & HAS_WORD != 0
    }

    #[inline]
    pub(super) fn has_cas(self) -> bool {
        self.0 & HAS_CAS != 0
    }

    #[inline]
    pub(super) fn has_flags(self) -> bool {
        self.0 & HAS_FLAGS != 0
    }

    #[inline]
    pub(super) fn has_expiry(self) -> bool {
        self.0 & HAS_EXPIRY != 0
    }

    /// Whether the item has no expiry: only its flush generation decides whether it is alive.
    #[inline]
    pub fn never_expires(self) -> bool {
        !self.has_expiry()
    }

    /// The flush generation the item was written under.
    #[inline]
    pub fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT & GENERATION_MASK) as u8
    }

    /// Whether both headers agree in everything but the time of the last access.
    #[inline]
    pub(super) fn looks_like(self, other: Self) -> bool {
        (self.0 ^ other.0) << (u64::BITS - ACCESS_SHIFT) == 0
    }

    /// Whether both headers agree in state, lengths, fields and generation, and in being neither
    /// stale nor won: in all that a write decides.
    #[inline]
    pub(super) fn is_written_like(self, other: Self) -> bool {
        const HINTS: u64 = Header::READS | u64::MAX << ACCESS_SHIFT;
        (self.0 ^ other.0) & !HINTS == 0
    }

    /// This header after a read at `seconds` ([`Now::seconds`]).
    #[inline]
    pub(super) fn read_at(self, seconds: u32) -> Self {
        let reads = if self.is_fetched() { Self::LATER_READ } else { Self::FIRST_READ };
        let rest = self.0 & ((1 << ACCESS_SHIFT) - 1) & !Self::READS;
        Self(rest | reads | access_code(seconds) << ACCESS_SHIFT)
    }

    /// The time of the last recorded access in the unit of [`Now::seconds`], rounded up by at most
    /// 1/16 (the header stores it in nine bits). The recorded accesses are writes (except in-place
    /// changes of the word), the first two reads after a write, and the first after the CLOCK hand
    /// has passed.
    pub fn last_access_seconds(self) -> u32 {
        let code = self.0 >> ACCESS_SHIFT;
        let shift = (code >> ACCESS_BITS).saturating_sub(1);
        let first = if code >> ACCESS_BITS == 0 { 0 } else { 1 << ACCESS_BITS };
        let from = (first | code & ((1 << ACCESS_BITS) - 1)) << shift;
        (from + (1 << shift) - 1) as u32
    }

    #[inline]
    pub(super) fn marks(self) -> MetaFlags {
        MetaFlags {
            fetched: self.is_fetched(),
            stale: self.0 >> STALE_SHIFT & 1 != 0,
            won: self.0 >> WON_SHIFT & 1 != 0,
        }
    }

    /// Distance from the header to the CAS id, in bytes.
    #[inline]
    pub(super) fn cas_offset(self) -> usize {
        8 + if self.has_word() { 8 } else { 0 }
    }

    /// Distance from the header to the flags, in bytes; if the item has none, to the expiry.
    #[inline]
    pub(super) fn flags_offset(self) -> usize {
        self.cas_offset() + if self.has_cas() { 8 } else { 0 }
    }

    /// Distance from the header to the key, in bytes.
    #[inline]
    pub(super) fn key_offset(self) -> usize {
        /// The 4 bits of entry `i` hold the distance, in units of 4 bytes, for the field bits `i`.
        const TABLE: u64 = {
            let mut table = 0;
            let mut fields = 0_u64;
            while fields < 16 {
                let steps = 2
                    + 2 * (fields & 1)
                    + 2 * (fields >> 1 & 1)
                    + (fields >> 2 & 1)
                    + (fields >> 3);
                table |= steps << (fields * 4);
                fields += 1;
            }
            table
        };
        let fields = self.0 >> FIELDS_SHIFT & 15;
        (TABLE >> (fields * 4) & 15) as usize * 4
    }
}

/// Encodes a time in seconds in nine bits, like a floating-point number: its length in bits, and
/// the [`ACCESS_BITS`] bits after the most significant one. The code grows with the time.
#[inline]
fn access_code(seconds: u32) -> u64 {
    let shift = (u32::BITS - 1 - (seconds | 1).leading_zeros()).saturating_sub(ACCESS_BITS);
    // If the shift is not 0, the most significant bit carries into the shift field and adds one to
    // it; [`Header::last_access_seconds`] takes it off again.
    (u64::from(shift) << ACCESS_BITS) + u64::from(seconds >> shift)
}

impl std::fmt::Debug for Header {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Header")
            .field("is_live", &self.is_live())
            .field("key_bytes", &self.key_bytes())
            .field("value_bytes", &self.value_bytes())
            .finish_non_exhaustive()
    }
}

/// The length and fields of an item: enough to reserve a slot before its contents are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemLayout {
    pub(super) header: Header,
}

impl ItemLayout {
    /// The layout of the item that `item_write` describes if the current value has `current_bytes`
    /// bytes. None if its key or value is too long for a header.
    pub fn new(
        key_bytes: usize,
        item_write: &ItemWrite<'_>,
        current_bytes: usize,
        now: &Now,
    ) -> Option<Self> {
        let value_bytes = item_write.value_bytes(current_bytes);
        if value_bytes > MAX_VALUE_BYTES || key_bytes > usize::from(u8::MAX) {
            return None;
        }
        let choose = |condition, bit| if condition { bit } else { 0 };
        let header = Header::LIVE
            | choose(value_bytes <= WORD_BYTES, HAS_WORD)
            | choose(item_write.cas.is_some(), HAS_CAS)
            | choose(item_write.flags != 0, HAS_FLAGS)
            | choose(item_write.expiry.0 != 0, HAS_EXPIRY)
            | choose(item_write.meta_flags.fetched, ONCE << READS_SHIFT)
            | choose(item_write.meta_flags.stale, 1 << STALE_SHIFT)
            | choose(item_write.meta_flags.won, 1 << WON_SHIFT)
            | (u64::from(now.generation) & GENERATION_MASK) << GENERATION_SHIFT
            | access_code(now.seconds) << ACCESS_SHIFT
            | (key_bytes as u64) << KEY_SHIFT
            | (value_bytes as u64) << VALUE_SHIFT;
        Some(Self { header: Header(header) })
    }

    /// The layout of the item that a plain set stores. None if its key or value is too long for a
    /// header.
    #[inline]
    pub(super) fn of_plain_set(key_bytes: usize, set: &PlainSet<'_>, now: &Now) -> Option<Self> {
        let value_bytes = set.value.len();
        if value_bytes > MAX_VALUE_BYTES || key_bytes > usize::from(u8::MAX) {
            return None;
        }
        let header = Header::LIVE
            | u64::from(value_bytes <= WORD_BYTES) << HAS_WORD.trailing_zeros()
            | u64::from(set.flags != 0) << HAS_FLAGS.trailing_zeros()
            | u64::from(set.expiry.0 != 0) << HAS_EXPIRY.trailing_zeros()
            | (u64::from(now.generation) & GENERATION_MASK) << GENERATION_SHIFT
            | access_code(now.seconds) << ACCESS_SHIFT
            | (key_bytes as u64) << KEY_SHIFT
            | (value_bytes as u64) << VALUE_SHIFT;
        Some(Self { header: Header(header) })
    }

    /// Bytes of the item from its header on.
    #[inline]
    pub fn bytes(self) -> usize {
        self.header.bytes()
    }
}

impl Header {
    /// Bytes of the item from its header on.
    #[inline]
    pub fn bytes(self) -> usize {
        let value = if self.has_word() { 0 } else { self.value_bytes() };
        self.key_offset() + self.key_bytes() + value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_op::{Expiry, Part};

    #[test]
    fn a_second_is_kept_to_a_16th_and_never_too_early() {
        let powers = (0..32).flat_map(|power| [1_u32 << power, (1 << power) - 1, 3 << power >> 1]);
        let mut seconds: Vec<u32> = powers.chain([1000, 86_400, u32::MAX]).collect();
        seconds.sort_unstable();
        let mut last = 0;
        for seconds in seconds {
            let header = Header(Header::LIVE).read_at(seconds);
            let code = header.0 >> ACCESS_SHIFT;
            assert!(
                code >= last && header.looks_like(Header(Header::LIVE).read_at(0)),
                "{seconds}"
            );
            last = code;
            let told = header.last_access_seconds();
            assert!((seconds..=seconds.saturating_add(seconds / 16)).contains(&told), "{seconds}");
            assert!(told == seconds || seconds >= 32, "{seconds}");
        }
    }

    #[test]
    fn the_header_knows_where_the_fields_lie() {
        for fields in 0..16_u32 {
            let value = vec![b'v'; if fields & 1 != 0 { 8 } else { 9 }];
            let item_write = ItemWrite {
                parts: [Part::Bytes(&value), Part::Empty],
                cas: (fields & 2 != 0).then_some(5),
                flags: fields >> 2 & 1,
                expiry: Expiry(fields >> 3),
                meta_flags: MetaFlags::default(),
            };
            let now = Now { generation: 63, ..Now::at(1) };
            let layout = ItemLayout::new(250, &item_write, 0, &now).expect("it fits");
            let header = layout.header;
            let extras = 8 * (fields & 1) + 8 * (fields >> 1 & 1) + 4 * (fields >> 2).count_ones();
            assert_eq!(header.key_offset(), 8 + extras as usize);
            assert_eq!(header.key_bytes(), 250);
            assert_eq!(header.value_bytes(), value.len());
            assert_eq!(header.generation(), 63);
            let outside = if fields & 1 != 0 { 0 } else { 9 };
            assert_eq!(layout.bytes(), header.key_offset() + 250 + outside);
        }
    }
}
