//! Items too large for a slot: a run of address space each, memory by the 4 KiB.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

/// Granularity of address space and memory.
const STEP: u64 = 4096;

/// The part of the arena where large items live, and who has which part.
pub(super) struct Large {
    state: Mutex<State>,
}

struct State {
    /// Free runs: start to length.
    free: BTreeMap<u64, u64>,
    /// Runs in use: start to length.
    used: HashMap<u64, u64>,
    /// Bytes of the runs in use.
    held_bytes: u64,
    /// Starts of runs that were not retired.
    live: HashSet<u64>,
    /// The CLOCK ring: starts of runs; retired ones are dropped as the hand meets them.
    ring: Vec<u64>,
    hand: usize,
}

impl Large {
    pub(super) fn new(start: u64, bytes: u64) -> Self {
        let state = State {
            free: BTreeMap::from([(start, bytes / STEP * STEP)]),
            used: HashMap::new(),
            held_bytes: 0,
            live: HashSet::new(),
            ring: Vec::new(),
            hand: 0,
        };
        Self { state: Mutex::new(state) }
    }

    /// What an item of `bytes` costs.
    pub(super) fn charge(bytes: usize) -> usize {
        bytes.next_multiple_of(STEP as usize)
    }

    /// A run for `bytes`, or none if address space is fragmented beyond use.
    pub(super) fn take(&self, bytes: usize) -> Option<u64> {
        let bytes = Self::charge(bytes) as u64;
        let mut state = self.lock();
        let fits = |(_, length): &(&u64, &u64)| **length >= bytes;
        let (start, length) =
            state.free.iter().find(fits).map(|(start, length)| (*start, *length))?;
        state.free.remove(&start);
        if length > bytes {
            state.free.insert(start + bytes, length - bytes);
        }
        state.used.insert(start, bytes);
        state.held_bytes += bytes;
        state.live.insert(start);
        state.ring.push(start);
        Some(start)
    }

    /// Returns a run; answers its length, for the budget. The caller discards the memory first.
    pub(super) fn give_back(&self, start: u64) -> usize {
        let mut state = self.lock();
        let bytes = state.used.remove(&start).expect("the run is in use");
        state.held_bytes -= bytes;
        let (mut from, mut length) = (start, bytes);
        if let Some((before, size)) = state.free.range(..start).next_back() {
            let (before, size) = (*before, *size);
            if before + size == start {
                state.free.remove(&before);
                (from, length) = (before, length + size);
            }
        }
        if let Some(size) = state.free.remove(&(start + bytes)) {
            length += size;
        }
        state.free.insert(from, length);
        bytes as usize
    }

    /// Bytes of all runs in use.
    pub(super) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// The length of the run at `start`.
    pub(super) fn length(&self, start: u64) -> usize {
        self.lock().used.get(&start).map_or(0, |bytes| *bytes as usize)
    }

    /// The item at `start` was unlinked: the hand passes over it from now on.
    pub(super) fn retire(&self, start: u64) {
        self.lock().live.remove(&start);
    }

    /// The next runs that the CLOCK hand meets, at most `count`; and how many there are.
    pub(super) fn sweep(&self, count: usize) -> (Vec<u64>, usize) {
        let mut state = self.lock();
        let state = &mut *state;
        let mut met = Vec::new();
        while met.len() < count.min(state.ring.len()) {
            state.hand %= state.ring.len();
            let start = state.ring[state.hand];
            if state.live.contains(&start) {
                met.push(start);
                state.hand += 1;
            } else {
                state.ring.swap_remove(state.hand);
            }
        }
        (met, state.live.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_reused_and_merged() {
        let large = Large::new(1 << 20, 1 << 20);
        let runs: Vec<_> = (0..4).map(|_| large.take(200_000).expect("room")).collect();
        assert_eq!(large.sweep(10).1, 4);
        assert!(large.take(300_000).is_none());
        assert_eq!(large.length(runs[0]), 200_704);
        for run in [2, 0, 1, 3] {
            large.retire(runs[run]);
            assert_eq!(large.give_back(runs[run]), 200_704);
        }
        assert_eq!(large.take(1 << 20), Some(1 << 20));
        assert_eq!(large.sweep(10).1, 1);
    }
}
