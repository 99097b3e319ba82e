//! Keys and values of eight bytes, which all peers hold as numbers. What keeps any bytes (the
//! engines) does more work for a key, so comparisons favour the peers.

use std::hash::{BuildHasher, Hasher};

use amalgam_op::Key;

/// The key's bytes as a number.
///
/// # Panics
///
/// If the key has not eight bytes: peers are measured with such keys only.
#[inline]
pub fn key_of(key: &Key<'_>) -> u64 {
    u64::from_le_bytes(key.bytes().try_into().expect("peers take keys of eight bytes"))
}

/// The value's bytes as a number.
///
/// # Panics
///
/// If the value has not eight bytes.
#[inline]
pub fn value_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("peers take values of eight bytes"))
}

/// Hashes numbers by one multiplication, as `common.hh` does.
#[derive(Clone, Copy, Default)]
pub struct Mix;

/// The hasher that [`Mix`] builds.
#[derive(Default)]
pub struct MixHasher(u64);

impl BuildHasher for Mix {
    type Hasher = MixHasher;

    #[inline]
    fn build_hasher(&self) -> MixHasher {
        MixHasher::default()
    }
}

impl Hasher for MixHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let factors = (number ^ 0x243f_6a88_85a3_08d3 ^ self.0, 0x9e37_79b9_7f4a_7c15_u64);
        let product = u128::from(factors.0) * u128::from(factors.1);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}
