//! The rehash of the table (section 3.4), in slices: rings are split and, after a grace period that
//! a batch of rings shares, parted. Between rehashes, rings are sampled for statistics.
//!
//! Thread safety: one mutex protects the state. Workers only try to take it, so one does a slice
//! and the others continue.

use std::sync::TryLockError;
use std::sync::atomic::Ordering;

use amalgam_op::{Expiry, ItemWrite, MetaFlags, Now, Part};

use super::engine::{HotRing, HotRingWorker, Strategy};
use super::growth::RehashState;
use super::items::{Items, node_of};
use super::ring_sampling::{RINGS, RingSample};
use super::space::load;
use super::split::{Buckets, move_vacant, part, split};
use super::table::HeadTable;
use super::walk::tour;
use super::word::Head;
use crate::mem::{ItemLayout, ItemRef, Pool, Writer};

/// The number of rings that one step splits or parts, which takes about 0.1 ms. Between two steps
/// the thread does the engine's other background work.
const SLICE: usize = 1024;
/// The number of rings that one step samples.
const SAMPLED_RINGS: usize = 64;
/// Distance in rings at which the item that a head leads to is prefetched.
const RINGS_AHEAD: usize = 8;
/// The number of rings that share a grace period.
const BATCH: usize = if cfg!(test) { 4 } else { 8192 };

