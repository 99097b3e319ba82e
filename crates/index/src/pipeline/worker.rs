//! The worker: one thread's access to a store.

use std::ops::ControlFlow;

use amalgam_op::{ItemView, Key, Now, Op, Outcome};

use super::layout::{Pattern, SLOT_KEY_BYTES, STRIPE_BYTES};
use super::store::Store;
use crate::mem::{HeaderPredictor, ItemRef, Pool, Shortage, Swap, Writer};
use crate::simd::each_way;
use crate::{Cursor, Sink, Worker};

/// A worker of [`super::PipelineEngine`].
pub struct PipelineWorker<'i, const SLOTS: usize> {
    pub(super) store: &'i Store<SLOTS>,
    pub(super) pool: Pool<'i>,
    pub(super) predictor: HeaderPredictor,
}

impl<'i, const SLOTS: usize> PipelineWorker<'i, SLOTS> {
    pub(super) fn new(store: &'i Store<SLOTS>) -> Self {
        Self { store, pool: Pool::new(&store.memory), predictor: HeaderPredictor::UNTRAINED }
    }

    /// Calls `work` with the pool and a callback that unlinks or replaces items in the slots.
    pub(super) fn with_swap<R>(
        &mut self,
        work: impl FnOnce(&mut Pool<'i>, &mut Swap<'_>) -> R,
    ) -> R {
        let store = self.store;
        // SAFETY: the pinner is gone when this function returns; the pool lives in `self`.
        let pinner = unsafe { self.pool.pinner() };
        work(&mut self.pool, &mut |hash, old, new| store.swap(hash, old, new, &pinner.pin()))
    }
}

impl<'i, const SLOTS: usize> Writer<'i> for PipelineWorker<'i, SLOTS> {
    fn pool(&mut self) -> &mut Pool<'i> {
        &mut self.pool
    }

    fn make_room(&mut self, shortage: Shortage, spared: Option<u64>, now: &Now) -> bool {
        self.with_swap(|pool, swap| pool.make_room(shortage, spared, now, swap))
    }
}

/// The methods of [`crate::Engine`] that take a worker.
impl<const SLOTS: usize> PipelineWorker<'_, SLOTS> {
    /// Implements [`crate::Engine::compare_exchange_item`].
    pub(super) fn compare_exchange_item(
        &mut self,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        self.store.swap(hash, old, new, &self.pool.pin())
    }

    /// Implements [`crate::Engine::maintain`].
    pub(super) fn maintain(&mut self, now: &Now) -> bool {
        self.with_swap(|pool, swap| pool.step(now, swap))
    }
}

impl<const SLOTS: usize> Worker for PipelineWorker<'_, SLOTS> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        if let [key] = keys {
            each_way!(self.store.compare, C => self.get_one::<C>(key, now, sink));
            return 1;
        }
        each_way!(self.store.compare, C => self.get_many::<C>(keys, now, sink))
    }

    #[inline]
    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        each_way!(self.store.compare, C => match self.set_present::<C>(op, now) {
            Some(outcome) => outcome,
            None => self.execute::<C>(op, now, sink),
        })
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
        each_way!(self.store.compare, C => self.apply_many::<C>(ops, now, sink, outcomes));
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        let stripes = key.bytes().len().min(SLOT_KEY_BYTES).div_ceil(STRIPE_BYTES);
        self.store.slots.prefetch(self.store.slots.bucket_of(key.hash()), stripes);
    }

    /// The cursor is the number of a bucket; keys never move.
    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let slots = &self.store.slots;
        let buckets = slots.len() as u64;
        let end = buckets.min(from.0.saturating_add(budget.max(1) as u64));
        for index in from.0..end {
            let guard = self.pool.pin();
            for slot in 0..SLOTS {
                let locator = slots.locator(index as usize, slot);
                if !locator.is_free() && visit(&self.store.item(locator, &guard).view()).is_break()
                {
                    return Some(Cursor(index));
                }
            }
        }
        (end < buckets).then_some(Cursor(end))
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

/// A key's pattern and its bucket.
#[derive(Clone, Copy)]
pub(super) struct KeyProbe {
    pub(super) pattern: Pattern,
    pub(super) bucket: usize,
}

impl<const SLOTS: usize> Store<SLOTS> {
    /// Computes the pattern and the bucket of a key.
    #[inline]
    pub(super) fn probe(&self, key: &Key<'_>) -> KeyProbe {
        let pattern = Pattern::new(key.bytes(), key.hash());
        KeyProbe { pattern, bucket: self.slots.bucket_of(key.hash()) }
    }
}
