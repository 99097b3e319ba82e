//! The cuckoo table together with the memory of the items that its words name: what all workers
//! share. Thread safe; every method that follows a word needs a [`Guard`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_op::IgnorePoison;

use super::cuckoo::{BucketPair, Cuckoo, ItemHashes, Layer, STRIPES, View};
use super::path::{MAX_DISPLACEMENTS, PathFinder};
use super::table::Table;
use super::word::Word;
use crate::mem::{Grace, Guard, Item, ItemRef, Memory, Pool, SlotLayout};
use crate::simd::Fastest;
use crate::{Configuration, OpenError, PathSearch, Statistics};

/// Buckets of the smallest table.
const MIN_BUCKETS: usize = 16;
/// A table is opened so large that the predictor items fill at most this many 64ths of it.
const OPEN_LOAD: usize = 60;
/// Buckets that one slice of growth moves: about ten microseconds of work.
const STEP_BUCKETS: usize = 256;

/// The table of an engine's items: a cuckoo table and the memory of its items.
pub(super) struct ItemTable<const SLOTS: usize> {
    pub(super) memory: Arc<Memory>,
    pub(super) cuckoo: Cuckoo<SLOTS>,
    pub(super) probe: Fastest,
    search: PathSearch,
    max_displacements: usize,
    pub(super) evicts: bool,
    grows: bool,
    /// Locked by every write if [`crate::Tuning::single_writer`] asks for the paper's one writer
    /// at a time; else None.
    single_writer: Option<Mutex<()>>,
    /// Held by the thread that adds the next layer.
    growing: Mutex<()>,
    /// Layers that were taken out of the chain. Each is dropped after its grace period.
    retired: Mutex<Vec<(Grace, Box<Layer<SLOTS>>)>>,
    /// Whether `retired` is not empty: a hint that saves its lock.
    has_retired: AtomicBool,
    /// Growths that have ended.
    expansions: AtomicU64,
}

/// The keys of the items that a table names, readable while the guard lasts.
pub(super) struct GuardedItems<'g> {
    memory: &'g Memory,
    guard: &'g Guard<'g>,
}

impl ItemHashes for GuardedItems<'_> {
    fn hash(&self, reference: u64) -> u64 {
        let reference = ItemRef::from_bits(reference).expect("words name items");
        // SAFETY: a slot named the item while we held this guard.
        let item = unsafe { self.memory.item(reference, self.guard) };
        self.memory.seed().hash(item.key())
    }

    fn prefetch(&self, reference: u64) {
        if let Some(reference) = ItemRef::from_bits(reference) {
            self.memory.prefetch_item(reference);
        }
    }
}

