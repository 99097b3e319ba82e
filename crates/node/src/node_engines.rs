//! The two engines of a node, one for items and one for chunks, behind one object.
//!
//! The cluster's machines and the gateway are compiled once and not once for each engine: the price
//! is a virtual call for a batch of operations on chunks or items, and one for each that it finds.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use amalgam_cluster::chunks::{ChunkStore, ItemClock, ItemStore, StoreHost};
use amalgam_cluster::wire::{MemoryUse, NodeMemory};
use amalgam_index::mem::Evictions;
use amalgam_index::{Cursor, Engine, Found, NullSink, Sink, Statistics, Worker, maintenance};
use amalgam_op::{Get, HashSeed, IgnorePoison, ItemView, Key, Now, Op, Outcome, Verb};

use crate::reserve::Reserve;

/// Buckets that a slice of a sweep looks at.
const SWEEP_BUCKETS: usize = 1_024;

/// Evictions that wait until backups are told, at most. Backups keep what they are not told of
/// until it is written again.
const EVICTIONS_MAX: usize = 1 << 16;

/// Which of a node's engines is meant.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Keys of memcached's clients.
    Items,
    /// Chunks, by id.
    Chunks,
}

/// A node's engines. Shared by its threads.
pub trait NodeEngines: Send + Sync + fmt::Debug {
    /// Registers the calling thread, which is to execute operations on chunks and items.
    fn store(&self, clock: ItemClock) -> Box<dyn ChunkStore + '_>;

    /// Registers the calling thread, which is to read, write and walk the items.
    fn item_worker(&self) -> Box<dyn ItemWorker + '_>;

    /// The seed with which keys of items are hashed.
    fn seed(&self) -> &HashSeed;

    /// Statistics of the items.
    fn statistics(&self) -> Statistics;

    /// As [`Store::sample_buckets`], of the items.
    fn sample_buckets(&self, statistics: &mut Statistics);

    /// Bytes of items' values that answers keep in memory, as [`Store::pinned_bytes`].
    ///
    /// [`Store::pinned_bytes`]: amalgam_index::Store::pinned_bytes
    fn pinned_bytes(&self) -> usize;

    /// Changes the memory of the items, in bytes.
    fn set_memory_limit(&self, bytes: usize);

    /// Keeps a part of the memory for what other members leave behind, if the node takes over from
    /// them, and returns the use of the memory. Call it about once a second, with the time in
    /// milliseconds and the number of members.
    fn keep_reserve(&self, now_ms: u64, members: usize) -> NodeMemory;

    /// Grows tables and moves pages of one engine until `stop` is set and
    /// [`NodeEngines::wake_maintenance`] is called. One thread for each engine should.
    fn run_maintenance(&self, part: Part, now: &dyn Fn() -> Now, stop: &AtomicBool);

    /// Wakes the threads in [`NodeEngines::run_maintenance`].
    fn wake_maintenance(&self);

    /// Removes every item that is dead when the sweep begins: a read that finds one does.
    fn sweep(&self, now: &dyn Fn() -> Now);
}

/// One thread's access to the items of a node; each method is as that of [`Worker`].
pub trait ItemWorker {
    /// As [`Worker::get_batch`].
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut dyn Sink) -> usize;

    /// As [`Worker::apply`].
    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut dyn Sink) -> Outcome;

    /// As [`Worker::prefetch`].
    fn prefetch(&self, key: &Key<'_>);

    /// As [`Worker::scan`].
    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor>;

    /// As [`Worker::quiesce`].
    fn quiesce(&mut self);

    /// As [`Worker::rest`].
    fn rest(&mut self) -> bool;

    /// As [`Worker::has_much_retired`].
    fn has_much_retired(&self) -> bool;
}

/// Any sink, as an engine's worker takes it.
struct AnySink<'s>(&'s mut dyn Sink);

impl Sink for AnySink<'_> {
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.0.hit(position, found)
    }

    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        self.0.miss(position)
    }

    fn dead(&mut self, position: usize, is_flushed: bool) -> ControlFlow<()> {
        self.0.dead(position, is_flushed)
    }
}

impl<W: Worker> ItemWorker for W {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut dyn Sink) -> usize {
        Worker::get_batch(self, keys, now, &mut AnySink(sink))
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut dyn Sink) -> Outcome {
        Worker::apply(self, op, now, &mut AnySink(sink))
    }

    fn prefetch(&self, key: &Key<'_>) {
        Worker::prefetch(self, key);
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        Worker::scan(self, from, budget, visit)
    }

    fn quiesce(&mut self) {
        Worker::quiesce(self);
    }

    fn rest(&mut self) -> bool {
        Worker::rest(self)
    }

    fn has_much_retired(&self) -> bool {
        Worker::has_much_retired(self)
    }
}

