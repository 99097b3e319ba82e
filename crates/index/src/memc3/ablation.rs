//! Variants of the engine that leave out parts of what makes it fast, for factor analyses (MemC3's
//! figure 4). A variant is a type, so programs that name [`Standard`] alone contain no other.
//!
//! Reads of an ablated variant come one after the other, without pipeline and prediction.

use amalgam_op::Key;

use super::cuckoo::{BucketPair, ItemHashes, OPTIMISTIC_ROUNDS, SlotSnapshot, View};
use super::item_table::GuardedItems;
use super::read::Reads;
use super::table::Table;
use super::word::Word;
use crate::Sink;

/// The parts of the engine that a variant has.
pub trait Variant: Send + Sync + 'static {
    /// Lookups follow only words with the key's tag, and displacements find an item's other bucket
    /// by its tag. Without: every item of both buckets is compared, and displacements read keys.
    const HAS_TAGS: bool;
    /// Readers validate with version counters. Without: they lock both stripes.
    const READS_OPTIMISTICALLY: bool;
    /// A hit needs no validation, because memory is reused only after a grace period. Without: hits
    /// are validated as misses are, as in the paper, which reuses memory at once.
    const TRUSTS_HITS: bool;
    /// Whether any part is missing.
    const IS_ABLATED: bool = !(Self::HAS_TAGS && Self::READS_OPTIMISTICALLY && Self::TRUSTS_HITS);
}

/// The engine with all its parts.
pub struct Standard;

impl Variant for Standard {
    const HAS_TAGS: bool = true;
    const READS_OPTIMISTICALLY: bool = true;
    const TRUSTS_HITS: bool = true;
}

/// The engine with only those of its parts that are `true`, for measurements.
pub struct Only<const TAGS: bool, const OPTIMISM: bool, const TRUST: bool>;

impl<const TAGS: bool, const OPTIMISM: bool, const TRUST: bool> Variant
    for Only<TAGS, OPTIMISM, TRUST>
{
    const HAS_TAGS: bool = TAGS;
    const READS_OPTIMISTICALLY: bool = OPTIMISM;
    const TRUSTS_HITS: bool = TRUST;
}

impl<'i: 'g, 'g, const SLOTS: usize, S: Sink> Reads<'_, 'i, 'g, SLOTS, S> {
    /// Reads all keys of the call with the parts that `V` has. Returns how many were answered.
    #[inline(never)]
    pub(super) fn read_ablated<V: Variant>(mut self, keys: &[Key<'_>]) -> usize {
        for (position, key) in keys.iter().enumerate() {
            let pair = BucketPair::of::<SLOTS>(key.hash());
            let is_wanted = |word| self.reader.items.item(word, self.guard).has_key(key.bytes());
            let slot = self.view.ablated_lookup::<V>(&pair, is_wanted);
            let item = slot.map(|slot| self.reader.items.item(slot.word, self.guard));
            if self.hand_over(position, item).is_break() {
                return position + 1;
            }
        }
        keys.len()
    }
}

impl<'g, const SLOTS: usize> View<'g, SLOTS> {
    /// [`View::validated_lookup`] with the parts that `V` has.
    pub(super) fn ablated_lookup<V: Variant>(
        &self,
        pair: &BucketPair,
        mut is_wanted: impl FnMut(Word) -> bool,
    ) -> Option<SlotSnapshot<'g, SLOTS>> {
        let mut search = || {
            let search = |bucket: &u64| self.ablated_search::<V>(*bucket, pair, &mut is_wanted);
            pair.buckets.iter().find_map(search)
        };
        if V::READS_OPTIMISTICALLY {
            for round in 0..OPTIMISTIC_ROUNDS {
                let Some(versions) = self.stripes.begin_read(pair.buckets) else {
                    crate::sync::spin(round);
                    continue;
                };
                let found = search();
                if found.is_some() && V::TRUSTS_HITS
                    || self.stripes.is_unchanged(pair.buckets, versions)
                {
                    return found;
                }
            }
        }
        let _held = self.stripes.lock_both(pair.buckets);
        search()
    }

    fn ablated_search<V: Variant>(
        &self,
        bucket: u64,
        pair: &BucketPair,
        is_wanted: &mut impl FnMut(Word) -> bool,
    ) -> Option<SlotSnapshot<'g, SLOTS>> {
        let mut layer = self.root;
        loop {
            let index = bucket as usize & (layer.table.len() - 1);
            let mut has_moved = false;
            for slot in 0..SLOTS {
                let word = layer.table.word(index, slot);
                let is_candidate =
                    if V::HAS_TAGS { word.tag() == pair.tag } else { word.is_item() };
                if is_candidate && is_wanted(word) {
                    return Some(SlotSnapshot { layer, bucket: index, slot, word });
                }
                has_moved |= word == Word::MOVED;
            }
            layer = layer.next().filter(|_| has_moved)?;
        }
    }
}

/// Items whose other bucket is found by their keys instead of their tags.
pub(super) struct UntaggedItems<'k, 'g>(pub(super) &'k GuardedItems<'g>);

impl ItemHashes for UntaggedItems<'_, '_> {
    fn hash(&self, reference: u64) -> u64 {
        self.0.hash(reference)
    }

    fn prefetch(&self, reference: u64) {
        self.0.prefetch(reference);
    }

    fn other<const SLOTS: usize>(&self, table: &Table<SLOTS>, bucket: usize, word: Word) -> usize {
        let hash = self.hash(word.reference());
        let first = table.first(hash);
        let second = table.other(first, BucketPair::of::<SLOTS>(hash).tag);
        if first == bucket { second } else { first }
    }
}
