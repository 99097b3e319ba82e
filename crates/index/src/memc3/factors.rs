//! Operations without some of what makes them fast, for factor analyses (figure 4). Reads come one
//! after the other; everything else is as it always is.

use super::cuckoo::{Items, Place, Spot, View};
use super::store::Keyed;
use super::table::Table;
use super::word::Word;
use crate::Tuning;

/// What can be left out.
pub(super) const FACTORS: &[&str] = &["tag", "optimistic", "trust"];

/// What operations do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Factors {
    /// Every item of both buckets is compared, whatever its tag; the item tells its other bucket.
    pub(super) no_tag: bool,
    /// Readers take the locks of both stripes.
    pub(super) no_optimism: bool,
    /// A hit is validated as a miss is: what the paper needs, which reuses memory at once.
    pub(super) no_trust: bool,
}

impl Factors {
    /// What `tuning` disables, or none if that is nothing.
    pub(super) fn of(tuning: &Tuning) -> Option<Self> {
        let is_disabled = |name: &str| tuning.disabled.iter().any(|disabled| disabled == name);
        let factors = Self {
            no_tag: is_disabled("tag"),
            no_optimism: is_disabled("optimistic"),
            no_trust: is_disabled("trust"),
        };
        (factors != Self::default()).then_some(factors)
    }
}

/// Items that are displaced by what their keys say, not their tags.
pub(super) struct WithoutTags<'k, 'g>(pub(super) &'k Keyed<'g>);

impl Items for WithoutTags<'_, '_> {
    fn hash(&self, reference: u64) -> u64 {
        self.0.hash(reference)
    }

    fn prefetch(&self, reference: u64) {
        self.0.prefetch(reference);
    }

    fn other<const SLOTS: usize>(&self, table: &Table<SLOTS>, bucket: usize, word: Word) -> usize {
        let hash = self.hash(word.reference());
        let first = table.first(hash);
        let second = table.other(first, Spot::of::<SLOTS>(hash).tag);
        if first == bucket { second } else { first }
    }
}

impl<'g, const SLOTS: usize> View<'g, SLOTS> {
    /// As [`View::find`], with less.
    pub(super) fn find_with(
        &self,
        factors: Factors,
        spot: &Spot,
        mut is_wanted: impl FnMut(Word) -> bool,
    ) -> Option<Place<'g, SLOTS>> {
        let mut look = || {
            let find = |bucket: &u64| self.look_with(factors, *bucket, spot, &mut is_wanted);
            spot.buckets.iter().find_map(find)
        };
        if !factors.no_optimism {
            for round in 0..super::cuckoo::OPTIMISTIC_ROUNDS {
                let Some(snapshot) = self.stripes.begin_read(spot.buckets) else {
                    crate::sync::spin(round);
                    continue;
                };
                let found = look();
                if found.is_some() && !factors.no_trust
                    || self.stripes.is_unchanged(spot.buckets, snapshot)
                {
                    return found;
                }
            }
        }
        let _held = self.stripes.lock_both(spot.buckets);
        look()
    }

    fn look_with(
        &self,
        factors: Factors,
        bucket: u64,
        spot: &Spot,
        is_wanted: &mut impl FnMut(Word) -> bool,
    ) -> Option<Place<'g, SLOTS>> {
        let mut layer = self.root;
        loop {
            let index = bucket as usize & (layer.table.len() - 1);
            let mut has_moved = false;
            for slot in 0..SLOTS {
                let word = layer.table.word(index, slot);
                let is_candidate =
                    if factors.no_tag { word.is_item() } else { word.tag() == spot.tag };
                if is_candidate && is_wanted(word) {
                    return Some(Place { layer, bucket: index, slot, word });
                }
                has_moved |= word == Word::MOVED;
            }
            layer = layer.next().filter(|_| has_moved)?;
        }
    }
}
