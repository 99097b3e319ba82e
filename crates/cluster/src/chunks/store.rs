//! Where a node stores chunks and items: an index engine, keyed by id or key.

use std::ops::ControlFlow;

use amalgam_index::{Cursor, Found, Sink, Worker};
use amalgam_op::{
    Delete, HashSeed, Hit, Key, MAX_KEY_BYTES, Now, Op, Outcome, Store, StoreMode, Verb,
};

use super::items::{
    ItemAnswer, ItemOp, ItemRecord, ItemTime, MovingItem, ReplicaItem, to_relative, with_cas_ids,
    with_times, without_unasked_cas,
};
use crate::codec::Wire;
use crate::ids::ChunkId;

/// The reason for which a chunk was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The value is longer than the engine accepts.
    TooLarge,
    /// There is no memory left.
    Full,
}

/// A store of chunks and, optionally, named items.
pub trait ChunkStore {
    /// Passes a chunk's value to `read`; false if there is no such chunk.
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool;

    /// Reads chunks together; passes each existing one to `read` with its position in `ids`.
    fn read_all(&mut self, ids: &[ChunkId], read: &mut dyn FnMut(usize, &[u8])) {
        for (place, id) in ids.iter().enumerate() {
            self.read(*id, &mut |value| read(place, value));
        }
    }

    /// Stores a chunk, new or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the former value is unchanged then.
    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError>;

    /// Removes a chunk; false if there is no such chunk.
    fn remove(&mut self, id: ChunkId) -> bool;

    /// Whether there is such a chunk.
    fn has(&mut self, id: ChunkId) -> bool {
        self.read(id, &mut |_| {})
    }

    /// Executes an operation on a named item. A store without items answers out of memory.
    fn item(&mut self, id: ChunkId, op: &ItemOp) -> ItemAnswer {
        let _ = (id, op);
        Outcome::OutOfMemory.into()
    }

    /// The named id of a key; None in a store without items.
    fn item_id(&self, key: &[u8]) -> Option<ChunkId> {
        let _ = key;
        None
    }

    /// Passes the named items of about `buckets` buckets to `see`: id, key, and whether the item is
    /// dead. Returns the next position, None at the end. An item that exists during the whole scan
    /// is seen at least once.
    fn scan_items(
        &mut self,
        from: Cursor,
        buckets: usize,
        see: &mut dyn FnMut(ChunkId, &[u8], bool),
    ) -> Option<Cursor> {
        let _ = (from, buckets, see);
        None
    }

    /// An item for a move, or the fact that there is none.
    fn moving_item(&mut self, key: &[u8]) -> MovingItem {
        MovingItem { key: key.to_vec(), generation: 0, item: None }
    }

    /// Stores an item of a move in place of the present one. An item that was flushed since is
    /// removed instead.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the item is not here then.
    fn store_moved_item(&mut self, carried: &MovingItem) -> Result<(), StoreError> {
        let _ = carried;
        Err(StoreError::Full)
    }

    /// Removes an item that another node owns.
    fn remove_item_of(&mut self, key: &[u8]) {
        let _ = key;
    }

    /// The time at which operations on items run.
    fn item_time(&self) -> ItemTime {
        ItemTime::FIRST
    }

    /// An encoded [`ReplicaItem`] of a key; None if there is no item.
    fn replica_item(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let _ = key;
        None
    }

    /// Stores an item as a backup kept it, in place of the present one. A dead item is removed
    /// instead.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the item is not here then.
    fn restore_item(&mut self, kept: &ReplicaItem) -> Result<(), StoreError> {
        let _ = kept;
        Err(StoreError::Full)
    }

    /// From here on all memory may be used, also what is kept for what other nodes hand over; or no
    /// longer.
    fn use_reserve(&mut self, does: bool) {
        let _ = does;
    }

