//! Finds expired items without a sweep: a zone map of their expiries.
//!
//! For each *group* of [`GROUP_SLOTS`] successive slots of a page, and for each page, the map keeps
//! a *bound*: no item there expires earlier. Maintenance looks through the bounds of the pages,
//! then through those of the groups of pages that are due, and visits the items of groups that are
//! due. Each item is judged by its own expiry; a bound only says where to look. So an item that is
//! replaced, deleted or given a later expiry (its copy then lies in another slot), and a slot that
//! another item reuses, need no entry removed: the bound that they leave is too low, costs one
//! visit, and is raised by it. Large items are few, and have an ordered set of their own in
//! [`Large`](super::large::Large).
//!
//! Memory: 4 bytes a group, an eighth of a byte a slot, of which the system backs only what has
//! held items with an expiry. A page's bounds lie in *rows* of some groups; the first rows of all
//! pages lie side by side, then all second rows, and so on. So a page of long slots, which has few
//! groups, takes little: 0.54 % of a page of the shortest slots, 0.1 % where slots have 128 bytes,
//! at most 0.05 % from 256 bytes on. The map is not charged to the limit. (The TTL buckets of
//! Segcache, NSDI 2021, spend nothing on an item, but require that items of one TTL lie together; a
//! timer wheel spends at least 8 bytes an item and
//! keeps entries of replaced items.) Cost: a write of an item with an expiry loads one
//! bound; one that expires before the rest of its group lowers it. Reads are not involved.
//!
//! Invariant: an item that was filled and not retired has a group bound of at most its expiry, and
//! a group's bound is at least its page's; except for bounds that a pass has taken and not returned
//! yet, and between the steps (3) and (5) of a writer below.
//!
//! The bounds are exact under concurrency: a writer (1) stores the item's header, (2) fences
//! lightly, (3) loads the group's bound and, if it lowers it, (4) fences lightly and (5) loads the
//! page's bound. A pass (a) takes page bounds, (b) fences heavily, (c) takes group bounds, (d)
//! fences heavily, (e) reads the items and (f) returns bounds to groups and then pages as a writer
//! does. If the load (3) does not see the take (c), then (e) sees the header (2 with d), so the
//! item's expiry is returned; if it does see the take, the writer lowers the bound. The same holds
//! for (4), (5) with (a), (b) and (c).

use amalgam_op::{Expiry, Now};

use crate::sync::{AtomicU32, Ordering};

use super::clock::{Swap, Take};
use super::epoch::Epochs;
use super::page::{Geometry, PageState};
use super::{Guard, ItemRef, Memory, Pool};

/// The slots of a group. Fewer would cost more memory, more would make a visit cost more: it reads
/// the headers of all.
pub(super) const GROUP_SLOTS: u32 = 32;
/// The groups of a row, at least: half a cache line.
const LEAST_ROW_GROUPS: u32 = 8;
/// The rows of a page, at most. Each lies in another page of the system, so that the only page of
/// its class takes this many of them.
const MOST_ROWS: u32 = 32;
/// The bound where no item expires.
const NONE: u32 = 0;
/// The number of pages whose groups one maintenance step looks through at most.
const PAGES_PER_STEP: usize = 64;
/// The number of groups that one maintenance step visits at most: some milliseconds if all their
/// items have expired.
const GROUPS_PER_STEP: usize = 128;
/// The number of large items that one maintenance step reclaims at most.
const LARGE_PER_STEP: usize = 64;

/// The bounds of all pages and groups. Any thread may call it.
pub(super) struct ExpiryMap {
    pages: Box<[AtomicU32]>,
    /// Offset in the arena of the groups' bounds: the first rows of all pages, then the second.
    start: u64,
    /// A row has two to the power of this many groups.
    row_shift: u32,
    /// The page at which the next pass begins.
    cursor: AtomicU32,
    /// The age in seconds of the oldest item that the latest pass which found any reclaimed.
    oldest_seconds: AtomicU32,
}

impl ExpiryMap {
    /// A map whose groups' bounds lie in the arena from `start` on, a multiple of 4.
    pub(super) fn new(pages: usize, geometries: &[Geometry], start: u64) -> Self {
        Self {
            pages: (0..pages).map(|_| AtomicU32::new(NONE)).collect(),
            start,
            row_shift: Self::row_groups(geometries).trailing_zeros(),
            cursor: AtomicU32::new(0),
            oldest_seconds: AtomicU32::new(0),
        }
    }

