//! Lock-free chained hashing, as HotRing compares itself with: a table of words, each the head of a
//! chain of items; new items go to the head by compare-and-swap, values of up to 8 bytes change in
//! place, longer ones by read-copy-update. The table keeps the size it was opened with.
//!
//! Chains are linked lists after Harris and Michael. A link word holds the next item and a mark;
//! the mark says that the item the word lies in is deleted.
//!
//! 1. A marked link never changes again. So the item behind it stays reachable until the marked one
//!    is unlinked, and nothing is inserted behind a deleted item.
//! 2. To *replace* an item, one compare-and-swap of its link marks it and puts the new item behind
//!    it: a walker finds one of the two, never both, never none.
//! 3. To *insert*, one compare-and-swap of the bucket word puts the item before the head that was
//!    seen when the walk began. Keys enter a chain at the head or by replacement only, so an
//!    unchanged head means that the key is still absent.
//! 4. Whoever marked an item walks the chain once from its head, unlinking every marked item that
//!    it meets; then the item cannot be reached, and the marker (nobody else) retires it.
//! 5. An in-place update exchanges header and word at once, and fails on a sealed header.
//!    Replacement seals first (see `mem::exchange`). Deletion does not: an update that slips in
//!    after the mark counts as having come right before it.
//!
//! Linearization points: a read, its load of the found item's unmarked link; a miss, its load of
//! the bucket word; writes, the compare-and-swaps of 2, 3, 5 or the mark.

mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_index::maintenance::Signal;
use amalgam_index::mem::{Guard, Item, ItemRef, Memory, SlotLayout, Table};
use amalgam_index::{Configuration, Engine, OpenError, Statistics, Store};
use amalgam_op::{HashSeed, Key, Now};

pub use worker::ChainingWorker;

/// Set in a link whose item is deleted. References are multiples of 8.
const MARK: u64 = 1;

/// The memory limit per bucket, in bytes, that bounds the number of buckets from below: no
/// configuration expects more memory than this per bucket.
const MEMORY_PER_BUCKET_BYTES: usize = 1024;

/// An engine of lock-free chained hashing. With `MEMCMP`, reads compare keys by the library's
/// function for any length, as memcached does (a factor of MemC3's figure 4), and not by words.
pub struct Chaining<const MEMCMP: bool = false> {
    memory: Arc<Memory>,
    table: Table<AtomicU64>,
    signal: Signal,
}

impl<const MEMCMP: bool> Store for Chaining<MEMCMP> {
    const NAME: &'static str = "chaining";
    type Worker<'i> = ChainingWorker<'i, MEMCMP>;

    fn worker(&self) -> ChainingWorker<'_, MEMCMP> {
        ChainingWorker::new(self)
    }

    fn seed(&self) -> &HashSeed {
        self.memory.seed()
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = self.memory.index_statistics();
        statistics.buckets = self.table.len() as u64;
        statistics.slots = self.table.len() as u64;
        statistics.memory.index = self.table.bytes() as u64;
        statistics
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.memory.set_limit(bytes);
    }
}

impl<const MEMCMP: bool> Engine for Chaining<MEMCMP> {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        // The table never grows, so it has enough buckets for all items that the memory may hold.
        let roomy = configuration.memory_bytes / MEMORY_PER_BUCKET_BYTES;
        let fitting = configuration.expected_items.max(roomy);
        let buckets = configuration.tuning.buckets.unwrap_or(fitting);
        // Each worker takes two places: its own, and one for what eviction calls back.
        let doubled = Configuration { workers: 2 * configuration.workers, ..configuration.clone() };
        let memory = Memory::new(&doubled, SlotLayout::Linked)?;
        let table = memory.table(buckets.max(1).next_power_of_two())?;
        if configuration.prefault {
            table.populate();
        }
        Ok(Self { memory, table, signal: Signal::default() })
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.signal
    }

    fn maintain(worker: &mut ChainingWorker<'_, MEMCMP>, now: &Now) -> bool {
        let (index, pins) = (worker.index, &worker.pins);
        let mut swap = |hash, old, new| index.swap(hash, old, new, &pins.pin());
        worker.pool.step(now, &mut swap)
    }

    fn compare_exchange_item(
        worker: &mut ChainingWorker<'_, MEMCMP>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        worker.index.swap(hash, old, new, &worker.pool.pin())
    }
}

