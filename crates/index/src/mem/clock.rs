//! CLOCK eviction within a size class, moving pages between classes, and sweeping flushed items.
//!
//! Each of these walks memory page by page under a guard and asks the engine to unlink *exactly*
//! the item at an address (by reference, not by key). If the engine returns `true`, this thread
//! unlinked the item and retires it; `false` means that another thread unlinked it or that it is
//! not published yet.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::{IgnorePoison, ItemWrite, MetaFlags, Now, Part};

use super::header::{Header, ItemLayout};
use super::page::PageState;
use super::probation::Probation;
use super::{Item, ItemRef, Memory, Pool};
use crate::Eviction;

/// A callback into the engine: replaces exactly the item `old` (hash of its key, `old`, `new`) by
/// its copy `new`, or unlinks it where `new` is None. Returns whether it did.
pub type Swap<'s> = dyn FnMut(u64, ItemRef, Option<ItemRef>) -> bool + 's;

/// The number of slots that a thread claims from the hand at a time, under its lock. It returns
/// those that it did not look at.
const STRIDE_SLOTS: u32 = 64;
/// After this many slots without a victim the hand also takes recently used items: a request must
/// not wait for a full revolution of the hand.
const PATIENCE_SLOTS: usize = 4096;
/// The number of maintenance steps in which a sweep covers all pages.
const SWEEP_STEPS: usize = 64;
/// After the limit was lowered, a maintenance step empties one in this many of the pages that are
/// too many: connections' buffers, for which it is lowered, fill within a second.
const EXCESS_SHARE: usize = 4;
/// The least and the most pages that one maintenance step empties after the limit was lowered.
const PAGES_PER_STEP: RangeInclusive<usize> = 2..=64;

/// The CLOCK hand of a class: the next slot to look at.
#[derive(Default)]
pub(super) struct Hand {
    page: u32,
    slot: u32,
}

/// Progress of the sweep for flushed items, and of evacuations.
#[derive(Default)]
pub(super) struct Sweep {
    page: u32,
    /// The flush generation when the current pass began.
    pass_generation: u8,
    swept_generation: u8,
    /// Pages in state Draining, and the second at which they began: each maintenance step walks
    /// them once more.
    draining: Vec<(u32, u32)>,
}

/// Which items a walk takes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Take {
    /// Expired and flushed items.
    Dead,
    /// Expired and flushed items, and items not read since the hand last passed.
    Cold,
    /// Expired and flushed items, and items never read whose key was not evicted lately.
    Unread,
    /// All items, recently used ones too.
    All,
}

/// What a walk takes, and how many items at most.
#[derive(Clone, Copy)]
struct Quota {
    take: Take,
    most: usize,
}

