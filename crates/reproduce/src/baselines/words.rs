//! The memory of items as atomic words: a read that races with an overwrite gets a meaningless
//! value, but its behaviour is defined.

use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_index::mem::Table;

/// The words that hold all items.
pub(super) struct Words(pub(super) Table<AtomicU64>);

impl Words {
    /// The word `offset` words behind `place`.
    #[inline]
    pub(super) fn load(&self, place: usize, offset: usize) -> u64 {
        self.0[place + offset].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn store(&self, place: usize, offset: usize, value: u64) {
        self.0[place + offset].store(value, Ordering::Relaxed);
    }

    /// Whether the words from `start` on hold `bytes`, padded with zeros to the end of the last
    /// word.
    #[inline]
    pub(super) fn holds(&self, start: usize, bytes: &[u8]) -> bool {
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut word = start;
        for chunk in whole {
            if self.load(word, 0) != u64::from_le_bytes(*chunk) {
                return false;
            }
            word += 1;
        }
        rest.is_empty() || self.load(word, 0) == padded(rest)
    }

    pub(super) fn write_bytes(&self, start: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        for (chunk, word) in whole.iter().zip(start..) {
            self.store(word, 0, u64::from_le_bytes(*chunk));
        }
        if !rest.is_empty() {
            self.store(start + whole.len(), 0, padded(rest));
        }
    }

    /// Appends `length` bytes to `target`.
    #[inline]
    pub(super) fn read_bytes(&self, start: usize, length: usize, target: &mut Vec<u8>) {
        let end = target.len() + length;
        for word in start..start + length.div_ceil(8) {
            target.extend_from_slice(&self.load(word, 0).to_le_bytes());
        }
        target.truncate(end);
    }
}

/// At most 7 bytes as a word, padded with zeros.
#[inline]
fn padded(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The length of memcached's ` flags length\r\n` after a key, in bytes.
pub(super) fn suffix_bytes(flags: u32, value_bytes: usize) -> usize {
    let digits = |number: usize| number.checked_ilog10().unwrap_or(0) as usize + 1;
    4 + digits(flags as usize) + digits(value_bytes)
}
