//! The signal that wakes an engine's maintenance thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use amalgam_op::IgnorePoison;

/// How long the thread sleeps when nobody wakes it: sweeping goes on at this pace.
const NAP: Duration = Duration::from_millis(100);

/// Wakes the maintenance thread when a worker sees work for it.
#[derive(Default)]
pub struct Signal {
    is_raised: AtomicBool,
    mutex: Mutex<()>,
    condition: Condvar,
}

impl Signal {
    /// Wakes the thread. Cheap when it was woken before and has not slept since.
    pub fn raise(&self) {
        // Relaxed: a raise that is missed here costs one nap, never correctness.
        if !self.is_raised.load(Ordering::Relaxed) && !self.is_raised.swap(true, Ordering::Relaxed)
        {
            drop(self.mutex.lock());
            self.condition.notify_one();
        }
    }

    /// Sleeps until raised, a nap at most.
    pub fn wait(&self) {
        let guard = self.mutex.lock().ignore_poison();
        let is_quiet = |(): &mut ()| !self.is_raised.load(Ordering::Relaxed);
        drop(self.condition.wait_timeout_while(guard, NAP, is_quiet));
        self.is_raised.store(false, Ordering::Relaxed);
    }
}
