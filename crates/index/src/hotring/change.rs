//! Changes of a ring: the steps of inserting, deleting and replacing items and of moving the head.
//! Each is one compare and exchange of one word; `docs/hotring.md` numbers the races between them.

use super::space::{Order, Space, Target, exchange_head, exchange_link, order_of};
use super::walk::{Event, LoadedNode, Walk, successor};
use super::word::{Address, Head, Link, Node};
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// The position of a target in its ring, with no occupied item between `before` and the position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Position {
    /// The ring has no item.
    Vacant,
    /// The target `found` is present, right after `before`.
    Present { before: LoadedNode, found: LoadedNode },
    /// The target is absent; it belongs right after `before`.
    Absent { before: LoadedNode },
}

/// Finds the position of `order`, and unlinks the occupied items that it meets. The returned
/// position was true at some moment of the call.
pub(super) fn locate<S: Space>(space: &S, order: Order<'_>) -> Position {
    let target = Target::new(space.bits(), order);
    loop {
        let (_, head) = space.head(order.hash);
        if head == Head::EMPTY {
            return Position::Vacant;
        }
        // None means that another thread changed the ring first, which is progress: this loop is
        // lock-free.
        if let Some(place) = locate_from(space, target, head) {
            return place;
        }
    }
}

fn locate_from<S: Space>(space: &S, target: Target<'_>, head: Head) -> Option<Position> {
    let mut walk = Walk::new(space, target, head.address());
    loop {
        let node = space.bits().node_of(walk.at)?;
        let link = space.load_link(node);
        if link.is_occupied() {
            unlink_in_passing(&mut walk, node, link)?;
            continue;
        }
        let event = walk.step();
        let before = walk.before;
        match (event, before) {
            (Event::Item(_) | Event::Boundary { .. }, _) => {}
            (Event::Hit(found), Some(before)) if is_behind(&walk, before) => {
                return Some(Position::Present { before, found });
            }
            // The head led to the target: walk around the ring to find the item before it.
            (Event::Hit(found), None) => walk.pass(found, 0),
            (Event::Passed, Some(before)) if is_behind(&walk, before) => {
                return Some(Position::Absent { before });
            }
            (Event::Hit(_) | Event::Passed | Event::Vacant, _) => return None,
        }
    }
}

/// Whether the walk has skipped no occupied item since `before`.
fn is_behind<S: Space>(walk: &Walk<'_, '_, S>, before: LoadedNode) -> bool {
    before.link.address() == walk.at
}

/// Unlinks the occupied item that the walk is at, and goes on after it. None if another thread
/// changed the ring first.
fn unlink_in_passing<S: Space>(walk: &mut Walk<'_, '_, S>, node: Node, link: Link) -> Option<()> {
    let space = walk.space;
    retarget_head(space, order_of(space, node, link).hash, node);
    let before = walk.before.as_mut()?;
    let next = before.link.with_address(link.address());
    if before.link.address() != walk.at {
        return None;
    }
    // This is no linearization point: the item was deleted before. See race 8.
    exchange_link(space.link(before.node), before.link, next).ok()?;
    before.link = next;
    walk.at = link.address();
    Some(())
}

/// Ensures that the occupied item with this order is in no ring any more. Returns the item that
/// came before it, if any.
pub(super) fn unlink_slow<S: Space>(space: &S, order: Order<'_>) -> Option<Node> {
    // An item with the same key can only stand after the occupied one, so a search that reaches the
    // position from before it has passed (and unlinked) the occupied one.
    match locate(space, order) {
        Position::Vacant => None,
        Position::Present { before, .. } | Position::Absent { before } => Some(before.node),
    }
}

/// Ensures that the head of the ring of `hash` does not lead to the occupied `node`; from then on
/// it never will (race 5). The ring may be empty afterwards.
pub(super) fn retarget_head<S: Space>(space: &S, hash: u64, node: Node) {
    loop {
        let (word, head) = space.head(hash);
        if space.bits().node_of(head.address()) != Some(node) {
            if !head.is_moving() {
                return;
            }
            // The announced movement may lead to `node`: cancel it.
            exchange_head(word, head, head.settled());
            continue;
        }
        match successor(space, hash, node) {
            Some(next) => {
                move_head(space, word, head, Head::to(next).with_patience(head.patience()));
            }
            // All items are occupied, which is permanent: emptying the ring unlinks them all at
            // once.
            None => {
                exchange_head(word, head, Head::EMPTY);
            }
        }
    }
}

