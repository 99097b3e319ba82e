//! Operations that may change an item.
//!
//! An operation looks first, without the bucket's lock; decides on what it saw; builds the new item
//! if there is to be one; then takes the lock, looks again, and, where the item is still the one it
//! decided on, carries the decision out. Where it is another, it decides again: under the lock if
//! no other memory is needed for that, or from the start. So neither allocation nor copying happens
//! under a lock. A repetition means that another operation on the key took effect in between.
//!
//! Linearization point: the store that unlocks the bucket (for what leaves everything as it is: any
//! moment in that critical section).

use amalgam_op::{Decision, ItemView, ItemWrite, Now, Op, Outcome, Part, decide};

use super::chain::{Follow, Place};
use super::engine::MercuryWorker;
use super::locking::Locking;
use super::tables::Seat;
use crate::mem::{Guard, Item, ItemLayout, ItemRef, Memory, Shortage};
use crate::{Sink, show_outcome};
use std::sync::atomic::Ordering;

/// What an operation saw under its key.
#[derive(Clone, Copy)]
struct Seen<'g> {
    item: Item<'g>,
    view: ItemView<'g>,
}

impl<'g> Seen<'g> {
    #[inline]
    fn new(item: Item<'g>) -> Self {
        Self { item, view: item.view() }
    }

    /// Whether two look-ups found the same, as far as decisions go: an item is immutable except for
    /// its word, and under a guard its reference is not reused.
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

/// An item that was built, and is not yet published.
#[derive(Clone, Copy)]
struct Built<'a, 'g> {
    item_write: ItemWrite<'a>,
    item: Item<'g>,
    /// The item as the sink may see it; afterwards its word may change.
    view: ItemView<'g>,
}

/// What came of a look under the lock.
enum Committed<'g> {
    /// The operation took effect.
    Done {
        outcome: Outcome,
        /// The item to show, on a hit.
        shown: Option<Seen<'g>>,
        /// The item that is to be retired.
        unlinked: Option<ItemRef>,
        has_published: bool,
        has_inserted: bool,
    },
    /// What is there needs another item built, or the same where memory was short.
    Changed(Option<Seen<'g>>),
}

/// What became of an attempt.
enum Attempt {
    Done(Outcome),
    /// There is no memory for the item.
    Short(Option<Shortage>),
}

impl<L: Locking> MercuryWorker<'_, L> {
    /// See [`crate::Worker::apply`].
    #[inline]
    pub(super) fn carry_out(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        loop {
            match self.attempt(op, now, sink) {
                Attempt::Done(outcome) => return outcome,
                Attempt::Short(None) => return Outcome::TooLarge,
                Attempt::Short(Some(shortage)) if shortage.is_too_large() => {
                    return Outcome::TooLarge;
                }
                // Without a guard and a lock. Bounded: it gives up where nothing can be evicted.
                Attempt::Short(Some(shortage)) => {
                    if !self.make_room(shortage, now) {
                        return Outcome::OutOfMemory;
                    }
                }
            }
        }
    }

