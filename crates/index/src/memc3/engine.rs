//! The engine as the crate's traits want it: opening, and what needs no worker.

use std::marker::PhantomData;

use amalgam_op::{HashSeed, Now};

use super::ablation::Variant;
use super::item_table::ItemTable;
use super::path;
use super::worker::Memc3Worker;
use crate::maintenance::Signal;
use crate::mem::{Evictions, ItemRef};
use crate::{Configuration, Engine, Eviction, OpenError, Statistics, Store};

/// The engine with `SLOTS` slots a bucket, 4 or 8, and the parts that `V` has.
pub struct Memc3Engine<const SLOTS: usize, V> {
    items: ItemTable<SLOTS>,
    variant: PhantomData<V>,
}

impl<const SLOTS: usize, V: Variant> Store for Memc3Engine<SLOTS, V> {
    const NAME: &'static str = "memc3";
    type Worker<'i> = Memc3Worker<'i, SLOTS, V>;

    fn worker(&self) -> Self::Worker<'_> {
        Memc3Worker::new(&self.items)
    }

    fn seed(&self) -> &HashSeed {
        self.items.memory.seed()
    }

    fn statistics(&self) -> Statistics {
        self.items.statistics()
    }

    fn sample_buckets(&self, statistics: &mut Statistics) {
        self.items.sample_buckets(statistics);
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.items.memory.set_limit(bytes);
    }

    fn set_eviction(&self, policy: Eviction) {
        self.items.memory.set_eviction(policy);
    }

    fn pinned_bytes(&self) -> usize {
        self.items.memory.pinned_bytes()
    }
}

impl<const SLOTS: usize, V: Variant> Engine for Memc3Engine<SLOTS, V> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        const { assert!(SLOTS == 4 || SLOTS == 8, "a bucket has 4 or 8 slots") };
        check(configuration)?;
        Ok(Self { items: ItemTable::open(configuration)?, variant: PhantomData })
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.items.memory.signal
    }

    fn maintain(worker: &mut Self::Worker<'_>, now: &Now) -> bool {
        worker.maintain(now)
    }

    fn evictions(&self) -> Option<&Evictions> {
        Some(self.items.memory.evictions())
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

/// Checks the settings that only this engine has.
fn check(configuration: &Configuration) -> Result<(), OpenError> {
    let tuning = &configuration.tuning;
    if let Some(stripes) = tuning.stripes.filter(|stripes| !stripes.is_power_of_two()) {
        return Err(OpenError::Configuration(format!("{stripes} stripes are not a power of two")));
    }
    let limit = path::DISPLACEMENTS_LIMIT;
    match tuning.max_displacements.filter(|displacements| *displacements > limit) {
        None => Ok(()),
        Some(displacements) => Err(OpenError::Configuration(format!(
            "an insert can displace at most {limit} items, not {displacements}"
        ))),
    }
}
