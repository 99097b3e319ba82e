//! A map's pool of handles, for those who keep none.
//!
//! Thread safety: all methods may be called by any thread. Nobody waits for a place that another
//! holds while there is a free one, except [`HandlePool::clear`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use amalgam_op::IgnorePoison;

use super::handle::OwnedHandle;
use super::owner::Owner;
use crate::Engine;
use crate::sync::{CachePadded, spin};

/// A place of a pool: its handle, if it has one.
struct Place<E: Engine> {
    handle: Option<OwnedHandle<E>>,
    /// Whether the handle was used since [`HandlePool::rest_idle`] last saw it.
    is_used: bool,
}

/// Handles that wait to be used, each in a place that is locked while it is in use. A thread begins
/// its search at a place of its own, so that threads usually find their own handle again.
pub(super) struct HandlePool<E: Engine> {
    places: Box<[CachePadded<Mutex<Place<E>>>]>,
}

impl<E: Engine> HandlePool<E> {
    pub(super) fn new(places: usize) -> Self {
        let place = || CachePadded(Mutex::new(Place { handle: None, is_used: false }));
        Self { places: (0..places).map(|_| place()).collect() }
    }

    /// See [`Map::with`](super::Map::with).
    pub(super) fn with<R>(
        &self,
        owner: &Arc<Owner<E>>,
        work: impl FnOnce(&mut OwnedHandle<E>) -> R,
    ) -> R {
        let mut place = self.lock_place(owner);
        place.is_used = true;
        let handle = place.handle.as_mut().expect("the place that was locked has a handle");
        let result = work(handle);
        if !handle.belongs_to(owner) {
            // The caller exchanged it for another map's.
            place.handle = None;
        }
        result
    }

    /// Locks a place with a handle, and waits for one if all handles are in use.
    fn lock_place(&self, owner: &Arc<Owner<E>>) -> MutexGuard<'_, Place<E>> {
        let mut round = 0;
        loop {
            for mut place in self.free_places() {
                if place.handle.is_none() {
                    place.handle = OwnedHandle::new(owner);
                }
                if place.handle.is_some() {
                    return place;
                }
            }
            spin(round);
            round = round.saturating_add(1);
        }
    }

    /// The places that nobody holds, from the calling thread's own on, each locked.
    fn free_places(&self) -> impl Iterator<Item = MutexGuard<'_, Place<E>>> {
        let (before, from) = self.places.split_at(thread_number() % self.places.len().max(1));
        from.iter().chain(before).filter_map(|place| match place.try_lock() {
            Ok(place) => Some(place),
            // The caller's closure panicked, not the handle.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// Takes a handle out that is not in use.
    pub(super) fn take_idle(&self) -> Option<OwnedHandle<E>> {
        self.free_places().find_map(|mut place| place.handle.take())
    }

    /// Lets handles that were not used since the last call give up the memory that they keep at
    /// hand: nothing else reminds them when others lack it.
    pub(super) fn rest_idle(&self) {
        for mut place in self.free_places() {
            let was_used = std::mem::take(&mut place.is_used);
            let Some(handle) = place.handle.as_mut().filter(|_| !was_used) else { continue };
            handle.rest();
        }
    }

    /// Drops all handles; waits for those that are in use.
    pub(super) fn clear(&self) {
        for place in &self.places {
            place.lock().ignore_poison().handle = None;
        }
    }
}

/// The calling thread's number in the order in which threads first used a pool.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
