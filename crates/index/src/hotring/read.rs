//! Reads: one key, and batches that wait for memory together.
//!
//! Linearization point of a hit: the load of the found item's link, not occupied (the value may be
//! read later: an in-place word that changed in between counts as having changed before). Of a
//! miss: a moment during the walk (docs/hotring.md, race 1).

use std::ops::ControlFlow;

use amalgam_op::{Key, Now};

use super::engine::{HotRingWorker, Strategy};
use super::items::reference_of;
use super::sample;
use super::space::{Order, Target, load};
use super::walk::{Event, Step, Walk};
use super::word::{Head, Link};
use crate::mem::{Guard, Header, Item};
use crate::{Found, Sink};

/// Keys that wait for memory together.
const GROUP: usize = 64;
/// From the link before an item's header to the end of a key of 16 bytes behind its word.
const SECOND_LINE_BYTES: usize = 40;

impl<'i, S: Strategy> HotRingWorker<'i, S> {
    /// Reads one key, answering under `position`.
    #[inline]
    pub(super) fn get(
        &mut self,
        key: &Key<'_>,
        position: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        let guard = self.pool.pin();
        let (_, head) = self.index.tables.head(key.hash(), &guard);
        self.get_from(head, key, position, now, &guard, sink)
    }

    /// Reads many keys, some at a time: all their heads, then the items that these lead to, are
    /// asked for together. Returns how many were answered.
    pub(super) fn get_groups(
        &mut self,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        let mut answered = 0;
        for group in keys.chunks(GROUP) {
            let guard = self.pool.pin();
            let heads = self.ask_ahead(group, &guard);
            for (key, head) in group.iter().zip(heads) {
                let flow = self.get_from(head, key, answered, now, &guard, sink);
                answered += 1;
                if flow.is_break() {
                    return answered;
                }
            }
        }
        answered
    }

    /// Loads the heads of a group and asks for their items.
    #[inline]
    fn ask_ahead(&self, group: &[Key<'_>], guard: &Guard<'_>) -> [Head; GROUP] {
        let index = self.index;
        let table = index.tables.current(guard);
        let mut heads = [Head::EMPTY; GROUP];
        for key in group {
            table.prefetch(key.hash());
        }
        for (key, head) in group.iter().zip(&mut heads) {
            *head = index.tables.head(key.hash(), guard).1;
            if let Some(node) = index.bits.node_of(head.address()) {
                let item = reference_of(node);
                index.memory.prefetch_item(item);
                index.memory.prefetch_item_at(item, SECOND_LINE_BYTES);
            }
        }
        heads
    }

    #[inline]
    fn get_from(
        &mut self,
        head: Head,
        key: &Key<'_>,
        position: usize,
        now: &Now,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        self.requests = self.requests.wrapping_add(1);
        let index = self.index;
        if let Some(node) = index.bits.node_of(head.address()) {
            let item = index.items(0, guard).item(node);
            let link = Link(load(item.link()));
            let header = item.header();
            if link.is_plain() && item.is_of(header, key.bytes()) && !head.is_active() {
                return self.answer(&item, header, position, now, sink);
            }
        }
        match self.find_from(head, key, guard) {
            Some(item) => self.answer(&item, item.header(), position, now, sink),
            None => sink.miss(position),
        }
    }

    /// The item of `key`, from the head's item on.
    #[cold]
    #[inline(never)]
    fn find_from<'g>(&mut self, head: Head, key: &Key<'_>, guard: &'g Guard<'g>) -> Option<Item<'g>>
    where
        'i: 'g,
    {
        let items = self.index.items(self.number, guard);
        let order = Order { hash: key.hash(), key: key.bytes() };
        let mut walk = Walk::new(&items, Target::new(items.bits, order), head.address());
        let event = walk.finish();
        self.note_cost(walk.visited.saturating_sub(1));
        let Event::Hit(Step { node, .. }) = event else { return None };
        if head.is_active() {
            sample::count(&items, key.hash(), node);
        } else if walk.visited > 1 {
            self.note_cold(&items, key.hash(), node);
        }
        Some(items.item(node))
    }

    #[inline]
    fn answer(
        &self,
        item: &Item<'_>,
        header: Header,
        position: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        if !now.is_live(item.expiry_of(header), header.generation()) {
            return sink.miss(position);
        }
        let view = item.view_of(header);
        let found = Found::in_memory(view, &self.index.memory, item.reference());
        let flow = sink.hit(position, &found);
        item.mark_accessed(header);
        flow
    }
}
