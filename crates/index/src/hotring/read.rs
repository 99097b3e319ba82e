//! Reads: one key, and batches that wait for memory together.
//!
//! An item whose tag is not the key's is passed by its link alone; one whose tag is, most likely
//! the key's, is looked at from its header on. Whoever deletes or replaces an item seals its header
//! first, so a header without a seal says what the link would say, and an item of 32 bytes costs
//! one line.
//!
//! Linearization point of a hit: the load of the found item's header, not sealed, or of its link,
//! not occupied (the value may be read later: an in-place word that changed in between counts as
//! having changed before). Of a miss: a moment during the walk (docs/hotring.md, race 1).

use std::ops::ControlFlow;

use amalgam_op::{ItemView, Key, Now};

use super::engine::{HotRingWorker, Strategy};
use super::items::Items;
use super::space::{Order, Space, Target};
use super::walk::{Event, Step, Walk};
use super::word::{Address, Head, Node};
use crate::mem::Item;
use crate::{Found, Sink};

/// Keys that wait for memory together.
const GROUP: usize = 64;
/// Items beyond the first of a ring for which the keys of a group wait together; the few walks
/// that are longer go on by themselves.
const LEVELS: usize = 16;

/// How far the search for a key is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The next item's tag differs from the key's; its link says where to go on.
    Open,
    /// The next item has the key's tag: most likely it is the key's.
    Likely,
    /// The key is absent.
    Absent,
    /// Something stands in the way that [`Walk`] knows how to treat.
    Unclear,
}

/// The search for a key, by tags alone.
#[derive(Clone, Copy)]
pub(super) struct Search {
    head: Head,
    tag: u64,
    /// The distance of the item before; no walk gets nearer than that ([`Walk`]).
    reached: u64,
    /// The item that was passed last, or the empty address.
    before: Address,
    /// The next item.
    pub(super) at: Address,
    /// Items passed.
    pub(super) passed: u32,
    pub(super) state: State,
}

impl Search {
    const NONE: Self = Self {
        head: Head::EMPTY,
        tag: 0,
        reached: 0,
        before: Head::EMPTY.address(),
        at: Head::EMPTY.address(),
        passed: 0,
        state: State::Absent,
    };

    #[inline]
    pub(super) fn new(items: &Items<'_>, key: &Key<'_>, head: Head) -> Self {
        let (tag, at) = (items.bits.tag_of_hash(key.hash()), head.address());
        let reached = items.bits.tag_of(at).wrapping_sub(tag);
        let state = match (items.bits.node_of(at), reached) {
            (None, _) => State::Absent,
            (Some(_), 0) => State::Likely,
            (Some(_), _) => State::Open,
        };
        Self { head, tag, reached, before: Head::EMPTY.address(), at, passed: 0, state }
    }

    /// Passes an item, in state [`State::Open`]. Distances grow, so this ends.
    #[inline]
    pub(super) fn advance(&mut self, items: &Items<'_>) {
        let Some(node) = items.bits.node_of(self.at) else { return };
        let link = items.load_link(node);
        let next = link.address();
        let distance = items.bits.tag_of(next).wrapping_sub(self.tag);
        self.passed += 1;
        self.state = if !link.is_plain() {
            State::Unclear
        } else if distance == 0 {
            State::Likely
        } else if distance < self.reached || next == self.at {
            State::Absent
        } else if distance == self.reached {
            State::Unclear
        } else {
            State::Open
        };
        (self.before, self.at, self.reached) = (self.at, next, distance);
    }

    /// The item to look at next.
    #[inline]
    pub(super) fn node(&self, items: &Items<'_>) -> Option<Node> {
        items.bits.node_of(self.at)
    }

    /// The item that was passed last, if any.
    #[inline]
    pub(super) fn before(&self, items: &Items<'_>) -> Option<Node> {
        items.bits.node_of(self.before)
    }
}

impl<'i, S: Strategy> HotRingWorker<'i, S> {
    /// Reads one key.
    #[inline]
    pub(super) fn get_one(
        &mut self,
        key: &Key<'_>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        let guard = self.pool.pin();
        let items = self.index.items(self.number, &guard);
        let (_, head) = items.head(key.hash());
        let mut search = Search::new(&items, key, head);
        while search.state == State::Open {
            search.advance(&items);
        }
        let visited = search.passed;
        self.requests = self.requests.wrapping_add(1);
        let flow = self.answer(&items, &search, 0, key, now, sink);
        self.note_cost(visited);
        flow
    }

