//! Reads: no lock, and no store to shared memory but in an item's header, that it was read.
//!
//! A read takes these steps, in this order; nearly every hit ends with step 2:
//! 1. *Optimistic probe*: compare the tag with all slots of both buckets, and load the first word
//!    that matches. No version counter is read. (A batch does this in two pipeline stages, so that
//!    the lines of one key arrive while others are compared.)
//! 2. *Predicted hit*: the item that the word names has the header that the last items had, and
//!    the key: a hit, which takes effect at the load of the word.
//! 3. *Slow path*: the item has the key but another header: a hit as well, and the worker learns
//!    its header.
//! 4. *Validated lookup* ([`View::validated_lookup`]): anything else. Only this step answers
//!    misses.

use std::hint::select_unpredictable;
use std::ops::ControlFlow;

use amalgam_op::{Key, Now};

use super::cuckoo::{BucketPair, View, first_word};
use super::item_table::ItemTable;
use super::probe::Probe;
use super::table::Bucket;
use super::word::{Geometry, Word};
use crate::mem::{Guard, HeaderPredictor, Item, ItemRef, prefetch};
use crate::software_pipeline;
use crate::{Found, Sink};

/// The part of a worker that reads need: the table, and what earlier reads learned.
pub(super) struct Reader<'i, const SLOTS: usize> {
    pub(super) items: &'i ItemTable<SLOTS>,
    /// Predicts the header of the next item that is read.
    pub(super) predictor: HeaderPredictor,
}

impl<const SLOTS: usize> Reader<'_, SLOTS> {
    /// Stage 2 of a batch: loads the word with the key's tag from the bucket that stage 1 chose,
    /// and prefetches its item.
    #[inline(always)]
    pub(super) fn probe_chosen_bucket<P: Probe>(
        &self,
        bucket: &Bucket<SLOTS>,
        pair: &BucketPair,
    ) -> Word {
        let (word, _) = first_word::<P, SLOTS>(bucket, pair.tag);
        self.items.prefetch_item(word, &self.predictor);
        word
    }

    /// Stage 1 of a batch: probes the first bucket of a key, and prefetches the item if the tag is
    /// there, else the second bucket. Returns the number of the bucket to probe next, and that
    /// bucket. Which one it is is as good as random, so no branch depends on it.
    #[inline(always)]
    pub(super) fn probe_first_bucket<'g, P: Probe>(
        &self,
        view: &View<'g, SLOTS>,
        pair: &BucketPair,
    ) -> (usize, &'g Bucket<SLOTS>) {
        let [first, second] = pair.buckets.map(|bucket| view.likely_bucket(bucket));
        let (word, is_there) = first_word::<P, SLOTS>(first, pair.tag);
        // If the word is another key's with the same tag, this fetches a line in vain.
        let item = self.items.memory.address_of(word.reference());
        let next = select_unpredictable(is_there, item, second.as_ptr().cast());
        let reach_bytes = select_unpredictable(is_there, self.predictor.reach_bytes(), 0);
        prefetch(next);
        prefetch(next.wrapping_add(reach_bytes));
        (usize::from(!is_there), select_unpredictable(is_there, first, second))
    }
}

/// The reads of one call, in the order in which their steps are carried out.
pub(super) struct Reads<'r, 'i, 'g, const SLOTS: usize, S> {
    pub(super) reader: &'r mut Reader<'i, SLOTS>,
    pub(super) view: View<'g, SLOTS>,
    /// Keeps alive the items that words loaded from `view` name.
    pub(super) guard: &'g Guard<'g>,
    pub(super) now: &'r Now,
    pub(super) sink: &'r mut S,
}

impl<'i: 'g, 'g, const SLOTS: usize, S: Sink> Reads<'_, 'i, 'g, SLOTS, S> {
    /// Reads the one key of the call. Short, because the processor overlaps as many reads as fit
    /// its window.
    #[inline(always)]
    pub(super) fn read_one<P: Probe>(mut self, key: &Key<'_>) {
        let word = self.view.optimistic_probe_word::<P>(&BucketPair::of::<SLOTS>(key.hash()));
        // No key follows this one, so a break of the sink has nothing to stop.
        let _ = self.answer(0, key, word, |_| ());
    }