impl<S: Strategy> HotRingWorker<'_, S> {
    /// Does a slice of a rehash, or begins one. Returns whether more work is due.
    pub(super) fn step_growth(&mut self, now: &Now) -> bool {
        let index = self.index;
        let mut state = match index.growth.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another worker is doing a step.
            Err(TryLockError::WouldBlock) => return false,
        };
        if let Some((grace, _)) = &state.retired {
            if !self.pool.is_over(*grace) {
                return true;
            }
            if let Some((_, table)) = state.retired.take() {
                // SAFETY: a grace period has passed since the table went out of use.
                unsafe { table.free() };
            }
        }
        if state.next_ring.is_none() {
            let begins = self.begin(&mut state);
            if !begins {
                self.sample_rings(&mut state.sample);
            }
            return begins;
        }
        if state.waiting.is_some() {
            return self.part_slice(&mut state);
        }
        self.split_slice(&mut state, now)
    }

    fn begin(&mut self, state: &mut RehashState) -> bool {
        let index = self.index;
        if !index.wants_growth.load(Ordering::Relaxed) {
            return false;
        }
        let guard = self.pool.pin();
        let current = index.tables.current(&guard);
        let is_worth_it = index.memory.items() >= current.len() as u64;
        if !is_worth_it || current.shift() <= 1 {
            index.wants_growth.store(false, Ordering::Relaxed);
            return false;
        }
        let Ok(heads) = index.memory.table(current.len() * 2) else {
            // There is no memory for a larger table: the index goes on with this one.
            index.wants_growth.store(false, Ordering::Relaxed);
            return false;
        };
        index.tables.begin(HeadTable::new(heads), &guard);
        index.growth.is_under_way.store(true, Ordering::Relaxed);
        state.next_ring = Some(0);
        true
    }

    /// Splits up to [`SLICE`] rings.
    fn split_slice(&mut self, state: &mut RehashState, now: &Now) -> bool {
        let index = self.index;
        let Some(first) = state.next_ring else { return false };
        let guard = self.pool.pin();
        let table = index.tables.current(&guard);
        let end = table.len().min(first + SLICE);
        let mut is_short = false;
        for ring in first..end {
            if state.split.len() >= BATCH {
                break;
            }
            let items = self.items(&guard);
            ask_ahead(&items, table, ring + RINGS_AHEAD);
            if !split_ring(index, &mut self.pool, &items, table, ring, &mut state.split, now) {
                is_short = true;
                break;
            }
            state.next_ring = Some(ring + 1);
        }
        table.note_moved(state.next_ring.unwrap_or(first));
        if is_short && state.split.is_empty() {
            drop(guard);
            return self.make_room_for_pair(now);
        }
        // Without memory for another pair, the rings split so far are parted first, which frees
        // their pairs.
        let is_last = state.next_ring == Some(table.len());
        if is_short || state.split.len() >= BATCH || is_last {
            state.waiting = Some((self.pool.begin_grace(), std::mem::take(&mut state.split)));
        }
        true
    }

    /// Makes room for a pair of rehash items, by evicting if that is allowed. Returns whether
    /// there is room.
    fn make_room_for_pair(&mut self, now: &Now) -> bool {
        let Some(layout) = pair_layout(now) else { return false };
        match self.reserve(layout, None, now) {
            Ok(slot) => {
                self.pool.give_back(slot);
                true
            }
            Err(_) => false,
        }
    }

    /// Parts up to [`SLICE`] of the rings that were split, after their grace period.
    fn part_slice(&mut self, state: &mut RehashState) -> bool {
        let index = self.index;
        let Some((grace, pairs)) = &mut state.waiting else { return false };
        if !self.pool.is_over(*grace) {
            std::thread::yield_now();
            return true;
        }
        let guard = self.pool.pin();
        let items = self.items(&guard);
        for _ in 0..SLICE {
            let Some(pair) = pairs.pop() else { break };
            part(&items, node_of(pair));
            let bytes = items.item(node_of(pair)).bytes_held() as u64;
            // SAFETY: both items of the pair left their rings.
            unsafe { self.pool.retire(pair) };
            index.growth.remove_pair(bytes);
        }
        if pairs.is_empty() {
            state.waiting = None;
            let rings = index.tables.current(&guard).len();
            if state.next_ring == Some(rings) {
                let retired = index.tables.finish(&guard);
                state.next_ring = None;
                state.retired = Some((self.pool.begin_grace(), retired));
                index.wants_growth.store(false, Ordering::Relaxed);
                index.growth.note_table(index.tables.current(&guard));
                index.growth.is_under_way.store(false, Ordering::Relaxed);
                index.growth.finished.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    /// Adds a few rings to the sample, and publishes it when it is complete.
    fn sample_rings(&self, sample: &mut RingSample) {
        let guard = self.pool.pin();
        let items = self.items(&guard);
        let table = self.index.tables.current(&guard);
        if sample.rings != table.len() {
            *sample = RingSample::new(table.len());
        }
        let stride = table.len().div_ceil(RINGS);
        for _ in 0..SAMPLED_RINGS {
            if sample.next >= table.len() {
                self.index.growth.last_sample.publish(std::mem::take(sample));
                return;
            }
            let (mut length, mut is_hot) = (0, false);
            tour(&items, (sample.next as u64) << table.shift(), |loaded| {
                if length == 0 {
                    is_hot = items.item(loaded.node).header().is_recent();
                }
                length += 1;
            });
            sample.add(length, is_hot);
            sample.next += stride;
        }
    }
}

/// Prefetches the item that the head of a ring leads to, if there is such a ring.
fn ask_ahead(items: &Items<'_>, table: &HeadTable, ring: usize) {
    if ring < table.len()
        && let Some(node) = items.bits.node_of(Head(load(table.head_at(ring))).address())
    {
        items.prefetch_item(node, 0);
    }
}

/// Splits one ring. Returns false if there is no memory for its rehash items.
fn split_ring<S: Strategy>(
    index: &HotRing<S>,
    pool: &mut Pool<'_>,
    items: &Items<'_>,
    table: &HeadTable,
    ring: usize,
    pairs: &mut Vec<ItemRef>,
    now: &Now,
) -> bool {
    let Some(next) = table.next(items.guard) else { return true };
    let buckets = Buckets {
        old: table.head_at(ring),
        new: [next.head_at(2 * ring), next.head_at(2 * ring + 1)],
    };
    if move_vacant(&buckets) {
        return true;
    }
    let division = (2 * ring as u64 + 1) << next.shift();
    let Some(pair) = make_pair(pool, division, now) else { return false };
    // A sealed item is never taken for the item of a key.
    items.seal(node_of(pair));
    index.growth.add_pair(items.item(node_of(pair)).bytes_held() as u64);
    split(items, &buckets, node_of(pair));
    pairs.push(pair);
    true
}

/// The item in whose memory a pair of rehash items lies: its word becomes the second one's link.
const PAIR: ItemWrite<'_> = ItemWrite {
    parts: [Part::Bytes(&[0; 8]), Part::Empty],
    flags: 0,
    expiry: Expiry::NEVER,
    cas: None,
    meta_flags: MetaFlags { fetched: false, stale: false, won: false },
};

/// The layout of a pair, whose key is the division.
fn pair_layout(now: &Now) -> Option<ItemLayout> {
    ItemLayout::new(size_of::<u64>(), &PAIR, 0, now)
}

/// Makes two rehash items in the memory of one item with a word: the item's link and its word serve
/// as their links.
fn make_pair(pool: &mut Pool<'_>, division: u64, now: &Now) -> Option<ItemRef> {
    let slot = pool.reserve(pair_layout(now)?).ok()?;
    Some(pool.fill(slot, &division.to_le_bytes(), &PAIR, &[]))
}
