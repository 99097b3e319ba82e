//! The slot memory without items, for comparing it word by word with the hardware: the engine's
//! slots under the rules of GET, SET and DELETE, with pointers that the caller supplies.

use amalgam_op::{Expiry, lookup3};

use super::layout::{Bucket, Locator, Pattern, Terms};
use super::slots::{LockedBucket, Slots};
use crate::mem::Table;
use crate::simd::{Fastest, Scalar, each_way};
use crate::sync::Ordering;

/// Slots of a bucket.
pub const SLOTS: usize = 8;

/// A model of the hardware's slot memory. For one thread.
pub struct Twin {
    slots: Slots<SLOTS>,
    /// The clock in seconds.
    pub now: u32,
    /// Pointers given back by the table, in the order in which the hardware returns them to their
    /// queue.
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

    /// Whether a slot may hold a key, by the same probe as the engine's readers: it is the part of
    /// a read before the item, for measurements.
    #[inline]
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let (pattern, hash) = Self::pattern(key);
        let bucket = self.slots.bucket_of(hash);
        !each_way!(Fastest::here(), C => {
            self.slots.optimistic_probe::<C>(bucket, pattern.tag, || pattern)
        })
        .is_free()
    }

    fn give_up(locked: &LockedBucket<'_, SLOTS>, slot: usize, returned: &mut Vec<u64>) {
        returned.push(locked.locator(slot).reference());
        locked.give_up(slot);
    }

    /// Locks the key's bucket and frees its expired slots, apart from the key's own. Returns the
    /// bucket, the key's slot if it has one, and the queue of returned pointers.
    fn prepare(&mut self, key: &[u8]) -> (LockedBucket<'_, SLOTS>, Option<usize>, &mut Vec<u64>) {
        let (pattern, hash) = Self::pattern(key);
        let locked = self.slots.lock(self.slots.bucket_of(hash));
        let matched = self.slots.find::<Scalar>(locked.index, &pattern, |_| true);
        let matched = matched.map(|(slot, _)| slot);
        let returned = &mut self.returned;
        locked.reclaim(self.now, matched, |locator| returned.push(locator.reference()));
        (locked, matched, returned)
    }

    /// Performs a SET of a value at `pointer`. If the bucket is full, one of its slots is given up.
    pub fn set(&mut self, key: &[u8], pointer: u64, expiry: u32, value_bytes: usize) {
        let (pattern, _) = Self::pattern(key);
        let (locked, matched, returned) = self.prepare(key);
        let (locator, terms) =
            (Locator::new(&pattern, pointer), Terms::new(Expiry(expiry), value_bytes));
        if let Some(slot) = matched {
            returned.push(locked.locator(slot).reference());
            return locked.overwrite(slot, locator, terms);
        }
        let slot = locked.free_slot().unwrap_or_else(|| {
            let victim = pattern.check() % SLOTS;
            Self::give_up(&locked, victim, returned);
            victim
        });
        locked.take(slot, &pattern, locator, terms);
    }

    /// Performs a DELETE.
    pub fn delete(&mut self, key: &[u8]) {
        let (locked, matched, returned) = self.prepare(key);
        if let Some(slot) = matched {
            Self::give_up(&locked, slot, returned);
        }
    }

    /// A word of the slot memory.
    pub fn word(&self, bucket: usize, line: usize, slot: usize) -> u64 {
        self.slots.bucket(bucket)[line][slot].load(Ordering::Relaxed)
    }
}
