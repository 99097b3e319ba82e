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

use super::buckets::BucketGuard;
use super::chain::{ChainPosition, Chains, next_of};
use super::engine::MercuryWorker;
use super::links;
use super::locking::Locking;
use super::tables::TablesGuard;
use crate::mem::{Guard, HeaderTemplate, Item, ItemRef, Memory};
use crate::{Found, Sink};

/// Keys of a batch that go from stage to stage together. They keep the processor busy for longer
/// than a line takes to arrive.
const CHUNK: usize = 16;
/// Stages of a batch's keys (see [`MercuryWorker::get_chunks`]).
const STAGES: usize = 4;
/// Lines of an item that are asked for at most, after the first.
const MORE_LINES: usize = 3;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

impl<L: Locking> MercuryWorker<'_, L> {
    /// Reads one key, answering under `position`.
    #[inline]
    pub(super) fn get(
        &mut self,
        key: &Key<'_>,
        position: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        self.handle.prefetch(key.hash());
        let engine = self.engine;
        let guard = self.pool.pin();
        let tables = self.handle.enter_to_read();
        let reader = self.reader(&engine.memory, &guard, &tables);
        let hint = tables.bucket(key.hash()).peek();
        reader.prefetch(hint.item());
        let found = reader.find(key);
        drop(tables);
        self.answer(found, key, position, now, &guard, sink)
    }

    /// Reads many keys. Returns how many were answered.
    ///
    /// Chunks of keys roll through four stages: their buckets are asked for; their first items;
    /// what follows those that are not the keys'; then what was found is confirmed, and answered.
    /// A step takes a chunk of each stage one stage further: inside, all but the answering, since
    /// the sink is not to be called under a thread lock.
    pub(super) fn get_chunks(
        &mut self,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        let engine = self.engine;
        let guard = self.pool.pin();
        let chains = Chains::new(&engine.memory, &guard);
        let mut probes = [Probe::NONE; STAGES * CHUNK];
        let width = CHUNK.min(keys.len());
        for key in keys.iter().take(CHUNK) {
            self.handle.prefetch_to_read(key.hash());
        }
        // Of a step, the first key to be answered, less the keys of the stages before. Wraps beyond
        // the end until there is a key.
        for step in (0..keys.len() + (STAGES - 2) * CHUNK).step_by(CHUNK) {
            let tables = self.handle.enter_to_read();
            let reader = self.reader(&engine.memory, &guard, &tables);
            let end = step.wrapping_sub((STAGES - 2) * CHUNK);
            for place in 0..width {
                let stage = |stage: usize| {
                    let at = end.wrapping_add(stage * CHUNK + place);
                    keys.get(at).map(|key| (key, at % (STAGES * CHUNK)))
                };
                if let Some((key, at)) = stage(2) {
                    probes[at] = reader.look(key);
                }
                if let Some((key, at)) = stage(1) {
                    reader.go_on(key, &mut probes[at], self.predictor.template());
                }
                if let Some((key, at)) = stage(0) {
                    probes[at].found = reader.confirm(key, &probes[at]);
                }
            }
            drop(tables);
            for place in 0..width {
                if let Some(key) = keys.get(step + CHUNK + place) {
                    self.handle.prefetch_to_read(key.hash());
                }
                let at = end.wrapping_add(place);
                let Some(key) = keys.get(at) else { continue };
                let found = probes[at % (STAGES * CHUNK)].found.map(|found| chains.item(found));
                if self.answer(found, key, at, now, &guard, sink).is_break() {
                    return at + 1;
                }
            }
        }
        keys.len()
    }

    #[inline]
    fn reader<'r, 'g>(
        &self,
        memory: &'g Memory,
        guard: &'g Guard<'_>,
        tables: &'r TablesGuard<'r, 'r, L>,
    ) -> Reader<'r, 'g, L> {
        let chains = Chains::new(memory, guard);
        Reader { memory, tables, chains, reach_bytes: self.predictor.reach_bytes() }
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
        if self.predictor.template().is_live(now)
            && let Some(view) = item.view_like(self.predictor.template())
        {
            let found = Found::in_memory(view, &self.engine.memory, item.reference());
            return sink.hit(position, &found);
        }
        let header = item.header();
        if !now.is_live(item.expiry_of(header), header.generation()) {
            self.reclaim(key, item, guard);
        }
        self.predictor.show(&item, header, position, now, &self.engine.memory, sink)
    }

    /// Unlinks a dead item that a read met.
    #[cold]
    fn reclaim(&mut self, key: &Key<'_>, dead: Item<'_>, guard: &Guard<'_>) {
        let is_fetched = dead.header().is_fetched();
        let dead = dead.reference();
        if self.handle.swap(&self.engine.memory, guard, key.hash(), dead, None) {
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
    /// The item to look at next, and in the end the one that has the key, if one has.
    found: Option<ItemRef>,
    /// It was seen to have the key.
    is_met: bool,
}

impl Probe {
    const NONE: Self = Self { first: None, found: None, is_met: false };
}

/// Finds items for a worker that is inside, under its guard.
struct Reader<'r, 'g, L: Locking> {
    memory: &'g Memory,
    tables: &'r TablesGuard<'r, 'r, L>,
    chains: Chains<'g>,
    reach_bytes: usize,
}

impl<'g, L: Locking> Reader<'_, 'g, L> {
    /// Finds the item of one key, under the bucket's lock where reads lock.
    #[inline]
    fn find(&self, key: &Key<'_>) -> Option<Item<'g>> {
        if !L::READS_LOCK {
            let first = self.tables.bucket(key.hash()).peek().item();
            let place = self.chains.find(first, key.bytes());
            return place.map(|place| place.item).or_else(|| self.find_again(key));
        }
        let locked = self.tables.lock(key.hash());
        self.find_in(&locked, key).map(|place| place.item)
    }

    /// Confirms a miss that was seen without locks: the chain may have been moving. (What was found
    /// without locks needs no confirmation: it was linked at some moment since the read began.)
    #[cold]
    fn find_again(&self, key: &Key<'_>) -> Option<Item<'g>> {
        let tables = self.tables.reenter();
        let locked = tables.lock(key.hash());
        self.find_in(&locked, key).map(|place| place.item)
    }

    #[inline]
    fn find_in(&self, locked: &BucketGuard<'_, L>, key: &Key<'_>) -> Option<ChainPosition<'g>> {
        self.chains.find(locked.first(), key.bytes())
    }

    /// Looks at a key's bucket and asks for the first item of its chain.
    #[inline]
    fn look(&self, key: &Key<'_>) -> Probe {
        let first = self.tables.bucket(key.hash()).peek().item();
        self.prefetch(first);
        Probe { first, found: first, is_met: false }
    }

    /// Looks at the first item, and asks for the one behind it if the key is another's.
    #[inline]
    fn go_on(&self, key: &Key<'_>, probe: &mut Probe, template: &HeaderTemplate) {
        let Some(first) = probe.first else { return };
        let item = self.chains.item(first);
        probe.is_met = item.has_key_as(template, key.bytes());
        // Without a branch, which would be foretold wrongly time and again.
        probe.found = if probe.is_met { Some(first) } else { next_of(item) };
        self.prefetch(probe.found);
    }

    /// What the chain of a key really holds: by a second look at the bucket where the key was met
    /// at the front of the chain, else under the bucket's lock.
    #[inline]
    fn confirm(&self, key: &Key<'_>, probe: &Probe) -> Option<ItemRef> {
        let (first, found) = (probe.first, probe.found);
        if !L::READS_LOCK && probe.is_met {
            return found;
        }
        let is_likely =
            |found: ItemRef| probe.is_met || self.chains.item(found).has_key(key.bytes());
        if L::LOCKS_WORD
            && let (Some(first), Some(found)) = (first, found)
            && is_likely(found)
            && links::still_leads(&self.chains, self.tables.bucket(key.hash()), first, found)
        {
            return Some(found);
        }
        self.find(key).map(|item| item.reference())
    }

    /// Asks for an item's lines, as many as recent items had.
    #[inline]
    fn prefetch(&self, item: Option<ItemRef>) {
        let Some(item) = item else { return };
        self.memory.prefetch_item(item);
        let line = item.to_bits() as usize % LINE_BYTES;
        let lines = (line + self.reach_bytes) / LINE_BYTES;
        for line in 1..=lines.min(MORE_LINES) {
            self.memory.prefetch_item_at(item, line * LINE_BYTES);
        }
    }
}
