//! The pinning of threads to cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this thread may run on.
pub fn allowed_cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Pins the calling thread to core number `place` of `cores`, counted cyclically. Returns whether
/// it succeeded; a figure from threads that migrate between cores is less reliable.
pub fn pin_to(cores: &[usize], place: usize) -> bool {
    let Some(core) = cores.get(place % cores.len().max(1)) else { return false };
    let mut set = CpuSet::new();
    set.set(*core);
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core() {
        let cores = allowed_cores();
        assert!(!cores.is_empty());
        let seen = std::thread::spawn(move || {
            assert!(pin_to(&cores, 1));
            (allowed_cores(), cores[1 % cores.len()])
        });
        let (allowed, expected) = seen.join().expect("the thread ends");
        assert_eq!(allowed, [expected]);
        assert!(!pin_to(&[], 0));
    }
}
