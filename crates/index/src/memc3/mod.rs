//! MemC3 (NSDI 2013): optimistic cuckoo hashing. A key's item is named by one of the slots of two
//! buckets; readers look at both without a lock, writers move items between their buckets to make
//! room. `docs/memc3.md` describes the layout and argues why no reader misses a present key.
//!
//! Invariants, beside those of the files:
//! 1. Readers store nothing that is shared but an item's recency and fetched bits.
//! 2. No item is read to move another within a table; growth alone reads keys.
//! 3. A full pair of buckets ends in a path, in growth, in the eviction of one item or in
//!    `OutOfMemory`, within named bounds.

#[cfg(not(loom))]
pub mod occupancy;

mod cuckoo;
mod factors;
mod path;
mod probe;
mod scan;
mod store;
mod stripes;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;
mod worker;

use std::ops::ControlFlow;

use amalgam_op::{HashSeed, ItemView, Key, Now, Op, Outcome};

use crate::maintenance::Signal;
use crate::mem::ItemRef;
use crate::{Configuration, Cursor, Index, OpenError, Sink, Statistics, Worker};
use store::Store;
use worker::StoreWorker;

/// The engine. Buckets of 8 slots unless [`crate::Tuning::slots_per_bucket`] asks for 4.
pub struct Memc3(Shape);

enum Shape {
    Four(Store<4>),
    Eight(Store<8>),
}

/// A worker of [`Memc3`].
pub struct Memc3Worker<'i>(ShapedWorker<'i>);

enum ShapedWorker<'i> {
    Four(StoreWorker<'i, 4>),
    Eight(StoreWorker<'i, 8>),
}

/// Runs an expression on whichever store or worker there is.
macro_rules! each {
    ($kind:ident, $value:expr, $name:ident => $action:expr) => {
        match $value {
            $kind::Four($name) => $action,
            $kind::Eight($name) => $action,
        }
    };
}

impl Index for Memc3 {
    const NAME: &'static str = "memc3";
    type Worker<'i> = Memc3Worker<'i>;

    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        configuration.tuning.check_disabled(factors::FACTORS)?;
        match configuration.tuning.slots_per_bucket {
            None | Some(8) => Store::open(configuration).map(Shape::Eight).map(Self),
            Some(4) => Store::open(configuration).map(Shape::Four).map(Self),
            Some(other) => Err(OpenError::Configuration(format!(
                "memc3 has buckets of 4 or 8 slots, not {other}"
            ))),
        }
    }

    fn worker(&self) -> Memc3Worker<'_> {
        Memc3Worker(match &self.0 {
            Shape::Four(store) => ShapedWorker::Four(StoreWorker::new(store)),
            Shape::Eight(store) => ShapedWorker::Eight(StoreWorker::new(store)),
        })
    }

    fn seed(&self) -> &HashSeed {
        each!(Shape, &self.0, store => store.memory.seed())
    }

    fn evictions(&self) -> Option<&crate::mem::Evictions> {
        each!(Shape, &self.0, store => Some(store.memory.evictions()))
    }

    fn statistics(&self) -> Statistics {
        each!(Shape, &self.0, store => store.statistics())
    }

    fn maintenance(&self) -> &Signal {
        each!(Shape, &self.0, store => &store.signal)
    }

    fn set_memory_limit(&self, bytes: usize) {
        each!(Shape, &self.0, store => store.memory.set_limit(bytes));
    }
}

impl Worker for Memc3Worker<'_> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        each!(ShapedWorker, &mut self.0, worker => worker.get_batch(keys, now, sink))
    }

    #[inline]
    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        each!(ShapedWorker, &mut self.0, worker => worker.apply(op, now, sink))
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        each!(ShapedWorker, &self.0, worker => worker.prefetch(key));
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        each!(ShapedWorker, &mut self.0, worker => worker.scan(from, budget, visit))
    }

    fn swap_exact(&mut self, hash: u64, old: ItemRef, new: Option<ItemRef>) -> bool {
        each!(ShapedWorker, &mut self.0, worker => worker.swap_exact(hash, old, new))
    }

    #[inline]
    fn quiesce(&mut self) {
        each!(ShapedWorker, &mut self.0, worker => worker.quiesce());
    }

    fn step(&mut self, now: &Now) -> bool {
        each!(ShapedWorker, &mut self.0, worker => worker.step(now))
    }
}
