//! Operations that may change an item.
//!
//! An operation first looks the key up without the bucket's lock, decides on the item that it
//! found, and builds the new item if one is needed. Then it takes the lock, looks again, and
//! carries the decision out if the item is unchanged. If the item has changed, it decides again:
//! under the lock if that needs no other memory, else from the start. So neither allocation nor
//! copying happens under a lock. A retry means that another operation on the key took effect in
//! between.
//!
//! Linearization point: the store that unlocks the bucket (for an operation that changes nothing:
//! any moment in that critical section).

use amalgam_op::{Decision, ItemView, ItemWrite, Now, Op, Outcome, Part, decide};

use super::chain::{ChainPosition, Chains};
use super::engine::MercuryWorker;
use super::locking::Locking;
use super::tables::TableHandle;
use crate::mem::{Guard, Item, ItemLayout, ItemRef, Memory, Shortage};
use crate::{Sink, show_outcome};
use std::sync::atomic::Ordering;

/// The item that a lookup found under a key.
#[derive(Clone, Copy)]
struct ItemSnapshot<'g> {
    item: Item<'g>,
    view: ItemView<'g>,
}

impl<'g> ItemSnapshot<'g> {
    #[inline]
    fn new(item: Item<'g>) -> Self {
        Self { item, view: item.view() }
    }

    /// Whether two lookups found the same, so that the same decision holds: an item is immutable
    /// except for its word, and under a guard its reference is not reused.
    #[inline]
    fn is_same(left: Option<&Self>, right: Option<&Self>) -> bool {
        match (left, right) {
            (None, None) => true,
            (Some(left), Some(right)) => {
                left.item.reference() == right.item.reference()
                    && (!left.item.header().has_word()
                        || left.view.value.as_bytes() == right.view.value.as_bytes())
            }
            _ => false,
        }
    }
}

/// An item that was built and is not yet published.
#[derive(Clone, Copy)]
struct Built<'a, 'g> {
    item_write: ItemWrite<'a>,
    item: Item<'g>,
    /// The item's contents for the sink, taken before publishing: afterwards its word may change.
    view: ItemView<'g>,
}

/// The result of an attempt to commit under the lock.
enum Committed<'g> {
    /// The operation took effect.
    Done {
        outcome: Outcome,
        /// The item to show, on a hit.
        shown: Option<ItemSnapshot<'g>>,
        /// The item that was unlinked and is to be retired.
        unlinked: Option<ItemRef>,
        has_published: bool,
        has_inserted: bool,
    },
    /// The item found under the lock needs another item built (or the same one, if memory was
    /// short).
    Changed(Option<ItemSnapshot<'g>>),
}

/// The result of an attempt.
enum Attempt {
    Done(Outcome),
    /// There is no memory for the item; None if no header can hold it.
    Short(Option<Shortage>),
}

