//! Items too large for a slot: each has a run of address space, a multiple of 4 KiB.
//!
//! The system goes on backing the memory of some free runs, and new items are put there first:
//! they fault no page in. Such *resident* bytes are not charged to the limit, so `Memory` discards
//! them as soon as they and the charged bytes together exceed it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use amalgam_op::{Expiry, IgnorePoison};

/// The granularity of runs, in bytes.
const STEP: u64 = 4096;
/// The ring is purged when its entries exceed twice the number of live runs by more than this.
const STALE: usize = 64;

/// The most resident runs that are examined for an item.
const EXAMINED: usize = 64;

/// Allocates runs in the part of the arena that holds large items. Locks its state in every call.
pub(super) struct Large {
    state: Mutex<State>,
}

/// Counts of large items of one rounded length.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) items: u64,
    pub(super) evictions: u64,
    pub(super) mortal_evictions: u64,
}

struct State {
    free: Runs,
    /// The parts of the free runs that the system backs.
    resident: Runs,
    /// Where the next search for resident bytes to discard begins.
    discard_from: u64,
    /// Runs in use: start to length.
    used: HashMap<u64, u64>,
    /// Bytes of the runs in use, and of those among them that were not retired.
    held_bytes: u64,
    live_bytes: u64,
    /// Counts by length, as [`Large::size_class`] rounds it.
    sizes: BTreeMap<u64, Counts>,
    /// Runs that were not retired: start to number.
    live: HashMap<u64, u64>,
    /// Expiries and starts of the runs of `live` whose items have an expiry, the earliest first.
    expiries: BTreeSet<(u32, u64)>,
    /// The expiry of each run in `expiries`.
    expiry_of: HashMap<u64, u32>,
    /// The CLOCK ring from the hand on, the newest run last: starts and numbers. The hand drops
    /// entries of retired runs when it meets them.
    ring: VecDeque<(u64, u64)>,
    /// The number of the next run: it distinguishes the run from earlier ones with the same start.
    next_number: u64,
}

/// Disjoint runs, none of which touches another: start to length.
#[derive(Default)]
struct Runs {
    lengths: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Runs {
    /// The start of the first run of at least `bytes`.
    fn first_fit(&self, bytes: u64) -> Option<u64> {
        let fits = |(_, length): &(&u64, &u64)| **length >= bytes;
        self.lengths.iter().find(fits).map(|(start, _)| *start)
    }

    /// Adds `bytes` from `start` on, no part of which is held.
    fn add(&mut self, start: u64, bytes: u64) {
        let (mut from, mut length) = (start, bytes);
        if let Some((before, size)) = self.lengths.range(..start).next_back() {
            let (before, size) = (*before, *size);
            if before + size == start {
                self.lengths.remove(&before);
                (from, length) = (before, length + size);
            }
        }
        if let Some(size) = self.lengths.remove(&(start + bytes)) {
            length += size;
        }
        self.lengths.insert(from, length);
        self.bytes += bytes;
    }

    /// Removes what is held of `bytes` from `start` on.
    fn remove(&mut self, start: u64, bytes: u64) {
        let end = start + bytes;
        while let Some((from, length)) = self.lengths.range(..end).next_back() {
            let (from, to) = (*from, *from + *length);
            if to <= start {
                break;
            }
            self.lengths.remove(&from);
            if from < start {
                self.lengths.insert(from, start - from);
            }
            if to > end {
                self.lengths.insert(end, to - end);
            }
            self.bytes -= to.min(end) - from.max(start);
        }
    }
}

impl State {
    /// The start of a free run of `bytes`: one that uses as many bytes as possible of one of the
    /// first resident runs, else the first that is long enough.
    fn place_for(&self, bytes: u64) -> Option<u64> {
        let (mut place, mut most) = (None, 0);
        for (start, length) in self.resident.lengths.iter().take(EXAMINED) {
            let resident = bytes.min(*length);
            if resident > most
                && let Some((free, free_bytes)) = self.free.lengths.range(..=start).next_back()
                && *free_bytes >= bytes
            {
                place = Some(*start.min(&(free + free_bytes - bytes)));
                most = resident;
            }
            if most == bytes {
                break;
            }
        }
        place.or_else(|| self.free.first_fit(bytes))
    }

