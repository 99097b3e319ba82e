//! Bucket locks: the paper's test-and-set, and the alternatives with which the paper compares it.

use std::cell::UnsafeCell;

use super::word::{Bucket, Word};
use crate::mem::Zeroable;

/// A way to lock buckets.
///
/// # Safety
///
/// At most one thread at a time is between `lock` and `unlock` of a bucket, and a holder's writes
/// happen before the next holder's reads.
pub unsafe trait Locking: Send + Sync + 'static {
    /// The engine's name with this lock.
    const NAME: &'static str;
    /// Whether reads take locks. If not, a read that finds nothing searches again under the locks,
    /// because the chain may have been moving.
    const READS_LOCK: bool;
    /// Whether the word of a bucket shows that it is locked: then loading the word again can
    /// confirm what a batch read without the lock.
    const LOCKS_WORD: bool;
    /// Whether each bucket has an element of a side table.
    const HAS_SIDE: bool;
    /// The type of that element.
    type Side: Zeroable + Send;

    #[doc(hidden)]
    fn lock(bucket: &Bucket, side: Option<&Self::Side>) -> Word;
    #[doc(hidden)]
    fn unlock(bucket: &Bucket, side: Option<&Self::Side>, word: Word);
}

/// Test-and-set in the bucket's own word: the lock costs no cache line of its own.
pub struct TestAndSet;

// SAFETY: see the head of `word`.
unsafe impl Locking for TestAndSet {
    const NAME: &'static str = "mercury";
    const READS_LOCK: bool = true;
    const LOCKS_WORD: bool = true;
    const HAS_SIDE: bool = false;
    type Side = [std::sync::atomic::AtomicU8; 0];

    #[inline]
    fn lock(bucket: &Bucket, _side: Option<&Self::Side>) -> Word {
        bucket.lock()
    }

    #[inline]
    fn unlock(bucket: &Bucket, _side: Option<&Self::Side>, word: Word) {
        bucket.unlock(word);
    }
}

/// Reads that hit take no locks, to measure the cost of locks. Writes lock as with [`TestAndSet`].
pub struct NoLock;

// SAFETY: as `TestAndSet`.
unsafe impl Locking for NoLock {
    const NAME: &'static str = "mercury-nolock";
    const READS_LOCK: bool = false;
    const LOCKS_WORD: bool = true;
    const HAS_SIDE: bool = false;
    type Side = [std::sync::atomic::AtomicU8; 0];

    #[inline]
    fn lock(bucket: &Bucket, _side: Option<&Self::Side>) -> Word {
        bucket.lock()
    }

    #[inline]
    fn unlock(bucket: &Bucket, _side: Option<&Self::Side>, word: Word) {
        bucket.unlock(word);
    }
}

/// A `pthread_mutex_t` per bucket, in a separate table, which costs one more cache line per
/// operation.
pub struct Pthread;

/// The mutex of a bucket: see [`Pthread`].
pub struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a pthread mutex is made to be used from all threads.
unsafe impl Sync for Mutex {}
// SAFETY: it lives in a table, which does not move while threads use it.
unsafe impl Send for Mutex {}
// SAFETY: all-zero is PTHREAD_MUTEX_INITIALIZER on Linux; a drop does nothing.
unsafe impl Zeroable for Mutex {}

// SAFETY: a mutex excludes other threads and orders its holders.
unsafe impl Locking for Pthread {
    const NAME: &'static str = "mercury-pthread";
    const READS_LOCK: bool = true;
    const LOCKS_WORD: bool = false;
    const HAS_SIDE: bool = true;
    type Side = Mutex;

    #[inline]
    fn lock(bucket: &Bucket, side: Option<&Mutex>) -> Word {
        let mutex = side.expect("this lock has a side table");
        // SAFETY: the mutex is initialised (zero) and not destroyed while the table exists.
        let result = unsafe { libc::pthread_mutex_lock(mutex.0.get()) };
        assert_eq!(result, 0, "a mutex of the default kind can be locked");
        bucket.peek()
    }

    #[inline]
    fn unlock(bucket: &Bucket, side: Option<&Mutex>, word: Word) {
        let mutex = side.expect("this lock has a side table");
        bucket.unlock(word);
        // SAFETY: this thread locked the mutex.
        let result = unsafe { libc::pthread_mutex_unlock(mutex.0.get()) };
        assert_eq!(result, 0, "a mutex that this thread locked can be unlocked");
    }
}
