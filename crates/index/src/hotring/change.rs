//! Changing a ring: the steps of inserting, deleting, replacing, and of moving the head. Each is
//! one exchange of one word; `docs/hotring.md` numbers the races between them.

use super::space::{Order, Space, Target, exchange_head, exchange_link, order_of};
use super::walk::{Event, Step, Walk, successor};
use super::word::{Address, Head, Link, Node};
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// Where a target belongs in its ring, with nothing occupied before it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// The ring has no item.
    Vacant,
    /// The target is there, behind `before`.
    Present { before: Step, found: Step },
    /// The target is absent; it belongs right behind `before`.
    Absent { before: Step },
}

/// Finds the place of `order`, unlinking the occupied items that it meets. At some moment of the
/// call the place was as returned.
pub(super) fn locate<S: Space>(space: &S, order: Order<'_>) -> Place {
    let target = Target::new(space.bits(), order);
    loop {
        let (_, head) = space.head(order.hash);
        if head == Head::EMPTY {
            return Place::Vacant;
        }
        // None: somebody was faster with something. It got further, so this loop is lock-free.
        if let Some(place) = locate_from(space, target, head) {
            return place;
        }
    }
}

fn locate_from<S: Space>(space: &S, target: Target<'_>, head: Head) -> Option<Place> {
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
                return Some(Place::Present { before, found });
            }
            // The head led to the target: once around, to know what comes before it.
            (Event::Hit(found), None) => walk.pass(found, 0),
            (Event::Passed, Some(before)) if is_behind(&walk, before) => {
                return Some(Place::Absent { before });
            }
            (Event::Hit(_) | Event::Passed | Event::Vacant, _) => return None,
        }
    }
}

/// Whether nothing occupied was passed over since `before`.
fn is_behind<S: Space>(walk: &Walk<'_, '_, S>, before: Step) -> bool {
    before.link.address() == walk.at
}

/// Unlinks the occupied item that the walk is at, and goes on behind it.
fn unlink_in_passing<S: Space>(walk: &mut Walk<'_, '_, S>, node: Node, link: Link) -> Option<()> {
    let space = walk.space;
    retarget_head(space, order_of(space, node, link).hash, node);
    let before = walk.before.as_mut()?;
    let next = before.link.with_address(link.address());
    if before.link.address() != walk.at {
        return None;
    }
    // Linearizable as nothing: the item was deleted before. See race 8.
    exchange_link(space.link(before.node), before.link, next).ok()?;
    before.link = next;
    walk.at = link.address();
    Some(())
}

/// Returns when the occupied item stands in no ring any more. `order` is its order.
pub(super) fn unlink_slow<S: Space>(space: &S, order: Order<'_>) -> Option<Node> {
    // An item with the same key can only stand behind the occupied one, so whoever comes to the
    // place from before it has passed (and unlinked) the occupied one.
    match locate(space, order) {
        Place::Vacant => None,
        Place::Present { before, .. } | Place::Absent { before } => Some(before.node),
    }
}

/// Makes sure that the head of the ring of `hash` does not lead to `node`, which is occupied; from
/// then on it never will (race 5). An empty ring may result.
pub(super) fn retarget_head<S: Space>(space: &S, hash: u64, node: Node) {
    loop {
        let (word, head) = space.head(hash);
        if space.bits().node_of(head.address()) != Some(node) {
            if !head.is_moving() {
                return;
            }
            // The movement may lead to `node`: cancelled.
            exchange_head(word, head, head.settled());
            continue;
        }
        match successor(space, hash, node) {
            Some(next) => {
                move_head(space, word, head, Head::to(next).with_patience(head.patience()));
            }
            // All occupied, for good: the ring is empty. All its items are unlinked at once.
            None => {
                exchange_head(word, head, Head::EMPTY);
            }
        }
    }
}

/// Moves a head from `head` to the item of `target`, unless that is occupied or the head has
/// changed. Returns whether it did; then the head is `target`.
pub(super) fn move_head<S: Space>(space: &S, word: &AtomicU64, head: Head, target: Head) -> bool {
    let Some(node) = space.bits().node_of(target.address()) else { return false };
    let announced = head.announced(space.number());
    if !exchange_head(word, head, announced) {
        return false;
    }
    // After the announcement, in the one order of both: see race 5.
    if space.load_link(node).is_occupied() {
        exchange_head(word, announced, announced.settled());
        return false;
    }
    exchange_head(word, announced, target)
}

/// Sets Occupied in the item's link: from now on it is deleted. Returns the link before, or none if
/// it was occupied already. The caller goes on with [`retarget_head`] and [`unlink_slow`], and
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

/// Replaces the item at `node` by `new`, unpublished so far, in one step. Returns whether it did;
/// if not, the item was occupied already. The caller goes on as after [`occupy`].
pub(super) fn replace<S: Space>(space: &S, node: Node, new: Node, address: Address) -> bool {
    let mut link = space.load_link(node);
    loop {
        if link.is_occupied() {
            return false;
        }
        // Relaxed, as wherever an item is not in its ring yet: published by the exchange.
        space.link(new).store(Link::to(link.address()).0, Relaxed);
        match exchange_link(space.link(node), link, link.with_address(address).occupied()) {
            Ok(()) => return true,
            Err(changed) => link = changed,
        }
    }
}

/// Inserts `new`, unpublished so far, right behind `before`, where it belongs. `link` holds its
/// flags. Returns false if something else came between.
pub(super) fn insert<S: Space>(
    space: &S,
    before: Step,
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
            // Only counted meanwhile.
            Err(changed) if !changed.is_occupied() && changed.address() == next => old = changed,
            Err(_) => return false,
        }
    }
}

/// Inserts `new`, unpublished so far, as the only item of a ring.
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

/// Unlinks `node`, which the caller occupied. `before` may be known to have led to it. Returns the
/// item that came before it, if any.
pub(super) fn unlink<S: Space>(
    space: &S,
    order: Order<'_>,
    node: Node,
    before: Option<Step>,
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
