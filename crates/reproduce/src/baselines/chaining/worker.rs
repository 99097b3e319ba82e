//! One thread's access to the chains.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use amalgam_index::mem::{
    Attempt, Guard, HeaderPredictor, Item, ItemLayout, ItemRef, Pool, Shortage, Slot, Writer,
    changes_in_place,
};
use amalgam_index::{Cursor, Sink, Worker, show_outcome};
use amalgam_op::{Decision, ItemView, ItemWrite, Key, Now, Op, Outcome, decide};

use super::{Chaining, exchange};

/// The number of keys whose buckets and first items are prefetched together.
const LANES: usize = 64;

/// A worker of [`Chaining`].
pub struct ChainingWorker<'i, const MEMCMP: bool> {
    pub(super) index: &'i Chaining<MEMCMP>,
    pub(super) pool: Pool<'i>,
    /// The pool that gives guards while `pool` is busy evicting.
    pub(super) pins: Pool<'i>,
    predictor: HeaderPredictor,
}

impl<'i, const MEMCMP: bool> ChainingWorker<'i, MEMCMP> {
    pub(super) fn new(index: &'i Chaining<MEMCMP>) -> Self {
        Self {
            index,
            pool: Pool::new(&index.memory),
            pins: Pool::new(&index.memory),
            predictor: HeaderPredictor::UNTRAINED,
        }
    }

    #[inline]
    fn get(
        &mut self,
        key: &Key<'_>,
        position: usize,
        guard: &Guard<'_>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        let Some(item) = self.index.get(key, guard) else { return sink.miss(position) };
        self.predictor.show(&item, item.header(), position, now, &self.index.memory, sink)
    }

