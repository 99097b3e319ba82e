//! The two engines of a node, one for items and one for chunks, behind one object.
//!
//! The cluster's machines and the gateway are compiled once and not once for each engine: the price
//! is a virtual call for an operation on a chunk or an item, which has come over a socket.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use amalgam_cluster::chunks::{ChunkStore, ItemClock, ItemStore};
use amalgam_index::{Cursor, Engine, NullSink, Statistics, Worker, maintenance};
use amalgam_op::{Get, HashSeed, ItemView, Key, Now, Op, Verb};

/// Buckets that a slice of a sweep looks at.
const SWEEP_BUCKETS: usize = 1_024;

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

    /// Registers the calling thread, which is to walk the items.
    fn item_scanner(&self) -> Box<dyn ItemScanner + '_>;

    /// The seed with which keys of items are hashed.
    fn seed(&self) -> &HashSeed;

    /// Statistics of the items.
    fn statistics(&self) -> Statistics;

    /// Changes the memory limit of the items, in bytes.
    fn set_memory_limit(&self, bytes: usize);

    /// Grows tables and moves pages of one engine until `stop` is set and
    /// [`NodeEngines::wake_maintenance`] is called. One thread for each engine should.
    fn run_maintenance(&self, part: Part, now: &dyn Fn() -> Now, stop: &AtomicBool);

    /// Wakes the threads in [`NodeEngines::run_maintenance`].
    fn wake_maintenance(&self);

    /// Removes every item that is dead when the sweep begins: a read that finds one does.
    fn sweep(&self, now: &dyn Fn() -> Now);
}

/// One thread's walk over the items of a node.
pub trait ItemScanner {
    /// As [`Worker::scan`].
    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor>;

    /// As [`Worker::quiesce`].
    fn quiesce(&mut self);
}

impl<W: Worker> ItemScanner for W {
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
}

/// Two engines of one kind.
pub struct Engines<E> {
    /// The engine of items.
    pub items: E,
    /// The engine of chunks.
    pub chunks: E,
}

impl<E> fmt::Debug for Engines<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Engines")
    }
}

impl<E: Engine> NodeEngines for Engines<E> {
    fn store(&self, clock: ItemClock) -> Box<dyn ChunkStore + '_> {
        Box::new(ItemStore::new(&self.chunks, &self.items, clock))
    }

    fn item_scanner(&self) -> Box<dyn ItemScanner + '_> {
        Box::new(self.items.worker())
    }

    fn seed(&self) -> &HashSeed {
        self.items.seed()
    }

    fn statistics(&self) -> Statistics {
        self.items.statistics()
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.items.set_memory_limit(bytes);
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
                worker.apply(&Op { key, verb }, &now, &mut NullSink);
            }
            Worker::quiesce(&mut worker);
        }
    }
}
