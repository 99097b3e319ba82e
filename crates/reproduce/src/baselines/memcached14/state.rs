//! The state that the lock protects: chains, LRU lists, slabs, and the growth of the table.

use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_index::mem::Table;
use amalgam_index::{ClassStatistics, Configuration, OpenError, Statistics};
use amalgam_op::{HashSeed, Now};

use super::layout::{CHAIN, ItemIndex, NEXT, PREVIOUS, Words};
use super::slabs::Slabs;

/// The shortest time between two moves of an item to the front of its LRU, in seconds.
const BUMP_SECONDS: u32 = 60;
/// The factor of its first value up to which the memory limit may be raised.
const RAISE: usize = 4;
/// The smallest table, in buckets.
const MIN_BUCKETS: usize = 1 << 4;
/// The most pages that one allocation takes from other classes.
const STEALS: usize = 4;
pub(super) struct State {
    pub(super) words: Words,
    pub(super) slabs: Slabs,
    table: Table<AtomicU64>,
    /// The table that is being replaced, and how many of its buckets have moved.
    old: Option<(Table<AtomicU64>, usize)>,
    seed: HashSeed,
    pub(super) max_item_bytes: usize,
    limit: usize,
    evicts: bool,
    grows: bool,
    bumps_always: bool,
    next_cas: u64,
    /// The page where the search for the next page to take from a class begins.
    steal_from: usize,
    sweep_from: usize,
    /// Whether an item with an expiry was ever written. Only then, and after a flush, can there be
    /// dead items to sweep.
    has_mortal_items: bool,
    /// The generations in which the last sweep ended and the present one began.
    swept_generation: u8,
    pass_generation: u8,
    statistics: Statistics,
}

impl State {
    pub(super) fn open(
        configuration: &Configuration,
        bumps_always: bool,
    ) -> Result<Self, OpenError> {
        let limit = configuration.memory_bytes;
        let page_bytes = Slabs::page_bytes_for(configuration.max_item_bytes);
        // A bucket has at most one and a half items on average.
        let fitting = configuration.expected_items.div_ceil(3) * 2;
        let buckets = configuration.tuning.buckets.unwrap_or(fitting);
        let buckets = buckets.max(MIN_BUCKETS).next_power_of_two();
        let needed = buckets * 8 + 2 * page_bytes;
        if limit < needed {
            return Err(OpenError::Configuration(format!(
                "a memory limit of {limit} bytes is too small; give at least {needed} bytes"
            )));
        }
        let pages = limit * RAISE / page_bytes;
        let words = Words(Table::unlimited(pages * page_bytes / 8)?);
        let table = Table::unlimited(buckets)?;
        if configuration.prefault {
            table.populate();
            // Prefault as much as the limit allows, by touching every base page once.
            (0..limit / 8).step_by(512).for_each(|word| words.store(word, 0, 0));
        }
        Ok(Self {
            words,
            slabs: Slabs::new(page_bytes, pages),
            table,
            old: None,
            seed: configuration.seed.clone(),
            max_item_bytes: configuration.max_item_bytes,
            limit,
            evicts: configuration.evicts,
            grows: configuration.tuning.grows,
            bumps_always,
            next_cas: 0,
            steal_from: 0,
            sweep_from: 0,
            has_mortal_items: false,
            swept_generation: 0,
            pass_generation: 0,
            statistics: Statistics::default(),
        })
    }

    pub(super) fn fresh_cas(&mut self) -> u64 {
        self.next_cas += 1;
        self.next_cas
    }

    /// Buckets lie in the order of hashes, so that a scan can go on while the table grows.
    #[inline]
    fn bucket_of(table: &Table<AtomicU64>, hash: u64) -> usize {
        (hash >> (64 - table.len().trailing_zeros())) as usize
    }

