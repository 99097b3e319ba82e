//! A map from intervals of integers (ids, or positions on the ring) to values.

use std::collections::BTreeMap;
use std::ops::Range;

/// A partial map from `u64` to values that stores one entry for each run of equal values.
///
/// Invariants:
/// 1. Intervals are not empty and do not overlap.
/// 2. Adjacent intervals differ in their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalMap<T> {
    /// First number -> one past the last, and the value.
    spans: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for IntervalMap<T> {
    fn default() -> Self {
        Self { spans: BTreeMap::new() }
    }
}

impl<T: Clone + PartialEq> IntervalMap<T> {
    /// The value at `at`, if it has one.
    pub fn get(&self, at: u64) -> Option<&T> {
        let (_, (end, value)) = self.spans.range(..=at).next_back()?;
        (at < *end).then_some(value)
    }

    /// The interval that contains `at`, and its value.
    pub fn around(&self, at: u64) -> Option<(Range<u64>, &T)> {
        let (start, (end, value)) = self.spans.range(..=at).next_back()?;
        (at < *end).then_some((*start..*end, value))
    }

    /// The values within `wanted`, ascending, each with the part of its interval inside `wanted`.
    pub fn over(&self, wanted: Range<u64>) -> impl Iterator<Item = (Range<u64>, &T)> {
        let from = self.around(wanted.start).map_or(wanted.start, |(span, _)| span.start);
        let (start, end) = (wanted.start, wanted.end.max(from));
        let spans = self.spans.range(from..end);
        spans.map(move |(first, (last, value))| ((*first).max(start)..(*last).min(end), value))
    }

    /// Whether every number of `wanted` has a value that satisfies `is_so`.
    pub fn all(&self, wanted: Range<u64>, mut is_so: impl FnMut(&T) -> bool) -> bool {
        let mut at = wanted.start;
        for (span, value) in self.over(wanted.clone()) {
            if span.start != at || !is_so(value) {
                return false;
            }
            at = span.end;
        }
        at >= wanted.end
    }

    /// Gives all numbers of `wanted` a value, or removes their values.
    pub fn assign(&mut self, wanted: Range<u64>, value: Option<T>) {
        if wanted.is_empty() {
            return;
        }
        self.cut(wanted.start);
        self.cut(wanted.end);
        let covered: Vec<u64> = self.spans.range(wanted.clone()).map(|(start, _)| *start).collect();
        for start in covered {
            self.spans.remove(&start);
        }
        if let Some(value) = value {
            self.spans.insert(wanted.start, (wanted.end, value));
            self.join(wanted.end);
            self.join(wanted.start);
        }
    }

    /// The number of intervals.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether no number has a value.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// All intervals, ascending, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &T)> {
        self.spans.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// Splits the interval across `at`, if there is one.
    fn cut(&mut self, at: u64) {
        if let Some((start, (end, _))) = self.spans.range_mut(..at).next_back()
            && *end > at
        {
            let (start, old_end) = (*start, std::mem::replace(end, at));
            let value = self.spans[&start].1.clone();
            self.spans.insert(at, (old_end, value));
        }
    }

    /// Merges the two intervals that meet at `at`, if their values are equal.
    fn join(&mut self, at: u64) {
        let Some((before, (end, value))) = self.spans.range(..at).next_back() else { return };
        let (before, touches) = (*before, *end == at);
        if touches && self.spans.get(&at).is_some_and(|(_, right)| right == value) {
            let (end, value) = self.spans.remove(&at).expect("it was there");
            self.spans.insert(before, (end, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_behaves_as_an_array(
            steps in prop::collection::vec((0..40u64, 0..12u64, prop::option::of(0..3u8)), 1..60),
        ) {
            let mut spans = IntervalMap::default();
            let mut model = [None; 64];
            for (start, length, value) in steps {
                let wanted = start..start + length;
                spans.assign(wanted.clone(), value);
                model[start as usize..wanted.end as usize].fill(value);
                for (at, expected) in model.iter().enumerate() {
                    prop_assert_eq!(spans.get(at as u64), expected.as_ref());
                }
                let inside = &model[start as usize..wanted.end as usize];
                let is_whole = inside.iter().all(Option::is_some);
                prop_assert_eq!(spans.all(wanted.clone(), |_| true), is_whole);
                let seen: u64 = spans.over(wanted).map(|(span, _)| span.end - span.start).sum();
                prop_assert_eq!(seen as usize, inside.iter().flatten().count());
                let list: Vec<_> = spans.iter().collect();
                for pair in list.windows(2) {
                    prop_assert!(pair[0].0.end < pair[1].0.start || pair[0].1 != pair[1].1);
                }
            }
        }
    }
}
