//! What a driver measures: any concurrent map, reduced to what workloads need.
//!
//! Every [`amalgam_index::Engine`] is a target through [`EngineTarget`]; maps that are none (other
//! people's) implement [`Target`] themselves. Both run under the same driver.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amalgam_index::{Configuration, Engine, Found, Sink, Statistics, Worker, maintenance};
use amalgam_op::{HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Value, Verb};

/// Requests stand still in time: nothing expires.
const NOW: Now = Now::at(FIRST_SECOND);
const FIRST_SECOND: u32 = 1000;

/// A map under measurement, shared by threads.
pub trait Target: Send + Sync + Sized {
    /// What a thread works through.
    type Worker<'s>: TargetWorker
    where
        Self: 's;

    /// Builds an empty map; keys are hashed with [`Target::seed`].
    ///
    /// # Errors
    ///
    /// If it cannot be built so.
    fn open(configuration: &Configuration) -> anyhow::Result<Self>;

    /// The seed that keys must be hashed with, in a map built from `configuration`.
    fn seed(&self, configuration: &Configuration) -> HashSeed {
        configuration.seed.clone()
    }

    /// Registers the calling thread.
    fn worker(&self) -> Self::Worker<'_>;

    /// What is known of the inside; zeros where nothing is.
    fn statistics(&self) -> Statistics;

    /// Background work, on a thread of its own until `stop` is set.
    fn maintain(&self, stop: &AtomicBool) {
        let _ = stop;
    }

    /// Ends [`Target::maintain`] soon after `stop` was set.
    fn wake(&self) {}
}

/// One thread's access to a [`Target`].
pub trait TargetWorker {
    /// Reads all `keys`, handing hits to `sink` under the key's position.
    fn get_batch(&mut self, keys: &[Key<'_>], sink: &mut ReadSink);

    /// Writes `value`, over whatever was there. Returns whether it is there now.
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool;

    /// A hint that `key` is written soon.
    fn prefetch(&self, _key: &Key<'_>) {}

    /// The thread holds nothing from earlier calls.
    fn quiesce(&mut self) {}
}

/// Takes what reads find, as an answer being built would: a word into a register, more bytes by a
/// copy.
pub struct ReadSink {
    /// Reads that hit.
    pub hits: u64,
    words: u64,
    copy: Vec<u8>,
    /// Under debug assertions: which ids the values must carry, by position.
    expected_ids: Vec<u32>,
}

impl ReadSink {
    /// For values of at most `value_bytes`.
    pub fn new(value_bytes: usize) -> Self {
        Self { hits: 0, words: 0, copy: vec![0; value_bytes], expected_ids: Vec::new() }
    }

    /// The length of the longest value that is looked at whole.
    pub fn value_bytes(&self) -> usize {
        self.copy.len()
    }

    /// The key at `position` was found with a value of at most 8 bytes, `length` of which count.
    #[inline]
    pub fn hit_word(&mut self, position: usize, word: [u8; 8], length: usize) {
        self.hits += 1;
        self.words ^= u64::from_le_bytes(word);
        self.check(position, &word[..length]);
    }

    /// The key at `position` was found with `value`; what exceeds the longest value is cut.
    #[inline]
    pub fn hit_bytes(&mut self, position: usize, value: &[u8]) {
        self.hits += 1;
        let length = value.len().min(self.copy.len());
        self.copy[..length].copy_from_slice(&value[..length]);
        self.check(position, value);
    }

    /// The key at `position` was found with `value`.
    #[inline]
    pub fn hit_value(&mut self, position: usize, value: Value<'_>) {
        match value {
            Value::Word(word, length) => self.hit_word(position, word, length),
            Value::Bytes(bytes) => self.hit_bytes(position, bytes),
        }
    }

    /// Names the ids that the next batch asks for.
    #[inline]
    pub fn expect(&mut self, ids: impl Iterator<Item = u32>) {
        if cfg!(debug_assertions) {
            self.expected_ids.clear();
            self.expected_ids.extend(ids);
        }
    }

    /// Names one more.
    #[inline]
    pub fn expect_also(&mut self, id: u32) {
        if cfg!(debug_assertions) {
            self.expected_ids.push(id);
        }
    }

    /// Keeps the compiler from seeing that nobody looks at what was read.
    pub fn finish(&self) {
        std::hint::black_box((self.words, &self.copy));
    }

    /// The driver writes the id to the front of each value.
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
            // Engines try again in another second what could not be done: an expansion that did not
            // get all workers to stand still, say. So here time goes on.
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
        debug_assert_eq!(answered, keys.len(), "this sink never breaks");
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

/// A write shows no item.
pub struct ReadSinkOfWrites;

impl Sink for ReadSinkOfWrites {
    fn hit(&mut self, _position: usize, _found: &Found<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