impl<const MEMCMP: bool> Chaining<MEMCMP> {
    #[inline]
    fn place_of(&self, hash: u64) -> usize {
        (hash as usize) & (self.table.len() - 1)
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &AtomicU64 {
        &self.table[self.place_of(hash)]
    }

    /// The item that a link refers to.
    #[inline]
    fn item<'g>(&'g self, link: u64, guard: &'g Guard<'_>) -> Option<Item<'g>> {
        let reference = ItemRef::from_bits(link & !MARK)?;
        // SAFETY: links are loaded with acquire ordering, from words of this chain, under the guard
        // that the callers hold; items are retired only after they left the chain.
        Some(unsafe { self.memory.item(reference, guard) })
    }

    /// The item of `key`, even if it has expired. Changes nothing.
    #[inline]
    fn get<'g>(&'g self, key: &Key<'_>, guard: &'g Guard<'_>) -> Option<Item<'g>> {
        // Acquire, here and below: pairs with the release of the compare-and-swap that linked.
        let mut next = self.bucket(key.hash()).load(Ordering::Acquire);
        while let Some(item) = self.item(next, guard) {
            next = item.link().load(Ordering::Acquire);
            let is_same = match MEMCMP {
                true => item.key() == key.bytes(),
                false => item.has_key(key.bytes()),
            };
            if is_same && next & MARK == 0 {
                return Some(item);
            }
        }
        None
    }

    /// The first undeleted item that is wanted, and the head of the chain when the walk passed it.
    /// Unlinks the deleted items that it meets, which are others' to retire.
    fn find<'g>(
        &'g self,
        hash: u64,
        guard: &'g Guard<'_>,
        is_wanted: impl Fn(&Item<'_>) -> bool,
    ) -> (u64, Option<Item<'g>>) {
        let bucket = self.bucket(hash);
        'walk: loop {
            let mut head = bucket.load(Ordering::Acquire);
            let mut previous = bucket;
            let mut next = head;
            while let Some(item) = self.item(next, guard) {
                let link = item.link().load(Ordering::Acquire);
                if link & MARK == 0 {
                    if is_wanted(&item) {
                        return (head, Some(item));
                    }
                    previous = item.link();
                    next = link;
                    continue;
                }
                let behind = link & !MARK;
                // Fails if the preceding item was deleted too, or another thread changed the link:
                // then the walk does not know what follows. Release: a thread that loads the new
                // link may follow it.
                if exchange(previous, next, behind).is_err() {
                    continue 'walk;
                }
                if std::ptr::eq(previous, bucket) {
                    head = behind;
                }
                next = behind;
            }
            return (head, None);
        }
    }

    /// Deletes `item`, and puts `new` (filled, unpublished) in its place if there is one. Fails if
    /// the item is deleted already. After success only threads with an older guard can reach the
    /// item.
    fn replace(
        &self,
        hash: u64,
        item: &Item<'_>,
        new: Option<&Item<'_>>,
        guard: &Guard<'_>,
    ) -> bool {
        let mut link = item.link().load(Ordering::Acquire);
        loop {
            if link & MARK != 0 {
                return false;
            }
            let target = match new {
                Some(new) => {
                    // Relaxed: published by the exchange.
                    new.link().store(link, Ordering::Relaxed);
                    new.reference().to_bits()
                }
                None => link,
            };
            match exchange(item.link(), link, target | MARK) {
                Ok(()) => break,
                Err(changed) => link = changed,
            }
        }
        self.find(hash, guard, |_| false);
        true
    }

    /// As [`amalgam_index::Engine::compare_exchange_item`].
    fn swap(&self, hash: u64, old: ItemRef, new: Option<ItemRef>, guard: &Guard<'_>) -> bool {
        let (_, Some(old)) = self.find(hash, guard, |item| item.reference() == old) else {
            return false;
        };
        let new = new.and_then(|new| self.item(new.to_bits(), guard));
        if let Some(new) = &new {
            // The word may have changed since it was copied; it is carried over once it is final.
            loop {
                let (header, word) = old.header_and_word();
                if !header.has_word() {
                    break;
                }
                if header.is_sealed() || old.seal(header, word) {
                    new.word().store(word, Ordering::Relaxed);
                    break;
                }
            }
        }
        self.replace(hash, &old, new.as_ref(), guard)
    }
}

/// A compare-and-swap with acquire and release on success; returns the new value on failure.
#[inline]
fn exchange(word: &AtomicU64, old: u64, new: u64) -> Result<(), u64> {
    word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
}
