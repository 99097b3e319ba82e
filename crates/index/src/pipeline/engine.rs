//! The index and its workers, for each number of slots a bucket may have.

use std::ops::ControlFlow;

use amalgam_op::{HashSeed, ItemView, Key, Now, Op, Outcome};

use super::store::Store;
use super::worker::StoreWorker;
use crate::maintenance::Signal;
use crate::mem::ItemRef;
use crate::{Configuration, Cursor, Index, OpenError, Sink, Statistics, Worker};

/// The engine. Buckets of 8 slots unless [`crate::Tuning::slots_per_bucket`] asks for 4 or 16.
///
/// Its hash has no secret: somebody who can choose keys can choose them for one bucket. What that
/// buys is evicting (or, without eviction, refusing) keys of that bucket; no request becomes
/// slower, nothing else is harmed. Where clients are hostile, choose another engine.
pub struct Pipeline(Shape);

enum Shape {
    Four(Store<4>),
    Eight(Store<8>),
    Sixteen(Store<16>),
}

/// A worker of [`Pipeline`].
pub struct PipelineWorker<'i>(ShapedWorker<'i>);

enum ShapedWorker<'i> {
    Four(StoreWorker<'i, 4>),
    Eight(StoreWorker<'i, 8>),
    Sixteen(StoreWorker<'i, 16>),
}

/// Runs an expression on whichever store or worker there is.
macro_rules! each {
    ($kind:ident, $value:expr, $name:ident => $action:expr) => {
        match $value {
            $kind::Eight($name) => $action,
            $kind::Four($name) => $action,
            $kind::Sixteen($name) => $action,
        }
    };
}

impl Index for Pipeline {
    const NAME: &'static str = "pipeline";
    type Worker<'i> = PipelineWorker<'i>;

    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        configuration.tuning.check_disabled(&[])?;
        Ok(Self(match configuration.tuning.slots_per_bucket {
            None | Some(8) => Shape::Eight(Store::open(configuration)?),
            Some(4) => Shape::Four(Store::open(configuration)?),
            Some(16) => Shape::Sixteen(Store::open(configuration)?),
            Some(other) => {
                return Err(OpenError::Configuration(format!(
                    "pipeline has buckets of 4, 8 or 16 slots, not {other}"
                )));
            }
        }))
    }

    fn worker(&self) -> PipelineWorker<'_> {
        PipelineWorker(match &self.0 {
            Shape::Four(store) => ShapedWorker::Four(StoreWorker::new(store)),
            Shape::Eight(store) => ShapedWorker::Eight(StoreWorker::new(store)),
            Shape::Sixteen(store) => ShapedWorker::Sixteen(StoreWorker::new(store)),
        })
    }

    fn seed(&self) -> &HashSeed {
        each!(Shape, &self.0, store => store.memory.seed())
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

impl Worker for PipelineWorker<'_> {
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
