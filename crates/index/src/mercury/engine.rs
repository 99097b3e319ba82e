//! The index and its workers: the implementation of the crate's engine traits.

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_op::{HashSeed, ItemView, Key, Now, Op, Outcome};

use super::buckets::{Buckets, MIN_BUCKETS};
use super::chain::next_of;
use super::expand::{Expander, least_buckets};
use super::locking::Locking;
use super::tables::{TableHandle, Tables};
use crate::maintenance::Signal;
use crate::mem::{
    HeaderPredictor, ItemRef, Memory, Pinner, Pool, Shortage, SlotLayout, Swap, spared_by,
};
use crate::{Configuration, Cursor, Engine, Eviction, OpenError, Sink, Statistics, Store, Worker};

/// The number of items that a worker inserts between two checks of the load.
const INSERTS_PER_LOOK: u32 = 256;
/// The number of buckets that a call of [`Engine::maintain`] moves.
const STEP_BUCKETS: usize = 1 << 14;
/// If [`Engine::maintain`] is not called, workers expand the table themselves once its load is this
/// many times the threshold, [`HELP_BUCKETS`] buckets at a time.
const OVERDUE: usize = 4;
/// The number of buckets that a worker moves at a time if an expansion is [`OVERDUE`].
const HELP_BUCKETS: usize = 1 << 10;
/// The number of buckets that statistics sample.
const SAMPLE_BUCKETS: usize = 4096;
/// The number of chain lengths that statistics distinguish; the last counts all longer chains.
const SAMPLE_LENGTHS: usize = 10;

/// A Mercury index; `L` is the way in which buckets are locked.
pub struct MercuryEngine<L: Locking> {
    pub(super) memory: Arc<Memory>,
    pub(super) tables: Tables<L>,
    pub(super) expander: Expander,
}

/// A worker of a [`MercuryEngine`].
pub struct MercuryWorker<'i, L: Locking> {
    pub(super) engine: &'i MercuryEngine<L>,
    pub(super) handle: TableHandle<'i, L>,
    pub(super) pool: Pool<'i>,
    pub(super) predictor: HeaderPredictor,
    inserts: u32,
    /// Whether the table is far smaller than it should be.
    is_overdue: bool,
    pub(super) scanned: Vec<ItemRef>,
}

impl<L: Locking> Store for MercuryEngine<L> {
    const NAME: &'static str = L::NAME;
    type Worker<'i> = MercuryWorker<'i, L>;

    fn worker(&self) -> MercuryWorker<'_, L> {
        MercuryWorker {
            engine: self,
            handle: self.tables.handle(),
            pool: Pool::new(&self.memory),
            predictor: HeaderPredictor::UNTRAINED,
            inserts: 0,
            is_overdue: false,
            scanned: Vec::new(),
        }
    }

    fn seed(&self) -> &HashSeed {
        self.memory.seed()
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = self.memory.index_statistics();
        self.expander.with_tables(&self.tables, |pair| {
            let bytes = pair.current.bytes() + pair.next.map_or(0, Buckets::bytes);
            statistics.memory.index = bytes as u64;
            statistics.slots = pair.next.unwrap_or(pair.current).count() as u64;
            statistics.buckets =
                (pair.current.count() + pair.next.map_or(0, Buckets::count)) as u64;
        });
        statistics.expansions = self.expander.finished();
        statistics.is_expanding = self.expander.is_running();
        statistics.longest_pause_ns = self.expander.longest_pause_ns();
        statistics
    }

    fn sample_buckets(&self, statistics: &mut Statistics) {
        self.expander.with_tables(&self.tables, |pair| {
            statistics.length_histogram = self.lengths(pair.next.unwrap_or(pair.current));
        });
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.memory.set_limit(bytes);
    }

    fn set_eviction(&self, policy: Eviction) {
        self.memory.set_eviction(policy);
    }

    fn pinned_bytes(&self) -> usize {
        self.memory.pinned_bytes()
    }
}

impl<L: Locking> Engine for MercuryEngine<L> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        let memory = Memory::new(configuration, SlotLayout::Chained)?;
        let smallest = least_buckets(configuration.expected_items);
        let buckets = configuration.tuning.buckets.unwrap_or(smallest);
        let buckets = buckets.max(MIN_BUCKETS).checked_next_power_of_two().ok_or_else(|| {
            OpenError::Configuration(format!("{buckets} buckets are more than there can be"))
        })?;
        let first = Buckets::new(&memory, buckets).map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => OpenError::Configuration(format!(
                "a table for {} items does not fit a memory limit of {} bytes",
                configuration.expected_items, configuration.memory_bytes
            )),
            _ => OpenError::Memory(error),
        })?;
        if configuration.prefault {
            first.populate();
        }
        Ok(Self {
            memory,
            expander: Expander::new(configuration.tuning.grows, buckets, smallest),
            tables: Tables::new(first, configuration.workers),
        })
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.memory.signal
    }

    fn maintain(worker: &mut MercuryWorker<'_, L>, now: &Now) -> bool {
        let is_expanding = worker.expand(now.seconds, STEP_BUCKETS);
        let more = worker.with_swap(|pool, swap| pool.step(now, swap));
        is_expanding || more
    }

    fn evictions(&self) -> Option<&crate::mem::Evictions> {
        Some(self.memory.evictions())
    }

    fn compare_exchange_item(
        worker: &mut MercuryWorker<'_, L>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        worker.handle.swap(&worker.engine.memory, &worker.pool.pin(), hash, old, new)
    }
}

