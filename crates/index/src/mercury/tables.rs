//! The tables of an index: one, or two during an expansion; and the choice of the one that holds a
//! hash.
//!
//! ```text
//! steady        current
//! expanding     current -> next      buckets [0, moved) of current are moved, later ones may be
//! ```
//!
//! Invariants:
//! 1. `current`, `next` and `version` change only while all thread locks are held (and, for reads
//!    without locks, by stores that readers acquire). So they do not change while a worker is
//!    *inside*, that is, holds its thread lock.
//! 2. A table that is neither current nor next any more is freed after the thread locks were
//!    released: no worker uses it any more. If reads take no locks, it is kept until the index is
//!    dropped.
//! 3. A hash lives in `next` if its bucket of `current` is moved, else in `current`. The bucket's
//!    moved bit decides, under the bucket's lock; the count `moved` only saves reading it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::AtomicPtr as Shareable;
use std::time::{Duration, Instant};

use amalgam_op::IgnorePoison;

use super::buckets::{BucketGuard, Buckets, Hint};
use super::locking::Locking;
use super::thread_lock::{ThreadLock, ThreadLocks};
use super::word::Bucket;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, CachePadded, Ordering};

/// The tables of an index.
pub(super) struct Tables<L: Locking> {
    current: AtomicPtr<Buckets<L>>,
    next: AtomicPtr<Buckets<L>>,
    /// The number of changes of `current` and `next`.
    version: AtomicU64,
    /// The number of buckets of `current`, from the first on, that are known to be moved.
    moved: CachePadded<AtomicUsize>,
    thread_locks: ThreadLocks,
    /// Tables out of use that readers without locks may still read.
    kept: Mutex<Vec<Shareable<Buckets<L>>>>,
    owns: PhantomData<Box<Buckets<L>>>,
}

/// The tables as the thread that expands them sees them.
pub(super) struct Pair<'t, L: Locking> {
    pub(super) current: &'t Buckets<L>,
    pub(super) next: Option<&'t Buckets<L>>,
}

impl<L: Locking> Tables<L> {
    pub(super) fn new(first: Buckets<L>, workers: usize) -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(first))),
            next: AtomicPtr::new(null_mut()),
            version: AtomicU64::new(1),
            moved: CachePadded(AtomicUsize::new(0)),
            thread_locks: ThreadLocks::new(workers),
            kept: Mutex::default(),
            owns: PhantomData,
        }
    }

    pub(super) fn handle(&self) -> TableHandle<'_, L> {
        let lock = self.thread_locks.register();
        let (version, view, hint) = (Cell::new(0), Cell::new(self.view()), Cell::default());
        TableHandle { tables: self, lock, version, view, hint }
    }

    /// Both tables, stable while the borrow lasts.
    ///
    /// # Safety
    ///
    /// The caller keeps [`Tables::begin`] and [`Tables::end`] from being called meanwhile.
    pub(super) unsafe fn pair(&self) -> Pair<'_, L> {
        let view = self.view();
        // SAFETY: `self` owns the tables, and only `end` frees one.
        let (current, next) = unsafe { (view.current.as_ref(), view.next.map(|t| t.as_ref())) };
        Pair { current, next }
    }

    /// Begins an expansion: from now on chains may move to `next`. Returns how long workers were
    /// locked out; or the table, if a worker did not finish its operation in time.
    pub(super) fn begin(&self, next: Box<Buckets<L>>) -> Result<Duration, Box<Buckets<L>>> {
        let next = Box::into_raw(next);
        let begun = self.thread_locks.exclusively(|| {
            let started = Instant::now();
            self.moved.store(0, Ordering::Relaxed);
            // Release, here and below: pairs with the acquire in `TableHandle::refresh` of readers
            // that take no thread lock. For all other threads the thread locks order the accesses.
            self.next.store(next, Ordering::Release);
            self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
            started
        });
        // SAFETY: the pointer was made from a box above and not published.
        begun.map(|started| started.elapsed()).ok_or_else(|| unsafe { Box::from_raw(next) })
    }

    /// Ends an expansion whose buckets have all moved. None if a worker did not finish its
    /// operation in time: try again later.
    ///
    /// # Safety
    ///
    /// No [`Pair`] is in use.
    pub(super) unsafe fn end(&self) -> Option<Ended<L>> {
        let next = self.next.load(Ordering::Relaxed);
        assert!(!next.is_null(), "an expansion is running");
        let (old, started) = self.thread_locks.exclusively(|| {
            let started = Instant::now();
            let old = self.current.swap(next, Ordering::AcqRel);
            self.next.store(null_mut(), Ordering::Release);
            self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
            (old, started)
        })?;
        let pause = started.elapsed();
        if !L::READS_LOCK {
            let mut kept = self.kept.lock().ignore_poison();
            kept.push(Shareable::new(old));
            return Some(Ended { old: None, pause });
        }
        // SAFETY: `new` or `begin` made it from a box; invariant 2: no worker uses it any more.
        let old = unsafe { Box::from_raw(old) };
        Some(Ended { old: Some(old), pause })
    }

    /// Records that the first `count` buckets of `current` are moved.
    pub(super) fn set_moved(&self, count: usize) {
        // Release pairs with the acquire in `TablesGuard::is_known_moved`: their chains are in
        // `next`.
        self.moved.store(count, Ordering::Release);
    }

    fn view(&self) -> View<L> {
        let current = NonNull::new(self.current.load(Ordering::Acquire));
        View {
            current: current.expect("there is always a table"),
            next: NonNull::new(self.next.load(Ordering::Acquire)),
        }
    }
}

