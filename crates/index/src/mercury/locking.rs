//! How a bucket is locked: the paper's test-and-set, and what the paper compares it with.

use std::cell::UnsafeCell;

use super::word::{Bucket, Word};
use crate::mem::Zeroable;

/// A way to lock buckets.
///
/// # Safety
///
/// From `lock` until `unlock` no other thread is between the two for the same bucket, and what a
/// holder wrote happens before what the next holder reads.
pub unsafe trait Locking: Send + Sync + 'static {
    /// The engine's name with this lock.
    const NAME: &'static str;
    /// Whether reads take locks. Without, a read that found nothing looks again under the locks:
    /// the chain may have been moving.
    const READS_LOCK: bool;
    /// Whether the word of a locked bucket says that it is: then a look at the word can confirm
    /// what a batch read without the lock.
    const LOCKS_WORD: bool;
    /// Whether each bucket has an element of a side table.
    const HAS_SIDE: bool;
    /// That element.
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

/// Reads that hit go without locks, to see what locks cost. Writes lock as ever.
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

/// A `pthread_mutex_t` per bucket, in a table of its own: another cache line per operation.
pub struct Pthread;

/// See [`Pthread`].
pub struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: made to be used from all threads.
unsafe impl Sync for Mutex {}
// SAFETY: it lives in a table, which does not move while threads use it.
unsafe impl Send for Mutex {}
// SAFETY: all-zero is PTHREAD_MUTEX_INITIALIZER on Linux; nothing has to be done on drop.
unsafe impl Zeroable for Mutex {}

// SAFETY: a mutex excludes, and orders its holders.
unsafe impl Locking for Pthread {
    const NAME: &'static str = "mercury-pthread";
    const READS_LOCK: bool = true;
    const LOCKS_WORD: bool = false;
    const HAS_SIDE: bool = true;
    type Side = Mutex;

    #[inline]
    fn lock(bucket: &Bucket, side: Option<&Mutex>) -> Word {
        let mutex = side.expect("this lock has a side table");
        // SAFETY: initialised (zero), and not destroyed while the table is there.
        let result = unsafe { libc::pthread_mutex_lock(mutex.0.get()) };
        assert_eq!(result, 0, "a mutex of the default kind can be locked");
        bucket.peek()
    }

    #[inline]
    fn unlock(bucket: &Bucket, side: Option<&Mutex>, word: Word) {
        let mutex = side.expect("this lock has a side table");
        bucket.unlock(word);
        // SAFETY: locked by this thread.
        let result = unsafe { libc::pthread_mutex_unlock(mutex.0.get()) };
        assert_eq!(result, 0, "a mutex that this thread locked can be unlocked");
    }
}
