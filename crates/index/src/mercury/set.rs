//! Plain sets, which need neither a decision nor a second look at the bucket: the item is built
//! before the bucket is locked, whatever the key holds.
//!
//! Linearization point: the store that unlocks the bucket.

use amalgam_op::{Now, Op, Outcome};

use crate::Sink;
use crate::engine::SinkAt;

use super::chain::Chains;
use super::engine::MercuryWorker;
use super::locking::Locking;
use super::tables::TablesGuard;
use crate::mem::PlainItem;

impl<L: Locking> MercuryWorker<'_, L> {
    /// Carries `op` out if it is a plain set and memory is at hand. None if not: then nothing was
    /// done.
    #[inline]
    pub(super) fn set_at_hand(&mut self, op: &Op<'_>, now: &Now) -> Option<Outcome> {
        let new = PlainItem::of(op, now)?;
        let hash = op.key.hash();
        self.handle.prefetch(hash);
        let guard = self.pool.pin();
        let engine = self.engine;
        let tables = self.handle.enter();
        if let Some(first) = tables.bucket(hash).peek().item() {
            engine.memory.prefetch_item(first);
        }
        let chains = Chains::new(&engine.memory, &guard);
        if new.has_word() && change_word(&tables, &chains, &new, hash, now) {
            return Some(new.outcome());
        }
        let filled = self.pool.fill_at_hand(&new)?;
        let item = chains.item(filled.reference());
        let mut locked = tables.lock(hash);
        let place = chains.find(locked.first(), new.key());
        match place {
            Some(place) => place.replace(&chains, &mut locked, item),
            None => chains.push(&mut locked, item),
        }
        drop(locked);
        drop(tables);
        match place {
            // SAFETY: we unlinked it. This engine seals no items, and words change under the lock
            // of their bucket only.
            Some(place) => unsafe { self.pool.retire_replaced(&place.item, filled, now) },
            None => {
                self.pool.count_published(filled);
                self.note_insert();
            }
        }
        Some(new.outcome())
    }
}

/// The number of operations of a batch that go from stage to stage together, under one thread lock.
const CHUNK: usize = 16;

impl<L: Locking> MercuryWorker<'_, L> {
    /// Implements [`crate::Worker::apply_batch`]. Chunks of operations go through three stages:
    /// prefetch the buckets; prefetch the first items; carry the operations out. Nothing that the
    /// stages before the last have seen is relied on.
    pub(super) fn apply_chunks(
        &mut self,
        ops: &[Op<'_>],
        now: &Now,
        sink: &mut impl Sink,
        outcomes: &mut [Outcome],
    ) {
        let outcomes = &mut outcomes[..ops.len()];
        let chunk = |number: usize| ops.chunks(CHUNK).nth(number).unwrap_or_default();
        self.prefetch_buckets(chunk(0));
        self.prefetch_buckets(chunk(1));
        self.prefetch_items(chunk(0));
        for number in 0..ops.len().div_ceil(CHUNK) {
            self.prefetch_buckets(chunk(number + 2));
            self.prefetch_items(chunk(number + 1));
            for (at, op) in (number * CHUNK..).zip(chunk(number)) {
                outcomes[at] = self
                    .set_at_hand(op, now)
                    .unwrap_or_else(|| self.execute(op, now, &mut SinkAt { sink, position: at }));
            }
        }
    }

    #[inline]
    fn prefetch_buckets(&self, ops: &[Op<'_>]) {
        ops.iter().for_each(|op| self.handle.prefetch(op.key.hash()));
    }

    #[inline]
    fn prefetch_items(&self, ops: &[Op<'_>]) {
        if ops.is_empty() {
            return;
        }
        let tables = self.handle.enter_to_read();
        for op in ops {
            if let Some(first) = tables.bucket(op.key.hash()).peek().item() {
                self.engine.memory.prefetch_item(first);
                self.engine.memory.prefetch_item_at(first, self.predictor.reach_bytes());
            }
        }
    }
}

/// Stores the word of `new` in the item of its key, if nothing else changes. Returns whether it
/// did.
#[inline]
fn change_word<L: Locking>(
    tables: &TablesGuard<'_, '_, L>,
    chains: &Chains<'_>,
    new: &PlainItem<'_>,
    hash: u64,
    now: &Now,
) -> bool {
    let locked = tables.lock(hash);
    let Some(place) = chains.find(locked.first(), new.key()) else { return false };
    let takes_word = place.item.takes_word_of(place.item.header(), new, now);
    if takes_word {
        // No other thread changes or unlinks the item while the bucket is locked.
        place.item.store_word_of(new);
    }
    takes_word
}