    /// The word that holds the first item of the chain of `hash`.
    #[inline]
    fn bucket(&self, hash: u64) -> &AtomicU64 {
        if let Some((old, moved)) = &self.old {
            let index = Self::bucket_of(old, hash);
            if index >= *moved {
                return &old[index];
            }
        }
        &self.table[Self::bucket_of(&self.table, hash)]
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<ItemIndex> {
        let mut index = self.bucket(hash).load(Ordering::Relaxed) as ItemIndex;
        while index != 0 {
            if self.words.has_key(index, key) {
                return Some(index);
            }
            index = self.words.load(index, CHAIN) as ItemIndex;
        }
        None
    }

    /// Puts an item at the head of its chain and of its LRU.
    pub(super) fn link(&mut self, hash: u64, index: ItemIndex) {
        let bucket = self.bucket(hash);
        let head = bucket.load(Ordering::Relaxed);
        bucket.store(index as u64, Ordering::Relaxed);
        self.words.store(index, CHAIN, head);
        self.push_newest(index);
        self.has_mortal_items |= self.words.fields(index).expiry.0 != 0;
        self.statistics.items += 1;
        self.statistics.items_total += 1;
        let bytes = self.item_bytes(index);
        self.statistics.memory.items += bytes;
        self.start_growth();
    }

    /// Takes an item out of its chain and its LRU and frees its chunk.
    pub(super) fn remove(&mut self, hash: u64, index: ItemIndex) {
        let mut next = self.bucket(hash).load(Ordering::Relaxed) as ItemIndex;
        let behind = self.words.load(index, CHAIN);
        if next == index {
            self.bucket(hash).store(behind, Ordering::Relaxed);
        } else {
            while next != 0 {
                let previous = next;
                next = self.words.load(previous, CHAIN) as ItemIndex;
                if next == index {
                    self.words.store(previous, CHAIN, behind);
                    break;
                }
            }
        }
        self.take_out_of_order(index);
        self.statistics.items -= 1;
        self.statistics.memory.items -= self.item_bytes(index);
        self.words.erase(index);
        self.slabs.give_back(index, &self.words);
    }

    fn item_bytes(&self, index: ItemIndex) -> u64 {
        let fields = self.words.fields(index);
        super::layout::item_bytes(fields.key_bytes, fields.value_bytes, fields.flags) as u64
    }

    fn push_newest(&mut self, index: ItemIndex) {
        let class = &mut self.slabs.classes[self.words.class(index)];
        self.words.store(index, NEXT, class.newest as u64);
        self.words.store(index, PREVIOUS, 0);
        match class.newest {
            0 => class.oldest = index,
            newest => self.words.store(newest, PREVIOUS, index as u64),
        }
        class.newest = index;
    }

    fn take_out_of_order(&mut self, index: ItemIndex) {
        let class = &mut self.slabs.classes[self.words.class(index)];
        let next = self.words.load(index, NEXT) as ItemIndex;
        let previous = self.words.load(index, PREVIOUS) as ItemIndex;
        match previous {
            0 => class.newest = next,
            previous => self.words.store(previous, NEXT, next as u64),
        }
        match next {
            0 => class.oldest = previous,
            next => self.words.store(next, PREVIOUS, previous as u64),
        }
    }

    /// Records an access to an item.
    #[inline]
    pub(super) fn bump(&mut self, index: ItemIndex, now: &Now) {
        let is_due = now.seconds.saturating_sub(self.words.accessed(index)) >= BUMP_SECONDS;
        if self.bumps_always || is_due {
            self.words.set_accessed(index, now.seconds);
            self.take_out_of_order(index);
            self.push_newest(index);
        }
    }

    /// Allocates a chunk for an item of `bytes`, and returns it with its class. `keep` is not
    /// evicted for it.
    pub(super) fn allocate(
        &mut self,
        bytes: usize,
        keep: Option<ItemIndex>,
    ) -> Option<(ItemIndex, usize)> {
        let class = self.slabs.class_of(bytes)?;
        if let Some(index) = keep {
            self.words.hold(index, true);
        }
        let found = self.allocate_in(class);
        if let Some(index) = keep {
            self.words.hold(index, false);
        }
        if found.is_none() {
            self.statistics.out_of_memory += 1;
        }
        found.map(|index| (index, class))
    }

    fn allocate_in(&mut self, class: usize) -> Option<ItemIndex> {
        for _ in 0..=STEALS {
            if let Some(index) = self.slabs.take(class, &self.words) {
                return Some(index);
            }
            if self.used() + self.slabs.page_bytes() <= self.limit && self.slabs.add_page(class) {
                continue;
            }
            if !self.evicts {
                return None;
            }
            let richest = self.richest();
            let pages = |class: usize| self.slabs.classes[class].pages;
            if pages(richest) > pages(class) + 1 || !self.evict_oldest(class) {
                self.empty_a_page(richest);
            }
        }
        self.slabs.take(class, &self.words)
    }

    /// The class with the most pages.
    fn richest(&self) -> usize {
        let classes = self.slabs.classes.iter().enumerate();
        classes.max_by_key(|(_, class)| class.pages).map_or(0, |(class, _)| class)
    }

    fn evict(&mut self, index: ItemIndex) {
        self.slabs.classes[self.words.class(index)].evictions += 1;
        self.statistics.evictions += 1;
        self.remove(self.hash_of(index), index);
    }

    fn hash_of(&self, index: ItemIndex) -> u64 {
        let mut key = Vec::new();
        self.words.read_key(index, &self.words.fields(index), &mut key);
        self.seed.hash(&key)
    }

    fn evict_oldest(&mut self, class: usize) -> bool {
        let mut index = self.slabs.classes[class].oldest;
        if index != 0 && self.words.is_held(index) {
            index = self.words.load(index, PREVIOUS) as ItemIndex;
        }
        if index == 0 {
            return false;
        }
        self.evict(index);
        true
    }

    /// Evicts all items of a page, which then belongs to no class (unless one of its items is
    /// held).
    fn empty_a_page(&mut self, class: usize) {
        let Some((items, next)) = self.slabs.chunks_of_a_page(class, self.steal_from) else {
            return;
        };
        self.steal_from = next;
        for index in items {
            if self.words.is_live(index) && !self.words.is_held(index) {
                self.evict(index);
            }
        }
    }

    /// Bytes of tables and of pages that have a class.
    fn used(&self) -> usize {
        let old = self.old.as_ref().map_or(0, |(old, _)| old.bytes());
        self.table.bytes() + old + self.slabs.pages_in_use() * self.slabs.page_bytes()
    }

    pub(super) fn set_limit(&mut self, bytes: usize) {
        let highest = self.slabs.page_bytes() * (self.words.0.len() * 8 / self.slabs.page_bytes());
        self.limit = bytes.min(highest);
    }

    /// Begins to replace the table if it has become too small and there is memory for a larger one.
    fn start_growth(&mut self) {
        let buckets = self.table.len();
        let is_full = self.statistics.items as usize > buckets + buckets / 2;
        if !self.grows || self.old.is_some() || !is_full {
            return;
        }
        if self.used() + 2 * self.table.bytes() > self.limit {
            // A cache gives up pages for the larger table, one per insert; otherwise the table
            // stays.
            if self.evicts {
                self.empty_a_page(self.richest());
            }
            return;
        }
        let Ok(table) = Table::unlimited(2 * buckets) else { return };
        self.old = Some((std::mem::replace(&mut self.table, table), 0));
    }

    /// Moves a bucket to the new table. Returns whether buckets are left.
    pub(super) fn grow(&mut self) -> bool {
        let Some((old, moved)) = &mut self.old else { return false };
        let mut index = old[*moved].load(Ordering::Relaxed) as ItemIndex;
        *moved += 1;
        if *moved == old.len() {
            self.old = None;
            self.statistics.expansions += 1;
        }
        while index != 0 {
            let next = self.words.load(index, CHAIN) as ItemIndex;
            let target = &self.table[Self::bucket_of(&self.table, self.hash_of(index))];
            self.words.store(index, CHAIN, target.load(Ordering::Relaxed));
            target.store(index as u64, Ordering::Relaxed);
            index = next;
        }
        self.old.is_some()
    }

    /// Removes the dead items of a page. Returns whether pages are left in this pass.
    pub(super) fn sweep(&mut self, now: &Now) -> bool {
        if self.sweep_from == 0 {
            if !self.has_mortal_items && self.swept_generation == now.generation {
                return false;
            }
            self.pass_generation = now.generation;
        }
        if self.sweep_from >= self.slabs.page_count() {
            self.sweep_from = 0;
            self.swept_generation = self.pass_generation;
            return false;
        }
        let chunks = self.slabs.page_chunks(self.sweep_from);
        self.sweep_from += 1;
        let Some((first, step, count)) = chunks else { return true };
        for index in (0..count).map(|chunk| first + chunk * step) {
            if !self.words.is_live(index) {
                continue;
            }
            let fields = self.words.fields(index);
            if !now.is_live(fields.expiry, fields.generation) {
                self.remove(self.hash_of(index), index);
                self.statistics.reclaimed += 1;
            }
        }
        true
    }

    /// Evicts a page if a lowered limit is exceeded. Returns whether it was.
    pub(super) fn shrink(&mut self) -> bool {
        let is_above = self.evicts && self.used() > self.limit;
        if is_above {
            self.empty_a_page(self.richest());
        }
        is_above
    }

    /// Counts a dead item that was found and freed.
    pub(super) fn note_reclaimed(&mut self) {
        self.statistics.reclaimed += 1;
    }

    /// The items of the bucket that holds hash `from`, and where the next one begins.
    pub(super) fn chain_at(&self, from: u64) -> (Vec<ItemIndex>, Option<u64>) {
        let table = match &self.old {
            Some((old, moved)) if Self::bucket_of(old, from) >= *moved => old,
            _ => &self.table,
        };
        let bits = table.len().trailing_zeros();
        let next = (from >> (64 - bits)) + 1;
        let mut items = Vec::new();
        let mut index = self.bucket(from).load(Ordering::Relaxed) as ItemIndex;
        while index != 0 {
            items.push(index);
            index = self.words.load(index, CHAIN) as ItemIndex;
        }
        (items, (next < 1 << bits).then(|| next << (64 - bits)))
    }

    pub(super) fn is_growing(&self) -> bool {
        self.old.is_some()
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = self.statistics.clone();
        let old = self.old.as_ref().map_or(0, |(old, _)| old.len());
        statistics.buckets = (self.table.len() + old) as u64;
        statistics.slots = self.table.len() as u64;
        statistics.is_expanding = self.old.is_some();
        statistics.memory.limit = self.limit as u64;
        statistics.memory.used = self.used() as u64;
        statistics.memory.index = statistics.buckets * 8;
        statistics.memory.page_bytes = self.slabs.page_bytes() as u64;
        statistics.memory.free_pages = self.slabs.free_pages() as u64;
        let classes = self.slabs.classes.iter().enumerate();
        statistics.memory.classes = classes
            .filter(|(_, class)| class.pages > 0 || class.evictions > 0)
            .map(|(number, class)| ClassStatistics {
                class: number,
                slot_bytes: class.chunk_words as u64 * 8,
                pages: u64::from(class.pages),
                slots: class.slots(),
                used_slots: 0,
                evictions: class.evictions,
                ..ClassStatistics::default()
            })
            .collect();
        statistics
    }
}