impl<L: Locking> MercuryWorker<'_, L> {
    /// Carries out any operation.
    #[inline(never)]
    pub(super) fn execute(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        loop {
            match self.attempt(op, now, sink) {
                Attempt::Done(outcome) => return outcome,
                Attempt::Short(None) => return Outcome::TooLarge,
                Attempt::Short(Some(shortage)) if shortage.is_too_large() => {
                    return Outcome::TooLarge;
                }
                // This thread holds no guard and no lock here. The loop is bounded: `make_room`
                // returns false when nothing can be evicted.
                Attempt::Short(Some(shortage)) => {
                    if !self.make_room(shortage, op, now) {
                        return Outcome::OutOfMemory;
                    }
                }
            }
        }
    }

    fn attempt(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Attempt {
        self.handle.prefetch(op.key.hash());
        let guard = self.pool.pin();
        let chains = Chains::new(&self.engine.memory, &guard);
        let mut snapshot = self.handle.look(&chains, op);
        loop {
            let current = snapshot.as_ref().map(|snapshot| &snapshot.view);
            let fresh_cas = self.pool.fresh_cas(op, current);
            let decision = decide(current, op, now, fresh_cas);
            let (built, shortage) = match self.build(&decision, snapshot.as_ref(), op, now, &chains)
            {
                Ok(built) => (built, None),
                Err(shortage) => (None, Some(shortage)),
            };
            let plan = Plan { op, now, fresh_cas, snapshot, decision, built };
            match self.handle.commit(&chains, &plan) {
                Committed::Done { outcome, shown, unlinked, has_published, has_inserted } => {
                    if let (Some(built), false) = (built, has_published) {
                        // SAFETY: built by us and never published.
                        unsafe { self.pool.retire(built.item.reference()) };
                    }
                    if let Some(ItemSnapshot { item, view }) = shown {
                        show_outcome(op, &item, view, outcome, now, &self.engine.memory, sink);
                    }
                    if let Some(unlinked) = unlinked {
                        // SAFETY: this operation unlinked it.
                        unsafe { self.pool.retire(unlinked) };
                        if let Some(snapshot) = &plan.snapshot {
                            self.pool.note_if_dead(now, &snapshot.view);
                        }
                    }
                    if has_inserted {
                        self.note_insert();
                    }
                    return Attempt::Done(outcome);
                }
                Committed::Changed(actual) => {
                    if let Some(built) = built {
                        // SAFETY: built by us and never published.
                        unsafe { self.pool.retire(built.item.reference()) };
                    }
                    if let Some(shortage) = shortage
                        && ItemSnapshot::is_same(snapshot.as_ref(), actual.as_ref())
                    {
                        return Attempt::Short(shortage);
                    }
                    snapshot = actual;
                }
            }
        }
    }

    /// Builds the item that a decision asks for, unless changing a word in place suffices. The
    /// error is the shortage, or None if no header can hold such an item.
    #[inline]
    fn build<'a, 'g>(
        &mut self,
        decision: &Decision<'a>,
        snapshot: Option<&ItemSnapshot<'g>>,
        op: &Op<'_>,
        now: &Now,
        chains: &Chains<'g>,
    ) -> Result<Option<Built<'a, 'g>>, Option<Shortage>> {
        let Decision::Replace(item_write, _) = decision else { return Ok(None) };
        if snapshot
            .is_some_and(|snapshot| item_write.sole_word_change(&snapshot.view, now).is_some())
        {
            return Ok(None);
        }
        let current = snapshot.map_or(&[][..], |snapshot| snapshot.view.value.as_bytes());
        let key = op.key.bytes();
        let layout = ItemLayout::new(key.len(), item_write, current.len(), now).ok_or(None)?;
        let slot = self.pool.reserve(layout).map_err(Some)?;
        let item = chains.item(self.pool.fill(slot, key, item_write, current));
        Ok(Some(Built { item_write: *item_write, item, view: item.view() }))
    }
}

/// Whether two writes produce the same item, whatever the current one is.
fn is_same_write(left: &ItemWrite<'_>, right: &ItemWrite<'_>) -> bool {
    let same_part = |left: &Part<'_>, right: &Part<'_>| match (left, right) {
        (Part::Empty, Part::Empty) => true,
        (Part::Bytes(left), Part::Bytes(right)) => std::ptr::eq(*left, *right),
        _ => false,
    };
    same_part(&left.parts[0], &right.parts[0])
        && same_part(&left.parts[1], &right.parts[1])
        && left.flags == right.flags
        && left.expiry == right.expiry
        && left.cas == right.cas
        && left.meta_flags == right.meta_flags
}

/// The decision of an operation, and its inputs.
struct Plan<'p, 'a, 'g> {
    op: &'p Op<'a>,
    now: &'p Now,
    fresh_cas: u64,
    snapshot: Option<ItemSnapshot<'g>>,
    decision: Decision<'a>,
    built: Option<Built<'a, 'g>>,
}

