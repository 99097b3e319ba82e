//! Writes: find the item, ask `decide`, carry out what it says, or begin again if somebody else got
//! further.
//!
//! Linearization points: see docs/hotring.md. What is decided without a change takes effect where
//! the item (or its absence) was seen.

use amalgam_op::{Decision, ItemView, ItemWrite, Key, Now, Op, Outcome, Value, decide};

use super::change::{Place, insert, insert_first, locate, move_head, occupy, replace, unlink};
use super::engine::{HotRingWorker, Strategy};
use super::items::{Items, node_of};
use super::read::{Search, State};
use super::space::{Order, Space, Target};
use super::walk::{Event, Step, Walk};
use super::word::{Head, Link, Node};
use crate::mem::{Attempt, ItemLayout, ItemRef, Slot, Writer, changes_in_place};
use crate::{Sink, show_outcome};

/// What a walk from the head found.
struct View {
    head: Head,
    /// The item, if it is there.
    found: Option<Node>,
    /// What comes before its place, where the walk met that.
    before: Option<Step>,
}

/// What an attempt works with.
struct Job<'j, 'g> {
    op: &'j Op<'j>,
    now: &'j Now,
    items: &'j Items<'g>,
}

impl Job<'_, '_> {
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
    /// See [`crate::Worker::apply`].
    pub(super) fn carry_out(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        self.requests = self.requests.wrapping_add(1);
        self.until_done(now, |worker, slot| worker.attempt(op, now, slot, sink))
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
        let job = Job { op, now, items: &items };
        let view = self.find(&job);
        match view.found {
            Some(found) => self.attempt_present(&job, &view, found, slot, sink),
            None => self.attempt_absent(&job, &view, slot, sink),
        }
    }

    /// Looks for the item as reads do, by tags; whatever is unexpected is left to a walk.
    fn find(&mut self, job: &Job<'_, '_>) -> View {
        let (items, key) = (job.items, &job.op.key);
        let (_, head) = items.head(job.hash());
        let mut search = Search::new(items, key, head);
        while search.state == State::Open {
            search.advance(items);
        }
        let step = search.before(items).map(|node| Step { node, link: items.load_link(node) });
        let is_adjacent = |step: &Step| step.link.is_plain() && step.link.address() == search.at;
        let before = step.filter(is_adjacent);
        if self.is_found(items, &search, key) {
            self.note_cost(search.passed);
            return View { head, found: search.node(items), before };
        }
        // Its place is right behind `before`: the tags of both neighbours differ from its own.
        if search.state == State::Absent && before.is_some() {
            self.note_cost(search.passed);
            return View { head, found: None, before };
        }
        self.walk_to(job, head)
    }

    /// Whether the search came to the key's item, and that is in its ring: without a seal it is, at
    /// this moment (docs/hotring.md, race 17).
    #[inline]
    fn is_found(&self, items: &Items<'_>, search: &Search, key: &Key<'_>) -> bool {
        let (State::Likely, Some(node)) = (search.state, search.node(items)) else { return false };
        let item = items.item(node);
        let header = item.header_in_order();
        header.is_live() && !header.is_sealed() && item.is_of(header, key.bytes())
    }

    /// Looks for the item by a walk that treats whatever it meets.
    fn walk_to(&mut self, job: &Job<'_, '_>, head: Head) -> View {
        let mut walk =
            Walk::new(job.items, Target::new(job.items.bits, job.order()), head.address());
        let event = walk.finish();
        let is_adjacent = |before: &Step| before.link.address() == walk.at;
        let before = walk.before.filter(is_adjacent);
        self.note_cost(walk.visited.saturating_sub(1));
        match event {
            Event::Hit(found) => View { head, found: Some(found.node), before },
            _ => View { head, found: None, before },
        }
    }

