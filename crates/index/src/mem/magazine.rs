//! A worker's magazines: slots that it freed a short while ago and takes first.

use super::class::LINE_BYTES;
use super::{ItemRef, Memory, prefetch_for_write};

/// Cache lines of the next slot that are prefetched; the processor detects the stream of the rest.
const MOST_LINES_AHEAD: usize = 4;

/// Slots that are reused without going through the bitmap. They were in use a short while ago, so
/// they are in a cache more often than slots from the bitmap.
#[derive(Default)]
pub(super) struct Magazine {
    slots: Vec<ItemRef>,
    /// The number of slots taken since bags were last emptied: the magazine need not hold more,
    /// unless the class trades.
    taken: usize,
    /// The number of slots that it holds at most.
    most: usize,
}

impl Magazine {
    /// An empty magazine that holds at most `most` slots.
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes the slot that was freed last. Returns it with the one that will be taken next.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(ItemRef, Option<ItemRef>)> {
        self.taken += 1;
        let slot = self.slots.pop()?;
        Some((slot, self.slots.last().copied()))
    }

    /// Keeps a slot past its grace period, if it is likely to be taken soon: if that many were
    /// taken lately, or the class trades. Returns whether it did.
    #[inline]
    pub(super) fn keep(&mut self, slot: ItemRef, trades: bool) -> bool {
        // What a class that trades has evicted is taken soon. In the bitmap of a full page it would
        // be found late.
        let wanted = if trades { self.most } else { self.most.min(self.taken) };
        let is_wanted = self.slots.len() < wanted;
        if is_wanted {
            self.slots.push(slot);
        }
        is_wanted
    }

    /// States that bags were emptied.
    pub(super) fn forget_taken(&mut self) {
        self.taken = 0;
    }

    /// Takes all slots. The magazine keeps none until one is taken.
    pub(super) fn drain(&mut self) -> Vec<ItemRef> {
        self.taken = 0;
        std::mem::take(&mut self.slots)
    }
}

impl Memory {
    /// Prefetches the lines of the slot of `class` whose header lies at `offset`.
    #[inline]
    pub(super) fn prefetch_slot(&self, class: usize, offset: u64) {
        let start = offset - self.layout.link_bytes() as u64;
        let slot_start = self.arena.at(start).as_ptr();
        let slot_bytes = self.geometries[class].slot_bytes as usize;
        prefetch_for_write(slot_start);
        if slot_bytes <= LINE_BYTES {
            // It lies in one line, or in two.
            return prefetch_for_write(slot_start.wrapping_add(slot_bytes - 1));
        }
        let lines = (start as usize % LINE_BYTES + slot_bytes).div_ceil(LINE_BYTES);
        for line in 1..lines.min(MOST_LINES_AHEAD) {
            prefetch_for_write(slot_start.wrapping_add(line * LINE_BYTES));
        }
    }
}
