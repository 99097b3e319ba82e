//! Reads of one key, and of batches whose keys wait for memory together.
//!
//! A read passes an item with another tag by its link alone, and reads the header and key of an
//! item with the key's tag, which most likely is the key's. A thread that deletes or replaces an
//! item seals its header first, so a header without a seal proves that the link is not occupied:
//! the link need not be read, and an item of 32 bytes costs one cache line.
//!
//! The linearization point of a hit is the load of the found item's header (not sealed) or link
//! (not occupied). The value may be read later: an in-place change of the word in between is
//! ordered before the read. That of a miss is a moment during the walk (docs/hotring.md, race 1).

use std::ops::ControlFlow;

use amalgam_op::{ItemView, Key, Now};

use super::engine::{HotRingWorker, Strategy};
use super::items::Items;
use super::space::{Order, Space, Target};
use super::walk::{Event, LoadedNode, Walk};
use super::word::{Address, Head, Node};
use crate::mem::Item;
use crate::{Found, Sink};

/// The number of keys that wait for memory together.
const GROUP: usize = 64;
/// The number of items beyond the first of a ring for which the keys of a group wait together; the
/// few longer walks go on one by one.
const LEVELS: usize = 16;

/// The state of the search for a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The next item's tag differs from the key's: the search follows its link.
    Open,
    /// The next item has the key's tag: most likely it is the key's.
    Likely,
    /// The key is absent.
    Absent,
    /// The search met an occupied or rehash item or two equal tags, which only [`Walk`] can handle.
    Unclear,
}

/// The search for a key by tags alone.
#[derive(Clone, Copy)]
pub(super) struct Search {
    head: Head,
    tag: u64,
    /// The distance of the item before, as in [`Walk`].
    reached: u64,
    /// The item that was passed last, or the empty address.
    before: Address,
    /// The next item.
    pub(super) at: Address,
    /// The number of items passed.
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

    /// Passes one item. Requires: state [`State::Open`]. Distances grow with each call, so a search
    /// ends.
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

    /// The item to visit next.
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

    /// Reads many keys, in groups that wait for memory together. Returns the number of keys
    /// answered.
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

    /// Searches the keys of a group side by side: prefetches all heads, then all first items, then
    /// level by level the items that the searches reach. Returns the number of items passed.
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

    /// Prefetches the line that the search reads next.
    #[inline]
    fn ask_ahead(&self, items: &Items<'_>, search: &Search) {
        let Some(node) = search.node(items) else { return };
        match search.state {
            State::Likely => items.prefetch_item(node, self.predictor.reach_bytes()),
            State::Open | State::Unclear => items.prefetch_link(node),
            State::Absent => {}
        }
    }

    /// Answers a key whose search has ended.
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
                // The search ended at the item before the key's position, which counts as accessed.
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
            // The second of a pair of rehash items lies within the first; the word in the place of
            // its header does not read as live.
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

    /// Records a read that ended at `node`, if its head is being sampled or the request is due to
    /// check it.
    #[inline]
    fn note_read(&mut self, items: &Items<'_>, search: &Search, node: Node, key: &Key<'_>) {
        if search.head.is_active() || self.looks() {
            self.note_access(items, search.head, key.hash(), node);
        }
    }

    /// Finds the item of `key` by a [`Walk`] from the head's item on, which handles all kinds of
    /// items.
    #[cold]
    #[inline(never)]
    fn walk<'g>(&mut self, items: &Items<'g>, head: Head, key: &Key<'_>) -> Option<Item<'g>> {
        let order = Order { hash: key.hash(), key: key.bytes() };
        let mut walk = Walk::new(items, Target::new(items.bits, order), head.address());
        let Event::Hit(LoadedNode { node, .. }) = walk.finish() else { return None };
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
