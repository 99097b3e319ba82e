//! Pages: the unit in which memory moves from the system to size classes and between them.
//!
//! A page belongs to a size class and starts with a bitmap of its free slots; the slots follow. At
//! most one worker *owns* a page and takes slots from it; any thread frees slots in it.
//!
//! ```text
//! Free --take--> Owned --nothing left--> Full --enough freed--> Partial --take--> Owned
//!                                          \------- drain -------/
//! Draining --all slots free--> Emptied --grace period--> Free
//! ```
//!
//! Invariants: (1) a slot's bit is set while the slot is unused and not claimed by the page's
//! owner; (2) `free` is the number of set bits, except that it may briefly lag behind the bitmap;
//! (3) a page changes its class only in state Free, so a thread that is pinned and saw the page in
//! a class may walk it.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::SlotLayout;
use super::class::{Classes, LINE_BYTES};
use super::table::Zeroable;

/// The state of a page; the diagram at the head of the module shows the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PageState {
    Free = 0,
    Owned = 1,
    Full = 2,
    Partial = 3,
    Draining = 4,
    Emptied = 5,
}

/// A page's entry in the page table.
#[repr(align(64))]
pub(super) struct Page {
    /// The state in the low byte and the class above it: they change together.
    word: AtomicU32,
    /// The number of free slots, without those that the owner has claimed. It is below zero for a
    /// moment if the owner claims a slot that its freer has not counted yet.
    free: AtomicI32,
    /// One more than the class that gets the page once it is empty; 0 for none.
    receiver: AtomicU32,
}

// SAFETY: atomics of integers are valid as zero: a free page in no class.
unsafe impl Zeroable for Page {}

