//! What the threads of a node share.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use crate::clock::ItemClock;
use crate::directory::Snapshot;

/// See the head of this module.
#[derive(Debug)]
pub struct Shared {
    snapshot: Mutex<Arc<Snapshot>>,
    /// Until when the node is a member for certain, in [`crate::clock::boot_ms`].
    deadline_ms: AtomicU64,
    /// When all items are to be dropped; never at its largest.
    flush_at_ms: AtomicU64,
    is_stopping: AtomicBool,
    is_leaving: AtomicBool,
    has_left: AtomicBool,
    bell: OwnedFd,
    /// The time of its items.
    pub clock: ItemClock,
}

impl Shared {
    /// Of a node that starts.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new(snapshot: Arc<Snapshot>) -> io::Result<Self> {
        Ok(Self {
            snapshot: Mutex::new(snapshot),
            deadline_ms: AtomicU64::new(0),
            flush_at_ms: AtomicU64::new(u64::MAX),
            is_stopping: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            clock: ItemClock::default(),
        })
    }

    /// The news that came last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// There is news.
    pub fn tell(&self, snapshot: Arc<Snapshot>) {
        *self.snapshot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = snapshot;
        self.ring();
    }

    /// Until when the node is a member for certain.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms.load(Ordering::Acquire)
    }

    /// The lease was prolonged, or is over (0).
    pub fn set_deadline_ms(&self, deadline_ms: u64) {
        self.deadline_ms.store(deadline_ms, Ordering::Release);
    }

    /// All items of the cluster are to be dropped then; an earlier order is forgotten.
    pub fn flush_at_ms(&self, at_ms: u64) {
        self.flush_at_ms.store(at_ms, Ordering::Release);
    }

    /// Whether they are to be dropped now. Says so once.
    pub fn takes_flush(&self, now_ms: u64) -> bool {
        let at_ms = self.flush_at_ms.load(Ordering::Acquire);
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        at_ms <= now_ms && self.flush_at_ms.compare_exchange(at_ms, u64::MAX, order, failed).is_ok()
    }

    /// What [`Self::takes_flush`] told did not happen: it is to then, unless something else was
    /// ordered meanwhile.
    pub fn put_flush_back(&self, at_ms: u64) {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.flush_at_ms.compare_exchange(u64::MAX, at_ms, order, failed);
    }

    /// Whether the node is about to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// The node is to hand all it has to others.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether it is to.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Others have all that it had.
    pub fn set_has_left(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Whether they have.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Ends the node.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.ring();
    }

    /// What wakes the node's loop.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    fn ring(&self) {
        // Fails only when the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ordered_meanwhile_takes_the_place_of_a_flush_that_failed() {
        let shared = Shared::new(Arc::default()).expect("a descriptor");
        shared.flush_at_ms(10);
        assert!(!shared.takes_flush(9) && shared.takes_flush(10) && !shared.takes_flush(10));
        shared.put_flush_back(15);
        assert!(!shared.takes_flush(14) && shared.takes_flush(15));
        shared.flush_at_ms(100);
        shared.put_flush_back(20);
        assert!(!shared.takes_flush(99) && shared.takes_flush(100));
    }
}
