//! The table with items in it: what all workers share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_op::IgnorePoison;

use super::cuckoo::{Cuckoo, Items, Layer, Spot, View};
use super::factors::Factors;
use super::path::{MAX_DISPLACEMENTS, PathFinder};
use super::table::Table;
use super::word::Word;
use crate::maintenance::Signal;
use crate::mem::{Grace, Guard, Item, ItemRef, Memory, Pool, SlotLayout};
use crate::simd::Fastest;
use crate::{Configuration, OpenError, PathSearch, Statistics};

/// Version counters unless told otherwise, as in the paper.
pub(super) const STRIPES: usize = 8192;
/// The smallest table.
const MIN_BUCKETS: usize = 16;
/// A table is opened so large that the items expected fill this part of it at most, in 1/64.
const OPEN_LOAD: usize = 60;
/// Buckets that one slice of growth moves: some ten thousand nanoseconds.
pub(super) const STEP_BUCKETS: usize = 256;

/// See the head of this file.
pub(super) struct Store<const SLOTS: usize> {
    pub(super) memory: Arc<Memory>,
    pub(super) cuckoo: Cuckoo<SLOTS>,
    pub(super) probe: Fastest,
    pub(super) factors: Option<Factors>,
    pub(super) search: PathSearch,
    max_displacements: usize,
    pub(super) evicts: bool,
    grows: bool,
    /// What `--writers 1` asks for: the paper's one writer at a time.
    single_writer: Option<Mutex<()>>,
    pub(super) signal: Signal,
    /// Held by who makes the next layer.
    growing: Mutex<()>,
    /// Layers that nobody starts at any more, until nobody looks at them.
    retired: Mutex<Vec<(Grace, Box<Layer<SLOTS>>)>>,
    has_retired: AtomicBool,
    expansions: AtomicU64,
}

/// The items of a table, for as long as the guard lasts.
pub(super) struct Keyed<'g> {
    memory: &'g Memory,
    guard: &'g Guard<'g>,
}

impl Items for Keyed<'_> {
    fn hash(&self, reference: u64) -> u64 {
        let reference = ItemRef::from_bits(reference).expect("words name items");
        // SAFETY: a slot named the item under the guard that we hold.
        let item = unsafe { self.memory.item(reference, self.guard) };
        self.memory.seed().hash(item.key())
    }

    fn prefetch(&self, reference: u64) {
        if let Some(reference) = ItemRef::from_bits(reference) {
            self.memory.prefetch_item(reference);
        }
    }
}

