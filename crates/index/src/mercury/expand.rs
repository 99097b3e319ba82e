//! Expansion: chains move bucket by bucket to a table of twice the size (or half, after mass
//! deletion) while workers continue. The thread that calls [`crate::Engine::maintain`] is the
//! expand thread.
//!
//! A *unit* is moved at a time: one bucket when the table grows, a pair of neighbours when it
//! shrinks. The expand thread holds the locks of the unit's old buckets while it links their items
//! into the new ones, which no worker uses before it finds an old one moved. The store that unlocks
//! a moved bucket is the linearization point of the move.
//!
//! The thread locks are held only for the change of two pointers: the new table is allocated and
//! faulted in before, the old one freed after.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use amalgam_op::IgnorePoison;

use super::buckets::{Buckets, MIN_BUCKETS};
use super::chain::{Chains, next_of};
use super::links;
use super::locking::Locking;
use super::tables::{Pair, Tables};
use crate::mem::{Guard, Memory};

/// The load (items per bucket) above which the table doubles, as a fraction. The load stays between
/// 0.375 and 0.75, and a read seldom passes an item of another key. (A load of up to 1 saves 2 to 5
/// bytes per item, but batches of reads take a quarter longer.)
const GROW_LOAD: (usize, usize) = (3, 4);
/// The number of buckets per item above which the table halves.
const SHRINK_LOAD: usize = 8;
/// How long the table must have been that empty before it halves: deleted items often come back.
pub(super) const SHRINK_AFTER_SECONDS: u32 = 60;
/// The number of buckets moved under one guard, and between two updates of the count of moved
/// buckets.
const CHUNK: usize = 256;
/// The distance, in buckets, at which the move prefetches.
const AHEAD: usize = 16;

/// The number of items above which a table of `buckets` buckets doubles.
fn most_items(buckets: usize) -> usize {
    buckets / GROW_LOAD.1 * GROW_LOAD.0
}

/// The smallest number of buckets for `items` items, before rounding up to a power of two.
pub(super) fn least_buckets(items: usize) -> usize {
    items.div_ceil(GROW_LOAD.0).saturating_mul(GROW_LOAD.1)
}

/// The state of expansions. The thread that holds the lock of `state` is the expand thread.
pub(super) struct Expander {
    state: Mutex<State>,
    /// The number of items above which the table should double.
    threshold: AtomicUsize,
    grows: bool,
    smallest: usize,
    is_running: AtomicBool,
    finished: AtomicU64,
    longest_pause_ns: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The next bucket of the old table to move.
    position: usize,
    /// The second at which the memory limit last refused a new table: no retry in the same second.
    refused_seconds: Option<u32>,
    /// The second since which every check found the table too large; None if the last did not.
    too_large_since: Option<u32>,
}

impl Expander {
    /// The state for a table that starts with `buckets` buckets and never shrinks below `smallest`.
    pub(super) fn new(grows: bool, buckets: usize, smallest: usize) -> Self {
        let expander = Self {
            state: Mutex::default(),
            threshold: AtomicUsize::new(0),
            grows,
            smallest: smallest.min(buckets),
            is_running: AtomicBool::new(false),
            finished: AtomicU64::new(0),
            longest_pause_ns: AtomicU64::new(0),
        };
        expander.set_threshold(buckets);
        expander
    }

    fn set_threshold(&self, buckets: usize) {
        let threshold = if self.grows { most_items(buckets) } else { usize::MAX };
        self.threshold.store(threshold, Ordering::Relaxed);
    }

