//! Locks stay usable after a thread panicked while it held them.

use std::sync::LockResult;

/// Takes the guard of a lock whether or not a thread panicked while it held it.
///
/// Every critical section of this workspace leaves what its lock guards usable at each point where
/// it may panic, so poisoning carries no information. Without this trait, one panicking thread
/// would take down all threads that share a lock with it.
///
/// ```
/// use std::sync::Mutex;
/// use amalgam_op::IgnorePoison;
///
/// let counter = Mutex::new(1);
/// *counter.lock().ignore_poison() += 1;
/// assert_eq!(counter.into_inner().ignore_poison(), 2);
/// ```
pub trait IgnorePoison {
    /// A lock's guard, or the content of one that was taken apart.
    type Guard;

    /// The guard, poisoned or not.
    fn ignore_poison(self) -> Self::Guard;
}

impl<G> IgnorePoison for LockResult<G> {
    type Guard = G;

    #[inline]
    fn ignore_poison(self) -> G {
        self.unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_poisoned_lock_is_taken() {
        let lock = Mutex::new(1);
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("poisons the lock");
            });
            assert!(holder.join().is_err());
        });
        assert!(lock.is_poisoned());
        assert_eq!(*lock.lock().ignore_poison(), 1);
    }
}
