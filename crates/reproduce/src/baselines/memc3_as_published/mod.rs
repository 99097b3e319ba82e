//! Caches over MemC3's table as the paper prints it: buckets of four slots with one-byte tags, one
//! writer at a time, every read validated, and the memory of an item reused at once. With CLOCK
//! this is the paper's own cache (`memc3-printed`); with memcached's list for eviction it is what
//! table 3 calls `LRU+cuckoo` (`lru-cuckoo`). They are for measurements only: all items have the
//! key and value lengths of the first one, and the only operations are get and set.
//!
//! Invariants:
//! 1. Items consist of relaxed atomic words; the copy that a reader takes is valid only if the
//!    table's counters show that its item was in the table all the while (`Directory::read`).
//! 2. Items are written, linked and unlinked under one lock. An item is overwritten only after it
//!    left the table.
//! 3. Every item that was ever used is in the table or in the list of free ones.
//!
//! Linearization points: those of [`Directory`].

mod order;

use std::sync::{Mutex, MutexGuard, OnceLock};

use amalgam_index::mem::Table;
use amalgam_index::memc3::{Directory, Paths};
use amalgam_index::{Configuration, PathSearch, Statistics};
use amalgam_op::{HashSeed, IgnorePoison, Key};
use anyhow::ensure;

use super::words::Words;
use amalgam_bench::target::{ReadSink, Target, TargetWorker};
use order::{Chunks, Clock, Lru, Order};

/// The part of the table that the expected items may fill when it is opened, in 1/64, as for the
/// engine's table.
const OPEN_LOAD: usize = 60;
/// The memory limit per slot, in bytes, that bounds the number of slots from below.
const MEMORY_PER_SLOT_BYTES: usize = 1024;
/// The smallest item in words: one of header and one of key.
const SMALLEST_ITEM_WORDS: usize = 2;

/// MemC3 as printed.
pub type Memc3AsPublished = Printed<Clock>;

/// MemC3's table with memcached's lists.
pub type LruCuckoo = Printed<Lru>;

/// A cache over MemC3's table with the eviction order `O`.
pub struct Printed<O: Order> {
    directory: Directory<4>,
    words: Words,
    order: O,
    evicts: bool,
    seed: HashSeed,
    /// The layout of the first item, which all items have.
    shape: OnceLock<ItemLayout>,
    writer: Mutex<Writer>,
    kept: Mutex<O::Kept>,
}

/// The lengths that all items have in common.
#[derive(Clone, Copy)]
struct ItemLayout {
    key_bytes: usize,
    value_bytes: usize,
    chunk_words: usize,
}

/// The state of the only writer.
struct Writer {
    paths: Paths,
    free: Vec<u64>,
    /// The highest number that an item ever had.
    last: u64,
    items: u64,
    evictions: u64,
    key: Vec<u8>,
}

/// A worker of [`Printed`].
pub struct PrintedWorker<'s, O: Order> {
    cache: &'s Printed<O>,
    value: Vec<u8>,
}

