//! Rehash of the whole table (section 3.4), a slice at a time: rings are split, and after one grace
//! period for many of them parted.
//!
//! Thread safety: one mutex, taken by whoever steps and only tried for; nobody waits for it but
//! those who read statistics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

use amalgam_op::{Draft, Expiry, Marks, Now, Part};

use super::engine::{HotRing, HotRingWorker, Strategy};
use super::items::{Items, node_of};
use super::space::load;
use super::split::{Buckets, move_vacant, part, split};
use super::survey::{Sample, Survey};
use super::table::{HeadTable, RetiredTable};
use super::word::Head;
use crate::Statistics;
use crate::mem::{Grace, ItemRef, Pool, Shape, Writer};

/// Rings that one step splits or parts: a tenth of a millisecond's work. Between two steps its
/// thread looks after all memory.
const SLICE: usize = 1024;
/// How many rings ahead the item that a head leads to is asked for.
const RINGS_AHEAD: usize = 8;
/// Rings that share a grace period.
const BATCH: usize = if cfg!(test) { 4 } else { 8192 };

const MILLION: u64 = 1_000_000;

/// What an index knows of its rehashes.
#[derive(Default)]
pub(super) struct Growth {
    state: Mutex<State>,
    /// Numbers for statistics.
    rings: AtomicU64,
    table_bytes: AtomicU64,
    finished: AtomicU64,
    is_under_way: AtomicBool,
    items_per_ring: AtomicU64,
    /// Items passed by a million accesses.
    passed: AtomicU64,
    /// Pairs of rehash items in memory: no items of users.
    pairs: AtomicU64,
    pair_bytes: AtomicU64,
    survey: Survey,
}

#[derive(Default)]
struct State {
    /// Rings looked at between rehashes.
    sample: Sample,
    /// The next ring to split; none while there is no rehash.
    next_ring: Option<usize>,
    /// Pairs whose rings are split, before the grace period.
    split: Vec<ItemRef>,
    /// Pairs during and after it.
    waiting: Option<(Grace, Vec<ItemRef>)>,
    retired: Option<(Grace, RetiredTable)>,
}

impl Growth {
    /// Tells of a table that is in use from now on.
    pub(super) fn note_table(&self, table: &HeadTable) {
        self.rings.store(table.len() as u64, Ordering::Relaxed);
        self.table_bytes.store(table.bytes() as u64, Ordering::Relaxed);
    }

    /// How many items a ring had on average when that was last counted.
    pub(super) fn items_per_ring(&self) -> u64 {
        self.items_per_ring.load(Ordering::Relaxed)
    }

    /// Counts anew how many items a ring has on average.
    pub(super) fn note_items(&self, items: u64) {
        let rings = self.rings.load(Ordering::Relaxed).max(1);
        self.items_per_ring.store(items.div_ceil(rings), Ordering::Relaxed);
    }

    /// Tells how many items some requests passed; what was told before counts seven times as much.
    pub(super) fn note_passed(&self, items: u32, requests: u32) {
        let passed = u64::from(items) * MILLION / u64::from(requests.max(1));
        let before = self.passed.load(Ordering::Relaxed);
        let average = if before == 0 { passed } else { (7 * before + passed) / 8 };
        self.passed.store(average, Ordering::Relaxed);
    }

    pub(super) fn fill(&self, statistics: &mut Statistics) {
        let passed = self.passed.load(Ordering::Relaxed);
        statistics.items_passed = passed as f64 / MILLION as f64;
        let pairs = self.pairs.load(Ordering::Relaxed);
        let is_under_way = self.is_under_way.load(Ordering::Relaxed);
        let tables = if is_under_way { 3 } else { 1 };
        statistics.items = statistics.items.saturating_sub(pairs);
        let pair_bytes = self.pair_bytes.load(Ordering::Relaxed);
        statistics.memory.items = statistics.memory.items.saturating_sub(pair_bytes);
        statistics.buckets = self.rings.load(Ordering::Relaxed) * tables;
        statistics.slots = self.rings.load(Ordering::Relaxed);
        statistics.memory.index = self.table_bytes.load(Ordering::Relaxed) * tables;
        statistics.expansions = self.finished.load(Ordering::Relaxed);
        statistics.is_expanding = is_under_way;
        self.survey.fill(statistics);
    }

    /// What samples of the rings have shown.
    pub(super) fn survey(&self) -> &Survey {
        &self.survey
    }
}

