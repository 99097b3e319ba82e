//! Chooses the item to evict: the least recently used one, or one that CLOCK finds unused.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::IgnorePoison;

use super::super::words::{Words, suffix_bytes};

/// The number that stands for no item.
const NONE: u64 = 0;

/// The memory of the items. Items have numbers from 1 on, and each number has its fixed place.
#[derive(Clone, Copy)]
pub struct Chunks<'c> {
    pub(super) words: &'c Words,
    /// The size of an item in words.
    pub(super) chunk_words: usize,
}

impl Chunks<'_> {
    #[inline]
    pub(super) fn place(&self, item: u64) -> usize {
        (item as usize - 1) * self.chunk_words
    }

    fn load(&self, item: u64, word: usize) -> u64 {
        self.words.load(self.place(item), word)
    }

    fn store(&self, item: u64, word: usize, value: u64) {
        self.words.store(self.place(item), word, value);
    }
}

/// An order of eviction.
pub trait Order: Send + Sync + 'static {
    /// The number of words in front of an item's key.
    const HEADER_WORDS: usize;

    /// The state that changes under the lock of the cache.
    type Kept: Default + Send;

    /// An empty order for items with numbers up to `items`.
    fn new(items: usize) -> Self;

    /// The size of an item in bytes.
    fn item_bytes(key_bytes: usize, value_bytes: usize) -> usize;

    /// Records a read of an item, which may have been removed or replaced since.
    fn note_read(&self, chunks: Chunks<'_>, kept: &Mutex<Self::Kept>, item: u64);

    /// Records that an item was added to the cache.
    fn add(&self, chunks: Chunks<'_>, kept: &Mutex<Self::Kept>, item: u64);

    /// Records that an item leaves the cache.
    fn remove(&self, chunks: Chunks<'_>, kept: &Mutex<Self::Kept>, item: u64);

    /// Chooses the item to evict among those with numbers up to `last`, except `keep`.
    fn choose(
        &self,
        chunks: Chunks<'_>,
        kept: &Mutex<Self::Kept>,
        last: u64,
        keep: Option<u64>,
    ) -> Option<u64>;
}

/// A doubly linked list through the items, as in memcached: each read moves its item to the front,
/// under a lock. Items have memcached's header except for the chain's link: links, times, lengths,
/// flags, CAS id.
///
/// The first two words of an item are its neighbours, the third tells whether it is in the list.
pub struct Lru;

const NEWER: usize = 0;
const OLDER: usize = 1;
const LISTED: usize = 2;

/// The ends of the list.
#[derive(Default)]
pub struct Ends {
    newest: u64,
    oldest: u64,
}

impl Ends {
    fn push(&mut self, chunks: Chunks<'_>, item: u64) {
        chunks.store(item, NEWER, NONE);
        chunks.store(item, OLDER, self.newest);
        chunks.store(item, LISTED, 1);
        match self.newest {
            NONE => self.oldest = item,
            newest => chunks.store(newest, NEWER, item),
        }
        self.newest = item;
    }

    fn take_out(&mut self, chunks: Chunks<'_>, item: u64) {
        let (newer, older) = (chunks.load(item, NEWER), chunks.load(item, OLDER));
        chunks.store(item, LISTED, 0);
        match newer {
            NONE => self.newest = older,
            newer => chunks.store(newer, OLDER, older),
        }
        match older {
            NONE => self.oldest = newer,
            older => chunks.store(older, NEWER, newer),
        }
    }
}

fn lock<T>(kept: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    kept.lock().ignore_poison()
}

impl Order for Lru {
    const HEADER_WORDS: usize = 6;
    type Kept = Ends;

    fn new(_items: usize) -> Self {
        Self
    }

    fn item_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        // A zero byte ends the key, two characters the value.
        let bytes = key_bytes + 1 + suffix_bytes(0, value_bytes) + value_bytes + 2;
        Self::HEADER_WORDS * 8 + bytes
    }

    fn note_read(&self, chunks: Chunks<'_>, kept: &Mutex<Ends>, item: u64) {
        let mut ends = lock(kept);
        if chunks.load(item, LISTED) != 0 {
            ends.take_out(chunks, item);
            ends.push(chunks, item);
        }
    }

    fn add(&self, chunks: Chunks<'_>, kept: &Mutex<Ends>, item: u64) {
        lock(kept).push(chunks, item);
    }

    fn remove(&self, chunks: Chunks<'_>, kept: &Mutex<Ends>, item: u64) {
        lock(kept).take_out(chunks, item);
    }

    fn choose(
        &self,
        chunks: Chunks<'_>,
        kept: &Mutex<Ends>,
        _last: u64,
        keep: Option<u64>,
    ) -> Option<u64> {
        let oldest = lock(kept).oldest;
        let chosen = if Some(oldest) == keep { chunks.load(oldest, NEWER) } else { oldest };
        (chosen != NONE).then_some(chosen)
    }
}

/// The CLOCK algorithm: an array with a bit for each item, through which a hand cycles (MemC3,
/// section 4). Items have the engines' header of one word.
pub struct Clock {
    bits: Box<[AtomicU64]>,
}

impl Clock {
    #[inline]
    fn bit(&self, item: u64) -> (&AtomicU64, u64) {
        (&self.bits[item as usize / 64], 1 << (item % 64))
    }

    /// Sets the bit; a plain load first, because it is set nearly always. Relaxed: a bit that is
    /// seen late, or belongs to another item by now, costs an eviction that is not the best one.
    #[inline]
    fn set(&self, item: u64) {
        let (word, bit) = self.bit(item);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the bit. Returns whether it was set.
    fn clear(&self, item: u64) -> bool {
        let (word, bit) = self.bit(item);
        word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

impl Order for Clock {
    const HEADER_WORDS: usize = 1;
    /// The position of the hand.
    type Kept = u64;

    fn new(items: usize) -> Self {
        Self { bits: (0..=items / 64).map(|_| AtomicU64::new(0)).collect() }
    }

    fn item_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        8 * (Self::HEADER_WORDS + key_bytes.div_ceil(8) + value_bytes.div_ceil(8))
    }

    #[inline]
    fn note_read(&self, _chunks: Chunks<'_>, _kept: &Mutex<u64>, item: u64) {
        self.set(item);
    }

    /// The bit of a new item is clear: one that nobody reads goes first.
    fn add(&self, _chunks: Chunks<'_>, _kept: &Mutex<u64>, _item: u64) {}

    fn remove(&self, _chunks: Chunks<'_>, _kept: &Mutex<u64>, item: u64) {
        self.clear(item);
    }

    fn choose(
        &self,
        _chunks: Chunks<'_>,
        kept: &Mutex<u64>,
        last: u64,
        keep: Option<u64>,
    ) -> Option<u64> {
        let mut hand = lock(kept);
        // Two cycles clear every bit, unless readers set them faster.
        for _ in 0..=2 * last {
            *hand = *hand % last + 1;
            if Some(*hand) != keep && !self.clear(*hand) {
                return Some(*hand);
            }
        }
        None
    }
}
