//! The concurrent table: words that name items, in buckets that a hash points at.
//!
//! This module does not know what an item looks like: the caller says whether a reference is the
//! one it searches for and, while the table grows, what an item's hash is. So loom can run all of
//! it.
//!
//! A table that grows is a chain of layers, each twice the one before. A bucket of a layer either
//! holds items or is marked as moved; then its items are in the next layer. A bucket of the last
//! layer is valid only once the bucket that it was split from has moved.
//!
//! Invariants:
//! 1. A word that names an item is in one of the two buckets of its hash, in the layer where these
//!    are valid; in two slots at once only while a mover holds both stripes.
//! 2. Words change under the stripe of their bucket only. A move holds the stripes of both ends and
//!    marks them ([`StripeGuard::begin_move`]).
//! 3. A writer that cannot find an empty slot moves both buckets to the last layer before it looks
//!    for a path there, and paths visit only buckets that are valid in that layer.
//! 4. A key has at most one word: an insert holds both stripes and has searched both buckets.
//!
//! Linearization points: a hit, the load of its word; a miss, any moment between the two reads of
//! the counters at which the key was absent (`docs/memc3.md` argues that there is one); a write,
//! its one store to the word of its key. A move changes nothing that an operation can see.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod race_tests;

use std::hint::select_unpredictable;

use super::path::{PathFinder, PathStep};
use super::probe::Probe;
use super::scan_log::Scans;
use super::stripes::{StripeGuard, Stripes};
use super::table::{Bucket, Table};
use super::word::{Geometry, Tag, Word};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering, spin};

/// Optimistic attempts of a reader before it takes the locks: a bound, not a tuning knob.
pub(super) const OPTIMISTIC_ROUNDS: u32 = if cfg!(loom) { 2 } else { 64 };
/// Attempts of an insert to find a path that other writers do not change before it is walked.
const INSERT_ROUNDS: usize = if cfg!(loom) { 2 } else { 64 };
/// Version counters of a table unless told otherwise, as in the paper.
pub(super) const STRIPES: usize = 8192;

/// A table of one size, and a link to the one that its items are moved to.
pub(super) struct Layer<const SLOTS: usize> {
    pub(super) table: Table<SLOTS>,
    next: AtomicPtr<Self>,
    /// Number of buckets that were claimed, in order, by threads that move them.
    claimed: AtomicUsize,
    /// Number of buckets that have moved.
    moved: AtomicUsize,
}

impl<const SLOTS: usize> Layer<SLOTS> {
    pub(super) fn new(table: Table<SLOTS>) -> Self {
        Self {
            table,
            next: AtomicPtr::new(std::ptr::null_mut()),
            claimed: AtomicUsize::new(0),
            moved: AtomicUsize::new(0),
        }
    }

    /// The layer that this one is being moved to.
    #[inline]
    pub(super) fn next(&self) -> Option<&Self> {
        // Acquire pairs with the release in `grow`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: a layer lives at least as long as the one before it, which is `self`: layers are
        // taken out at the front and dropped in that order.
        unsafe { next.as_ref() }
    }

    /// Number of buckets, from the first on, that have moved or soon will: a hint.
    #[inline]
    pub(super) fn progress(&self) -> usize {
        self.claimed.load(Ordering::Relaxed)
    }

    #[inline]
    fn index(&self, bucket: u64) -> usize {
        bucket as usize & (self.table.len() - 1)
    }

    #[inline]
    fn has_moved(&self, bucket: u64) -> bool {
        self.table.word(self.index(bucket), 0) == Word::MOVED
    }
}

/// What the table has to ask about items.
pub(super) trait ItemHashes {
    /// The hash of the item's key. Called only with references that a slot named after the view was
    /// taken.
    fn hash(&self, reference: u64) -> u64;

    /// A hint that the item's hash will be asked for. The reference may be stale.
    fn prefetch(&self, reference: u64);

    /// The other bucket of the item that `word`, seen in `bucket`, names.
    #[inline]
    fn other<const SLOTS: usize>(&self, table: &Table<SLOTS>, bucket: usize, word: Word) -> usize {
        table.other(bucket, word.tag())
    }
}

/// What a hash says: a tag, and two bucket numbers of which a table of any size takes the low bits.
#[derive(Clone, Copy)]
pub(super) struct BucketPair {
    pub(super) tag: Tag,
    pub(super) buckets: [u64; 2],
}

