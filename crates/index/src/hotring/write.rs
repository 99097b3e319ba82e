//! Writes: find the item, call `decide`, carry out the decision, and start over if another thread
//! changed the ring first.
//!
//! Linearization points: see docs/hotring.md. An operation that changes nothing takes effect when
//! the item (or its absence) was observed.

use amalgam_op::{Decision, ItemView, ItemWrite, Key, Now, Op, Outcome, Value, decide};

use super::change::{Position, insert, insert_first, locate, move_head, occupy, replace, unlink};
use super::engine::{HotRingWorker, Strategy};
use super::items::{Items, node_of};
use super::read::{Search, State};
use super::space::{Order, Space, Target};
use super::walk::{Event, LoadedNode, Walk};
use super::word::{Head, Link, Node};
use crate::mem::{Attempt, ItemLayout, ItemRef, Slot, Writer, changes_in_place};
use crate::{Sink, show_outcome};

/// The result of a search from the head.
struct Lookup {
    head: Head,
    /// The item of the key, if it is present.
    found: Option<Node>,
    /// The item right before the key's position, if the search met it.
    before: Option<LoadedNode>,
}

/// The inputs of an attempt.
struct WriteContext<'j, 'g> {
    op: &'j Op<'j>,
    now: &'j Now,
    items: &'j Items<'g>,
}

impl WriteContext<'_, '_> {
    fn hash(&self) -> u64 {
        self.op.key.hash()
    }

    fn order(&self) -> Order<'_> {
        order_of(&self.op.key)
    }
}

fn order_of<'k>(key: &Key<'k>) -> Order<'k> {
    Order { hash: key.hash(), key: key.bytes() }
}

impl<'i, S: Strategy> HotRingWorker<'i, S> {
    /// Implements [`crate::Worker::apply`].
    pub(super) fn execute(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        self.requests = self.requests.wrapping_add(1);
        self.until_done(op, now, |worker, slot| worker.attempt(op, now, slot, sink))
    }

    fn attempt(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        slot: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let guard = self.pool.pin();
        let items = self.index.items(self.pool.number() as u64, &guard);
        let context = WriteContext { op, now, items: &items };
        let lookup = self.find(&context);
        match lookup.found {
            Some(found) => self.attempt_present(&context, &lookup, found, slot, sink),
            None => self.attempt_absent(&context, &lookup, slot, sink),
        }
    }

    /// Looks the item up by tags, as reads do; if that is inconclusive, by a walk.
    fn find(&mut self, context: &WriteContext<'_, '_>) -> Lookup {
        let (items, key) = (context.items, &context.op.key);
        let (_, head) = items.head(context.hash());
        let mut search = Search::new(items, key, head);
        while search.state == State::Open {
            search.advance(items);
        }
        let loaded =
            search.before(items).map(|node| LoadedNode { node, link: items.load_link(node) });
        let is_adjacent =
            |loaded: &LoadedNode| loaded.link.is_plain() && loaded.link.address() == search.at;
        let before = loaded.filter(is_adjacent);
        if self.is_found(items, &search, key) {
            self.note_cost(search.passed);
            return Lookup { head, found: search.node(items), before };
        }
        // The key's position is right after `before`: the tags of both neighbours differ from its
        // own.
        if search.state == State::Absent && before.is_some() {
            self.note_cost(search.passed);
            return Lookup { head, found: None, before };
        }
        self.walk_to(context, head)
    }

    /// Whether the search reached the key's item and the item is in its ring: an item without a
    /// seal is, at this moment (docs/hotring.md, race 17).
    #[inline]
    fn is_found(&self, items: &Items<'_>, search: &Search, key: &Key<'_>) -> bool {
        let (State::Likely, Some(node)) = (search.state, search.node(items)) else { return false };
        let item = items.item(node);
        let header = item.header_in_order();
        header.is_live() && !header.is_sealed() && item.is_of(header, key.bytes())
    }

    /// Looks the item up by a [`Walk`], which handles all kinds of items.
    fn walk_to(&mut self, context: &WriteContext<'_, '_>, head: Head) -> Lookup {
        let mut walk = Walk::new(
            context.items,
            Target::new(context.items.bits, context.order()),
            head.address(),
        );
        let event = walk.finish();
        let is_adjacent = |before: &LoadedNode| before.link.address() == walk.at;
        let before = walk.before.filter(is_adjacent);
        self.note_cost(walk.visited.saturating_sub(1));
        match event {
            Event::Hit(found) => Lookup { head, found: Some(found.node), before },
            _ => Lookup { head, found: None, before },
        }
    }

