//! The CID-tree: the owner and backups of every id (DXRAM, section 3).
//!
//! [`RangeMap`] maps every id to a placement or to none. It stores the ids at which the placement
//! changes, so memory grows with disorder: chunks that stayed where they were created cost nothing,
//! a chunk that migrated alone about five bytes. The same map serves super peers, and clients
//! through [`RangeCache`].
//!
//! Invariants of this module:
//! 1. Every id has exactly one placement or none; an edit changes the ids that it names and no
//!    others.
//! 2. A [`Range`] that is returned is the longest run of one placement within a cell: the ids of a
//!    creator are cut into cells of `range_ids_max`, which bounds ranges, so that the chunks of a
//!    node can have many backups (section 3.2). Ranges merge and split by themselves.
//! 3. Leaves and regions cover the ids without gaps; each leaf lies in one node; all ascend.
//! 4. Memory is proportional to the number of ranges: small neighbours are merged, and unused codes
//!    of placements are freed.

mod cache;
mod dictionary;
mod iter;
mod leaf;
mod map;
mod placement;
mod region;
mod rows;
mod split_merge;
#[cfg(test)]
mod tests;
mod tree_node;

pub use cache::{CacheStatistics, LIMIT_BYTES_MIN, RangeCache};
pub use iter::Ranges;
pub(crate) use map::NAMED_RANGE_IDS;
pub use map::{FETCHED_TOGETHER, MapLimits, Range, RangeError, RangeMap};
pub use placement::{BACKUPS_MAX, Placement, PlacementError};