impl BucketPair {
    #[inline]
    pub(super) fn of<const SLOTS: usize>(hash: u64) -> Self {
        let tag = Geometry::<SLOTS>::tag(hash);
        Self { tag, buckets: [hash, hash ^ tag.offset()] }
    }
}

/// A slot, and the word that was loaded from it.
#[derive(Clone, Copy)]
pub(super) struct SlotSnapshot<'g, const SLOTS: usize> {
    pub(super) layer: &'g Layer<SLOTS>,
    pub(super) bucket: usize,
    pub(super) slot: usize,
    pub(super) word: Word,
}

/// The result of an insert.
pub(super) enum Insertion {
    /// The item is in the table.
    Done,
    /// The item is in the table, in the slot of this one, which is no longer in the table.
    Evicted(Word),
    /// The key is in the table already.
    Present,
    /// No path to an empty slot was found.
    Full,
    /// Every path that was found changed before it could be walked.
    Again,
}

/// A cuckoo table that grows in steps, with its stripes.
pub(super) struct Cuckoo<const SLOTS: usize> {
    root: AtomicPtr<Layer<SLOTS>>,
    stripes: Stripes,
    pub(super) scans: Scans,
}

/// The table as one thread sees it: layers that stay while `'g` lasts.
#[derive(Clone, Copy)]
pub(super) struct View<'g, const SLOTS: usize> {
    pub(super) root: &'g Layer<SLOTS>,
    pub(super) stripes: &'g Stripes,
    pub(super) cuckoo: &'g Cuckoo<SLOTS>,
}

impl<const SLOTS: usize> Cuckoo<SLOTS> {
    pub(super) fn new(table: Table<SLOTS>, stripes: usize) -> Self {
        let stripes = Stripes::new(stripes.min(table.len()));
        let root = AtomicPtr::new(Box::into_raw(Box::new(Layer::new(table))));
        Self { root, stripes, scans: Scans::default() }
    }

    /// The table as it is now.
    ///
    /// # Safety
    ///
    /// No layer that [`View::finish_growth`] returns from now on is dropped while `'g` lasts: the
    /// caller is pinned, and layers are dropped after a grace period.
    #[inline]
    pub(super) unsafe fn view<'g>(&'g self) -> View<'g, SLOTS> {
        // Acquire pairs with the release in `finish_growth` and with the start of the table.
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: never null; the caller keeps it alive.
        View { root: unsafe { &*root }, stripes: &self.stripes, cuckoo: self }
    }

    /// The size of the stripes' counters in bytes.
    pub(super) fn stripe_bytes(&self) -> usize {
        self.stripes.bytes()
    }
}

impl<const SLOTS: usize> Drop for Cuckoo<SLOTS> {
    fn drop(&mut self) {
        let mut layer = self.root.load(Ordering::Relaxed);
        while !layer.is_null() {
            // SAFETY: made by `Box::into_raw`; no other thread has the table any more, and a layer
            // is in the chain once.
            let owned = unsafe { Box::from_raw(layer) };
            layer = owned.next.load(Ordering::Relaxed);
        }
    }
}

