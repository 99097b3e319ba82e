//! Pinning threads to cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that the calling thread may run on, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Pins the calling thread to `core`. A failure (the core may have been taken from the process) is
/// only logged.
pub fn pin_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        log::warn!(core, error:%; "cannot pin a worker to its core; it runs unpinned");
    }
}