impl<O: Order> Printed<O> {
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().ignore_poison()
    }

    #[inline]
    fn chunks(&self, shape: &ItemLayout) -> Chunks<'_> {
        Chunks { words: &self.words, chunk_words: shape.chunk_words }
    }

    #[inline]
    fn key_at(&self, shape: &ItemLayout, item: u64) -> usize {
        self.chunks(shape).place(item) + O::HEADER_WORDS
    }

    #[inline]
    fn value_at(&self, shape: &ItemLayout, item: u64) -> usize {
        self.key_at(shape, item) + shape.key_bytes.div_ceil(8)
    }

    #[inline]
    fn has_key(&self, shape: &ItemLayout, item: u64, key: &Key<'_>) -> bool {
        self.words.holds(self.key_at(shape, item), key.bytes())
    }

    /// Reads the value of `key` into `target`. Returns whether there was one.
    #[inline]
    fn read(&self, key: &Key<'_>, target: &mut Vec<u8>) -> bool {
        let Some(shape) = self.shape.get() else { return false };
        let found = self.directory.read(key.hash(), |item| {
            self.has_key(shape, item, key).then(|| {
                target.clear();
                self.words.read_bytes(self.value_at(shape, item), shape.value_bytes, target);
                item
            })
        });
        if let Some(item) = found {
            self.order.note_read(self.chunks(shape), &self.kept, item);
        }
        found.is_some()
    }

    fn write(&self, shape: &ItemLayout, key: &Key<'_>, value: &[u8]) -> bool {
        let chunks = self.chunks(shape);
        let mut writer = self.lock();
        let is_same = |item: u64| self.has_key(shape, item, key).then_some(item);
        let old = self.directory.read(key.hash(), is_same);
        let Some(new) = self.allocate(shape, &mut writer, old) else { return false };
        self.words.write_bytes(self.key_at(shape, new), key.bytes());
        self.words.write_bytes(self.value_at(shape, new), value);
        match old {
            Some(old) => {
                let is_done = self.directory.exchange(key.hash(), old, Some(new));
                assert!(is_done, "only the holder of the lock takes items out");
                self.order.remove(chunks, &self.kept, old);
                writer.free.push(old);
            }
            None if self.directory.insert(key.hash(), new, &mut writer.paths) => {
                writer.items += 1;
            }
            // The table is full and never grows.
            None => {
                writer.free.push(new);
                return false;
            }
        }
        self.order.add(chunks, &self.kept, new);
        true
    }

    /// Memory for an item: free memory, or that of an evicted item other than `keep`.
    fn allocate(&self, shape: &ItemLayout, writer: &mut Writer, keep: Option<u64>) -> Option<u64> {
        if let Some(item) = writer.free.pop() {
            return Some(item);
        }
        if writer.last < (self.words.0.len() / shape.chunk_words) as u64 {
            writer.last += 1;
            return Some(writer.last);
        }
        if !self.evicts {
            return None;
        }
        let chunks = self.chunks(shape);
        let victim = self.order.choose(chunks, &self.kept, writer.last, keep)?;
        writer.key.clear();
        self.words.read_bytes(self.key_at(shape, victim), shape.key_bytes, &mut writer.key);
        let is_out = self.directory.exchange(self.seed.hash(&writer.key), victim, None);
        assert!(is_out, "an item that is neither free nor kept is in the table");
        self.order.remove(chunks, &self.kept, victim);
        writer.items -= 1;
        writer.evictions += 1;
        Some(victim)
    }
}

impl<O: Order> Target for Printed<O> {
    type Worker<'s> = PrintedWorker<'s, O>;

    fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        let tuning = &configuration.tuning;
        let expected = configuration.expected_items * 64 / OPEN_LOAD;
        // The table never grows, so it has room for all items that the memory may hold.
        let fitting = expected.max(configuration.memory_bytes / MEMORY_PER_SLOT_BYTES);
        let slots = tuning.buckets.map_or(fitting, |buckets| 4 * buckets);
        let search = tuning.paths.unwrap_or(PathSearch::Walks(2));
        let directory = Directory::new(slots.max(64), search)?;
        ensure!(
            configuration.memory_bytes > directory.bytes(),
            "a table of {} slots does not fit the memory limit; expect fewer items",
            directory.slots()
        );
        let writer = Writer {
            paths: directory.paths(),
            free: Vec::new(),
            last: 0,
            items: 0,
            evictions: 0,
            key: Vec::new(),
        };
        let words = (configuration.memory_bytes - directory.bytes()) / 8;
        Ok(Self {
            directory,
            words: Words(Table::unlimited(words)?),
            order: O::new(words / SMALLEST_ITEM_WORDS),
            evicts: configuration.evicts,
            seed: configuration.seed.clone(),
            shape: OnceLock::new(),
            writer: Mutex::new(writer),
            kept: Mutex::default(),
        })
    }

    fn worker(&self) -> PrintedWorker<'_, O> {
        PrintedWorker { cache: self, value: Vec::new() }
    }

    fn statistics(&self) -> Statistics {
        let writer = self.lock();
        let mut statistics = Statistics {
            items: writer.items,
            evictions: writer.evictions,
            slots: self.directory.slots() as u64,
            buckets: self.directory.slots() as u64 / 4,
            ..Statistics::default()
        };
        statistics.memory.index = self.directory.bytes() as u64;
        statistics
    }
}