    /// The bytes of arena that the map of `pages` pages needs.
    pub(super) fn arena_bytes(pages: usize, geometries: &[Geometry]) -> usize {
        let row_groups = Self::row_groups(geometries);
        let groups = Self::most_groups(geometries).next_multiple_of(row_groups);
        pages * groups as usize * size_of::<u32>()
    }

    fn most_groups(geometries: &[Geometry]) -> u32 {
        geometries.iter().map(groups_of).max().unwrap_or(0)
    }

    /// The number of groups in a row, a power of two.
    fn row_groups(geometries: &[Geometry]) -> u32 {
        let groups = Self::most_groups(geometries).div_ceil(MOST_ROWS);
        groups.next_power_of_two().max(LEAST_ROW_GROUPS)
    }

    /// Offset in the arena of the bound of a page's group.
    #[inline]
    fn offset_of(&self, page: u32, group: u32) -> u64 {
        let (row, place) = (group >> self.row_shift, group & ((1 << self.row_shift) - 1));
        let row = u64::from(row) * self.pages.len() as u64 + u64::from(page);
        self.start + ((row << self.row_shift) + u64::from(place)) * size_of::<u32>() as u64
    }
}

/// The number of groups in a page.
fn groups_of(geometry: &Geometry) -> u32 {
    geometry.slots.div_ceil(GROUP_SLOTS)
}

/// Whether a bound says that an item may have expired.
fn is_due(bound: u32, now: &Now) -> bool {
    Expiry(bound).has_passed(now)
}

/// The lower of two bounds.
fn lower_of(left: u32, right: u32) -> u32 {
    match (left, right) {
        (NONE, bound) | (bound, NONE) => bound,
        _ => left.min(right),
    }
}

/// Takes a bound: from here to its return the pass answers for the items below it.
fn take(bound: &AtomicU32) -> u32 {
    // Acquire pairs with the release in `lower`: the page whose bound it is has been formatted.
    bound.swap(NONE, Ordering::Acquire)
}

/// Takes a bound if it is due. Another pass may have taken it since it was looked at and returned a
/// later one, which stays.
fn take_due(bound: &AtomicU32, now: &Now) -> bool {
    let taken = take(bound);
    let due = is_due(taken, now);
    if !due && taken != NONE {
        lower(bound, taken);
    }
    due
}

/// Lowers a bound to at most `expiry`. Returns whether it was higher.
#[inline]
fn lower(bound: &AtomicU32, expiry: u32) -> bool {
    let mut current = bound.load(Ordering::Relaxed);
    while current == NONE || expiry < current {
        // Release pairs with the acquire in `take`.
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        match bound.compare_exchange_weak(current, expiry, success, failure) {
            Ok(_) => return true,
            Err(changed) => current = changed,
        }
    }
    false
}

/// Steps (2) to (5) of the proof. Requires: the item's header was stored before.
#[inline]
fn lower_both(epochs: &Epochs, page: &AtomicU32, group: &AtomicU32, expiry: u32) {
    epochs.light_fence();
    if lower(group, expiry) {
        epochs.light_fence();
        lower(page, expiry);
    }
}

impl Memory {
    fn group_bound(&self, page: u32, group: u32) -> &AtomicU32 {
        let offset = self.expiries.offset_of(page, group);
        // SAFETY: the map's part of the arena (`ExpiryMap::arena_bytes`) is accessed as atomics
        // only; fresh memory reads as 0.
        unsafe { self.arena.at(offset).cast::<AtomicU32>().as_ref() }
    }

    /// Enters an item with an expiry into the map. Requires: the calling thread filled the item and
    /// has not published it.
    pub(super) fn note_expiry(&self, item: ItemRef, expiry: Expiry) {
        if self.is_large(item) {
            return self.large.note_expiry(self.run_of(item), expiry);
        }
        let (page, _, slot) = self.place_of(item);
        let group = self.group_bound(page, slot / GROUP_SLOTS);
        lower_both(&self.epochs, &self.expiries.pages[page as usize], group, expiry.0);
    }

    /// Forgets the bounds of a page's earlier class. Requires: the caller owns the page, formats it
    /// and has stored no item in it; `geometry` is that of its next class.
    pub(super) fn forget_expiries(&self, page: u32, geometry: &Geometry) {
        // A group's bound that stayed low while the page's is taken would hide new items.
        for group in 0..groups_of(geometry) {
            let bound = self.group_bound(page, group);
            // Untouched memory is only read, so that the system need not back it.
            if bound.load(Ordering::Relaxed) != NONE {
                bound.store(NONE, Ordering::Relaxed);
            }
        }
    }

