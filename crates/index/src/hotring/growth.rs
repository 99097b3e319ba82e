//! The state of an index's rehashes, and the statistics of its rings.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ring_sampling::{LastSample, RingSample};
use super::table::{HeadTable, RetiredTable};
use crate::Statistics;
use crate::mem::{Grace, ItemRef};

const MILLION: u64 = 1_000_000;

/// The state of rehashes and the statistics of rings.
#[derive(Default)]
pub(super) struct Growth {
    /// Locked by the worker that does a step of a rehash; other workers only try the lock.
    pub(super) state: Mutex<RehashState>,
    /// The number of rings of the current table.
    rings: AtomicU64,
    table_bytes: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) is_under_way: AtomicBool,
    items_per_ring: AtomicU64,
    /// The number of items passed per million accesses.
    passed: AtomicU64,
    /// The number of pairs of rehash items in memory, which are not items of clients.
    pairs: AtomicU64,
    pair_bytes: AtomicU64,
    pub(super) last_sample: LastSample,
}

/// The progress of a rehash.
#[derive(Default)]
pub(super) struct RehashState {
    /// The sample of rings that is collected between rehashes.
    pub(super) sample: RingSample,
    /// The next ring to split; None while there is no rehash.
    pub(super) next_ring: Option<usize>,
    /// Pairs whose rings are split, before the grace period.
    pub(super) split: Vec<ItemRef>,
    /// Pairs whose rings wait for, or are past, their grace period.
    pub(super) waiting: Option<(Grace, Vec<ItemRef>)>,
    /// The table that the last rehash replaced, until its grace period is over.
    pub(super) retired: Option<(Grace, RetiredTable)>,
}

impl Growth {
    /// Records the size of a table that is in use from now on.
    pub(super) fn note_table(&self, table: &HeadTable) {
        self.rings.store(table.len() as u64, Ordering::Relaxed);
        self.table_bytes.store(table.bytes() as u64, Ordering::Relaxed);
    }

    /// Items per ring on average, as of the last [`Growth::note_items`].
    pub(super) fn items_per_ring(&self) -> u64 {
        self.items_per_ring.load(Ordering::Relaxed)
    }

    /// Records the number of items in the table.
    pub(super) fn note_items(&self, items: u64) {
        let rings = self.rings.load(Ordering::Relaxed).max(1);
        self.items_per_ring.store(items.div_ceil(rings), Ordering::Relaxed);
    }

    /// Records how many items some requests passed, in a moving average of weight 1/8.
    pub(super) fn note_passed(&self, items: u32, requests: u32) {
        let passed = u64::from(items) * MILLION / u64::from(requests.max(1));
        let before = self.passed.load(Ordering::Relaxed);
        let average = if before == 0 { passed } else { (7 * before + passed) / 8 };
        self.passed.store(average, Ordering::Relaxed);
    }

    /// Writes the statistics of rings and rehashes into `statistics`.
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
    }

    /// Records a pair of rehash items of `bytes` bytes.
    pub(super) fn add_pair(&self, bytes: u64) {
        self.pairs.fetch_add(1, Ordering::Relaxed);
        self.pair_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that a pair of rehash items of `bytes` bytes was retired.
    pub(super) fn remove_pair(&self, bytes: u64) {
        self.pairs.fetch_sub(1, Ordering::Relaxed);
        self.pair_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
