//! Random movement (section 3.2.1): a head moves to the item that an R-th request accessed, unless
//! R-th requests recently accessed the item that the head leads to. The head's patience records
//! this: an R-th request for the head's item sets it to [`TRUST`], one for another item takes one
//! away. So a single request for a cold item does not move a head from a hot one.
//!
//! All of this is hints: heads move by the protocol of `change`. An exchange that only changes
//! patience does not change the item that the head leads to. It fails if a movement is announced
//! meanwhile, and it makes the announcement of a movement prepared before it fail.

use super::change::move_head;
use super::space::{Space, address_for, exchange_head};
use super::word::{Head, Node};

/// The number of R-th requests for other items after which a confirmed head moves at the next one.
pub(super) const TRUST: u64 = 3;

/// Records that an R-th request accessed the item that the head leads to.
#[cold]
pub(super) fn confirm<S: Space>(space: &S, hash: u64) {
    let (word, head) = space.head(hash);
    if !head.is_moving() && head != Head::EMPTY && head.patience() < TRUST {
        exchange_head(word, head, head.with_patience(TRUST));
    }
}

/// Whether [`confirm`] has nothing to do.
#[inline]
pub(super) fn is_trusted(head: Head) -> bool {
    head.patience() == TRUST
}

/// Records that an R-th request accessed another item, for which `node` would have been the best
/// head. `is_certain` moves the head there whatever its patience.
#[cold]
pub(super) fn doubt<S: Space>(space: &S, hash: u64, node: Node, is_certain: bool) {
    let (word, head) = space.head(hash);
    let at = space.bits().node_of(head.address());
    if head.is_moving() || at.is_none() || at == Some(node) {
        return;
    }
    if !is_certain && head.patience() > 0 {
        exchange_head(word, head, head.with_patience(head.patience() - 1));
    } else if let Some(address) = address_for(space, word, node) {
        move_head(space, word, head, Head::to(address));
    }
}
