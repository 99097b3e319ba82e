//! Plain sets of keys that are present, which need neither a decision nor a second attempt: the
//! item is found as a read finds it, and a word is stored, in it or in its slot.
//!
//! Linearization points: the store of the item's word, or that of the slot's locator.

use std::ops::ControlFlow;

use amalgam_op::{Key, Now, Op, Outcome};

use super::compare::Compare;
use super::layout::{Pattern, Terms, tag_of};
use super::worker::PipelineWorker;
use super::write::Unlinked;
use crate::engine::SinkAt;
use crate::mem::{Guard, PlainItem};
use crate::{Sink, software_pipeline};

impl<const SLOTS: usize> PipelineWorker<'_, SLOTS> {
    /// Carries `op` out if it is a plain set, its key is present and memory is at hand. None if
    /// not, or if another thread changed the slot first: then nothing was done.
    #[inline]
    pub(super) fn set_present<C: Compare>(&mut self, op: &Op<'_>, now: &Now) -> Option<Outcome> {
        let new = PlainItem::of(op, now)?;
        let guard = self.pool.pin();
        self.set_in_slot::<C>(&new, &op.key, now, &guard)
    }

    /// Implements [`crate::Worker::apply_batch`], in a software pipeline: ask for the lines of the
    /// bucket that a write of a present key touches; ask for the item of the slot with the key's
    /// tag; carry the operation out, which looks at the bucket again, so that operations on one key
    /// come in order.
    #[inline]
    pub(super) fn apply_many<C: Compare>(
        &mut self,
        ops: &[Op<'_>],
        now: &Now,
        sink: &mut impl Sink,
        outcomes: &mut [Outcome],
    ) {
        let outcomes = &mut outcomes[..ops.len()];
        let mut pinned = (Some(self.pool.pin()), self);
        software_pipeline::run::<1, 16, _, _>(
            &mut pinned,
            ops.len(),
            (),
            |(_, worker), at| {
                let slots = &worker.store.slots;
                slots.prefetch_for_write(slots.bucket_of(ops[at].key.hash()));
            },
            |(_, worker), at, _, ()| {
                worker.prefetch_candidate::<C>(&ops[at].key);
            },
            |(guard, worker), at, (), _| {
                let set = guard.as_ref().and_then(|guard| {
                    let new = PlainItem::of(&ops[at], now)?;
                    worker.set_in_slot::<C>(&new, &ops[at].key, now, guard)
                });
                outcomes[at] = set.unwrap_or_else(|| {
                    // It may have to wait for the grace period of what this worker retired.
                    drop(guard.take());
                    let mut sink = SinkAt { sink, position: at };
                    let outcome = worker.execute::<C>(&ops[at], now, &mut sink);
                    *guard = Some(worker.pool.pin());
                    outcome
                });
                ControlFlow::Continue(())
            },
        );
    }

    /// Writes `new` over the item of its key.
    #[inline]
    fn set_in_slot<C: Compare>(
        &mut self,
        new: &PlainItem<'_>,
        key: &Key<'_>,
        now: &Now,
        guard: &Guard<'_>,
    ) -> Option<Outcome> {
        let store = self.store;
        let bucket = store.slots.bucket_of(key.hash());
        let pattern = || Pattern::new(key.bytes(), key.hash());
        let tag = tag_of(key.bytes(), key.hash());
        let (slot, locator) = store.slots.likely_slot::<C>(bucket, tag, pattern)?;
        let old = store.item(locator, guard);
        let header = old.header();
        let takes_word = old.takes_word_of(header, new, now);
        let filled = match takes_word {
            true => None,
            false if !old.is_of(header, new.key()) => return None,
            false => Some(self.pool.fill_at_hand(new)?),
        };
        let locked = store.slots.lock(bucket);
        if locked.locator(slot) != locator {
            drop(locked);
            if let Some(filled) = filled {
                self.pool.discard(filled);
            }
            return None;
        }
        let mut expired = Unlinked::new();
        if locked.has_expiries() {
            locked.reclaim(now.seconds, Some(slot), |locator| expired.push(locator));
        }
        match &filled {
            // The slot names the item as long as the item is linked, and no other thread changes
            // the item's word under this lock.
            None => old.store_word_of(new),
            Some(filled) => {
                let locator = locator.moved_to(filled.reference().to_bits());
                locked.overwrite(slot, locator, Terms::new(new.expiry(), new.value_bytes()));
            }
        }
        drop(locked);
        self.retire_all(&expired, now);
        if let Some(filled) = filled {
            // SAFETY: we took it out of its only slot. This engine seals no items, and words change
            // under the bucket's lock only.
            unsafe { self.pool.retire_replaced(&old, filled, now) };
        }
        Some(new.outcome())
    }
}
