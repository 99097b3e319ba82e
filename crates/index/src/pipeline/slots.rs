//! The slot memory and its changes by get, set and delete, which are the same in hardware, bit for
//! bit. It knows keys, expiry times and references to items, but not values, verbs or eviction.
//!
//! Thread safety: writers hold the lock of their bucket. Readers take no lock and rely on these
//! rules:
//!
//! 1. A slot is *taken* by one store of its locator (release), after its terms and stripes were
//!    written while it was free. It is *given up* by one store of 0, and *overwritten* (same key,
//!    other value) by one store of another locator, while its stripes do not change. These stores
//!    are the linearization points of set and delete.
//! 2. Therefore the locator and stripes of a present key match at every moment: a reader that
//!    compares them in any order finds the slot, and if a reader finds none, the key was absent at
//!    some moment of the comparison.
//! 3. The slot that a reader finds may belong to another key by the time it reads the item, as
//!    locator and stripes are not read atomically. The reader therefore loads the locator again
//!    (acquire, paired with the release in 1) and compares the key of the item that it names, which
//!    never changes.
//! 4. A key lies in at most one slot of its bucket, because writers search the bucket under the
//!    lock before they insert.

use super::compare::Compare;
use super::layout::{Bucket, KEYS, LOCATORS, Locator, Pattern, TERMS, Terms};
use crate::sync::{AtomicU64, Ordering, spin};
use amalgam_op::Expiry;

#[cfg(not(loom))]
type Storage<const SLOTS: usize> = crate::mem::Table<Bucket<SLOTS>>;
#[cfg(loom)]
type Storage<const SLOTS: usize> = Box<[Bucket<SLOTS>]>;

/// The number of bucket locks in large tables: bucket `i` has lock `i` modulo this. In smaller
/// tables each bucket has its own lock.
const LOCKS: usize = 1 << 14;
const LOCKED: u64 = 1;

/// The slot memory and the locks of its buckets.
pub(super) struct Slots<const SLOTS: usize> {
    buckets: Storage<SLOTS>,
    locks: Box<[AtomicU64]>,
}

