//! Keys with their hashes. A key is hashed once, when its request is parsed.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_nano_inline};

use crate::lookup3;

/// The longest key a client may send, in bytes (memcached's limit).
pub const MAX_KEY_BYTES: usize = 250;

/// The secret that keys are hashed with. It is drawn at start, so that clients cannot choose keys
/// that share a bucket.
#[derive(Clone)]
pub struct HashSeed {
    secrets: RapidSecrets,
    /// Whether to hash as the hardware table does, without the secret.
    is_lookup3: bool,
    /// Bits of the hash that are kept; only tests drop some.
    #[cfg(feature = "weak-hash")]
    mask: u64,
}

impl HashSeed {
    /// A seed derived from `seed`; equal numbers give equal hashes on every machine.
    pub const fn new(seed: u64) -> Self {
        Self {
            secrets: RapidSecrets::seed(seed),
            is_lookup3: false,
            #[cfg(feature = "weak-hash")]
            mask: u64::MAX,
        }
    }

    /// Returns a seed that hashes as the hardware table does, without a secret; for the engine that
    /// models that table.
    #[must_use]
    pub const fn with_lookup3(self) -> Self {
        Self { is_lookup3: true, ..self }
    }

    /// Keeps only the bits of `mask` of each hash, so that keys collide wherever an engine looks.
    #[cfg(feature = "weak-hash")]
    #[must_use]
    pub const fn weakened(self, mask: u64) -> Self {
        Self { mask, ..self }
    }

    /// The 64-bit hash of `bytes`. All bits are well mixed: engines take their bucket from one end
    /// and their tag from the other.
    #[inline]
    pub const fn hash(&self, bytes: &[u8]) -> u64 {
        let hash = match self.is_lookup3 {
            false if bytes.len() <= 16 => hash_short(bytes, &self.secrets),
            false => rapidhash_v3_nano_inline::<true, false>(bytes, &self.secrets),
            true => lookup3(bytes, 0, 0),
        };
        #[cfg(feature = "weak-hash")]
        let hash = hash & self.mask;
        hash
    }
}

/// The hash of at most 16 bytes, as rapidhash's third version defines it. The library's is a call
/// wherever the compiler thinks it too large, and a single read of a table in DRAM is then a fifth
/// slower: how many reads overlap is decided by how many instructions lie between two misses.
#[inline(always)]
const fn hash_short(bytes: &[u8], secrets: &RapidSecrets) -> u64 {
    let length = bytes.len() as u64;
    let (first, last, seed) = match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => {
            (u64::from_le_bytes(*first), u64::from_le_bytes(*last), secrets.seed ^ length)
        }
        _ => match (bytes.first_chunk(), bytes.last_chunk()) {
            (Some(first), Some(last)) => {
                let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
                (first as u64, last as u64, secrets.seed ^ length)
            }
            _ => match bytes {
                [] => (0, 0, secrets.seed),
                [first, ..] => {
                    let (middle, last) = (bytes[bytes.len() / 2], bytes[bytes.len() - 1]);
                    ((*first as u64) << 45 | last as u64, middle as u64, secrets.seed)
                }
            },
        },
    };
    let secret = secrets.secrets[1];
    let (low, high) = multiply(first ^ secret, last ^ seed);
    let (low, high) = multiply(low ^ 0xaaaa_aaaa_aaaa_aaaa, high ^ secret ^ length);
    low ^ high
}

/// The low and the high half of a product.
#[inline(always)]
const fn multiply(a: u64, b: u64) -> (u64, u64) {
    let product = a as u128 * b as u128;
    (product as u64, (product >> 64) as u64)
}

impl std::fmt::Debug for HashSeed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("HashSeed(secret)")
    }
}

/// A key and its hash. The hash decides where an engine looks, the bytes decide what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'k> {
    bytes: &'k [u8],
    hash: u64,
}

impl<'k> Key<'k> {
    /// Hashes `bytes` with `seed`.
    ///
    /// # Panics
    ///
    /// If `bytes` is empty or longer than [`MAX_KEY_BYTES`]: protocols refuse such keys first.
    // As a call it costs a get of a server half a percent more instructions.
    #[inline(always)]
    pub fn new(bytes: &'k [u8], seed: &HashSeed) -> Self {
        Self::with_hash(bytes, seed.hash(bytes))
    }

    /// A key whose hash is known already. `hash` must be `seed.hash(bytes)` of the index's seed
    /// (tests choose it freely to force collisions).
    ///
    /// # Panics
    ///
    /// If `bytes` is empty or longer than [`MAX_KEY_BYTES`].
    #[inline]
    pub fn with_hash(bytes: &'k [u8], hash: u64) -> Self {
        assert!(!bytes.is_empty() && bytes.len() <= MAX_KEY_BYTES, "a key has 1 to 250 bytes");
        Self { bytes, hash }
    }

    /// The key as the client sent it.
    #[inline]
    pub fn bytes(&self) -> &'k [u8] {
        self.bytes
    }

    /// The 64-bit hash of the key.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_are_hashed_as_the_library_hashes_them() {
        let bytes: Vec<u8> = (0..24_u8).map(|i| i.wrapping_mul(151) ^ 0x6b).collect();
        for number in [0, 7, u64::MAX] {
            let (seed, secrets) = (HashSeed::new(number), RapidSecrets::seed(number));
            for length in 0..=20 {
                for key in bytes.windows(length.max(1)).map(|window| &window[..length]) {
                    let expected = rapidhash_v3_nano_inline::<true, false>(key, &secrets);
                    assert_eq!(seed.hash(key), expected, "{length} bytes");
                }
            }
        }
    }
}