    fn attempt_absent(
        &mut self,
        job: &Job<'_, '_>,
        view: &View,
        slot: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let (item_write, outcome) =
            match decide(None, job.op, job.now, self.pool.fresh_cas(job.op, None)) {
                Decision::Keep(outcome) | Decision::Remove(outcome) => {
                    return Attempt::Done(outcome);
                }
                Decision::Replace(item_write, outcome) => (item_write, outcome),
            };
        let new = match self.write(job, &item_write, &[], slot) {
            Ok(new) => new,
            Err(attempt) => return attempt,
        };
        let item = job.items.item(node_of(new));
        // Looked at before it is published: afterwards others may change its word.
        let found = item.view();
        if !insert_new(job, view, node_of(new)) {
            // SAFETY: filled and never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        self.lead_to(job, node_of(new));
        show_outcome(job.op, &item, found, outcome, job.now, &self.index.memory, sink);
        Attempt::Done(outcome)
    }

    /// Leads the head to an item that was just inserted: what is new is read soon. What was found
    /// out about the head before is forgotten, and a round of sampling that is under way ends.
    fn lead_to(&self, job: &Job<'_, '_>, new: Node) {
        let (word, head) = job.items.head(job.hash());
        let address = job.items.address(new, job.hash());
        if !head.is_moving() && S::MOVES_HEADS && head.address() != address {
            move_head(job.items, word, head, Head::to(address));
        }
    }

    fn attempt_present(
        &mut self,
        job: &Job<'_, '_>,
        view: &View,
        found: Node,
        slot: &mut Option<Slot>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let item = job.items.item(found);
        let (header, word) = item.header_and_word();
        let mut current = item.view_of(header);
        if header.has_word() {
            // The word that goes with the header, if an exchange is to follow.
            current.value = Value::Word(word.to_le_bytes(), header.value_bytes());
        }
        match decide(Some(&current), job.op, job.now, self.pool.fresh_cas(job.op, Some(&current))) {
            Decision::Keep(outcome) => {
                show_outcome(job.op, &item, current, outcome, job.now, &self.index.memory, sink);
                self.note_access(job.items, view.head, job.hash(), found);
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => {
                let attempt = self.remove(job, view, found, outcome);
                self.note_if_dead(job, &current, &attempt);
                attempt
            }
            Decision::Replace(item_write, outcome) => {
                let in_place = changes_in_place() && header.has_word() && !header.is_sealed();
                if in_place && let Some(bytes) = item_write.sole_word_change(&current, job.now) {
                    let word_after = u64::from_le_bytes(bytes);
                    if !item.exchange_word(header, word, word_after, item_write.meta_flags.fetched)
                    {
                        return Attempt::Again;
                    }
                    current.value = Value::Word(bytes, header.value_bytes());
                    show_outcome(
                        job.op,
                        &item,
                        current,
                        outcome,
                        job.now,
                        &self.index.memory,
                        sink,
                    );
                    self.note_access(job.items, view.head, job.hash(), found);
                    return Attempt::Done(outcome);
                }
                let Some(layout) = self.item_layout(job, &item_write, current.value.len()) else {
                    return Attempt::Done(Outcome::TooLarge);
                };
                if !self.has_slot(layout, slot) {
                    return Attempt::Needs(layout);
                }
                // Sealed before it is copied: what is copied is final.
                if header.has_word() && !header.is_sealed() && !item.seal(header, word) {
                    return Attempt::Again;
                }
                match self.write(job, &item_write, current.value.as_bytes(), slot) {
                    Ok(new) => {
                        let attempt = self.update(job, view, found, new, outcome, sink);
                        self.note_if_dead(job, &current, &attempt);
                        attempt
                    }
                    Err(attempt) => attempt,
                }
            }
        }
    }

    /// Counts an item that was dead before this attempt took it away.
    #[inline]
    fn note_if_dead(&self, job: &Job<'_, '_>, before: &ItemView<'_>, attempt: &Attempt) {
        if matches!(attempt, Attempt::Done(_)) {
            self.pool.note_if_dead(job.now, before);
        }
    }

    fn remove(&mut self, job: &Job<'_, '_>, view: &View, node: Node, outcome: Outcome) -> Attempt {
        job.items.seal(node);
        if occupy(job.items, node).is_none() {
            return Attempt::Again;
        }
        unlink(job.items, job.order(), node, view.before);
        // SAFETY: we occupied it, and it left the ring.
        unsafe { self.pool.retire(super::items::reference_of(node)) };
        Attempt::Done(outcome)
    }

    /// Read-copy-update: `new` takes the place of the item at `node`.
    fn update(
        &mut self,
        job: &Job<'_, '_>,
        view: &View,
        node: Node,
        new: ItemRef,
        outcome: Outcome,
        sink: &mut impl Sink,
    ) -> Attempt {
        let items = job.items;
        let copy = node_of(new);
        let item = items.item(copy);
        // Looked at before it is published: afterwards others may change its word.
        let found = item.view();
        items.seal(node);
        if !replace(items, node, copy, items.address(copy, job.hash())) {
            // SAFETY: filled and never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        let before = unlink(items, job.order(), node, view.before);
        // SAFETY: we occupied it, and it left the ring.
        unsafe { self.pool.retire(super::items::reference_of(node)) };
        show_outcome(job.op, &item, found, outcome, job.now, &self.index.memory, sink);
        match before {
            Some(before) if S::COUNTS_PREDECESSORS && before != copy => {
                self.note_update(job, view.head, node, before);
            }
            _ => self.note_access(items, view.head, job.hash(), copy),
        }
        Attempt::Done(outcome)
    }

    /// Notes a read-copy-update of the item at `node`: the next one of that item is fast if the
    /// head leads to the item `before` it. A head that led to the item itself does so for certain
    /// in the wrong place, where heads move at random: the update went around the whole ring.
    #[inline]
    fn note_update(&self, job: &Job<'_, '_>, head: Head, node: Node, before: Node) {
        let is_farthest = !S::SAMPLES && job.items.bits.node_of(head.address()) == Some(node);
        if is_farthest {
            self.note_cold(job.items, head, job.hash(), before, true);
        } else {
            self.note_access(job.items, head, job.hash(), before);
        }
    }

    fn item_layout(
        &self,
        job: &Job<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: usize,
    ) -> Option<ItemLayout> {
        ItemLayout::new(job.op.key.bytes().len(), item_write, current, job.now)
    }

    /// Whether `slot` holds one of this layout, reserving it if that needs no eviction.
    fn has_slot(&mut self, layout: ItemLayout, slot: &mut Option<Slot>) -> bool {
        if slot.is_none() {
            *slot = self.pool.reserve(layout).ok();
        }
        slot.as_ref().is_some_and(|slot| slot.layout() == layout)
    }

    /// Writes an item, unpublished, if there is a slot for it.
    fn write(
        &mut self,
        job: &Job<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: &[u8],
        slot: &mut Option<Slot>,
    ) -> Result<ItemRef, Attempt> {
        let Some(layout) = self.item_layout(job, item_write, current.len()) else {
            return Err(Attempt::Done(Outcome::TooLarge));
        };
        if !self.has_slot(layout, slot) {
            return Err(Attempt::Needs(layout));
        }
        let slot = slot.take().ok_or(Attempt::Needs(layout))?;
        Ok(self.pool.fill(slot, job.op.key.bytes(), item_write, current))
    }
}

/// Inserts an item whose key was seen absent.
fn insert_new(job: &Job<'_, '_>, view: &View, new: Node) -> bool {
    let items = job.items;
    let address = items.address(new, job.hash());
    let link = Link::to(Head::EMPTY.address());
    let (word, head) = items.head(job.hash());
    if head == Head::EMPTY {
        return insert_first(items, word, new, address, link);
    }
    if let Some(before) = view.before {
        return insert(items, before, new, address, link);
    }
    // Something occupied stood in the way; it is unlinked first.
    match locate(items, job.order()) {
        Place::Absent { before } => insert(items, before, new, address, link),
        Place::Vacant | Place::Present { .. } => false,
    }
}