impl<const SLOTS: usize> Slots<SLOTS> {
    /// Slot memory in `buckets`, which are zeroed.
    pub(super) fn new(buckets: Storage<SLOTS>) -> Self {
        assert!(!buckets.is_empty() && buckets.len() <= 1 << 32, "a hash's half names a bucket");
        let locks = (0..buckets.len().min(LOCKS)).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, locks }
    }

    /// The number of buckets.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Bytes of slots and locks.
    pub(super) fn bytes(&self) -> usize {
        self.len() * size_of::<Bucket<SLOTS>>() + self.locks.len() * size_of::<AtomicU64>()
    }

    /// The bucket of a hash: the hash's low half times the number of buckets, divided by 2^32. If
    /// that number is a power of two, these are the top bits of the half.
    #[inline]
    pub(super) fn bucket_of(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.len() as u64) >> 32) as usize
    }

    /// # Panics
    ///
    /// If there is no such bucket.
    #[inline]
    pub(super) fn bucket(&self, index: usize) -> &Bucket<SLOTS> {
        &self.buckets[index]
    }

    /// Prefetches the lines that a read of a key with this many stripes compares.
    #[inline]
    pub(super) fn prefetch(&self, index: usize, stripes: usize) {
        #[cfg(not(loom))]
        {
            let bucket = self.bucket(index);
            crate::mem::prefetch(bucket[LOCATORS].as_ptr().cast());
            for line in &bucket[KEYS..KEYS + stripes] {
                crate::mem::prefetch(line.as_ptr().cast());
            }
        }
        #[cfg(loom)]
        let _ = (index, stripes);
    }

    /// Prefetches the lines that a write over a present key touches: locators and terms.
    #[inline]
    pub(super) fn prefetch_for_write(&self, index: usize) {
        #[cfg(not(loom))]
        for line in [LOCATORS, TERMS] {
            crate::mem::prefetch_for_write(self.bucket(index)[line].as_ptr().cast());
        }
        #[cfg(loom)]
        let _ = index;
    }

    /// The current locator of a slot. Acquire: see point 3 at the head of the module.
    #[inline]
    pub(super) fn locator(&self, index: usize, slot: usize) -> Locator {
        Locator(self.bucket(index)[LOCATORS][slot].load(Ordering::Acquire))
    }

    /// The locator of the first slot that may hold the key with this tag; [`Locator::FREE`] if the
    /// key is absent. `pattern` is called only if several slots have the tag.
    #[inline]
    pub(super) fn optimistic_probe<C: Compare>(
        &self,
        index: usize,
        tag: u64,
        pattern: impl FnOnce() -> Pattern,
    ) -> Locator {
        let candidates = self.likely_slots::<C>(index, tag, pattern);
        if candidates == 0 {
            return Locator::FREE;
        }
        self.locator(index, candidates.trailing_zeros() as usize)
    }

    /// As [`Slots::optimistic_probe`], with the slot. None if the key is absent or the slot is
    /// being written.
    #[inline]
    pub(super) fn likely_slot<C: Compare>(
        &self,
        index: usize,
        tag: u64,
        pattern: impl FnOnce() -> Pattern,
    ) -> Option<(usize, Locator)> {
        let candidates = self.likely_slots::<C>(index, tag, pattern);
        if candidates == 0 {
            return None;
        }
        let slot = candidates.trailing_zeros() as usize;
        let locator = self.locator(index, slot);
        (!locator.is_free()).then_some((slot, locator))
    }

    /// A bit for each slot that may hold the key with this tag: at most one, or those whose stripes
    /// were compared too.
    #[inline]
    fn likely_slots<C: Compare>(
        &self,
        index: usize,
        tag: u64,
        pattern: impl FnOnce() -> Pattern,
    ) -> u32 {
        let bucket = self.bucket(index);
        let candidates = C::tagged(&bucket[LOCATORS], tag);
        if candidates & candidates.wrapping_sub(1) != 0 {
            return C::candidates(bucket, &pattern());
        }
        candidates
    }

    /// The first slot that may hold the key and whose locator `is_wanted` accepts, with its
    /// locator.
    #[inline]
    pub(super) fn find<C: Compare>(
        &self,
        index: usize,
        pattern: &Pattern,
        mut is_wanted: impl FnMut(Locator) -> bool,
    ) -> Option<(usize, Locator)> {
        let mut candidates = C::candidates(self.bucket(index), pattern);
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            candidates &= candidates - 1;
            let locator = self.locator(index, slot);
            if !locator.is_free() && is_wanted(locator) {
                return Some((slot, locator));
            }
        }
        None
    }

    /// Locks a bucket against other writers, and waits for the lock if necessary. The hardware's
    /// concurrency control likewise holds back an operation while an earlier one writes its bucket.
    #[inline]
    pub(super) fn lock(&self, index: usize) -> LockedBucket<'_, SLOTS> {
        let lock = &self.locks[index % self.locks.len()];
        let mut round = 0_u32;
        // Acquire pairs with the release in `drop`. The wait is bounded by the critical sections of
        // other writers, which neither allocate nor wait.
        while lock.swap(LOCKED, Ordering::Acquire) == LOCKED {
            while lock.load(Ordering::Relaxed) == LOCKED {
                spin(round);
                round = round.saturating_add(1);
            }
        }
        LockedBucket { slots: self, index, lock }
    }
}

#[cfg(not(loom))]
impl<const SLOTS: usize> Slots<SLOTS> {
    /// Faults all pages of the slot memory in, so that later stores do not fault.
    pub(super) fn populate(&self) {
        self.buckets.populate();
    }
}

/// A locked bucket, which its holder may write; unlocks on drop.
pub(super) struct LockedBucket<'s, const SLOTS: usize> {
    slots: &'s Slots<SLOTS>,
    pub(super) index: usize,
    lock: &'s AtomicU64,
}