    fn attempt_absent(
        &mut self,
        context: &WriteContext<'_, '_>,
        lookup: &Lookup,
        slot: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let (item_write, outcome) =
            match decide(None, context.op, context.now, self.pool.fresh_cas(context.op, None)) {
                Decision::Keep(outcome) | Decision::Remove(outcome) => {
                    return Attempt::Done(outcome);
                }
                Decision::Replace(item_write, outcome) => (item_write, outcome),
            };
        let new = match self.write(context, &item_write, &[], slot) {
            Ok(new) => new,
            Err(attempt) => return attempt,
        };
        let item = context.items.item(node_of(new));
        // Looked at before it is published: afterwards others may change its word.
        let found = item.view();
        if !insert_new(context, lookup, node_of(new)) {
            // SAFETY: filled and never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        self.lead_to(context, node_of(new));
        show_outcome(context.op, &item, found, outcome, context.now, &self.index.memory, sink);
        Attempt::Done(outcome)
    }

    /// Moves the head to an item that was just inserted, because new items are read soon. The head
    /// loses its patience, and a round of sampling that is under way ends.
    fn lead_to(&self, context: &WriteContext<'_, '_>, new: Node) {
        let (word, head) = context.items.head(context.hash());
        let address = context.items.address(new, context.hash());
        if !head.is_moving() && S::MOVES_HEADS && head.address() != address {
            move_head(context.items, word, head, Head::to(address));
        }
    }

    fn attempt_present(
        &mut self,
        context: &WriteContext<'_, '_>,
        lookup: &Lookup,
        found: Node,
        slot: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let item = context.items.item(found);
        let (header, word) = item.header_and_word();
        let mut current = item.view_of(header);
        if header.has_word() {
            // The word must be the one loaded with the header, as an exchange may follow.
            current.value = Value::Word(word.to_le_bytes(), header.value_bytes());
        }
        match decide(
            Some(&current),
            context.op,
            context.now,
            self.pool.fresh_cas(context.op, Some(&current)),
        ) {
            Decision::Keep(outcome) => {
                show_outcome(
                    context.op,
                    &item,
                    current,
                    outcome,
                    context.now,
                    &self.index.memory,
                    sink,
                );
                self.note_access(context.items, lookup.head, context.hash(), found);
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => {
                let attempt = self.remove(context, lookup, found, outcome);
                self.note_if_dead(context, &current, &attempt);
                attempt
            }
            Decision::Replace(item_write, outcome) => {
                let in_place = changes_in_place() && header.has_word() && !header.is_sealed();
                if in_place && let Some(bytes) = item_write.sole_word_change(&current, context.now)
                {
                    let word_after = u64::from_le_bytes(bytes);
                    if !item.exchange_word(header, word, word_after, item_write.meta_flags.fetched)
                    {
                        return Attempt::Again;
                    }
                    current.value = Value::Word(bytes, header.value_bytes());
                    show_outcome(
                        context.op,
                        &item,
                        current,
                        outcome,
                        context.now,
                        &self.index.memory,
                        sink,
                    );
                    self.note_access(context.items, lookup.head, context.hash(), found);
                    return Attempt::Done(outcome);
                }
                let Some(layout) = self.item_layout(context, &item_write, current.value.len())
                else {
                    return Attempt::Done(Outcome::TooLarge);
                };
                if !self.has_slot(layout, slot) {
                    return Attempt::Needs(layout);
                }
                // The item is sealed before it is copied, so that the copied word is final.
                if header.has_word() && !header.is_sealed() && !item.seal(header, word) {
                    return Attempt::Again;
                }
                match self.write(context, &item_write, current.value.as_bytes(), slot) {
                    Ok(new) => {
                        let attempt = self.update(context, lookup, found, new, outcome, sink);
                        self.note_if_dead(context, &current, &attempt);
                        attempt
                    }
                    Err(attempt) => attempt,
                }
            }
        }
    }

    /// Counts the item as reclaimed if this attempt removed it and it was dead.
    #[inline]
    fn note_if_dead(
        &self,
        context: &WriteContext<'_, '_>,
        before: &ItemView<'_>,
        attempt: &Attempt,
    ) {
        if matches!(attempt, Attempt::Done(_)) {
            self.pool.note_if_dead(context.now, before);
        }
    }

    fn remove(
        &mut self,
        context: &WriteContext<'_, '_>,
        lookup: &Lookup,
        node: Node,
        outcome: Outcome,
    ) -> Attempt {
        context.items.seal(node);
        if occupy(context.items, node).is_none() {
            return Attempt::Again;
        }
        unlink(context.items, context.order(), node, lookup.before);
        // SAFETY: we occupied it, and it left the ring.
        unsafe { self.pool.retire(super::items::reference_of(node)) };
        Attempt::Done(outcome)
    }

    /// Read-copy-update: replaces the item at `node` by `new`.
    fn update(
        &mut self,
        context: &WriteContext<'_, '_>,
        lookup: &Lookup,
        node: Node,
        new: ItemRef,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt {
        let items = context.items;
        let copy = node_of(new);
        let item = items.item(copy);
        // Looked at before it is published: afterwards others may change its word.
        let found = item.view();
        items.seal(node);
        if !replace(items, node, copy, items.address(copy, context.hash())) {
            // SAFETY: filled and never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        let before = unlink(items, context.order(), node, lookup.before);
        // SAFETY: we occupied it, and it left the ring.
        unsafe { self.pool.retire(super::items::reference_of(node)) };
        show_outcome(context.op, &item, found, outcome, context.now, &self.index.memory, sink);
        match before {
            Some(before) if S::COUNTS_PREDECESSORS && before != copy => {
                self.note_update(context, lookup.head, node, before);
            }
            _ => self.note_access(items, lookup.head, context.hash(), copy),
        }
        Attempt::Done(outcome)
    }

    /// Records a read-copy-update of the item at `node`. The next update of that item is fast if
    /// the head leads to the item `before` it. With random movement, a head that led to the item
    /// itself is certainly wrong, as the update went around the whole ring.
    #[inline]
    fn note_update(&self, context: &WriteContext<'_, '_>, head: Head, node: Node, before: Node) {
        let is_farthest = !S::SAMPLES && context.items.bits.node_of(head.address()) == Some(node);
        if is_farthest {
            self.note_cold(context.items, head, context.hash(), before, true);
        } else {
            self.note_access(context.items, head, context.hash(), before);
        }
    }

    fn item_layout(
        &self,
        context: &WriteContext<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: usize,
    ) -> Option<ItemLayout> {
        ItemLayout::new(context.op.key.bytes().len(), item_write, current, context.now)
    }

    /// Whether `slot` holds a slot of this layout; reserves one first if that needs no eviction.
    fn has_slot(&mut self, layout: ItemLayout, slot: &mut Option<Slot>) -> bool {
        if slot.is_none() {
            *slot = self.pool.reserve(layout).ok();
        }
        slot.as_ref().is_some_and(|slot| slot.layout() == layout)
    }

    /// Writes the new item, unpublished, if there is a slot for it.
    fn write(
        &mut self,
        context: &WriteContext<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: &[u8],
        slot: &mut Option<Slot>,
    ) -> Result<ItemRef, Attempt> {
        let Some(layout) = self.item_layout(context, item_write, current.len()) else {
            return Err(Attempt::Done(Outcome::TooLarge));
        };
        if !self.has_slot(layout, slot) {
            return Err(Attempt::Needs(layout));
        }
        let slot = slot.take().ok_or(Attempt::Needs(layout))?;
        Ok(self.pool.fill(slot, context.op.key.bytes(), item_write, current))
    }
}

/// Inserts an item whose key was absent; returns whether it did.
fn insert_new(context: &WriteContext<'_, '_>, lookup: &Lookup, new: Node) -> bool {
    let items = context.items;
    let address = items.address(new, context.hash());
    let link = Link::to(Head::EMPTY.address());
    let (word, head) = items.head(context.hash());
    if head == Head::EMPTY {
        return insert_first(items, word, new, address, link);
    }
    if let Some(before) = lookup.before {
        return insert(items, before, new, address, link);
    }
    // An occupied item precedes the position; `locate` unlinks it first.
    match locate(items, context.order()) {
        Position::Absent { before } => insert(items, before, new, address, link),
        Position::Vacant | Position::Present { .. } => false,
    }
}