/// An expansion that ended.
pub(super) struct Ended<L: Locking> {
    /// The old table, unless it has to be kept.
    pub(super) old: Option<Box<Buckets<L>>>,
    /// How long workers were locked out.
    pub(super) pause: Duration,
}

impl<L: Locking> Drop for Tables<L> {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().ignore_poison();
        let kept = kept.drain(..).map(Shareable::into_inner);
        let tables = [&self.current, &self.next].map(|table| table.load(Ordering::Relaxed));
        for table in kept.chain(tables) {
            if !table.is_null() {
                // SAFETY: the pointer was made from a box; no other thread uses it.
                drop(unsafe { Box::from_raw(table) });
            }
        }
    }
}

/// The tables as a worker last loaded them. The pointers are valid only while the worker is inside.
struct View<L: Locking> {
    current: NonNull<Buckets<L>>,
    next: Option<NonNull<Buckets<L>>>,
}

impl<L: Locking> Clone for View<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Locking> Copy for View<L> {}

/// A worker's handle to the tables, with its thread lock.
pub(super) struct TableHandle<'i, L: Locking> {
    tables: &'i Tables<L>,
    lock: &'i ThreadLock,
    /// The version at which `view` was loaded.
    version: Cell<u64>,
    view: Cell<View<L>>,
    hint: Cell<Hint>,
}

// SAFETY: the pointers of `view` and `hint` name tables of `tables`, which all threads share
// (`Buckets` is `Sync`), and are followed only while the worker is inside: that is within one call
// of the worker, which nobody can move meanwhile. The thread lock is a flag that belongs to the
// worker, not to a thread.
unsafe impl<L: Locking> Send for TableHandle<'_, L> where Buckets<L>: Sync {}

impl<L: Locking> Drop for TableHandle<'_, L> {
    fn drop(&mut self) {
        self.tables.thread_locks.deregister(self.lock);
    }
}

