//! A bounded cache of the ranges that super peers answered: two maps.

use super::map::{MapLimits, Range, RangeMap};
use crate::ids::{ChunkId, IdRange};

/// The smallest limit of a cache, in bytes.
pub const LIMIT_BYTES_MIN: usize = 64 << 10;

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Lookups that found a range.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Times that the old generation was dropped.
    pub rotations: u64,
}

/// Recently looked-up ranges in bounded memory (DXRAM, section 3.3).
///
/// The paper leaves eviction open. Here two generations approximate LRU without any bookkeeping in
/// the map: new ranges and ranges found again go to the *young* map; when it has its share of the
/// memory, the *old* map is dropped and the young one becomes old. A range that is not found during
/// a whole generation is gone.
///
/// Invariants:
/// 1. The young map is newer than the old one about every id, and hides it.
/// 2. Both together stay within the limit.
///
/// A cached range may be outdated: its owner then says so, and the caller forgets it.
#[derive(Debug)]
pub struct RangeCache {
    young: RangeMap,
    old: RangeMap,
    limits: MapLimits,
    share_bytes: usize,
    statistics: CacheStatistics,
}

impl RangeCache {
    /// Creates a cache of at most `limit_bytes` (at least [`LIMIT_BYTES_MIN`]).
    pub fn new(limit_bytes: usize) -> Self {
        let limit_bytes = limit_bytes.max(LIMIT_BYTES_MIN);
        // A code costs about 50 bytes: at most a tenth of each half.
        let codes = (limit_bytes / 20 / 50).max(1);
        let limits =
            MapLimits { placement_codes_max: codes, node_leaves_max: 64, ..MapLimits::default() };
        Self {
            young: RangeMap::new(limits),
            old: RangeMap::new(limits),
            limits,
            // A fifth is left for the growth of a vector past the share.
            share_bytes: limit_bytes * 2 / 5,
            statistics: CacheStatistics::default(),
        }
    }

    /// The cached range that an id lies in.
    pub fn find(&mut self, id: ChunkId) -> Option<Range> {
        let (gap, young) = self.young.around(id);
        if let Some(placement) = young {
            self.statistics.hits += 1;
            return Some(Range { ids: gap, placement });
        }
        let Some(range) = self.old.find(id) else {
            self.statistics.misses += 1;
            return None;
        };
        self.statistics.hits += 1;
        // The young map is newer where it has a range.
        let first = range.ids.first().max(gap.first());
        let ids = IdRange::new(first, range.ids.last().min(gap.last())).ok()?;
        let range = Range { ids, ..range };
        self.learn(range);
        Some(range)
    }

    /// Caches the answer of a super peer.
    pub fn learn(&mut self, range: Range) {
        self.young.assign(range.ids, Some(range.placement));
        self.keep_bound();
    }

    /// Drops ids that turned out to be outdated.
    pub fn forget(&mut self, ids: IdRange) {
        self.young.assign(ids, None);
        self.old.assign(ids, None);
        // Dropping the middle of a range leaves a hole, which takes memory as well.
        if self.old.bytes() > self.share_bytes {
            self.old = RangeMap::new(self.limits);
        }
        self.keep_bound();
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        (self.young, self.old) = (RangeMap::new(self.limits), RangeMap::new(self.limits));
        self.statistics.rotations += 1;
    }

    fn keep_bound(&mut self) {
        if self.young.bytes() > self.share_bytes {
            self.old = std::mem::replace(&mut self.young, RangeMap::new(self.limits));
            self.statistics.rotations += 1;
        }
    }

    /// Memory of both maps in bytes.
    pub fn bytes(&self) -> usize {
        self.young.bytes() + self.old.bytes()
    }

    /// Counters since the cache was created.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }
}