impl<'a, 'g> Plan<'_, 'a, 'g> {
    /// Whether `actual` is a newer item whose id is not below `fresh_cas`.
    #[inline]
    fn is_behind(&self, actual: Option<&ItemSnapshot<'g>>) -> bool {
        let id = actual.and_then(|actual| actual.view.cas);
        id.is_some_and(|id| id >= self.fresh_cas)
            && !ItemSnapshot::is_same(self.snapshot.as_ref(), actual)
    }

    /// The decision for `actual`, the item found under the lock: the plan's, or a new one, which is
    /// put into `new`. By reference, as copies of a decision cost several percent of a `set`.
    #[inline]
    fn decision_on<'d>(
        &'d self,
        actual: Option<&ItemSnapshot<'g>>,
        new: &'d mut Option<Decision<'a>>,
    ) -> &'d Decision<'a> {
        if ItemSnapshot::is_same(self.snapshot.as_ref(), actual) {
            return &self.decision;
        }
        let view = actual.map(|actual| &actual.view);
        new.insert(decide(view, self.op, self.now, self.fresh_cas))
    }

    /// The built item, if it is the one that `item_write` asks for to replace `actual`.
    #[inline]
    fn built_for(
        &self,
        item_write: &ItemWrite<'_>,
        actual: Option<&ItemSnapshot<'g>>,
    ) -> Option<&Built<'a, 'g>> {
        let is_same = |built: &&Built<'_, '_>| {
            ItemSnapshot::is_same(self.snapshot.as_ref(), actual)
                || is_same_write(&built.item_write, item_write)
        };
        self.built.as_ref().filter(is_same)
    }
}

impl<L: Locking> TableHandle<'_, L> {
    /// Looks the key up without the bucket's lock.
    #[inline]
    fn look<'g>(&self, chains: &Chains<'g>, op: &Op<'_>) -> Option<ItemSnapshot<'g>> {
        let tables = self.enter();
        let first = tables.bucket(op.key.hash()).peek().item();
        chains.find(first, op.key.bytes()).map(|place| ItemSnapshot::new(place.item))
    }

    /// Looks the key up under the lock, and carries the plan out if it still applies.
    fn commit<'g>(&self, chains: &Chains<'g>, plan: &Plan<'_, '_, 'g>) -> Committed<'g> {
        let tables = self.enter();
        let mut locked = tables.lock(plan.op.key.hash());
        let place = chains.find(locked.first(), plan.op.key.bytes());
        let actual = place.map(|place| ItemSnapshot::new(place.item));
        let done = |outcome, shown, unlinked| Committed::Done {
            outcome,
            shown,
            unlinked,
            has_published: false,
            has_inserted: false,
        };
        if plan.is_behind(actual.as_ref()) {
            return Committed::Changed(actual);
        }
        let mut new_decision = None;
        let (item_write, outcome) = match plan.decision_on(actual.as_ref(), &mut new_decision) {
            &Decision::Keep(outcome) => return done(outcome, actual, None),
            &Decision::Remove(outcome) => {
                let unlinked = place.map(|place| {
                    place.unlink(chains, &mut locked);
                    place.item.reference()
                });
                return done(outcome, None, unlinked);
            }
            Decision::Replace(item_write, outcome) => (item_write, *outcome),
        };
        if let Some(actual) = &actual
            && let Some(word) = item_write.sole_word_change(&actual.view, plan.now)
        {
            actual.item.change_word(word, item_write.meta_flags.fetched);
            return done(outcome, Some(ItemSnapshot::new(actual.item)), None);
        }
        let Some(built) = plan.built_for(item_write, actual.as_ref()) else {
            return Committed::Changed(actual);
        };
        match place {
            Some(place) => place.replace(chains, &mut locked, built.item),
            None => chains.push(&mut locked, built.item),
        }
        Committed::Done {
            outcome,
            shown: Some(ItemSnapshot { item: built.item, view: built.view }),
            unlinked: place.map(|place| place.item.reference()),
            has_published: true,
            has_inserted: place.is_none(),
        }
    }

    /// Implements [`crate::Engine::compare_exchange_item`]. Linearization point: the store that
    /// unlocks the bucket.
    pub(super) fn swap(
        &self,
        memory: &Memory,
        guard: &Guard<'_>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        let chains = Chains::new(memory, guard);
        let tables = self.enter();
        let mut locked = tables.lock(hash);
        let Some(place) = chains.find_exact(locked.first(), old) else { return false };
        match new.map(|new| chains.item(new)) {
            None => place.unlink(&chains, &mut locked),
            Some(new) => {
                copy_word(&place, new);
                place.replace(&chains, &mut locked, new);
            }
        }
        true
    }
}

/// Copies an item's word, which may have changed, to its copy. Requires: the caller holds the
/// bucket's lock, so that no update is lost.
fn copy_word(place: &ChainPosition<'_>, copy: Item<'_>) {
    if copy.header().has_word() {
        copy.word().store(place.item.word().load(Ordering::Relaxed), Ordering::Release);
    }
}
