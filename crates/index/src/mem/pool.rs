//! A worker's pool: the pages that it takes slots from, and the items that it retired.
//!
//! Thread safety: a pool belongs to one thread. Pools share the page table and the bitmaps
//! (atomics), the lists of partial and free pages (locks, taken once per page), and the epochs.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use amalgam_op::{ItemView, ItemWrite, Now, Op};

use super::budget::{Need, Shortage};
use super::cas::CasIds;
use super::counters::{Counters, add, subtract};
use super::epoch::Guard;
use super::header::{Header, ItemLayout};
use super::item::NewItem;
use super::magazine::Magazine;
use super::page::PageState;
use super::retired::{Bag, Retired};
use super::{Item, ItemRef, Memory};

/// A bag is sealed when it holds this many items or [`BAG_BYTES`]: one membarrier serves them all.
const BAG_ITEMS: usize = 512;
/// See [`BAG_ITEMS`]; lower if the memory limit is small.
const BAG_BYTES: usize = 1 << 20;
/// One worker's bag holds at most 1/BAG_SHARE of the memory limit.
const BAG_SHARE: usize = 256;
/// Writes of long values wait while more than 1/WAITING_SHARE of the memory limit, divided among
/// the workers, waits for grace periods.
const WAITING_SHARE: usize = 8;
/// Distance in items at which the bitmap words of items to be freed are prefetched.
const FREES_AHEAD: usize = 8;
/// The largest number of slots in a magazine; fewer for long items, whose bags hold fewer.
const MAGAZINE_SLOTS: usize = BAG_ITEMS;
/// The credit of a class that has free slots or pages to take: it does not run out.
pub(super) const NO_TRADE: u32 = u32::MAX;
/// A worker wakes maintenance when it has evicted 1/BALANCED_SHARE of the memory limit: how fast
/// pages move between classes follows from how fast items come.
const BALANCED_SHARE: usize = 256;
/// Empty bags kept for reuse.
const SPARE_BAGS: usize = 8;

/// A thread's access to a [`Memory`].
pub struct Pool<'m> {
    pub(super) memory: &'m Arc<Memory>,
    slot: usize,
    /// The page that each class's slots come from.
    current: Box<[Current]>,
    /// For each class, slots past their grace period that are reused first, the latest freed last.
    magazines: Box<[Magazine]>,
    bag: Vec<Retired>,
    bag_bytes: usize,
    max_bag_bytes: usize,
    /// Sealed bags, oldest first.
    limbo: VecDeque<Bag>,
    spare_bags: Vec<Vec<Retired>>,
    cas_ids: CasIds,
    /// A slot that `make_room` found for an item of the class.
    pub(super) aside: Option<(usize, ItemRef)>,
    /// The bytes evicted since this pool last woke maintenance, which balances the classes.
    evicted_bytes: usize,
    /// The value of [`Memory::pressure`] when this pool last gave up its pages.
    pressure: u64,
}

/// Pins the thread of a [`Pool`] while the pool itself is borrowed, in the callbacks that it makes.
#[derive(Clone, Copy)]
pub struct Pinner<'m> {
    memory: &'m Memory,
    slot: usize,
    /// A pinner belongs to the pool's thread.
    not_send: PhantomData<*const ()>,
}

impl<'m> Pinner<'m> {
    /// See [`Pool::pin`].
    #[inline]
    pub fn pin(&self) -> Guard<'m> {
        self.memory.epochs.pin(self.slot)
    }
}

/// The start of a grace period.
#[derive(Clone, Copy, Debug)]
pub struct Grace(u64);

/// The page that a pool takes slots of one class from, and its position in the page.
#[derive(Clone, Copy)]
struct Current {
    page: Option<u32>,
    /// The next bitmap word to claim slots from.
    next_word: u32,
    /// The number of slots that may be taken before [`Pool::make_room`] is called to evict for
    /// them; [`NO_TRADE`] while the class does not trade.
    credit: u32,
    /// Slots claimed from the bitmap word before `next_word` and not taken yet, as bits.
    claimed: u64,
}

impl Current {
    const fn without_page(credit: u32) -> Self {
        Self { page: None, next_word: 0, credit, claimed: 0 }
    }
}

