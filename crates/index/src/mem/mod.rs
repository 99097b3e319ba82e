//! Memory management shared by all engines: one arena, size classes, per-worker pools, CLOCK
//! eviction and epoch-based reclamation. The unsafe code that engines share lives here.
//!
//! The life of an item: a [`Pool`] *reserves* a slot and *fills* it (from then on walks of the
//! memory find the item live); the engine *publishes* its reference in an index word (release) and
//! later *unlinks* it; the pool *retires* it, and after a grace period its slot is free again.
//!
//! Invariants:
//! 1. An item's key, value and fields never change between `fill` and the end of the grace period,
//!    except for its word, its link and the mutable bits of its header.
//! 2. The thread that unlinked an item retires it; no other does.
//! 3. All memory taken from the system is charged to one budget first and stays charged while it
//!    waits for a grace period.
//! 4. This module takes an engine's locks through the `swap` callback only, and holds none of its
//!    own locks across that callback.

mod arena;
mod balance;
mod budget;
mod cas;
mod class;
mod clock;
mod counters;
mod epoch;
mod evictions;
mod exchange;
mod expiry;
mod forbidden;
mod header;
mod header_predictor;
mod header_template;
mod item;
mod large;
mod magazine;
mod page;
mod pin;
mod plain;
mod pool;
mod probation;
mod retired;
mod room;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod writer;

pub use budget::Shortage;
pub use clock::Swap;
pub use epoch::Guard;
pub use evictions::{Departed, Evicted, Evictions};
pub use exchange::changes_in_place;
pub use header::{Header, ItemLayout, WORD_BYTES};
pub use header_predictor::HeaderPredictor;
pub use header_template::HeaderTemplate;
pub use item::{Item, ItemRef};
pub(crate) use item::{prefetch, prefetch_for_write};
pub use pin::Pinned;
pub(crate) use plain::padded;
pub use plain::{PlainItem, Unpublished};
pub use pool::{Grace, Pinner, Pool, Slot};
pub use table::{Table, Zeroable};
pub use writer::{Attempt, Writer, spared_by};

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_op::{HashSeed, IgnorePoison};

use crate::signal::Signal;
use crate::sync::CachePadded;
use crate::{ClassStatistics, Configuration, MemoryLosses, MemoryStatistics, OpenError};
use arena::Arena;
use balance::Balance;
use budget::Budget;
use class::Classes;
use clock::Hand;
use counters::Counters;
use epoch::Epochs;
use expiry::ExpiryMap;
use large::Large;
use page::{BitmapWord, Geometry, Page, PageState};
use retired::{Bag, Retired};

/// Whether an engine's items have a link word, and how their slots are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLayout {
    /// No link word; slots are multiples of 8 bytes.
    Plain,
    /// A link word before the header; header and word share one 16-byte boundary; slots are
    /// multiples of 16 bytes.
    Linked,
    /// A link word before the header; slots are multiples of 8 bytes.
    Chained,
}

impl SlotLayout {
    const fn link_bytes(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Linked | Self::Chained => 8,
        }
    }

    /// Slots are multiples of this, in bytes.
    const fn step_bytes(self) -> usize {
        match self {
            Self::Plain | Self::Chained => 8,
            Self::Linked => 16,
        }
    }

    /// Whether the header, and not the link word, of a page's first slot lies on the boundary of a
    /// cache line. Slots of 32 or 64 bytes then never straddle lines (except for their link word).
    const fn aligns_header(self) -> bool {
        matches!(self, Self::Plain | Self::Linked)
    }
}

/// The largest page, which is also the usual one: a huge page.
const MAX_PAGE_BYTES: usize = 2 << 20;
/// The smallest page. Small limits get small pages, so that there are enough for all classes and
/// threads.
const MIN_PAGE_BYTES: usize = 64 << 10;
/// The number of pages that a limit is divided into, until pages reach their largest size.
const PAGES_PER_LIMIT: usize = 1024;
/// An item of which a page holds fewer than this many is large.
const LARGE_DIVISOR: usize = 4;
/// Pages kept back for classes that have no page yet.
const RESERVE_PAGES: usize = 2;
/// Limits of fewer pages keep no page back.
const RESERVE_FROM_PAGES: usize = 32;
/// The last part of a small limit is on the system's usual pages: a huge page that is touched is
/// backed as a whole, and some of the last would be beyond the limit, as the index takes a part of
/// it.
const USUAL_PAGES_SHARE: usize = 16;
/// That part in bytes, at most.
const USUAL_PAGES_BYTES: usize = 8 << 20;
/// At most 1/RESIDENT_SHARE of the limit stays resident in free runs for large items.
const RESIDENT_SHARE: usize = 16;
/// The limit may be raised to this many times its first value.
const RAISE: usize = if cfg!(miri) { 1 } else { 4 };
/// Address space for large items, in multiples of the limit: the surplus counters fragmentation.
const LARGE_SPACE: usize = if cfg!(miri) { 1 } else { 4 };
/// The limit is below this: a process has an address space of 2^47 bytes, and the arena takes
/// multiples of the limit.
const LIMIT_END_BYTES: usize = (1 << 47) / (RAISE + LARGE_SPACE);

