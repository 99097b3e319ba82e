//! The index and its workers: opening, strategies of head movement, and code that operations share.

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_op::{HashSeed, ItemView, Key, Now, Op, Outcome};

use super::change::{Position, locate, occupy, replace, unlink};
use super::cost::Cost;
use super::growth::Growth;
use super::items::{Items, node_of, place_bits};
use super::space::{Order, Space};
use super::table::{HeadTable, Tables};
use super::word::{Bits, Head, MOST_WORKERS, Node};
use super::{movement, sample};
use crate::maintenance::Signal;
use crate::mem::{
    Guard, HeaderPredictor, ItemRef, Memory, Pinner, Pool, Shortage, SlotLayout, Writer,
};
use crate::{Configuration, Cursor, Engine, Eviction, OpenError, Sink, Statistics, Store, Worker};

/// R, if the strategy sets no other: at every Rth request a worker checks whether a head should
/// move (section 3.2).
pub(super) const REQUESTS_PER_LOOK: u32 = 5;
/// The number of items per ring for which a table is created, if `expected_items` are stored.
const ITEMS_PER_RING: usize = 1;
/// A rehash is wanted when `.0` accesses visit more than `.1` items beyond the first: with evenly
/// used keys, at 1.5 items per ring.
const MOST_VISITED: (u32, u32) = (4, 3);
/// The number of hot head items that one call to make room or one step of maintenance spares at
/// most.
pub(super) const MOST_SPARED: u32 = 64;

/// The strategy by which heads move to hot items.
pub trait Strategy: Send + Sync + 'static {
    /// The engine's name.
    const NAME: &'static str;
    /// Whether heads move by samples; else they move to what the R-th request touched.
    const SAMPLES: bool;
    /// R, see `REQUESTS_PER_LOOK`. A constant, since every request divides by it.
    const REQUESTS_PER_LOOK: u32 = REQUESTS_PER_LOOK;
    /// Whether heads move at all.
    const MOVES_HEADS: bool = true;
    /// Whether an update counts as an access to the item before the updated one (section 3.3):
    /// from there the next update of the item is quick.
    const COUNTS_PREDECESSORS: bool = true;
}

/// The strategy of random movement (section 3.2.1).
pub struct RandomMovement;

/// Random movement with another R, for figure 15b.
pub struct RandomMovementEvery<const R: u32>;

/// The strategy of statistical sampling (section 3.2.2).
pub struct StatisticalSampling;

/// `S` with heads that stay where they are, for factor analyses.
pub struct WithoutMovement<S>(PhantomData<S>);

/// `S` that counts updates at the item itself: HotRing-s(w/o) of figure 12.
pub struct WithoutPredecessor<S>(PhantomData<S>);

impl Strategy for RandomMovement {
    const NAME: &'static str = "hotring-r";
    const SAMPLES: bool = false;
}

impl<const R: u32> Strategy for RandomMovementEvery<R> {
    const NAME: &'static str = "hotring-r";
    const SAMPLES: bool = false;
    const REQUESTS_PER_LOOK: u32 = R;
}

impl Strategy for StatisticalSampling {
    const NAME: &'static str = "hotring-s";
    const SAMPLES: bool = true;
}

impl<S: Strategy> Strategy for WithoutMovement<S> {
    const NAME: &'static str = S::NAME;
    const SAMPLES: bool = S::SAMPLES;
    const REQUESTS_PER_LOOK: u32 = S::REQUESTS_PER_LOOK;
    const MOVES_HEADS: bool = false;
    const COUNTS_PREDECESSORS: bool = S::COUNTS_PREDECESSORS;
}

impl<S: Strategy> Strategy for WithoutPredecessor<S> {
    const NAME: &'static str = S::NAME;
    const SAMPLES: bool = S::SAMPLES;
    const REQUESTS_PER_LOOK: u32 = S::REQUESTS_PER_LOOK;
    const MOVES_HEADS: bool = S::MOVES_HEADS;
    const COUNTS_PREDECESSORS: bool = false;
}

/// A HotRing index with strategy `S` for head movement: see the head of the module.
pub struct HotRing<S> {
    pub(super) memory: Arc<Memory>,
    pub(super) tables: Tables,
    pub(super) bits: Bits,
    pub(super) growth: Growth,
    /// Whether a worker found accesses too expensive, which requests a rehash.
    pub(super) wants_growth: AtomicBool,
    grows: bool,
    strategy: PhantomData<S>,
}

/// A worker of [`HotRing`].
pub struct HotRingWorker<'i, S> {
    pub(super) index: &'i HotRing<S>,
    pub(super) pool: Pool<'i>,
    pub(super) number: u64,
    /// Requests of this worker, modulo 2^32.
    pub(super) requests: u32,
    pub(super) predictor: HeaderPredictor,
    cost: Cost,
}

