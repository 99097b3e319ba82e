//! Chains: the one place where an index word or a link becomes an item.

use super::buckets::BucketGuard;
use super::links::{self, Links};
use super::locking::Locking;
use crate::mem::{Guard, Item, ItemRef, Memory};
use crate::sync::AtomicU64;

/// Items as the holder of a guard may follow them.
///
/// Why following is safe, with a bucket's lock and without: a reference in a bucket or a link names
/// an item that was filled before it was published (release; we load with acquire). An item that
/// was linked at any moment since our guard was taken is retired after that moment, so its memory
/// stays while the guard lasts. And what we follow was linked at such a moment: a bucket's word by
/// the guard's own argument (see `mem::epoch`); a link of an item that is linked, likewise; a link
/// of an item that was unlinked since, because it still names what was behind it at that moment,
/// later than our guard.
#[derive(Clone, Copy)]
pub(super) struct Chains<'g> {
    memory: &'g Memory,
    guard: &'g Guard<'g>,
}

/// Where an item was found in its chain.
#[derive(Clone, Copy)]
pub(super) struct ChainPosition<'g> {
    pub(super) item: Item<'g>,
    /// The item before it, or none if it is the first.
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
        // SAFETY: see the head of `Chains`; only this file and its callers in `mercury` make
        // references, all from words that they loaded under this guard.
        unsafe { self.memory.item(reference, self.guard) }
    }

    /// The item behind `item`.
    #[inline]
    pub(super) fn next(&self, item: Item<'g>) -> Option<Item<'g>> {
        next_of(item).map(|next| self.item(next))
    }

    /// The item of `key` in the chain that starts at `first`.
    #[inline]
    pub(super) fn find(&self, first: Option<ItemRef>, key: &[u8]) -> Option<ChainPosition<'g>> {
        self.find_by(first, |item| item.has_key(key))
    }

    /// Exactly the item `wanted`.
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

    /// Puts `new` in front of the chain. The holder of the lock alone can reach `new`.
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
    /// Takes the item out of the chain.
    pub(super) fn unlink<L: Locking>(&self, chains: &Chains<'g>, locked: &mut BucketGuard<'_, L>) {
        self.attach(chains, locked, next_of(self.item));
    }

    /// Puts `new` where the item is.
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

/// The reference behind `item`.
#[inline]
pub(super) fn next_of(item: Item<'_>) -> Option<ItemRef> {
    links::load(item.link())
}