    /// The number of items above which the table should double.
    pub(super) fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Relaxed)
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    pub(super) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    pub(super) fn longest_pause_ns(&self) -> u64 {
        self.longest_pause_ns.load(Ordering::Relaxed)
    }

    /// Calls `look` with the tables. Locks the state of expansions, so that the tables stay.
    pub(super) fn with_tables<L: Locking, R>(
        &self,
        tables: &Tables<L>,
        look: impl FnOnce(Pair<'_, L>) -> R,
    ) -> R {
        let _state = self.state.lock().ignore_poison();
        // SAFETY: `begin` and `end` are called only under `state`'s lock.
        look(unsafe { tables.pair() })
    }

    /// Moves up to `budget` buckets, and begins or ends an expansion if one is due. Returns whether
    /// more work is due. Requires: the caller is not inside an operation.
    pub(super) fn step<'m, L: Locking>(
        &self,
        tables: &Tables<L>,
        memory: &'m Memory,
        pin: impl Fn() -> Guard<'m>,
        second: u32,
        budget: usize,
    ) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        if !self.is_running() && !self.begin(&mut state, tables, memory, second) {
            return false;
        }
        // SAFETY: the lock of `state` is held, and the pair is not used after `end`.
        let Pair { current, next } = unsafe { tables.pair() };
        let next = next.expect("an expansion is running");
        let count = current.count();
        let end = count.min(state.position + budget);
        while state.position < end {
            let chunk = state.position..end.min(state.position + CHUNK);
            let guard = pin();
            let mover = Mover { current, next, chains: Chains::new(memory, &guard), memory };
            mover.move_buckets(chunk.clone());
            state.position = chunk.end;
            tables.set_moved(chunk.end);
        }
        if state.position < count {
            return true;
        }
        let buckets = next.count();
        self.end(tables, buckets);
        true
    }

    /// Begins an expansion if the load asks for one.
    fn begin<L: Locking>(
        &self,
        state: &mut State,
        tables: &Tables<L>,
        memory: &Memory,
        second: u32,
    ) -> bool {
        // SAFETY: the lock of `state` is held, and the pair is not used after `begin`.
        let buckets = unsafe { tables.pair() }.current.count();
        let Some(wanted) = self.wanted(memory.items() as usize, buckets) else {
            state.too_large_since = None;
            return false;
        };
        if state.refused_seconds == Some(second) || !Self::is_due(state, wanted < buckets, second) {
            return false;
        }
        let Ok(next) = Buckets::new(memory, wanted) else {
            // Without a new table, chains get longer. Try again later, as the limit or the load may
            // change.
            state.refused_seconds = Some(second);
            return false;
        };
        next.populate();
        state.position = 0;
        let Ok(pause) = tables.begin(Box::new(next)) else {
            state.refused_seconds = Some(second);
            return false;
        };
        self.note_pause(pause);
        self.is_running.store(true, Ordering::Relaxed);
        true
    }

    /// Whether to resize now: growth is due at once, shrinking after [`SHRINK_AFTER_SECONDS`].
    fn is_due(state: &mut State, shrinks: bool, second: u32) -> bool {
        if !shrinks {
            state.too_large_since = None;
            return true;
        }
        let since = *state.too_large_since.get_or_insert(second);
        second.saturating_sub(since) >= SHRINK_AFTER_SECONDS
    }

    fn wanted(&self, items: usize, buckets: usize) -> Option<usize> {
        if !self.grows {
            None
        } else if items > most_items(buckets) {
            Some(buckets * 2)
        } else if items < buckets / SHRINK_LOAD && buckets / 2 >= self.smallest.max(MIN_BUCKETS) {
            Some(buckets / 2)
        } else {
            None
        }
    }

    fn end<L: Locking>(&self, tables: &Tables<L>, buckets: usize) {
        // SAFETY: the lock of `state` is held, and the pair is not used any more.
        let Some(ended) = (unsafe { tables.end() }) else { return };
        self.note_pause(ended.pause);
        self.is_running.store(false, Ordering::Relaxed);
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.set_threshold(buckets);
        // The old table is freed here, outside the thread locks.
        drop(ended.old);
    }

    fn note_pause(&self, pause: Duration) {
        self.longest_pause_ns.fetch_max(pause.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Moves chains from one table to the other.
struct Mover<'m, L: Locking> {
    current: &'m Buckets<L>,
    next: &'m Buckets<L>,
    chains: Chains<'m>,
    memory: &'m Memory,
}

impl<L: Locking> Mover<'_, L> {
    fn move_buckets(&self, range: std::ops::Range<usize>) {
        if self.next.count() > self.current.count() {
            for index in range {
                self.look_ahead(index);
                links::split(&self.chains, self.current, self.next, index);
            }
        } else {
            for index in range.step_by(2) {
                self.look_ahead(index);
                self.look_ahead(index + 1);
                links::join(&self.chains, self.current, self.next, index);
            }
        }
    }

    /// Prefetches the first and second items of buckets further on.
    fn look_ahead(&self, index: usize) {
        let first = |index| {
            let is_there = index < self.current.count();
            is_there.then(|| self.current.bucket(index).peek().item()).flatten()
        };
        if let Some(item) = first(index + 2 * AHEAD) {
            self.memory.prefetch_item(item);
        }
        if let Some(second) = first(index + AHEAD).and_then(|item| next_of(self.chains.item(item)))
        {
            self.memory.prefetch_item(second);
        }
    }
}