    /// Reads many keys, in groups that wait for memory together. Returns how many were answered.
    pub(super) fn get_many(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        let mut searches = [Search::NONE; GROUP];
        let mut answered = 0;
        for group in keys.chunks(GROUP) {
            let guard = self.pool.pin();
            let items = self.index.items(self.number, &guard);
            let visited = self.search_together(&items, group, &mut searches);
            for (key, search) in group.iter().zip(&searches) {
                self.requests = self.requests.wrapping_add(1);
                let flow = self.answer(&items, search, answered, key, now, sink);
                answered += 1;
                if flow.is_break() {
                    return answered;
                }
            }
            self.note_cost(visited);
        }
        answered
    }

    /// Searches the keys of a group side by side: all heads are asked for, then all first items,
    /// then item by item what the walks come to. Returns how many items were passed.
    #[inline]
    fn search_together(
        &self,
        items: &Items<'_>,
        group: &[Key<'_>],
        searches: &mut [Search; GROUP],
    ) -> u32 {
        for key in group {
            items.tables.prefetch(key.hash(), items.guard);
        }
        let mut open = [0_u8; GROUP];
        let mut count = 0;
        for (at, (key, search)) in group.iter().zip(searches.iter_mut()).enumerate() {
            let (_, head) = items.head(key.hash());
            *search = Search::new(items, key, head);
            self.ask_ahead(items, search);
            open[count] = at as u8;
            count += usize::from(search.state == State::Open);
        }
        let mut visited = 0;
        for level in 0.. {
            let mut kept = 0;
            visited += count as u32;
            for slot in 0..count {
                let at = open[slot];
                let search = &mut searches[usize::from(at) % GROUP];
                search.advance(items);
                while level == LEVELS && search.state == State::Open {
                    search.advance(items);
                    visited += 1;
                }
                self.ask_ahead(items, search);
                open[kept] = at;
                kept += usize::from(search.state == State::Open);
            }
            count = kept;
            if count == 0 {
                break;
            }
        }
        visited
    }

    /// Asks for the line that the search looks at next.
    #[inline]
    fn ask_ahead(&self, items: &Items<'_>, search: &Search) {
        let Some(node) = search.node(items) else { return };
        match search.state {
            State::Likely => items.prefetch_item(node, self.predictor.reach_bytes()),
            State::Open | State::Unclear => items.prefetch_link(node),
            State::Absent => {}
        }
    }

    /// Answers a key whose search came to an end.
    #[inline]
    fn answer(
        &mut self,
        items: &Items<'_>,
        search: &Search,
        position: usize,
        key: &Key<'_>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        let node = match search.state {
            State::Likely => search.node(items),
            State::Absent => {
                // It ended at the item before the key's place: an access to that one.
                if let Some(before) = search.before(items) {
                    self.note_read(items, search, before, key);
                }
                return sink.miss(position);
            }
            State::Open | State::Unclear => None,
        };
        if let Some(node) = node {
            let item = items.item(node);
            let header = item.header_in_order();
            if self.predictor.template().is_live(now)
                && let Some(view) = item.view_of_as(header, self.predictor.template(), key.bytes())
            {
                let flow = sink.hit(position, &self.found(&item, view));
                self.note_read(items, search, node, key);
                return flow;
            }
            // The second of a pair of rehash items lies within the first; what is in the place of
            // its header is not live.
            let is_linked = header.is_live() && !header.is_sealed();
            if is_linked && item.is_of(header, key.bytes()) {
                let memory = &self.index.memory;
                let flow = self.predictor.show(&item, header, position, now, memory, sink);
                self.note_read(items, search, node, key);
                return flow;
            }
        }
        match self.walk(items, search.head, key) {
            Some(item) => {
                let memory = &self.index.memory;
                self.predictor.show(&item, item.header(), position, now, memory, sink)
            }
            None => sink.miss(position),
        }
    }

    /// Counts or notes a read that ended at `node`, where its head asks for it.
    #[inline]
    fn note_read(&mut self, items: &Items<'_>, search: &Search, node: Node, key: &Key<'_>) {
        if search.head.is_active() || self.looks() {
            self.note_access(items, search.head, key.hash(), node);
        }
    }

    /// The item of `key`, by a walk from the head's item on that treats whatever it meets.
    #[cold]
    #[inline(never)]
    fn walk<'g>(&mut self, items: &Items<'g>, head: Head, key: &Key<'_>) -> Option<Item<'g>> {
        let order = Order { hash: key.hash(), key: key.bytes() };
        let mut walk = Walk::new(items, Target::new(items.bits, order), head.address());
        let Event::Hit(Step { node, .. }) = walk.finish() else { return None };
        self.note_access(items, head, key.hash(), node);
        Some(items.item(node))
    }

    #[inline]
    fn found<'g>(&self, item: &Item<'g>, view: ItemView<'g>) -> Found<'g>
    where
        'i: 'g,
    {
        Found::in_memory(view, &self.index.memory, item.reference())
    }
}
