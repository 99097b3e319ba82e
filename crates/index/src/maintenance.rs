//! The background thread of an engine: growth, sweeping and moving pages, ahead of the requests.

use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_op::Now;

use crate::{Engine, Worker};

pub use crate::signal::Signal;

/// Runs an engine's background work on the calling thread until `stop` is set. An engine without
/// such a thread stays correct: its workers then grow and evict as they go, less smoothly.
pub fn run<E: Engine>(engine: &E, now: impl Fn() -> Now, stop: &AtomicBool) {
    let mut worker = engine.worker();
    while !stop.load(Ordering::Relaxed) {
        let more = E::maintain(&mut worker, &now());
        worker.quiesce();
        if !more {
            engine.maintenance_signal().wait();
        }
    }
}
