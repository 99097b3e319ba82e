//! What keeps a map's index alive: each worker holds the index that it works on, so that a
//! [`Handle`](super::Handle) needs no lifetime and may move to another thread.
//!
//! Thread safety: [`Owner`] and [`Shared`] are shared; an [`OwnedWorker`] belongs to one thread at
//! a time.
//!
//! Invariants:
//! 1. A worker is dropped before the index that it borrows from.
//! 2. There are at most as many permits as the index has workers, less that of the background
//!    thread: so no worker is ever refused to one who has a permit.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use amalgam_op::Now;

use super::in_flight::InFlight;
use super::removal::Listener;
use crate::Engine;

/// What a map's handles share with its background thread.
pub(super) struct Shared<E> {
    pub(super) index: E,
    opened: Instant,
    /// Tells the background thread to end.
    pub(super) stop: AtomicBool,
    pub(super) in_flight: InFlight,
    pub(super) listener: Listener,
}

impl<E> Shared<E> {
    pub(super) fn new(index: E, listener: Listener) -> Self {
        let (opened, stop) = (Instant::now(), AtomicBool::new(false));
        Self { index, opened, stop, in_flight: InFlight::default(), listener }
    }

    /// The time since the map was opened, from second 1 on: engines have no second 0.
    pub(super) fn now(&self) -> Now {
        Now::at(u32::try_from(self.opened.elapsed().as_secs() + 1).unwrap_or(u32::MAX))
    }
}

/// A worker that keeps its index alive.
///
/// The worker lies in a box of its own, so that moving an `OwnedWorker` moves no reference into the
/// index: a reference that is an argument of a function must stay valid until that returns, and
/// this one would not while the last owner of the index is being dropped.
pub(super) struct OwnedWorker<E: Engine> {
    // Fields are dropped in this order (invariant 1).
    worker: Box<E::Worker<'static>>,
    pub(super) shared: Arc<Shared<E>>,
}

impl<E: Engine> OwnedWorker<E> {
    /// # Panics
    ///
    /// If the index has no worker left (excluded by invariant 2).
    pub(super) fn new(shared: Arc<Shared<E>>) -> Self {
        // SAFETY: `shared` neither moves the index nor drops it before itself, and is dropped after
        // the worker. Nothing with the lifetime 'static leaves this type but the worker, which is
        // private to this module's parent and stays in its box.
        let index: &'static E = unsafe { &*std::ptr::from_ref(&shared.index) };
        Self { worker: Box::new(index.worker()), shared }
    }
}

impl<E: Engine> Deref for OwnedWorker<E> {
    type Target = E::Worker<'static>;

    fn deref(&self) -> &Self::Target {
        &self.worker
    }
}

impl<E: Engine> DerefMut for OwnedWorker<E> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.worker
    }
}

/// The owner of a map's background thread, which ends when the owner is dropped: with the map, or
/// with its last handle if that is later.
pub(super) struct Owner<E: Engine> {
    pub(super) shared: Arc<Shared<E>>,
    thread: Option<JoinHandle<()>>,
    /// The number of handles that may still be made.
    permits: AtomicUsize,
}

impl<E: Engine> Owner<E> {
    pub(super) fn new(shared: Arc<Shared<E>>, permits: usize) -> Self {
        Self { shared, thread: None, permits: AtomicUsize::new(permits) }
    }

    /// Whether the background thread runs.
    #[cfg(test)]
    pub(super) fn is_maintained(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn set_thread(&mut self, thread: JoinHandle<()>) {
        self.thread = Some(thread);
    }
}

impl<E: Engine> Drop for Owner<E> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.index.maintenance_signal().raise();
        let Some(thread) = self.thread.take() else { return };
        // The background thread itself may drop the last handle. It cannot wait for its own end,
        // which follows soon.
        if thread.thread().id() != std::thread::current().id() {
            // If the thread panicked, its message has been printed.
            let _ = thread.join();
        }
    }
}

/// The right to have a worker; given back when dropped.
pub(super) struct Permit<E: Engine>(pub(super) Arc<Owner<E>>);

impl<E: Engine> Permit<E> {
    /// None if as many permits are out as there are handles.
    pub(super) fn take(owner: &Arc<Owner<E>>) -> Option<Self> {
        let one_less = |permits: usize| permits.checked_sub(1);
        // Acquire pairs with the release below: the worker of the permit's last holder is gone.
        owner
            .permits
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less)
            .ok()
            .map(|_| Self(Arc::clone(owner)))
    }
}

impl<E: Engine> Drop for Permit<E> {
    fn drop(&mut self) {
        self.0.permits.fetch_add(1, Ordering::Release);
    }
}
