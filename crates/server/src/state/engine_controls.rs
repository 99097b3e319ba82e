//! What a server does with an engine that it opened itself, beyond what it does with any store:
//! background work, and the evictions that watchers ask for.
//!
//! A server around a store that was opened elsewhere (a gateway in front of a node) has none of
//! these: the opener maintains the engine. Function pointers keep the rest of the server
//! generic over [`amalgam_index::Store`] alone; none of them is called for a request.

use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_index::mem::Evictions;
use amalgam_index::{Engine, maintenance};

use crate::state::clock::Clock;

/// Functions of an engine that the server opened itself.
pub struct EngineControls<S> {
    /// Runs background work on the calling thread until the flag is set and `wake` is called.
    maintain: fn(&S, &Clock, &AtomicBool),
    /// Wakes the thread that maintains.
    wake: fn(&S),
    /// The record of evicted items; None if the engine keeps none.
    evictions: fn(&S) -> Option<&Evictions>,
}

impl<E: Engine> EngineControls<E> {
    /// The controls of engine `E`.
    pub fn new() -> Self {
        Self {
            maintain: |engine, clock, stop| maintenance::run(engine, || clock.now(), stop),
            wake: |engine| engine.maintenance_signal().raise(),
            evictions: E::evictions,
        }
    }
}

impl<S> EngineControls<S> {
    /// Runs the engine's background work on the calling thread until [`EngineControls::stop`].
    pub fn maintain(&self, engine: &S, clock: &Clock, stop: &AtomicBool) {
        (self.maintain)(engine, clock, stop);
    }

    /// The record of evicted items; None if the engine keeps none.
    pub fn evictions<'s>(&self, engine: &'s S) -> Option<&'s Evictions> {
        (self.evictions)(engine)
    }

    /// Ends [`EngineControls::maintain`], which waits for `stop`.
    pub fn stop(&self, engine: &S, stop: &AtomicBool) {
        stop.store(true, Ordering::Relaxed);
        (self.wake)(engine);
    }
}
