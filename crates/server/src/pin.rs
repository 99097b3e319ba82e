//! Threads that stay on one core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that the calling thread may run on, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Keeps the calling thread on `core`. A core that was taken from the process meanwhile is worth a
/// line, not an end.
pub fn pin_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        log::warn!(core, error:%; "a worker could not be pinned");
    }
}
