//! Peers written in Rust.

use std::hash::BuildHasher;
use std::sync::RwLock;

use amalgam_bench::target::{ReadSink, Target, TargetWorker};
use amalgam_index::{Configuration, Statistics};
use amalgam_op::{IgnorePoison, Key};

use crate::fixed::{Mix, key_of, value_of};

/// Shards of the maps that have some.
const SHARDS: usize = 256;

/// What a map of numbers must be able to do.
pub trait NumberMap: Send + Sync + Sized {
    /// An empty map with room for `items`.
    fn with_room(items: usize) -> Self;

    /// The value of a key.
    fn read(&self, key: u64) -> Option<u64>;

    /// Reads several; a map that pins does it once.
    #[inline]
    fn read_all(&self, keys: &[Key<'_>], mut answer: impl FnMut(usize, u64)) {
        for (position, key) in keys.iter().enumerate() {
            if let Some(value) = self.read(key_of(key)) {
                answer(position, value);
            }
        }
    }

    /// Writes a value, over whatever was there.
    fn write(&self, key: u64, value: u64);

    /// Items, and how many there is room for (0 where that is not known).
    fn items_and_slots(&self) -> (usize, usize);
}

/// A [`NumberMap`] as a target.
pub struct Peer<M>(M);

/// One thread's access to a [`Peer`].
pub struct PeerWorker<'s, M>(&'s M);

impl<M: NumberMap> Target for Peer<M> {
    type Worker<'s>
        = PeerWorker<'s, M>
    where
        M: 's;

    fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        anyhow::ensure!(!configuration.evicts, "peers are maps without a memory limit");
        Ok(Self(M::with_room(configuration.expected_items)))
    }

    fn worker(&self) -> PeerWorker<'_, M> {
        PeerWorker(&self.0)
    }

    fn statistics(&self) -> Statistics {
        let (items, slots) = self.0.items_and_slots();
        Statistics { items: items as u64, slots: slots as u64, ..Statistics::default() }
    }
}

impl<M: NumberMap> TargetWorker for PeerWorker<'_, M> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], sink: &mut ReadSink) {
        self.0.read_all(keys, |position, value| sink.hit_word(position, value.to_le_bytes(), 8));
    }

    #[inline]
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool {
        self.0.write(key_of(&key), value_of(value));
        true
    }
}

/// papaya: open addressing with pointers, lock-free.
pub type Papaya = papaya::HashMap<u64, u64, Mix>;

impl NumberMap for Papaya {
    fn with_room(items: usize) -> Self {
        papaya::HashMap::with_capacity_and_hasher(items, Mix)
    }

    #[inline]
    fn read(&self, key: u64) -> Option<u64> {
        self.pin().get(&key).copied()
    }

    #[inline]
    fn read_all(&self, keys: &[Key<'_>], mut answer: impl FnMut(usize, u64)) {
        let map = self.pin();
        for (position, key) in keys.iter().enumerate() {
            if let Some(value) = map.get(&key_of(key)) {
                answer(position, *value);
            }
        }
    }

    #[inline]
    fn write(&self, key: u64, value: u64) {
        self.pin().insert(key, value);
    }

    fn items_and_slots(&self) -> (usize, usize) {
        (self.len(), 0)
    }
}

/// dashmap: sharded locks.
pub type DashMap = dashmap::DashMap<u64, u64, Mix>;

impl NumberMap for DashMap {
    fn with_room(items: usize) -> Self {
        dashmap::DashMap::with_capacity_and_hasher_and_shard_amount(items, Mix, SHARDS)
    }

    #[inline]
    fn read(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|value| *value)
    }

    #[inline]
    fn write(&self, key: u64, value: u64) {
        self.insert(key, value);
    }

    fn items_and_slots(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
}

/// scc: locked buckets of cache lines.
pub type Scc = scc::HashMap<u64, u64, Mix>;

impl NumberMap for Scc {
    fn with_room(items: usize) -> Self {
        scc::HashMap::with_capacity_and_hasher(items, Mix)
    }

    #[inline]
    fn read(&self, key: u64) -> Option<u64> {
        self.read_sync(&key, |_, value| *value)
    }

    #[inline]
    fn write(&self, key: u64, value: u64) {
        self.upsert_sync(key, value);
    }

    fn items_and_slots(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
}

type Shard = RwLock<hashbrown::HashMap<u64, u64, Mix>>;

/// hashbrown, the standard library's map, behind 256 readers-writer locks.
pub struct Sharded(Vec<CacheLines<Shard>>);

/// Keeps the locks of neighbours apart.
#[repr(align(128))]
struct CacheLines<T>(T);

impl Sharded {
    #[inline]
    fn shard(&self, key: u64) -> &Shard {
        // The map itself takes the lowest and the highest bits.
        &self.0[(Mix.hash_one(key) >> 40) as usize % SHARDS].0
    }
}

impl NumberMap for Sharded {
    fn with_room(items: usize) -> Self {
        let room = items.div_ceil(SHARDS) * 21 / 20;
        let shard = || RwLock::new(hashbrown::HashMap::with_capacity_and_hasher(room, Mix));
        Self((0..SHARDS).map(|_| CacheLines(shard())).collect())
    }

    #[inline]
    fn read(&self, key: u64) -> Option<u64> {
        let shard = self.shard(key).read().ignore_poison();
        shard.get(&key).copied()
    }

    #[inline]
    fn write(&self, key: u64, value: u64) {
        let mut shard = self.shard(key).write().ignore_poison();
        shard.insert(key, value);
    }

    fn items_and_slots(&self) -> (usize, usize) {
        let shards = self.0.iter();
        let shards = shards.map(|shard| shard.0.read().ignore_poison());
        shards.fold((0, 0), |sum, shard| (sum.0 + shard.len(), sum.1 + shard.capacity()))
    }
}