    /// A time before which no item expires, in seconds; None if no item has an expiry. Also an
    /// earlier one than any, if the item that had it was replaced.
    pub(super) fn first_expiry_seconds(&self) -> Option<u32> {
        let pages = self.expiries.pages.iter().map(|bound| bound.load(Ordering::Relaxed));
        let first = pages.chain(self.large.first_expiry_seconds()).fold(NONE, lower_of);
        (first != NONE).then_some(first)
    }

    /// See [`crate::MemoryStatistics::reclaim_lag_seconds`].
    pub(super) fn reclaim_lag_seconds(&self) -> u32 {
        self.expiries.oldest_seconds.load(Ordering::Relaxed)
    }

    /// Takes the bounds of up to [`PAGES_PER_STEP`] pages that are due, and returns the pages.
    fn take_due_pages(&self, now: &Now) -> Vec<u32> {
        let (map, pages) = (&self.expiries, self.lock_fresh().next);
        let from = map.cursor.load(Ordering::Relaxed);
        let due = (from..pages).chain(0..from.min(pages)).filter(|page| {
            let bound = &map.pages[*page as usize];
            is_due(bound.load(Ordering::Relaxed), now) && take_due(bound, now)
        });
        let due: Vec<u32> = due.take(PAGES_PER_STEP).collect();
        // Any value would do: the cursor is for fairness.
        map.cursor.store(due.last().map_or(0, |page| page + 1), Ordering::Relaxed);
        due
    }

    /// Takes the bounds of the groups of `pages` that are due, and returns up to
    /// [`GROUPS_PER_STEP`] of them as pages and groups; the pages' bounds are returned for the
    /// others. Requires: a heavy fence since the pages' bounds were taken.
    fn take_due_groups(&self, pages: &[u32], now: &Now) -> Vec<(u32, u32)> {
        let mut due = Vec::new();
        for page in pages.iter().copied() {
            let class = self.pages[page as usize].state().1;
            let mut rest = NONE;
            for group in 0..groups_of(&self.geometries[class]) {
                let bound = self.group_bound(page, group);
                let current = bound.load(Ordering::Relaxed);
                if due.len() < GROUPS_PER_STEP && is_due(current, now) && take(bound) != NONE {
                    due.push((page, group));
                } else {
                    rest = lower_of(rest, current);
                }
            }
            if rest != NONE {
                lower(&self.expiries.pages[page as usize], rest);
            }
        }
        due
    }
}

