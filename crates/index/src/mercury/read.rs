//! Reads of one key, and of batches whose keys wait for memory together.
//!
//! Both prefetch a bucket's line and load its word before they lock it: so the transfer of the
//! first item starts while the lock is being taken. The word loaded first is a hint; the answer is
//! the content of the chain under the lock or, in a batch, what loading the word a second time
//! confirms without the lock ([`links::still_leads`]). That saves most keys of a batch an exchange,
//! which would cost half as much again. Batches confirm key by key, in order: of two gets of a key
//! in a batch, the second never returns an older value.
//!
//! The linearization point of a get is inside the bucket's critical section, or as `still_leads`
//! says. That of the value in an item's word is the load of the word, when the item is still linked
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

/// The number of keys of a batch that go from stage to stage together. They keep the processor busy
/// for longer than a line takes to arrive.
const CHUNK: usize = 16;
/// The number of stages of a batch (see [`MercuryWorker::get_chunks`]).
const STAGES: usize = 4;
/// The number of lines of an item, after the first, that are prefetched at most.
const MORE_LINES: usize = 3;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

impl<L: Locking> MercuryWorker<'_, L> {
    /// Reads one key and answers under `position`.
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

    /// Reads many keys. Returns the number of keys answered.
    ///
    /// Chunks of keys go through a software pipeline of four stages: prefetch the buckets; prefetch
    /// the first items; prefetch the second item of chains whose first has another key; confirm the
    /// found items and answer. A step advances one chunk in each stage. All but answering happens
    /// under the thread lock, under which the sink must not be called.
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
        // In each step, `end` is the first key to be answered. It wraps around to beyond the last
        // key until the pipeline has filled.
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

    /// Passes one answer to the sink.
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
        if self.handle.swap(&self.engine.memory, guard, key.hash(), dead.reference(), None) {
            self.pool.note_reclaimed(&dead.view());
            // SAFETY: we unlinked it.
            unsafe { self.pool.retire(dead.reference()) };
        }
    }
}

/// The state of a key of a batch before it is confirmed.
#[derive(Clone, Copy)]
struct Probe {
    /// The first item of the chain when the bucket was loaded first.
    first: Option<ItemRef>,
    /// The item to read next; after the third stage, the candidate item of the key.
    found: Option<ItemRef>,
    /// Whether the first item has the key.
    is_met: bool,
}

impl Probe {
    const NONE: Self = Self { first: None, found: None, is_met: false };
}

/// Finds items for a worker that is inside and holds a guard.
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

    /// Confirms a miss without locks, as the chain may have been moving. (An item found without
    /// locks needs no confirmation: it was linked at some moment since the read began.)
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

    /// Loads a key's bucket and prefetches the first item of its chain.
    #[inline]
    fn look(&self, key: &Key<'_>) -> Probe {
        let first = self.tables.bucket(key.hash()).peek().item();
        self.prefetch(first);
        Probe { first, found: first, is_met: false }
    }

    /// Reads the first item, and prefetches the one after it if the first has another key.
    #[inline]
    fn go_on(&self, key: &Key<'_>, probe: &mut Probe, template: &HeaderTemplate) {
        let Some(first) = probe.first else { return };
        let item = self.chains.item(first);
        probe.is_met = item.has_key_as(template, key.bytes());
        // No branch, because it would often be mispredicted.
        probe.found = if probe.is_met { Some(first) } else { next_of(item) };
        self.prefetch(probe.found);
    }

    /// Confirms the item of a key: by loading the bucket a second time if the key was at the front
    /// of the chain, else under the bucket's lock.
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

    /// Prefetches an item's lines, as many as the last item had.
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
