//! Balances memory between size classes: pages move from the class that turns over least to the one
//! that turns over most. Large items take part as one more class.
//!
//! A class's *turnover* is the bytes it evicted for lack of memory, divided by the bytes it holds.
//! Turnovers are compared once a second, and at once when a class has evicted as much as it holds:
//! a size that was rare gets memory as fast as it is written, and steady loads move no pages.

use std::sync::atomic::Ordering;

use amalgam_op::{IgnorePoison, Now};

use super::clock::{Swap, Take};
use super::{Memory, Pool};

/// The number of pages that balancing moves in one maintenance step at most.
const MOVES: usize = 2;
/// The unit of turnover is 1/WHOLE of the bytes that a class holds.
const WHOLE: u64 = 1024;

/// The state of the last comparison.
#[derive(Default)]
pub(super) struct Balance {
    evicted: Vec<u64>,
    seconds: u32,
}

/// The turnover of a class. Large items have the number after the last class. Ordered by turnover
/// first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turnover {
    /// Turnover in units of 1/[`WHOLE`].
    parts: u64,
    pages: u64,
    class: usize,
}

impl Pool<'_> {
    /// Moves up to [`MOVES`] pages if some class turns over much more than another.
    pub(super) fn balance(&mut self, now: &Now, swap: &mut Swap<'_>) {
        let memory = self.memory;
        if !memory.evicts {
            return;
        }
        let Some((least, most)) = memory.compare_turnovers(now.seconds) else { return };
        let large = memory.classes.count();
        for _ in 0..MOVES {
            let has_moved = match least == large {
                true => self.evict_large(memory.page_bytes(), Take::Cold, now, swap) > 0,
                false => self.evacuate_from(least, now, swap),
            };
            if has_moved && most != large {
                memory.pages_moved.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Memory {
    /// The classes that turned over least and most, if they differ by more than a factor of two and
    /// a comparison is due. `seconds` is the current time.
    fn compare_turnovers(&self, seconds: u32) -> Option<(usize, usize)> {
        let mut state = self.balance.lock().ignore_poison();
        let count = self.classes.count() + 1;
        state.evicted.resize(count, 0);
        let turnovers =
            || (0..count).filter_map(|class| self.turnover(class, state.evicted[class]));
        let most = turnovers().max()?;
        let least = turnovers().filter(|turnover| turnover.pages > 1).min();
        if most.parts < WHOLE && state.seconds == seconds {
            return None;
        }
        state.seconds = seconds;
        for class in 0..count {
            state.evicted[class] = self.evicted_bytes(class);
        }
        let least = least.filter(|least| most.parts > 2 * least.parts + 1)?;
        (least.class != most.class).then_some((least.class, most.class))
    }

    /// The turnover of a class since it had evicted `evicted_before` bytes; None for a class that
    /// holds no page and evicted nothing.
    fn turnover(&self, class: usize, evicted_before: u64) -> Option<Turnover> {
        let recent = self.evicted_bytes(class).saturating_sub(evicted_before);
        let page_bytes = self.page_bytes() as u64;
        let pages = match self.class_states.get(class) {
            Some(state) => u64::from(state.pages.load(Ordering::Relaxed)),
            None => self.large.held_bytes() / page_bytes,
        };
        if pages == 0 && recent == 0 {
            return None;
        }
        Some(Turnover { parts: recent * WHOLE / (pages.max(1) * page_bytes), pages, class })
    }

    fn evicted_bytes(&self, class: usize) -> u64 {
        match self.class_states.get(class) {
            Some(state) => {
                let slot_bytes = u64::from(self.geometries[class].slot_bytes);
                state.evictions.load(Ordering::Relaxed) * slot_bytes
            }
            None => self.large_evicted_bytes.load(Ordering::Relaxed),
        }
    }
}
