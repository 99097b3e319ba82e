//! Changes of chains, under the locks of their buckets. They are written against [`Links`], so that
//! they run on items, and in loom tests on a few words.

use super::buckets::{BucketGuard, Buckets};
use super::locking::Locking;
use super::word::{Bucket, Word};
use crate::mem::ItemRef;
use crate::sync::{AtomicU64, Ordering};

/// Access to the links and hashes of items.
pub(super) trait Links {
    /// The word that holds the reference to the item after `item`.
    fn link(&self, item: ItemRef) -> &AtomicU64;

    /// The hash of the item's key.
    fn hash(&self, item: ItemRef) -> u64;

    /// The item after `item`.
    #[inline]
    fn next(&self, item: ItemRef) -> Option<ItemRef> {
        load(self.link(item))
    }

    /// Sets the item after `item`. Requires: the caller holds its bucket's lock, or `item` is not
    /// published.
    #[inline]
    fn set_next(&self, item: ItemRef, next: Option<ItemRef>) {
        // Release pairs with the acquire in `load`: a thread that finds `next` finds it filled.
        self.link(item).store(next.map_or(0, ItemRef::to_bits), Ordering::Release);
    }
}

/// The reference in a link.
#[inline]
pub(super) fn load(link: &AtomicU64) -> Option<ItemRef> {
    // Acquire pairs with the release in `set_next`, for threads that follow links without the lock.
    ItemRef::from_bits(link.load(Ordering::Acquire))
}

/// Whether the chain of `bucket` still starts with `first`, and `found` is that item or the one
/// after it. Takes no lock. Requires: the caller holds a guard under which it found `first` there.
///
/// If so, `found` was linked at some moment within this call, which is the linearization point of
/// the caller's read. Proof: a word that names an item is neither locked nor moved. An unlinked
/// item is not linked again under the caller's guard, and the move of a chain to another table
/// leaves its bucket moved: so `first` has been linked ever since it was found. Let the load of its
/// link return `found`. Then `found` is linked at that load, unless a holder of the lock has just
/// put it there; that holder unlocks, which makes `found` linked, before the subsequent load of the
/// word.
#[inline]
pub(super) fn still_leads(
    links: &impl Links,
    bucket: &Bucket,
    first: ItemRef,
    found: ItemRef,
) -> bool {
    // The loads happen in this order, as both acquire. No branch, because it would be
    // unpredictable.
    let is_found = (found == first) | (links.next(first) == Some(found));
    is_found & (bucket.peek() == Word::of(Some(first)))
}

/// Inserts `new`, which only the holder of the lock can reach, at the front of the chain.
#[inline]
pub(super) fn push<L: Locking>(links: &impl Links, locked: &mut BucketGuard<'_, L>, new: ItemRef) {
    links.set_next(new, locked.first());
    locked.set_first(Some(new));
}

/// Makes `to` the item after `previous` or, if that is None, the first of the chain.
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
