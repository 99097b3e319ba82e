//! Chains of items. Only this file turns the references in buckets and links into items.

use super::buckets::BucketGuard;
use super::links::{self, Links};
use super::locking::Locking;
use crate::mem::{Guard, Item, ItemRef, Memory};
use crate::sync::AtomicU64;

/// Access to chains for the holder of a guard.
///
/// Following links is safe with and without the bucket's lock. A reference in a bucket or a link
/// names an item that was filled before it was published (release, loaded here with acquire). An
/// item that was linked at any moment since the guard was taken is retired after that moment, so
/// its memory stays while the guard lives. And every item reached was linked at such a moment:
/// through a bucket's word, by the guard's own argument (see `mem::epoch`); through the link of a
/// linked item, likewise; through the link of an item unlinked since, because that link still names
/// the next item at the moment of unlinking, which is later than the guard.
#[derive(Clone, Copy)]
pub(super) struct Chains<'g> {
    memory: &'g Memory,
    guard: &'g Guard<'g>,
}

/// The position of an item in its chain.
#[derive(Clone, Copy)]
pub(super) struct ChainPosition<'g> {
    pub(super) item: Item<'g>,
    /// The item before it; None if it is the first.
    previous: Option<Item<'g>>,
}

impl<'g> Chains<'g> {
    #[inline]
    pub(super) fn new(memory: &'g Memory, guard: &'g Guard<'_>) -> Self {
        Self { memory, guard }
    }

    /// The item of a reference that was loaded from a bucket or a link under the guard.
    #[inline]
    pub(super) fn item(&self, reference: ItemRef) -> Item<'g> {
        // SAFETY: see the doc of `Chains`; only this file and its callers in `mercury` make
        // references, all from words that they loaded under this guard.
        unsafe { self.memory.item(reference, self.guard) }
    }

    /// The item after `item` in its chain.
    #[inline]
    pub(super) fn next(&self, item: Item<'g>) -> Option<Item<'g>> {
        next_of(item).map(|next| self.item(next))
    }

    /// The item of `key` in the chain that starts at `first`.
    #[inline]
    pub(super) fn find(&self, first: Option<ItemRef>, key: &[u8]) -> Option<ChainPosition<'g>> {
        self.find_by(first, |item| item.has_key(key))
    }

    /// Finds exactly the item `wanted` in the chain that starts at `first`.
    pub(super) fn find_exact(
        &self,
        first: Option<ItemRef>,
        wanted: ItemRef,
    ) -> Option<ChainPosition<'g>> {
        self.find_by(first, |item| item.reference() == wanted)
    }

    #[inline]
    fn find_by(
        &self,
        first: Option<ItemRef>,
        is_wanted: impl Fn(Item<'g>) -> bool,
    ) -> Option<ChainPosition<'g>> {
        let mut previous = None;
        let mut item = self.item(first?);
        loop {
            if is_wanted(item) {
                return Some(ChainPosition { item, previous });
            }
            previous = Some(item);
            item = self.next(item)?;
        }
    }

    /// Inserts `new`, which is not published yet, at the front of the chain.
    pub(super) fn push<L: Locking>(&self, locked: &mut BucketGuard<'_, L>, new: Item<'g>) {
        links::push(self, locked, new.reference());
    }
}

impl Links for Chains<'_> {
    #[inline]
    fn link(&self, item: ItemRef) -> &AtomicU64 {
        self.item(item).link()
    }

    #[inline]
    fn hash(&self, item: ItemRef) -> u64 {
        self.memory.seed().hash(self.item(item).key())
    }
}

impl<'g> ChainPosition<'g> {
    /// Unlinks the item from the chain.
    pub(super) fn unlink<L: Locking>(&self, chains: &Chains<'g>, locked: &mut BucketGuard<'_, L>) {
        self.attach(chains, locked, next_of(self.item));
    }

    /// Replaces the item in the chain by `new`.
    pub(super) fn replace<L: Locking>(
        &self,
        chains: &Chains<'g>,
        locked: &mut BucketGuard<'_, L>,
        new: Item<'g>,
    ) {
        chains.set_next(new.reference(), next_of(self.item));
        self.attach(chains, locked, Some(new.reference()));
    }

    fn attach<L: Locking>(
        &self,
        chains: &Chains<'g>,
        locked: &mut BucketGuard<'_, L>,
        to: Option<ItemRef>,
    ) {
        let previous = self.previous.map(|previous| previous.reference());
        links::attach(chains, locked, previous, to);
    }
}

/// The reference to the item after `item`.
#[inline]
pub(super) fn next_of(item: Item<'_>) -> Option<ItemRef> {
    links::load(item.link())
}
