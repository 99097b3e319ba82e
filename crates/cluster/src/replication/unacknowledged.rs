//! The ids with a change that backups lack, as threads other than the primary's see them.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

use crate::hash::mix;
use crate::ids::ChunkId;

/// Counters, a power of two: with a thousand changes on their way, 6 in 100 other ids look as if
/// they had one too.
const COUNTERS: usize = if cfg!(loom) { 1 } else { 1 << 14 };

/// A counting filter: `has` may be true for an id without such a change, and is never
/// false for one with. Any thread may call it.
#[derive(Debug)]
pub struct UnacknowledgedIds {
    /// Changes by the hash of their id; empty without backups.
    counters: Box<[AtomicU32]>,
}

impl UnacknowledgedIds {
    /// Without backups, no change ever waits.
    pub(crate) fn new(has_backups: bool) -> Self {
        let count = if has_backups { COUNTERS } else { 0 };
        Self { counters: (0..count).map(|_| AtomicU32::new(0)).collect() }
    }

    #[inline]
    fn counter(&self, id: ChunkId) -> Option<&AtomicU32> {
        // Each read asks three times, and nobody needs the hash without backups.
        if self.counters.is_empty() {
            return None;
        }
        self.counters.get(mix(id.bits()) as usize % COUNTERS)
    }

    /// Counts a change. Call it before the engine has the change.
    pub(crate) fn add(&self, id: ChunkId) {
        // Whoever sees the change in the engine sees this too, as the engine releases it later.
        if let Some(counter) = self.counter(id) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes back one [`Self::add`]: backups have the change, or there was none.
    pub(crate) fn remove(&self, id: ChunkId) {
        if let Some(counter) = self.counter(id) {
            counter.fetch_sub(1, Ordering::Release);
        }
    }

    /// Whether backups may lack a change of an id that the caller has just read.
    #[inline]
    pub(crate) fn has(&self, id: ChunkId) -> bool {
        self.counter(id).is_some_and(|counter| counter.load(Ordering::Acquire) > 0)
    }
}
