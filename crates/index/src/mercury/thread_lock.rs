//! Thread locks, one per worker: by taking all of them the expand thread replaces tables while no
//! worker uses them (Mercury, section 3).
//!
//! A worker takes its own lock around each operation or batch. The only other taker is the expand
//! thread, at the beginning and end of an expansion. So the worker pays one exchange on a line that
//! its core owns, while the bucket's line is already being fetched.
//!
//! Fairness: a worker would take its lock again long before another core sees it free. So the
//! expand thread first announces that it wants the locks, and workers let it go first. If a worker
//! was preempted inside an operation, the expand thread releases all locks and tries again later:
//! no worker ever waits for another worker.

use amalgam_op::IgnorePoison;

use crate::sync::{AtomicU64, CachePadded, Mutex, Ordering, spin};

/// The number of times that the expand thread tries one worker's lock before it releases the
/// others.
const PATIENCE_ROUNDS: u32 = if cfg!(loom) { 1 } else { 1000 };

const FREE: u64 = 0;
const HELD: u64 = 1;

/// A worker's lock.
#[derive(Default)]
pub(super) struct ThreadLock {
    state: AtomicU64,
    /// 1 while the expand thread wants or holds the lock.
    is_wanted: AtomicU64,
    /// 1 while the lock belongs to a worker.
    is_taken: AtomicU64,
}

impl ThreadLock {
    /// Takes the lock. Only for the worker to which it belongs.
    #[inline]
    pub(super) fn lock(&self) {
        // Relaxed: the flag serves fairness only; the lock excludes.
        if self.is_wanted.load(Ordering::Relaxed) != 0 || !self.try_lock() {
            self.lock_contended();
        }
    }

    #[cold]
    fn lock_contended(&self) {
        let mut round = 0;
        loop {
            if self.is_wanted.load(Ordering::Relaxed) == 0 && self.try_lock() {
                return;
            }
            spin(round);
            round += 1;
        }
    }

    /// Acquire pairs with the release in `unlock`: the worker sees the tables that the expand
    /// thread left, and the worker's operation happens before what the expand thread does under the
    /// lock.
    #[inline]
    fn try_lock(&self) -> bool {
        self.state.swap(HELD, Ordering::Acquire) == FREE
    }

    #[inline]
    pub(super) fn unlock(&self) {
        #[cfg(not(loom))]
        self.state.store(FREE, Ordering::Release);
        // As in `Bucket::unlock`.
        #[cfg(loom)]
        self.state.swap(FREE, Ordering::Release);
    }
}

/// The locks of all workers.
pub(super) struct ThreadLocks {
    locks: Box<[CachePadded<ThreadLock>]>,
    /// The number of locks, from the first on, that ever belonged to a worker. The mutex is held
    /// while tables are replaced, so that no worker registers then.
    used: Mutex<usize>,
}

impl ThreadLocks {
    pub(super) fn new(workers: usize) -> Self {
        let locks = (0..workers).map(|_| CachePadded::default()).collect();
        Self { locks, used: Mutex::new(0) }
    }

    /// Assigns a lock to the calling worker.
    ///
    /// # Panics
    ///
    /// If there are more workers than locks.
    pub(super) fn register(&self) -> &ThreadLock {
        let mut used = self.used();
        let claims = |lock: &CachePadded<ThreadLock>| {
            // Acquire pairs with the release in `deregister`.
            lock.is_taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let lock = self.locks.iter().position(claims);
        let lock = lock.expect("more workers than the index was opened for");
        *used = (*used).max(lock + 1);
        &self.locks[lock]
    }

    pub(super) fn deregister(&self, lock: &ThreadLock) {
        lock.is_taken.store(0, Ordering::Release);
    }

    /// Runs `change` while holding all thread locks; None if a worker does not finish its operation
    /// in time. Requires: the caller holds no thread lock.
    pub(super) fn exclusively<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let used = self.used();
        let locks = &self.locks[..*used];
        locks.iter().for_each(|lock| lock.is_wanted.store(1, Ordering::Relaxed));
        let held = locks.iter().take_while(|lock| Self::lock_patiently(lock)).count();
        let result = (held == locks.len()).then(change);
        locks[..held].iter().for_each(|lock| lock.unlock());
        locks.iter().for_each(|lock| lock.is_wanted.store(0, Ordering::Relaxed));
        result
    }

    fn used(&self) -> impl std::ops::DerefMut<Target = usize> {
        self.used.lock().ignore_poison()
    }

    fn lock_patiently(lock: &ThreadLock) -> bool {
        (0..=PATIENCE_ROUNDS).any(|round| {
            let is_free = lock.state.load(Ordering::Relaxed) == FREE && lock.try_lock();
            if !is_free {
                // Spin without yielding: other workers may be waiting for this thread already.
                spin(if cfg!(loom) { round } else { 0 });
            }
            is_free
        })
    }
}
