//! The checkers find faults that were planted on purpose.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use amalgam_conformance::{history, threads};
use amalgam_index::maintenance::Signal;
use amalgam_index::mem::ItemRef;
use amalgam_index::model::{Model, ModelWorker};
use amalgam_index::{Configuration, Cursor, Engine, OpenError, Sink, Statistics, Store, Worker};
use amalgam_op::{Delete, HashSeed, ItemView, Key, Now, Op, Outcome, StoreMode, Verb};

/// An append that reads and writes in two steps, and loses what comes between.
const LOSES_APPENDS: u8 = 1;
/// A replacement that removes first, so that readers miss a present key.
const REMOVES_FIRST: u8 = 2;

/// `model` with a fault.
struct Faulty<const FAULT: u8>(Model);

struct FaultyWorker<'i, const FAULT: u8>(ModelWorker<'i>);

impl<const FAULT: u8> Store for Faulty<FAULT> {
    const NAME: &'static str = "faulty";
    type Worker<'i> = FaultyWorker<'i, FAULT>;

    fn worker(&self) -> FaultyWorker<'_, FAULT> {
        FaultyWorker(self.0.worker())
    }

    fn seed(&self) -> &HashSeed {
        self.0.seed()
    }

    fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.0.set_memory_limit(bytes);
    }
}

impl<const FAULT: u8> Engine for Faulty<FAULT> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        Model::open(configuration).map(Self)
    }

    fn maintenance_signal(&self) -> &Signal {
        self.0.maintenance_signal()
    }

    fn maintain(worker: &mut FaultyWorker<'_, FAULT>, now: &Now) -> bool {
        Model::maintain(&mut worker.0, now)
    }

    fn compare_exchange_item(
        worker: &mut FaultyWorker<'_, FAULT>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        Model::compare_exchange_item(&mut worker.0, hash, old, new)
    }
}

impl<const FAULT: u8> FaultyWorker<'_, FAULT> {
    fn value(&mut self, key: Key<'_>, now: &Now) -> Option<Vec<u8>> {
        let mut sink = amalgam_conformance::harness::Recorder::default();
        self.0.get_batch(&[key], now, &mut sink);
        sink.seen.pop().and_then(|(_, item)| item).map(|item| item.value)
    }
}

impl<const FAULT: u8> Worker for FaultyWorker<'_, FAULT> {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        self.0.get_batch(keys, now, sink)
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        match op.verb {
            Verb::Store(store) if store.mode == StoreMode::Append && FAULT == LOSES_APPENDS => {
                let Some(mut value) = self.value(op.key, now) else { return Outcome::NotStored };
                std::thread::yield_now();
                value.extend_from_slice(store.value);
                let verb =
                    Verb::Store(amalgam_op::Store { mode: StoreMode::Set, value: &value, ..store });
                self.0.apply(&Op { verb, ..*op }, now, sink)
            }
            Verb::Store(store) if store.mode == StoreMode::Set && FAULT == REMOVES_FIRST => {
                let verb = Verb::Delete(Delete::default());
                self.0.apply(&Op { verb, ..*op }, now, sink);
                std::thread::yield_now();
                self.0.apply(op, now, sink)
            }
            _ => self.0.apply(op, now, sink),
        }
    }

    fn prefetch(&self, key: &Key<'_>) {
        self.0.prefetch(key);
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        self.0.scan(from, budget, visit)
    }

    fn quiesce(&mut self) {
        self.0.quiesce();
    }
}

/// How often a race may go unnoticed before the checker is at fault.
const ATTEMPTS: usize = 20;

fn finds(check: impl Fn()) -> bool {
    (0..ATTEMPTS).any(|_| catch_unwind(AssertUnwindSafe(&check)).is_err())
}

#[test]
fn lost_appends_are_not_linearizable() {
    assert!(finds(history::linearizable::<Faulty<LOSES_APPENDS>>));
}

#[test]
fn lost_appends_do_not_sum_up() {
    assert!(finds(threads::appends::<Faulty<LOSES_APPENDS>>));
}

#[test]
fn a_removal_before_a_store_is_not_linearizable() {
    assert!(finds(history::linearizable::<Faulty<REMOVES_FIRST>>));
}

#[test]
fn a_removal_before_a_store_misses_present_keys() {
    assert!(finds(threads::present_keys_are_found::<Faulty<REMOVES_FIRST>>));
}
