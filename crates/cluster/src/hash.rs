//! Numbers that nobody outside can choose: maps from them, and a random one for each.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// 64 bits that all depend on those of a number, the same on every node.
pub fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// A map from ids, versions and the like. What it is used for does not depend on its order.
pub type IntHashMap<K, V> = HashMap<K, V, BuildHasherDefault<IntHasher>>;

/// Mixes 64 bits. What is mixed is made by the cluster, not by its clients: nobody can choose it so
/// that much collides.
#[derive(Debug, Default)]
pub struct IntHasher(u64);

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
