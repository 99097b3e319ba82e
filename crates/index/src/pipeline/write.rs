//! Operations that may change an item.
//!
//! An operation looks, decides and fills its item without a lock; then it takes the bucket's lock,
//! makes sure that what it saw is still there, and changes the slot; else it starts over. So
//! neither allocation nor eviction happens under a lock. A repetition means that another operation
//! on the key took effect in between.
//!
//! Every change of a bucket gives up its expired slots first, as the hardware's write unit does.

use amalgam_op::{Decision, ItemView, ItemWrite, Now, Op, Outcome, Value, decide};

use super::compare::Compare;
use super::layout::{Locator, Terms};
use super::slots::Held;
use super::worker::{PipelineWorker, Sought};
use crate::mem::{Attempt, Guard, Item, ItemLayout, ItemRef, Slot, Writer};
use crate::sync::Ordering;
use crate::{Sink, show_outcome};

/// The most slots of a bucket.
const MAX_SLOTS: usize = 16;

/// An operation under way.
struct Writing<'a, 'k> {
    op: &'a Op<'k>,
    sought: Sought,
    now: &'a Now,
    /// Memory for the item to be written.
    slot: &'a mut Option<Slot>,
}

/// The item that a write found, and where.
struct Seen<'g> {
    slot: usize,
    locator: Locator,
    item: Item<'g>,
    view: ItemView<'g>,
}

/// Items that left their slots under a lock, to be retired without it.
struct Unlinked {
    locators: [Locator; MAX_SLOTS],
    count: usize,
}

impl Unlinked {
    const fn new() -> Self {
        Self { locators: [Locator::FREE; MAX_SLOTS], count: 0 }
    }

    fn push(&mut self, locator: Locator) {
        self.locators[self.count] = locator;
        self.count += 1;
    }
}

impl<'i, const SLOTS: usize> PipelineWorker<'i, SLOTS> {
    /// See [`crate::Worker::apply`].
    pub(super) fn carry_out<C: Compare>(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> Outcome {
        let sought = self.store.sought(&op.key);
        self.until_done(now, |worker, slot| {
            worker.attempt::<C>(Writing { op, sought, now, slot }, sink)
        })
    }

    /// The item of the key, dead or alive.
    fn see<'g, C: Compare>(
        &self,
        writing: &Writing<'_, '_>,
        guard: &'g Guard<'_>,
    ) -> Option<Seen<'g>>
    where
        'i: 'g,
    {
        let store = self.store;
        let key = writing.op.key.bytes();
        let is_wanted = |locator| store.item(locator, guard).has_key(key);
        let Sought { pattern, bucket } = &writing.sought;
        let (slot, locator) = store.slots.find::<C>(*bucket, pattern, is_wanted)?;
        let item = store.item(locator, guard);
        Some(Seen { slot, locator, item, view: item.view() })
    }

    fn attempt<C: Compare>(
        &mut self,
        mut writing: Writing<'_, '_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let guard = self.pool.pin();
        let seen = self.see::<C>(&writing, &guard);
        let current = seen.as_ref().map(|seen| &seen.view);
        match decide(current, writing.op, writing.now, self.pool.fresh_cas(writing.op, current)) {
            Decision::Keep(outcome) => {
                if let Some(seen) = &seen {
                    show_outcome(
                        writing.op,
                        &seen.item,
                        seen.view,
                        outcome,
                        writing.now,
                        &self.store.memory,
                        sink,
                    );
                }
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => match seen {
                Some(seen) => self.remove(&writing, &seen, outcome),
                None => Attempt::Done(outcome),
            },
            Decision::Replace(item_write, outcome) => match seen {
                Some(seen) => match item_write.sole_word_change(&seen.view, writing.now) {
                    Some(word) => self.change(&writing, &seen, &item_write, word, outcome, sink),
                    None => self.replace(&mut writing, &seen, &item_write, outcome, &guard, sink),
                },
                None => self.insert::<C>(&mut writing, &item_write, outcome, &guard, sink),
            },
        }
    }

    /// Takes the bucket's lock if the slot still has the locator that was read, and frees the
    /// bucket's expired slots.
    fn hold(
        &self,
        writing: &Writing<'_, '_>,
        seen: &Seen<'_>,
        unlinked: &mut Unlinked,
    ) -> Option<Held<'i, SLOTS>> {
        let held = self.store.slots.lock(writing.sought.bucket);
        if held.locator(seen.slot) != seen.locator {
            return None;
        }
        held.reclaim(writing.now.seconds, Some(seen.slot), |locator| unlinked.push(locator));
        Some(held)
    }