    /// Purges entries of retired runs from the ring once they are many: if items come and go
    /// without evictions, the hand does not drop them.
    fn bound_ring(&mut self) {
        if self.ring.len() > 2 * self.live.len() + STALE {
            let Self { ring, live, .. } = self;
            ring.retain(|(start, number)| live.get(start) == Some(number));
        }
    }
}

impl Large {
    pub(super) fn new(start: u64, bytes: u64) -> Self {
        let mut free = Runs::default();
        free.add(start, bytes / STEP * STEP);
        let state = State {
            free,
            resident: Runs::default(),
            discard_from: start,
            used: HashMap::new(),
            held_bytes: 0,
            live_bytes: 0,
            sizes: BTreeMap::new(),
            live: HashMap::new(),
            expiries: BTreeSet::new(),
            expiry_of: HashMap::new(),
            next_number: 0,
            ring: VecDeque::new(),
        };
        Self { state: Mutex::new(state) }
    }

    /// The bytes of a run for an item of `bytes`.
    pub(super) fn charge(bytes: usize) -> usize {
        bytes.next_multiple_of(STEP as usize)
    }

    /// Takes a run for `bytes` and returns its start; None if no free run is long enough. Calls
    /// `clear` with the start before the hand can meet the run, whose old contents might look like
    /// a live item.
    pub(super) fn take(&self, bytes: usize, clear: impl FnOnce(u64)) -> Option<u64> {
        let bytes = Self::charge(bytes) as u64;
        let mut state = self.lock();
        let start = state.place_for(bytes)?;
        state.free.remove(start, bytes);
        state.resident.remove(start, bytes);
        clear(start);
        state.used.insert(start, bytes);
        state.held_bytes += bytes;
        state.live_bytes += bytes;
        let number = state.next_number;
        state.next_number += 1;
        state.live.insert(start, number);
        state.ring.push_back((start, number));
        state.sizes.entry(Self::size_class(bytes)).or_default().items += 1;
        state.bound_ring();
        Some(start)
    }

    /// Whether a free run is long enough for `bytes`.
    pub(super) fn has_run(&self, bytes: usize) -> bool {
        self.lock().free.first_fit(Self::charge(bytes) as u64).is_some()
    }

    /// Gives a run back, whose memory stays resident, and returns its length, for the budget.
    pub(super) fn give_back(&self, start: u64) -> usize {
        let mut state = self.lock();
        let bytes = state.used.remove(&start).expect("the run is in use");
        state.held_bytes -= bytes;
        state.free.add(start, bytes);
        state.resident.add(start, bytes);
        bytes as usize
    }

    /// Calls `discard` with the start and the length of runs that are free and resident, until at
    /// most `most` resident bytes are left.
    pub(super) fn discard_resident(&self, most: usize, mut discard: impl FnMut(u64, usize)) {
        let mut state = self.lock();
        let State { resident, discard_from, .. } = &mut *state;
        while resident.bytes > most as u64 {
            let mut runs = resident.lengths.range(*discard_from..).chain(&resident.lengths);
            let Some((start, bytes)) = runs.next().map(|(start, bytes)| (*start, *bytes)) else {
                break;
            };
            // Under the lock, so that no item is put there meanwhile.
            discard(start, bytes as usize);
            resident.remove(start, bytes);
            *discard_from = start + bytes;
        }
    }