impl Page {
    /// The class that gets the page once it is empty.
    pub(super) fn receiver(&self) -> Option<usize> {
        (self.receiver.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    pub(super) fn set_receiver(&self, class: Option<usize>) {
        self.receiver.store(class.map_or(0, |class| class as u32 + 1), Ordering::Relaxed);
    }

    const fn pack(state: PageState, class: usize) -> u32 {
        state as u32 | (class as u32) << 8
    }

    /// State and class. The load synchronizes with the store in `set`: the page is formatted.
    pub(super) fn state(&self) -> (PageState, usize) {
        let word = self.word.load(Ordering::SeqCst);
        let state = match word as u8 {
            0 => PageState::Free,
            1 => PageState::Owned,
            2 => PageState::Full,
            3 => PageState::Partial,
            4 => PageState::Draining,
            _ => PageState::Emptied,
        };
        (state, (word >> 8) as usize)
    }

    /// Sets state and class. Requires: no other thread may change the state now. SeqCst: see
    /// `Memory::free`.
    pub(super) fn set(&self, state: PageState, class: usize) {
        self.word.store(Self::pack(state, class), Ordering::SeqCst);
    }

    /// Moves the page from state `from` to state `to`, if it is still in `from` and in `class`.
    /// Returns whether it did; only one of several threads succeeds.
    pub(super) fn change(&self, class: usize, from: PageState, to: PageState) -> bool {
        let (from, to) = (Self::pack(from, class), Self::pack(to, class));
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn free(&self) -> u32 {
        self.free.load(Ordering::SeqCst).max(0) as u32
    }

    pub(super) fn set_free(&self, slots: u32) {
        self.free.store(slots as i32, Ordering::SeqCst);
    }

    /// Adds to the number of free slots and returns the new number.
    pub(super) fn add_free(&self, slots: u32) -> u32 {
        (self.free.fetch_add(slots as i32, Ordering::SeqCst) + slots as i32).max(0) as u32
    }

    pub(super) fn subtract_free(&self, slots: u32) {
        self.free.fetch_sub(slots as i32, Ordering::SeqCst);
    }
}

/// The division of a class's pages into slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) slot_bytes: u32,
    pub(super) slots: u32,
    /// Words of the bitmap at the start of the page.
    pub(super) words: u32,
    /// Distance from the start of the page to the first slot's header.
    pub(super) first_header: u32,
    /// The number of free slots from which a full page becomes partial again: enough to be worth a
    /// scan of its bitmap.
    pub(super) worth_taking: u32,
    /// 2^32 / slot_bytes, rounded up: multiplying by it divides multiples of slot_bytes below 2^21
    /// exactly.
    reciprocal: u64,
}

impl Geometry {
    fn new(page_bytes: usize, slot_bytes: usize, layout: SlotLayout) -> Self {
        let link_bytes = layout.link_bytes();
        let first_slot = |slots: usize| {
            let bitmap_bytes = slots.div_ceil(64) * 8;
            if layout.aligns_header() {
                (bitmap_bytes + link_bytes).next_multiple_of(LINE_BYTES) - link_bytes
            } else {
                bitmap_bytes.next_multiple_of(LINE_BYTES)
            }
        };
        let mut slots = page_bytes / slot_bytes;
        while first_slot(slots) + slots * slot_bytes > page_bytes {
            slots -= 1;
        }
        Self {
            slot_bytes: slot_bytes as u32,
            slots: slots as u32,
            words: slots.div_ceil(64) as u32,
            first_header: (first_slot(slots) + link_bytes) as u32,
            worth_taking: (slots as u32 / 32).clamp(1, 64),
            reciprocal: (1_u64 << 32).div_ceil(slot_bytes as u64),
        }
    }

    /// The slot whose header lies `offset` bytes into the page.
    #[inline]
    pub(super) fn slot_of(&self, offset: u64) -> u32 {
        let distance = offset - u64::from(self.first_header);
        ((distance * self.reciprocal) >> 32) as u32
    }

    /// Distance from the start of the page to the header of `slot`.
    #[inline]
    pub(super) fn header_of(&self, slot: u32) -> u64 {
        u64::from(self.first_header) + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// The bits of bitmap word `word` that stand for slots.
    pub(super) fn mask(&self, word: u32) -> u64 {
        match self.slots - word * 64 {
            64.. => u64::MAX,
            rest => (1 << rest) - 1,
        }
    }
}

/// The geometries of all classes.
pub(super) fn geometries(
    classes: &Classes,
    page_bytes: usize,
    layout: SlotLayout,
) -> Box<[Geometry]> {
    let geometry = |class| Geometry::new(page_bytes, classes.slot_bytes(class), layout);
    (0..classes.count()).map(geometry).collect()
}

/// A word of a page's bitmap.
pub(super) type BitmapWord = AtomicU64;

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDE: usize = if cfg!(miri) { 97 } else { 1 };

    #[test]
    fn slots_fill_the_page_and_do_not_overlap() {
        for layout in [SlotLayout::Plain, SlotLayout::Linked, SlotLayout::Chained] {
            let link = layout.link_bytes();
            for page_bytes in if cfg!(miri) { vec![1 << 16] } else { vec![1 << 16, 2 << 20] } {
                let classes = Classes::new(layout.step_bytes(), page_bytes, 4);
                for geometry in geometries(&classes, page_bytes, layout).iter() {
                    let end = geometry.header_of(geometry.slots - 1)
                        + u64::from(geometry.slot_bytes)
                        - link as u64;
                    assert!(end <= page_bytes as u64, "{geometry:?}");
                    let waste = page_bytes as u64 - end;
                    assert!(waste < u64::from(geometry.slot_bytes) + 2 * 64, "{geometry:?}");
                    assert!(waste * 50 < page_bytes as u64, "a fiftieth is lost: {geometry:?}");
                    assert!(geometry.first_header >= geometry.words * 8 + link as u32);
                    assert!(layout != SlotLayout::Linked || geometry.first_header % 16 == 0);
                    let first = geometry.first_header
                        - if layout.aligns_header() { 0 } else { link as u32 };
                    assert_eq!(first % LINE_BYTES as u32, 0);
                    for slot in (0..geometry.slots).step_by(STRIDE) {
                        assert_eq!(geometry.slot_of(geometry.header_of(slot)), slot);
                    }
                }
            }
        }
    }
}