impl<S: Strategy> Store for HotRing<S> {
    const NAME: &'static str = S::NAME;
    type Worker<'i> = HotRingWorker<'i, S>;

    fn worker(&self) -> HotRingWorker<'_, S> {
        let pool = Pool::new(&self.memory);
        let number = pool.number() as u64;
        HotRingWorker {
            index: self,
            pool,
            number,
            requests: 0,
            predictor: HeaderPredictor::UNTRAINED,
            cost: Cost::default(),
        }
    }

    fn seed(&self) -> &HashSeed {
        self.memory.seed()
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = self.memory.index_statistics();
        self.growth.fill(&mut statistics);
        statistics
    }

    fn sample_buckets(&self, statistics: &mut Statistics) {
        self.growth.last_sample.fill(statistics);
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

impl<S: Strategy> Engine for HotRing<S> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        let tuning = &configuration.tuning;
        if configuration.workers as u64 > MOST_WORKERS {
            return Err(OpenError::Configuration(format!(
                "{} workers are more than the {MOST_WORKERS} that a head word can name",
                configuration.workers
            )));
        }
        let memory = Memory::new(configuration, SlotLayout::Linked)?;
        let buckets = tuning.buckets.unwrap_or(configuration.expected_items / ITEMS_PER_RING);
        let heads = memory.table(buckets.next_power_of_two().max(2))?;
        if configuration.prefault {
            heads.populate();
        }
        let bits =
            Bits::new(place_bits(memory.address_space_bytes()), heads.len().trailing_zeros());
        let table = HeadTable::new(heads);
        let growth = Growth::default();
        growth.note_table(&table);
        Ok(Self {
            memory,
            tables: Tables::new(table),
            bits,
            growth,
            wants_growth: AtomicBool::new(false),
            grows: tuning.grows,
            strategy: PhantomData,
        })
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.memory.signal
    }

    fn maintain(worker: &mut HotRingWorker<'_, S>, now: &Now) -> bool {
        let grows = worker.step_growth(now);
        worker.with_swap(now, |pool, swap| pool.step(now, swap)) || grows
    }

    fn evictions(&self) -> Option<&crate::mem::Evictions> {
        Some(self.memory.evictions())
    }

    fn compare_exchange_item(
        worker: &mut HotRingWorker<'_, S>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        let guard = worker.pool.pin();
        worker.index.swap(&worker.items(&guard), hash, old, new)
    }
}

impl<S: Strategy> HotRing<S> {
    /// The items of ring `number`, read under `guard`.
    #[inline]
    pub(super) fn items<'g>(&'g self, number: u64, guard: &'g Guard<'g>) -> Items<'g> {
        Items { memory: &self.memory, tables: &self.tables, bits: &self.bits, number, guard }
    }

    /// See [`Engine::compare_exchange_item`].
    fn swap(&self, items: &Items<'_>, hash: u64, old: ItemRef, new: Option<ItemRef>) -> bool {
        let node = node_of(old);
        let item = items.item(node);
        let order = Order { hash, key: item.key() };
        let Position::Present { before, found } = locate(items, order) else { return false };
        if found.node != node {
            return false;
        }
        let is_done = match new.map(node_of) {
            None => {
                items.seal(node);
                occupy(items, node).is_some()
            }
            Some(copy) => {
                self.carry_word_over(items, node, copy);
                items.seal(node);
                replace(items, node, copy, items.address(copy, hash))
            }
        };
        if is_done {
            unlink(items, order, node, Some(before));
        }
        is_done
    }

    /// Copies the word of `old`, which may have changed since it was copied, once it is final.
    fn carry_word_over(&self, items: &Items<'_>, old: Node, copy: Node) {
        let (old, copy) = (items.item(old), items.item(copy));
        loop {
            let (header, word) = old.header_and_word();
            if !header.has_word() {
                return;
            }
            if header.is_sealed() || old.seal(header, word) {
                // Relaxed: the word is published with the copy.
                copy.word().store(word, Ordering::Relaxed);
                return;
            }
        }
    }

    /// As `swap`, but spares a live item that is the head of its ring and was read since the hand
    /// last passed, at most `spare` times; the next pass takes it. (The CLOCK hand spares all
    /// recently read items, unless it finds no others to evict.)
    fn swap_sparing_hot(
        &self,
        items: &Items<'_>,
        swap: (u64, ItemRef, Option<ItemRef>),
        now: &Now,
        spare: &mut u32,
    ) -> bool {
        let (hash, old, new) = swap;
        if new.is_none() && *spare > 0 && !self.memory.must_leave(old) {
            let item = items.item(node_of(old));
            let header = item.header();
            let (_, head) = items.head(hash);
            let is_head = self.bits.node_of(head.address()) == Some(node_of(old));
            let is_live = now.is_live(item.expiry_of(header), header.generation());
            if is_head && is_live && header.is_recent() {
                *spare -= 1;
                item.spare(header, true);
                return false;
            }
        }
        self.swap(items, hash, old, new)
    }
}

