//! What a client remembers of the answers of super peers: two maps of ranges.

use super::map::{MapLimits, Range, RangeMap};
use crate::ids::{ChunkId, IdRange};

/// The smallest bound that a cache keeps.
pub const LIMIT_BYTES_MIN: usize = 64 << 10;

/// What a cache was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Lookups that were answered.
    pub hits: u64,
    /// Lookups that were not.
    pub misses: u64,
    /// Times that the older half was forgotten.
    pub turns: u64,
}

/// Ranges that were looked up lately, in bounded memory (DXRAM, section 3.3).
///
/// The paper leaves eviction open. Here two generations approximate least recently used without a
/// word of bookkeeping in the map: new ranges and those found again go to the *young* map; when it
/// has its share of the memory, the *old* one is forgotten and the young becomes old. Who is not
/// found during a whole turn is gone.
///
/// Invariants:
/// 1. What the young map says of an id is newer than what the old one says, and hides it.
/// 2. Both together take at most the bound.
///
/// A cached range may be out of date: its owner then says so, and the caller forgets it.
#[derive(Debug)]
pub struct RangeCache {
    young: RangeMap,
    old: RangeMap,
    limits: MapLimits,
    share_bytes: usize,
    statistics: CacheStatistics,
}

impl RangeCache {
    /// In at most `limit_bytes` (at least [`LIMIT_BYTES_MIN`]).
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

    /// The range that an id lies in, as far as it is known.
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
        // Where the young map knows something, it knows better.
        let first = range.ids.first().max(gap.first());
        let ids = IdRange::new(first, range.ids.last().min(gap.last())).ok()?;
        let range = Range { ids, ..range };
        self.learn(range);
        Some(range)
    }

    /// Remembers the answer of a super peer.
    pub fn learn(&mut self, range: Range) {
        self.young.assign(range.ids, Some(range.placement));
        self.keep_bound();
    }

    /// Forgets what turned out to be out of date.
    pub fn forget(&mut self, ids: IdRange) {
        self.young.assign(ids, None);
        self.old.assign(ids, None);
        // Forgetting the middle of a range is a hole, and takes memory as well.
        if self.old.bytes() > self.share_bytes {
            self.old = RangeMap::new(self.limits);
        }
        self.keep_bound();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        (self.young, self.old) = (RangeMap::new(self.limits), RangeMap::new(self.limits));
        self.statistics.turns += 1;
    }

    fn keep_bound(&mut self) {
        if self.young.bytes() > self.share_bytes {
            self.old = std::mem::replace(&mut self.young, RangeMap::new(self.limits));
            self.statistics.turns += 1;
        }
    }

    /// Memory of both maps in bytes.
    pub fn bytes(&self) -> usize {
        self.young.bytes() + self.old.bytes()
    }

    /// What it was asked so far.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }
}
