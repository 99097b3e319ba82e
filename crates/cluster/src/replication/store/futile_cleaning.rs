//! When cleaning segments that run short is of no use: a log whose segments each hold a few long
//! records can be moved about for ever without one becoming free.

use super::{CLEAN_PARTS, ReplicaStore};

/// Segments that were cleaned and made none free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FutileCleaning {
    segments: usize,
    /// The segments in use, and bytes of live records, when that began.
    in_use: usize,
    live_bytes: u64,
}

impl FutileCleaning {
    /// Segments that were cleaned and made none free.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Whether since then segments were begun or freed, or as much as one was released.
    fn is_over(&self, (live_bytes, in_use): (u64, usize), segment_bytes: u64) -> bool {
        in_use != self.in_use || live_bytes + segment_bytes <= self.live_bytes
    }
}

impl ReplicaStore {
    /// Whether segments run short, unless a pass over all of them has freed none and another would
    /// not either.
    pub(super) fn is_cleaning_urgent(&self) -> bool {
        if !self.log.is_short() {
            return false;
        }
        let usage = self.usage();
        self.futile_cleaning.segments <= usage.1
            || self.futile_cleaning.is_over(usage, self.segment_bytes())
    }

    /// Counts a segment that was cleaned.
    pub(super) fn count_cleaning(&mut self) {
        let (live_bytes, in_use) = self.usage();
        match self.futile_cleaning.is_over((live_bytes, in_use), self.segment_bytes()) {
            true => self.futile_cleaning = FutileCleaning { segments: 0, in_use, live_bytes },
            false => self.futile_cleaning.segments += 1,
        }
    }

    fn usage(&self) -> (u64, usize) {
        let (live_bytes, in_use, _) = self.log.usage();
        (live_bytes, in_use)
    }

    fn segment_bytes(&self) -> u64 {
        u64::from(self.clean_bytes) * u64::from(CLEAN_PARTS)
    }
}