    /// The keys of items that the store has evicted since the last call, as far as it knows.
    fn take_evicted(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

impl<S: ChunkStore + ?Sized> ChunkStore for Box<S> {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        (**self).read(id, read)
    }

    fn read_all(&mut self, ids: &[ChunkId], read: &mut dyn FnMut(usize, &[u8])) {
        (**self).read_all(ids, read);
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        (**self).write(id, value)
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        (**self).remove(id)
    }

    fn has(&mut self, id: ChunkId) -> bool {
        (**self).has(id)
    }

    fn item(&mut self, id: ChunkId, op: &ItemOp) -> ItemAnswer {
        (**self).item(id, op)
    }

    fn item_id(&self, key: &[u8]) -> Option<ChunkId> {
        (**self).item_id(key)
    }

    fn scan_items(
        &mut self,
        from: Cursor,
        buckets: usize,
        see: &mut dyn FnMut(ChunkId, &[u8], bool),
    ) -> Option<Cursor> {
        (**self).scan_items(from, buckets, see)
    }

    fn moving_item(&mut self, key: &[u8]) -> MovingItem {
        (**self).moving_item(key)
    }

    fn store_moved_item(&mut self, carried: &MovingItem) -> Result<(), StoreError> {
        (**self).store_moved_item(carried)
    }

    fn remove_item_of(&mut self, key: &[u8]) {
        (**self).remove_item_of(key);
    }

    fn item_time(&self) -> ItemTime {
        (**self).item_time()
    }

    fn replica_item(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        (**self).replica_item(key)
    }

    fn restore_item(&mut self, kept: &ReplicaItem) -> Result<(), StoreError> {
        (**self).restore_item(kept)
    }

    fn use_reserve(&mut self, does: bool) {
        (**self).use_reserve(does);
    }

    fn take_evicted(&mut self) -> Vec<Vec<u8>> {
        (**self).take_evicted()
    }
}

/// One thread's access to an engine. The engine must refuse rather than evict when it is full: an
/// evicted chunk would be lost.
#[derive(Debug)]
pub struct EngineStore<W> {
    worker: W,
    seed: HashSeed,
}

impl<'i, I: amalgam_index::Store<Worker<'i> = W> + 'i, W: Worker> From<&'i I> for EngineStore<W> {
    fn from(index: &'i I) -> Self {
        Self { worker: index.worker(), seed: index.seed().clone() }
    }
}

/// Chunks neither expire nor are flushed.
const ALWAYS: Now = Now::at(1);

/// Chunks whose memory is fetched together.
const READ_TOGETHER: usize = 64;

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

struct Values<'r> {
    read: &'r mut dyn FnMut(usize, &[u8]),
    /// Position of the batch's first key.
    first: usize,
}

impl Sink for Values<'_> {
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        (self.read)(self.first + position, found.item.value.as_bytes());
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

    fn read_all(&mut self, ids: &[ChunkId], read: &mut dyn FnMut(usize, &[u8])) {
        let mut sink = Values { read, first: 0 };
        for ids in ids.chunks(READ_TOGETHER) {
            let bytes: Vec<[u8; 8]> = ids.iter().map(|id| id.bits().to_be_bytes()).collect();
            let keys: Vec<Key<'_>> = bytes.iter().map(|key| Key::new(key, &self.seed)).collect();
            self.worker.get_batch(&keys, &ALWAYS, &mut sink);
            sink.first += keys.len();
        }
        self.worker.quiesce();
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

/// Returns the time at which an operation runs. Call it after the request arrived.
pub type ItemClock = Box<dyn Fn() -> ItemTime + Send>;

/// The process around the engines of an [`ItemStore`].
pub trait StoreHost {
    /// As [`ChunkStore::use_reserve`].
    fn use_reserve(&self, does: bool) {
        let _ = does;
    }

    /// As [`ChunkStore::take_evicted`].
    fn take_evicted(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

impl StoreHost for () {}

/// Chunks in one engine and named items in another, since any bytes may be a user's key, including
/// those of an id. The first may not evict, the second only if its host knows what. Every item has
/// a CAS id, so a full engine answers a request for it.
pub struct ItemStore<W, H = ()> {
    chunks: EngineStore<W>,
    items: W,
    seed: HashSeed,
    clock: ItemClock,
    host: H,
}

impl<W, H> std::fmt::Debug for ItemStore<W, H> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ItemStore")
    }
}

impl<W: Worker> ItemStore<W> {
    /// Creates a store on two engines. Keys are hashed with the seed of the second, which must be
    /// the cluster's.
    pub fn new<'i, I: amalgam_index::Store<Worker<'i> = W> + 'i>(
        chunks: &'i I,
        items: &'i I,
        clock: ItemClock,
    ) -> Self {
        let seed = items.seed().clone();
        let chunks = EngineStore::from(chunks);
        Self { chunks, items: items.worker(), seed, clock, host: () }
    }

    /// The store in a process that knows more of the engines.
    pub fn with_host<H: StoreHost>(self, host: H) -> ItemStore<W, H> {
        let Self { chunks, items, seed, clock, .. } = self;
        ItemStore { chunks, items, seed, clock, host }
    }
}

/// Generations that a node may be ahead of another; they count modulo 64.
const GENERATIONS_AHEAD: u8 = 32;

/// Whether all items here were flushed since generation `then`.
fn was_dropped_since(then: u8, now: &Now) -> bool {
    let ahead = now.generation.wrapping_sub(then) % 64;
    ahead != 0 && ahead < GENERATIONS_AHEAD
}

impl<W: Worker, H> ItemStore<W, H> {
    fn change_item(&mut self, key: &[u8], verb: Verb<'_>, now: &Now) -> Outcome {
        let op = Op { key: Key::new(key, &self.seed), verb };
        let outcome = self.items.apply(&op, now, &mut OneItem { now, hit: None });
        self.items.quiesce();
        outcome
    }

    fn read_item(&mut self, key: &[u8], now: &Now) -> Option<ItemRecord> {
        let mut sink = OneItem { now, hit: None };
        self.items.get_batch(&[Key::new(key, &self.seed)], now, &mut sink);
        let item = sink.hit.map(|(_, item)| item);
        self.items.quiesce();
        item
    }

