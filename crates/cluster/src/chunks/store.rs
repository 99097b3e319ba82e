//! Chunks in an index engine, keyed by id.

use std::ops::ControlFlow;

use amalgam_index::{Found, Index, Sink, Worker};
use amalgam_op::{
    Delete, HashSeed, Hit, Key, MAX_KEY_BYTES, Now, Op, Outcome, Store, StoreMode, Verb,
};

use super::items::{ItemAnswer, ItemOp, ItemRecord, to_relative, with_times};
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

    /// Carries out an operation on a named item. A store without room for items says so.
    fn item(&mut self, id: ChunkId, op: &ItemOp) -> ItemAnswer {
        let _ = (id, op);
        Outcome::OutOfMemory.into()
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

/// Tells the time at which an operation runs. It must be asked after the request arrived.
pub type Wall = Box<dyn Fn() -> Now + Send>;

/// Chunks in one engine and named items in another: any bytes may be a user's key, those of an id
/// too. Both refuse rather than evict.
pub struct ItemStore<W> {
    chunks: EngineStore<W>,
    items: W,
    seed: HashSeed,
    wall: Wall,
}

impl<W> std::fmt::Debug for ItemStore<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ItemStore")
    }
}

impl<W: Worker> ItemStore<W> {
    /// Of two engines. Keys are hashed with the seed of the second, which must be the cluster's.
    pub fn new<'i, I: Index<Worker<'i> = W> + 'i>(chunks: &'i I, items: &'i I, wall: Wall) -> Self {
        let seed = items.seed().clone();
        Self { chunks: EngineStore::from(chunks), items: items.worker(), seed, wall }
    }
}

/// Keeps what an operation shows, for the answer.
struct OneItem<'n> {
    now: &'n Now,
    hit: Option<(Hit, ItemRecord)>,
}

impl Sink for OneItem<'_> {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        let item = &found.item;
        let idle = |last: u32| self.now.seconds.saturating_sub(last);
        let record = ItemRecord {
            value: item.value.as_bytes().to_vec(),
            flags: item.flags,
            expiry: to_relative(item.expiry, self.now),
            cas: item.cas,
            fetched: item.fetched,
            stale: item.stale,
            won: item.won,
            idle_seconds: item.last_access_seconds.map(idle),
        };
        self.hit = Some((found.hit, record));
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<W: Worker> ChunkStore for ItemStore<W> {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        self.chunks.read(id, read)
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        self.chunks.write(id, value)
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        self.chunks.remove(id)
    }

    fn item(&mut self, id: ChunkId, op: &ItemOp) -> ItemAnswer {
        if op.key.is_empty() || op.key.len() > MAX_KEY_BYTES {
            return Outcome::TooLarge.into();
        }
        let key = Key::new(&op.key, &self.seed);
        if ChunkId::named(key.hash()) != id {
            // Of somebody with another seed: nobody would find the item there.
            return Outcome::NotFound.into();
        }
        let now = (self.wall)();
        let mut sink = OneItem { now: &now, hit: None };
        let outcome = match op.verb.as_verb() {
            Some(verb) => Some(self.items.apply(&Op { key, verb }, &now, &mut sink)),
            None => {
                self.items.get_batch(&[key], &now, &mut sink);
                None
            }
        };
        let (hit, item) = sink.hit.unzip();
        self.items.quiesce();
        let read = || hit.map_or(Outcome::NotFound, Outcome::Hit);
        let outcome = outcome.unwrap_or_else(read);
        ItemAnswer { outcome: with_times(outcome, |time| to_relative(time, &now)), item }
    }
}
