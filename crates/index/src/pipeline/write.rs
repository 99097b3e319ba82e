//! Operations that may change an item.
//!
//! An operation looks its key up, decides and fills its item without a lock. Then it takes the
//! bucket's lock, checks that the slot is unchanged, and changes it; if the slot has changed, it
//! starts over. So neither allocation nor eviction happens under a lock, and each retry means that
//! another operation on the bucket's slot took effect in between.
//!
//! Every change of a bucket gives up its expired slots first, as the hardware's write unit does.

use amalgam_op::{Decision, ItemView, ItemWrite, Now, Op, Outcome, Value, decide};

use super::compare::Compare;
use super::layout::{Locator, Terms};
use super::slots::LockedBucket;
use super::worker::{KeyProbe, PipelineWorker};
use crate::mem::{Attempt, Guard, Item, ItemLayout, ItemRef, Slot, Writer};
use crate::sync::Ordering;
use crate::{Sink, show_outcome};

/// The largest number of slots in a bucket.
const MAX_SLOTS: usize = 16;

/// The inputs of a write that is under way.
struct PendingWrite<'a, 'k> {
    op: &'a Op<'k>,
    probe: KeyProbe,
    now: &'a Now,
    /// A reserved slot of memory for the new item, if there is one.
    slot: &'a mut Option<Slot>,
}

/// The item that a write found, and its slot in the bucket.
struct SlotMatch<'g> {
    slot: usize,
    locator: Locator,
    item: Item<'g>,
    view: ItemView<'g>,
}

/// Items that left their slots under a lock, to be retired without it.
pub(super) struct Unlinked {
    locators: [Locator; MAX_SLOTS],
    count: usize,
}

impl Unlinked {
    pub(super) const fn new() -> Self {
        Self { locators: [Locator::FREE; MAX_SLOTS], count: 0 }
    }

    pub(super) fn push(&mut self, locator: Locator) {
        self.locators[self.count] = locator;
        self.count += 1;
    }
}

impl<'i, const SLOTS: usize> PipelineWorker<'i, SLOTS> {
    /// Carries out any operation.
    #[inline(never)]
    pub(super) fn execute<C: Compare>(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> Outcome {
        let probe = self.store.probe(&op.key);
        self.until_done(op, now, |worker, slot| {
            worker.attempt::<C>(PendingWrite { op, probe, now, slot }, sink)
        })
    }

    /// Finds the item of the key, dead or alive.
    fn find_match<'g, C: Compare>(
        &self,
        pending: &PendingWrite<'_, '_>,
        guard: &'g Guard<'_>,
    ) -> Option<SlotMatch<'g>>
    where
        'i: 'g,
    {
        let store = self.store;
        let key = pending.op.key.bytes();
        let is_wanted = |locator| store.item(locator, guard).has_key(key);
        let KeyProbe { pattern, bucket } = &pending.probe;
        let (slot, locator) = store.slots.find::<C>(*bucket, pattern, is_wanted)?;
        let item = store.item(locator, guard);
        Some(SlotMatch { slot, locator, item, view: item.view() })
    }

    fn attempt<C: Compare>(
        &mut self,
        mut pending: PendingWrite<'_, '_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let guard = self.pool.pin();
        let matched = self.find_match::<C>(&pending, &guard);
        let current = matched.as_ref().map(|matched| &matched.view);
        match decide(current, pending.op, pending.now, self.pool.fresh_cas(pending.op, current)) {
            Decision::Keep(outcome) => {
                if let Some(matched) = &matched {
                    show_outcome(
                        pending.op,
                        &matched.item,
                        matched.view,
                        outcome,
                        pending.now,
                        &self.store.memory,
                        sink,
                    );
                }
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => match matched {
                Some(matched) => self.remove(&pending, &matched, outcome),
                None => Attempt::Done(outcome),
            },
            Decision::Replace(item_write, outcome) => match matched {
                Some(matched) => match item_write.sole_word_change(&matched.view, pending.now) {
                    Some(word) => self.change(&pending, &matched, &item_write, word, outcome, sink),
                    None => {
                        self.replace(&mut pending, &matched, &item_write, outcome, &guard, sink)
                    }
                },
                None => self.insert::<C>(&mut pending, &item_write, outcome, &guard, sink),
            },
        }
    }

    /// Takes the bucket's lock if the slot still has the locator that was read, and frees the
    /// bucket's expired slots.
    fn lock_if_unchanged(
        &self,
        pending: &PendingWrite<'_, '_>,
        matched: &SlotMatch<'_>,
        unlinked: &mut Unlinked,
    ) -> Option<LockedBucket<'i, SLOTS>> {
        let locked = self.store.slots.lock(pending.probe.bucket);
        if locked.locator(matched.slot) != matched.locator {
            return None;
        }
        locked.reclaim(pending.now.seconds, Some(matched.slot), |locator| unlinked.push(locator));
        Some(locked)
    }

