//! The rehash of one ring (section 3.4): its two halves get their own heads and are parted.

use super::change::{
    Position, insert, insert_first, locate, move_head, occupy, retarget_head, unlink_slow,
};
use super::space::{Order, Space, boundary, exchange_head, exchange_link, load};
use super::walk::LoadedNode;
use super::word::{Head, Link, Node};
use crate::sync::{AtomicU64, Ordering::SeqCst};

/// The head of a ring in the old table, and the heads of its halves in the new one.
pub(super) struct Buckets<'t> {
    pub(super) old: &'t AtomicU64,
    /// Empty at first. No thread uses them before the old head is [`Head::MOVED`].
    pub(super) new: [&'t AtomicU64; 2],
}

/// Moves an empty ring to the new table. Returns false if the ring has items.
pub(super) fn move_vacant(buckets: &Buckets<'_>) -> bool {
    exchange_head(buckets.old, Head::EMPTY, Head::MOVED)
}

/// Divides the ring of `buckets` by the pair of rehash items at `lower`, which the caller owns.
/// From the last step on all threads use the new heads. The caller waits for a grace period and
/// goes on with [`part`].
pub(super) fn split<S: Space>(space: &S, buckets: &Buckets<'_>, lower: Node) {
    let division = space.division(lower);
    let hashes = [division & (division - 1), division];
    for (half, hash) in hashes.into_iter().enumerate() {
        let node = Node(lower.0 + half as u64);
        let empty = Head::EMPTY.address();
        let link = Link::of_rehash_item(empty, half == 1);
        insert_rehash_item(space, Order { hash, key: &[] }, node, link);
    }
    for half in 0..2 {
        pair(space, Node(lower.0 + half));
    }
    for (half, hash) in hashes.into_iter().enumerate() {
        let node = Node(lower.0 + half as u64);
        buckets.new[half].store(Head::to(space.address(node, hash)).0, SeqCst);
    }
    // Replacing the old head cancels a movement that is under way (race 15).
    let last = Head(buckets.old.swap(Head::MOVED.0, SeqCst));
    inherit(space, buckets, division, last);
}

fn insert_rehash_item<S: Space>(space: &S, order: Order<'_>, node: Node, link: Link) {
    let address = space.address(node, order.hash);
    loop {
        let is_in = match locate(space, order) {
            Position::Vacant => {
                let (word, _) = space.head(order.hash);
                insert_first(space, word, node, address, link)
            }
            Position::Absent { before } => insert(space, before, node, address, link),
            Position::Present { .. } => unreachable!("a boundary is inserted once"),
        };
        if is_in {
            return;
        }
    }
}

/// Marks a rehash item as paired: both items of its pair are in the ring.
fn pair<S: Space>(space: &S, node: Node) {
    let mut link = space.load_link(node);
    while let Err(changed) = exchange_link(space.link(node), link, link.paired()) {
        link = changed;
    }
}

/// Makes the hot item the head of its half. This is a hint: it does nothing if another thread
/// interferes.
fn inherit<S: Space>(space: &S, buckets: &Buckets<'_>, division: u64, last: Head) {
    let Some(hot) = space.bits().node_of(last.address()) else { return };
    if !space.load_link(hot).is_plain() {
        return;
    }
    let half = usize::from(space.order(hot).hash >= division);
    let word = buckets.new[half];
    let head = Head(load(word));
    // The head must be as `split` set it: only then is no item of this half left out.
    if !head.is_moving() && !head.is_active() {
        move_head(space, word, head, Head::to(last.address()));
    }
}

/// Parts the halves that `split` divided, after a grace period, and unlinks the pair, which the
/// caller then retires.
pub(super) fn part<S: Space>(space: &S, lower: Node) {
    for half in 0..2 {
        cut(space, Node(lower.0 + half));
    }
    for half in 0..2 {
        let node = Node(lower.0 + half);
        let link = space.load_link(node);
        let order = Order { hash: boundary(space, node, link), key: &[] };
        occupy(space, node);
        retarget_head(space, order.hash, node);
        unlink_slow(space, order);
    }
}

/// Links the last item of a half back to the half's own rehash item, which closes its ring.
fn cut<S: Space>(space: &S, own: Node) {
    // Fails when another thread changes a link of the half first.
    while !try_cut(space, own) {}
}

fn try_cut<S: Space>(space: &S, own: Node) -> bool {
    let link = space.load_link(own);
    let address = space.address(own, boundary(space, own, link));
    let mut before = LoadedNode { node: own, link };
    loop {
        let Some(node) = space.bits().node_of(before.link.address()) else { return false };
        let link = space.load_link(node);
        let next = match (link.is_rehash(), link.is_occupied()) {
            (true, _) if node == own => return true,
            (true, _) => address,
            (false, true) => {
                retarget_head(space, space.order(node).hash, node);
                link.address()
            }
            (false, false) => {
                before = LoadedNode { node, link };
                continue;
            }
        };
        let linked = before.link.with_address(next);
        if exchange_link(space.link(before.node), before.link, linked).is_err() {
            return false;
        }
        before.link = linked;
    }
}