impl Pool<'_> {
    /// Reclaims expired items, in one bounded step. Returns whether more may be due. Costs two
    /// heavy fences if any is.
    pub(super) fn expire(&mut self, now: &Now, swap: &mut Swap<'_>) -> bool {
        let memory = self.memory;
        let mut oldest = None;
        let large = self.expire_large(now, swap, &mut oldest);
        let pages = memory.take_due_pages(now);
        let mut groups = Vec::new();
        if !pages.is_empty() {
            memory.epochs.heavy_fence();
            groups = memory.take_due_groups(&pages, now);
            memory.epochs.heavy_fence();
        }
        for (page, group) in groups.iter().copied() {
            self.visit_group(page, group, now, swap, &mut oldest);
        }
        if let Some(seconds) = oldest {
            memory.expiries.oldest_seconds.store(seconds, Ordering::Relaxed);
        }
        large == LARGE_PER_STEP || groups.len() == GROUPS_PER_STEP || pages.len() == PAGES_PER_STEP
    }

    /// Reclaims the expired items of a group and returns its bound. An item that could not be
    /// unlinked is not published yet, or another thread unlinked it: it stays due. `oldest` becomes
    /// at least the age of the oldest item that was reclaimed, in seconds.
    fn visit_group(
        &mut self,
        page: u32,
        group: u32,
        now: &Now,
        swap: &mut Swap<'_>,
        oldest: &mut Option<u32>,
    ) {
        let memory = self.memory;
        let guard = self.pin();
        // Checked under the guard: a page that is in the class now keeps its format during the
        // visit. A page in no class has no items, and its next writer sees that the bound is taken.
        let (state, class) = memory.pages[page as usize].state();
        if matches!(state, PageState::Free | PageState::Emptied) {
            return;
        }
        let (start, geometry) = (memory.page_start(page), memory.geometries[class]);
        let first = group * GROUP_SLOTS;
        let mut rest = NONE;
        for slot in first..geometry.slots.min(first + GROUP_SLOTS) {
            let offset = start + geometry.header_of(slot);
            let expiry = self.expire_at(offset, Some(class), &guard, now, swap, oldest);
            rest = lower_of(rest, expiry);
        }
        if rest != NONE {
            let bound = &memory.expiries.pages[page as usize];
            lower_both(&memory.epochs, bound, memory.group_bound(page, group), rest);
        }
    }

    /// Reclaims large items that have expired, and returns how many were due.
    fn expire_large(&mut self, now: &Now, swap: &mut Swap<'_>, oldest: &mut Option<u32>) -> usize {
        let memory = self.memory;
        let guard = self.pin();
        // Listed under the guard: a run that is not retired now stays while it is examined.
        let due = memory.large.due(now.seconds, LARGE_PER_STEP);
        for start in due.iter().copied() {
            let offset = start + 8 + memory.layout.link_bytes() as u64;
            self.expire_at(offset, None, &guard, now, swap, oldest);
        }
        due.len()
    }

    /// Reclaims the item whose header lies at `offset`, if it has expired. Returns the expiry of an
    /// item that stays; [`NONE`] if there is none or it has none.
    fn expire_at(
        &mut self,
        offset: u64,
        class: Option<usize>,
        guard: &Guard<'_>,
        now: &Now,
        swap: &mut Swap<'_>,
        oldest: &mut Option<u32>,
    ) -> u32 {
        let Some(item) = self.memory.live_item_at(offset, guard) else { return NONE };
        let expiry = item.expiry_of(item.header());
        if !expiry.has_passed(now) || !self.take_item(item, class, Take::Dead, now, swap) {
            return expiry.0;
        }
        *oldest = (*oldest).max(Some(now.seconds - expiry.0));
        NONE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::SlotLayout;
    use super::super::class::Classes;
    use super::super::page::geometries;
    use super::*;

    /// The bounds are apart, lie within the map, and those of a page with long slots in one row.
    #[test]
    fn each_group_has_a_bound_of_its_own() {
        const PAGES: usize = 5;
        const START: u64 = 64;
        for page_bytes in if cfg!(miri) { vec![1 << 16] } else { vec![1 << 16, 1 << 19, 2 << 20] } {
            let geometries =
                geometries(&Classes::new(8, page_bytes, 4), page_bytes, SlotLayout::Plain);
            let map = ExpiryMap::new(PAGES, &geometries, START);
            let end = START + ExpiryMap::arena_bytes(PAGES, &geometries) as u64;
            let most = ExpiryMap::most_groups(&geometries);
            assert!(most.div_ceil(1 << map.row_shift) <= MOST_ROWS);
            let pages = 0..PAGES as u32;
            let mut offsets: Vec<_> = pages
                .flat_map(|page| (0..most).map(move |group| (page, group)))
                .map(|(page, group)| map.offset_of(page, group))
                .collect();
            offsets.sort_unstable();
            assert!(offsets.is_sorted_by(|left, right| left + 4 <= *right));
            assert!(offsets[0] == START && offsets.last().expect("groups") + 4 <= end);
            let is_long = |geometry: &&Geometry| geometry.slot_bytes >= 1024;
            let groups = geometries.iter().filter(is_long).map(groups_of).max().expect("a class");
            let distance = map.offset_of(1, groups - 1) - map.offset_of(1, 0);
            assert_eq!(distance, u64::from(groups - 1) * 4, "one row");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::{Arc, AtomicU64, thread};

    /// A writer fills an item while a pass takes the bounds: the item's expiry is in the bounds
    /// afterwards, whether or not the pass saw the item.
    #[test]
    fn no_pass_hides_an_item() {
        for earlier in [NONE, 5, 9] {
            loom::model(move || {
                let epochs = Arc::new(Epochs::new(1, true));
                let bounds = [earlier, earlier].map(AtomicU32::new);
                let (bounds, header) = (Arc::new(bounds), Arc::new(AtomicU64::new(0)));
                let writer = {
                    let (epochs, bounds, header) = (epochs.clone(), bounds.clone(), header.clone());
                    thread::spawn(move || {
                        header.store(7, Ordering::Release);
                        lower_both(&epochs, &bounds[0], &bounds[1], 7);
                    })
                };
                let [page, group] = &*bounds;
                let now = Now::at(20);
                if is_due(page.load(Ordering::Relaxed), &now) && take_due(page, &now) {
                    epochs.heavy_fence();
                    if is_due(group.load(Ordering::Relaxed), &now) && take(group) != NONE {
                        epochs.heavy_fence();
                        let expiry = header.load(Ordering::Acquire) as u32;
                        if expiry != NONE {
                            lower_both(&epochs, page, group, expiry);
                        }
                    }
                }
                writer.join().expect("the writer ends");
                for bound in &*bounds {
                    let bound = bound.load(Ordering::Relaxed);
                    assert!(bound != NONE && bound <= 7, "{bound}");
                }
            });
        }
    }
}