impl Pool<'_> {
    /// Advances the class's hand until `target` items are unlinked. Returns the number unlinked.
    pub(super) fn evict_class(
        &mut self,
        class: usize,
        target: usize,
        take: Take,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> usize {
        let memory = self.memory;
        let slots = self.slots_of(class) as usize;
        let bound = match take {
            Take::Dead => slots.min(PATIENCE_SLOTS),
            // Where few items live, a second revolution would take items read a moment ago.
            _ if self.waits_for_grace(class) => slots,
            _ => 2 * slots,
        };
        let mut evicted = match take {
            Take::Cold if memory.uses_probation() => self.evict_new(class, target, now, swap),
            _ => 0,
        };
        let (mut examined, mut fruitless) = (0, 0);
        while evicted < target && examined <= bound {
            let take = match take {
                Take::Cold if fruitless >= PATIENCE_SLOTS => Take::All,
                take => take,
            };
            let quota = Quota { take, most: target - evicted };
            let Some((found, seen)) = self.move_hand(class, quota, now, swap) else { break };
            evicted += found;
            examined += seen;
            fruitless = if found == 0 { fruitless + seen } else { 0 };
        }
        evicted
    }

    /// Moves the class's hand over some slots. Returns the number of items unlinked, as `quota`
    /// says, and that of the slots looked at; None if the class has no page.
    fn move_hand(
        &mut self,
        class: usize,
        quota: Quota,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> Option<(usize, usize)> {
        let (page, from, to) = self.memory.advance_hand(class)?;
        let (found, seen) = self.walk(page, class, from..to, quota, now, swap);
        self.memory.put_hand_back(class, (page, to), from + seen);
        Some((found, seen as usize))
    }

    /// Ends the probation of items of the class, oldest first, until `target` items are unlinked or
    /// no more than their share is on probation, or some [`PATIENCE_SLOTS`] were examined. Returns
    /// the number unlinked.
    fn evict_new(&mut self, class: usize, target: usize, now: &Now, swap: &mut Swap<'_>) -> usize {
        let memory = self.memory;
        let (items, slots) = (memory.items_of(class), self.slots_of(class));
        let (mut evicted, mut examined) = (0, 0);
        while evicted < target
            && examined < PATIENCE_SLOTS
            && memory.lock_probation(class).is_hand_due(items, slots)
        {
            let quota = Quota { take: Take::Unread, most: target - evicted };
            let Some((found, seen)) = self.move_hand(class, quota, now, swap) else { break };
            memory.lock_probation(class).hand_examined(seen as u64);
            evicted += found;
            examined += seen;
        }
        // A list is far above its share after many items left.
        while evicted < target && examined < PATIENCE_SLOTS {
            examined += 1;
            let due = memory.lock_probation(class).take_due(items);
            let Some(slot) = due else { break };
            let guard = self.pin();
            // Checked under the guard: see `walk`. The slot may be free or hold another item by
            // now, which is examined early.
            let page = (slot.to_bits() >> memory.page_shift) as usize;
            let (state, page_class) = memory.pages[page].state();
            if page_class != class || matches!(state, PageState::Free | PageState::Emptied) {
                continue;
            }
            let Some(item) = memory.live_item_at(slot.to_bits(), &guard) else { continue };
            evicted += usize::from(self.take_item(item, Some(class), Take::Unread, now, swap));
        }
        evicted
    }

    /// Unlinks and retires items in `slots` of a page, as `quota` says. Returns their number and
    /// that of the slots looked at.
    fn walk(
        &mut self,
        page_number: u32,
        class: usize,
        slots: std::ops::Range<u32>,
        quota: Quota,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> (usize, u32) {
        let memory = self.memory;
        let guard = self.pin();
        // Checked under the guard: a page that is in the class now keeps its format during the
        // walk.
        let (state, page_class) = memory.pages[page_number as usize].state();
        if page_class != class || matches!(state, PageState::Free | PageState::Emptied) {
            return (0, slots.len() as u32);
        }
        let start = memory.page_start(page_number);
        let (mut taken, mut seen) = (0, 0);
        for slot in slots {
            if taken == quota.most {
                break;
            }
            seen += 1;
            let offset = start + memory.geometries[class].header_of(slot);
            let Some(item) = memory.live_item_at(offset, &guard) else { continue };
            taken += usize::from(self.take_item(item, Some(class), quota.take, now, swap));
        }
        (taken, seen)
    }

    /// Unlinks and retires one item if `take` selects it; returns whether it did. With
    /// [`Take::Cold`] it records that it spared an item. `class` is the class
    /// whose statistics count the item, if any. Requires: the caller holds a guard.
    pub(super) fn take_item(
        &mut self,
        item: Item<'_>,
        class: Option<usize>,
        take: Take,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> bool {
        let memory = self.memory;
        let header = item.header();
        let is_dead = !now.is_live(item.expiry_of(header), header.generation());
        let hash = |item: &Item<'_>| memory.seed.hash(item.key());
        if !is_dead
            && take == Take::Unread
            && (memory.ghosts.recall(hash(&item)) || header.is_fetched())
        {
            return false;
        }
        if !is_dead && take != Take::All {
            if take == Take::Cold && header.is_recent() {
                item.spare(header, memory.eviction() == Eviction::Clock);
                if let Some(class) = class {
                    memory.class_states[class].spared.fetch_add(1, Ordering::Relaxed);
                }
            }
            if take == Take::Dead || header.is_recent() {
                return false;
            }
        }
        let hash = hash(&item);
        if !swap(hash, item.reference(), None) {
            return false;
        }
        // SAFETY: `swap` returned true: this thread unlinked exactly this item.
        unsafe { self.evict(&item, now) };
        if let Some(class) = class {
            if !is_dead && memory.uses_probation() {
                memory.lock_probation(class).push(item.reference(), memory);
                memory.ghosts.remember(hash);
            }
            let state = &memory.class_states[class];
            let count = if is_dead { &state.swept } else { &state.evictions };
            count.fetch_add(1, Ordering::Relaxed);
            if !is_dead && !header.never_expires() {
                state.mortal_evictions.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    /// Evicts large items until `needed` bytes are free after the grace period. Returns the bytes
    /// that the evicted items held.
    pub(super) fn evict_large(
        &mut self,
        needed: usize,
        take: Take,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> usize {
        let memory = self.memory;
        let (mut freed, mut examined) = (0, 0);
        while freed < needed {
            let guard = self.pin();
            // Checked under the guard: a run that is not retired now stays while it is examined.
            let (Some(start), count) = memory.large.advance_hand() else { break };
            if examined > 2 * count {
                break;
            }
            examined += 1;
            let offset = start + 8 + memory.layout.link_bytes() as u64;
            let Some(item) = memory.live_item_at(offset, &guard) else { continue };
            let header = item.header();
            let is_dead = !now.is_live(item.expiry_of(header), header.generation());
            let bytes = memory.large.length(start);
            if self.take_item(item, None, take, now, swap) {
                freed += bytes;
                if !is_dead {
                    memory.large_evictions.fetch_add(1, Ordering::Relaxed);
                    memory.large_evicted_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                    memory.large.note_eviction(start, !header.never_expires());
                }
            } else if take == Take::Cold && header.is_recent() {
                memory.large_spared.fetch_add(1, Ordering::Relaxed);
                memory.large_spared_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        freed
    }

    /// Frees memory for a page of class `receiver`, which has nothing to evict, or of any class
    /// (`usize::MAX`): evicts large items if these hold more memory than any other class, else
    /// empties a page of the class that holds most.
    pub(super) fn take_page_from_others(
        &mut self,
        receiver: usize,
        now: &Now,
        swap: &mut Swap<'_>,
    ) {
        let memory = self.memory;
        let classes = (0..memory.classes.count()).filter(|class| *class != receiver);
        let pages = classes.map(|class| memory.pages_of(class)).max().unwrap_or(0);
        let most_bytes = u64::from(pages) << memory.page_shift;
        if memory.large.held_bytes() > most_bytes && self.evict_large_for_page(now, swap) > 0 {
            return;
        }
        self.evacuate_donor(receiver, now, swap);
    }

    /// Empties one page for class `receiver`, for large items (the number after the last class) or
    /// for any class (`usize::MAX`): a page of a class without items, or else of the class that
    /// holds most pages.
    pub(super) fn evacuate_donor(
        &mut self,
        receiver: usize,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> bool {
        let memory = self.memory;
        let classes = (0..memory.classes.count()).filter(|class| *class != receiver);
        let mut donors: Vec<_> = classes
            .filter(|class| memory.pages_of(*class) > 0)
            .map(|class| (memory.items_of(class) == 0, memory.pages_of(class), class))
            .collect();
        donors.sort_unstable_by(|left, right| right.cmp(left));
        // A class that lacks a page may take any free one, unless all go to a lower limit; large
        // items need several.
        let is_above_limit = memory.budget.used() > memory.budget.limit();
        let count = memory.classes.count();
        let is_kept = |to: &usize| *to == count || *to < count && is_above_limit;
        let kept_for = Some(receiver).filter(is_kept);
        donors.into_iter().any(|(_, _, class)| self.evacuate_for(class, kept_for, now, swap))
    }

    /// Empties the page of a class that has most free slots: its items move to other pages of the
    /// class or, if the index evicts, are evicted. The page is free after two grace periods, for
    /// `receiver` or for any class. Returns false if the class has no page that can be emptied.
    pub(super) fn evacuate_for(
        &mut self,
        class: usize,
        receiver: Option<usize>,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> bool {
        self.give_up(class);
        let Some(page) = self.memory.start_draining(class) else { return false };
        self.memory.pages[page as usize].set_receiver(receiver);
        self.memory.lock_sweep().draining.push((page, now.seconds));
        // The page cannot become empty while workers keep slots of it in magazines.
        self.memory.pressure.fetch_add(1, Ordering::Relaxed);
        self.drain(page, class, now, swap);
        true
    }

    /// Walks a draining page once. Returns whether the evacuation has ended: the page is empty, or
    /// it was returned to use.
    fn drain(&mut self, page_number: u32, class: usize, now: &Now, swap: &mut Swap<'_>) -> bool {
        let memory = self.memory;
        let page = &memory.pages[page_number as usize];
        if page.state() != (PageState::Draining, class) {
            return true;
        }
        let geometry = memory.geometries[class];
        let start = memory.page_start(page_number);
        let mut is_stuck = false;
        for slot in 0..geometry.slots {
            let guard = self.pin();
            let offset = start + geometry.header_of(slot);
            let Some(item) = memory.live_item_at(offset, &guard) else { continue };
            if self.relocate(item, class, now, swap) {
                is_stuck |= !memory.evicts;
                continue;
            }
            let is_dead = !now.is_live(item.expiry_of(item.header()), item.header().generation());
            // No class is named: the eviction is not for lack of memory in the class, and its slot
            // is not filled with a new item.
            let has_left = memory.evicts && self.take_item(item, None, Take::All, now, swap);
            let displaced = u64::from(has_left && !is_dead);
            memory.class_states[class].displaced_by_moves.fetch_add(displaced, Ordering::Relaxed);
            is_stuck |= !has_left;
        }
        if page.free() == geometry.slots {
            if page.change(class, PageState::Draining, PageState::Emptied) {
                self.retire_page(page_number);
            }
            return true;
        }
        if is_stuck && !memory.evicts && page.change(class, PageState::Draining, PageState::Full) {
            if page.free() >= geometry.worth_taking {
                memory.make_partial(page_number, class);
            }
            return true;
        }
        false
    }

    /// Moves an item to another page of its class, if one has a free slot.
    fn relocate(&mut self, item: Item<'_>, class: usize, now: &Now, swap: &mut Swap<'_>) -> bool {
        let view = item.view();
        if !now.is_live(view.expiry, view.generation) {
            return false;
        }
        let Some(slot) = self.take_slot_without_page(class) else { return false };
        let meta_flags = MetaFlags { fetched: view.fetched, stale: view.stale, won: view.won };
        let item_write = ItemWrite {
            parts: [Part::Current, Part::Empty],
            flags: view.flags,
            expiry: view.expiry,
            cas: view.cas,
            meta_flags,
        };
        let value = view.value.as_bytes();
        let seconds = item.header().last_access_seconds();
        let then = Now { seconds, generation: view.generation, ..*now };
        let layout = ItemLayout::new(view.key.len(), &item_write, value.len(), &then);
        let layout = layout.expect("as long as the item that it copies");
        let copy = self.fill_at(slot, layout, view.key, &item_write, value);
        let has_moved = swap(self.memory.seed.hash(view.key), item.reference(), Some(copy));
        let (gone, kept) = if has_moved { (item.reference(), copy) } else { (copy, copy) };
        // SAFETY: either this thread's `swap` unlinked the old item, or the copy was never
        // published.
        unsafe { self.retire(gone) };
        if kept != gone && item.header().is_recent() {
            self.copy_reads(kept, item.header());
        }
        has_moved
    }

    /// Takes empty pages away from their classes. Returns whether a flush freed anything.
    pub(super) fn scavenge(&mut self) -> bool {
        if self.memory.empty_pages.swap(0, Ordering::Relaxed) == 0 {
            return false;
        }
        for page_number in 0..self.memory.lock_fresh().next {
            let page = &self.memory.pages[page_number as usize];
            let (state, class) = page.state();
            let is_empty = state == PageState::Partial
                && page.free() == self.memory.geometries[class].slots
                && page.change(class, PageState::Partial, PageState::Emptied);
            if is_empty {
                self.retire_page(page_number);
            }
        }
        self.flush()
    }

    /// A bounded step of background work. Returns whether more work is due.
    pub fn step(&mut self, now: &Now, swap: &mut Swap<'_>) -> bool {
        self.give_up_all();
        self.scavenge();
        let draining = std::mem::take(&mut self.memory.lock_sweep().draining);
        for (page, since) in draining {
            let class = self.memory.pages[page as usize].state().1;
            if !self.drain(page, class, now, swap) {
                self.memory.lock_sweep().draining.push((page, since));
            }
        }
        self.shrink_to_limit(now, swap);
        self.memory.discard_resident();
        self.balance(now, swap);
        if self.memory.uses_probation() {
            self.memory.ghosts.resize(self.memory);
        }
        let more = self.expire(now, swap) | self.sweep(now, swap);
        self.flush();
        more
    }

    /// Evicts down to a limit that was lowered, a few pages per step, and keeps a reserve of free
    /// pages for classes that have no page. Without eviction, only free memory goes back.
    fn shrink_to_limit(&mut self, now: &Now, swap: &mut Swap<'_>) {
        let memory = self.memory;
        // Grace periods pass in less. A page that takes longer holds a pinned item, which a client
        // may leave unread for long; it must not stop the others.
        let is_underway = |(_, since): &(u32, u32)| now.seconds <= since + 1;
        if memory.lock_sweep().draining.iter().any(is_underway) {
            return;
        }
        let excess = memory.budget.used().saturating_sub(memory.budget.limit());
        if excess > 0 {
            memory.take_back_kept_pages(|class| memory.pages_of(class) == 0);
            if memory.discard_free_pages(excess) < excess && memory.evicts {
                let share = excess / memory.page_bytes() / EXCESS_SHARE;
                let (least, most) = PAGES_PER_STEP.into_inner();
                for _ in 0..share.clamp(least, most) {
                    self.take_page_from_others(usize::MAX, now, swap);
                }
            }
        } else if memory.evicts && memory.supply() < memory.reserve_pages() {
            self.take_page_from_others(usize::MAX, now, swap);
        }
    }

    /// After a flush, reclaims dead items in the next pages of the pass. Returns whether items of
    /// an earlier flush generation may remain until a later step.
    fn sweep(&mut self, now: &Now, swap: &mut Swap<'_>) -> bool {
        let memory = self.memory;
        let pages = memory.lock_fresh().next;
        let mut state = memory.lock_sweep();
        if state.page == 0 {
            state.pass_generation = now.generation;
        }
        let from = state.page;
        let to = (from + pages / SWEEP_STEPS as u32 + 1).min(pages);
        let is_behind = state.swept_generation != now.generation;
        drop(state);
        if is_behind {
            for page in from..to {
                let class = memory.pages[page as usize].state().1;
                let slots = memory.geometries[class].slots;
                let quota = Quota { take: Take::Dead, most: usize::MAX };
                self.walk(page, class, 0..slots, quota, now, swap);
            }
            if to == pages {
                self.evict_large(usize::MAX, Take::Dead, now, swap);
            }
        }
        let mut state = memory.lock_sweep();
        state.page = if to == pages { 0 } else { to };
        if to == pages {
            state.swept_generation = state.pass_generation;
        }
        state.swept_generation != now.generation
    }
}

impl Memory {
    /// Makes the header at `offset` that of no item. Requires: the calling thread owns the memory,
    /// and no other can find it.
    pub(super) fn clear_header(&self, offset: u64) {
        self.allow_header(offset);
        // SAFETY: headers are accessed as atomics only.
        let header = unsafe { self.arena.at(offset).cast::<AtomicU64>().as_ref() };
        // Relaxed: the lock under which the run becomes visible orders it.
        header.store(0, Ordering::Relaxed);
    }

    /// The item whose header lies at `offset`, if it is live.
    pub(super) fn live_item_at<'g>(
        &'g self,
        offset: u64,
        _guard: &'g super::Guard<'_>,
    ) -> Option<Item<'g>> {
        let reference = ItemRef::from_bits(offset)?;
        // SAFETY: `offset` is that of a slot in a page that keeps its format under the guard, or of
        // a large item that was not retired when the guard was taken; its header is initialised
        // (zero until the slot is first used).
        let item = unsafe { Item::new(self.arena.at(offset), reference) };
        // Acquire pairs with the release in `NewItem::write`: a live header means that the other
        // fields are written. The item was not retired before the guard was taken, so its slot is
        // not reused under the guard.
        let header = Header(item.header_word().load(Ordering::Acquire));
        header.is_live().then_some(item)
    }

    /// Advances the hand of a class by up to [`STRIDE_SLOTS`] slots of one page. Returns the page,
    /// the first slot and the one past the last; None if the class has no page. Locks the hand.
    fn advance_hand(&self, class: usize) -> Option<(u32, u32, u32)> {
        let pages = self.lock_fresh().next;
        let hand = &self.class_states[class].hand;
        let mut hand = hand.lock().ignore_poison();
        let slots = self.geometries[class].slots;
        let is_ours = |page: u32| {
            let (state, page_class) = self.pages[page as usize].state();
            page_class == class && !matches!(state, PageState::Free | PageState::Emptied)
        };
        for _ in 0..=pages {
            if hand.page < pages && hand.slot < slots && is_ours(hand.page) {
                let from = hand.slot;
                hand.slot = (from + STRIDE_SLOTS).min(slots);
                return Some((hand.page, from, hand.slot));
            }
            hand.page = if hand.page + 1 < pages { hand.page + 1 } else { 0 };
            hand.slot = 0;
        }
        None
    }

    /// Moves the hand of a class back to slot `next` of the page that it stands in, unless another
    /// thread has moved it on from `at`, its page and slot. Locks the hand.
    fn put_hand_back(&self, class: usize, at: (u32, u32), next: u32) {
        let mut hand = self.class_states[class].hand.lock().ignore_poison();
        if next < at.1 && (hand.page, hand.slot) == at {
            hand.slot = next;
        }
    }

    /// Puts the page of a class that has most free slots into state Draining, for evacuation. None
    /// if the class has only owned pages, or another thread changed the page first.
    fn start_draining(&self, class: usize) -> Option<u32> {
        let pages = self.lock_fresh().next;
        let movable = (0..pages).filter(|page| {
            let (state, page_class) = self.pages[*page as usize].state();
            page_class == class && matches!(state, PageState::Full | PageState::Partial)
        });
        let page = movable.max_by_key(|page| self.pages[*page as usize].free())?;
        let entry = &self.pages[page as usize];
        let drains = entry.change(class, PageState::Full, PageState::Draining)
            || entry.change(class, PageState::Partial, PageState::Draining);
        drains.then_some(page)
    }

    pub(super) fn lock_probation(&self, class: usize) -> std::sync::MutexGuard<'_, Probation> {
        self.class_states[class].probation.lock().ignore_poison()
    }

    fn lock_sweep(&self) -> std::sync::MutexGuard<'_, Sweep> {
        self.sweep.lock().ignore_poison()
    }
}
