//! How writes run. A write finds its item, decides and fills the new item without a lock. Then it
//! exchanges the word that it saw for the new one, under the lock of one stripe, and starts over if
//! the word is gone. Only inserts of new keys lock two stripes, and only they displace other items.

use std::sync::atomic::Ordering;

use amalgam_op::{Decision, ItemView, ItemWrite, Now, Op, Outcome, Value, decide};

use super::ablation::{UntaggedItems, Variant};
use super::cuckoo::{BucketPair, Insertion, SlotSnapshot, View};
use super::item_table::ItemTable;
use super::path::next_random;
use super::word::Word;
use super::worker::Memc3Worker;
use crate::mem::{Attempt, Guard, Item, ItemLayout, ItemRef, Slot, Writer};
use crate::simd::each_way;
use crate::{Sink, show_outcome};

/// Buckets that an insert moves while the table grows: twice as many as it takes to be done before
/// the table could be full again.
const HELP_BUCKETS: usize = 2;
/// Inserts of a worker between two looks at whether the table should grow.
const INSERTS_PER_CHECK: u32 = 256;

/// One attempt of a write: what does not change while it runs.
#[derive(Clone, Copy)]
struct WriteContext<'a, 'k, 'g, const SLOTS: usize> {
    op: &'a Op<'k>,
    pair: BucketPair,
    now: &'a Now,
    view: View<'g, SLOTS>,
    guard: &'g Guard<'g>,
}

/// The item that a write found, dead or alive.
struct FoundItem<'g, const SLOTS: usize> {
    slot: SlotSnapshot<'g, SLOTS>,
    item: Item<'g>,
    view: ItemView<'g>,
}

impl<const SLOTS: usize> ItemTable<SLOTS> {
    /// The item of the write's key, or None. Has one caller.
    #[inline(always)]
    fn find_for_write<'g, V: Variant>(
        &'g self,
        write: &WriteContext<'_, '_, 'g, SLOTS>,
    ) -> Option<FoundItem<'g, SLOTS>> {
        let WriteContext { pair, view, .. } = write;
        let key = write.op.key.bytes();
        let is_wanted = |word| self.item(word, write.guard).has_key(key);
        let slot = if V::IS_ABLATED {
            view.ablated_lookup::<V>(pair, is_wanted)?
        } else {
            match each_way!(self.probe, P => view.optimistic_probe::<P>(pair)) {
                slot if slot.word.tag() == pair.tag && is_wanted(slot.word) => slot,
                _ => view.validated_lookup(pair, is_wanted)?,
            }
        };
        let item = self.item(slot.word, write.guard);
        Some(FoundItem { slot, item, view: item.view() })
    }
}

impl<'i, const SLOTS: usize, V: Variant> Memc3Worker<'i, SLOTS, V> {
    /// Carries out a write, by as many attempts as it takes.
    #[inline(never)]
    pub(super) fn write(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        let pair = BucketPair::of::<SLOTS>(op.key.hash());
        self.until_done(op, now, |worker, reserved| worker.attempt(op, pair, now, reserved, sink))
    }

