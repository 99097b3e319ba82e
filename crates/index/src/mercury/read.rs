//! Reads: one key, and batches that wait for memory together.
//!
//! Both ask for a line before they lock it, and look before they lock: the peek at a bucket starts
//! the transfer of its first item while the lock is being taken. What was peeked at is a hint; the
//! answer is what the chain holds under the lock, or, in a batch, what a second look without the
//! lock confirms ([`links::still_leads`]): most keys of a batch, for which an exchange each would
//! cost half as much again. Batches confirm key by key, in order: of two gets of a key in a batch
//! the second never sees what is older.
//!
//! Linearization point of a get: inside of the bucket's critical section, or as `still_leads` says;
//! of the value in an item's word: the load of the word, at which the item either is still linked,
//! or was unlinked, with this last value, after the get began.

use std::ops::ControlFlow;

use amalgam_op::{Key, Now};

use super::buckets::Locked;
use super::chain::{Follow, Place, next_of};
use super::engine::EngineWorker;
use super::links;
use super::locking::Locking;
use super::tables::Inside;
use crate::mem::{Guard, Item, ItemRef, Look, Memory};
use crate::{Found, Sink};

/// Keys that wait for memory together.
const GROUP: usize = 64;
/// Chains are walked this far ahead of the locks.
const LEVELS: usize = 4;
/// Lines of an item that are asked for at most, after the first.
const MORE_LINES: usize = 3;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