impl<const SLOTS: usize> LockedBucket<'_, SLOTS> {
    #[inline]
    fn bucket(&self) -> &Bucket<SLOTS> {
        self.slots.bucket(self.index)
    }

    #[inline]
    fn terms(&self, slot: usize) -> Terms {
        // Relaxed, here and below: the lock orders accesses of writers, and readers do not read
        // terms.
        Terms(self.bucket()[TERMS][slot].load(Ordering::Relaxed))
    }

    #[inline]
    fn set_terms(&self, slot: usize, terms: Terms) {
        self.bucket()[TERMS][slot].store(terms.0, Ordering::Relaxed);
    }

    #[inline]
    fn set_locator(&self, slot: usize, locator: Locator) {
        // Release publishes the slot's stripes and the item.
        self.bucket()[LOCATORS][slot].store(locator.0, Ordering::Release);
    }

    /// The locator of a slot.
    #[inline]
    pub(super) fn locator(&self, slot: usize) -> Locator {
        self.slots.locator(self.index, slot)
    }

    /// The slots that are not free, with their locators.
    #[inline]
    pub(super) fn taken(&self) -> impl Iterator<Item = (usize, Locator)> {
        let slots = (0..SLOTS).map(|slot| (slot, self.locator(slot)));
        slots.filter(|(_, locator)| !locator.is_free())
    }

    /// The lowest free slot.
    #[inline]
    pub(super) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.locator(*slot).is_free())
    }

    /// Writes a key into a free slot. Stripes that the key does not cover keep their old contents.
    #[inline]
    pub(super) fn take(&self, slot: usize, pattern: &Pattern, locator: Locator, terms: Terms) {
        debug_assert!(self.locator(slot).is_free(), "a taken slot is given up first");
        self.set_terms(slot, terms);
        let lines = self.bucket()[KEYS..].iter().zip(&pattern.stripes);
        for (line, stripe) in lines.take(pattern.lines) {
            line[slot].store(*stripe, Ordering::Relaxed);
        }
        self.set_locator(slot, locator);
    }

    /// Replaces the value of a slot's key: writes the locator of another item, and its terms.
    #[inline]
    pub(super) fn overwrite(&self, slot: usize, locator: Locator, terms: Terms) {
        self.set_terms(slot, terms);
        self.set_locator(slot, locator);
    }

    /// Writes the locator of a copy of the slot's item.
    pub(super) fn redirect(&self, slot: usize, locator: Locator) {
        self.set_locator(slot, locator);
    }

    /// Clears a slot's header. The stripes keep their contents.
    #[inline]
    pub(super) fn give_up(&self, slot: usize) {
        self.set_locator(slot, Locator::FREE);
        self.set_terms(slot, Terms::FREE);
    }

    /// Whether any slot has an expiry, so that [`LockedBucket::reclaim`] may find one that has
    /// expired.
    #[inline]
    pub(super) fn has_expiries(&self) -> bool {
        (0..SLOTS).fold(0, |expiries, slot| expiries | self.terms(slot).expiry().0) != 0
    }

    /// Gives up every slot but `except` that has expired at second `now`, and calls `given_up` with
    /// the locator of each.
    #[inline]
    pub(super) fn reclaim(
        &self,
        now: u32,
        except: Option<usize>,
        mut given_up: impl FnMut(Locator),
    ) {
        for slot in 0..SLOTS {
            let Expiry(expiry) = self.terms(slot).expiry();
            // A free slot's terms are 0.
            if expiry != 0 && expiry <= now && Some(slot) != except {
                given_up(self.locator(slot));
                self.give_up(slot);
            }
        }
    }
}

impl<const SLOTS: usize> Drop for LockedBucket<'_, SLOTS> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the acquire in `lock`.
        #[cfg(not(loom))]
        self.lock.store(0, Ordering::Release);
        // As in mercury's `Bucket::unlock`.
        #[cfg(loom)]
        self.lock.swap(0, Ordering::Release);
    }
}
