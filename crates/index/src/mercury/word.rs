//! A bucket: one word that holds the first item of the chain, the lock and the moved bit.
//!
//! ```text
//! bit  0      locked
//! bit  1      moved: the chain lives in the other table
//! bit  3..48  the first item (its reference; a multiple of 8), or 0 for an empty chain
//! ```
//!
//! Invariants:
//! 1. The thread that holds the lock has the only copy of the rest of the word and writes it back
//!    with the store that unlocks. Other threads write nothing to a locked word except
//!    [`Word::LOCKED`], when they try to take the lock.
//! 2. Moved is set once, by the expansion, and stays until the table is freed.
//!
//! An exchange (acquire) takes the lock; it pairs with the store that unlocks (release), so each
//! holder sees the previous holder's changes of the chain. The linearization point of a change
//! under the lock is that store.

use crate::mem::ItemRef;
use crate::sync::{AtomicU64, Ordering, spin};

/// The value of a bucket's word without the lock bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// A bucket whose chain lives in the other table.
    pub(super) const MOVED: Self = Self(2);
    const LOCKED: u64 = 1;
    const FLAGS: u64 = 7;

    /// A chain that starts with `item`.
    #[inline]
    pub(super) fn of(item: Option<ItemRef>) -> Self {
        Self(item.map_or(0, ItemRef::to_bits))
    }

    /// The first item of the chain.
    #[inline]
    pub(super) fn item(self) -> Option<ItemRef> {
        ItemRef::from_bits(self.0 & !Self::FLAGS)
    }

    #[inline]
    pub(super) fn is_moved(self) -> bool {
        self.0 & Self::MOVED.0 != 0
    }

    #[inline]
    fn is_locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }
}

/// A bucket of a table.
#[repr(transparent)]
pub struct Bucket(AtomicU64);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 8, "one word a bucket");

// SAFETY: an atomic integer; zero is an empty bucket.
#[cfg(not(loom))]
unsafe impl crate::mem::Zeroable for Bucket {}

impl Bucket {
    /// The bucket's word, which other threads may be changing: for prefetches and, under a guard,
    /// for following the chain. While the bucket is locked it appears empty.
    #[inline]
    pub(super) fn peek(&self) -> Word {
        // Acquire pairs with the release in `unlock`, which published the first item.
        Word(self.0.load(Ordering::Acquire))
    }

    /// Takes the lock by test-and-set and returns the word; while the lock is held, spins on loads.
    #[inline]
    pub(super) fn lock(&self) -> Word {
        let word = Word(self.0.swap(Word::LOCKED, Ordering::Acquire));
        if word.is_locked() { self.lock_contended() } else { word }
    }

    #[cold]
    fn lock_contended(&self) -> Word {
        let mut round = 0;
        loop {
            // The wait is bounded by the critical sections of other holders, which neither allocate
            // nor wait.
            if !self.peek().is_locked() {
                let word = Word(self.0.swap(Word::LOCKED, Ordering::Acquire));
                if !word.is_locked() {
                    return word;
                }
            }
            spin(round);
            round += 1;
        }
    }

    /// Writes the word back and releases the lock. Requires: the caller holds the lock, or no other
    /// thread can reach the bucket yet.
    #[inline]
    pub(super) fn unlock(&self, word: Word) {
        debug_assert!(!word.is_locked(), "a lock is no part of the word");
        #[cfg(not(loom))]
        self.0.store(word.0, Ordering::Release);
        // This store must come after the exchanges of threads that failed to take the lock; loom
        // orders the two only if this is an exchange as well.
        #[cfg(loom)]
        self.0.swap(word.0, Ordering::Release);
    }
}

#[cfg(loom)]
impl Bucket {
    /// Loom's atomics cannot start as zeroed memory.
    pub(super) fn new(word: Word) -> Self {
        Self(AtomicU64::new(word.0))
    }
}
