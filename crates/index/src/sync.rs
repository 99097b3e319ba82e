//! The atomics that protocols are written against: the real ones, loom's under `--cfg loom`, or
//! shuttle's under `--cfg loom --cfg shuttle` (what cannot be built with loom's cannot with those).

#[cfg(not(loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(all(loom, not(shuttle)))]
use loom as checker;
#[cfg(shuttle)]
use shuttle as checker;

#[cfg(loom)]
pub(crate) use checker::sync::Mutex;
#[cfg(loom)]
pub(crate) use checker::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(all(test, loom))]
pub(crate) use checker::{sync::Arc, thread};

/// Rounds that [`spin`] stays on the processor.
const ROUNDS_BEFORE_YIELD: u32 = 64;
/// Rounds after which [`spin`] sleeps: who is waited for does not run, so leave it the processor.
#[cfg(not(loom))]
const ROUNDS_BEFORE_NAP: u32 = 128;
/// How long it sleeps then.
#[cfg(not(loom))]
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// Waits a moment for another thread, in round `round` of a loop that waits for it.
pub(crate) fn spin(round: u32) {
    #[cfg(not(loom))]
    if round < ROUNDS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else if round < ROUNDS_BEFORE_NAP {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
    #[cfg(loom)]
    {
        let _ = (round, ROUNDS_BEFORE_YIELD);
        checker::thread::yield_now();
    }
}

/// Keeps what one thread writes off the cache lines (two, for the adjacent-line prefetcher) of its
/// neighbours.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
