//! Thread locks: one a worker, so that the expand thread can change which tables there are while
//! no worker is looking (Mercury, section 3).
//!
//! A worker takes its own lock around each operation or batch. Nobody else wants it but during a
//! change of state, when the expand thread takes all of them. So the worker pays one exchange on a
//! line that its core owns; and it does so while the bucket's line is already on its way.
//!
//! Fairness: a worker would take its lock again long before another core sees it free. So the
//! expand thread first announces that it wants the locks, and workers let it go first. Should a
//! worker have been put off its core inside of an operation, the expand thread gives all locks
//! back and tries again later: no worker ever waits for another worker.

use amalgam_op::IgnorePoison;

use crate::sync::{AtomicU64, CachePadded, Mutex, Ordering, spin};

/// How long the expand thread waits for one worker before it lets the others go on.
const PATIENCE_ROUNDS: u32 = if cfg!(loom) { 1 } else { 1000 };

const FREE: u64 = 0;
const HELD: u64 = 1;

/// A worker's lock.
#[derive(Default)]
pub(super) struct ThreadLock {
    state: AtomicU64,
    /// 1 while the expand thread wants the lock, or has it.
    is_wanted: AtomicU64,
    /// 1 while a worker has this seat.
    is_taken: AtomicU64,
}

impl ThreadLock {
    /// For the worker whose lock it is.
    #[inline]
    pub(super) fn lock(&self) {
        // Relaxed: the flag is a courtesy; the lock excludes.
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

    /// Acquire pairs with the release in `unlock`: the worker sees the state that the expand thread
    /// left, and the expand thread sees nothing of the worker's operation afterwards.
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
    /// How many seats, from the first on, ever had a worker. Held during a change of state, so that
    /// nobody sits down then.
    used: Mutex<usize>,
}

impl ThreadLocks {
    pub(super) fn new(workers: usize) -> Self {
        let locks = (0..workers).map(|_| CachePadded::default()).collect();
        Self { locks, used: Mutex::new(0) }
    }

    /// A lock for the calling thread.
    ///
    /// # Panics
    ///
    /// If all are taken.
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

    /// Runs `change` while no worker is inside of an operation, or answers none if a worker does
    /// not come out. The caller does not hold a thread lock.
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
                // Never off the core: other workers may be waiting already.
                spin(if cfg!(loom) { round } else { 0 });
            }
            is_free
        })
    }
}