/// Changes a head from `head` to `target`, unless the target's item is occupied or the head has
/// changed. Returns whether it did.
pub(super) fn move_head<S: Space>(space: &S, word: &AtomicU64, head: Head, target: Head) -> bool {
    let Some(node) = space.bits().node_of(target.address()) else { return false };
    let announced = head.announced(space.number());
    if !exchange_head(word, head, announced) {
        return false;
    }
    // This load comes after the announcement in the total order of sequentially consistent
    // accesses: see race 5.
    if space.load_link(node).is_occupied() {
        exchange_head(word, announced, announced.settled());
        return false;
    }
    exchange_head(word, announced, target)
}

/// Sets Occupied in the item's link, which deletes the item. Returns the link before; None if the
/// item was occupied already. The caller goes on with [`retarget_head`] and [`unlink_slow`], and
/// retires the item.
pub(super) fn occupy<S: Space>(space: &S, node: Node) -> Option<Link> {
    let mut link = space.load_link(node);
    loop {
        if link.is_occupied() {
            return None;
        }
        match exchange_link(space.link(node), link, link.occupied()) {
            Ok(()) => return Some(link),
            Err(changed) => link = changed,
        }
    }
}

/// Replaces the item at `node` by the unpublished `new` in one step. Returns false if the item was
/// occupied already. The caller goes on as after [`occupy`].
pub(super) fn replace<S: Space>(space: &S, node: Node, new: Node, address: Address) -> bool {
    let mut link = space.load_link(node);
    loop {
        if link.is_occupied() {
            return false;
        }
        // Relaxed: `new` is not in the ring yet; the exchange publishes it.
        space.link(new).store(Link::to(link.address()).0, Relaxed);
        match exchange_link(space.link(node), link, link.with_address(address).occupied()) {
            Ok(()) => return true,
            Err(changed) => link = changed,
        }
    }
}

/// Inserts the unpublished `new` right after `before`, which must be its position. `link` holds its
/// flags. Returns false if another thread changed the ring there.
pub(super) fn insert<S: Space>(
    space: &S,
    before: LoadedNode,
    new: Node,
    address: Address,
    link: Link,
) -> bool {
    let next = before.link.address();
    space.link(new).store(link.with_address(next).0, Relaxed);
    let mut old = before.link;
    loop {
        match exchange_link(space.link(before.node), old, old.with_address(address)) {
            Ok(()) => return true,
            // Only the access counter of `before` has changed.
            Err(changed) if !changed.is_occupied() && changed.address() == next => old = changed,
            Err(_) => return false,
        }
    }
}

/// Inserts the unpublished `new` as the only item of a ring. Returns whether the ring was still
/// empty.
pub(super) fn insert_first<S: Space>(
    space: &S,
    word: &AtomicU64,
    new: Node,
    address: Address,
    link: Link,
) -> bool {
    space.link(new).store(link.with_address(address).0, Relaxed);
    exchange_head(word, Head::EMPTY, Head::to(address))
}

/// Unlinks `node`, which the caller occupied. `before`, if known, is the item whose link led to it.
/// Returns the item that came before it, if any.
pub(super) fn unlink<S: Space>(
    space: &S,
    order: Order<'_>,
    node: Node,
    before: Option<LoadedNode>,
) -> Option<Node> {
    retarget_head(space, order.hash, node);
    if let Some(before) = before
        && space.bits().node_of(before.link.address()) == Some(node)
    {
        let next = space.load_link(node).address();
        let old = before.link;
        if exchange_link(space.link(before.node), old, old.with_address(next)).is_ok() {
            return Some(before.node);
        }
    }
    unlink_slow(space, order)
}