impl<const SLOTS: usize> ItemTable<SLOTS> {
    pub(super) fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        let tuning = &configuration.tuning;
        let memory = Memory::new(configuration, SlotLayout::Plain)?;
        let slots = configuration.expected_items * 64 / OPEN_LOAD;
        let buckets = tuning.buckets.unwrap_or(slots.div_ceil(SLOTS));
        let buckets = buckets.max(MIN_BUCKETS).next_power_of_two();
        let table = Table::new(buckets, &memory).map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => OpenError::Configuration(format!(
                "a table of {buckets} buckets does not fit the memory limit; expect fewer items"
            )),
            _ => OpenError::Memory(error),
        })?;
        if configuration.prefault {
            table.populate();
        }
        Ok(Self {
            memory,
            cuckoo: Cuckoo::new(table, tuning.stripes.unwrap_or(STRIPES)),
            probe: Fastest::here(),
            search: tuning.paths.unwrap_or(PathSearch::BreadthFirst),
            max_displacements: tuning.max_displacements.unwrap_or(MAX_DISPLACEMENTS),
            evicts: configuration.evicts,
            grows: tuning.grows,
            single_writer: tuning.single_writer.then(Mutex::default),
            growing: Mutex::default(),
            retired: Mutex::default(),
            has_retired: AtomicBool::new(false),
            expansions: AtomicU64::new(0),
        })
    }

    /// A worker's search for paths.
    pub(super) fn path_finder(&self) -> PathFinder {
        PathFinder::new(self.search, self.max_displacements, 0x9e37_79b9_7f4a_7c15)
    }

    /// The table as it is now. Its layers live as long as the guard.
    #[inline]
    pub(super) fn view<'g>(&'g self, _guard: &'g Guard<'_>) -> View<'g, SLOTS> {
        // SAFETY: pinned; `retire_layer` waits for a grace period before it drops a layer.
        unsafe { self.cuckoo.view() }
    }

    /// The item that a word of the table names.
    #[inline]
    pub(super) fn item<'g>(&'g self, word: Word, guard: &'g Guard<'_>) -> Item<'g> {
        let reference = ItemRef::from_bits(word.reference()).expect("the word names an item");
        #[cfg(all(test, not(loom)))]
        pointer_count::note(word.reference());
        // SAFETY: callers loaded the word from the table with acquire ordering under this guard, or
        // own the item; items are retired only after they left the table, or were never in it.
        unsafe { self.memory.item(reference, guard) }
    }

    pub(super) fn guarded<'g>(&'g self, guard: &'g Guard<'g>) -> GuardedItems<'g> {
        GuardedItems { memory: &self.memory, guard }
    }

    /// Locks out other writers if the configuration asks for one at a time.
    #[inline]
    pub(super) fn lock_writer(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = self.single_writer.as_ref()?;
        Some(lock.lock().ignore_poison())
    }

    /// Implements [`crate::Engine::compare_exchange_item`].
    pub(super) fn swap(
        &self,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
        guard: &Guard<'_>,
    ) -> bool {
        let _writer = self.lock_writer();
        let pair = BucketPair::of::<SLOTS>(hash);
        let old = Word::new(pair.tag, old.to_bits());
        let new = new.map_or(Word::EMPTY, |new| Word::new(pair.tag, new.to_bits()));
        self.view(guard).exchange_anywhere(&pair, old, new, || {
            if new.is_item() {
                let (old, new) = (self.item(old, guard), self.item(new, guard));
                if old.header().has_word() {
                    // The word may have changed since it was copied. It changes under the lock
                    // that we hold now, so this is its last value.
                    let word = old.word().load(Ordering::Relaxed);
                    new.word().store(word, Ordering::Relaxed);
                }
            }
            true
        })
    }

    /// Number of linked items beyond which a table of `slots` slots should grow.
    fn growth_limit(&self, slots: usize) -> usize {
        match (SLOTS, self.search) {
            (8, PathSearch::BreadthFirst) => slots / 64 * 62,
            (8, _) | (_, PathSearch::BreadthFirst) => slots / 64 * 60,
            _ => slots / 64 * 57,
        }
    }

    /// Wakes the maintenance thread if the table should grow soon.
    pub(super) fn check_growth(&self, view: &View<'_, SLOTS>) {
        if self.grows && view.root.next().is_none() && self.is_crowded(view) {
            self.memory.signal.raise();
        }
    }

    fn is_crowded(&self, view: &View<'_, SLOTS>) -> bool {
        self.memory.items() as usize > self.growth_limit(view.root.table.slots())
    }

    /// Called if an insert found no path in a layer of `slots` slots: grows the table, or speeds up
    /// its growth. Returns whether the insert should try again.
    pub(super) fn grow_for_insert(
        &self,
        view: &View<'_, SLOTS>,
        slots: usize,
        pool: &Pool<'_>,
        guard: &Guard<'_>,
    ) -> bool {
        // In a table that is not half full, keys share both buckets: they would in a larger one
        // too.
        if !self.grows || (self.memory.items() as usize) < slots / 2 {
            return false;
        }
        if view.root.next().is_none() {
            return self.start_growth(view, false);
        }
        // Full again before it has grown.
        let guarded = self.guarded(guard);
        if !view.step(STEP_BUCKETS, &guarded) {
            view.move_all(&guarded);
        }
        self.finish_growth(view, pool);
        true
    }

    /// Begins to double the table. Returns whether it grows now, whichever thread began it; false
    /// if there is no memory.
    fn start_growth(&self, view: &View<'_, SLOTS>, populate: bool) -> bool {
        let _growing = self.growing.lock().ignore_poison();
        if view.root.next().is_some() {
            return true;
        }
        let Ok(table) = Table::new(2 * view.root.table.len(), &self.memory) else { return false };
        if populate {
            table.populate();
        }
        view.grow(Box::new(Layer::new(table))).is_ok()
    }

    /// Does a slice of growth. Returns whether more waits.
    pub(super) fn grow_slice(&self, pool: &Pool<'_>) -> bool {
        let guard = pool.pin();
        let view = self.view(&guard);
        if view.root.next().is_none() {
            return self.grows && self.is_crowded(&view) && self.start_growth(&view, true);
        }
        let more = view.step(STEP_BUCKETS, &self.guarded(&guard));
        self.finish_growth(&view, pool) || more
    }

    /// Ends a growth whose last bucket has moved. Returns whether this call ended one.
    pub(super) fn finish_growth(&self, view: &View<'_, SLOTS>, pool: &Pool<'_>) -> bool {
        let Some(layer) = view.finish_growth() else { return false };
        self.expansions.fetch_add(1, Ordering::Relaxed);
        self.lock_retired().push((pool.begin_grace(), layer));
        self.has_retired.store(true, Ordering::Relaxed);
        true
    }

    /// Drops layers whose grace period has passed. The caller holds no guard.
    #[inline]
    pub(super) fn drop_layers(&self, pool: &Pool<'_>) {
        if self.has_retired.load(Ordering::Relaxed) {
            self.drop_retired(pool);
        }
    }

    #[cold]
    fn drop_retired(&self, pool: &Pool<'_>) {
        let mut retired = self.lock_retired();
        retired.retain(|(grace, _)| !pool.is_over(*grace));
        self.has_retired.store(!retired.is_empty(), Ordering::Relaxed);
    }

    fn lock_retired(&self) -> MutexGuard<'_, Vec<(Grace, Box<Layer<SLOTS>>)>> {
        self.retired.lock().ignore_poison()
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = self.memory.index_statistics();
        self.with_layers(|root| {
            let mut layer = Some(root);
            while let Some(present) = layer {
                statistics.buckets += present.table.len() as u64;
                statistics.slots = present.table.slots() as u64;
                statistics.memory.index += present.table.bytes() as u64;
                layer = present.next();
            }
            statistics.is_expanding = root.next().is_some();
        });
        statistics.expansions = self.expansions.load(Ordering::Relaxed);
        statistics.memory.index += self.cuckoo.stripe_bytes() as u64;
        statistics
    }

    pub(super) fn sample_buckets(&self, statistics: &mut Statistics) {
        self.with_layers(|root| statistics.length_histogram = histogram(root));
    }

    /// Looks at the chain of layers, of which none is dropped meanwhile.
    fn with_layers(&self, look: impl FnOnce(&Layer<SLOTS>)) {
        let retired = self.lock_retired();
        // SAFETY: no layer is dropped while `retired` is locked: one that leaves the chain goes
        // there first.
        look(unsafe { self.cuckoo.view() }.root);
        drop(retired);
    }
}

/// Entry `n` is the number of buckets with `n` items, among the first buckets of a layer.
fn histogram<const SLOTS: usize>(layer: &Layer<SLOTS>) -> Vec<u64> {
    const SAMPLE: usize = 4096;
    let mut counts = vec![0; SLOTS + 1];
    for bucket in 0..layer.table.len().min(SAMPLE) {
        let items = (0..SLOTS).filter(|slot| layer.table.word(bucket, *slot).is_item()).count();
        counts[items] += 1;
    }
    counts
}

/// Counts the pointers from the table to items that this thread follows.
#[cfg(all(test, not(loom)))]
pub(super) mod pointer_count {
    use std::cell::Cell;

    thread_local! {
        static POINTERS: Cell<u64> = const { Cell::new(0) };
        static LAST_POINTER: Cell<u64> = const { Cell::new(0) };
    }

    /// A pointer is followed. Another look at the same item counts nothing: it is in the cache.
    pub(in super::super) fn note(reference: u64) {
        if LAST_POINTER.replace(reference) != reference {
            POINTERS.set(POINTERS.get() + 1);
        }
    }

    /// Pointers that this thread has followed.
    pub(in super::super) fn get() -> u64 {
        POINTERS.get()
    }
}
