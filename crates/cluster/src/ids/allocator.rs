//! Allocates the ids of one creator.

use std::collections::BTreeMap;
use std::fmt;

use super::{COUNTER_MAX, ChunkId, Creator, IdRange};

/// The ids of one creator: a counter, and the ids below it that were freed.
///
/// Freed ids are reused first, smallest first, so the ids in use stay dense and ranges few (DXRAM,
/// section 2.1). Free ids are kept as runs: memory grows with the holes, not with the ids.
#[derive(Clone, Debug)]
pub struct IdAllocator {
    creator: Creator,
    /// Below it every id is in use or in a hole; from it on none was allocated.
    next: u64,
    /// First counter of a hole -> one past its last. Holes neither touch nor overlap.
    holes: BTreeMap<u64, u64>,
}

impl IdAllocator {
    /// Creates an allocator without allocated ids.
    pub const fn new(creator: Creator) -> Self {
        Self { creator, next: 0, holes: BTreeMap::new() }
    }

    /// Continues where another allocator ended: all counters below `next` count as in use until
    /// they are freed.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Exhausted`] if `next` is beyond a creator's last counter.
    pub fn resume(creator: Creator, next: u64) -> Result<Self, AllocatorError> {
        if next > COUNTER_MAX + 1 {
            return Err(AllocatorError::Exhausted);
        }
        Ok(Self { creator, next, holes: BTreeMap::new() })
    }

    /// The creator of the ids.
    pub const fn creator(&self) -> Creator {
        self.creator
    }

    /// The smallest counter that was never allocated: where a successor must resume.
    pub const fn next_counter(&self) -> u64 {
        self.next
    }

    /// Number of ids in use.
    pub fn in_use(&self) -> u64 {
        self.next - self.holes.iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// Allocates the smallest free id.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Exhausted`] if all 2^48 ids are in use.
    pub fn allocate(&mut self) -> Result<ChunkId, AllocatorError> {
        Ok(self.allocate_up_to(1)?.first())
    }

    /// Allocates between one and `most` (0 counts as 1) consecutive ids: from the first hole, or
    /// else new ones. Call it again for the rest.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Exhausted`] if all 2^48 ids are in use.
    pub fn allocate_up_to(&mut self, most: u64) -> Result<IdRange, AllocatorError> {
        let most = most.max(1);
        let (start, end) = match self.holes.pop_first() {
            Some((start, end)) => {
                let taken = end.min(start.saturating_add(most));
                if taken < end {
                    self.holes.insert(taken, end);
                }
                (start, taken)
            }
            None => {
                let end = self.next.saturating_add(most).min(COUNTER_MAX + 1);
                if self.next == end {
                    return Err(AllocatorError::Exhausted);
                }
                let start = std::mem::replace(&mut self.next, end);
                (start, end)
            }
        };
        let base = u64::from(self.creator.get()) << super::COUNTER_BITS;
        Ok(IdRange::from_bits(base + start, base + end))
    }

    /// Frees ids. Requires: their chunks are gone everywhere; otherwise a new chunk would receive
    /// old requests.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Foreign`] for ids of another creator; [`AllocatorError::NotInUse`] if one
    /// of them is free or was never allocated. Nothing has changed then.
    pub fn free(&mut self, ids: IdRange) -> Result<(), AllocatorError> {
        if ids.first().creator() != self.creator {
            return Err(AllocatorError::Foreign);
        }
        let (mut start, mut end) = (ids.first().counter(), ids.last().counter() + 1);
        let before = self.holes.range(..end).next_back().map(|(start, end)| (*start, *end));
        if end > self.next || before.is_some_and(|(_, hole_end)| hole_end > start) {
            return Err(AllocatorError::NotInUse);
        }
        if let Some((hole_start, hole_end)) = before
            && hole_end == start
        {
            self.holes.remove(&hole_start);
            start = hole_start;
        }
        if let Some(hole_end) = self.holes.remove(&end) {
            end = hole_end;
        }
        if end == self.next {
            self.next = start;
        } else {
            self.holes.insert(start, end);
        }
        Ok(())
    }
}

/// The reason for which ids were not allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorError {
    /// All 2^48 ids of the creator are in use.
    Exhausted,
    /// The ids have another creator.
    Foreign,
    /// Some of the ids are not in use.
    NotInUse,
}

impl fmt::Display for AllocatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exhausted => "all ids of this creator are in use",
            Self::Foreign => "these ids are another creator's",
            Self::NotInUse => "some of these ids are not in use",
        })
    }
}

impl std::error::Error for AllocatorError {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn creator() -> Creator {
        Creator::new(3).expect("a creator")
    }

    fn ids(start: u64, length: u64) -> IdRange {
        let first = ChunkId::new(creator(), start).expect("an id");
        IdRange::starting_at(first, length).expect("a range")
    }

    #[test]
    fn the_last_id_is_handed_out_and_none_after_it() {
        let mut allocator = IdAllocator::resume(creator(), COUNTER_MAX - 1).expect("valid");
        assert_eq!(allocator.allocate_up_to(u64::MAX), Ok(ids(COUNTER_MAX - 1, 2)));
        assert_eq!(allocator.allocate(), Err(AllocatorError::Exhausted));
        assert_eq!(allocator.free(ids(COUNTER_MAX, 1)), Ok(()));
        assert_eq!(allocator.allocate_up_to(0), Ok(ids(COUNTER_MAX, 1)));
        assert!(IdAllocator::resume(creator(), COUNTER_MAX + 2).is_err());
    }

    #[test]
    fn invalid_frees_are_refused() {
        let mut allocator = IdAllocator::new(creator());
        assert_eq!(allocator.allocate_up_to(10), Ok(ids(0, 10)));
        assert_eq!(allocator.free(ids(5, 6)), Err(AllocatorError::NotInUse));
        assert_eq!(allocator.free(ids(2, 2)), Ok(()));
        for twice in [ids(2, 1), ids(3, 3), ids(0, 3), ids(0, 10)] {
            assert_eq!(allocator.free(twice), Err(AllocatorError::NotInUse), "{twice:?}");
        }
        let foreign = IdRange::single(ChunkId::from_bits(1).expect("an id"));
        assert_eq!(allocator.free(foreign), Err(AllocatorError::Foreign));
        assert_eq!((allocator.in_use(), allocator.next_counter()), (8, 10));
    }

    proptest! {
        #[test]
        fn it_behaves_as_a_set_of_free_ids(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..6), 1..200),
        ) {
            let mut allocator = IdAllocator::new(creator());
            let mut used = BTreeSet::new();
            for (allocates, start, length) in steps {
                if allocates {
                    let taken = allocator.allocate_up_to(length).expect("there are enough");
                    prop_assert!(taken.len() <= length);
                    let smallest = (0..).find(|counter| !used.contains(counter));
                    prop_assert_eq!(Some(taken.first().counter()), smallest);
                    for counter in taken.first().counter()..=taken.last().counter() {
                        prop_assert!(used.insert(counter), "{} was in use", counter);
                    }
                } else {
                    let wanted = start..start + length;
                    let is_possible = wanted.clone().all(|counter| used.contains(&counter));
                    prop_assert_eq!(allocator.free(ids(start, length)).is_ok(), is_possible);
                    if is_possible {
                        used.retain(|counter| !wanted.contains(counter));
                    }
                }
                prop_assert_eq!(allocator.in_use(), used.len() as u64);
                let next = used.last().map_or(0, |last| last + 1);
                prop_assert_eq!(allocator.next_counter(), next);
            }
        }
    }
}