    fn attempt(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        slot: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let index = self.index;
        let guard = self.pool.pin();
        let (hash, key) = (op.key.hash(), op.key.bytes());
        let (head, item) = index.find(hash, &guard, |item| item.has_key(key));
        let Some(item) = item else {
            return match decide(None, op, now, self.pool.fresh_cas(op, None)) {
                Decision::Keep(outcome) | Decision::Remove(outcome) => Attempt::Done(outcome),
                Decision::Replace(item_write, outcome) => {
                    let Some(new) = self.write(op, &item_write, &[], now, slot) else {
                        return self.needs(op, &item_write, 0, now);
                    };
                    self.insert((op, now), head, new, &guard, outcome, sink)
                }
            };
        };
        let (header, word) = item.header_and_word();
        let mut view = item.view_of(header);
        if header.has_word() {
            view.value = amalgam_op::Value::Word(word.to_le_bytes(), header.value_bytes());
        }
        match decide(Some(&view), op, now, self.pool.fresh_cas(op, Some(&view))) {
            Decision::Keep(outcome) => {
                show_outcome(op, &item, view, outcome, now, &index.memory, sink);
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => {
                if !index.replace(hash, &item, None, &guard) {
                    return Attempt::Again;
                }
                // SAFETY: this thread marked the item, and the item left the chain.
                unsafe { self.pool.retire(item.reference()) };
                Attempt::Done(outcome)
            }
            Decision::Replace(item_write, outcome) => {
                let in_place = changes_in_place() && header.has_word() && !header.is_sealed();
                if in_place && let Some(new_word) = item_write.sole_word_change(&view, now) {
                    let word_after = u64::from_le_bytes(new_word);
                    if !item.exchange_word(header, word, word_after, item_write.meta_flags.fetched)
                    {
                        return Attempt::Again;
                    }
                    view.value = amalgam_op::Value::Word(new_word, header.value_bytes());
                    show_outcome(op, &item, view, outcome, now, &index.memory, sink);
                    return Attempt::Done(outcome);
                }
                let old = view.value.as_bytes();
                let Some(layout) = ItemLayout::new(key.len(), &item_write, old.len(), now) else {
                    return Attempt::Done(Outcome::TooLarge);
                };
                if slot.as_ref().is_none_or(|slot| slot.layout() != layout) {
                    return Attempt::Needs(layout);
                }
                // The item is sealed before it is copied, so the copy is final.
                if header.has_word() && !header.is_sealed() && !item.seal(header, word) {
                    return Attempt::Again;
                }
                let Some(new) = self.write(op, &item_write, old, now, slot) else {
                    return Attempt::Needs(layout);
                };
                self.exchange_items((op, now), &item, new, &guard, outcome, sink)
            }
        }
    }

    /// The result of an attempt that needs a slot and has none.
    fn needs(
        &self,
        op: &Op<'_>,
        item_write: &ItemWrite<'_>,
        old_bytes: usize,
        now: &Now,
    ) -> Attempt {
        match ItemLayout::new(op.key.bytes().len(), item_write, old_bytes, now) {
            Some(layout) => Attempt::Needs(layout),
            None => Attempt::Done(Outcome::TooLarge),
        }
    }

    /// Writes an item into the slot, if there is one and it has the right layout.
    fn write(
        &mut self,
        op: &Op<'_>,
        item_write: &ItemWrite<'_>,
        old: &[u8],
        now: &Now,
        slot: &mut Option<Slot>,
    ) -> Option<ItemRef> {
        let layout = ItemLayout::new(op.key.bytes().len(), item_write, old.len(), now)?;
        let slot = slot.take_if(|slot| slot.layout() == layout)?;
        Some(self.pool.fill(slot, op.key.bytes(), item_write, old))
    }

    fn insert(
        &mut self,
        (op, now): (&Op<'_>, &Now),
        head: u64,
        new: ItemRef,
        guard: &Guard<'_>,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt {
        let index = self.index;
        let Some(item) = index.item(new.to_bits(), guard) else { return Attempt::Again };
        // Relaxed: published by the exchange, whose release pairs with the readers' acquire.
        item.link().store(head, Ordering::Relaxed);
        if exchange(index.bucket(op.key.hash()), head, new.to_bits()).is_err() {
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        show_outcome(op, &item, item.view(), outcome, now, &index.memory, sink);
        Attempt::Done(outcome)
    }

    fn exchange_items(
        &mut self,
        (op, now): (&Op<'_>, &Now),
        old: &Item<'_>,
        new: ItemRef,
        guard: &Guard<'_>,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt {
        let index = self.index;
        let Some(item) = index.item(new.to_bits(), guard) else { return Attempt::Again };
        // The view before the item is published: afterwards others may change its word.
        let view = item.view();
        if !index.replace(op.key.hash(), old, Some(&item), guard) {
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        // SAFETY: this thread marked the item, and the item left the chain.
        unsafe { self.pool.retire(old.reference()) };
        show_outcome(op, &item, view, outcome, now, &index.memory, sink);
        Attempt::Done(outcome)
    }
}

impl<'i, const MEMCMP: bool> Writer<'i> for ChainingWorker<'i, MEMCMP> {
    fn pool(&mut self) -> &mut Pool<'i> {
        &mut self.pool
    }

    fn make_room(&mut self, shortage: Shortage, spared: Option<u64>, now: &Now) -> bool {
        let (index, pins) = (self.index, &self.pins);
        let mut swap = |hash, old, new| index.swap(hash, old, new, &pins.pin());
        self.pool.make_room(shortage, spared, now, &mut swap)
    }
}

impl<const MEMCMP: bool> Worker for ChainingWorker<'_, MEMCMP> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        let index = self.index;
        let guard = self.pool.pin();
        if let [key] = keys {
            let _ = self.get(key, 0, &guard, now, sink);
            return 1;
        }
        let mut answered = 0;
        for lanes in keys.chunks(LANES) {
            index.ask_ahead(lanes);
            for key in lanes {
                let flow = self.get(key, answered, &guard, now, sink);
                answered += 1;
                if flow.is_break() {
                    return answered;
                }
            }
        }
        answered
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        self.until_done(op, now, |worker, slot| worker.attempt(op, now, slot, sink))
    }

    fn prefetch(&self, key: &Key<'_>) {
        self.index.table.prefetch(self.index.place_of(key.hash()));
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let index = self.index;
        let end = index.table.len() as u64;
        let last = end.min(from.0.saturating_add(budget.max(1) as u64));
        let guard = self.pool.pin();
        for place in from.0..last {
            let mut next = index.table[place as usize].load(Ordering::Acquire);
            while let Some(item) = index.item(next, &guard) {
                next = item.link().load(Ordering::Acquire);
                if next & super::MARK == 0 && visit(&item.view()).is_break() {
                    return Some(Cursor(place));
                }
            }
        }
        (last < end).then_some(Cursor(last))
    }

    #[inline]
    fn quiesce(&mut self) {
        self.pool.quiesce();
    }

    fn rest(&mut self) -> bool {
        self.quiesce();
        self.pool.rest()
    }
}

impl<const MEMCMP: bool> Chaining<MEMCMP> {
    /// Prefetches the buckets of all keys, then the first item of each.
    fn ask_ahead(&self, keys: &[Key<'_>]) {
        for key in keys {
            self.table.prefetch(self.place_of(key.hash()));
        }
        for key in keys {
            // A hint: nothing is read through the reference, so any ordering will do.
            let head = self.bucket(key.hash()).load(Ordering::Relaxed);
            if let Some(reference) = ItemRef::from_bits(head) {
                self.memory.prefetch_item(reference);
            }
        }
    }
}