    /// Retires items that were taken out of their slots. Requires: the caller has released the
    /// lock.
    #[inline]
    pub(super) fn retire_all(&mut self, unlinked: &Unlinked, now: &Now) {
        if unlinked.count == 0 {
            return;
        }
        let guard = self.pool.pin();
        for locator in &unlinked.locators[..unlinked.count] {
            let item = self.store.item(*locator, &guard);
            // SAFETY: we took it out of its only slot.
            unsafe { self.pool.evict(&item, now) };
        }
    }

    fn remove(
        &mut self,
        pending: &PendingWrite<'_, '_>,
        matched: &SlotMatch<'_>,
        outcome: Outcome,
    ) -> Attempt {
        let mut expired = Unlinked::new();
        let Some(locked) = self.lock_if_unchanged(pending, matched, &mut expired) else {
            return Attempt::Again;
        };
        locked.give_up(matched.slot);
        drop(locked);
        // SAFETY: we took it out of its only slot.
        unsafe { self.pool.retire(matched.item.reference()) };
        self.pool.note_if_dead(pending.now, &matched.view);
        self.retire_all(&expired, pending.now);
        Attempt::Done(outcome)
    }

    /// Changes an item's word in place.
    fn change(
        &mut self,
        pending: &PendingWrite<'_, '_>,
        matched: &SlotMatch<'_>,
        item_write: &ItemWrite<'_>,
        word: [u8; 8],
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt {
        let mut expired = Unlinked::new();
        let locked = self.lock_if_unchanged(pending, matched, &mut expired);
        let is_done = locked.is_some() && is_same(matched, pending.op, item_write);
        if is_done {
            matched.item.change_word(word, item_write.meta_flags.fetched);
        }
        drop(locked);
        self.retire_all(&expired, pending.now);
        if !is_done {
            return Attempt::Again;
        }
        let changed =
            ItemView { value: Value::Word(word, matched.view.value.len()), ..matched.view };
        show_outcome(
            pending.op,
            &matched.item,
            changed,
            outcome,
            pending.now,
            &self.store.memory,
            sink,
        );
        Attempt::Done(outcome)
    }

    /// Replaces the item that was found by a new one.
    fn replace(
        &mut self,
        pending: &mut PendingWrite<'_, '_>,
        matched: &SlotMatch<'_>,
        item_write: &ItemWrite<'_>,
        outcome: Outcome,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let (new, locator) = match self.write(pending, item_write, matched.view.value.as_bytes()) {
            Ok(written) => written,
            Err(attempt) => return attempt,
        };
        // The view is taken before the item is published: afterwards other threads may change its
        // word.
        let new_item = self.store.item(locator, guard);
        let shown = new_item.view();
        let mut expired = Unlinked::new();
        let locked = self.lock_if_unchanged(pending, matched, &mut expired);
        let is_done = locked.is_some() && is_same(matched, pending.op, item_write);
        if let (Some(locked), true) = (&locked, is_done) {
            locked.overwrite(
                matched.slot,
                locator,
                Terms::new(item_write.expiry, shown.value.len()),
            );
        }
        drop(locked);
        self.retire_all(&expired, pending.now);
        // SAFETY: the old item left its only slot, or the new one never had a slot.
        unsafe { self.pool.retire(if is_done { matched.item.reference() } else { new }) };
        if !is_done {
            return Attempt::Again;
        }
        self.pool.note_if_dead(pending.now, &matched.view);
        show_outcome(pending.op, &new_item, shown, outcome, pending.now, &self.store.memory, sink);
        Attempt::Done(outcome)
    }

    fn insert<C: Compare>(
        &mut self,
        pending: &mut PendingWrite<'_, '_>,
        item_write: &ItemWrite<'_>,
        outcome: Outcome,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let (new, locator) = match self.write(pending, item_write, &[]) {
            Ok(written) => written,
            Err(attempt) => return attempt,
        };
        let store = self.store;
        let new_item = store.item(locator, guard);
        let shown = new_item.view();
        let KeyProbe { pattern, bucket } = &pending.probe;
        let key = pending.op.key.bytes();
        let locked = store.slots.lock(*bucket);
        let is_same_key = |locator| store.item(locator, guard).has_key(key);
        if store.slots.find::<C>(*bucket, pattern, is_same_key).is_some() {
            drop(locked);
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        let mut unlinked = Unlinked::new();
        locked.reclaim(pending.now.seconds, None, |locator| unlinked.push(locator));
        let slot = self.make_slot(&locked, pending, guard, &mut unlinked);
        if let Some(slot) = slot {
            let terms = Terms::new(item_write.expiry, shown.value.len());
            locked.take(slot, pattern, locator, terms);
        }
        drop(locked);
        self.retire_all(&unlinked, pending.now);
        if slot.is_none() {
            store.refused.fetch_add(1, Ordering::Relaxed);
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Done(Outcome::OutOfMemory);
        }
        show_outcome(pending.op, &new_item, shown, outcome, pending.now, &self.store.memory, sink);
        Attempt::Done(outcome)
    }

    /// Finds or makes a free slot: the lowest free one; else one whose item is dead (flushed);
    /// else, if the index evicts, the slot that the new key's check byte selects, whose item is
    /// evicted.
    fn make_slot(
        &self,
        locked: &LockedBucket<'_, SLOTS>,
        pending: &PendingWrite<'_, '_>,
        guard: &Guard<'_>,
        unlinked: &mut Unlinked,
    ) -> Option<usize> {
        if let Some(slot) = locked.free_slot() {
            return Some(slot);
        }
        let is_dead = |(_, locator): &(usize, Locator)| {
            let item = self.store.item(*locator, guard);
            let header = item.header();
            !pending.now.is_live(item.expiry_of(header), header.generation())
        };
        if let Some((slot, locator)) = locked.taken().find(is_dead) {
            locked.give_up(slot);
            unlinked.push(locator);
            return Some(slot);
        }
        if !self.store.evicts {
            return None;
        }
        let slot = pending.probe.pattern.check() % SLOTS;
        unlinked.push(locked.locator(slot));
        locked.give_up(slot);
        Some(slot)
    }

    /// Writes the new item, unpublished, if the reserved slot has its layout.
    fn write(
        &mut self,
        pending: &mut PendingWrite<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: &[u8],
    ) -> Result<(ItemRef, Locator), Attempt> {
        let key = pending.op.key.bytes();
        let Some(layout) = ItemLayout::new(key.len(), item_write, current.len(), pending.now)
        else {
            return Err(Attempt::Done(Outcome::TooLarge));
        };
        let Some(slot) = pending.slot.take_if(|slot| slot.layout() == layout) else {
            return Err(Attempt::Needs(layout));
        };
        let new = self.pool.fill(slot, key, item_write, current);
        Ok((new, Locator::new(&pending.probe.pattern, new.to_bits())))
    }
}

/// Whether the item's word is unchanged, if the write depends on it. Requires: the caller holds the
/// bucket's lock, without which no word changes.
fn is_same(matched: &SlotMatch<'_>, op: &Op<'_>, item_write: &ItemWrite<'_>) -> bool {
    match matched.view.value {
        Value::Word(word, _) if item_write.depends_on_value(op) => {
            matched.item.word().load(Ordering::Relaxed) == u64::from_le_bytes(word)
        }
        _ => true,
    }
}
