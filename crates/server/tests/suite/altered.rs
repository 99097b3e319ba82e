//! `model` with one behaviour changed, for tests of what stands around or behind an engine.

use std::marker::PhantomData;
use std::ops::ControlFlow;

use amalgam_index::maintenance::Signal;
use amalgam_index::mem::ItemRef;
use amalgam_index::model::{Model, ModelWorker};
use amalgam_index::{Configuration, Cursor, Engine, OpenError, Sink, Statistics, Store, Worker};
use amalgam_op::{HashSeed, ItemView, Key, Now, Op, Outcome};

/// What is not as in `model`.
pub trait Alteration: Send + Sync + 'static {
    /// See [`Store::NAME`].
    const NAME: &'static str;
    /// See [`Store::FAILED_SETS_REMOVE`].
    const FAILED_SETS_REMOVE: bool = true;

    /// In place of [`Worker::get_batch`].
    fn get_batch(
        model: &mut ModelWorker<'_>,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        model.get_batch(keys, now, sink)
    }

    /// In place of [`Worker::apply`].
    fn apply(model: &mut ModelWorker<'_>, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        model.apply(op, now, sink)
    }
}

/// `model` with an alteration.
pub struct Altered<A>(Model, PhantomData<A>);

/// One thread's access to it.
pub struct AlteredWorker<'i, A>(ModelWorker<'i>, PhantomData<A>);

impl<A: Alteration> Store for Altered<A> {
    const NAME: &'static str = A::NAME;
    const FAILED_SETS_REMOVE: bool = A::FAILED_SETS_REMOVE;
    type Worker<'i> = AlteredWorker<'i, A>;

    fn worker(&self) -> AlteredWorker<'_, A> {
        AlteredWorker(self.0.worker(), PhantomData)
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

impl<A: Alteration> Engine for Altered<A> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        Ok(Self(Model::open(configuration)?, PhantomData))
    }

    fn maintenance_signal(&self) -> &Signal {
        self.0.maintenance_signal()
    }

    fn maintain(worker: &mut AlteredWorker<'_, A>, now: &Now) -> bool {
        Model::maintain(&mut worker.0, now)
    }

    fn compare_exchange_item(
        worker: &mut AlteredWorker<'_, A>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        Model::compare_exchange_item(&mut worker.0, hash, old, new)
    }
}

impl<A: Alteration> Worker for AlteredWorker<'_, A> {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        A::get_batch(&mut self.0, keys, now, sink)
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        A::apply(&mut self.0, op, now, sink)
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
