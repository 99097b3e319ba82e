//! Tables of head words, and the lookup of a hash's head while one table replaces another.
//!
//! Thread safety: an atomic pointer leads to the table in use; during a rehash that table points at
//! the next one, and its moved heads are [`Head::MOVED`]. A table is freed a grace period after it
//! went out of use, so a thread that holds a guard may follow both pointers.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::space::load;
use super::word::Head;
use crate::mem::{Guard, Table};
use crate::sync::{AtomicU64, CachePadded};

/// The heads of 2^n rings; n is at least 1.
pub(super) struct HeadTable {
    heads: Table<AtomicU64>,
    /// A hash shifted right by this many bits is the number of its ring.
    shift: u32,
    /// The next table while a rehash is under way; null otherwise.
    next: AtomicPtr<HeadTable>,
    /// All rings below this number have moved: for these, a lookup need not load the old head. The
    /// cache line is read only during a rehash.
    moved: CachePadded<AtomicUsize>,
}

impl HeadTable {
    /// A table of `heads`, whose number is a power of two and at least 2.
    pub(super) fn new(heads: Table<AtomicU64>) -> Self {
        assert!(
            heads.len().is_power_of_two() && heads.len() >= 2,
            "rings are numbered by prefixes"
        );
        let shift = 64 - heads.len().trailing_zeros();
        Self { heads, shift, next: AtomicPtr::default(), moved: CachePadded::default() }
    }

    #[inline]
    fn place_of(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    #[inline]
    pub(super) fn head(&self, hash: u64) -> &AtomicU64 {
        &self.heads[self.place_of(hash)]
    }

    /// The head of ring `number`.
    pub(super) fn head_at(&self, number: usize) -> &AtomicU64 {
        &self.heads[number]
    }

    /// Records that the heads of all rings below `end` were moved.
    pub(super) fn note_moved(&self, end: usize) {
        // Release publishes the heads in the next table; pairs with the acquire in `has_moved`.
        self.moved.store(end, Ordering::Release);
    }

    /// Whether the head of `hash` is known to be in the next table without loading it.
    #[inline]
    fn has_moved(&self, hash: u64) -> bool {
        self.place_of(hash) < self.moved.load(Ordering::Acquire)
    }

    /// The number of rings.
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// The number of low bits in which the hashes of one ring differ.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    pub(super) fn bytes(&self) -> usize {
        self.heads.bytes()
    }

    /// The next table, if a rehash is under way.
    #[inline]
    pub(super) fn next<'g>(&'g self, _guard: &'g Guard<'_>) -> Option<&'g HeadTable> {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: the pointer is null or leads to a table that outlives this one, which the guard
        // keeps.
        unsafe { next.as_ref() }
    }
}

/// The table in use and, during a rehash, the one after it.
pub(super) struct Tables(AtomicPtr<HeadTable>);

impl Tables {
    pub(super) fn new(table: HeadTable) -> Self {
        Self(AtomicPtr::new(Box::into_raw(Box::new(table))))
    }

    /// The table in use.
    #[inline]
    pub(super) fn current<'g>(&'g self, _guard: &'g Guard<'_>) -> &'g HeadTable {
        // SAFETY: the pointer is never null, and a table is freed a grace period after it was
        // replaced here (`RetiredTable`).
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// The table in which a lookup of `hash` starts.
    #[inline]
    fn first<'g>(&'g self, hash: u64, guard: &'g Guard<'_>) -> &'g HeadTable {
        let table = self.current(guard);
        match table.next(guard) {
            Some(next) if table.has_moved(hash) => next,
            _ => table,
        }
    }

    /// Prefetches the head of `hash`.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64, guard: &Guard<'_>) {
        let table = self.first(hash, guard);
        table.heads.prefetch(table.place_of(hash));
    }

    /// The head word for `hash` and its value, which is not [`Head::MOVED`].
    #[inline]
    pub(super) fn head<'g>(&'g self, hash: u64, guard: &'g Guard<'_>) -> (&'g AtomicU64, Head) {
        let mut table = self.first(hash, guard);
        loop {
            let word = table.head(hash);
            let head = Head(load(word));
            if head != Head::MOVED {
                return (word, head);
            }
            table = table.next(guard).expect("a head moves to the next table");
        }
    }

    /// Begins to replace the table in use by `next`. Requires: no rehash is under way, and one
    /// thread at a time calls this.
    pub(super) fn begin(&self, next: HeadTable, guard: &Guard<'_>) {
        let current = self.current(guard);
        assert!(current.next.load(Ordering::Relaxed).is_null(), "one rehash at a time");
        // Release publishes the table to threads that find a moved head.
        current.next.store(Box::into_raw(Box::new(next)), Ordering::Release);
    }

    /// Makes the next table the one in use. Requires: all heads of the old table were moved. The
    /// caller frees the returned old table after a grace period.
    pub(super) fn finish(&self, guard: &Guard<'_>) -> RetiredTable {
        let next = self.current(guard).next.load(Ordering::Acquire);
        assert!(!next.is_null(), "a rehash is under way");
        // The swap returns the pointer of the box (not one derived from a reference), through which
        // the table is freed.
        RetiredTable(self.0.swap(next, Ordering::AcqRel))
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let mut table = *self.0.get_mut();
        while !table.is_null() {
            // SAFETY: the pointers were made from boxes in `new` and `begin`; no other thread uses
            // them.
            let owned = unsafe { Box::from_raw(table) };
            table = owned.next.load(Ordering::Relaxed);
        }
    }
}

/// A table that went out of use.
pub(super) struct RetiredTable(*mut HeadTable);

// SAFETY: this owns the table, which threads may share anyway.
unsafe impl Send for RetiredTable {}

impl RetiredTable {
    /// # Safety
    ///
    /// A grace period has passed since [`Tables::finish`].
    pub(super) unsafe fn free(mut self) {
        // SAFETY: the caller guarantees the grace period; the pointer was made from a box.
        drop(unsafe { Box::from_raw(self.0) });
        self.0 = std::ptr::null_mut();
    }
}
