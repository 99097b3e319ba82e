//! A table of buckets, and the critical section of one bucket.

#[cfg(not(loom))]
use std::io;

use super::locking::Locking;
use super::word::{Bucket, Word};
#[cfg(not(loom))]
use crate::mem::Memory;
use crate::mem::{ItemRef, Table, prefetch, prefetch_for_write};

/// The smallest number of buckets of a table.
pub(super) const MIN_BUCKETS: usize = if cfg!(loom) { 2 } else { 8 };

#[cfg(not(loom))]
type Words = Table<Bucket>;
/// Loom's atomics cannot start as zeroed memory.
#[cfg(loom)]
type Words = Box<[Bucket]>;

/// A table of buckets. The top bits of a hash number its bucket, so bucket `l` of a table of n is
/// the union of the buckets `2l` and `2l + 1` of one of 2n.
pub(super) struct Buckets<L: Locking> {
    words: Words,
    sides: Option<Table<L::Side>>,
    shift: u32,
}

impl<L: Locking> Buckets<L> {
    /// A table of `count` buckets, a power of two.
    ///
    /// # Errors
    ///
    /// If the memory limit or the system refuses.
    #[cfg(not(loom))]
    pub(super) fn new(memory: &Memory, count: usize) -> io::Result<Self> {
        assert!(count.is_power_of_two() && count >= MIN_BUCKETS, "a power of two");
        let words = memory.table(count)?;
        let sides = L::HAS_SIDE.then(|| memory.table(count)).transpose()?;
        Ok(Self { words, sides, shift: 64 - count.trailing_zeros() })
    }

    /// A table of `count` buckets without a side table and outside the memory limit.
    #[cfg(loom)]
    pub(super) fn model(count: usize) -> Self {
        assert!(count.is_power_of_two() && count >= MIN_BUCKETS, "a power of two");
        let words = (0..count).map(|_| Bucket::new(Word::of(None))).collect();
        Self { words, sides: None, shift: 64 - count.trailing_zeros() }
    }

    /// Faults all pages of the table in.
    #[cfg(not(loom))]
    pub(super) fn populate(&self) {
        self.words.populate();
        self.sides.iter().for_each(Table::populate);
    }

    pub(super) fn count(&self) -> usize {
        self.words.len()
    }

    /// The bytes charged to the memory limit.
    #[cfg(not(loom))]
    pub(super) fn bytes(&self) -> usize {
        self.words.bytes() + self.sides.as_ref().map_or(0, Table::bytes)
    }

    #[inline]
    pub(super) fn index_of(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// The lowest hash of the bucket after `index`; None if that is the last.
    pub(super) fn end_of(&self, index: usize) -> Option<u64> {
        (index + 1 < self.count()).then(|| (index as u64 + 1) << self.shift)
    }

    #[inline]
    pub(super) fn bucket(&self, index: usize) -> &Bucket {
        &self.words[index]
    }

    /// Locks a bucket.
    #[inline]
    pub(super) fn lock(&self, index: usize) -> BucketGuard<'_, L> {
        let bucket = &self.words[index];
        let side = self.sides.as_ref().map(|sides| &sides[index]);
        BucketGuard { bucket, side, word: L::lock(bucket, side) }
    }

    /// An address for prefetching buckets that may be used after the table was freed.
    #[inline]
    pub(super) fn hint(&self) -> Hint {
        Hint { base: self.words.as_ptr().cast(), shift: self.shift }
    }
}

/// The address of a table's buckets, which may have been freed: for prefetches only.
#[derive(Clone, Copy)]
pub(super) struct Hint {
    base: *const u8,
    shift: u32,
}

impl Default for Hint {
    fn default() -> Self {
        Self { base: std::ptr::null(), shift: u64::BITS - 1 }
    }
}

impl Hint {
    /// Prefetches the bucket of `hash` for writing, as it will be locked.
    #[inline]
    pub(super) fn prefetch(self, hash: u64) {
        prefetch_for_write(self.address(hash));
    }

    /// Prefetches the bucket of `hash` for reading.
    #[inline]
    pub(super) fn prefetch_to_read(self, hash: u64) {
        prefetch(self.address(hash));
    }

    #[inline]
    fn address(self, hash: u64) -> *const u8 {
        let offset = (hash >> self.shift) as usize * size_of::<Bucket>();
        self.base.wrapping_add(offset)
    }
}

/// A locked bucket. Unlocks on drop, also in a panic, and writes the current word back.
pub(super) struct BucketGuard<'t, L: Locking> {
    bucket: &'t Bucket,
    side: Option<&'t L::Side>,
    word: Word,
}

impl<L: Locking> BucketGuard<'_, L> {
    #[inline]
    pub(super) fn is_moved(&self) -> bool {
        self.word.is_moved()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<ItemRef> {
        self.word.item()
    }

    /// Sets the first item of the chain. Other threads see it when the bucket is unlocked.
    #[inline]
    pub(super) fn set_first(&mut self, item: Option<ItemRef>) {
        self.word = Word::of(item);
    }

    /// Marks the bucket as moved: its chain lives in the other table.
    pub(super) fn set_moved(&mut self) {
        self.word = Word::MOVED;
    }
}

impl<L: Locking> Drop for BucketGuard<'_, L> {
    #[inline]
    fn drop(&mut self) {
        L::unlock(self.bucket, self.side, self.word);
    }
}
