//! The mapping of key ids to keys.

use crate::workload::mix64;

/// The length in bytes of the longest key that a workload may have.
pub const LONGEST_KEY_BYTES: usize = 248;

/// The length in bytes of the shortest binary key: long enough for every id of a request.
pub const SHORTEST_KEY_BYTES: usize = 4;

/// The length in bytes of the shortest text key: long enough for every id of a request.
pub const SHORTEST_TEXT_KEY_BYTES: usize = 7;

/// A cheap one-to-one mapping of key ids to keys of one length, in no particular order.
#[derive(Clone, Copy, Debug)]
pub struct KeySpace {
    key_bytes: usize,
    mask: u64,
    shift: u32,
}

impl KeySpace {
    /// A mapping to keys of `key_bytes` bytes.
    ///
    /// # Errors
    ///
    /// If `key_bytes` is below [`SHORTEST_KEY_BYTES`] or above [`LONGEST_KEY_BYTES`].
    pub fn new(key_bytes: usize) -> anyhow::Result<Self> {
        anyhow::ensure!(
            (SHORTEST_KEY_BYTES..=LONGEST_KEY_BYTES).contains(&key_bytes),
            "keys have {SHORTEST_KEY_BYTES} to {LONGEST_KEY_BYTES} bytes, not {key_bytes}"
        );
        let bits = 8 * key_bytes.min(8) as u32;
        Ok(Self { key_bytes, mask: u64::MAX >> (64 - bits), shift: bits / 2 })
    }

    /// Length of a key in bytes.
    #[inline]
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Writes the key of `id` to the front of `slot`, which has at least the words of a key.
    #[inline]
    pub fn write(&self, id: u32, slot: &mut [[u8; 8]]) {
        let mut word = self.mix(id);
        for place in slot {
            *place = word.to_le_bytes();
            word = following(word);
        }
    }

    /// The key of `id`. Requires: keys have `KEY_BYTES` bytes, a multiple of eight.
    #[inline]
    pub fn array<const KEY_BYTES: usize>(&self, id: u32) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        let mut word = self.mix(id);
        for place in bytes.chunks_exact_mut(8) {
            place.copy_from_slice(&word.to_le_bytes());
            word = following(word);
        }
        bytes
    }

    /// Writes the key of `id` as letters and digits, for protocols that allow no other bytes.
    pub fn write_text(&self, id: u32, target: &mut [u8]) {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        let mut rest = mix64(u64::from(id));
        // The first letters are the id itself, which makes every key distinct.
        let mut id = u64::from(id);
        for (position, letter) in target.iter_mut().enumerate() {
            let source = if position < SHORTEST_TEXT_KEY_BYTES { &mut id } else { &mut rest };
            *letter = DIGITS[(*source % 32) as usize];
            *source = source.rotate_right(5);
        }
    }

    /// A bijection on the bits that fit the key's first word.
    #[inline]
    fn mix(&self, id: u32) -> u64 {
        let x = (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask;
        let x = (x ^ (x >> self.shift)).wrapping_mul(0xd6e8_feb8_6659_fd93) & self.mask;
        x ^ (x >> self.shift)
    }
}

/// The word of a key that follows `word`.
#[inline]
fn following(word: u64) -> u64 {
    word.rotate_left(23) ^ 0x6a09_e667_f3bc_c908
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_distinct_at_every_length() {
        for key_bytes in [4, 5, 7, 8, 9, 16, 24, 100, LONGEST_KEY_BYTES] {
            let space = KeySpace::new(key_bytes).expect("valid");
            let mut seen = HashSet::new();
            for id in (0..50_000).chain((1 << 30) - 1000..1 << 30) {
                let mut slot = vec![[0; 8]; key_bytes.div_ceil(8)];
                space.write(id, &mut slot);
                let key = slot.as_flattened()[..key_bytes].to_vec();
                assert!(seen.insert(key), "{key_bytes} bytes, id {id}");
            }
        }
        assert!(KeySpace::new(3).is_err());
        assert!(KeySpace::new(LONGEST_KEY_BYTES + 1).is_err());
    }

    #[test]
    fn both_ways_to_a_key_agree() {
        for id in [0, 1, 77, u32::MAX] {
            let (space, mut slot) = (KeySpace::new(24).expect("valid"), [[0; 8]; 3]);
            space.write(id, &mut slot);
            assert_eq!(slot.as_flattened(), space.array::<24>(id));
        }
    }

    #[test]
    fn text_keys_are_distinct_and_printable() {
        for key_bytes in [7, 16, 40] {
            let space = KeySpace::new(key_bytes).expect("valid");
            let mut seen = HashSet::new();
            for id in 0..50_000 {
                let mut key = vec![0; key_bytes];
                space.write_text(id, &mut key);
                assert!(key.iter().all(|byte| byte.is_ascii_alphanumeric()));
                assert!(seen.insert(key));
            }
        }
    }
}
