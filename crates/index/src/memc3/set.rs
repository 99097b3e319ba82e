//! Plain sets of keys that are present, which need neither a decision nor a second attempt: the
//! item is found as a read finds it, and a word is stored, in it or in its slot.
//!
//! Linearization points: those of [`super::write`].

use std::ops::ControlFlow;

use amalgam_op::{Now, Op, Outcome};

use super::ablation::Variant;
use super::cuckoo::{BucketPair, SlotSnapshot, View};
use super::probe::Probe;
use super::word::Word;
use super::worker::Memc3Worker;
use crate::engine::SinkAt;
use crate::mem::{Guard, PlainItem};
use crate::{Sink, software_pipeline};

impl<const SLOTS: usize, V: Variant> Memc3Worker<'_, SLOTS, V> {
    /// Carries `op` out if it is a plain set, its key is present and memory is at hand. None if
    /// not, or if another thread changed the slot first: then nothing was done.
    #[inline]
    pub(super) fn set_present<P: Probe>(&mut self, op: &Op<'_>, now: &Now) -> Option<Outcome> {
        let guard = &self.pool.pin();
        let view = self.reader.items.view(guard);
        self.follow_hints(&view);
        let pair = BucketPair::of::<SLOTS>(op.key.hash());
        let found = view.optimistic_probe::<P>(&pair);
        self.set_in_slot(op, pair, &found, &view, guard, now)
    }

    /// Implements [`crate::Worker::apply_batch`], in a software pipeline of three stages: ask for
    /// the bucket; ask for the item or, if it is not there, for the other bucket; ask for the item
    /// in that; carry the operation out. What was found before is which bucket to look at, and no
    /// more: each operation loads the words of that bucket again, so that operations on one key
    /// come in order.
    #[inline]
    pub(super) fn apply_many<P: Probe>(
        &mut self,
        ops: &[Op<'_>],
        now: &Now,
        sink: &mut impl Sink,
        outcomes: &mut [Outcome],
    ) {
        let outcomes = &mut outcomes[..ops.len()];
        let mut pinned = (Some(self.pool.pin()), self);
        let pair = |at: usize| BucketPair::of::<SLOTS>(ops[at].key.hash());
        software_pipeline::run::<2, 16, _, _>(
            &mut pinned,
            ops.len(),
            0,
            |(guard, worker), at| {
                if let Some(guard) = guard {
                    worker.reader.items.view(guard).prefetch_bucket(ops[at].key.hash());
                }
            },
            |(guard, worker), at, stage, bucket| {
                let Some(guard) = guard else { return };
                let (view, pair) = (worker.reader.items.view(guard), pair(at));
                if stage == 0 {
                    *bucket = worker.reader.probe_first_bucket::<P>(&view, &pair).0;
                } else {
                    let bucket = view.likely_bucket(pair.buckets[*bucket]);
                    worker.reader.probe_chosen_bucket::<P>(bucket, &pair);
                }
            },
            |(guard, worker), at, bucket, _| {
                let set = guard.as_ref().and_then(|guard| {
                    let (view, pair) = (worker.reader.items.view(guard), pair(at));
                    let found = view.probe_bucket::<P>(pair.buckets[bucket], pair.tag);
                    worker.set_in_slot(&ops[at], pair, &found, &view, guard, now)
                });
                outcomes[at] = set.unwrap_or_else(|| {
                    // It may have to wait for the grace period of what this worker retired.
                    drop(guard.take());
                    let outcome = worker.write(&ops[at], now, &mut SinkAt { sink, position: at });
                    *guard = Some(worker.pool.pin());
                    outcome
                });
                ControlFlow::Continue(())
            },
        );
    }

    /// Carries `op` out if it is a plain set, `found` names the item of its key, and memory is at
    /// hand.
    #[inline]
    fn set_in_slot(
        &mut self,
        op: &Op<'_>,
        pair: BucketPair,
        found: &SlotSnapshot<'_, SLOTS>,
        view: &View<'_, SLOTS>,
        guard: &Guard<'_>,
        now: &Now,
    ) -> Option<Outcome> {
        if found.word.tag() != pair.tag {
            return None;
        }
        let new = &PlainItem::of(op, now)?;
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