impl<S: Strategy> HotRingWorker<'_, S> {
    /// Records that requests visited `visited` items beyond those that heads led to, and requests a
    /// rehash when accesses have become too expensive (section 3.4).
    #[inline]
    pub(super) fn note_cost(&mut self, visited: u32) {
        if self.cost.note(visited, self.requests) {
            self.judge_cost();
        }
    }

    #[cold]
    fn judge_cost(&mut self) {
        let (visited, requests) = self.cost.conclude(self.requests);
        self.index.growth.note_items(self.index.memory.items());
        self.index.growth.note_passed(visited, requests);
        let (accesses, items) = MOST_VISITED;
        let is_expensive = visited / items >= requests / accesses;
        // Relaxed: the flag is a hint for the thread that does maintenance.
        if is_expensive
            && self.index.grows
            && !self.index.wants_growth.swap(true, Ordering::Relaxed)
        {
            self.index.memory.signal.raise();
        }
    }

    /// Records an access through `head` for which `node` would be the best head: counts it if the
    /// head is sampled; else checks, at every R-th request, whether the head should move or
    /// sampling should start.
    #[inline]
    pub(super) fn note_access(&self, items: &Items<'_>, head: Head, hash: u64, node: Node) {
        let is_hot = items.bits.node_of(head.address()) == Some(node);
        if head.is_active() {
            sample::count(items, hash, node, self.samples());
        } else if !is_hot {
            self.note_cold(items, head, hash, node, false);
        } else if !S::SAMPLES && !movement::is_trusted(head) && self.is_due(head) {
            movement::confirm(items, hash);
        }
    }

    /// Records an access through `head` that was not to the head's item; `node` would be the best
    /// head. `is_certain` says that no other node can be better.
    #[cold]
    pub(super) fn note_cold(
        &self,
        items: &Items<'_>,
        head: Head,
        hash: u64,
        node: Node,
        is_certain: bool,
    ) {
        if !S::MOVES_HEADS || !self.is_due(head) {
            return;
        }
        if S::SAMPLES {
            sample::start(items, hash, node, self.samples());
        } else {
            movement::doubt(items, hash, node, is_certain);
        }
    }

    /// Whether this request checks its head: every R-th does, and every one while the popular keys
    /// change.
    #[inline]
    pub(super) fn looks(&self) -> bool {
        self.requests.is_multiple_of(S::REQUESTS_PER_LOOK) || self.cost.is_surprising()
    }

    /// Whether this request checks `head`, whose patience makes checks rarer if the strategy
    /// samples.
    #[inline]
    fn is_due(&self, head: Head) -> bool {
        let patience = if S::SAMPLES { head.patience() } else { 0 };
        self.requests.is_multiple_of(S::REQUESTS_PER_LOOK << patience) || self.cost.is_surprising()
    }

    /// The number of samples per round: as many as a ring has items on average.
    fn samples(&self) -> u64 {
        sample::samples_of(self.index.growth.items_per_ring())
    }

    pub(super) fn items<'g>(&self, guard: &'g Guard<'g>) -> Items<'g>
    where
        Self: 'g,
    {
        self.index.items(self.number, guard)
    }

    /// Calls `work` with the pool and a callback that unlinks or replaces items in the rings.
    pub(super) fn with_swap<R>(
        &mut self,
        now: &Now,
        work: impl FnOnce(&mut Pool<'_>, &mut crate::mem::Swap<'_>) -> R,
    ) -> R {
        let Self { index, pool, number, .. } = self;
        // SAFETY: the pinner is gone when this function returns; the pool lives in `self`.
        let pinner: Pinner<'_> = unsafe { pool.pinner() };
        let mut spare = MOST_SPARED;
        work(pool, &mut |hash, old, new| {
            let guard = pinner.pin();
            let items = index.items(*number, &guard);
            index.swap_sparing_hot(&items, (hash, old, new), now, &mut spare)
        })
    }
}

impl<'i, S: Strategy> Writer<'i> for HotRingWorker<'i, S> {
    fn pool(&mut self) -> &mut Pool<'i> {
        &mut self.pool
    }

    fn make_room(&mut self, shortage: Shortage, spared: Option<u64>, now: &Now) -> bool {
        self.with_swap(now, |pool, swap| pool.make_room(shortage, spared, now, swap))
    }
}

impl<S: Strategy> Worker for HotRingWorker<'_, S> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        match keys {
            [key] => {
                // One key is answered, whether the sink breaks or not.
                let _ = self.get_one(key, now, sink);
                1
            }
            keys => self.get_many(keys, now, sink),
        }
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        self.execute(op, now, sink)
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        let guard = self.pool.pin();
        self.index.tables.prefetch(key.hash(), &guard);
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        self.scan_rings(from, budget, visit)
    }

    #[inline]
    fn quiesce(&mut self) {
        self.pool.quiesce();
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
