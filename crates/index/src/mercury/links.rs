//! Changes of chains, under their buckets' locks. Written against [`Links`], so that they run on
//! items, and on a handful of words in every interleaving that loom explores.

use super::buckets::{BucketGuard, Buckets};
use super::locking::Locking;
use super::word::{Bucket, Word};
use crate::mem::ItemRef;
use crate::sync::{AtomicU64, Ordering};

/// Where each item's link is, and which bucket it belongs to.
pub(super) trait Links {
    /// The word that names the item behind `item`.
    fn link(&self, item: ItemRef) -> &AtomicU64;

    /// The hash of the item's key.
    fn hash(&self, item: ItemRef) -> u64;

    /// The item behind `item`.
    #[inline]
    fn next(&self, item: ItemRef) -> Option<ItemRef> {
        load(self.link(item))
    }

    /// Changes what is behind `item`: for the holder of its bucket's lock, or the owner of an item
    /// that is not published.
    #[inline]
    fn set_next(&self, item: ItemRef, next: Option<ItemRef>) {
        // Release pairs with the acquire in `load`: whoever finds `next` finds it filled.
        self.link(item).store(next.map_or(0, ItemRef::to_bits), Ordering::Release);
    }
}

/// What a link says.
#[inline]
pub(super) fn load(link: &AtomicU64) -> Option<ItemRef> {
    // Acquire pairs with the release in `set_next`, for those who follow links without the lock.
    ItemRef::from_bits(link.load(Ordering::Acquire))
}

/// Whether the chain of `bucket` still starts with `first`, and `found` is that item or the one
/// behind it; without the lock, for the holder of a guard under which `first` was seen there.
///
/// If so, `found` was linked at some moment within this call, which is the linearization point of
/// the read that asks. A word that names an item is unlocked, and not moved. An item that was
/// unlinked is not linked again under our guard, and the move of a chain to another table leaves
/// its bucket moved: so `first` has been linked ever since it was seen. Let the load of its link
/// name `found`. Then `found` is linked at that load, unless a holder of the lock has just put it
/// there; that holder unlocks, which makes it linked, before the load of the word after.
#[inline]
pub(super) fn still_leads(
    links: &impl Links,
    bucket: &Bucket,
    first: ItemRef,
    found: ItemRef,
) -> bool {
    // The loads are in this order, as both acquire. No branch: which of the two it is, nobody can
    // foretell.
    let is_found = (found == first) | (links.next(first) == Some(found));
    is_found & (bucket.peek() == Word::of(Some(first)))
}

/// Puts `new` in front of the chain. The holder of the lock alone can reach `new`.
#[inline]
pub(super) fn push<L: Locking>(links: &impl Links, locked: &mut BucketGuard<'_, L>, new: ItemRef) {
    links.set_next(new, locked.first());
    locked.set_first(Some(new));
}

/// Makes `to` what follows `previous`, or, where that is none, the front of the chain.
#[inline]
pub(super) fn attach<L: Locking>(
    links: &impl Links,
    locked: &mut BucketGuard<'_, L>,
    previous: Option<ItemRef>,
    to: Option<ItemRef>,
) {
    match previous {
        Some(previous) => links.set_next(previous, to),
        None => locked.set_first(to),
    }
}

/// Moves the chain of bucket `index` to the buckets `2 * index` and `2 * index + 1` of a table of
/// twice the size, in order.
pub(super) fn split<L: Locking>(
    links: &impl Links,
    current: &Buckets<L>,
    next: &Buckets<L>,
    index: usize,
) {
    let mut old = current.lock(index);
    let mut firsts: [Option<ItemRef>; 2] = [None; 2];
    let mut lasts: [Option<ItemRef>; 2] = [None; 2];
    let mut item = old.first();
    while let Some(moved) = item {
        item = links.next(moved);
        let side = next.index_of(links.hash(moved)) % 2;
        match lasts[side].replace(moved) {
            None => firsts[side] = Some(moved),
            Some(last) => links.set_next(last, Some(moved)),
        }
    }
    for side in 0..2 {
        if let Some(last) = lasts[side] {
            links.set_next(last, None);
            next.lock(2 * index + side).set_first(firsts[side]);
        }
    }
    old.set_moved();
}

/// Moves the chains of the buckets `index` (even) and `index + 1` to bucket `index / 2` of a table
/// of half the size.
pub(super) fn join<L: Locking>(
    links: &impl Links,
    current: &Buckets<L>,
    next: &Buckets<L>,
    index: usize,
) {
    let (mut left, mut right) = (current.lock(index), current.lock(index + 1));
    let mut last = None;
    let mut item = left.first();
    while let Some(here) = item {
        last = Some(here);
        item = links.next(here);
    }
    let first = match last {
        None => right.first(),
        Some(last) => {
            links.set_next(last, right.first());
            left.first()
        }
    };
    next.lock(index / 2).set_first(first);
    left.set_moved();
    right.set_moved();
}
