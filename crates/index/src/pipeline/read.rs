//! Reads, which take no lock and store to no shared memory except an item's header (that it
//! was read).
//!
//! The keys of a batch go through three stages, as in the hardware: prefetch the line of the
//! bucket; compare the key with all slots of the bucket and prefetch the item of the candidate
//! slot; read the item and answer. Tags, which lie in one line, are compared first: nearly always
//! they leave at most one slot, and then the read does not wait for the lines of stripes. (The item
//! holds the whole key too. The hardware, which has all lines at hand, compares them all at once.)
//!
//! The linearization point of a hit is the load of the locator whose item is shown. That of a miss
//! is a moment during the comparison at which the key was absent; point 2 of `slots` shows that
//! there was one.

use std::ops::ControlFlow;

use amalgam_op::{ItemView, Key, Now};

use super::compare::Compare;
use super::layout::{Locator, Pattern, tag_of};
use super::worker::PipelineWorker;
use crate::mem::{Guard, Item, ItemRef};
use crate::software_pipeline;
use crate::{Found, Sink};

impl<'i, const SLOTS: usize> PipelineWorker<'i, SLOTS> {
    /// Reads one key.
    #[inline]
    pub(super) fn get_one<C: Compare>(&mut self, key: &Key<'_>, now: &Now, sink: &mut impl Sink) {
        let guard = self.pool.pin();
        let locator = self.optimistic_probe::<C>(key);
        // A break has no effect, as no key follows.
        let _ = self.answer::<C>((0, key), locator, now, &guard, sink, |_| ());
    }

    /// Reads a batch of keys. Returns the number of keys answered.
    #[inline]
    pub(super) fn get_many<C: Compare>(
        &mut self,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        let guard = self.pool.pin();
        software_pipeline::run::<1, 16, _, _>(
            self,
            keys.len(),
            Locator::FREE,
            |worker, at| {
                let slots = &worker.store.slots;
                slots.prefetch(slots.bucket_of(keys[at].hash()), 0);
            },
            |worker, at, _, locator| *locator = worker.prefetch_candidate::<C>(&keys[at]),
            |worker, at, locator, later| {
                let (key, hash) = (&keys[at], keys[at].hash());
                worker.answer::<C>((at, key), locator, now, &guard, sink, |worker| {
                    let is_same = |other: usize| keys[other].hash() == hash;
                    later.renew(at, is_same, |other, locator| {
                        *locator = worker.optimistic_probe::<C>(&keys[other]);
                    });
                })
            },
        )
    }

    /// Finds the candidate slot of a key, and prefetches its item.
    #[inline]
    pub(super) fn prefetch_candidate<C: Compare>(&self, key: &Key<'_>) -> Locator {
        let locator = self.optimistic_probe::<C>(key);
        if let Some(reference) = ItemRef::from_bits(locator.reference()) {
            self.store.memory.prefetch_item(reference);
            self.store.memory.prefetch_item_at(reference, self.predictor.reach_bytes());
        }
        locator
    }

    /// See [`super::slots::Slots::optimistic_probe`].
    #[inline]
    fn optimistic_probe<C: Compare>(&self, key: &Key<'_>) -> Locator {
        let slots = &self.store.slots;
        let (key, hash) = (key.bytes(), key.hash());
        let pattern = || Pattern::new(key, hash);
        slots.optimistic_probe::<C>(slots.bucket_of(hash), tag_of(key, hash), pattern)
    }

    /// Answers a key whose item `locator` most likely names. It answers at once if the item's
    /// header is as predicted and the item has the key, which is nearly always so if items are
    /// alike. Calls `renew` if it had to look at the bucket anew: what was found for later keys of
    /// the batch is older.
    #[inline]
    fn answer<'g, C: Compare>(
        &mut self,
        (position, key): (usize, &Key<'_>),
        locator: Locator,
        now: &Now,
        guard: &'g Guard<'_>,
        sink: &mut impl Sink,
        renew: impl FnOnce(&Self),
    ) -> ControlFlow<()>
    where
        'i: 'g,
    {
        if locator.is_free() {
            return sink.miss(position);
        }
        let item = self.store.item(locator, guard);
        if self.predictor.template().is_live(now)
            && let Some(matched) = item.view_as(self.predictor.template(), key.bytes())
        {
            return sink.hit(position, &self.found(&item, matched));
        }
        let item = match item.has_key(key.bytes()) {
            true => Some(item),
            false => {
                let item = self.find_carefully::<C>(key, guard);
                renew(self);
                item
            }
        };
        match item {
            Some(item) => {
                let memory = &self.store.memory;
                self.predictor.show(&item, item.header(), position, now, memory, sink)
            }
            None => sink.miss(position),
        }
    }

    /// Finds the item of a key whose first candidate was the item of another key.
    #[inline(never)]
    fn find_carefully<'g, C: Compare>(
        &self,
        key: &Key<'_>,
        guard: &'g Guard<'_>,
    ) -> Option<Item<'g>>
    where
        'i: 'g,
    {
        let probe = self.store.probe(key);
        let is_wanted = |locator| self.store.item(locator, guard).has_key(key.bytes());
        let found = self.store.slots.find::<C>(probe.bucket, &probe.pattern, is_wanted);
        found.map(|(_, locator)| self.store.item(locator, guard))
    }

    #[inline]
    pub(super) fn found<'g>(&self, item: &Item<'g>, view: ItemView<'g>) -> Found<'g>
    where
        'i: 'g,
    {
        let memory: &'i std::sync::Arc<crate::mem::Memory> = &self.store.memory;
        Found::in_memory(view, memory, item.reference())
    }
}
