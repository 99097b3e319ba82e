//! Tables of head words, and the way from a hash to its head while one table replaces another.
//!
//! Thread safety: the table in use is behind an atomic pointer; during a rehash it points at the
//! next, and those of its heads that were moved say so. A table is freed a grace period after it
//! went out of use, so whoever holds a guard may follow both pointers.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::space::load;
use super::word::Head;
use crate::mem::{Guard, Table};
use crate::sync::{AtomicU64, CachePadded};

/// The heads of 2^n rings; n is at least 1.
pub(super) struct HeadTable {
    heads: Table<AtomicU64>,
    /// A hash shifted right by this many bits is its ring's number.
    shift: u32,
    /// The table that takes over, while a rehash is under way.
    next: AtomicPtr<HeadTable>,
    /// All rings below this number have moved, so a look-up need not fetch the old head to know.
    /// In a cache line that is read during a rehash only.
    moved: CachePadded<AtomicUsize>,
}

impl HeadTable {
    /// `heads` has a power of two of elements, at least 2.
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

    /// Tells that the heads of all rings below `end` were moved.
    pub(super) fn note_moved(&self, end: usize) {
        // Release publishes the heads in the next table, pairs with the acquire in `has_moved`.
        self.moved.store(end, Ordering::Release);
    }

    /// Whether the head of `hash` is known, without a look at it, to be in the next table.
    #[inline]
    fn has_moved(&self, hash: u64) -> bool {
        self.place_of(hash) < self.moved.load(Ordering::Acquire)
    }

    /// How many rings there are.
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

    /// The table that takes over, if a rehash is under way.
    #[inline]
    pub(super) fn next<'g>(&'g self, _guard: &'g Guard<'_>) -> Option<&'g HeadTable> {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a table that outlives this one, which the guard keeps.
        unsafe { next.as_ref() }
    }
}

/// The table in use, and perhaps the one after it.
pub(super) struct Tables(AtomicPtr<HeadTable>);

impl Tables {
    pub(super) fn new(table: HeadTable) -> Self {
        Self(AtomicPtr::new(Box::into_raw(Box::new(table))))
    }

    /// The table in use.
    #[inline]
    pub(super) fn current<'g>(&'g self, _guard: &'g Guard<'_>) -> &'g HeadTable {
        // SAFETY: never null; freed a grace period after it was replaced here (`Retired`).
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// The table to look into first for `hash`.
    #[inline]
    fn first<'g>(&'g self, hash: u64, guard: &'g Guard<'_>) -> &'g HeadTable {
        let table = self.current(guard);
        match table.next(guard) {
            Some(next) if table.has_moved(hash) => next,
            _ => table,
        }
    }

    /// Asks for the head of `hash`; a hint.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64, guard: &Guard<'_>) {
        let table = self.first(hash, guard);
        table.heads.prefetch(table.place_of(hash));
    }

    /// The head word for `hash` and what is in it, which is not [`Head::MOVED`].
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

    /// Begins to replace the table in use. One thread at a time.
    pub(super) fn begin(&self, next: HeadTable, guard: &Guard<'_>) {
        let current = self.current(guard);
        assert!(current.next.load(Ordering::Relaxed).is_null(), "one rehash at a time");
        // Release publishes the table to those who find a moved head.
        current.next.store(Box::into_raw(Box::new(next)), Ordering::Release);
    }

    /// Puts the next table in the place of the one in use, all of whose heads were moved. Free what
    /// is returned after a grace period.
    pub(super) fn finish(&self, guard: &Guard<'_>) -> RetiredTable {
        let next = self.current(guard).next.load(Ordering::Acquire);
        assert!(!next.is_null(), "a rehash is under way");
        // The pointer that the box gave, not one of a reference: the table is freed through it.
        RetiredTable(self.0.swap(next, Ordering::AcqRel))
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let mut table = *self.0.get_mut();
        while !table.is_null() {
            // SAFETY: made from boxes in `new` and `begin`; nobody else is left.
            let owned = unsafe { Box::from_raw(table) };
            table = owned.next.load(Ordering::Relaxed);
        }
    }
}

/// A table that went out of use.
pub(super) struct RetiredTable(*mut HeadTable);

// SAFETY: owns the table, which is shared between threads anyway.
unsafe impl Send for RetiredTable {}

impl RetiredTable {
    /// # Safety
    ///
    /// A grace period has passed since [`Tables::finish`].
    pub(super) unsafe fn free(mut self) {
        // SAFETY: as promised; made from a box.
        drop(unsafe { Box::from_raw(self.0) });
        self.0 = std::ptr::null_mut();
    }
}