impl<L: Locking> EngineWorker<'_, L> {
    /// Reads one key, answering under `position`.
    #[inline]
    pub(super) fn get(
        &mut self,
        key: &Key<'_>,
        position: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        self.seat.prefetch(key.hash());
        let engine = self.engine;
        let guard = self.pool.pin();
        let inside = self.seat.enter_to_read();
        let reader = self.reader(&engine.memory, &guard, &inside);
        let hint = inside.bucket(key.hash()).peek();
        reader.prefetch(hint.item());
        let found = reader.find(key);
        drop(inside);
        self.answer(found, key, position, now, &guard, sink)
    }

    /// Reads many keys, [`GROUP`] at a time. Returns how many were answered.
    pub(super) fn get_groups(
        &mut self,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        let mut answered = 0;
        for group in keys.chunks(GROUP) {
            let (count, flow) = self.get_group(group, answered, now, sink);
            answered += count;
            if flow.is_break() {
                break;
            }
        }
        answered
    }

    fn get_group(
        &mut self,
        keys: &[Key<'_>],
        offset: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> (usize, ControlFlow<()>) {
        let engine = self.engine;
        let guard = self.pool.pin();
        let inside = self.seat.enter_to_read();
        let reader = self.reader(&engine.memory, &guard, &inside);
        let mut probes = [Probe::NONE; GROUP];
        let probes = &mut probes[..keys.len()];
        reader.explore(keys, probes, self.expected.look());
        for (key, probe) in keys.iter().zip(probes.iter_mut()) {
            probe.found = reader.confirm(key, probe).map(|item| item.reference());
        }
        drop(inside);
        for (at, (key, probe)) in keys.iter().zip(probes.iter()).enumerate() {
            let follow = Follow::new(&engine.memory, &guard);
            let found = probe.found.map(|reference| follow.item(reference));
            let flow = self.answer(found, key, offset + at, now, &guard, sink);
            if flow.is_break() {
                return (at + 1, flow);
            }
        }
        (keys.len(), ControlFlow::Continue(()))
    }

    #[inline]
    fn reader<'r, 'g>(
        &self,
        memory: &'g Memory,
        guard: &'g Guard<'_>,
        inside: &'r Inside<'r, 'r, L>,
    ) -> Reader<'r, 'g, L> {
        let follow = Follow::new(memory, guard);
        Reader { memory, inside, follow, reach_bytes: self.expected.item_bytes() }
    }

    /// Hands one answer to the sink.
    #[inline]
    fn answer(
        &mut self,
        found: Option<Item<'_>>,
        key: &Key<'_>,
        position: usize,
        now: &Now,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        let Some(item) = found else { return sink.miss(position) };
        if self.expected.look().is_live(now)
            && let Some(view) = item.view_like(self.expected.look())
        {
            let found = Found::in_memory(view, &self.engine.memory, item.reference());
            return sink.hit(position, &found);
        }
        let header = item.header();
        if !now.is_live(item.expiry_of(header), header.generation()) {
            self.reclaim(key, item, guard);
        }
        self.expected.show(&item, header, position, now, &self.engine.memory, sink)
    }

    /// Unlinks a dead item that a read met.
    #[cold]
    fn reclaim(&mut self, key: &Key<'_>, dead: Item<'_>, guard: &Guard<'_>) {
        let is_fetched = dead.header().is_fetched();
        let dead = dead.reference();
        if self.seat.swap(&self.engine.memory, guard, key.hash(), dead, None) {
            // SAFETY: we unlinked it.
            unsafe { self.pool.retire(dead) };
            self.pool.note_reclaimed(is_fetched);
        }
    }
}

/// What is known of a key of a batch before its bucket is locked.
#[derive(Clone, Copy)]
struct Probe {
    /// The first item of the chain, as peeked at.
    first: Option<ItemRef>,
    /// The item to look at next, and in the end the one that has the key, if one was met.
    found: Option<ItemRef>,
}

impl Probe {
    const NONE: Self = Self { first: None, found: None };
}

/// Finds items for a worker that is inside, under its guard.
struct Reader<'r, 'g, L: Locking> {
    memory: &'g Memory,
    inside: &'r Inside<'r, 'r, L>,
    follow: Follow<'g>,
    reach_bytes: usize,
}

impl<'g, L: Locking> Reader<'_, 'g, L> {
    /// Finds the item of one key, under the bucket's lock where reads lock.
    #[inline]
    fn find(&self, key: &Key<'_>) -> Option<Item<'g>> {
        if !L::READS_LOCK {
            let first = self.inside.bucket(key.hash()).peek().item();
            let place = self.follow.find(first, key.bytes());
            return place.map(|place| place.item).or_else(|| self.find_again(key));
        }
        let locked = self.inside.lock(key.hash());
        self.find_in(&locked, key).map(|place| place.item)
    }

    /// Confirms a miss that was seen without locks: the chain may have been moving. (What was found
    /// without locks needs no confirmation: it was linked at some moment since the read began.)
    #[cold]
    fn find_again(&self, key: &Key<'_>) -> Option<Item<'g>> {
        let inside = self.inside.reenter();
        let locked = inside.lock(key.hash());
        self.find_in(&locked, key).map(|place| place.item)
    }

    #[inline]
    fn find_in(&self, locked: &Locked<'_, L>, key: &Key<'_>) -> Option<Place<'g>> {
        self.follow.find(locked.first(), key.bytes())
    }

    /// Walks the chains of all keys together, level by level, without locks: what it leaves behind
    /// is in the cache, and mostly right.
    #[inline]
    fn explore(&self, keys: &[Key<'_>], probes: &mut [Probe], look: &Look) {
        for key in keys {
            self.inside.bucket(key.hash()).prefetch();
        }
        let mut open = [0_u8; GROUP];
        let mut count = 0;
        for (at, (key, probe)) in keys.iter().zip(probes.iter_mut()).enumerate() {
            let first = self.inside.bucket(key.hash()).peek().item();
            self.prefetch(first);
            *probe = Probe { first, found: first };
            open[count] = at as u8;
            count += usize::from(first.is_some());
        }
        for _ in 0..LEVELS {
            let mut kept = 0;
            for slot in 0..count {
                let at = usize::from(open[slot]);
                let Some(here) = probes[at].found else { continue };
                let item = self.follow.item(here);
                let (is_it, next) = (item.has_key_as(look, keys[at].bytes()), next_of(item));
                // Without a branch, which would be foretold wrongly time and again.
                let ahead = if is_it { Some(here) } else { next };
                self.prefetch(ahead);
                probes[at].found = ahead;
                open[kept] = at as u8;
                kept += usize::from(!is_it & next.is_some());
            }
            count = kept;
        }
        // Chains that are longer still are walked under the lock.
        for at in &open[..count] {
            probes[usize::from(*at)].found = None;
        }
    }

    /// What the chain of an explored key really holds: by a second look at the bucket where the key
    /// was met at the front of the chain, else under the bucket's lock.
    #[inline]
    fn confirm(&self, key: &Key<'_>, probe: &Probe) -> Option<Item<'g>> {
        if !L::READS_LOCK {
            let found = probe.found.map(|found| self.follow.item(found));
            return found.or_else(|| self.find_again(key));
        }
        if L::LOCKS_WORD
            && let (Some(first), Some(found)) = (probe.first, probe.found)
            && links::still_leads(&self.follow, self.inside.bucket(key.hash()), first, found)
        {
            return Some(self.follow.item(found));
        }
        self.find_in(&self.inside.lock(key.hash()), key).map(|place| place.item)
    }

    /// Asks for an item's lines, as many as recent items had.
    #[inline]
    fn prefetch(&self, item: Option<ItemRef>) {
        let Some(item) = item else { return };
        self.memory.prefetch_item(item);
        let line = item.to_bits() as usize % LINE_BYTES;
        let lines = (line + self.reach_bytes.saturating_sub(1)) / LINE_BYTES;
        for line in 1..=lines.min(MORE_LINES) {
            self.memory.prefetch_item_at(item, line * LINE_BYTES);
        }
    }
}
