//! The state of the scans under way on a table, and a log of the items that were displaced behind
//! their backs.
//!
//! A scan visits buckets in the order of their bit-reversed numbers, in which a bucket and the two
//! that it is split into when the table doubles cover the same range: growth loses nothing. An item
//! could be lost only if it is displaced from a bucket not visited yet to one that was. So while
//! scans are under way, every displacement checks whether it crosses a scan's position that way,
//! and if so appends the item to that scan's log. The scan visits logged items again.
//!
//! Why no such displacement is overlooked: a scan's position passes a bucket while the scan holds
//! the bucket's stripe, together with reading the bucket. A displacement holds the stripes of both
//! its ends. So the side of the position on which each end lies cannot change during a
//! displacement, and the position that it loads is right for both ends.
//!
//! Bounds: at most [`SCANS`] scans at once, and [`MAX_MOVED`] log entries a scan. A scan that
//! exceeds the latter, or whose state was given to a newer scan, starts again from the beginning at
//! its next call.

use std::sync::{Mutex, MutexGuard};

use amalgam_op::IgnorePoison;

use super::word::Tag;
use crate::Cursor;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Scans that may be under way at once.
const SCANS: usize = 8;
/// Entries that a scan's log may have.
const MAX_MOVED: usize = 1 << 16;
/// A position has as many bits as an index may have; the others of a cursor are the scan's id.
const POSITION_BITS: u32 = 40;
/// The bits of a cursor that are the scan's id.
pub(super) const ID_MASK: u64 = (1 << (u64::BITS - POSITION_BITS)) - 1;
/// The position after every bucket.
pub(super) const END: u64 = !ID_MASK;

/// The scans under way on one table.
#[derive(Default)]
pub(super) struct Scans {
    /// Number of states with an id.
    active: AtomicUsize,
    states: [ScanState; SCANS],
    /// The id that was given last.
    last_id: Mutex<u64>,
}

/// One scan under way.
#[derive(Default)]
pub(super) struct ScanState {
    /// The scan that owns this state, or 0.
    id: AtomicU64,
    /// Buckets whose reversed number is below this are visited.
    pub(super) position: AtomicU64,
    log: Mutex<Vec<MovedItem>>,
}

/// A logged displacement: the items with this tag in this bucket, or in their other bucket, have to
/// be visited again.
#[derive(Clone, Copy)]
pub(super) struct MovedItem {
    pub(super) bucket: usize,
    /// Buckets of the table at the time of the displacement.
    pub(super) table_len: usize,
    pub(super) tag: Tag,
}

impl ScanState {
    pub(super) fn lock_log(&self) -> MutexGuard<'_, Vec<MovedItem>> {
        self.log.lock().ignore_poison()
    }
}

impl Scans {
    /// Logs a displacement with the scans that it would escape. The caller holds the stripes of
    /// both buckets.
    #[inline]
    pub(super) fn log_move(&self, table_len: usize, from: usize, to: usize, tag: Tag) {
        // Relaxed, here and below: that a scan has passed one of the buckets was stored under a
        // stripe that the caller holds now.
        if self.active.load(Ordering::Relaxed) != 0 {
            self.log_crossing(table_len, from, to, tag);
        }
    }

    #[cold]
    fn log_crossing(&self, table_len: usize, from: usize, to: usize, tag: Tag) {
        for state in &self.states {
            let position = state.position.load(Ordering::Relaxed);
            let crosses = order(to) < position && order(from) >= position;
            if !crosses || state.id.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut log = state.lock_log();
            if log.len() < MAX_MOVED {
                log.push(MovedItem { bucket: to, table_len, tag });
            } else {
                self.end(state);
            }
        }
    }

    /// The state and id of the scan that a cursor belongs to; new ones for a scan that starts, or
    /// that lost its state.
    pub(super) fn resume(&self, cursor: Cursor) -> (&ScanState, u64) {
        let id = cursor.0 & ID_MASK;
        let known = self.states.iter().find(|state| state.id.load(Ordering::Relaxed) == id);
        if let Some(state) = known.filter(|_| id != 0) {
            return (state, id);
        }
        let mut last_id = self.last_id.lock().ignore_poison();
        *last_id = *last_id % (ID_MASK - 1) + 1;
        // A free state, or the one of the oldest scan.
        let age = |state: &&ScanState| match state.id.load(Ordering::Relaxed) {
            0 => u64::MAX,
            id => (*last_id).wrapping_sub(id) & ID_MASK,
        };
        let state = self.states.iter().max_by_key(age).expect("there are states");
        self.end(state);
        state.lock_log().clear();
        // Nothing is visited yet, so a mover that does not see the scan yet has nothing to log.
        state.position.store(0, Ordering::Relaxed);
        state.id.store(*last_id, Ordering::Relaxed);
        self.active.fetch_add(1, Ordering::Relaxed);
        (state, *last_id)
    }

    /// Frees a scan's state.
    pub(super) fn end(&self, state: &ScanState) {
        if state.id.swap(0, Ordering::Relaxed) != 0 {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A bucket's place in the order of a scan.
fn order(bucket: usize) -> u64 {
    (bucket as u64).reverse_bits()
}
