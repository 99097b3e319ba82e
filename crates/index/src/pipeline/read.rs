//! Reads: no lock, no store to anything shared but an item's recency and fetched bits.
//!
//! A batch goes through three passes, as through the hardware's stages: ask for the lines of all
//! buckets; compare each key with all slots of its bucket and ask for the item of the slot that
//! may be it; look at the items and answer. Lengths and checks, which lie in one line, come first:
//! they leave no slot or one nearly always, and then the stripes' lines are not waited for. (An
//! item holds its whole key too; the hardware, which has all lines at hand, compares all at once.)
//!
//! Linearization point of a hit: the load of the locator whose item is shown. Of a miss: a moment
//! within the compare at which the key was absent, which point 2 of `slots` says there was.

use std::ops::ControlFlow;

use amalgam_op::{ItemView, Key, Now};

use super::compare::Compare;
use super::layout::{LOCATORS, Locator};
use super::worker::{Sought, StoreWorker};
use crate::mem::{Guard, Item, ItemRef};
use crate::{Found, Sink};

/// Keys whose buckets and items are asked for together.
const LANES: usize = 64;

impl<'i, const SLOTS: usize> StoreWorker<'i, SLOTS> {
    /// A read of one key.
    #[inline]
    pub(super) fn get_one<C: Compare>(&mut self, key: &Key<'_>, now: &Now, sink: &mut impl Sink) {
        let guard = self.pool.pin();
        let locator = self.glance::<C>(&self.store.sought(key));
        // There is nothing behind this key that a break could keep from being read.
        let _ = self.answer::<C>(0, key, locator, now, &guard, sink);
    }

    /// A batch of reads.
    #[inline]
    pub(super) fn get_many<C: Compare>(
        &mut self,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        let guard = self.pool.pin();
        let mut locators = [Locator::FREE; LANES];
        let mut answered = 0;
        for keys in keys.chunks(LANES) {
            self.ask_ahead::<C>(keys, &mut locators);
            for (key, locator) in keys.iter().zip(&locators) {
                let flow = self.answer::<C>(answered, key, *locator, now, &guard, sink);
                answered += 1;
                if flow.is_break() {
                    return answered;
                }
            }
        }
        answered
    }

    /// Asks for all buckets, then for the item of each key's first candidate.
    #[inline]
    fn ask_ahead<C: Compare>(&self, keys: &[Key<'_>], locators: &mut [Locator; LANES]) {
        let mut sought = [Sought::NONE; LANES];
        for (key, sought) in keys.iter().zip(&mut sought) {
            *sought = self.store.sought(key);
            self.store.slots.prefetch(sought.bucket, 0);
        }
        for (sought, locator) in sought[..keys.len()].iter().zip(locators) {
            *locator = self.glance::<C>(sought);
            if let Some(reference) = ItemRef::from_bits(locator.reference()) {
                self.store.memory.prefetch_item(reference);
                self.store.memory.prefetch_item_at(reference, self.expected.item_bytes());
            }
        }
    }

    /// The locator of the first slot that may hold the key; that of a free slot says that the key
    /// is absent.
    #[inline]
    fn glance<C: Compare>(&self, sought: &Sought) -> Locator {
        let slots = &self.store.slots;
        let bucket = slots.bucket(sought.bucket);
        let mut candidates = C::tagged(&bucket[LOCATORS], sought.pattern.tag);
        if candidates & candidates.wrapping_sub(1) != 0 {
            candidates = C::candidates(bucket, &sought.pattern);
        }
        if candidates == 0 {
            return Locator::FREE;
        }
        slots.locator(sought.bucket, candidates.trailing_zeros() as usize)
    }

    /// Answers a key whose item `locator` most likely names: at once if it does and the item looks
    /// like the last ones, as nearly all do where items are of a kind.
    #[inline]
    fn answer<'g, C: Compare>(
        &mut self,
        position: usize,
        key: &Key<'_>,
        locator: Locator,
        now: &Now,
        guard: &'g Guard<'_>,
        sink: &mut impl Sink,
    ) -> ControlFlow<()>
    where
        'i: 'g,
    {
        if locator.is_free() {
            return sink.miss(position);
        }
        let item = self.store.item(locator, guard);
        if self.expected.look().is_live(now)
            && let Some(seen) = item.view_as(self.expected.look(), key.bytes())
        {
            return sink.hit(position, &self.found(&item, seen));
        }
        let item = match item.has_key(key.bytes()) {
            true => Some(item),
            false => self.find_carefully::<C>(key, guard),
        };
        match item {
            Some(item) => {
                let memory = &self.store.memory;
                self.expected.show(&item, item.header(), position, now, memory, sink)
            }
            None => sink.miss(position),
        }
    }

    /// The item of a key whose first candidate was another's.
    #[inline(never)]
    fn find_carefully<'g, C: Compare>(
        &self,
        key: &Key<'_>,
        guard: &'g Guard<'_>,
    ) -> Option<Item<'g>>
    where
        'i: 'g,
    {
        let sought = self.store.sought(key);
        let is_wanted = |locator| self.store.item(locator, guard).has_key(key.bytes());
        let found = self.store.slots.find::<C>(sought.bucket, &sought.pattern, is_wanted);
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