impl<S: Strategy> HotRingWorker<'_, S> {
    /// Does a slice of a rehash, or begins one. Returns whether more waits.
    pub(super) fn step_growth(&mut self, now: &Now) -> bool {
        let index = self.index;
        let mut state = match index.growth.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody else steps.
            Err(TryLockError::WouldBlock) => return false,
        };
        if let Some((grace, _)) = &state.retired {
            if !self.pool.is_over(*grace) {
                return true;
            }
            if let Some((_, table)) = state.retired.take() {
                // SAFETY: a grace period has passed since it went out of use.
                unsafe { table.free() };
            }
        }
        if state.next_ring.is_none() {
            let begins = self.begin(&mut state);
            if !begins {
                self.survey(&mut state.sample);
            }
            return begins;
        }
        if state.waiting.is_some() {
            return self.part_slice(&mut state);
        }
        self.split_slice(&mut state, now)
    }

    fn begin(&mut self, state: &mut State) -> bool {
        let index = self.index;
        if !index.wants_growth.load(Ordering::Relaxed) {
            return false;
        }
        let guard = self.pool.pin();
        let current = index.tables.current(&guard);
        let is_worth_it = index.memory.items() >= current.len() as u64;
        if !is_worth_it || current.shift() <= 1 {
            index.wants_growth.store(false, Ordering::Relaxed);
            return false;
        }
        let Ok(heads) = index.memory.table(current.len() * 2) else {
            // No room for a larger table: it goes on as it is.
            index.wants_growth.store(false, Ordering::Relaxed);
            return false;
        };
        index.tables.begin(HeadTable::new(heads), &guard);
        index.growth.is_under_way.store(true, Ordering::Relaxed);
        state.next_ring = Some(0);
        true
    }

    /// Splits some rings.
    fn split_slice(&mut self, state: &mut State, now: &Now) -> bool {
        let index = self.index;
        let Some(first) = state.next_ring else { return false };
        let guard = self.pool.pin();
        let table = index.tables.current(&guard);
        let end = table.len().min(first + SLICE);
        let mut is_short = false;
        for ring in first..end {
            if state.split.len() >= BATCH {
                break;
            }
            let items = self.items(&guard);
            ask_ahead(&items, table, ring + RINGS_AHEAD);
            if !split_ring(index, &mut self.pool, &items, table, ring, &mut state.split, now) {
                is_short = true;
                break;
            }
            state.next_ring = Some(ring + 1);
        }
        table.note_moved(state.next_ring.unwrap_or(first));
        if is_short && state.split.is_empty() {
            drop(guard);
            return self.make_room_for_pair(now);
        }
        // For want of memory the pairs that stand now go first: the next ones take their places.
        let is_last = state.next_ring == Some(table.len());
        if is_short || state.split.len() >= BATCH || is_last {
            state.waiting = Some((self.pool.begin_grace(), std::mem::take(&mut state.split)));
        }
        true
    }

    /// Evicts, where that is allowed, until a pair of rehash items has room. Returns whether it
    /// has.
    fn make_room_for_pair(&mut self, now: &Now) -> bool {
        let Some(shape) = pair_shape(now) else { return false };
        match self.reserve(shape, now) {
            Ok(slot) => {
                self.pool.give_back(slot);
                true
            }
            Err(_) => false,
        }
    }

    /// Parts some of the rings that were split, after their grace period.
    fn part_slice(&mut self, state: &mut State) -> bool {
        let index = self.index;
        let Some((grace, pairs)) = &mut state.waiting else { return false };
        if !self.pool.is_over(*grace) {
            std::thread::yield_now();
            return true;
        }
        let guard = self.pool.pin();
        let items = self.items(&guard);
        for _ in 0..SLICE {
            let Some(pair) = pairs.pop() else { break };
            part(&items, node_of(pair));
            let bytes = items.item(node_of(pair)).bytes_held() as u64;
            // SAFETY: both items of the pair left their rings.
            unsafe { self.pool.retire(pair) };
            index.growth.pairs.fetch_sub(1, Ordering::Relaxed);
            index.growth.pair_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        if pairs.is_empty() {
            state.waiting = None;
            let rings = index.tables.current(&guard).len();
            if state.next_ring == Some(rings) {
                let retired = index.tables.finish(&guard);
                state.next_ring = None;
                state.retired = Some((self.pool.begin_grace(), retired));
                index.wants_growth.store(false, Ordering::Relaxed);
                index.growth.note_table(index.tables.current(&guard));
                index.growth.is_under_way.store(false, Ordering::Relaxed);
                index.growth.finished.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }
}

/// Asks for the item that the head of a ring leads to, if there is such a ring.
fn ask_ahead(items: &Items<'_>, table: &HeadTable, ring: usize) {
    if ring < table.len()
        && let Some(node) = items.bits.node_of(Head(load(table.head_at(ring))).address())
    {
        items.prefetch_item(node, 0);
    }
}

/// Splits one ring. Returns false if there is no memory for its rehash items.
fn split_ring<S: Strategy>(
    index: &HotRing<S>,
    pool: &mut Pool<'_>,
    items: &Items<'_>,
    table: &HeadTable,
    ring: usize,
    pairs: &mut Vec<ItemRef>,
    now: &Now,
) -> bool {
    let Some(next) = table.next(items.guard) else { return true };
    let buckets = Buckets {
        old: table.head_at(ring),
        new: [next.head_at(2 * ring), next.head_at(2 * ring + 1)],
    };
    if move_vacant(&buckets) {
        return true;
    }
    let division = (2 * ring as u64 + 1) << next.shift();
    let Some(pair) = make_pair(pool, division, now) else { return false };
    // No read takes it for the item of a key.
    items.seal(node_of(pair));
    index.growth.pairs.fetch_add(1, Ordering::Relaxed);
    let bytes = items.item(node_of(pair)).bytes_held() as u64;
    index.growth.pair_bytes.fetch_add(bytes, Ordering::Relaxed);
    split(items, &buckets, node_of(pair));
    pairs.push(pair);
    true
}

/// What a pair of rehash items is written from: the word becomes the second one's link.
const PAIR: Draft<'_> = Draft {
    parts: [Part::Bytes(&[0; 8]), Part::Empty],
    flags: 0,
    expiry: Expiry::NEVER,
    cas: None,
    marks: Marks { fetched: false, stale: false, won: false },
};

/// The shape of a pair; its key is the division.
fn pair_shape(now: &Now) -> Option<Shape> {
    Shape::new(size_of::<u64>(), &PAIR, 0, now)
}

/// Two rehash items in the memory of one item with a word: the item's link, and the word.
fn make_pair(pool: &mut Pool<'_>, division: u64, now: &Now) -> Option<ItemRef> {
    let slot = pool.reserve(pair_shape(now)?).ok()?;
    Some(pool.fill(slot, &division.to_le_bytes(), &PAIR, &[]))
}
