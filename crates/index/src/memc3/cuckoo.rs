//! The concurrent table: words that name items, in buckets that a hash points at.
//!
//! Nothing here knows what an item looks like: whoever calls says whether a reference is the one it
//! looks for, and (while the table grows) what an item's hash is. So loom can run this file whole.
//!
//! A table that grows is a chain of layers, each twice the one before. A bucket of a layer either
//! holds items or is marked moved; then what it held is in the next layer. A bucket of the last
//! layer counts only once the bucket that it was split from has moved.
//!
//! Invariants:
//! 1. A word that names an item is in one of the two buckets of its hash, in the layer where these
//!    count; in two slots at once only while a mover holds both stripes.
//! 2. Words change under the stripe of their bucket only. A move holds the stripes of both ends and
//!    marks them ([`StripeGuard::begin_move`]).
//! 3. A writer that cannot find an empty slot moves both buckets to the last layer before it looks
//!    for a path there, and paths visit buckets only that count in that layer.
//! 4. A key has one word at most: who inserts holds both stripes and has looked at both buckets.
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

/// Optimistic looks of a reader before it takes the locks: a bound, not a tuning knob.
pub(super) const OPTIMISTIC_ROUNDS: u32 = if cfg!(loom) { 2 } else { 64 };
/// How often an insert looks for a path again because others changed what it had found.
const INSERT_ROUNDS: usize = if cfg!(loom) { 2 } else { 64 };
/// Version counters of a table unless told otherwise, as in the paper.
pub(super) const STRIPES: usize = 8192;

/// A table of one size, and the one that it is being moved to.
pub(super) struct Layer<const SLOTS: usize> {
    pub(super) table: Table<SLOTS>,
    next: AtomicPtr<Self>,
    /// Buckets handed to those who move them in order.
    claimed: AtomicUsize,
    /// Buckets that have moved.
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

    /// How far the buckets that move in order have got: a hint.
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

/// What an index knows about its items and the table does not.
pub(super) trait ItemHashes {
    /// The hash of the item's key. The table calls it with what a slot named since the view was
    /// taken.
    fn hash(&self, reference: u64) -> u64;

    /// The item's hash will be asked for; a hint, the reference may be stale.
    fn prefetch(&self, reference: u64);

    /// The other bucket of the item that `word`, seen in `bucket`, names.
    #[inline]
    fn other<const SLOTS: usize>(&self, table: &Table<SLOTS>, bucket: usize, word: Word) -> usize {
        table.other(bucket, word.tag())
    }
}

/// A hash, and the two buckets that it points at in a table of any size: their low bits count.
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

/// Where a word was seen.
#[derive(Clone, Copy)]
pub(super) struct SlotSnapshot<'g, const SLOTS: usize> {
    pub(super) layer: &'g Layer<SLOTS>,
    pub(super) bucket: usize,
    pub(super) slot: usize,
    pub(super) word: Word,
}

/// What came of an insert.
pub(super) enum Insertion {
    /// The item is in the table.
    Done,
    /// The item is in the table, where this one was.
    Evicted(Word),
    /// The key was there already.
    Present,
    /// No path to an empty slot was found.
    Full,
    /// Each path that was found had changed before it could be walked.
    Again,
}

/// See the head of this file.
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
    /// While `'g` lasts no layer that [`View::finish_growth`] hands out from now on is dropped: the
    /// caller is pinned, and layers are dropped after a grace period.
    #[inline]
    pub(super) unsafe fn view<'g>(&'g self) -> View<'g, SLOTS> {
        // Acquire pairs with the release in `finish_growth` and with the start of the table.
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: never null; the caller keeps it alive.
        View { root: unsafe { &*root }, stripes: &self.stripes, cuckoo: self }
    }

    /// Bytes of the counters.
    pub(super) fn stripe_bytes(&self) -> usize {
        self.stripes.bytes()
    }
}

