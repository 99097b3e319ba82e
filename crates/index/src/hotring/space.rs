//! The interface between the protocols of a ring and its storage: where words lie and how items are
//! ordered. The engine implements it for items in memory, the model tests for a few words.

use std::cmp::Ordering;

use super::word::{Address, Bits, Head, Link, Node};
use crate::sync::AtomicU64;
use crate::sync::Ordering::SeqCst;

/// Rings, as one thread sees them while it holds a guard: nothing that can be reached is reused.
pub(super) trait Space {
    /// The division of addresses and hashes into bits.
    fn bits(&self) -> &Bits;

    /// The word that leads to the ring of `hash` now, and its value, which is never
    /// [`Head::MOVED`].
    fn head(&self, hash: u64) -> (&AtomicU64, Head);

    /// The link of an item, or of a rehash item.
    fn link(&self, node: Node) -> &AtomicU64;

    /// The order of an item that is not a rehash item.
    fn order(&self, node: Node) -> Order<'_>;

    /// Whether the item, which is not a rehash item, has this key. Cheaper than [`Space::order`].
    fn has_key(&self, node: Node, key: &[u8]) -> bool;

    /// The hash at which the pair of rehash items divides its ring. `lower` is the first of them;
    /// the other follows it.
    fn division(&self, lower: Node) -> u64;

    /// The calling worker's number.
    fn number(&self) -> u64;

    /// Loads a link. Sequentially consistent, like all accesses of these protocols.
    #[inline]
    fn load_link(&self, node: Node) -> Link {
        Link(load(self.link(node)))
    }

    /// The address of an item whose hash is known.
    #[inline]
    fn address(&self, node: Node, hash: u64) -> Address {
        self.bits().address(node, hash)
    }
}

/// Loads a word by a sequentially consistent load.
#[inline]
pub(super) fn load(word: &AtomicU64) -> u64 {
    // Loom does not order loads sequentially; adding 0 reads the newest value.
    #[cfg(loom)]
    return word.fetch_add(0, SeqCst);
    #[cfg(not(loom))]
    word.load(SeqCst)
}

/// Compares and exchanges a link. The error is the current link.
#[inline]
pub(super) fn exchange_link(word: &AtomicU64, old: Link, new: Link) -> Result<(), Link> {
    word.compare_exchange(old.0, new.0, SeqCst, SeqCst).map(drop).map_err(Link)
}

/// Compares and exchanges a head. Returns whether it was `old`.
#[inline]
pub(super) fn exchange_head(word: &AtomicU64, old: Head, new: Head) -> bool {
    word.compare_exchange(old.0, new.0, SeqCst, SeqCst).is_ok()
}

/// The order of items in all rings: by hash, then by key. A rehash item has the hash of its
/// boundary and an empty key, so it comes before all items of its half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order<'k> {
    pub(super) hash: u64,
    pub(super) key: &'k [u8],
}

/// The order that a walk searches for, with its tag.
#[derive(Clone, Copy)]
pub(super) struct Target<'k> {
    pub(super) order: Order<'k>,
    pub(super) tag: u64,
}

impl<'k> Target<'k> {
    #[inline]
    pub(super) fn new(bits: &Bits, order: Order<'k>) -> Self {
        Self { order, tag: bits.tag_of_hash(order.hash) }
    }

    /// The distance around the ring from the target's tag to the tag of `address`; 0 if they are
    /// equal.
    #[inline]
    pub(super) fn distance(&self, bits: &Bits, address: Address) -> u64 {
        bits.tag_of(address).wrapping_sub(self.tag)
    }
}

/// The first (lower) item of the pair to which a rehash item belongs.
#[inline]
pub(super) fn lower_of(node: Node, link: Link) -> Node {
    Node(node.0 - u64::from(link.is_upper()))
}

/// The rehash item of a pair from which a search for `hash` goes on: the one of its half, once both
/// are in the ring; before that, the ring is not divided and the search goes on from `node`.
pub(super) fn rehash_item_for<S: Space>(space: &S, hash: u64, node: Node, link: Link) -> Node {
    if !link.is_paired() {
        return node;
    }
    let lower = lower_of(node, link);
    Node(lower.0 + u64::from(hash >= space.division(lower)))
}

/// The hash at which the half of a rehash item begins.
pub(super) fn boundary<S: Space>(space: &S, node: Node, link: Link) -> u64 {
    let division = space.division(lower_of(node, link));
    // The lower half begins where the ring does: at the division without its lowest set bit.
    if link.is_upper() { division } else { division & (division - 1) }
}

/// The order of any item.
pub(super) fn order_of<S: Space>(space: &S, node: Node, link: Link) -> Order<'_> {
    if link.is_rehash() {
        Order { hash: boundary(space, node, link), key: &[] }
    } else {
        space.order(node)
    }
}

/// The address of an item to which the head at `word` may move: the item is neither a rehash item
/// nor occupied, and belongs to the ring that `word` leads to. The predecessor of an item may lie
/// in the other half since it was found: a head that moved there would lose its own half for good
/// once the two halves part (docs/hotring.md, race 18).
pub(super) fn address_for<S: Space>(space: &S, word: &AtomicU64, node: Node) -> Option<Address> {
    if !space.load_link(node).is_plain() {
        return None;
    }
    let hash = space.order(node).hash;
    std::ptr::eq(space.head(hash).0, word).then(|| space.address(node, hash))
}

/// Compares the order of any two items.
pub(super) fn compare<S: Space>(space: &S, left: (Node, Link), right: (Node, Link)) -> Ordering {
    order_of(space, left.0, left.1).cmp(&order_of(space, right.0, right.1))
}