    fn attempt(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Attempt {
        self.seat.prefetch(op.key.hash());
        let guard = self.pool.pin();
        let follow = Follow::new(&self.engine.memory, &guard);
        let mut seen = self.seat.look(&follow, op);
        loop {
            let current = seen.as_ref().map(|seen| &seen.view);
            let fresh_cas = self.pool.fresh_cas(op, current);
            let decision = decide(current, op, now, fresh_cas);
            let (built, shortage) = match self.build(&decision, seen.as_ref(), op, now, &follow) {
                Ok(built) => (built, None),
                Err(shortage) => (None, Some(shortage)),
            };
            let plan = Plan { op, now, fresh_cas, seen, decision, built };
            match self.seat.commit(&follow, &plan) {
                Committed::Done { outcome, shown, unlinked, has_published, has_inserted } => {
                    if let (Some(built), false) = (built, has_published) {
                        // SAFETY: built by us and never published.
                        unsafe { self.pool.retire(built.item.reference()) };
                    }
                    if let Some(Seen { item, view }) = shown {
                        show_outcome(op, &item, view, outcome, now, &self.engine.memory, sink);
                    }
                    if let Some(unlinked) = unlinked {
                        // SAFETY: we unlinked it.
                        unsafe { self.pool.retire(unlinked) };
                        if let Some(seen) = &plan.seen {
                            self.pool.note_if_dead(now, &seen.view);
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
                        && Seen::is_same(seen.as_ref(), actual.as_ref())
                    {
                        return Attempt::Short(shortage);
                    }
                    seen = actual;
                }
            }
        }
    }

    /// Builds the item that a decision asks for, unless writing a word will do. Errors with the
    /// shortage, or with none if no header can hold such an item.
    #[inline]
    fn build<'a, 'g>(
        &mut self,
        decision: &Decision<'a>,
        seen: Option<&Seen<'g>>,
        op: &Op<'_>,
        now: &Now,
        follow: &Follow<'g>,
    ) -> Result<Option<Built<'a, 'g>>, Option<Shortage>> {
        let Decision::Replace(item_write, _) = decision else { return Ok(None) };
        if seen.is_some_and(|seen| item_write.sole_word_change(&seen.view, now).is_some()) {
            return Ok(None);
        }
        let current = seen.map_or(&[][..], |seen| seen.view.value.as_bytes());
        let key = op.key.bytes();
        let layout = ItemLayout::new(key.len(), item_write, current.len(), now).ok_or(None)?;
        let slot = self.pool.reserve(layout).map_err(Some)?;
        let item = follow.item(self.pool.fill(slot, key, item_write, current));
        Ok(Some(Built { item_write: *item_write, item, view: item.view() }))
    }
}

/// Whether the operation leaves the recency and fetched bits alone.
/// Whether two writes give the same item, whatever is there now.
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

/// What an operation is about to do.
struct Plan<'p, 'a, 'g> {
    op: &'p Op<'a>,
    now: &'p Now,
    fresh_cas: u64,
    seen: Option<Seen<'g>>,
    decision: Decision<'a>,
    built: Option<Built<'a, 'g>>,
}

impl<'a, 'g> Plan<'_, 'a, 'g> {
    /// Whether `actual` came meanwhile, with an id that `fresh_cas` is not above.
    #[inline]
    fn is_behind(&self, actual: Option<&Seen<'g>>) -> bool {
        let id = actual.and_then(|actual| actual.view.cas);
        id.is_some_and(|id| id >= self.fresh_cas) && !Seen::is_same(self.seen.as_ref(), actual)
    }

    /// What to do about `actual`, which the bucket really holds.
    #[inline]
    fn decision_on(&self, actual: Option<&Seen<'g>>) -> Decision<'a> {
        if Seen::is_same(self.seen.as_ref(), actual) {
            self.decision
        } else {
            decide(actual.map(|actual| &actual.view), self.op, self.now, self.fresh_cas)
        }
    }

    /// The built item, if it is what `item_write` asks for in place of `actual`.
    #[inline]
    fn built_for(
        &self,
        item_write: &ItemWrite<'_>,
        actual: Option<&Seen<'g>>,
    ) -> Option<Built<'a, 'g>> {
        let is_same = |built: &Built<'_, '_>| {
            Seen::is_same(self.seen.as_ref(), actual)
                || is_same_write(&built.item_write, item_write)
        };
        self.built.filter(is_same)
    }
}

impl<L: Locking> Seat<'_, L> {
    /// What seems to be under the key, without the bucket's lock.
    #[inline]
    fn look<'g>(&self, follow: &Follow<'g>, op: &Op<'_>) -> Option<Seen<'g>> {
        let inside = self.enter();
        let first = inside.bucket(op.key.hash()).peek().item();
        follow.find(first, op.key.bytes()).map(|place| Seen::new(place.item))
    }

    /// Looks under the lock, and carries the plan out if it can be.
    fn commit<'g>(&self, follow: &Follow<'g>, plan: &Plan<'_, '_, 'g>) -> Committed<'g> {
        let inside = self.enter();
        let mut locked = inside.lock(plan.op.key.hash());
        let place = follow.find(locked.first(), plan.op.key.bytes());
        let actual = place.map(|place| Seen::new(place.item));
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
        let (item_write, outcome) = match plan.decision_on(actual.as_ref()) {
            Decision::Keep(outcome) => return done(outcome, actual, None),
            Decision::Remove(outcome) => {
                let unlinked = place.map(|place| {
                    place.unlink(follow, &mut locked);
                    place.item.reference()
                });
                return done(outcome, None, unlinked);
            }
            Decision::Replace(item_write, outcome) => (item_write, outcome),
        };
        if let Some(actual) = actual
            && let Some(word) = item_write.sole_word_change(&actual.view, plan.now)
        {
            actual.item.change_word(word, item_write.meta_flags.fetched);
            return done(outcome, Some(Seen::new(actual.item)), None);
        }
        let Some(built) = plan.built_for(&item_write, actual.as_ref()) else {
            return Committed::Changed(actual);
        };
        match place {
            Some(place) => place.replace(follow, &mut locked, built.item),
            None => follow.push(&mut locked, built.item),
        }
        Committed::Done {
            outcome,
            shown: Some(Seen { item: built.item, view: built.view }),
            unlinked: place.map(|place| place.item.reference()),
            has_published: true,
            has_inserted: place.is_none(),
        }
    }

    /// See [`crate::Engine::compare_exchange_item`]. Linearization point: the store that unlocks
    /// the bucket.
    pub(super) fn swap(
        &self,
        memory: &Memory,
        guard: &Guard<'_>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        let follow = Follow::new(memory, guard);
        let inside = self.enter();
        let mut locked = inside.lock(hash);
        let Some(place) = follow.find_exact(locked.first(), old) else { return false };
        match new.map(|new| follow.item(new)) {
            None => place.unlink(&follow, &mut locked),
            Some(new) => {
                copy_word(&place, new);
                place.replace(&follow, &mut locked, new);
            }
        }
        true
    }
}

/// Carries an in-place word over to a copy of the item. The caller holds the bucket's lock, so that
/// no update is lost.
fn copy_word(place: &Place<'_>, copy: Item<'_>) {
    if copy.header().has_word() {
        copy.word().store(place.item.word().load(Ordering::Relaxed), Ordering::Release);
    }
}