impl<const SLOTS: usize> Drop for Cuckoo<SLOTS> {
    fn drop(&mut self) {
        let mut layer = self.root.load(Ordering::Relaxed);
        while !layer.is_null() {
            // SAFETY: made by `Box::into_raw`; nobody else has the table any more, and a layer is
            // in the chain once.
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

    /// Where a bucket is looked at first: exact while the table does not grow, a good guess while
    /// it does.
    #[inline]
    fn likely(&self, bucket: u64) -> (&'g Layer<SLOTS>, usize) {
        let index = self.root.index(bucket);
        match self.root.next() {
            Some(next) if index < self.root.progress() => (next, next.index(bucket)),
            _ => (self.root, index),
        }
    }

    /// As [`View::likely`]: the bucket itself.
    #[inline]
    pub(super) fn likely_bucket(&self, bucket: u64) -> &'g Bucket<SLOTS> {
        let (layer, index) = self.likely(bucket);
        layer.table.bucket(index)
    }

    /// Asks the memory system for both buckets.
    #[inline]
    pub(super) fn prefetch(&self, pair: &BucketPair) {
        pair.buckets.into_iter().for_each(|bucket| self.prefetch_bucket(bucket));
    }

    /// Asks for one of them.
    #[inline]
    pub(super) fn prefetch_bucket(&self, bucket: u64) {
        let (layer, index) = self.likely(bucket);
        layer.table.prefetch(index);
    }

    /// The first slot with the right tag where it most likely is. Its word was in the table, so if
    /// its item is the one looked for that is a hit; anything else means nothing.
    #[inline]
    pub(super) fn optimistic_probe<P: Probe>(&self, pair: &BucketPair) -> SlotSnapshot<'g, SLOTS> {
        let places = pair.buckets.map(|bucket| self.likely(bucket));
        let buckets = places.map(|(layer, bucket)| layer.table.bucket(bucket));
        let slot = first_match::<P, SLOTS>(buckets, pair.tag);
        let (layer, bucket) = places[slot / SLOTS % 2];
        let slot = slot % SLOTS;
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

    /// The slot whose item is looked for, or none if no item in the table is. `is_wanted` gets
    /// words with the right tag.
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

    /// One look at both buckets. What it finds was there; that it finds nothing means something
    /// only if nothing moved meanwhile.
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

    /// Where a bucket counts. Stays so while the caller holds its stripe.
    pub(super) fn current_bucket(&self, bucket: u64) -> (&'g Layer<SLOTS>, usize) {
        let mut layer = self.root;
        while layer.has_moved(bucket) {
            layer = layer.next().expect("a moved bucket has a next layer");
        }
        (layer, layer.index(bucket))
    }

    /// Runs `action` under the stripe of a place, if its word is still there: what it finds out
    /// about the item named there cannot change before `action` ends.
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

    /// Puts `new` (or nothing) where a word was seen under the stripe that is still held.
    #[inline]
    pub(super) fn put(&self, place: &SlotSnapshot<'g, SLOTS>, new: Word, held: &StripeGuard<'_>) {
        debug_assert!(self.still_there(place, held), "it was seen under this stripe");
        place.layer.table.store(place.bucket, place.slot, new);
    }

    /// Puts `new` (or nothing) where a word was seen, if it is still there. `prepare` runs before,
    /// under the lock.
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

    /// As [`View::exchange`], wherever `old` has been moved to since it was seen.
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

    /// Links `word` unless the key is there. `is_same_key` gets words with the same tag.
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
            if let Some((layer, bucket, slot)) = room(first, second) {
                // The linearization point.
                layer.table.store(bucket, slot, word);
                return Insertion::Done;
            }
            drop(held);
            if self.root.next().is_some() {
                let before = pair.buckets.map(|bucket| self.settle(bucket, items));
                if before.contains(&true) {
                    // A bucket that was split has room nearly always.
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

    /// Links `word` unless the key is there, over another item if both buckets are full. `choose`
    /// picks the victim among the words of a bucket: readers then find one of the two keys.
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
        if let Some((layer, bucket, slot)) = room(first, second) {
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
        // First there, then gone: a reader that looks without validation finds it at either end.
        table.store(to.bucket, to.slot, from.word);
        table.store(from.bucket, from.slot, Word::EMPTY);
        true
    }

    /// Starts to move everything to `next`, unless that has begun or the table has grown already.
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

    /// Moves up to `count` buckets, in order. Returns whether any were left to move.
    pub(super) fn step(&self, count: usize, items: &impl ItemHashes) -> bool {
        /// How far ahead buckets and items are asked for.
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

    /// Moves all buckets that have not moved, also those that others have taken on: they may not
    /// get to run for long. [`View::finish_growth`] succeeds afterwards, here or elsewhere.
    pub(super) fn move_all(&self, items: &impl ItemHashes) {
        if self.root.next().is_some() {
            for bucket in 0..self.root.table.len() {
                self.move_bucket(self.root, bucket as u64, items);
            }
        }
    }

    /// Moves a bucket as far as layers go. Returns whether there was anything to do.
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
        // Where they go is found out before others are told to wait: it takes most of the time.
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
                // Nobody else writes there before the mark below is up, and each half has as many
                // slots as the whole had.
                let slot = next.table.empty_slot(target).expect("a half has room for the whole");
                next.table.store(target, slot, word);
            }
        }
        // Release, and acquire for who counts the last: all moves come before the end. Counted
        // before the marks, so that who sees every bucket marked can end the growth. Who starts at
        // the next layer from then on finds the items there, and writes there only with the stripe.
        layer.moved.fetch_add(1, Ordering::AcqRel);
        for slot in 0..SLOTS {
            layer.table.store(index, slot, Word::MOVED);
        }
        true
    }

    /// Takes the first layer out once everything in it has moved. The caller keeps it until a
    /// grace period has passed.
    pub(super) fn finish_growth(&self) -> Option<Box<Layer<SLOTS>>> {
        let next = self.root.next()?;
        if self.root.moved.load(Ordering::Acquire) < self.root.table.len() {
            return None;
        }
        let next = std::ptr::from_ref(next).cast_mut();
        let root = std::ptr::from_ref(self.root).cast_mut();
        // Release: who starts at the next layer finds there what was moved.
        let root =
            self.cuckoo.root.compare_exchange(root, next, Ordering::AcqRel, Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`; the exchange succeeds once for each layer, so nobody
        // else takes this one, and the caller drops it when nobody looks at it any more.
        root.ok().map(|root| unsafe { Box::from_raw(root) })
    }
}

/// The first slot of two buckets with `tag`, the second's behind the first's. Any other, or one
/// behind them all, where there is none.
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

/// An empty slot, in the first bucket if it has one: three of four keys then are where a batch of
/// reads looks first.
fn room<'g, const SLOTS: usize>(
    first: (&'g Layer<SLOTS>, usize),
    second: (&'g Layer<SLOTS>, usize),
) -> Option<(&'g Layer<SLOTS>, usize, usize)> {
    let empty_slot = |(layer, bucket): (&'g Layer<SLOTS>, usize)| {
        layer.table.empty_slot(bucket).map(|slot| (layer, bucket, slot))
    };
    empty_slot(first).or_else(|| empty_slot(second))
}
