//! Turns of workers in copying long values: an append of one byte copies the whole value, and a
//! touch may do so.
//!
//! Of two workers that replace one value at the same time, one has copied it in vain. So the keys
//! are divided among lanes, and in each lane one worker at a time copies. It does so until its
//! loop's iteration ends; one that was refused comes next, so that the clients of no worker wait
//! for all those of another. The lanes protect no memory: a copy outside of them would only be
//! slower.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of lanes for long values.
const LANES: u64 = 63;

/// A lane, as a set of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLane(NonZeroU64);

impl CopyLane {
    /// For values that are short: any number of workers may be in it.
    pub const SHORT: Self = Self::numbered(LANES);

    /// The lane of a key with this hash, if its value may be long.
    pub fn of(hash: u64) -> Self {
        Self::numbered(hash % LANES)
    }

    const fn numbered(lane: u64) -> Self {
        Self(NonZeroU64::new(1 << lane).expect("one bit"))
    }

    const fn set(self) -> u64 {
        self.0.get()
    }
}

/// What one worker knows of the lanes in an iteration of its loop.
#[derive(Clone, Debug)]
pub struct TurnLanes {
    /// The lanes that it is in, as a set.
    own: u64,
    /// The lanes that it may not enter.
    refused: u64,
}

impl Default for TurnLanes {
    fn default() -> Self {
        Self { own: CopyLane::SHORT.set(), refused: 0 }
    }
}

impl TurnLanes {
    /// No lane but that for short values may be entered.
    pub const NONE: Self = Self { own: CopyLane::SHORT.set(), refused: !CopyLane::SHORT.set() };

    /// Lets the worker into a lane, if no other worker is in it, or is to come first: one that was
    /// refused, unless it has not come until this one asks in another iteration. Returns whether
    /// the worker is in.
    #[inline]
    pub fn enter(&mut self, lane: CopyLane, lanes: &CopyLanes, worker: usize) -> bool {
        if lane.set() & (self.own | self.refused) == 0 {
            let is_in = lanes.enter(lane, worker);
            *(if is_in { &mut self.own } else { &mut self.refused }) |= lane.set();
        }
        lane.set() & self.own != 0
    }

    /// Whether the worker may not enter this lane.
    pub fn refuse(&self, lane: CopyLane) -> bool {
        lane.set() & self.refused != 0
    }
}

/// For each lane, the worker that is in it, and one that was refused meanwhile: their numbers plus
/// one, or 0, in the lower and the upper half.
pub struct CopyLanes([AtomicU32; LANES as usize]);

impl Default for CopyLanes {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; LANES as usize])
    }
}

impl CopyLanes {
    /// See [`TurnLanes::enter`]. Requires: the worker is not in the lane, which is one for long
    /// values.
    #[cold]
    fn enter(&self, lane: CopyLane, worker: usize) -> bool {
        let me = worker as u32 + 1;
        let ask = |both: u32| match (both & 0xffff, both >> 16) {
            (0, next) if next == 0 || next == me => Some(me),
            // The one that is to come first has its turn now, or has lost it.
            (0, _) => Some(0),
            (copier, 0) => Some(copier | me << 16),
            (_, _) => None,
        };
        // Relaxed, here and below: the lanes guard no memory.
        let lane = &self.0[lane.0.trailing_zeros() as usize];
        let before = lane.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ask);
        before.is_ok_and(|before| ask(before) == Some(me))
    }

    /// Takes a worker out of its lanes, at the end of an iteration of its loop.
    #[inline]
    pub fn leave(&self, turn: &TurnLanes) {
        let mut own = turn.own & !CopyLane::SHORT.set();
        while own != 0 {
            self.0[own.trailing_zeros() as usize].fetch_and(!0xffff, Ordering::Relaxed);
            own &= own - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_is_in_a_lane_and_who_was_refused_comes_next() {
        let (lanes, lane, other) = (CopyLanes::default(), CopyLane::of(7), CopyLane::of(8));
        // Each call is one iteration of a worker's loop, and ends it if it is told to.
        let enters = |worker, ends: bool| {
            let mut turn = TurnLanes::default();
            let is_in = turn.enter(lane, &lanes, worker);
            assert_eq!(is_in, turn.enter(lane, &lanes, worker), "what it was told is so");
            assert_ne!(is_in, turn.refuse(lane));
            if ends {
                lanes.leave(&turn);
            }
            is_in.then_some(turn)
        };
        let first = enters(0, false).expect("nobody is in it");
        assert!(TurnLanes::default().enter(other, &lanes, 1));
        assert!(enters(1, true).is_none() && enters(2, true).is_none());
        lanes.leave(&first);
        assert!(enters(0, true).is_none(), "worker 1 comes first");
        let next = enters(1, false).expect("it was refused before");
        assert!(enters(0, true).is_none());
        lanes.leave(&next);
        // A worker whose client has gone does not come.
        assert!(enters(2, true).is_none() && enters(2, true).is_some());
    }

    #[test]
    fn short_values_are_copied_by_all() {
        let lanes = CopyLanes::default();
        for worker in 0..3 {
            assert!(TurnLanes::default().enter(CopyLane::SHORT, &lanes, worker));
            assert!(TurnLanes::NONE.clone().enter(CopyLane::SHORT, &lanes, worker));
        }
        assert!((0..200).all(|hash| TurnLanes::NONE.refuse(CopyLane::of(hash))));
    }
}