impl<'i, L: Locking> TableHandle<'i, L> {
    /// Prefetches the bucket of `hash` for writing.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.hint.get().prefetch(hash);
    }

    /// Prefetches the bucket of `hash` for reading: for batches, which seldom lock buckets, so that
    /// threads that read the same buckets can share the line.
    #[inline]
    pub(super) fn prefetch_to_read(&self, hash: u64) {
        self.hint.get().prefetch_to_read(hash);
    }

    /// Takes the thread lock. Requires: the worker is not inside already.
    #[inline]
    pub(super) fn enter(&self) -> TablesGuard<'_, 'i, L> {
        self.lock.lock();
        self.guard(true)
    }

    /// As [`TableHandle::enter`], for a read: takes no lock if reads take none.
    #[inline]
    pub(super) fn enter_to_read(&self) -> TablesGuard<'_, 'i, L> {
        if L::READS_LOCK {
            self.lock.lock();
        }
        self.guard(L::READS_LOCK)
    }

    #[inline]
    fn guard(&self, is_locked: bool) -> TablesGuard<'_, 'i, L> {
        if self.tables.version.load(Ordering::Acquire) != self.version.get() {
            self.refresh();
        }
        TablesGuard { handle: self, view: self.view.get(), is_locked }
    }

    #[cold]
    fn refresh(&self) {
        self.version.set(self.tables.version.load(Ordering::Acquire));
        self.view.set(self.tables.view());
        // SAFETY: the worker is inside, or tables are kept (invariant 2).
        self.hint.set(unsafe { self.view.get().current.as_ref() }.hint());
    }
}

/// The guard of a worker that is inside: the tables do not change while it lives. Releases the
/// thread lock on drop.
pub(super) struct TablesGuard<'s, 'i, L: Locking> {
    handle: &'s TableHandle<'i, L>,
    view: View<L>,
    is_locked: bool,
}

impl<L: Locking> Drop for TablesGuard<'_, '_, L> {
    #[inline]
    fn drop(&mut self) {
        if self.is_locked {
            self.handle.lock.unlock();
        }
    }
}

impl<'s, 'i, L: Locking> TablesGuard<'s, 'i, L> {
    /// Takes the thread lock for a read that began without it.
    pub(super) fn reenter(&self) -> TablesGuard<'s, 'i, L> {
        assert!(!self.is_locked, "the thread lock is taken once");
        self.handle.enter()
    }

    #[inline]
    pub(super) fn current(&self) -> &Buckets<L> {
        // SAFETY: invariants 1 and 2: the view is current, and its tables stay while the worker is
        // inside.
        unsafe { self.view.current.as_ref() }
    }

    #[inline]
    pub(super) fn next(&self) -> Option<&Buckets<L>> {
        // SAFETY: as in `current`.
        self.view.next.map(|next| unsafe { next.as_ref() })
    }

    /// Whether an expansion is under way, so that chains may be moving.
    #[inline]
    pub(super) fn is_expanding(&self) -> bool {
        self.view.next.is_some()
    }

    /// Whether bucket `index` of `current` is known to be moved.
    #[inline]
    fn is_known_moved(&self, index: usize) -> bool {
        // Acquire pairs with the release in `Tables::set_moved`.
        index < self.handle.tables.moved.load(Ordering::Acquire)
    }

    /// Locks the bucket that holds `hash` now. Returns it with the lowest hash of the next bucket;
    /// None for the last bucket.
    pub(super) fn lock_range(&self, hash: u64) -> (BucketGuard<'_, L>, Option<u64>) {
        let current = self.current();
        let index = current.index_of(hash);
        if let Some(next) = self.next() {
            let locked = (!self.is_known_moved(index)).then(|| current.lock(index));
            match locked.filter(|locked| !locked.is_moved()) {
                Some(locked) => return (locked, current.end_of(index)),
                None => {
                    let index = next.index_of(hash);
                    return (next.lock(index), next.end_of(index));
                }
            }
        }
        (current.lock(index), current.end_of(index))
    }

    /// Locks the bucket that holds `hash` now.
    #[inline]
    pub(super) fn lock(&self, hash: u64) -> BucketGuard<'_, L> {
        if self.is_expanding() {
            return self.lock_range(hash).0;
        }
        let current = self.current();
        current.lock(current.index_of(hash))
    }

    /// The bucket that probably holds `hash` now: for prefetches and for reads without locks.
    #[inline]
    pub(super) fn bucket(&self, hash: u64) -> &Bucket {
        let current = self.current();
        let index = current.index_of(hash);
        match self.next() {
            Some(next) if self.is_known_moved(index) => next.bucket(next.index_of(hash)),
            _ => current.bucket(index),
        }
    }
}