impl<L: Locking> MercuryEngine<L> {
    /// The histogram of chain lengths in a sample of buckets.
    fn lengths(&self, buckets: &Buckets<L>) -> Vec<u64> {
        let mut histogram = vec![0; SAMPLE_LENGTHS];
        let stride = buckets.count().div_ceil(SAMPLE_BUCKETS);
        for index in (0..buckets.count()).step_by(stride) {
            let locked = buckets.lock(index);
            let mut length = 0;
            let mut item = locked.first();
            while let Some(reference) = item {
                length += 1;
                // SAFETY: the reference was read from a bucket whose lock is held, or from a link
                // of its chain.
                item = next_of(unsafe { self.memory.linked_item(reference) });
            }
            histogram[length.min(SAMPLE_LENGTHS - 1)] += 1;
        }
        histogram
    }
}

impl<L: Locking> Worker for MercuryWorker<'_, L> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        match keys {
            [key] => {
                let _ = self.get(key, 0, now, sink);
                1
            }
            keys => self.get_chunks(keys, now, sink),
        }
    }

    #[inline]
    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        match self.set_at_hand(op, now) {
            Some(outcome) => outcome,
            None => self.execute(op, now, sink),
        }
    }

    // A call of its own costs a batch nothing, and leaves its caller the registers.
    #[inline(never)]
    fn apply_batch(
        &mut self,
        ops: &[Op<'_>],
        now: &Now,
        sink: &mut impl Sink,
        outcomes: &mut [Outcome],
    ) {
        self.apply_chunks(ops, now, sink, outcomes);
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        self.handle.prefetch(key.hash());
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        self.scan_buckets(from, budget, visit)
    }

    #[inline]
    fn quiesce(&mut self) {
        self.pool.quiesce();
        if self.is_overdue {
            self.help();
        }
    }

    fn rest(&mut self) -> bool {
        self.quiesce();
        self.pool.rest()
    }

    #[inline]
    fn has_much_retired(&self) -> bool {
        self.pool.has_much_retired()
    }
}

impl<L: Locking> MercuryWorker<'_, L> {
    /// Counts an insert, and checks the load every [`INSERTS_PER_LOOK`] of them.
    #[inline]
    pub(super) fn note_insert(&mut self) {
        self.inserts += 1;
        if self.inserts >= INSERTS_PER_LOOK {
            self.inserts = 0;
            self.look_at_load();
        }
    }

    #[cold]
    fn look_at_load(&mut self) {
        let items = self.engine.memory.items() as usize;
        let threshold = self.engine.expander.threshold();
        if items > threshold && !self.engine.expander.is_running() {
            self.engine.memory.signal.raise();
        }
        self.is_overdue = items / OVERDUE > threshold;
    }

    #[cold]
    fn help(&mut self) {
        // The time is unknown here. With second 0, a table that was refused is not requested again
        // here; `maintain` retries once a second.
        self.is_overdue = self.expand(0, HELP_BUCKETS);
    }

    fn expand(&mut self, second: u32, budget: usize) -> bool {
        let (engine, pool) = (self.engine, &self.pool);
        engine.expander.step(&engine.tables, &engine.memory, || pool.pin(), second, budget)
    }

    /// Frees memory for `op` after a shortage. Returns whether to try again.
    #[cold]
    pub(super) fn make_room(&mut self, shortage: Shortage, op: &Op<'_>, now: &Now) -> bool {
        self.with_swap(|pool, swap| pool.make_room(shortage, spared_by(op), now, swap))
    }

    /// Calls `work` with the pool and a callback that unlinks or replaces items in the index.
    fn with_swap<R>(&mut self, work: impl FnOnce(&mut Pool<'_>, &mut Swap<'_>) -> R) -> R {
        let Self { engine, handle, pool, .. } = self;
        // SAFETY: the pinner is gone when this function returns; the pool lives in `self`.
        let pinner: Pinner<'_> = unsafe { pool.pinner() };
        work(pool, &mut |hash, old, new| handle.swap(&engine.memory, &pinner.pin(), hash, old, new))
    }
}