/// The memory of one index.
pub struct Memory {
    arena: Arena,
    layout: SlotLayout,
    seed: HashSeed,
    evicts: bool,
    /// Wakes maintenance.
    pub(crate) signal: Signal,
    /// The policy, an [`Eviction`](crate::Eviction); it may change at any time.
    eviction: AtomicU8,
    max_item_bytes: usize,
    page_shift: u32,
    /// The page table, with an entry for each page up to the highest limit; those of pages that
    /// were never used take no memory.
    pages: Table<Page>,
    fresh: Mutex<Fresh>,
    classes: Classes,
    geometries: Box<[Geometry]>,
    class_states: Box<[CachePadded<ClassState>]>,
    large: Large,
    /// Offset in the arena from which large items lie.
    large_start: u64,
    budget: Arc<Budget>,
    epochs: Epochs,
    /// Retired memory left by workers that ended and by dropped pins.
    orphans: Mutex<Vec<Bag>>,
    has_orphans: AtomicBool,
    /// The number of times that a page in use became empty since the last search for such pages.
    empty_pages: AtomicU64,
    /// The number of times that a worker asked the others to give up their pages and free their
    /// bags.
    pressure: AtomicU64,
    expiries: ExpiryMap,
    pins: pin::Pins,
    evictions: Evictions,
    counters: Box<[CachePadded<Counters>]>,
    cas: AtomicU64,
    pages_moved: AtomicU64,
    /// The number of large items that were evicted, for whatever needed their memory.
    large_evictions: AtomicU64,
    /// Their bytes.
    large_evicted_bytes: AtomicU64,
    /// Large items that the hand met and spared, and their bytes.
    large_spared: AtomicU64,
    large_spared_bytes: AtomicU64,
    /// Bytes that are charged to the limit and that only large items take: of pages emptied, and of
    /// large items evicted, for them.
    kept_for_large: AtomicUsize,
    /// Bytes of large items that were evicted for others and wait for their grace period.
    awaited_by_large: AtomicUsize,
    balance: Mutex<Balance>,
    sweep: Mutex<clock::Sweep>,
    ghosts: probation::Ghosts,
}

/// Pages without a class.
struct Fresh {
    /// Pages that were used before and hold old contents; charged to the limit.
    list: Vec<u32>,
    /// Pages whose memory was given back to the system; not charged.
    discarded: Vec<u32>,
    /// The number of the first page that was never used.
    next: u32,
}

impl Fresh {
    /// Takes a page and charges it to the limit. Returns its number, and whether it holds old
    /// contents.
    fn take(&mut self, budget: &Budget, page_bytes: usize, pages: usize) -> Option<(u32, bool)> {
        if let Some(page) = self.list.pop() {
            return Some((page, true));
        }
        if (self.discarded.is_empty() && self.next as usize == pages)
            || !budget.try_charge(page_bytes)
        {
            return None;
        }
        let page = self.discarded.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        Some((page, false))
    }
}

/// The state of a size class that threads share.
#[derive(Default)]
struct ClassState {
    /// Pages in state Partial, and stale entries.
    partial: Mutex<Vec<u32>>,
    hand: Mutex<Hand>,
    probation: Mutex<probation::Probation>,
    pages: AtomicU32,
    /// Free pages that no other class takes: old contents, charged to the limit.
    kept_pages: Mutex<Vec<u32>>,
    evictions: AtomicU64,
    /// The number of items that left with pages that the class gave away; not among `evictions`.
    displaced_by_moves: AtomicU64,
    /// Items that the hand met and spared.
    spared: AtomicU64,
    /// The number of evicted items that had an expiry.
    mortal_evictions: AtomicU64,
    /// The number of dead items that sweeps removed.
    swept: AtomicU64,
}

