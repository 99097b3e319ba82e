//! One thread's access to the engine.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use amalgam_op::{ItemView, Key, Now, Op, Outcome};

use super::ablation::Variant;
use super::cuckoo::{BucketPair, View};
use super::item_table::ItemTable;
use super::path::PathFinder;
use super::read::{Reader, Reads};
use crate::engine::apply_each;
use crate::mem::{HeaderPredictor, ItemRef, Pool, Shortage, Swap, Writer};
use crate::simd::each_way;
use crate::{Cursor, Sink, Worker};

/// Hints between the prefetch of a key's buckets and that of its item.
const HINTS_AHEAD: usize = 8;

/// A worker of [`super::Memc3Engine`].
pub struct Memc3Worker<'i, const SLOTS: usize, V> {
    pub(super) pool: Pool<'i>,
    pub(super) paths: PathFinder,
    pub(super) reader: Reader<'i, SLOTS>,
    /// Keys that this worker inserted, modulo 2^32.
    pub(super) inserts: u32,
    /// State of [`super::path::next_random`].
    pub(super) random: u64,
    hints: Hints,
    variant: PhantomData<V>,
}

/// A ring of hashes of keys that will be written soon. Once a key's buckets have had time to
/// arrive, the item that is written over is prefetched as well, so that a run of writes waits for
/// neither.
#[derive(Default)]
struct Hints {
    hashes: [Cell<u64>; HINTS_AHEAD],
    /// Number of hints given. It wraps.
    given: Cell<usize>,
    /// Number of hints whose items were prefetched: at most [`HINTS_AHEAD`] less than `given`.
    followed: Cell<usize>,
}

impl<'i, const SLOTS: usize, V: Variant> Memc3Worker<'i, SLOTS, V> {
    pub(super) fn new(items: &'i ItemTable<SLOTS>) -> Self {
        Self {
            pool: Pool::new(&items.memory),
            paths: items.path_finder(),
            reader: Reader { items, predictor: HeaderPredictor::UNTRAINED },
            inserts: 0,
            random: std::ptr::from_ref(items).addr() as u64 | 1,
            hints: Hints::default(),
            variant: PhantomData,
        }
    }

    /// Prefetches the item of the oldest hint.
    fn follow_hint(&self, view: &View<'_, SLOTS>) {
        let followed = self.hints.followed.get();
        let hash = self.hints.hashes[followed % HINTS_AHEAD].get();
        self.hints.followed.set(followed.wrapping_add(1));
        let pair = BucketPair::of::<SLOTS>(hash);
        let word = each_way!(self.reader.items.probe, P => view.optimistic_probe_word::<P>(&pair));
        self.reader.items.prefetch_item(word, &self.reader.predictor);
    }

    /// Prefetches the items of all hints: the writes that they were given for have begun.
    #[inline]
    pub(super) fn follow_hints(&self, view: &View<'_, SLOTS>) {
        while self.hints.followed.get() != self.hints.given.get() {
            self.follow_hint(view);
        }
    }

    /// Implements [`crate::Engine::maintain`].
    pub(super) fn maintain(&mut self, now: &Now) -> bool {
        let more = self.reader.items.grow_slice(&self.pool);
        self.reader.items.drop_layers(&self.pool);
        self.with_swap(|pool, swap| pool.step(now, swap)) || more
    }

    /// Implements [`crate::Engine::compare_exchange_item`].
    pub(super) fn compare_exchange_item(
        &mut self,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        self.reader.items.swap(hash, old, new, &self.pool.pin())
    }

    /// Lends the pool together with the function that unlinks or exchanges items for it.
    fn with_swap<R>(&mut self, work: impl FnOnce(&mut Pool<'i>, &mut Swap<'_>) -> R) -> R {
        let items = self.reader.items;
        // SAFETY: the pinner is gone when this function returns; the pool lives in `self`.
        let pinner = unsafe { self.pool.pinner() };
        work(&mut self.pool, &mut |hash, old, new| items.swap(hash, old, new, &pinner.pin()))
    }
}

impl<'i, const SLOTS: usize, V: Variant> Writer<'i> for Memc3Worker<'i, SLOTS, V> {
    fn pool(&mut self) -> &mut Pool<'i> {
        &mut self.pool
    }

    fn make_room(&mut self, shortage: Shortage, spared: Option<u64>, now: &Now) -> bool {
        self.with_swap(|pool, swap| pool.make_room(shortage, spared, now, swap))
    }
}

impl<const SLOTS: usize, V: Variant> Worker for Memc3Worker<'_, SLOTS, V> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        let guard = &self.pool.pin();
        let items = self.reader.items;
        let reader = &mut self.reader;
        let view = items.view(guard);
        let reads = Reads { reader, view, guard, now, sink };
        if V::IS_ABLATED {
            return reads.read_ablated::<V>(keys);
        }
        if let [key] = keys {
            each_way!(items.probe, P => reads.read_one::<P>(key));
            return 1;
        }
        each_way!(items.probe, P => reads.read_batch::<P>(keys))
    }

    #[inline]
    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        if !V::IS_ABLATED {
            let set = each_way!(self.reader.items.probe, P => self.set_present::<P>(op, now));
            if let Some(outcome) = set {
                return outcome;
            }
        }
        self.write(op, now, sink)
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
        if V::IS_ABLATED {
            return apply_each(self, ops, now, sink, outcomes);
        }
        each_way!(self.reader.items.probe, P => self.apply_many::<P>(ops, now, sink, outcomes));
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        let guard = self.pool.pin();
        let view = self.reader.items.view(&guard);
        view.prefetch(&BucketPair::of::<SLOTS>(key.hash()));
        let given = self.hints.given.get();
        if given.wrapping_sub(self.hints.followed.get()) == HINTS_AHEAD {
            self.follow_hint(&view);
        }
        self.hints.hashes[given % HINTS_AHEAD].set(key.hash());
        self.hints.given.set(given.wrapping_add(1));
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let guard = self.pool.pin();
        let items = self.reader.items;
        let mut visit_word = |word| visit(&items.item(word, &guard).view());
        items.view(&guard).scan(from, budget, &mut visit_word)
    }

    #[inline]
    fn quiesce(&mut self) {
        self.pool.quiesce();
        self.reader.items.drop_layers(&self.pool);
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