impl<'g, const SLOTS: usize> View<'g, SLOTS> {
    /// The last layer: the one that the table is growing to, or the only one.
    pub(super) fn last(&self) -> &'g Layer<SLOTS> {
        let mut layer = self.root;
        while let Some(next) = layer.next() {
            layer = next;
        }
        layer
    }

    /// Where a bucket's items most likely are: exact while the table does not grow.
    #[inline]
    fn likely(&self, bucket: u64) -> (&'g Layer<SLOTS>, usize) {
        let index = self.root.index(bucket);
        match self.root.next() {
            Some(next) if index < self.root.progress() => (next, next.index(bucket)),
            _ => (self.root, index),
        }
    }

    /// The bucket of [`View::likely`].
    #[inline]
    pub(super) fn likely_bucket(&self, bucket: u64) -> &'g Bucket<SLOTS> {
        let (layer, index) = self.likely(bucket);
        layer.table.bucket(index)
    }

    /// Prefetches both buckets.
    #[inline]
    pub(super) fn prefetch(&self, pair: &BucketPair) {
        pair.buckets.into_iter().for_each(|bucket| self.prefetch_bucket(bucket));
    }

    /// Prefetches one bucket.
    #[inline]
    pub(super) fn prefetch_bucket(&self, bucket: u64) {
        let (layer, index) = self.likely(bucket);
        layer.table.prefetch(index);
    }

    /// The first slot with the right tag, where the buckets most likely are. Its word was in the
    /// table, so it is a hit if its item is the one searched for; anything else means nothing.
    #[inline]
    pub(super) fn optimistic_probe<P: Probe>(&self, pair: &BucketPair) -> SlotSnapshot<'g, SLOTS> {
        let places = pair.buckets.map(|bucket| self.likely(bucket));
        let buckets = places.map(|(layer, bucket)| layer.table.bucket(bucket));
        let slot = first_match::<P, SLOTS>(buckets, pair.tag);
        let (layer, bucket) = places[slot / SLOTS % 2];
        let slot = slot % SLOTS;
        SlotSnapshot { layer, bucket, slot, word: layer.table.word(bucket, slot) }
    }

    /// As [`View::optimistic_probe`], in one bucket.
    #[inline]
    pub(super) fn probe_bucket<P: Probe>(&self, bucket: u64, tag: Tag) -> SlotSnapshot<'g, SLOTS> {
        let (layer, bucket) = self.likely(bucket);
        let words = layer.table.bucket(bucket);
        let slot = first_match::<P, SLOTS>([words, words], tag) % SLOTS;
        SlotSnapshot { layer, bucket, slot, word: layer.table.word(bucket, slot) }
    }

    /// The word of [`View::optimistic_probe`]. Which of the two buckets has the item is as good as
    /// random, so no branch depends on it: the processor goes on with the next key meanwhile.
    #[inline]
    pub(super) fn optimistic_probe_word<P: Probe>(&self, pair: &BucketPair) -> Word {
        let [first, second] = match self.root.next() {
            None => pair.buckets.map(|bucket| self.root.table.bucket(bucket as usize)),
            Some(_) => pair.buckets.map(|bucket| self.likely_bucket(bucket)),
        };
        let slot = first_match::<P, SLOTS>([first, second], pair.tag);
        let bucket = select_unpredictable(slot < SLOTS, first, second);
        // Acquire pairs with the release of the store that published the item.
        Word(bucket[slot % SLOTS].load(Ordering::Acquire))
    }

    /// The slot of the item that `is_wanted` accepts, or None if the table has none. `is_wanted` is
    /// called with words that have the right tag. A miss is validated: no item of the two buckets
    /// was moved while they were searched.
    #[inline]
    pub(super) fn validated_lookup(
        &self,
        pair: &BucketPair,
        mut is_wanted: impl FnMut(Word) -> bool,
    ) -> Option<SlotSnapshot<'g, SLOTS>> {
        for round in 0..OPTIMISTIC_ROUNDS {
            let Some(snapshot) = self.stripes.begin_read(pair.buckets) else {
                spin(round);
                continue;
            };
            let found = self.search_pair(pair, &mut is_wanted);
            if found.is_some() || self.stripes.is_unchanged(pair.buckets, snapshot) {
                return found;
            }
        }
        let _held = self.stripes.lock_both(pair.buckets);
        self.search_pair(pair, &mut is_wanted)
    }

    /// Searches both buckets once. What it finds was in the table; None means something only if
    /// nothing moved meanwhile.
    #[inline]
    pub(super) fn search_pair(
        &self,
        pair: &BucketPair,
        is_wanted: &mut impl FnMut(Word) -> bool,
    ) -> Option<SlotSnapshot<'g, SLOTS>> {
        pair.buckets.iter().find_map(|bucket| self.search_bucket(*bucket, pair.tag, is_wanted))
    }

    fn search_bucket(
        &self,
        bucket: u64,
        tag: Tag,
        is_wanted: &mut impl FnMut(Word) -> bool,
    ) -> Option<SlotSnapshot<'g, SLOTS>> {
        let mut layer = self.root;
        loop {
            let index = layer.index(bucket);
            let mut has_moved = false;
            for slot in 0..SLOTS {
                let word = layer.table.word(index, slot);
                if word.tag() == tag && is_wanted(word) {
                    return Some(SlotSnapshot { layer, bucket: index, slot, word });
                }
                has_moved |= word == Word::MOVED;
            }
            // The mark was stored after the next layer was linked and filled.
            layer = layer.next().filter(|_| has_moved)?;
        }
    }

    /// The layer in which a bucket is valid, and its index there. Both stay while the caller holds
    /// its stripe.
    pub(super) fn current_bucket(&self, bucket: u64) -> (&'g Layer<SLOTS>, usize) {
        let mut layer = self.root;
        while layer.has_moved(bucket) {
            layer = layer.next().expect("a moved bucket has a next layer");
        }
        (layer, layer.index(bucket))
    }

    /// Runs `action` under the stripe of a slot and returns its result, or None if the slot's word
    /// has changed. Other writers cannot change the item while `action` runs.
    #[inline]
    pub(super) fn under_lock<R>(
        &self,
        place: &SlotSnapshot<'g, SLOTS>,
        action: impl FnOnce() -> R,
    ) -> Option<R> {
        let held = self.stripes.lock(place.bucket as u64);
        self.still_there(place, &held).then(action)
    }

    fn still_there(&self, place: &SlotSnapshot<'g, SLOTS>, _held: &StripeGuard<'_>) -> bool {
        place.layer.table.word(place.bucket, place.slot) == place.word
    }

    /// Stores `new` ([`Word::EMPTY`] to unlink) in a slot that was loaded under the stripe that is
    /// still held.
    #[inline]
    pub(super) fn put(&self, place: &SlotSnapshot<'g, SLOTS>, new: Word, held: &StripeGuard<'_>) {
        debug_assert!(self.still_there(place, held), "it was loaded under this stripe");
        place.layer.table.store(place.bucket, place.slot, new);
    }

    /// Stores `new` ([`Word::EMPTY`] to unlink) in a slot, if its word has not changed and
    /// `prepare`, called under the lock, returns true. Returns whether it did.
    #[inline]
    pub(super) fn exchange(
        &self,
        place: &SlotSnapshot<'g, SLOTS>,
        new: Word,
        prepare: impl FnOnce() -> bool,
    ) -> bool {
        let held = self.stripes.lock(place.bucket as u64);
        if !self.still_there(place, &held) || !prepare() {
            return false;
        }
        // The linearization point of a replacement or removal.
        self.put(place, new, &held);
        true
    }

    /// [`View::exchange`] of the word `old`, in whichever slot it is by now.
    pub(super) fn exchange_anywhere(
        &self,
        pair: &BucketPair,
        old: Word,
        new: Word,
        prepare: impl FnOnce() -> bool,
    ) -> bool {
        let held = self.stripes.lock_both(pair.buckets);
        let Some(place) = self.search_pair(pair, &mut |word| word == old) else { return false };
        if !self.still_there(&place, &held) || !prepare() {
            return false;
        }
        // The linearization point of an eviction, and of the move of an item in memory.
        self.put(&place, new, &held);
        true
    }

    /// Links `word` unless the key is in the table. `is_same_key` is called with words that have
    /// the same tag.
    pub(super) fn insert(
        &self,
        pair: &BucketPair,
        word: Word,
        mut is_same_key: impl FnMut(Word) -> bool,
        items: &impl ItemHashes,
        paths: &mut PathFinder,
    ) -> Insertion {
        for _ in 0..INSERT_ROUNDS {
            let held = self.stripes.lock_both(pair.buckets);
            if self.search_pair(pair, &mut is_same_key).is_some() {
                return Insertion::Present;
            }
            let [first, second] = pair.buckets.map(|bucket| self.current_bucket(bucket));
            if let Some((layer, bucket, slot)) = find_empty_slot(first, second) {
                // The linearization point.
                layer.table.store(bucket, slot, word);
                return Insertion::Done;
            }
            drop(held);
            if self.root.next().is_some() {
                let before = pair.buckets.map(|bucket| self.settle(bucket, items));
                if before.contains(&true) {
                    // A bucket that was split nearly always has an empty slot.
                    continue;
                }
            }
            let layer = self.last();
            let starts = pair.buckets.map(|bucket| layer.index(bucket));
            let mut settle = |bucket: usize| {
                self.settle(bucket as u64, items);
            };
            let other = |bucket: usize, word: Word| items.other(&layer.table, bucket, word);
            match paths.find(&layer.table, starts, &mut settle, &other) {
                Some(path) => self.displace_along(layer, path),
                // The table began to grow meanwhile: the search met buckets that had moved on.
                None if layer.next().is_some() => {}
                None => return Insertion::Full,
            }
        }
        Insertion::Again
    }

    /// Links `word` unless the key is in the table; if both buckets are full, in place of another
    /// item. `choose` picks the victim's slot from the words of a bucket. Readers find exactly one
    /// of the two keys.
    pub(super) fn insert_over(
        &self,
        pair: &BucketPair,
        word: Word,
        mut is_same_key: impl FnMut(Word) -> bool,
        choose: impl FnOnce(&[Word; SLOTS]) -> usize,
    ) -> Insertion {
        let _held = self.stripes.lock_both(pair.buckets);
        if self.search_pair(pair, &mut is_same_key).is_some() {
            return Insertion::Present;
        }
        let [first, second] = pair.buckets.map(|bucket| self.current_bucket(bucket));
        if let Some((layer, bucket, slot)) = find_empty_slot(first, second) {
            layer.table.store(bucket, slot, word);
            return Insertion::Done;
        }
        let (layer, bucket) = first;
        let words = std::array::from_fn(|slot| layer.table.word(bucket, slot));
        let slot = choose(&words);
        // The linearization point of both, the eviction right before the insert.
        layer.table.store(bucket, slot, word);
        Insertion::Evicted(words[slot])
    }

    /// Moves the items of a path, the last one first, as long as they are where the path saw them.
    fn displace_along(&self, layer: &'g Layer<SLOTS>, path: &[PathStep]) {
        for pair in path.windows(2).rev() {
            if !self.displace(layer, &pair[0], &pair[1]) {
                return;
            }
        }
    }

    /// Moves one item to the empty slot `to`, its other bucket.
    fn displace(&self, layer: &'g Layer<SLOTS>, from: &PathStep, to: &PathStep) -> bool {
        let mut held = self.stripes.lock_both([from.bucket as u64, to.bucket as u64]);
        let table = &layer.table;
        if table.word(from.bucket, from.slot) != from.word
            || table.word(to.bucket, to.slot) != Word::EMPTY
        {
            return false;
        }
        self.cuckoo.scans.log_move(table.len(), from.bucket, to.bucket, from.word.tag());
        held.begin_move();
        // The copy is stored before the original is emptied: a reader that does not validate finds
        // the item at one end or the other.
        table.store(to.bucket, to.slot, from.word);
        table.store(from.bucket, from.slot, Word::EMPTY);
        true
    }

    /// Links `next` as the layer that all items move to.
    ///
    /// # Errors
    ///
    /// `next`, if the table grows or has grown already.
    pub(super) fn grow(&self, next: Box<Layer<SLOTS>>) -> Result<(), Box<Layer<SLOTS>>> {
        assert_eq!(next.table.len(), 2 * self.root.table.len(), "a table grows by doubling");
        let next = Box::into_raw(next);
        let null = std::ptr::null_mut();
        // Release publishes the layer; pairs with the acquire in `Layer::next`.
        match self.root.next.compare_exchange(null, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            // SAFETY: made above and not published.
            Err(_) => Err(unsafe { Box::from_raw(next) }),
        }
    }

    /// Moves the next `count` buckets, or as many as are left. Returns whether any were left.
    pub(super) fn step(&self, count: usize, items: &impl ItemHashes) -> bool {
        /// How many buckets ahead items are prefetched; their buckets twice as many.
        const AHEAD: usize = 4;
        let len = self.root.table.len();
        if self.root.next().is_none() || self.root.progress() >= len {
            return false;
        }
        let from = self.root.claimed.fetch_add(count, Ordering::Relaxed);
        let to = len.min(from.saturating_add(count));
        for bucket in from..to {
            self.root.table.prefetch((bucket + 2 * AHEAD) & (len - 1));
            for slot in 0..SLOTS {
                let word = self.root.table.word((bucket + AHEAD) & (len - 1), slot);
                if word.is_item() {
                    items.prefetch(word.reference());
                }
            }
            self.move_bucket(self.root, bucket as u64, items);
        }
        from < len
    }

    /// Moves all buckets that have not moved, including those that other threads have claimed: they
    /// may not run for long. Afterwards [`View::finish_growth`] succeeds, in this thread or
    /// another.
    pub(super) fn move_all(&self, items: &impl ItemHashes) {
        if self.root.next().is_some() {
            for bucket in 0..self.root.table.len() {
                self.move_bucket(self.root, bucket as u64, items);
            }
        }
    }

    /// Moves a bucket to the last layer. Returns whether this call moved anything.
    fn settle(&self, bucket: u64, items: &impl ItemHashes) -> bool {
        let mut layer = self.root;
        let mut has_moved = false;
        while let Some(next) = layer.next() {
            has_moved |= self.move_bucket(layer, bucket, items);
            layer = next;
        }
        has_moved
    }

    /// Moves a bucket of `layer` to the two buckets of the next layer that it is split into.
    /// Returns false if it had moved before.
    fn move_bucket(&self, layer: &'g Layer<SLOTS>, bucket: u64, items: &impl ItemHashes) -> bool {
        let next = layer.next().expect("the caller looked");
        let index = layer.index(bucket);
        if layer.has_moved(bucket) {
            return false;
        }
        let target_of = |word: Word| {
            if !word.is_item() {
                return index;
            }
            let pair = BucketPair::of::<SLOTS>(items.hash(word.reference()));
            let [first, second] = pair.buckets;
            next.index(if layer.index(first) == index { first } else { second })
        };
        // The targets are found before the stripe is locked: reading keys takes most of the time.
        let mut words: [Word; SLOTS] = std::array::from_fn(|slot| layer.table.word(index, slot));
        let mut targets = words.map(target_of);
        let mut held = self.stripes.lock(bucket);
        if layer.has_moved(bucket) {
            return false;
        }
        for slot in 0..SLOTS {
            let word = layer.table.word(index, slot);
            if word != words[slot] {
                (words[slot], targets[slot]) = (word, target_of(word));
            }
        }
        held.begin_move();
        for (word, target) in words.into_iter().zip(targets) {
            debug_assert_eq!(target & (layer.table.len() - 1), index, "a bucket is split in two");
            if word.is_item() {
                // No other thread writes there before the mark below is stored, and each half has
                // as many slots as the whole had.
                let slot =
                    next.table.empty_slot(target).expect("a half has as many slots as the whole");
                next.table.store(target, slot, word);
            }
        }
        // Release, and acquire for the thread that counts the last: all moves come before the end.
        // Counted before the marks, so that a thread that sees every bucket marked can end the
        // growth. Threads that start at the next layer from then on find the items there, and write
        // there only with the stripe.
        layer.moved.fetch_add(1, Ordering::AcqRel);
        for slot in 0..SLOTS {
            layer.table.store(index, slot, Word::MOVED);
        }
        true
    }

    /// Takes the first layer out if all of its buckets have moved, and another thread has not done
    /// so. The caller keeps the layer until a grace period has passed.
    pub(super) fn finish_growth(&self) -> Option<Box<Layer<SLOTS>>> {
        let next = self.root.next()?;
        if self.root.moved.load(Ordering::Acquire) < self.root.table.len() {
            return None;
        }
        let next = std::ptr::from_ref(next).cast_mut();
        let root = std::ptr::from_ref(self.root).cast_mut();
        // Release: a thread that starts at the next layer finds the moved items there.
        let root =
            self.cuckoo.root.compare_exchange(root, next, Ordering::AcqRel, Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`; the exchange succeeds once for each layer, so no
        // other thread takes this one, and the caller drops it after a grace period.
        root.ok().map(|root| unsafe { Box::from_raw(root) })
    }
}

/// The first slot of two buckets with `tag`; those of the second count from `SLOTS` on. Any slot,
/// or one beyond the last, if there is none.
#[inline]
fn first_match<P: Probe, const SLOTS: usize>(buckets: [&Bucket<SLOTS>; 2], tag: Tag) -> usize {
    let matches = P::matches(buckets[0], buckets[1], tag);
    (matches.trailing_zeros() >> P::SHIFT) as usize
}

/// The word of the first slot with `tag` of one bucket, and whether there is one.
#[inline]
pub(super) fn first_word<P: Probe, const SLOTS: usize>(
    bucket: &Bucket<SLOTS>,
    tag: Tag,
) -> (Word, bool) {
    let slot = first_match::<P, SLOTS>([bucket, bucket], tag);
    // Acquire pairs with the release of the store that published the item.
    (Word(bucket[slot % SLOTS].load(Ordering::Acquire)), slot < SLOTS)
}

/// An empty slot, in the first bucket if it has one: then three of four keys are where a batch of
/// reads probes first.
fn find_empty_slot<'g, const SLOTS: usize>(
    first: (&'g Layer<SLOTS>, usize),
    second: (&'g Layer<SLOTS>, usize),
) -> Option<(&'g Layer<SLOTS>, usize, usize)> {
    let empty_slot = |(layer, bucket): (&'g Layer<SLOTS>, usize)| {
        layer.table.empty_slot(bucket).map(|slot| (layer, bucket, slot))
    };
    empty_slot(first).or_else(|| empty_slot(second))
}