/// Memory for one item, owned by the pool's thread until it is filled or given back.
#[must_use = "a slot that is neither filled nor given back is lost"]
#[derive(Debug)]
pub struct Slot {
    reference: ItemRef,
    layout: ItemLayout,
}

impl Slot {
    /// The layout of the item that the slot was reserved for.
    pub fn layout(&self) -> ItemLayout {
        self.layout
    }

    #[inline]
    pub(super) fn into_reference(self) -> ItemRef {
        self.reference
    }
}

impl<'m> Pool<'m> {
    /// Registers the calling thread.
    ///
    /// # Panics
    ///
    /// If there are more pools than [`crate::Configuration::workers`].
    pub fn new(memory: &'m Arc<Memory>) -> Self {
        let slot = memory.epochs.take_slot().expect("more workers than the index was opened for");
        let max_bag_bytes = BAG_BYTES.min(memory.budget.limit() / BAG_SHARE);
        let magazine = |class: usize| {
            let slot_bytes = memory.geometries[class].slot_bytes as usize;
            Magazine::new(MAGAZINE_SLOTS.min(max_bag_bytes / slot_bytes))
        };
        Self {
            memory,
            slot,
            current: vec![Current::without_page(NO_TRADE); memory.classes.count()].into(),
            magazines: (0..memory.classes.count()).map(magazine).collect(),
            bag: Vec::with_capacity(BAG_ITEMS),
            bag_bytes: 0,
            max_bag_bytes,
            limbo: VecDeque::new(),
            spare_bags: Vec::new(),
            cas_ids: CasIds::default(),
            aside: None,
            evicted_bytes: 0,
            pressure: 0,
        }
    }