    /// Reads all keys of the call, in a software pipeline. Returns how many were answered.
    ///
    /// Random cache lines are what a batch takes its time for, and most keys lie in their first
    /// bucket: the second is fetched only if no slot of the first has the tag.
    #[inline]
    pub(super) fn read_batch<P: Probe>(mut self, keys: &[Key<'_>]) -> usize {
        // Per key: the bucket that holds it if any does, then the word found there.
        let nothing = (self.view.likely_bucket(0), Word::EMPTY);
        software_pipeline::run::<2, 16, _, _>(
            &mut self,
            keys.len(),
            nothing,
            |reads, at| reads.view.prefetch_bucket(keys[at].hash()),
            |reads, at, stage, (bucket, word)| {
                let pair = BucketPair::of::<SLOTS>(keys[at].hash());
                if stage == 0 {
                    *bucket = reads.reader.probe_first_bucket::<P>(&reads.view, &pair).1;
                } else {
                    *word = reads.reader.probe_chosen_bucket::<P>(bucket, &pair);
                }
            },
            |reads, at, (_, word), later| {
                let hash = keys[at].hash();
                reads.answer(at, &keys[at], word, |reader| {
                    let is_same = |other: usize| keys[other].hash() == hash;
                    later.renew(at, is_same, |_, (bucket, word)| {
                        *word =
                            reader.probe_chosen_bucket::<P>(bucket, &BucketPair::of::<SLOTS>(hash));
                    });
                })
            },
        )
    }

    /// Answers `key`, whose item `word` most likely names: at once if the item has the key and the
    /// predicted header, as nearly all have where items are of a kind. Calls `renew` if it had to
    /// look at the table anew: what was found for later keys of the batch is older.
    ///
    /// Always inlined: the sink ignores most of what it is handed, and the fewer instructions a
    /// read has, the more reads the processor overlaps.
    #[inline(always)]
    fn answer(
        &mut self,
        position: usize,
        key: &Key<'_>,
        word: Word,
        renew: impl FnOnce(&Reader<'i, SLOTS>),
    ) -> ControlFlow<()> {
        let has_tag = word.tag() == Geometry::<SLOTS>::tag(key.hash());
        if has_tag && self.reader.predictor.template().is_live(self.now) {
            let item = self.reader.items.item(word, self.guard);
            if let Some(view) = item.view_as(self.reader.predictor.template(), key.bytes()) {
                let found = Found::in_memory(view, &self.reader.items.memory, item.reference());
                return self.sink.hit(position, &found);
            }
        }
        let word = if has_tag { word } else { Word::EMPTY };
        // A copy, so that nothing takes the address of `self` and its fields stay in registers.
        let copy = Reads { reader: self.reader, sink: self.sink, ..*self };
        copy.answer_slow_path(position, key, word, renew)
    }

    /// Answers `key` if the item of `word` has another header than predicted, or another key.
    /// `word` is [`Word::EMPTY`] if the probe found no word with the key's tag.
    #[inline(never)]
    fn answer_slow_path(
        mut self,
        position: usize,
        key: &Key<'_>,
        word: Word,
        renew: impl FnOnce(&Reader<'i, SLOTS>),
    ) -> ControlFlow<()> {
        let probed = word.is_item().then(|| self.reader.items.item(word, self.guard));
        let item = match probed.filter(|item| item.has_key(key.bytes())) {
            Some(item) => Some(item),
            None => {
                let item = self.validated_lookup(key);
                renew(self.reader);
                item
            }
        };
        self.hand_over(position, item)
    }

    /// The item of `key`, wherever it is.
    #[inline]
    fn validated_lookup(&self, key: &Key<'_>) -> Option<Item<'g>> {
        let is_wanted = |word| self.reader.items.item(word, self.guard).has_key(key.bytes());
        let slot = self.view.validated_lookup(&BucketPair::of::<SLOTS>(key.hash()), is_wanted)?;
        Some(self.reader.items.item(slot.word, self.guard))
    }

    /// Hands an item to the sink, or the fact that there is none.
    pub(super) fn hand_over(&mut self, position: usize, item: Option<Item<'g>>) -> ControlFlow<()> {
        let Some(item) = item else { return self.sink.miss(position) };
        let memory = &self.reader.items.memory;
        self.reader.predictor.show(&item, item.header(), position, self.now, memory, self.sink)
    }
}

impl<const SLOTS: usize> ItemTable<SLOTS> {
    /// Prefetches the first line of the item that `word` names, and the line of its last byte if
    /// it is as long as the last ones. Does nothing if the word names none.
    #[inline]
    pub(super) fn prefetch_item(&self, word: Word, predictor: &HeaderPredictor) {
        if let Some(reference) = ItemRef::from_bits(word.reference()) {
            self.memory.prefetch_item(reference);
            self.memory.prefetch_item_at(reference, predictor.reach_bytes());
        }
    }
}