    fn put_item(
        &mut self,
        key: &[u8],
        store: Store<'_>,
        is_stale: bool,
        now: &Now,
    ) -> Result<(), StoreError> {
        let new_cas = store.new_cas;
        // Items of older releases may have none.
        let store = Store { wants_cas: true, ..store };
        match self.change_item(key, Verb::Store(store), now) {
            Outcome::Stored(_) => {}
            Outcome::TooLarge => return Err(StoreError::TooLarge),
            _ => return Err(StoreError::Full),
        }
        if is_stale {
            let delete = Delete { marks_stale: true, new_cas, ..Delete::default() };
            self.change_item(key, Verb::Delete(delete), now);
        }
        Ok(())
    }
}

/// The expiry of an item with this relative time left, in the clients' format.
fn unix_expiry(relative: u32, now: &Now) -> i64 {
    let at = |left: u32| now.epoch_unix_seconds + i64::from(now.seconds) + i64::from(left);
    relative.checked_sub(1).map_or(0, at)
}

/// Keeps the item that an operation shows, for the answer.
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

impl<W: Worker, H: StoreHost> ChunkStore for ItemStore<W, H> {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        self.chunks.read(id, read)
    }

    fn read_all(&mut self, ids: &[ChunkId], read: &mut dyn FnMut(usize, &[u8])) {
        self.chunks.read_all(ids, read);
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
            // The client used another hash seed; nobody would find the item under that id.
            return Outcome::NotFound.into();
        }
        let now = (self.clock)().now;
        let mut sink = OneItem { now: &now, hit: None };
        let outcome = match op.verb.as_verb() {
            Some(asked) => {
                let op = Op { key, verb: with_cas_ids(asked) };
                Some(without_unasked_cas(&asked, self.items.apply(&op, &now, &mut sink)))
            }
            None => {
                self.items.get_batch(&[key], &now, &mut sink);
                None
            }
        };
        let (hit, item) = sink.hit.unzip();
        self.items.quiesce();
        let outcome = outcome.unwrap_or_else(|| hit.map_or(Outcome::NotFound, Outcome::Hit));
        ItemAnswer { outcome: with_times(outcome, |time| to_relative(time, &now)), item }
    }

    fn item_id(&self, key: &[u8]) -> Option<ChunkId> {
        Some(ChunkId::named(self.seed.hash(key)))
    }

    fn scan_items(
        &mut self,
        from: Cursor,
        buckets: usize,
        see: &mut dyn FnMut(ChunkId, &[u8], bool),
    ) -> Option<Cursor> {
        let (seed, now) = (&self.seed, (self.clock)().now);
        let next = self.items.scan(from, buckets, &mut |item| {
            let is_dead = !now.is_live(item.expiry, item.generation);
            see(ChunkId::named(seed.hash(item.key)), item.key, is_dead);
            ControlFlow::Continue(())
        });
        self.items.quiesce();
        next
    }

    fn moving_item(&mut self, key: &[u8]) -> MovingItem {
        let now = (self.clock)().now;
        let item = self.read_item(key, &now);
        MovingItem { key: key.to_vec(), generation: now.generation, item }
    }

    fn store_moved_item(&mut self, carried: &MovingItem) -> Result<(), StoreError> {
        let MovingItem { key, generation, item } = carried;
        let now = (self.clock)().now;
        let Some(item) = item.as_ref().filter(|_| !was_dropped_since(*generation, &now)) else {
            self.remove_item_of(key);
            return Ok(());
        };
        let expiry = unix_expiry(item.expiry.0, &now);
        let mut store = Store::new(StoreMode::Set, &item.value, item.flags, expiry);
        store.new_cas = item.cas;
        self.put_item(key, store, item.stale, &now)
    }

    fn remove_item_of(&mut self, key: &[u8]) {
        let now = (self.clock)().now;
        self.change_item(key, Verb::Delete(Delete::default()), &now);
    }

    fn item_time(&self) -> ItemTime {
        (self.clock)()
    }

    fn replica_item(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let time = (self.clock)();
        let ItemRecord { value, flags, expiry, cas, stale, .. } = self.read_item(key, &time.now)?;
        let ends_unix_seconds = unix_expiry(expiry.0, &time.now);
        let (key, flushes) = (key.to_vec(), time.flushes);
        let mut bytes = Vec::with_capacity(value.len() + key.len() + 64);
        ReplicaItem { ends_unix_seconds, flushes, key, value, flags, cas, stale }
            .encode(&mut bytes);
        Some(bytes)
    }

    fn restore_item(&mut self, kept: &ReplicaItem) -> Result<(), StoreError> {
        let time = (self.clock)();
        if kept.is_dead(&time) {
            self.remove_item_of(&kept.key);
            return Ok(());
        }
        let ReplicaItem { ends_unix_seconds, key, value, flags, cas, stale, .. } = kept;
        let mut store = Store::new(StoreMode::Set, value, *flags, *ends_unix_seconds);
        store.new_cas = *cas;
        self.put_item(key, store, *stale, &time.now)
    }

    fn use_reserve(&mut self, does: bool) {
        self.host.use_reserve(does);
    }

    fn take_evicted(&mut self) -> Vec<Vec<u8>> {
        self.host.take_evicted()
    }
}