    /// Bytes of all runs in use.
    pub(super) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Bytes of the runs that were not retired, and of the retired ones that were not given back.
    pub(super) fn live_and_waiting_bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.live_bytes, state.held_bytes - state.live_bytes)
    }

    /// The number of runs that were not retired, and their bytes.
    pub(super) fn live_items_and_bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.live.len() as u64, state.live_bytes)
    }

    /// The length of the run at `start` in bytes; 0 if there is none.
    pub(super) fn length(&self, start: u64) -> usize {
        self.lock().used.get(&start).map_or(0, |bytes| *bytes as usize)
    }

    /// Records that the item at `start` was unlinked: the hand skips it from now on.
    pub(super) fn retire(&self, start: u64) {
        let mut state = self.lock();
        let bytes = state.used.get(&start).copied();
        let was_live = state.live.remove(&start).is_some();
        if let Some(expiry) = state.expiry_of.remove(&start) {
            state.expiries.remove(&(expiry, start));
        }
        if let Some(counts) = bytes.and_then(|bytes| state.sizes.get_mut(&Self::size_class(bytes)))
            && was_live
        {
            counts.items -= 1;
            state.live_bytes -= bytes.unwrap_or(0);
        }
    }

    /// Records the expiry of the item at `start`. Requires: the run is in use and not retired.
    pub(super) fn note_expiry(&self, start: u64, expiry: Expiry) {
        let mut state = self.lock();
        debug_assert!(state.live.contains_key(&start), "an item that was not retired");
        state.expiry_of.insert(start, expiry.0);
        state.expiries.insert((expiry.0, start));
    }

    /// The starts of up to `most` runs, not retired, whose items have expired at `seconds`.
    pub(super) fn due(&self, seconds: u32, most: usize) -> Vec<u64> {
        let state = self.lock();
        let due = state.expiries.range(..=(seconds, u64::MAX)).take(most);
        due.map(|(_, start)| *start).collect()
    }

    /// The earliest expiry.
    pub(super) fn first_expiry_seconds(&self) -> Option<u32> {
        self.lock().expiries.first().map(|(expiry, _)| *expiry)
    }

    /// Counts the item at `start` as evicted for lack of memory. `is_mortal` says whether it had an
    /// expiry.
    pub(super) fn note_eviction(&self, start: u64, is_mortal: bool) {
        let bytes = self.length(start) as u64;
        let mut state = self.lock();
        let counts = state.sizes.entry(Self::size_class(bytes)).or_default();
        counts.evictions += 1;
        counts.mortal_evictions += u64::from(is_mortal);
    }

    /// `bytes` rounded up by at most a 16th, so that statistics have few rows.
    fn size_class(bytes: u64) -> u64 {
        let step = bytes.checked_ilog2().map_or(STEP, |power| STEP.max(1 << power >> 4));
        bytes.next_multiple_of(step)
    }

    /// The counts of each rounded length that has live or evicted items.
    pub(super) fn sizes(&self) -> Vec<(u64, Counts)> {
        let state = self.lock();
        let is_worth = |counts: &Counts| counts.items + counts.evictions > 0;
        let sizes = state.sizes.iter().filter(|(_, counts)| is_worth(counts));
        sizes.map(|(bytes, counts)| (*bytes, *counts)).collect()
    }

    /// Advances the CLOCK hand. Returns the start of the next live run, and the number of live
    /// runs.
    pub(super) fn advance_hand(&self) -> (Option<u64>, usize) {
        let mut state = self.lock();
        while let Some((start, number)) = state.ring.pop_front() {
            if state.live.get(&start) == Some(&number) {
                state.ring.push_back((start, number));
                return (Some(start), state.live.len());
            }
        }
        (None, 0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(large: &Large, bytes: usize) -> Option<u64> {
        large.take(bytes, |_| ())
    }

    #[test]
    fn runs_are_reused_and_merged() {
        let large = Large::new(1 << 20, 1 << 20);
        let runs: Vec<_> = (0..4).map(|_| take(&large, 200_000).expect("room")).collect();
        assert_eq!(large.advance_hand().1, 4);
        assert!(take(&large, 300_000).is_none());
        assert_eq!(large.length(runs[0]), 200_704);
        for run in [2, 0, 1, 3] {
            large.retire(runs[run]);
            assert_eq!(large.give_back(runs[run]), 200_704);
        }
        assert_eq!(take(&large, 1 << 20), Some(1 << 20));
        assert_eq!(large.advance_hand(), (Some(1 << 20), 1));
    }

    #[test]
    fn the_hand_meets_the_oldest_first() {
        let large = Large::new(1 << 20, 1 << 20);
        let runs: Vec<_> = (0..4).map(|_| take(&large, 4096).expect("room")).collect();
        large.retire(runs[1]);
        assert_eq!(large.advance_hand(), (Some(runs[0]), 3));
        large.retire(runs[0]);
        assert_eq!(large.advance_hand(), (Some(runs[2]), 2));
        let newest = take(&large, 4096).expect("room");
        assert_eq!(large.advance_hand(), (Some(runs[3]), 3));
        assert_eq!(large.advance_hand(), (Some(runs[2]), 3));
        assert_eq!(large.advance_hand(), (Some(newest), 3));
    }

    #[test]
    fn lengths_are_counted_in_few_steps() {
        let large = Large::new(1 << 20, 8 << 20);
        let runs =
            [66_000, 67_000, 1 << 20, (1 << 20) + 1].map(|bytes| take(&large, bytes).unwrap());
        let counts = || large.sizes().into_iter().map(|(bytes, counts)| (bytes, counts.items));
        assert!(counts().eq([(69_632, 2), (1 << 20, 1), ((1 << 20) + (1 << 16), 1)]));
        large.note_eviction(runs[0], false);
        large.retire(runs[0]);
        large.retire(runs[2]);
        assert!(counts().eq([(69_632, 1), ((1 << 20) + (1 << 16), 1)]));
        assert_eq!(large.sizes()[0].1.evictions, 1);
    }

    #[test]
    fn a_run_in_an_old_place_is_new() {
        let large = Large::new(1 << 20, 8192);
        let first = take(&large, 4096).expect("room");
        let second = take(&large, 4096).expect("room");
        large.retire(first);
        large.give_back(first);
        assert_eq!(take(&large, 4096), Some(first));
        assert_eq!(large.advance_hand(), (Some(second), 2));
    }

    #[test]
    fn the_ring_does_not_grow_while_the_hand_rests() {
        let large = Large::new(1 << 20, 1 << 20);
        let first = take(&large, 4096).expect("room");
        for _ in 0..2 * STALE {
            let run = take(&large, 4096).expect("room");
            large.retire(run);
            large.give_back(run);
        }
        assert!(large.lock().ring.len() <= 2 + STALE + 1);
        assert_eq!(large.advance_hand(), (Some(first), 1));
    }

    #[test]
    fn resident_memory_is_reused_and_discarded_in_turn() {
        let large = Large::new(1 << 20, 1 << 20);
        let runs: Vec<_> = (0..8).map(|_| take(&large, 8192).expect("room")).collect();
        for run in [1, 3, 4, 6] {
            large.retire(runs[run]);
            large.give_back(runs[run]);
        }
        let mut cleared = 0;
        assert_eq!(large.take(12_288, |start| cleared = start), Some(runs[3]));
        assert_eq!(cleared, runs[3]);
        // Left are one page of run 4, and runs 1 and 6.
        let discarded = |most| {
            let mut discarded = Vec::new();
            large.discard_resident(most, |start, bytes| discarded.push((start, bytes)));
            discarded
        };
        assert_eq!(discarded(20_480), []);
        assert_eq!(discarded(12_288), [(runs[1], 8192)]);
        assert_eq!(discarded(0), [(runs[4] + 4096, 4096), (runs[6], 8192)]);
        // None is resident, so the first run that is long enough is taken.
        assert_eq!(take(&large, 4096), Some(runs[1]));
    }

    #[test]
    fn a_run_that_is_resident_in_part_is_better_than_none() {
        let large = Large::new(1 << 20, 1 << 20);
        let runs: Vec<_> = (0..4).map(|_| take(&large, 8192).expect("room")).collect();
        for run in [0, 2, 3] {
            large.retire(runs[run]);
            large.give_back(runs[run]);
        }
        // The last two runs are 16 KiB, and what follows them was never used.
        assert_eq!(take(&large, 20_480), Some(runs[2]));
        assert_eq!(large.lock().resident.bytes, 8192);
    }
}