impl Memory {
    /// # Errors
    ///
    /// If the limit is too small for the largest item or too large for the address space, or the
    /// system refuses that.
    pub fn new(configuration: &Configuration, layout: SlotLayout) -> Result<Arc<Self>, OpenError> {
        let limit = configuration.memory_bytes;
        if limit.max(configuration.max_item_bytes) >= LIMIT_END_BYTES {
            return Err(OpenError::Configuration(format!(
                "a memory limit of {limit} bytes, for items of {}, exceeds the address space; give \
                 less than {LIMIT_END_BYTES}",
                configuration.max_item_bytes
            )));
        }
        let page_bytes =
            (limit / PAGES_PER_LIMIT).next_power_of_two().clamp(MIN_PAGE_BYTES, MAX_PAGE_BYTES);
        let needed = 4 * page_bytes + 2 * Large::charge(configuration.max_item_bytes);
        if limit < needed {
            return Err(OpenError::Configuration(format!(
                "a memory limit of {limit} bytes is too small for items of {} bytes; give at \
                 least {needed} bytes, or lower the largest item",
                configuration.max_item_bytes
            )));
        }
        let page_count = limit * RAISE / page_bytes;
        let large_start = page_count * page_bytes;
        let large_bytes = limit.next_multiple_of(page_bytes) * LARGE_SPACE;
        let classes = Classes::new(layout.step_bytes(), page_bytes, LARGE_DIVISOR);
        let geometries = page::geometries(&classes, page_bytes, layout);
        let map_start = large_start + large_bytes;
        let map_bytes = ExpiryMap::arena_bytes(page_count, &geometries);
        let tail = (limit / USUAL_PAGES_SHARE).min(USUAL_PAGES_BYTES);
        let huge_bytes = (limit - tail) / Arena::ALIGNMENT * Arena::ALIGNMENT;
        let arena = Arena::reserve(map_start + map_bytes, huge_bytes)?;
        let memory = Self {
            arena,
            layout,
            seed: configuration.seed.clone(),
            evicts: configuration.evicts,
            signal: Signal::default(),
            eviction: AtomicU8::new(configuration.eviction as u8),
            max_item_bytes: configuration.max_item_bytes,
            page_shift: page_bytes.trailing_zeros(),
            pages: Table::unlimited(page_count)?,
            fresh: Mutex::new(Fresh { list: vec![], discarded: vec![], next: 0 }),
            expiries: ExpiryMap::new(page_count, &geometries, map_start as u64),
            geometries,
            class_states: (0..classes.count()).map(|_| CachePadded::default()).collect(),
            counters: (0..configuration.workers)
                .map(|_| CachePadded(Counters::new(classes.count())))
                .collect(),
            classes,
            large: Large::new(large_start as u64, large_bytes as u64),
            large_start: large_start as u64,
            budget: Arc::new(Budget::new(limit)),
            epochs: Epochs::new(configuration.workers, configuration.pins_execute_fence),
            orphans: Mutex::default(),
            has_orphans: AtomicBool::new(false),
            empty_pages: AtomicU64::new(0),
            pressure: AtomicU64::new(0),
            pins: pin::Pins::default(),
            evictions: Evictions::default(),
            cas: AtomicU64::new(configuration.first_cas),
            pages_moved: AtomicU64::new(0),
            large_evictions: AtomicU64::new(0),
            large_evicted_bytes: AtomicU64::new(0),
            large_spared: AtomicU64::new(0),
            large_spared_bytes: AtomicU64::new(0),
            kept_for_large: AtomicUsize::new(0),
            awaited_by_large: AtomicUsize::new(0),
            balance: Mutex::default(),
            sweep: Mutex::default(),
            ghosts: probation::Ghosts::default(),
        };
        if configuration.prefault {
            memory.arena.populate(0, limit / page_bytes * page_bytes);
        }
        Ok(Arc::new(memory))
    }

    /// A zeroed table, charged to the limit.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the limit does not allow it, or what the system says.
    pub fn table<T: Zeroable>(&self, length: usize) -> io::Result<Table<T>> {
        Table::new(length, &self.budget)
    }

