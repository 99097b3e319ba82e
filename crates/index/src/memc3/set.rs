//! Plain sets of keys that are present, which need neither a decision nor a second attempt: the
//! item is found as a read finds it, and a word is stored, in it or in its slot.
//!
//! Linearization points: those of [`super::write`].

use amalgam_op::{Now, Op, Outcome};

use super::ablation::Variant;
use super::cuckoo::{BucketPair, SlotSnapshot, View};
use super::probe::Probe;
use super::word::Word;
use super::worker::Memc3Worker;
use crate::mem::{Guard, PlainItem};

impl<const SLOTS: usize, V: Variant> Memc3Worker<'_, SLOTS, V> {
    /// Carries `op` out if it is a plain set, its key is present and memory is at hand. None if
    /// not, or if another thread changed the slot first: then nothing was done.
    #[inline]
    pub(super) fn set_present<P: Probe>(&mut self, op: &Op<'_>, now: &Now) -> Option<Outcome> {
        let guard = &self.pool.pin();
        self.follow_hints(&self.reader.items.view(guard));
        self.set_under::<P>(op, now, guard)
    }

    /// As [`Memc3Worker::set_present`], for a worker that holds a guard.
    #[inline]
    fn set_under<P: Probe>(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        guard: &Guard<'_>,
    ) -> Option<Outcome> {
        let new = PlainItem::of(op, now)?;
        let view = self.reader.items.view(guard);
        let pair = BucketPair::of::<SLOTS>(op.key.hash());
        let found = view.optimistic_probe::<P>(&pair);
        self.set_in_slot(&new, pair, &found, &view, guard, now)
    }

    /// Writes `new` over the item that `found` names, if that is an item of the same key.
    #[inline]
    fn set_in_slot(
        &mut self,
        new: &PlainItem<'_>,
        pair: BucketPair,
        found: &SlotSnapshot<'_, SLOTS>,
        view: &View<'_, SLOTS>,
        guard: &Guard<'_>,
        now: &Now,
    ) -> Option<Outcome> {
        if found.word.tag() != pair.tag {
            return None;
        }
        let items = self.reader.items;
        let old = items.item(found.word, guard);
        let header = old.header();
        if old.takes_word_of(header, new, now) {
            let _writer = items.lock_writer();
            // The slot's word names the item as long as the item is linked, and no other thread
            // changes the item's word under this lock.
            return view.under_lock(found, || old.store_word_of(new)).map(|()| new.outcome());
        }
        if !old.is_of(header, new.key()) {
            return None;
        }
        let filled = self.pool.fill_at_hand(new)?;
        let word = Word::new(pair.tag, filled.reference().to_bits());
        let writer = items.lock_writer();
        let is_replaced = view.exchange(found, word, || true);
        drop(writer);
        if !is_replaced {
            self.pool.discard(filled);
            return None;
        }
        // SAFETY: the exchange took it out of its only slot. This engine seals no items, and words
        // change under the stripe's lock only.
        unsafe { self.pool.retire_replaced(&old, filled, now) };
        Some(new.outcome())
    }
}