impl<O: Order> TargetWorker for PrintedWorker<'_, O> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], sink: &mut ReadSink) {
        for (position, key) in keys.iter().enumerate() {
            if !self.cache.read(key, &mut self.value) {
                continue;
            }
            match self.value.first_chunk::<8>() {
                Some(word) if self.value.len() == 8 => sink.hit_word(position, *word, 8),
                _ => sink.hit_bytes(position, &self.value),
            }
        }
    }

    /// # Panics
    ///
    /// If key or value has another length than the first that was written.
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool {
        let (key_bytes, value_bytes) = (key.bytes().len(), value.len());
        let shape = self.cache.shape.get_or_init(|| {
            let chunk_words = O::item_bytes(key_bytes, value_bytes).div_ceil(8);
            ItemLayout { key_bytes, value_bytes, chunk_words }
        });
        assert_eq!((shape.key_bytes, shape.value_bytes), (key_bytes, value_bytes), "one shape");
        self.cache.write(shape, &key, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: usize = 1000;

    fn open<O: Order>() -> Printed<O> {
        let bytes = O::item_bytes(16, 32).next_multiple_of(8);
        let configuration = |memory_bytes| Configuration {
            memory_bytes,
            expected_items: 2 * ITEMS,
            ..Configuration::default()
        };
        let table = Printed::<O>::open(&configuration(1 << 20)).expect("it opens");
        let table = table.directory.bytes();
        Printed::open(&configuration(table + ITEMS * bytes)).expect("it opens")
    }

    fn key(number: u64) -> [u8; 16] {
        let mut key = [7; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    }

    /// A value of four words that belong together.
    fn value(number: u64, round: u64) -> [u8; 32] {
        let word = (number << 32 | round).to_le_bytes();
        let mut value = [0; 32];
        value.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
        value
    }

    fn get<O: Order>(cache: &Printed<O>, number: u64, found: &mut Vec<u8>) -> bool {
        cache.read(&Key::new(&key(number), &cache.seed), found)
    }

    fn set<O: Order>(cache: &Printed<O>, number: u64, round: u64) -> bool {
        cache.worker().set(Key::new(&key(number), &cache.seed), &value(number, round))
    }

    fn keeps_what_is_read<O: Order>() {
        let cache = open::<O>();
        let mut found = Vec::new();
        for number in 0..10 * ITEMS as u64 {
            assert!(set(&cache, number, 0));
            assert!(number < 5 || get(&cache, 5, &mut found), "{number} put 5 out");
        }
        assert_eq!(cache.statistics().items, ITEMS as u64, "all the memory is used");
        assert_eq!(cache.statistics().evictions, 9 * ITEMS as u64);
        assert!(!get(&cache, 6, &mut found), "what nobody reads makes room");
        assert!(set(&cache, 5, 1) && get(&cache, 5, &mut found));
        assert_eq!(found, value(5, 1));
    }

    #[test]
    fn both_orders_keep_what_is_read() {
        keeps_what_is_read::<Lru>();
        keeps_what_is_read::<Clock>();
    }

    fn answers_no_torn_value<O: Order>() {
        let cache = open::<O>();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut found = Vec::new();
                let mut hits = 0_u64;
                while !is_over.load(order) || hits == 0 {
                    for number in 0..2 * ITEMS as u64 {
                        if get(&cache, number, &mut found) {
                            hits += 1;
                            let (words, _) = found.as_chunks::<8>();
                            assert!(words.iter().all(|word| word == &words[0]), "{found:?}");
                            assert_eq!(u64::from_le_bytes(words[0]) >> 32, number);
                        }
                    }
                }
            });
            for round in 0..50 {
                for number in 0..2 * ITEMS as u64 {
                    assert!(set(&cache, number, round));
                }
            }
            is_over.store(true, order);
        });
    }

    #[test]
    fn no_reader_gets_a_torn_value_although_memory_is_reused_at_once() {
        answers_no_torn_value::<Lru>();
        answers_no_torn_value::<Clock>();
    }
}
