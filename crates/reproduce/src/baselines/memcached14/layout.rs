//! Items as memcached 1.4 lays them out, made of words.
//!
//! ```text
//! word 0  next in the LRU          4  value bytes (32), key bytes (8), class (8), held (1)
//!      1  previous in the LRU      5  flags (32), generation (8), marks
//!      2  next in the chain        6  CAS id
//!      3  last access, expiry      7  key, a zero byte, room for the suffix; then the value
//! ```

use amalgam_op::{Expiry, ItemWrite, MetaFlags, Now};

pub(super) use super::super::words::Words;
use super::super::words::suffix_bytes;

pub(super) const NEXT: usize = 0;
pub(super) const PREVIOUS: usize = 1;
pub(super) const CHAIN: usize = 2;
const TIMES: usize = 3;
const LENGTHS: usize = 4;
const MARKS: usize = 5;
const CAS: usize = 6;
const KEY: usize = 7;

const KEY_SHIFT: u32 = 32;
const CLASS_SHIFT: u32 = 40;
const HELD: u64 = 1 << 48;

const GENERATION_SHIFT: u32 = 32;
const LIVE: u64 = 1 << 40;
const FETCHED: u64 = 1 << 41;
const STALE: u64 = 1 << 42;
const WON: u64 = 1 << 43;
const HAS_CAS: u64 = 1 << 44;

/// The index of an item's first word; 0 stands for no item.
pub(super) type ItemIndex = usize;

/// The contents of an item's fixed words.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
    pub(super) flags: u32,
    pub(super) expiry: Expiry,
    pub(super) cas: Option<u64>,
    pub(super) generation: u8,
    pub(super) meta_flags: MetaFlags,
}

/// Words before the value: the header, then the key, a zero byte and ` flags length\r\n`.
fn words_before_value(key_bytes: usize, value_bytes: usize, flags: u32) -> usize {
    KEY + (key_bytes + 1 + suffix_bytes(flags, value_bytes)).div_ceil(8)
}

/// The size of an item in bytes; its value ends with `\r\n`.
pub(super) fn item_bytes(key_bytes: usize, value_bytes: usize, flags: u32) -> usize {
    words_before_value(key_bytes, value_bytes, flags) * 8 + value_bytes + 2
}

impl Words {
    /// Writes an item's own words. The caller writes the links.
    pub(super) fn write(
        &self,
        index: ItemIndex,
        class: usize,
        key: &[u8],
        item_write: &ItemWrite<'_>,
        value: &[u8],
        now: &Now,
    ) {
        let choose = |condition, bit| if condition { bit } else { 0 };
        self.store(index, TIMES, u64::from(now.seconds) | u64::from(item_write.expiry.0) << 32);
        let lengths = value.len() as u64 | (key.len() as u64) << KEY_SHIFT;
        self.store(index, LENGTHS, lengths | (class as u64) << CLASS_SHIFT);
        let marks = choose(item_write.meta_flags.fetched, FETCHED)
            | choose(item_write.meta_flags.stale, STALE)
            | choose(item_write.meta_flags.won, WON)
            | choose(item_write.cas.is_some(), HAS_CAS);
        let generation = u64::from(now.generation) << GENERATION_SHIFT;
        self.store(index, MARKS, u64::from(item_write.flags) | generation | marks | LIVE);
        self.store(index, CAS, item_write.cas.unwrap_or(0));
        self.write_bytes(index + KEY, key);
        let before = words_before_value(key.len(), value.len(), item_write.flags);
        self.write_bytes(index + before, value);
    }

    /// Erases an item that is no longer linked.
    pub(super) fn erase(&self, index: ItemIndex) {
        self.store(index, MARKS, 0);
    }

    /// Whether there is a live item in this chunk.
    pub(super) fn is_live(&self, index: ItemIndex) -> bool {
        self.load(index, MARKS) & LIVE != 0
    }

    #[inline]
    pub(super) fn fields(&self, index: ItemIndex) -> Fields {
        let (times, lengths, marks) =
            (self.load(index, TIMES), self.load(index, LENGTHS), self.load(index, MARKS));
        Fields {
            key_bytes: (lengths >> KEY_SHIFT) as u8 as usize,
            value_bytes: lengths as u32 as usize,
            flags: marks as u32,
            expiry: Expiry((times >> 32) as u32),
            cas: (marks & HAS_CAS != 0).then(|| self.load(index, CAS)),
            generation: (marks >> GENERATION_SHIFT) as u8,
            meta_flags: MetaFlags {
                fetched: marks & FETCHED != 0,
                stale: marks & STALE != 0,
                won: marks & WON != 0,
            },
        }
    }

    pub(super) fn class(&self, index: ItemIndex) -> usize {
        (self.load(index, LENGTHS) >> CLASS_SHIFT) as u8 as usize
    }

    /// The second of the item's last access.
    #[inline]
    pub(super) fn accessed(&self, index: ItemIndex) -> u32 {
        self.load(index, TIMES) as u32
    }

    pub(super) fn set_accessed(&self, index: ItemIndex, seconds: u32) {
        let expiry = self.load(index, TIMES) >> 32 << 32;
        self.store(index, TIMES, expiry | u64::from(seconds));
    }

    #[inline]
    pub(super) fn set_fetched(&self, index: ItemIndex) {
        let marks = self.load(index, MARKS);
        if marks & FETCHED == 0 {
            self.store(index, MARKS, marks | FETCHED);
        }
    }

    /// Sets whether the item is held. A held item is not evicted.
    pub(super) fn hold(&self, index: ItemIndex, is_held: bool) {
        let lengths = self.load(index, LENGTHS) & !HELD;
        self.store(index, LENGTHS, if is_held { lengths | HELD } else { lengths });
    }

    pub(super) fn is_held(&self, index: ItemIndex) -> bool {
        self.load(index, LENGTHS) & HELD != 0
    }

    #[inline]
    pub(super) fn has_key(&self, index: ItemIndex, key: &[u8]) -> bool {
        if (self.load(index, LENGTHS) >> KEY_SHIFT) as u8 as usize != key.len() {
            return false;
        }
        self.holds(index + KEY, key)
    }

    /// Appends the key to `target`.
    pub(super) fn read_key(&self, index: ItemIndex, fields: &Fields, target: &mut Vec<u8>) {
        self.read_bytes(index + KEY, fields.key_bytes, target);
    }

    /// Appends the value to `target`.
    pub(super) fn read_value(&self, index: ItemIndex, fields: &Fields, target: &mut Vec<u8>) {
        let before = words_before_value(fields.key_bytes, fields.value_bytes, fields.flags);
        self.read_bytes(index + before, fields.value_bytes, target);
    }

    /// The value as a word. Requires: the value has at most 8 bytes.
    #[inline]
    pub(super) fn read_word(&self, index: ItemIndex, fields: &Fields) -> [u8; 8] {
        let before = words_before_value(fields.key_bytes, fields.value_bytes, fields.flags);
        self.load(index, before).to_le_bytes()
    }
}