    /// `reserved` is memory for the new item, if an earlier attempt asked for it.
    fn attempt(
        &mut self,
        op: &Op<'_>,
        pair: BucketPair,
        now: &Now,
        reserved: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let guard = &self.pool.pin();
        let write = WriteContext { op, pair, now, view: self.reader.items.view(guard), guard };
        self.follow_hints(&write.view);
        let found = self.reader.items.find_for_write::<V>(&write);
        let current = found.as_ref().map(|found| &found.view);
        match decide(current, op, now, self.pool.fresh_cas(op, current)) {
            Decision::Keep(outcome) => {
                if let Some(found) = &found {
                    self.show(&write, &found.item, found.view, outcome, sink);
                }
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => match found {
                Some(found) => self.remove(&write, &found, outcome),
                None => Attempt::Done(outcome),
            },
            Decision::Replace(item_write, outcome) => match found {
                Some(found) => self.replace(&write, &found, &item_write, reserved, outcome, sink),
                None => self.insert(&write, &item_write, reserved, outcome, sink),
            },
        }
    }

    fn show<'g>(
        &self,
        write: &WriteContext<'_, '_, 'g, SLOTS>,
        item: &Item<'g>,
        view: ItemView<'g>,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) where
        'i: 'g,
    {
        show_outcome(write.op, item, view, outcome, write.now, &self.reader.items.memory, sink);
    }

    fn remove(
        &mut self,
        write: &WriteContext<'_, '_, '_, SLOTS>,
        found: &FoundItem<'_, SLOTS>,
        outcome: Outcome,
    ) -> Attempt {
        let writer = self.reader.items.lock_writer();
        let is_removed = write.view.exchange(&found.slot, Word::EMPTY, || true);
        drop(writer);
        if !is_removed {
            return Attempt::Again;
        }
        // SAFETY: the exchange took it out of its only slot.
        unsafe { self.pool.retire(found.item.reference()) };
        self.pool.note_if_dead(write.now, &found.view);
        Attempt::Done(outcome)
    }

    fn replace<'g>(
        &mut self,
        write: &WriteContext<'_, '_, 'g, SLOTS>,
        found: &FoundItem<'g, SLOTS>,
        item_write: &ItemWrite<'_>,
        reserved: &mut Option<Slot>,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt
    where
        'i: 'g,
    {
        let item = &found.item;
        // Other writers may change the word until we hold the lock. A item_write that depends on
        // the value needs it to be the one that was read.
        let is_same = || match found.view.value {
            Value::Word(word, _) if item_write.depends_on_value(write.op) => {
                item.word().load(Ordering::Relaxed) == u64::from_le_bytes(word)
            }
            _ => true,
        };
        if let Some(word) = item_write.sole_word_change(&found.view, write.now) {
            let writer = self.reader.items.lock_writer();
            let is_done = write.view.under_lock(&found.slot, || {
                is_same() && {
                    item.change_word(word, item_write.meta_flags.fetched);
                    true
                }
            });
            drop(writer);
            if is_done != Some(true) {
                return Attempt::Again;
            }
            let length = found.view.value.len();
            let changed = ItemView { value: Value::Word(word, length), ..found.view };
            self.show(write, item, changed, outcome, sink);
            return Attempt::Done(outcome);
        }
        let current = found.view.value.as_bytes();
        let new = match self.fill_item(write, item_write, current, reserved) {
            Ok(new) => new,
            Err(attempt) => return attempt,
        };
        let word = Word::new(write.pair.tag, new.to_bits());
        // The view is taken before the item is published: afterwards others may change its word.
        let new_item = self.reader.items.item(word, write.guard);
        let shown = new_item.view();
        let writer = self.reader.items.lock_writer();
        let is_replaced = write.view.exchange(&found.slot, word, is_same);
        drop(writer);
        if !is_replaced {
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        // SAFETY: the exchange took it out of its only slot.
        unsafe { self.pool.retire(item.reference()) };
        self.pool.note_if_dead(write.now, &found.view);
        self.show(write, &new_item, shown, outcome, sink);
        Attempt::Done(outcome)
    }

    fn insert<'g>(
        &mut self,
        write: &WriteContext<'_, '_, 'g, SLOTS>,
        item_write: &ItemWrite<'_>,
        reserved: &mut Option<Slot>,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt
    where
        'i: 'g,
    {
        let new = match self.fill_item(write, item_write, &[], reserved) {
            Ok(new) => new,
            Err(attempt) => return attempt,
        };
        let word = Word::new(write.pair.tag, new.to_bits());
        let new_item = self.reader.items.item(word, write.guard);
        let shown = new_item.view();
        let writer = self.reader.items.lock_writer();
        let insertion = self.link(write, word);
        drop(writer);
        match insertion {
            Insertion::Done => {}
            Insertion::Evicted(victim) => {
                let victim = self.reader.items.item(victim, write.guard);
                // SAFETY: the insert took it out of its only slot.
                unsafe { self.pool.evict(&victim, write.now) };
            }
            Insertion::Present | Insertion::Full | Insertion::Again => {
                // SAFETY: never published.
                unsafe { self.pool.retire(new) };
                return match insertion {
                    Insertion::Full => Attempt::Done(Outcome::OutOfMemory),
                    _ => Attempt::Again,
                };
            }
        }
        self.inserts = self.inserts.wrapping_add(1);
        if self.inserts.is_multiple_of(INSERTS_PER_CHECK) {
            self.reader.items.check_growth(&write.view);
        }
        self.show(write, &new_item, shown, outcome, sink);
        Attempt::Done(outcome)
    }

    /// Links an item: in an empty slot, in one that a path or growth empties, or else in place of
    /// another item, which is evicted.
    fn link(&mut self, write: &WriteContext<'_, '_, '_, SLOTS>, word: Word) -> Insertion {
        let WriteContext { pair, guard, .. } = write;
        let items = self.reader.items;
        let key = write.op.key.bytes();
        let is_same_key = |word| items.item(word, guard).has_key(key);
        let guarded = items.guarded(guard);
        // Each round but the last moves buckets, so as many rounds as the table has buckets are
        // enough.
        let rounds = 2 + write.view.last().table.len();
        for _ in 0..rounds {
            let view = items.view(guard);
            if view.root.next().is_some() {
                view.step(HELP_BUCKETS, &guarded);
                items.finish_growth(&view, &self.pool);
            }
            // Slots of the layer that is searched or, if another is added meanwhile, of the one
            // before it.
            let slots = view.last().table.slots();
            let paths = &mut self.paths;
            let insertion = if V::HAS_TAGS {
                view.insert(pair, word, is_same_key, &guarded, paths)
            } else {
                view.insert(pair, word, is_same_key, &UntaggedItems(&guarded), paths)
            };
            match insertion {
                Insertion::Again => {}
                Insertion::Full if items.grow_for_insert(&view, slots, &self.pool, guard) => {}
                Insertion::Full => break,
                insertion => return insertion,
            }
        }
        if !items.evicts {
            return Insertion::Full;
        }
        let start = next_random(&mut self.random) as usize;
        write.view.insert_over(pair, word, is_same_key, |words| {
            // The first item that was not read lately, from a random slot on.
            let is_cold = |slot: &usize| !items.item(words[*slot], guard).header().is_recent();
            let slots = (0..SLOTS).map(|step| (start + step) % SLOTS);
            slots.into_iter().find(is_cold).unwrap_or(start % SLOTS)
        })
    }

    /// Fills the item that `item_write` asks for, in memory that was reserved or is at hand.
    ///
    /// # Errors
    ///
    /// How the attempt ends if there is no memory at hand, or the item is too large.
    #[inline(always)]
    fn fill_item(
        &mut self,
        write: &WriteContext<'_, '_, '_, SLOTS>,
        item_write: &ItemWrite<'_>,
        current: &[u8],
        reserved: &mut Option<Slot>,
    ) -> Result<ItemRef, Attempt> {
        let key = write.op.key.bytes();
        let Some(layout) = ItemLayout::new(key.len(), item_write, current.len(), write.now) else {
            return Err(Attempt::Done(Outcome::TooLarge));
        };
        let reserved = reserved.take_if(|slot| slot.layout() == layout);
        let Some(slot) = reserved.or_else(|| self.pool.reserve_at_hand(layout)) else {
            return Err(Attempt::Needs(layout));
        };
        Ok(self.pool.fill(slot, key, item_write, current))
    }
}