/// Two engines of one kind.
pub struct Engines<E> {
    items: E,
    chunks: E,
    evicts: bool,
    reserves: Mutex<Reserves>,
}

/// The memory of each engine that is kept for what other nodes hand over.
struct Reserves {
    items: Reserve,
    chunks: Reserve,
}

impl<E: Engine> Engines<E> {
    /// Engines of items and of chunks with their memory in bytes. If the node `takes_over` what
    /// dead nodes had, a part of it is kept for that, except where items make way for others.
    pub fn new(items: (E, usize), chunks: (E, usize), takes_over: bool, evicts: bool) -> Self {
        if takes_over && evicts {
            items.0.evictions().inspect(|evictions| evictions.watch(EVICTIONS_MAX));
        }
        let item_reserve = Reserve::new(items.1, takes_over && !evicts);
        let reserves = Reserves { items: item_reserve, chunks: Reserve::new(chunks.1, takes_over) };
        Self { items: items.0, chunks: chunks.0, evicts, reserves: Mutex::new(reserves) }
    }

    /// Changes the reserves, and sets the engines' limits by them. Returns the use of the memory of
    /// items and of chunks.
    fn set_reserves(&self, change: impl Fn(&mut Reserve)) -> [MemoryUse; 2] {
        let mut reserves = self.reserves.lock().ignore_poison();
        let Reserves { items, chunks } = &mut *reserves;
        [(items, &self.items), (chunks, &self.chunks)].map(|(reserve, engine)| {
            change(reserve);
            let memory = engine.statistics().memory;
            engine.set_memory_limit(reserve.limit(memory.used as usize));
            let (fillable, limit) = reserve.memory();
            // Pages stay with an engine that does not evict; what is free in them can be filled.
            let free = memory.losses.free_slots + memory.free_pages * memory.page_bytes;
            let used = memory.used.saturating_sub(free);
            MemoryUse { used, fillable: fillable as u64, limit: limit as u64 }
        })
    }
}

impl<E> fmt::Debug for Engines<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Engines")
    }
}

impl<E: Engine> StoreHost for &Engines<E> {
    fn use_reserve(&self, does: bool) {
        self.set_reserves(|reserve| reserve.open(does));
    }

    fn take_evicted(&self) -> Vec<Vec<u8>> {
        let evicted = self.items.evictions().map(Evictions::take).unwrap_or_default();
        evicted.into_iter().map(|item| item.key).collect()
    }
}

impl<E: Engine> NodeEngines for Engines<E> {
    fn store(&self, clock: ItemClock) -> Box<dyn ChunkStore + '_> {
        Box::new(ItemStore::new(&self.chunks, &self.items, clock).with_host(self))
    }

    fn item_worker(&self) -> Box<dyn ItemWorker + '_> {
        Box::new(self.items.worker())
    }

    fn seed(&self) -> &HashSeed {
        self.items.seed()
    }

    fn statistics(&self) -> Statistics {
        self.items.statistics()
    }

    fn sample_buckets(&self, statistics: &mut Statistics) {
        self.items.sample_buckets(statistics);
    }

    fn pinned_bytes(&self) -> usize {
        self.items.pinned_bytes()
    }

    fn set_memory_limit(&self, bytes: usize) {
        let mut reserves = self.reserves.lock().ignore_poison();
        reserves.items.set_memory(bytes);
        let used = self.items.statistics().memory.used as usize;
        self.items.set_memory_limit(reserves.items.limit(used));
    }

    fn keep_reserve(&self, now_ms: u64, members: usize) -> NodeMemory {
        let [items, chunks] = self.set_reserves(|reserve| reserve.saw_members(now_ms, members));
        NodeMemory { items, chunks, evicts: self.evicts }
    }

    fn run_maintenance(&self, part: Part, now: &dyn Fn() -> Now, stop: &AtomicBool) {
        let engine = match part {
            Part::Items => &self.items,
            Part::Chunks => &self.chunks,
        };
        maintenance::run(engine, now, stop);
    }

    fn wake_maintenance(&self) {
        self.items.maintenance_signal().raise();
        self.chunks.maintenance_signal().raise();
    }

    fn sweep(&self, now: &dyn Fn() -> Now) {
        let mut worker = self.items.worker();
        let mut dead: Vec<Vec<u8>> = Vec::new();
        let mut cursor = Some(Cursor::START);
        let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
        while let Some(from) = cursor {
            let now = now();
            cursor = Worker::scan(&mut worker, from, SWEEP_BUCKETS, &mut |item| {
                if !now.is_live(item.expiry, item.generation) {
                    dead.push(item.key.to_vec());
                }
                ControlFlow::Continue(())
            });
            for key in dead.drain(..) {
                let key = Key::new(&key, self.items.seed());
                Worker::apply(&mut worker, &Op { key, verb }, &now, &mut NullSink);
            }
            Worker::quiesce(&mut worker);
        }
    }
}