    /// The seed with which keys are hashed.
    pub fn seed(&self) -> &HashSeed {
        &self.seed
    }

    /// The bits of every [`ItemRef`] are below this number.
    pub fn address_space_bytes(&self) -> u64 {
        self.arena.bytes() as u64
    }

    /// Charges `bytes` of memory outside the arena, if the limit allows it; returns whether it did.
    pub fn try_charge(&self, bytes: usize) -> bool {
        self.budget.try_charge(bytes)
    }

    /// Takes back a charge made by [`Memory::try_charge`].
    pub fn release_charge(&self, bytes: usize) {
        self.budget.release(bytes);
    }

    /// Changes the limit, to at most `RAISE` times the first one. After it is lowered,
    /// maintenance frees memory step by step.
    pub fn set_limit(&self, bytes: usize) {
        let highest = self.pages.len() << self.page_shift;
        if bytes > highest / RAISE {
            self.arena.prefer_huge_pages(bytes.min(highest));
        }
        self.budget.set_limit(bytes.min(highest));
    }

    /// The item that `reference` names.
    ///
    /// # Safety
    ///
    /// `reference` was read (acquire) from an index word of this memory's engine, under `guard` or
    /// under a lock that keeps the item linked, and that stays so while `'g` lasts.
    #[inline]
    pub unsafe fn item<'g>(&'g self, reference: ItemRef, _guard: &'g Guard<'_>) -> Item<'g> {
        // SAFETY: published items were filled, and the guard keeps them from being reused.
        unsafe { Item::new(self.arena.at(reference.to_bits()), reference) }
    }

    /// The item that `reference` names, for threads that hold no guard.
    ///
    /// # Safety
    ///
    /// `reference` was read from an index word of this memory's engine under a lock of the engine
    /// without which no thread unlinks the item, and the lock is held while `'g` lasts.
    #[inline]
    pub unsafe fn linked_item<'g>(&'g self, reference: ItemRef) -> Item<'g> {
        // SAFETY: published items were filled; an item that is linked is not reused.
        unsafe { Item::new(self.arena.at(reference.to_bits()), reference) }
    }

    /// Prefetches the first line of an item; `reference` may be stale.
    #[inline]
    pub fn prefetch_item(&self, reference: ItemRef) {
        let offset = reference.to_bits();
        prefetch(self.arena.at(offset).as_ptr());
    }

    /// Prefetches the line `bytes` after the start of an item's header; `reference` may be stale.
    #[inline]
    pub fn prefetch_item_at(&self, reference: ItemRef, bytes: usize) {
        prefetch(self.arena.at(reference.to_bits()).as_ptr().wrapping_add(bytes));
    }

    /// The address of an item's header from the 48 bits in an index word, for prefetches only: the
    /// bits may be stale or 0.
    #[inline]
    pub fn address_of(&self, reference_bits: u64) -> *const u8 {
        self.arena.at(reference_bits).as_ptr()
    }

    fn page_bytes(&self) -> usize {
        1 << self.page_shift
    }

    /// Whether the page that the item lies in is being drained, so that the item must be moved or
    /// evicted.
    pub fn must_leave(&self, item: ItemRef) -> bool {
        let page = (item.to_bits() >> self.page_shift) as usize;
        !self.is_large(item) && self.pages[page].state().0 == PageState::Draining
    }

    fn is_large(&self, item: ItemRef) -> bool {
        item.to_bits() >= self.large_start
    }

    /// The start of a large item's run.
    fn run_of(&self, item: ItemRef) -> u64 {
        item.to_bits() - 8 - self.layout.link_bytes() as u64
    }

    fn page_start(&self, page: u32) -> u64 {
        u64::from(page) << self.page_shift
    }

    /// A word of a page's bitmap. Requires: the page is formatted, that is, in any state but Free.
    fn bitmap(&self, page: u32, word: u32) -> &BitmapWord {
        let offset = self.page_start(page) + u64::from(word) * 8;
        // SAFETY: a formatted page starts with its bitmap, accessed as atomics only.
        unsafe { self.arena.at(offset).cast::<BitmapWord>().as_ref() }
    }

    fn lock_fresh(&self) -> MutexGuard<'_, Fresh> {
        self.fresh.lock().ignore_poison()
    }

    fn lock_partial(&self, class: usize) -> MutexGuard<'_, Vec<u32>> {
        let partial = &self.class_states[class].partial;
        partial.lock().ignore_poison()
    }

    /// Frees a slot or a large run, after the grace period. Returns a page that became empty while
    /// it was drained, which the caller retires.
    fn free(&self, item: ItemRef) -> Option<u32> {
        if self.pins.postpone(item) {
            return None;
        }
        self.forbid_item(item);
        if self.is_large(item) {
            self.free_large(item);
            return None;
        }
        let (page_number, class, slot) = self.place_of(item);
        let page = &self.pages[page_number as usize];
        let geometry = &self.geometries[class];
        // Release: reads of the item come before the slot is taken again (see `Pool::claim_word`).
        self.bitmap(page_number, slot / 64).fetch_or(1 << (slot % 64), Ordering::Release);
        // SeqCst, with the store of Full and the load of `free` in `Pool::give_up`: either the
        // owner sees the freed slots or this thread sees that the page is full.
        let free = page.add_free(1);
        if free == geometry.slots {
            self.empty_pages.fetch_add(1, Ordering::Relaxed);
        }
        if free >= geometry.worth_taking {
            match page.state().0 {
                PageState::Full => self.make_partial(page_number, class),
                PageState::Draining if free == geometry.slots => {
                    return page
                        .change(class, PageState::Draining, PageState::Emptied)
                        .then_some(page_number);
                }
                _ => {}
            }
        }
        None
    }

    /// The class of a slot that another item may take at once after the grace period. None if the
    /// slot must be freed through its bitmap.
    fn class_to_reuse(&self, item: ItemRef) -> Option<usize> {
        if self.is_large(item) {
            return None;
        }
        let (state, class) = self.pages[(item.to_bits() >> self.page_shift) as usize].state();
        (state != PageState::Draining).then_some(class)
    }

    /// The page, class and slot of an item that is not large.
    fn place_of(&self, item: ItemRef) -> (u32, usize, u32) {
        let page_number = (item.to_bits() >> self.page_shift) as u32;
        let class = self.pages[page_number as usize].state().1;
        let offset = item.to_bits() & (self.page_bytes() as u64 - 1);
        (page_number, class, self.geometries[class].slot_of(offset))
    }

    /// Prefetches the line of the bitmap word that [`Memory::free`] will write.
    fn prefetch_bitmap(&self, retired: Retired) {
        if let Some(item) = retired.as_item().filter(|item| !self.is_large(*item)) {
            let (page_number, _, slot) = self.place_of(item);
            prefetch_for_write(std::ptr::from_ref(self.bitmap(page_number, slot / 64)).cast());
        }
    }

    /// Lists a full page with free slots as partial, if no other thread did.
    fn make_partial(&self, page: u32, class: usize) {
        if self.pages[page as usize].change(class, PageState::Full, PageState::Partial) {
            self.lock_partial(class).push(page);
        }
    }

    /// Records that an item waits for its grace period: the hand of large items skips it from now
    /// on.
    fn note_retired(&self, retired: Retired) {
        if let Some(item) = retired.as_item().filter(|item| self.is_large(*item)) {
            self.large.retire(self.run_of(item));
        }
    }

    /// Frees an item that is past its grace period, from a thread without a pool.
    fn free_later(&self, item: ItemRef) {
        let bag = Bag { epoch: 0, retired: vec![Retired::item(item)], bytes: 0 };
        self.leave_orphans([bag].into_iter());
    }

    fn leave_orphans(&self, bags: impl Iterator<Item = Bag>) {
        let mut orphans = self.lock_orphans();
        orphans.extend(bags);
        self.has_orphans.store(!orphans.is_empty(), Ordering::Relaxed);
    }

    fn has_orphans(&self) -> bool {
        self.has_orphans.load(Ordering::Relaxed)
    }

    /// Takes an orphaned bag of an epoch before `below`, which is past its grace period.
    fn adopt_orphan(&self, below: u64) -> Option<Bag> {
        if !self.has_orphans() {
            return None;
        }
        let mut orphans = self.lock_orphans();
        let place = orphans.iter().position(|bag| bag.epoch < below)?;
        let bag = orphans.swap_remove(place);
        self.has_orphans.store(!orphans.is_empty(), Ordering::Relaxed);
        Some(bag)
    }

    fn lock_orphans(&self) -> MutexGuard<'_, Vec<Bag>> {
        self.orphans.lock().ignore_poison()
    }

    /// The number of pages that could be taken without evicting.
    fn supply(&self) -> usize {
        let unused = self.budget.limit().saturating_sub(self.budget.used());
        self.lock_fresh().list.len() + unused / self.page_bytes()
    }

    /// The number of pages kept back for classes that have none.
    fn reserve_pages(&self) -> usize {
        let pages = self.budget.limit() / self.page_bytes();
        if pages < RESERVE_FROM_PAGES { 0 } else { RESERVE_PAGES }
    }

    /// Formats a page for `class`: no live headers, all slots free. Requires: the caller owns the
    /// page.
    fn format(&self, page_number: u32, class: usize, was_used: bool) {
        let page = &self.pages[page_number as usize];
        let geometry = &self.geometries[class];
        self.allow_page(page_number);
        if was_used {
            let start = self.arena.at(self.page_start(page_number));
            // SAFETY: the page is in no class and past its grace period, so only this thread
            // accesses it.
            unsafe { start.as_ptr().write_bytes(0, self.page_bytes()) };
        }
        for word in 0..geometry.words {
            self.bitmap(page_number, word).store(geometry.mask(word), Ordering::Relaxed);
        }
        self.forbid_slots(page_number, geometry);
        self.forget_expiries(page_number, geometry);
        page.set_free(geometry.slots);
        page.set(PageState::Owned, class);
    }

    fn free_large(&self, item: ItemRef) {
        self.give_back_large(self.large.give_back(self.run_of(item)));
        self.discard_resident();
    }

    /// Discards memory of free runs, for large items, that the limit leaves no room for.
    fn discard_resident(&self) {
        let limit = self.budget.limit();
        // What is kept for large items is charged, and they hold none of it yet.
        let unused = limit + self.kept_for_large.load(Ordering::Relaxed);
        let most = unused.saturating_sub(self.budget.used()).min(limit / RESIDENT_SHARE);
        // SAFETY: `large` calls it for memory of no item, and gives it to none meanwhile.
        self.large.discard_resident(most, |start, bytes| unsafe {
            self.arena.discard(start, bytes);
        });
    }

    /// Takes a page from its class. Requires: all its slots are free and no thread walks it.
    fn free_page(&self, page_number: u32) {
        let page = &self.pages[page_number as usize];
        let class = page.state().1;
        self.class_states[class].pages.fetch_sub(1, Ordering::Relaxed);
        page.set(PageState::Free, 0);
        self.forbid_page(page_number);
        match page.receiver() {
            Some(class) if class < self.classes.count() => self.keep_page(page_number, class),
            Some(_) => self.keep_for_large(page_number),
            None => self.lock_fresh().list.push(page_number),
        }
        // Read once: other workers change both meanwhile.
        let excess = self.budget.used().saturating_sub(self.budget.limit());
        self.discard_free_pages(excess);
    }

    /// Gives free pages back to the system, until `bytes` are released or none is left. Returns the
    /// bytes released.
    fn discard_free_pages(&self, bytes: usize) -> usize {
        let mut released = 0;
        while released < bytes {
            let Some(page) = self.lock_fresh().list.pop() else { break };
            self.discard_page(page);
            self.budget.release(self.page_bytes());
            released += self.page_bytes();
        }
        released
    }

    /// Gives the memory of a page back to the system; its charge stays. Requires: the page is in no
    /// class and in no list.
    fn discard_page(&self, page: u32) {
        // SAFETY: the page is in no class and in no list, so only this thread accesses it.
        unsafe { self.arena.discard(self.page_start(page), self.page_bytes()) };
        let mut fresh = self.lock_fresh();
        if !self.has_discarded_beside(&fresh, page) {
            self.arena.set_huge_page(self.page_start(page), false);
        }
        fresh.discarded.push(page);
    }

    /// Takes a page without a class and charges it to the limit. Returns its number, and whether it
    /// holds old contents.
    fn take_fresh(&self) -> Option<(u32, bool)> {
        let mut fresh = self.lock_fresh();
        let used = fresh.next;
        let (page, was_used) = fresh.take(&self.budget, self.page_bytes(), self.pages.len())?;
        let was_discarded = !was_used && page < used;
        if was_discarded && !self.has_discarded_beside(&fresh, page) {
            self.arena.set_huge_page(self.page_start(page), true);
        }
        Some((page, was_used))
    }

    /// Whether another part of a page's huge page is discarded; always, for want of parts, if a
    /// page is as large as that.
    fn has_discarded_beside(&self, fresh: &Fresh, page: u32) -> bool {
        let shift = Arena::ALIGNMENT.trailing_zeros().saturating_sub(self.page_shift);
        shift == 0 || fresh.discarded.iter().any(|other| other >> shift == page >> shift)
    }

    /// Draws `count` successive CAS ids that were never drawn, and returns the first.
    fn draw_cas_ids(&self, count: u64) -> u64 {
        self.cas.fetch_add(count, Ordering::Relaxed)
    }

    /// The log of evicted items.
    pub fn evictions(&self) -> &Evictions {
        &self.evictions
    }

    /// Memory by use.
    pub fn statistics(&self) -> MemoryStatistics {
        let free_pages = (self.lock_fresh().list.len() + self.kept_pages()) as u64
            + (self.kept_for_large.load(Ordering::Relaxed) / self.page_bytes()) as u64;
        let classes = (0..self.classes.count()).filter_map(|class| self.class_statistics(class));
        let classes: Vec<_> = classes.collect();
        MemoryStatistics {
            limit: self.budget.limit() as u64,
            used: self.budget.used() as u64,
            index: 0,
            items: self.sum(|counters| &counters.bytes),
            waiting: self.sum(|counters| &counters.waiting_bytes),
            free_pages,
            eviction: self.eviction(),
            page_bytes: self.page_bytes() as u64,
            pages_moved: self.pages_moved.load(Ordering::Relaxed),
            first_expiry_seconds: self.first_expiry_seconds(),
            reclaim_lag_seconds: self.reclaim_lag_seconds(),
            losses: self.losses(&classes),
            classes: classes.into_iter().chain(self.large_statistics()).collect(),
        }
    }

    /// Bytes lost by cause; `classes` are the statistics of all size classes with pages. The
    /// counters that it adds up are read one after the other, so that a cause may be off by what
    /// changes meanwhile.
    fn losses(&self, classes: &[ClassStatistics]) -> MemoryLosses {
        let of_slots = |slots: fn(&ClassStatistics) -> u64| -> u64 {
            classes.iter().map(|class| slots(class) * class.slot_bytes).sum()
        };
        let pages: u64 = classes.iter().map(|class| class.pages).sum();
        let (used, all) = (of_slots(|class| class.used_slots), of_slots(|class| class.slots));
        let links = self.items() * self.layout.link_bytes() as u64;
        let items = self.sum(|counters| &counters.bytes) + links;
        let grace = self.sum(|counters| &counters.waiting_bytes);
        let (large, large_waiting) = self.large.live_and_waiting_bytes();
        MemoryLosses {
            headers: self.items() * size_of::<u64>() as u64 + links,
            rounding: (used + large).saturating_sub(items),
            page_tails: (pages * self.page_bytes() as u64).saturating_sub(all),
            grace,
            free_slots: all.saturating_sub(used + grace.saturating_sub(large_waiting)),
        }
    }

    /// Statistics of large items, as if each rounded length were a class with one slot per item.
    fn large_statistics(&self) -> impl Iterator<Item = ClassStatistics> {
        let first = self.classes.count();
        let page_bytes = self.page_bytes() as u64;
        self.large.sizes().into_iter().map(move |(slot_bytes, counts)| ClassStatistics {
            class: first + (slot_bytes >> 12) as usize,
            slot_bytes,
            pages: (counts.items * slot_bytes).div_ceil(page_bytes),
            slots: counts.items,
            used_slots: counts.items,
            evictions: counts.evictions,
            mortal_evictions: counts.mortal_evictions,
            swept: 0,
        })
    }

    fn class_statistics(&self, class: usize) -> Option<ClassStatistics> {
        let state = &self.class_states[class];
        let pages = u64::from(state.pages.load(Ordering::Relaxed));
        let evictions = state.evictions.load(Ordering::Relaxed);
        if pages == 0 && evictions == 0 {
            return None;
        }
        let geometry = &self.geometries[class];
        Some(ClassStatistics {
            class,
            slot_bytes: u64::from(geometry.slot_bytes),
            pages,
            slots: pages * u64::from(geometry.slots),
            used_slots: self.items_of(class),
            evictions,
            mortal_evictions: state.mortal_evictions.load(Ordering::Relaxed),
            swept: state.swept.load(Ordering::Relaxed),
        })
    }
}