    /// The memory that the pool draws from.
    pub fn memory(&self) -> &'m Arc<Memory> {
        self.memory
    }

    /// Keeps every item that can be reached now from being reused while the guard lives. Guards
    /// nest; the pool reclaims its own retired memory only when it holds none. Requires: the pool
    /// moves to no other thread while the guard lives.
    #[inline]
    pub fn pin(&self) -> Guard<'m> {
        self.memory.epochs.pin(self.slot)
    }

    /// A handle that pins while the pool is borrowed.
    ///
    /// # Safety
    ///
    /// The handle is used only while the pool lives.
    pub unsafe fn pinner(&self) -> Pinner<'m> {
        Pinner { memory: self.memory, slot: self.slot, not_send: PhantomData }
    }

    /// The pool's number: below [`crate::Configuration::workers`], and different from that of every
    /// other live pool.
    pub fn number(&self) -> usize {
        self.slot
    }

    /// Begins a grace period for memory that the calling thread made unreachable before.
    pub fn begin_grace(&self) -> Grace {
        Grace(self.memory.epochs.seal())
    }

    /// Whether every thread that was pinned when the grace period began has unpinned since. May
    /// cost a barrier (about 10 microseconds). Requires: the caller holds no guard.
    pub fn is_over(&self, grace: Grace) -> bool {
        grace.0 < self.memory.epochs.unreachable_below(grace.0)
    }

    /// A CAS id for the item that `op` writes: it was never handed out and is above that of
    /// `current`.
    #[inline]
    pub fn fresh_cas(&mut self, op: &Op<'_>, current: Option<&ItemView<'_>>) -> u64 {
        self.cas_ids.fresh(self.memory, op, current)
    }

    /// Finds memory for an item of `layout`. Requires: the caller holds no guard and no lock of the
    /// engine.
    ///
    /// # Errors
    ///
    /// If there is none: call [`Pool::make_room`] and try again, unless [`Shortage::is_too_large`].
    #[inline]
    pub fn reserve(&mut self, layout: ItemLayout) -> Result<Slot, Shortage> {
        let bytes = layout.bytes() + self.memory.layout.link_bytes();
        if bytes > self.memory.max_item_bytes {
            return Err(Shortage(Need::TooLarge));
        }
        let reference = match self.memory.classes.of(bytes) {
            Some(class) => self.take_slot(class)?,
            None => self.take_large(bytes)?,
        };
        Ok(Slot { reference, layout })
    }

    /// As [`Pool::reserve`], but only from the magazine or the slots claimed already. Takes no lock
    /// and frees nothing, so the caller may hold a guard; a write that gets its slot here needs no
    /// second attempt.
    #[inline]
    pub fn reserve_at_hand(&mut self, layout: ItemLayout) -> Option<Slot> {
        let bytes = layout.bytes() + self.memory.layout.link_bytes();
        let class = self.memory.classes.of(bytes)?;
        let credit = self.current[class].credit;
        if bytes > self.memory.max_item_bytes || credit == 0 {
            return None;
        }
        let reference = match self.take_from_magazine(class) {
            Some(reference) => reference,
            None if self.current[class].claimed == 0 => return None,
            None => self.take_claimed(class),
        };
        self.current[class].credit = credit - u32::from(credit != NO_TRADE);
        Some(Slot { reference, layout })
    }

    /// Writes an item into a slot. If publishing the item fails, the caller may try again; if it is
    /// never published, the caller retires it.
    ///
    /// # Panics
    ///
    /// If `item_write` has another layout than the slot was reserved for.
    #[inline]
    pub fn fill(
        &mut self,
        slot: Slot,
        key: &[u8],
        item_write: &ItemWrite<'_>,
        current: &[u8],
    ) -> ItemRef {
        let header = slot.layout.header;
        assert_eq!(header.key_bytes(), key.len(), "the key the slot was reserved for");
        assert_eq!(
            header.value_bytes(),
            item_write.value_bytes(current.len()),
            "the value the slot was reserved for"
        );
        assert_eq!(header.has_cas(), item_write.cas.is_some(), "the fields it was reserved for");
        assert!(header.has_flags() || item_write.flags == 0, "the fields it was reserved for");
        assert!(header.has_expiry() || item_write.expiry.0 == 0, "the fields it was reserved for");
        add(&self.counters().items_total, 1);
        self.fill_at(slot.reference, slot.layout, key, item_write, current)
    }

    pub(super) fn fill_at(
        &mut self,
        slot: ItemRef,
        layout: ItemLayout,
        key: &[u8],
        item_write: &ItemWrite<'_>,
        current: &[u8],
    ) -> ItemRef {
        self.memory.allow_item(slot, layout.bytes());
        let memory = self.memory.arena.at(slot.to_bits());
        NewItem { header: memory, owner: PhantomData }.write(
            layout.header,
            key,
            item_write,
            current,
        );
        if !layout.header.never_expires() {
            self.memory.note_expiry(slot, item_write.expiry);
        }
        let counters = self.counters();
        add(&counters.items, 1);
        add(&counters.bytes, layout.bytes() as u64);
        if let Some(class) = self.class_of(layout.bytes()) {
            add(&counters.class_items[class], 1);
        }
        slot
    }

    /// Gives an item that this thread just published the reads of `header`.
    pub(super) fn copy_reads(&self, item: ItemRef, header: Header) {
        let _guard = self.pin();
        // SAFETY: this thread filled the item; a thread that has retired it since waits for this
        // guard, or the caller's guard kept it from being retired before.
        let item = unsafe { Item::new(self.memory.arena.at(item.to_bits()), item) };
        // Relaxed: reads are hints. Whoever changed the header meanwhile has read the item.
        let (before, ordering) = (item.header(), Ordering::Relaxed);
        let after = before.with_reads_of(header).0;
        _ = item.header_word().compare_exchange(before.0, after, ordering, ordering);
    }

    /// Gives back a slot that was not filled.
    pub fn give_back(&mut self, slot: Slot) {
        self.push_retired(Retired::item(slot.reference), slot.layout.bytes());
    }

    /// Frees a slot that this pool took and did not fill, without a grace period.
    pub(super) fn free_slot(&mut self, slot: ItemRef) {
        self.free(Retired::item(slot));
    }

    /// Retires an item that is in no index word any more: its slot is free after a grace period.
    ///
    /// # Safety
    ///
    /// The caller unlinked the item (or filled and never published it), and no other thread retires
    /// it.
    #[inline]
    pub unsafe fn retire(&mut self, item: ItemRef) {
        // SAFETY: the slot is not reused before the item is retired, which happens here.
        let item = unsafe { Item::new(self.memory.arena.at(item.to_bits()), item) };
        // Relaxed: walks of memory that still see the item live fail to unlink it.
        let header = Header(item.header_word().fetch_and(!Header::LIVE, Ordering::Relaxed));
        debug_assert!(header.is_live(), "an item is retired once");
        let bytes = header.bytes();
        let counters = self.counters();
        subtract(&counters.items, 1);
        subtract(&counters.bytes, bytes as u64);
        if let Some(class) = self.class_of(bytes) {
            subtract(&counters.class_items[class], 1);
        }
        self.push_retired(Retired::item(item.reference()), bytes);
    }

    /// As [`Pool::retire`], for an item unlinked to free memory: logs the eviction if evictions are
    /// watched, and counts the item as evicted or, if it was dead, as reclaimed.
    ///
    /// # Safety
    ///
    /// As for [`Pool::retire`]; the caller still holds the guard under which it read the item.
    pub unsafe fn evict(&mut self, item: &Item<'_>, now: &Now) {
        let header = item.header();
        if now.is_live(item.expiry_of(header), header.generation()) {
            // The guard keeps the item readable.
            self.memory.evictions.note(&item.view(), now);
            let counters = self.counters();
            add(&counters.evictions, 1);
            add(&counters.evicted_unfetched, u64::from(!header.is_fetched()));
            self.evicted_bytes += header.bytes();
            if self.evicted_bytes > self.memory.budget.limit() / BALANCED_SHARE {
                self.evicted_bytes = 0;
                self.memory.signal.raise();
            }
        } else {
            self.note_reclaimed(&item.view());
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.retire(item.reference()) };
    }

    /// Counts an item that was dead when its memory was taken back. Requires: the caller holds the
    /// guard, or the lock, under which it read the item.
    #[cold]
    pub fn note_reclaimed(&self, item: &ItemView<'_>) {
        self.memory.evictions.note_departed(item, true);
        let counters = self.counters();
        add(&counters.reclaimed, 1);
        add(&counters.expired_unfetched, u64::from(!item.fetched));
    }

    /// Counts an item that an operation removed as reclaimed, if the item was dead.
    #[inline]
    pub fn note_if_dead(&self, now: &Now, before: &ItemView<'_>) {
        if !now.is_live(before.expiry, before.generation) {
            self.note_reclaimed(before);
        }
    }

    #[inline]
    pub(super) fn push_retired(&mut self, retired: Retired, bytes: usize) {
        self.memory.note_retired(retired);
        self.bag.push(retired);
        self.bag_bytes += bytes;
        add(&self.counters().waiting_bytes, bytes as u64);
        if self.bag.len() >= BAG_ITEMS || self.bag_bytes >= self.max_bag_bytes {
            self.seal();
        }
    }

    /// Frees memory past its grace period, if a sealed bag waits, and gives up pages that other
    /// workers lack. Call it between operations. Requires: the caller holds no guard.
    #[inline]
    pub fn quiesce(&mut self) {
        if !self.limbo.is_empty() {
            self.reclaim();
        }
        if self.memory.pressure.load(Ordering::Relaxed) != self.pressure {
            self.rest();
        }
    }

    /// Gives up all pages and slots, and frees all memory past its grace period. Returns whether
    /// memory waits for a grace period. Requires: the caller holds no guard.
    pub fn rest(&mut self) -> bool {
        self.pressure = self.memory.pressure.load(Ordering::Relaxed);
        self.flush();
        // Last: what was freed may have gone to the magazines.
        self.give_up_all();
        !self.limbo.is_empty()
    }

    /// Whether what waits here for grace periods takes more than its part of 1/8 of the limit.
    #[inline]
    pub fn has_much_retired(&self) -> bool {
        let waiting = || self.limbo.iter().map(|bag| bag.bytes).sum::<usize>();
        !self.limbo.is_empty()
            && waiting() * WAITING_SHARE * self.memory.counters.len() > self.memory.budget.limit()
    }

    /// Seals the current bag and frees all memory past its grace period. Returns whether a bag was
    /// freed.
    pub fn flush(&mut self) -> bool {
        self.seal();
        self.reclaim()
    }

    fn seal(&mut self) {
        if self.bag.is_empty() {
            return;
        }
        let fresh = self.spare_bags.pop().unwrap_or_else(|| Vec::with_capacity(BAG_ITEMS));
        let retired = std::mem::replace(&mut self.bag, fresh);
        let epoch = self.memory.epochs.seal();
        self.limbo.push_back(Bag { epoch, retired, bytes: self.bag_bytes });
        self.bag_bytes = 0;
    }

    fn reclaim(&mut self) -> bool {
        let wanted = match self.limbo.front() {
            Some(bag) => bag.epoch,
            None if self.memory.has_orphans() => self.memory.epochs.last_ended(),
            None => return false,
        };
        let below = self.memory.epochs.unreachable_below(wanted);
        let mut has_freed = false;
        while self.limbo.front().is_some_and(|bag| bag.epoch < below) {
            let Some(bag) = self.limbo.pop_front() else { break };
            self.empty(bag);
            has_freed = true;
        }
        while let Some(bag) = self.memory.adopt_orphan(below) {
            self.empty(bag);
            has_freed = true;
        }
        if has_freed {
            self.magazines.iter_mut().for_each(Magazine::forget_taken);
        }
        has_freed
    }

    fn empty(&mut self, mut bag: Bag) {
        // No item of the bag can be pinned any more: its grace period is over.
        let has_pins = !self.memory.pins.is_empty();
        for (place, retired) in bag.retired.iter().enumerate() {
            if !has_pins && self.keep_in_magazine(*retired) {
                continue;
            }
            // A locked instruction writes each item's bitmap word and would wait for its cache
            // line. What follows an item that no magazine keeps is mostly kept by none either.
            if let Some(ahead) = bag.retired.get(place + FREES_AHEAD) {
                self.memory.prefetch_bitmap(*ahead);
            }
            self.free(*retired);
        }
        bag.retired.clear();
        subtract(&self.counters().waiting_bytes, bag.bytes as u64);
        if self.spare_bags.len() < SPARE_BAGS {
            self.spare_bags.push(bag.retired);
        }
    }

    /// Puts a slot past its grace period into the magazine, if it is likely to be taken soon.
    /// Returns whether it did. Requires: the item is not pinned.
    #[inline]
    fn keep_in_magazine(&mut self, retired: Retired) -> bool {
        let Some(item) = retired.as_item() else { return false };
        let Some(class) = self.memory.class_to_reuse(item) else { return false };
        let trades = self.credit(class) != NO_TRADE;
        let is_kept = self.magazines[class].keep(item, trades);
        if is_kept {
            self.memory.forbid_item(item);
        }
        is_kept
    }

    fn free(&mut self, retired: Retired) {
        match retired.as_item() {
            Some(item) => {
                if let Some(page) = self.memory.free(item) {
                    self.retire_page(page);
                }
            }
            None => self.memory.free_page(retired.as_page()),
        }
    }

    /// Retires a page in state Emptied: it is free after a grace period, as a thread may be walking
    /// it.
    pub(super) fn retire_page(&mut self, page: u32) {
        self.bag.push(Retired::page(page));
    }

    /// The class of an item of `bytes` bytes; None if it is large.
    #[inline]
    pub(super) fn class_of(&self, bytes: usize) -> Option<usize> {
        self.memory.classes.of(bytes + self.memory.layout.link_bytes())
    }

    pub(super) fn counters(&self) -> &'m Counters {
        &self.memory.counters[self.slot]
    }

    #[inline]
    pub(super) fn take_slot(&mut self, class: usize) -> Result<ItemRef, Shortage> {
        let aside = self.aside.is_some().then(|| self.take_aside(class)).flatten();
        let credit = self.credit(class);
        let slot = aside.or_else(|| if credit == 0 { None } else { self.take_free_slot(class) });
        if slot.is_some() && credit != NO_TRADE {
            self.current[class].credit = credit.saturating_sub(1);
        }
        slot.ok_or(Shortage(Need::Class(class)))
    }

    #[inline]
    pub(super) fn take_free_slot(&mut self, class: usize) -> Option<ItemRef> {
        if let Some(slot) = self.take_from_magazine(class) {
            return Some(slot);
        }
        match self.current[class].claimed != 0 || self.claim(class) {
            true => Some(self.take_claimed(class)),
            false => self.take_from_magazine(class),
        }
    }

    /// Whether a slot can be taken without a search.
    pub(super) fn has_at_hand(&self, class: usize) -> bool {
        self.current[class].claimed != 0 || !self.magazines[class].is_empty()
    }

    /// The number of slots of the class that may be taken before the next eviction.
    pub(super) fn credit(&self, class: usize) -> u32 {
        self.current[class].credit
    }

    pub(super) fn set_credit(&mut self, class: usize, credit: u32) {
        self.current[class].credit = credit;
    }

    /// The items that this pool retired and whose memory was not freed yet.
    pub(super) fn waiting_items(&self) -> impl Iterator<Item = ItemRef> {
        let bags = self.limbo.iter().map(|bag| &bag.retired).chain([&self.bag]);
        bags.flatten().filter_map(|retired| retired.as_item())
    }

    /// Begins the grace period of what was retired, if it is at least `items` items.
    pub(super) fn seal_from(&mut self, items: usize) {
        if self.bag.len() >= items {
            self.seal();
        }
    }

    /// Takes the slot that `make_room` set aside, if it is for `class`.
    fn take_aside(&mut self, class: usize) -> Option<ItemRef> {
        let (for_class, slot) = self.aside.take()?;
        if for_class != class {
            self.free_slot(slot);
            return None;
        }
        Some(slot)
    }

    /// Takes the slot that was freed last.
    #[inline]
    fn take_from_magazine(&mut self, class: usize) -> Option<ItemRef> {
        let (slot, next) = self.magazines[class].take()?;
        if let Some(next) = next {
            self.memory.prefetch_slot(class, next.to_bits());
        }
        Some(slot)
    }

    #[inline]
    fn take_claimed(&mut self, class: usize) -> ItemRef {
        let current = &mut self.current[class];
        let bit = current.claimed.trailing_zeros();
        current.claimed &= current.claimed - 1;
        let slot = (current.next_word - 1) * 64 + bit;
        let page = current.page.expect("claimed slots lie in a page");
        let offset = self.memory.page_start(page) + self.memory.geometries[class].header_of(slot);
        self.ask_for_next(class, page);
        ItemRef::from_bits(offset).expect("a bitmap lies before every slot")
    }

    /// Prefetches the lines of the slot that will most likely be taken next. It was freed long ago
    /// and is in no cache; without the prefetch, the first locked instruction after an item is
    /// written waits for all its lines.
    #[inline]
    fn ask_for_next(&self, class: usize, page: u32) {
        let (current, geometry) = (&self.current[class], &self.memory.geometries[class]);
        let (word, bits) = match current.claimed {
            0 if current.next_word == geometry.words => return,
            0 => {
                let bits = self.memory.bitmap(page, current.next_word).load(Ordering::Relaxed);
                (current.next_word, bits)
            }
            claimed => (current.next_word - 1, claimed),
        };
        if bits == 0 {
            return;
        }
        let slot = word * 64 + bits.trailing_zeros();
        self.memory.prefetch_slot(class, self.memory.page_start(page) + geometry.header_of(slot));
    }

    /// Takes a slot of `class` from pages that the class already has.
    pub(super) fn take_slot_without_page(&mut self, class: usize) -> Option<ItemRef> {
        if let Some(slot) = self.take_from_magazine(class) {
            return Some(slot);
        }
        while self.current[class].claimed == 0 && !self.claim_word(class) {
            self.give_up(class);
            if !self.take_partial(class) {
                return None;
            }
        }
        Some(self.take_claimed(class))
    }

    /// Claims free slots of the class from this pool's page or a new one. Returns whether it found
    /// any; if not, a flush may have put some into the magazine, which was empty.
    #[cold]
    fn claim(&mut self, class: usize) -> bool {
        loop {
            if self.claim_word(class) {
                return true;
            }
            self.give_up_page(class);
            if !self.take_page(class) {
                return false;
            }
        }
    }

    /// Claims the free slots of the next bitmap word with any in this pool's page. Returns whether
    /// there was one.
    fn claim_word(&mut self, class: usize) -> bool {
        let Some(page_number) = self.current[class].page else { return false };
        let page = &self.memory.pages[page_number as usize];
        let geometry = &self.memory.geometries[class];
        let current = &mut self.current[class];
        loop {
            while current.next_word < geometry.words {
                let word = self.memory.bitmap(page_number, current.next_word);
                current.next_word += 1;
                if word.load(Ordering::Relaxed) != 0 {
                    // Acquire pairs with the release in `Memory::free`.
                    current.claimed = word.swap(0, Ordering::Acquire);
                    page.subtract_free(current.claimed.count_ones());
                    return true;
                }
            }
            if page.free() < geometry.worth_taking {
                return false;
            }
            // Enough slots were freed behind the current position: start over.
            current.next_word = 0;
        }
    }

    /// Frees the slots in the magazine of `class`, and stops owning its page, if any.
    pub(super) fn give_up(&mut self, class: usize) {
        for slot in self.magazines[class].drain() {
            self.free_slot(slot);
        }
        self.give_up_page(class);
    }

    /// Stops owning the page of `class`, if any.
    fn give_up_page(&mut self, class: usize) {
        let none = Current::without_page(self.credit(class));
        let current = std::mem::replace(&mut self.current[class], none);
        let Some(page_number) = current.page else { return };
        let page = &self.memory.pages[page_number as usize];
        if current.claimed != 0 {
            let word = self.memory.bitmap(page_number, current.next_word - 1);
            word.fetch_or(current.claimed, Ordering::Release);
            page.add_free(current.claimed.count_ones());
        }
        page.set(PageState::Full, class);
        // SeqCst on both sides: see `Memory::free`.
        let (free, geometry) = (page.free(), &self.memory.geometries[class]);
        if free >= geometry.worth_taking {
            self.memory.make_partial(page_number, class);
        }
        if free == geometry.slots {
            self.memory.empty_pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives up all pages: other workers can take their free slots, and the pages can be drained.
    pub(super) fn give_up_all(&mut self) {
        for class in 0..self.current.len() {
            self.give_up(class);
        }
    }

    /// Takes a page with free slots, unless a flush puts some into the magazine.
    fn take_page(&mut self, class: usize) -> bool {
        let lacks = |pool: &Self| pool.magazines[class].is_empty();
        self.take_partial(class)
            || self.take_free(class)
            || (self.flush() && lacks(self) && self.take_partial(class))
            || (lacks(self) && self.scavenge() && self.take_free(class))
    }

    fn own(&mut self, class: usize, page: u32) {
        let credit = self.credit(class);
        self.current[class] = Current { page: Some(page), ..Current::without_page(credit) };
    }

    fn take_partial(&mut self, class: usize) -> bool {
        let mut partial = self.memory.lock_partial(class);
        while let Some(page_number) = partial.pop() {
            let page = &self.memory.pages[page_number as usize];
            if page.change(class, PageState::Partial, PageState::Owned) {
                drop(partial);
                self.own(class, page_number);
                return true;
            }
            // The entry is stale: the page was drained since, or is listed twice.
        }
        false
    }

    /// Takes a slot of a page with fewer free slots than are usually worth a scan of its bitmap.
    /// Walks all pages.
    pub(super) fn take_stray_slot(&mut self, class: usize) -> Option<ItemRef> {
        let memory = self.memory;
        let has_free = memory.items_of(class) < self.slots_of(class);
        let pages = if has_free { memory.lock_fresh().next } else { 0 };
        let found = (0..pages).find(|page| {
            let page = &memory.pages[*page as usize];
            page.free() > 0 && page.change(class, PageState::Full, PageState::Owned)
        })?;
        self.give_up(class);
        self.own(class, found);
        self.claim_word(class).then(|| self.take_claimed(class))
    }

    /// Takes a free page or one that was never used, and formats it for the class.
    fn take_free(&mut self, class: usize) -> bool {
        let memory = self.memory;
        let class_pages = &memory.class_states[class].pages;
        let is_poor = class_pages.load(Ordering::Relaxed) == 0;
        let kept = memory.take_kept_page(class).map(|page| (page, true));
        if kept.is_none() && !is_poor && memory.supply() <= memory.reserve_pages() {
            return false;
        }
        let Some((page_number, was_used)) = kept.or_else(|| memory.take_fresh()) else {
            return false;
        };
        memory.discard_resident();
        class_pages.fetch_add(1, Ordering::Relaxed);
        memory.format(page_number, class, was_used);
        self.own(class, page_number);
        true
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        if let Some((_, slot)) = self.aside.take() {
            self.free_slot(slot);
        }
        self.give_up_all();
        self.flush();
        self.seal();
        self.memory.leave_orphans(self.limbo.drain(..));
        self.memory.epochs.return_slot(self.slot);
    }
}
