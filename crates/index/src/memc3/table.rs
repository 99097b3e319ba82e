//! One table of one size: its buckets in memory, and which of them a hash or tag leads to.

use std::io;

use super::word::{Tag, Word};
use crate::sync::{AtomicU64, Ordering};

/// Slots that are searched together: half a cache line or a whole one.
pub(super) type Bucket<const SLOTS: usize> = [AtomicU64; SLOTS];

#[cfg(not(loom))]
type Storage<const SLOTS: usize> = crate::mem::Table<Bucket<SLOTS>>;
#[cfg(loom)]
type Storage<const SLOTS: usize> = Box<[Bucket<SLOTS>]>;

/// A table of a power of two of buckets.
pub(super) struct Table<const SLOTS: usize> {
    buckets: Storage<SLOTS>,
    mask: usize,
}

impl<const SLOTS: usize> Table<SLOTS> {
    /// An empty table of `buckets` (a power of two), charged to `memory`.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the limit does not allow it, or the system's error.
    #[cfg(not(loom))]
    pub(super) fn new(buckets: usize, memory: &crate::mem::Memory) -> io::Result<Self> {
        assert!(buckets.is_power_of_two(), "a table has a power of two of buckets");
        Ok(Self { buckets: memory.table(buckets)?, mask: buckets - 1 })
    }

    /// An empty table of `buckets` (a power of two), not charged to a memory limit.
    ///
    /// # Errors
    ///
    /// The system's error.
    #[cfg(not(loom))]
    pub(super) fn unlimited(buckets: usize) -> io::Result<Self> {
        assert!(buckets.is_power_of_two(), "a table has a power of two of buckets");
        Ok(Self { buckets: crate::mem::Table::unlimited(buckets)?, mask: buckets - 1 })
    }

    /// An empty table for loom, where nothing is charged.
    #[cfg(loom)]
    pub(super) fn new(buckets: usize, _memory: &crate::mem::Memory) -> io::Result<Self> {
        Ok(Self::model(buckets))
    }

    /// Loom's atomics cannot start as zeroed memory, so they are made one by one.
    #[cfg(loom)]
    pub(super) fn model(buckets: usize) -> Self {
        let bucket = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Self { buckets: (0..buckets).map(bucket).collect(), mask: buckets - 1 }
    }

    /// Number of buckets.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.mask + 1
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.len() * SLOTS
    }

    /// Bytes that the table takes.
    pub(super) fn bytes(&self) -> usize {
        self.len() * size_of::<Bucket<SLOTS>>()
    }

    /// The first bucket of a hash.
    #[inline]
    pub(super) fn first(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }

    /// The other bucket of a key with `tag` that may lie in `bucket`.
    #[inline]
    pub(super) fn other(&self, bucket: usize, tag: Tag) -> usize {
        (bucket ^ tag.offset() as usize) & self.mask
    }

    #[inline]
    pub(super) fn bucket(&self, index: usize) -> &Bucket<SLOTS> {
        debug_assert_eq!(self.buckets.len(), self.mask + 1, "all buckets can be reached");
        // SAFETY: the mask is one less than the number of buckets, which never changes.
        unsafe { self.buckets.get_unchecked(index & self.mask) }
    }

    /// The word of a slot. Acquire pairs with the release of the store that published the item.
    #[inline]
    pub(super) fn word(&self, bucket: usize, slot: usize) -> Word {
        Word(self.bucket(bucket)[slot].load(Ordering::Acquire))
    }

    /// Stores a word. Release publishes the item that it names.
    #[inline]
    pub(super) fn store(&self, bucket: usize, slot: usize, word: Word) {
        self.bucket(bucket)[slot].store(word.0, Ordering::Release);
    }

    /// An empty slot of a bucket, or None.
    #[inline]
    pub(super) fn empty_slot(&self, bucket: usize) -> Option<usize> {
        self.bucket(bucket).iter().position(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Prefetches a bucket.
    #[inline]
    pub(super) fn prefetch(&self, bucket: usize) {
        #[cfg(not(loom))]
        self.buckets.prefetch(bucket & self.mask);
        #[cfg(loom)]
        let _ = bucket;
    }

    /// Touches all of it, so that later stores do not fault.
    pub(super) fn populate(&self) {
        #[cfg(not(loom))]
        self.buckets.populate();
    }
}
