//! Random movement (section 3.2.1): a head moves to what an R-th request touched, unless that came
//! often lately to the item that the head leads to. That many looks are remembered in the head's
//! patience: a look that finds the head right fills it, one that does not takes one away. So one
//! request for a cold item does not undo what the head had found.
//!
//! All of this is hints: heads move by the protocol of `change`. An exchange that only changes
//! patience does not change where the head leads. It fails if a movement is announced meanwhile,
//! and a movement that was prepared before it fails to be announced.

use super::change::move_head;
use super::space::{Space, address_for, exchange_head};
use super::word::{Head, Node};

/// How many looks at other items a head outlasts that was found right.
pub(super) const TRUST: u64 = 3;

/// An R-th request came to the item that the head leads to.
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

/// An R-th request came to another item; `node` would have been the best head. `is_certain` moves
/// it there whatever was found before.
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