    /// Retires what had to leave its slot. The caller gave the lock back.
    #[inline]
    fn retire_all(&mut self, unlinked: &Unlinked, now: &Now) {
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

    fn remove(&mut self, writing: &Writing<'_, '_>, seen: &Seen<'_>, outcome: Outcome) -> Attempt {
        let mut expired = Unlinked::new();
        let Some(held) = self.hold(writing, seen, &mut expired) else { return Attempt::Again };
        held.give_up(seen.slot);
        drop(held);
        // SAFETY: we took it out of its only slot.
        unsafe { self.pool.retire(seen.item.reference()) };
        self.pool.note_if_dead(writing.now, &seen.view);
        self.retire_all(&expired, writing.now);
        Attempt::Done(outcome)
    }

    /// Changes an item's word in place.
    fn change(
        &mut self,
        writing: &Writing<'_, '_>,
        seen: &Seen<'_>,
        item_write: &ItemWrite<'_>,
        word: [u8; 8],
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt {
        let mut expired = Unlinked::new();
        let held = self.hold(writing, seen, &mut expired);
        let is_done = held.is_some() && is_same(seen, writing.op, item_write);
        if is_done {
            seen.item.change_word(word, item_write.meta_flags.fetched);
        }
        drop(held);
        self.retire_all(&expired, writing.now);
        if !is_done {
            return Attempt::Again;
        }
        let changed = ItemView { value: Value::Word(word, seen.view.value.len()), ..seen.view };
        show_outcome(
            writing.op,
            &seen.item,
            changed,
            outcome,
            writing.now,
            &self.store.memory,
            sink,
        );
        Attempt::Done(outcome)
    }

    /// Puts another item in the place of the one that was seen.
    fn replace(
        &mut self,
        writing: &mut Writing<'_, '_>,
        seen: &Seen<'_>,
        item_write: &ItemWrite<'_>,
        outcome: Outcome,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let (new, locator) = match self.write(writing, item_write, seen.view.value.as_bytes()) {
            Ok(written) => written,
            Err(attempt) => return attempt,
        };
        // The view before the item is published: afterwards others may change its word.
        let new_item = self.store.item(locator, guard);
        let shown = new_item.view();
        let mut expired = Unlinked::new();
        let held = self.hold(writing, seen, &mut expired);
        let is_done = held.is_some() && is_same(seen, writing.op, item_write);
        if let (Some(held), true) = (&held, is_done) {
            held.overwrite(seen.slot, locator, Terms::new(item_write.expiry, shown.value.len()));
        }
        drop(held);
        self.retire_all(&expired, writing.now);
        // SAFETY: the old one left its only slot, or the new one never had one.
        unsafe { self.pool.retire(if is_done { seen.item.reference() } else { new }) };
        if !is_done {
            return Attempt::Again;
        }
        self.pool.note_if_dead(writing.now, &seen.view);
        show_outcome(writing.op, &new_item, shown, outcome, writing.now, &self.store.memory, sink);
        Attempt::Done(outcome)
    }

    fn insert<C: Compare>(
        &mut self,
        writing: &mut Writing<'_, '_>,
        item_write: &ItemWrite<'_>,
        outcome: Outcome,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let (new, locator) = match self.write(writing, item_write, &[]) {
            Ok(written) => written,
            Err(attempt) => return attempt,
        };
        let store = self.store;
        let new_item = store.item(locator, guard);
        let shown = new_item.view();
        let Sought { pattern, bucket } = &writing.sought;
        let key = writing.op.key.bytes();
        let held = store.slots.lock(*bucket);
        let is_same_key = |locator| store.item(locator, guard).has_key(key);
        if store.slots.find::<C>(*bucket, pattern, is_same_key).is_some() {
            drop(held);
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        let mut unlinked = Unlinked::new();
        held.reclaim(writing.now.seconds, None, |locator| unlinked.push(locator));
        let slot = self.make_slot(&held, writing, guard, &mut unlinked);
        if let Some(slot) = slot {
            let terms = Terms::new(item_write.expiry, shown.value.len());
            held.take(slot, pattern, locator, terms);
        }
        drop(held);
        self.retire_all(&unlinked, writing.now);
        if slot.is_none() {
            store.refused.fetch_add(1, Ordering::Relaxed);
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Done(Outcome::OutOfMemory);
        }
        show_outcome(writing.op, &new_item, shown, outcome, writing.now, &self.store.memory, sink);
        Attempt::Done(outcome)
    }

    /// A free slot: the lowest there is, or one whose item a flush killed, or, where that is
    /// allowed, the one that the new key's check byte points at, whose item is evicted.
    fn make_slot(
        &self,
        held: &Held<'_, SLOTS>,
        writing: &Writing<'_, '_>,
        guard: &Guard<'_>,
        unlinked: &mut Unlinked,
    ) -> Option<usize> {
        if let Some(slot) = held.free_slot() {
            return Some(slot);
        }
        let is_dead = |(_, locator): &(usize, Locator)| {
            let item = self.store.item(*locator, guard);
            let header = item.header();
            !writing.now.is_live(item.expiry_of(header), header.generation())
        };
        if let Some((slot, locator)) = held.taken().find(is_dead) {
            held.give_up(slot);
            unlinked.push(locator);
            return Some(slot);
        }
        if !self.store.evicts {
            return None;
        }
        let slot = writing.sought.pattern.check() % SLOTS;
        unlinked.push(held.locator(slot));
        held.give_up(slot);
        Some(slot)
    }

    /// Writes an item into the memory at hand, if its layout is right.
    fn write(
        &mut self,
        writing: &mut Writing<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: &[u8],
    ) -> Result<(ItemRef, Locator), Attempt> {
        let key = writing.op.key.bytes();
        let Some(layout) = ItemLayout::new(key.len(), item_write, current.len(), writing.now)
        else {
            return Err(Attempt::Done(Outcome::TooLarge));
        };
        let Some(slot) = writing.slot.take_if(|slot| slot.layout() == layout) else {
            return Err(Attempt::Needs(layout));
        };
        let new = self.pool.fill(slot, key, item_write, current);
        Ok((new, Locator::new(&writing.sought.pattern, new.to_bits())))
    }
}

/// Whether the item's word is as it was seen, where what is written follows from it. The caller
/// holds the bucket's lock, under which alone words change.
fn is_same(seen: &Seen<'_>, op: &Op<'_>, item_write: &ItemWrite<'_>) -> bool {
    match seen.view.value {
        Value::Word(word, _) if item_write.depends_on_value(op) => {
            seen.item.word().load(Ordering::Relaxed) == u64::from_le_bytes(word)
        }
        _ => true,
    }
}
