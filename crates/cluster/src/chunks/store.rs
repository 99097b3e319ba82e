//! Chunks in an index engine, keyed by id.

use std::ops::ControlFlow;

use amalgam_index::{Found, Index, Sink, Worker};
use amalgam_op::{Delete, HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use crate::ids::ChunkId;

/// Why a chunk was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Longer than the engine takes.
    TooLarge,
    /// No memory.
    Full,
}

/// Where chunks lie.
pub trait ChunkStore {
    /// Reads a chunk; false if there is none.
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool;

    /// Stores a chunk, new or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was there is unchanged then.
    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError>;

    /// Removes a chunk; false if there is none.
    fn remove(&mut self, id: ChunkId) -> bool;

    /// Whether there is such a chunk.
    fn has(&mut self, id: ChunkId) -> bool {
        self.read(id, &mut |_| {})
    }
}

/// One thread's access to an engine, which must refuse rather than evict when it is full: a chunk
/// that is gone is lost.
#[derive(Debug)]
pub struct EngineStore<W> {
    worker: W,
    seed: HashSeed,
}

impl<'i, I: Index<Worker<'i> = W> + 'i, W: Worker> From<&'i I> for EngineStore<W> {
    fn from(index: &'i I) -> Self {
        Self { worker: index.worker(), seed: index.seed().clone() }
    }
}

/// Chunks neither expire nor are flushed.
const ALWAYS: Now = Now::at(1);

struct OneValue<'r> {
    read: &'r mut dyn FnMut(&[u8]),
    found: bool,
}

impl Sink for OneValue<'_> {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        (self.read)(found.item.value.as_bytes());
        self.found = true;
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<W: Worker> EngineStore<W> {
    fn apply(&mut self, id: ChunkId, verb: Verb<'_>) -> Outcome {
        let bytes = id.bits().to_be_bytes();
        let key = Key::new(&bytes, &self.seed);
        let mut sink = OneValue { read: &mut |_| {}, found: false };
        let outcome = self.worker.apply(&Op { key, verb }, &ALWAYS, &mut sink);
        self.worker.quiesce();
        outcome
    }
}

impl<W: Worker> ChunkStore for EngineStore<W> {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        let bytes = id.bits().to_be_bytes();
        let key = Key::new(&bytes, &self.seed);
        let mut sink = OneValue { read, found: false };
        self.worker.get_batch(&[key], &ALWAYS, &mut sink);
        let found = sink.found;
        self.worker.quiesce();
        found
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        match self.apply(id, Verb::Store(Store::new(StoreMode::Set, value, 0, 0))) {
            Outcome::TooLarge => Err(StoreError::TooLarge),
            Outcome::Stored(_) => Ok(()),
            _ => Err(StoreError::Full),
        }
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        self.apply(id, Verb::Delete(Delete::default())) == Outcome::Deleted
    }
}
