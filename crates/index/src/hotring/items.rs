//! Rings of items in memory. Only this file turns places into items.

use super::space::{Order, Space, load};
use super::table::Tables;
use super::word::{Bits, Head, Node};
use crate::mem::{Guard, Item, ItemRef, Memory};
use crate::sync::AtomicU64;

/// Items lie on multiples of 2^4 bytes; places leave these bits out.
const PLACE_SHIFT: u32 = 4;
/// The distance from an item's link to its header.
const LINK_BYTES: usize = 8;

/// The reference of the item at a place.
#[inline]
pub(super) fn reference_of(node: Node) -> ItemRef {
    ItemRef::from_bits(node.0 << PLACE_SHIFT).expect("places are not 0")
}

/// The place of an item.
#[inline]
pub(super) fn node_of(item: ItemRef) -> Node {
    debug_assert!(item.to_bits().is_multiple_of(1 << PLACE_SHIFT), "headers lie on 16 bytes");
    Node(item.to_bits() >> PLACE_SHIFT)
}

/// The number of bits of a place in a memory of `bytes` bytes.
pub(super) fn place_bits(bytes: u64) -> u32 {
    u64::BITS - (bytes >> PLACE_SHIFT).leading_zeros()
}

/// The rings of an index, as one worker sees them under a guard.
pub(super) struct Items<'g> {
    pub(super) memory: &'g Memory,
    pub(super) tables: &'g Tables,
    pub(super) bits: &'g Bits,
    pub(super) number: u64,
    pub(super) guard: &'g Guard<'g>,
}

impl<'g> Items<'g> {
    /// The item at `node`. Requires: `node` was read from a head or a link under the guard, or the
    /// caller owns the item.
    #[inline]
    pub(super) fn item(&self, node: Node) -> Item<'g> {
        // SAFETY: heads and links are loaded by sequentially consistent (hence acquire) loads from
        // this index under the guard; an item is retired only after no head and no reachable link
        // leads to it (docs/hotring.md, invariant 6). The second of a pair of rehash items lies
        // within the first: only its link, which is the first's word, is accessed.
        unsafe { self.memory.item(reference_of(node), self.guard) }
    }
}

impl Items<'_> {
    /// Seals the item at `node`, which must happen before the item is occupied: a read that finds
    /// no seal then knows without loading the link that the item is not occupied (docs/hotring.md,
    /// race 17).
    pub(super) fn seal(&self, node: Node) {
        let item = self.item(node);
        if !item.header_in_order().is_sealed() {
            item.seal_header();
        }
    }

    /// Prefetches the link of an item.
    #[inline]
    pub(super) fn prefetch_link(&self, node: Node) {
        self.memory.prefetch_item_at(reference_of(node), 0_usize.wrapping_sub(LINK_BYTES));
    }

    /// Prefetches the header of an item and the line `bytes` after its start.
    #[inline]
    pub(super) fn prefetch_item(&self, node: Node, bytes: usize) {
        self.memory.prefetch_item(reference_of(node));
        self.memory.prefetch_item_at(reference_of(node), bytes);
    }

    /// The last hash of the ring that holds `hash` now, but at most `last`; and the head of that
    /// ring.
    pub(super) fn ring_end(&self, hash: u64, last: u64) -> (u64, Head) {
        let mut table = self.tables.current(self.guard);
        loop {
            let head = Head(load(table.head(hash)));
            let end = last.min(hash | (u64::MAX >> (64 - table.shift())));
            match table.next(self.guard) {
                Some(next) if head == Head::MOVED => table = next,
                _ => return (end, head),
            }
        }
    }
}

impl Space for Items<'_> {
    #[inline]
    fn bits(&self) -> &Bits {
        self.bits
    }

    #[inline]
    fn head(&self, hash: u64) -> (&AtomicU64, Head) {
        self.tables.head(hash, self.guard)
    }

    #[inline]
    fn link(&self, node: Node) -> &AtomicU64 {
        self.item(node).link()
    }

    #[inline]
    fn order(&self, node: Node) -> Order<'_> {
        let key = self.item(node).key();
        Order { hash: self.memory.seed().hash(key), key }
    }

    #[inline]
    fn has_key(&self, node: Node, key: &[u8]) -> bool {
        self.item(node).has_key(key)
    }

    fn division(&self, lower: Node) -> u64 {
        let key = self.item(lower).key().first_chunk();
        u64::from_le_bytes(*key.expect("the key of a pair is its division"))
    }

    #[inline]
    fn number(&self) -> u64 {
        self.number
    }
}