impl<const SLOTS: usize> Store<SLOTS> {
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
        let default_search = PathSearch::BreadthFirst;
        Ok(Self {
            memory,
            cuckoo: Cuckoo::new(table, tuning.stripes.unwrap_or(STRIPES)),
            probe: Fastest::here(),
            factors: Factors::of(tuning),
            search: tuning.paths.unwrap_or(default_search),
            max_displacements: tuning.max_displacements.unwrap_or(MAX_DISPLACEMENTS),
            evicts: configuration.evicts,
            grows: tuning.grows,
            single_writer: tuning.single_writer.then(Mutex::default),
            signal: Signal::default(),
            growing: Mutex::default(),
            retired: Mutex::default(),
            has_retired: AtomicBool::new(false),
            expansions: AtomicU64::new(0),
        })
    }

    pub(super) fn paths(&self) -> PathFinder {
        PathFinder::new(self.search, self.max_displacements, 0x9e37_79b9_7f4a_7c15)
    }

    /// The table as it is now.
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
        super::tests::note_pointer(word.reference());
        // SAFETY: words are loaded from the table with acquire ordering under the guard that the
        // callers hold; items are retired only after they left the table, or were never in it.
        unsafe { self.memory.item(reference, guard) }
    }

    pub(super) fn keyed<'g>(&'g self, guard: &'g Guard<'g>) -> Keyed<'g> {
        Keyed { memory: &self.memory, guard }
    }

    /// Keeps other writers out where there is to be one at a time.
    #[inline]
    pub(super) fn lock_writer(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = self.single_writer.as_ref()?;
        Some(lock.lock().ignore_poison())
    }

    /// As [`crate::Engine::compare_exchange_item`].
    pub(super) fn swap(
        &self,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
        guard: &Guard<'_>,
    ) -> bool {
        let _writer = self.lock_writer();
        let spot = Spot::of::<SLOTS>(hash);
        let old = Word::new(spot.tag, old.to_bits());
        let new = new.map_or(Word::EMPTY, |new| Word::new(spot.tag, new.to_bits()));
        self.view(guard).exchange_exact(&spot, old, new, || {
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

    /// How many items may be linked before the table should grow.
    fn growth_limit(&self, slots: usize) -> usize {
        match (SLOTS, self.search) {
            (8, PathSearch::BreadthFirst) => slots / 64 * 62,
            (8, _) | (_, PathSearch::BreadthFirst) => slots / 64 * 60,
            _ => slots / 64 * 57,
        }
    }

    /// Whether the table should grow soon; asks the maintenance thread if so.
    pub(super) fn check_growth(&self, view: &View<'_, SLOTS>) {
        if self.grows && view.root.next().is_none() && self.is_crowded(view) {
            self.signal.raise();
        }
    }

    fn is_crowded(&self, view: &View<'_, SLOTS>) -> bool {
        self.memory.items() as usize > self.growth_limit(view.root.table.slots())
    }

    /// What to do about an item that no path in a layer of `slots` makes room for: returns whether
    /// to try again.
    pub(super) fn relieve(
        &self,
        view: &View<'_, SLOTS>,
        slots: usize,
        pool: &Pool<'_>,
        guard: &Guard<'_>,
    ) -> bool {
        // Keys that share both buckets crowd them in a table of any size: no reason to grow.
        if !self.grows || (self.memory.items() as usize) < slots / 2 {
            return false;
        }
        if view.root.next().is_none() {
            return self.start_growth(view, false);
        }
        // Full again before it has grown: get on with it.
        let keyed = self.keyed(guard);
        if !view.step(STEP_BUCKETS, &keyed) {
            view.move_all(&keyed);
        }
        self.finish_growth(view, pool);
        true
    }

    /// Begins to double the table. Returns whether it grows now, by us or by others.
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

    /// A slice of growth. Returns whether more waits.
    pub(super) fn step(&self, pool: &Pool<'_>) -> bool {
        let guard = pool.pin();
        let view = self.view(&guard);
        if view.root.next().is_none() {
            return self.grows && self.is_crowded(&view) && self.start_growth(&view, true);
        }
        let keyed = self.keyed(&guard);
        let more = view.step(STEP_BUCKETS, &keyed);
        self.finish_growth(&view, pool) || more
    }

    /// Ends a growth whose last bucket has moved. Returns whether it did.
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
        let retired = self.lock_retired();
        // SAFETY: no layer is dropped while `retired` is locked: one that leaves the chain goes
        // there first.
        let view = unsafe { self.cuckoo.view() };
        let mut layer = Some(view.root);
        while let Some(present) = layer {
            statistics.buckets += present.table.len() as u64;
            statistics.slots = present.table.slots() as u64;
            statistics.memory.index += present.table.bytes() as u64;
            layer = present.next();
        }
        statistics.is_expanding = view.root.next().is_some();
        statistics.expansions = self.expansions.load(Ordering::Relaxed);
        statistics.memory.index += self.cuckoo.stripe_bytes() as u64;
        statistics.length_histogram = histogram(view.root);
        drop(retired);
        statistics
    }
}

/// How full some buckets are.
fn histogram<const SLOTS: usize>(layer: &Layer<SLOTS>) -> Vec<u64> {
    const SAMPLE: usize = 4096;
    let mut counts = vec![0; SLOTS + 1];
    for bucket in 0..layer.table.len().min(SAMPLE) {
        let items = (0..SLOTS).filter(|slot| layer.table.word(bucket, *slot).is_item()).count();
        counts[items] += 1;
    }
    counts
}
