//! Expansion: a table of twice the size (or half, after mass deletion), filled bucket by bucket
//! while workers go on. The thread that calls [`crate::Engine::maintain`] is the expand thread.
//!
//! A *unit* is moved at once: one bucket when the table grows, a pair of neighbours when it
//! shrinks. The expand thread holds the unit's old buckets' locks while it links their items into
//! the new ones, which no worker looks at before it sees an old one moved. The store that unlocks
//! a moved bucket is the linearization point of the move.
//!
//! The thread locks are held for nothing but the change of two pointers: the new table is
//! allocated and touched before, the old one freed after.

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

/// Items a bucket above which the table doubles, as a fraction: then there are between 0.375 and
/// 0.75, and a read seldom passes an item of another key. (A load of up to 1 saves 2 to 5 bytes an
/// item; batches of reads take a quarter longer.)
const GROW_LOAD: (usize, usize) = (3, 4);
/// Buckets an item above which the table halves.
const SHRINK_LOAD: usize = 8;
/// For so long it must have been that empty: what was deleted often comes again.
pub(super) const SHRINK_AFTER_SECONDS: u32 = 60;
/// Buckets moved under one guard, and between two reports of how many are moved.
const CHUNK: usize = 256;
/// How far ahead of the move its cache lines are asked for, in units.
const AHEAD: usize = 16;

/// The most items that `buckets` buckets are meant for.
fn most_items(buckets: usize) -> usize {
    buckets / GROW_LOAD.1 * GROW_LOAD.0
}

/// The least buckets, if any number will do, that are meant for `items` items.
pub(super) fn least_buckets(items: usize) -> usize {
    items.div_ceil(GROW_LOAD.0).saturating_mul(GROW_LOAD.1)
}

/// The state of the expand thread, whichever thread it is just now.
pub(super) struct Expander {
    state: Mutex<State>,
    /// The load at which the table should have doubled, as a number of items.
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
    /// The limit refused the new table at this second; not again before the next one.
    refused_seconds: Option<u32>,
    /// Since this second the table has been met too large each time.
    too_large_since: Option<u32>,
}

impl Expander {
    /// For a table that starts with `buckets` buckets and need not have more than `smallest`.
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

    /// How many items the table is meant for.
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

    /// Shows the tables to `look`, which they outlast.
    pub(super) fn with_tables<L: Locking, R>(
        &self,
        tables: &Tables<L>,
        look: impl FnOnce(Pair<'_, L>) -> R,
    ) -> R {
        let _state = self.state.lock().ignore_poison();
        // SAFETY: tables begin and end under `state`'s lock only.
        look(unsafe { tables.pair() })
    }

    /// Does up to `budget` buckets' worth of work. Returns whether more waits. The caller is not
    /// inside of an operation.
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
        // SAFETY: we hold the lock of `state`; and the pair is gone before `end`.
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
        // SAFETY: we hold the lock of `state`; the pair is gone before `begin`.
        let buckets = unsafe { tables.pair() }.current.count();
        let Some(wanted) = self.wanted(memory.items() as usize, buckets) else {
            state.too_large_since = None;
            return false;
        };
        if state.refused_seconds == Some(second) || !Self::is_due(state, wanted < buckets, second) {
            return false;
        }
        let Ok(next) = Buckets::new(memory, wanted) else {
            // Chains get longer instead. The limit, or the load, may change.
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

    /// Growth is due at once.
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
        // SAFETY: we hold the lock of `state`, and our pair is not used any more.
        let Some(ended) = (unsafe { tables.end() }) else { return };
        self.note_pause(ended.pause);
        self.is_running.store(false, Ordering::Relaxed);
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.set_threshold(buckets);
        // Here, outside of the thread locks.
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

    /// Asks for what the buckets further on need.
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
