//! The state that all workers share: the slot memory, and the memory of its items.

use std::sync::Arc;

use super::layout::{Bucket, Locator};
use super::slots::{LockedBucket, Slots};
use crate::mem::{Guard, Item, ItemRef, Memory, SlotLayout};
use crate::simd::Fastest;
use crate::sync::{AtomicU64, Ordering};
use crate::{Configuration, OpenError, Statistics};

/// The fraction of the memory limit that slots get: 3/8. The table never grows, so it is allocated
/// in full at the start.
const SHARE: (usize, usize) = (3, 8);
/// If the expected items would fill that table more than half, slots get up to 1/EXPECTED_SHARE of
/// the limit.
const EXPECTED_SHARE: usize = 2;
/// The table leaves room for this many of the largest items, but gets at least 1/[`LEAST_SHARE`] of
/// the limit.
const LARGEST_ITEMS: usize = 4;
/// See [`LARGEST_ITEMS`].
const LEAST_SHARE: usize = 16;
/// The smallest table.
const MIN_BUCKETS: usize = 16;
/// The number of buckets that statistics sample.
const SAMPLE_BUCKETS: usize = 4096;

/// The state that all workers of an index share.
pub(super) struct Store<const SLOTS: usize> {
    pub(super) memory: Arc<Memory>,
    pub(super) slots: Slots<SLOTS>,
    pub(super) compare: Fastest,
    pub(super) evicts: bool,
    /// Items that were refused because their bucket was full.
    pub(super) refused: AtomicU64,
}

impl<const SLOTS: usize> Store<SLOTS> {
    pub(super) fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        let seed = configuration.seed.clone().with_lookup3();
        let memory =
            Memory::new(&Configuration { seed, ..configuration.clone() }, SlotLayout::Plain)?;
        let buckets = Self::bucket_count(configuration);
        let table = memory.table(buckets).map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => OpenError::Configuration(format!(
                "a table of {buckets} buckets does not fit the memory limit; raise the limit"
            )),
            _ => OpenError::Memory(error),
        })?;
        let slots = Slots::new(table);
        if configuration.prefault {
            slots.populate();
        }
        Ok(Self {
            memory,
            slots,
            compare: Fastest::here(),
            evicts: configuration.evicts,
            refused: AtomicU64::new(0),
        })
    }

    fn bucket_count(configuration: &Configuration) -> usize {
        let bucket_bytes = size_of::<Bucket<SLOTS>>();
        let limit = configuration.memory_bytes;
        let beside_items = limit.saturating_sub(LARGEST_ITEMS * configuration.max_item_bytes);
        let share = (limit / SHARE.1 * SHARE.0).min(beside_items).max(limit / LEAST_SHARE);
        // The expected items fill half of the slots, as the paper recommends.
        let expected = configuration.expected_items / SLOTS * 2 * bucket_bytes;
        let bytes = share.max(expected.min(limit / EXPECTED_SHARE).min(beside_items));
        let buckets = configuration.tuning.buckets.unwrap_or(bytes / bucket_bytes);
        buckets.clamp(MIN_BUCKETS, 1 << u32::BITS)
    }

    /// The item that a taken slot names.
    #[inline]
    pub(super) fn item<'g>(&'g self, locator: Locator, guard: &'g Guard<'_>) -> Item<'g> {
        let reference = ItemRef::from_bits(locator.reference()).expect("the slot is taken");
        // SAFETY: locators are loaded from the slots with acquire ordering under the callers'
        // guard; an item is retired only after it left its slot, or if it never had one.
        unsafe { self.memory.item(reference, guard) }
    }

    /// Implements [`crate::Engine::compare_exchange_item`].
    pub(super) fn swap(
        &self,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
        guard: &Guard<'_>,
    ) -> bool {
        let locked = self.slots.lock(self.slots.bucket_of(hash));
        let is_old = |(_, locator): &(usize, Locator)| locator.reference() == old.to_bits();
        let found = locked.taken().find(is_old);
        let Some((slot, locator)) = found else { return false };
        match new {
            Some(new) => self.redirect(&locked, slot, locator, new, guard),
            None => locked.give_up(slot),
        }
        true
    }

    /// Replaces an item by its copy `new`.
    fn redirect(
        &self,
        locked: &LockedBucket<'_, SLOTS>,
        slot: usize,
        locator: Locator,
        new: ItemRef,
        guard: &Guard<'_>,
    ) {
        let new_locator = locator.moved_to(new.to_bits());
        let (old, new) = (self.item(locator, guard), self.item(new_locator, guard));
        if old.header().has_word() {
            // The word may have changed since it was copied. It changes only under this lock, so
            // this is its last value.
            new.word().store(old.word().load(Ordering::Relaxed), Ordering::Relaxed);
        }
        locked.redirect(slot, new_locator);
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = self.memory.index_statistics();
        statistics.buckets = self.slots.len() as u64;
        statistics.slots = (self.slots.len() * SLOTS) as u64;
        statistics.memory.index = self.slots.bytes() as u64;
        statistics.out_of_memory += self.refused.load(Ordering::Relaxed);
        statistics
    }

    pub(super) fn sample_buckets(&self, statistics: &mut Statistics) {
        statistics.length_histogram = vec![0; SLOTS + 1];
        for index in (0..self.slots.len()).step_by(self.slots.len().div_ceil(SAMPLE_BUCKETS)) {
            let taken = (0..SLOTS).filter(|slot| !self.slots.locator(index, *slot).is_free());
            statistics.length_histogram[taken.count()] += 1;
        }
    }
}
