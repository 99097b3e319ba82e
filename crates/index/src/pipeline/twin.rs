//! The slot memory alone, for whoever compares it word by word with hardware: the engine's own
//! slots under the rules of GET, SET and DELETE, fed with pointers from outside.

use amalgam_op::{Expiry, lookup3};

use super::layout::{Bucket, Locator, Pattern, Terms};
use super::slots::{Held, Slots};
use crate::mem::Table;
use crate::simd::{Fastest, Scalar, each_way};
use crate::sync::Ordering;

/// Slots of a bucket.
pub const SLOTS: usize = 8;

/// See the head of this file. Not for use by several threads at once.
pub struct Twin {
    slots: Slots<SLOTS>,
    /// The clock in seconds.
    pub now: u32,
    /// Pointers that returned to their queue, in order.
    pub returned: Vec<u64>,
}

impl Twin {
    /// An empty table of `buckets` buckets, at second 100.
    ///
    /// # Panics
    ///
    /// If there is no memory for it.
    pub fn new(buckets: usize) -> Self {
        let table = Table::<Bucket<SLOTS>>::unlimited(buckets).expect("memory");
        Self { slots: Slots::new(table), now: 100, returned: Vec::new() }
    }

    fn pattern(key: &[u8]) -> (Pattern, u64) {
        let hash = lookup3(key, 0, 0);
        (Pattern::new(key, hash), hash)
    }

    /// The bucket of a hash.
    pub fn bucket_of(&self, hash: u64) -> usize {
        self.slots.bucket_of(hash)
    }

    /// The slot that holds a key, expired or not.
    pub fn get(&self, key: &[u8]) -> Option<usize> {
        let (pattern, hash) = Self::pattern(key);
        let bucket = self.slots.bucket_of(hash);
        self.slots.find::<Scalar>(bucket, &pattern, |_| true).map(|(slot, _)| slot)
    }

    /// Whether a slot may hold a key, as the engine's readers ask: what a read costs before it
    /// looks at an item.
    #[inline]
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let (pattern, hash) = Self::pattern(key);
        let bucket = self.slots.bucket_of(hash);
        !each_way!(Fastest::here(), C => {
            self.slots.optimistic_probe::<C>(bucket, pattern.tag, || pattern)
        })
        .is_free()
    }

    fn give_up(held: &Held<'_, SLOTS>, slot: usize, returned: &mut Vec<u64>) {
        returned.push(held.locator(slot).reference());
        held.give_up(slot);
    }

    /// Frees what expired in the key's bucket, the key's own slot apart. That slot, and the bucket.
    fn prepare(&mut self, key: &[u8]) -> (Held<'_, SLOTS>, Option<usize>, &mut Vec<u64>) {
        let (pattern, hash) = Self::pattern(key);
        let held = self.slots.lock(self.slots.bucket_of(hash));
        let matched = self.slots.find::<Scalar>(held.index, &pattern, |_| true);
        let matched = matched.map(|(slot, _)| slot);
        let returned = &mut self.returned;
        held.reclaim(self.now, matched, |locator| returned.push(locator.reference()));
        (held, matched, returned)
    }

    /// A SET whose value lies at `pointer`. A full bucket gives up a slot.
    pub fn set(&mut self, key: &[u8], pointer: u64, expiry: u32, value_bytes: usize) {
        let (pattern, _) = Self::pattern(key);
        let (held, matched, returned) = self.prepare(key);
        let (locator, terms) =
            (Locator::new(&pattern, pointer), Terms::new(Expiry(expiry), value_bytes));
        if let Some(slot) = matched {
            returned.push(held.locator(slot).reference());
            return held.overwrite(slot, locator, terms);
        }
        let slot = held.free_slot().unwrap_or_else(|| {
            let victim = pattern.check() % SLOTS;
            Self::give_up(&held, victim, returned);
            victim
        });
        held.take(slot, &pattern, locator, terms);
    }

    /// A DELETE.
    pub fn delete(&mut self, key: &[u8]) {
        let (held, matched, returned) = self.prepare(key);
        if let Some(slot) = matched {
            Self::give_up(&held, slot, returned);
        }
    }

    /// A word of the slot memory.
    pub fn word(&self, bucket: usize, line: usize, slot: usize) -> u64 {
        self.slots.bucket(bucket)[line][slot].load(Ordering::Relaxed)
    }
}
