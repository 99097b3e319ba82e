//! The implementation of the crate's engine traits: opening an index, and methods that need no
//! worker.

use amalgam_op::{HashSeed, Now};

use super::store::Store;
use super::worker::PipelineWorker;
use crate::maintenance::Signal;
use crate::mem::{Evictions, ItemRef};
use crate::{Configuration, Eviction, OpenError, Statistics};

/// The engine with `SLOTS` slots per bucket: 4, 8 or 16.
///
/// Its hash has no secret seed: a client that chooses keys can aim them all at one bucket. The
/// effect is limited to that bucket, whose keys are evicted (or, without eviction, refused); no
/// request becomes slower. If clients may be hostile, choose another engine.
pub struct PipelineEngine<const SLOTS: usize>(Store<SLOTS>);

impl<const SLOTS: usize> crate::Store for PipelineEngine<SLOTS> {
    const NAME: &'static str = "pipeline";
    type Worker<'i> = PipelineWorker<'i, SLOTS>;

    fn worker(&self) -> PipelineWorker<'_, SLOTS> {
        PipelineWorker::new(&self.0)
    }

    fn seed(&self) -> &HashSeed {
        self.0.memory.seed()
    }

    fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    fn sample_buckets(&self, statistics: &mut Statistics) {
        self.0.sample_buckets(statistics);
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.0.memory.set_limit(bytes);
    }

    fn set_eviction(&self, policy: Eviction) {
        self.0.memory.set_eviction(policy);
    }

    fn pinned_bytes(&self) -> usize {
        self.0.memory.pinned_bytes()
    }
}

impl<const SLOTS: usize> crate::Engine for PipelineEngine<SLOTS> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        const { assert!(matches!(SLOTS, 4 | 8 | 16), "a bucket has 4, 8 or 16 slots") };
        Store::open(configuration).map(Self)
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.0.memory.signal
    }

    fn maintain(worker: &mut Self::Worker<'_>, now: &Now) -> bool {
        worker.maintain(now)
    }

    fn evictions(&self) -> Option<&Evictions> {
        Some(self.0.memory.evictions())
    }

    fn compare_exchange_item(
        worker: &mut Self::Worker<'_>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        worker.compare_exchange_item(hash, old, new)
    }
}
