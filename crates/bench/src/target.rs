//! The interface through which a driver measures any concurrent map: the few operations that
//! workloads need.
//!
//! Every [`amalgam_index::Engine`] is a target through [`EngineTarget`]; maps that are not engines
//! (other people's) implement [`Target`] themselves. Both run under the same driver.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amalgam_index::{Configuration, Engine, Found, Sink, Statistics, Worker, maintenance};
use amalgam_op::{HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Value, Verb};

/// The time that every request carries. It never advances, so nothing expires.
const NOW: Now = Now::at(FIRST_SECOND);
const FIRST_SECOND: u32 = 1000;

/// A map under measurement, shared by threads.
pub trait Target: Send + Sync + Sized {
    /// One thread's access to the map.
    type Worker<'s>: TargetWorker
    where
        Self: 's;

    /// Builds an empty map; keys are hashed with [`Target::seed`].
    ///
    /// # Errors
    ///
    /// If the map cannot be built with this configuration, for want of memory say.
    fn open(configuration: &Configuration) -> anyhow::Result<Self>;

    /// The seed that keys must be hashed with, in a map built from `configuration`.
    fn seed(&self, configuration: &Configuration) -> HashSeed {
        configuration.seed.clone()
    }

    /// Registers the calling thread.
    fn worker(&self) -> Self::Worker<'_>;

    /// Counts of items, buckets and memory; a count that the map does not keep is 0.
    fn statistics(&self) -> Statistics;

    /// Does the map's background work until `stop` is set. The driver calls it on a thread of its
    /// own.
    fn maintain(&self, stop: &AtomicBool) {
        let _ = stop;
    }

    /// Wakes [`Target::maintain`], so that it sees soon that `stop` was set.
    fn wake(&self) {}
}

/// One thread's access to a [`Target`].
pub trait TargetWorker {
    /// Reads all `keys` and hands each hit to `sink` with the key's position in `keys`.
    fn get_batch(&mut self, keys: &[Key<'_>], sink: &mut ReadSink);

    /// Stores `value` under `key`, over any older value. Returns whether the map accepted it.
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool;

    /// Hints that `key` will be written soon, so that the map can prefetch its bucket.
    fn prefetch(&self, _key: &Key<'_>) {}

    /// States that this thread holds no reference from earlier calls (a quiescent state).
    fn quiesce(&mut self) {}
}

/// Consumes the values that reads find at the cost of building a reply: a value of one word is
/// taken in a register, a longer one is copied.
pub struct ReadSink {
    /// The number of reads that found their key.
    pub hits: u64,
    words: u64,
    copy: Vec<u8>,
    /// With debug assertions, the id that the value at each position must carry; otherwise empty.
    expected_ids: Vec<u32>,
}

impl ReadSink {
    /// A sink that copies at most `value_bytes` of each value.
    pub fn new(value_bytes: usize) -> Self {
        Self { hits: 0, words: 0, copy: vec![0; value_bytes], expected_ids: Vec::new() }
    }

    /// The length in bytes of the longest value that is copied whole.
    pub fn value_bytes(&self) -> usize {
        self.copy.len()
    }

    /// Takes the value of the key at `position`: the first `length` bytes of `word`.
    #[inline]
    pub fn hit_word(&mut self, position: usize, word: [u8; 8], length: usize) {
        self.hits += 1;
        self.words ^= u64::from_le_bytes(word);
        self.check(position, &word[..length]);
    }

    /// Takes `value` of the key at `position`; bytes beyond the longest value are not copied.
    #[inline]
    pub fn hit_bytes(&mut self, position: usize, value: &[u8]) {
        self.hits += 1;
        let length = value.len().min(self.copy.len());
        self.copy[..length].copy_from_slice(&value[..length]);
        self.check(position, value);
    }

    /// Takes `value` of the key at `position`.
    #[inline]
    pub fn hit_value(&mut self, position: usize, value: Value<'_>) {
        match value {
            Value::Word(word, length) => self.hit_word(position, word, length),
            Value::Bytes(bytes) => self.hit_bytes(position, bytes),
        }
    }

    /// Names the ids that the next batch reads, in order.
    #[inline]
    pub fn expect(&mut self, ids: impl Iterator<Item = u32>) {
        if cfg!(debug_assertions) {
            self.expected_ids.clear();
            self.expected_ids.extend(ids);
        }
    }

    /// Appends one id to those that the next batch reads.
    #[inline]
    pub fn expect_also(&mut self, id: u32) {
        if cfg!(debug_assertions) {
            self.expected_ids.push(id);
        }
    }

    /// Keeps the compiler from removing the reads whose values are not used.
    pub fn finish(&self) {
        std::hint::black_box((self.words, &self.copy));
    }

    /// Compares the id at the front of a value, which the driver wrote there, with the expected
    /// one.
    #[inline]
    fn check(&self, position: usize, value: &[u8]) {
        if cfg!(debug_assertions)
            && let Some(id) = self.expected_ids.get(position)
            && let Some(found) = value.first_chunk()
        {
            assert_eq!(u32::from_le_bytes(*found), *id, "the value belongs to another key");
        }
    }
}

impl Sink for ReadSink {
    #[inline]
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.hit_value(position, found.item.value);
        ControlFlow::Continue(())
    }

    #[inline]
    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// An [`Engine`] as a [`Target`].
pub struct EngineTarget<I>(pub I);

/// A [`Worker`] as a [`TargetWorker`].
pub struct EngineWorker<W>(W);

impl<I: Engine> Target for EngineTarget<I> {
    type Worker<'s>
        = EngineWorker<I::Worker<'s>>
    where
        I: 's;

    fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        Ok(Self(I::open(configuration)?))
    }

    fn seed(&self, _configuration: &Configuration) -> HashSeed {
        self.0.seed().clone()
    }

    fn worker(&self) -> Self::Worker<'_> {
        EngineWorker(self.0.worker())
    }

    fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    fn maintain(&self, stop: &AtomicBool) {
        if !stop.load(Ordering::Relaxed) {
            // Maintenance needs a clock that advances: an engine retries work that failed (an
            // expansion for which not all workers became quiescent, say) in a later second.
            let begin = Instant::now();
            let now = || Now::at(FIRST_SECOND + begin.elapsed().as_secs() as u32);
            maintenance::run(&self.0, now, stop);
        }
    }

    fn wake(&self) {
        self.0.maintenance_signal().raise();
    }
}

impl<W: Worker> TargetWorker for EngineWorker<W> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], sink: &mut ReadSink) {
        let answered = self.0.get_batch(keys, &NOW, sink);
        debug_assert_eq!(answered, keys.len(), "ReadSink never ends a batch early");
    }

    #[inline]
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool {
        let op = Op { key, verb: Verb::Store(Store::new(StoreMode::Set, value, 0, 0)) };
        matches!(self.0.apply(&op, &NOW, &mut ReadSinkOfWrites), Outcome::Stored(_))
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        self.0.prefetch(key);
    }

    #[inline]
    fn quiesce(&mut self) {
        self.0.quiesce();
    }
}

/// The sink of writes, which shows no item.
pub struct ReadSinkOfWrites;

impl Sink for ReadSinkOfWrites {
    fn hit(&mut self, _position: usize, _found: &Found<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
