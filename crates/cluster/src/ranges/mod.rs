//! The CID-tree: which node owns which ids, and who holds their backups (DXRAM, section 3).
//!
//! [`RangeMap`] maps every id to a placement or to nobody. What it stores are the places where the
//! placement changes, so memory grows with disorder: chunks that stayed where they were created
//! cost nothing, a chunk that migrated alone about five bytes. The same map serves super peers, and
//! clients through [`RangeCache`].
//!
//! Invariants of this room:
//! 1. Every id has exactly one placement or nobody; an edit changes the ids it names and no other.
//! 2. A [`Range`] that comes out is the longest run of one placement within a cell: the ids of a
//!    creator are cut into cells of `range_ids_max`, so that no range is longer and the chunks of a
//!    node can have many backups (section 3.2). Ranges merge and split by themselves.
//! 3. Leaves and regions cover the ids without gaps; each leaf lies in one node; all ascend.
//! 4. Memory is in proportion to the ranges: small neighbours are merged, and codes of placements
//!    that nobody uses are taken back.

mod cache;
mod dictionary;
mod iter;
mod leaf;
mod map;
mod placement;
mod region;
mod rows;
mod shape;
#[cfg(test)]
mod tests;

pub use cache::{CacheStatistics, LIMIT_BYTES_MIN, RangeCache};
pub use iter::Ranges;
pub use map::{FETCHED_TOGETHER, MapLimits, Range, RangeError, RangeMap};
pub use placement::{BACKUPS_MAX, Placement, PlacementError};
