//! Chained hashing under one lock with a linked-list LRU, as in memcached 1.4: what Mercury and
//! MemC3 compare themselves with.
//!
//! Kept from 1.4: one lock around every operation; a table of pointers that expands at one and a
//! half items a bucket, a bucket at a time, from a thread of its own; items with memcached's header
//! (LRU links, chain link, times, lengths, CAS id: 56 bytes, then key, suffix and value) in slab
//! classes that grow by a quarter; a doubly linked LRU a class, moved to the front at most once a
//! minute (`--disable lazy-bump`: at every access).
//!
//! Three differences, none to the baseline's disadvantage: huge pages and the hash function are the
//! engines'; a read takes the lock once, not twice; a class in need takes a page from a class that
//! has more, so that no size starves.
//!
//! Thread safety: everything lies behind one mutex, which also orders the relaxed loads and stores
//! of the words that items are made of. The linearization point of each operation is inside its
//! critical section. No reference to an item leaves it.

mod layout;
mod slabs;
mod state;
mod worker;

use std::sync::{Mutex, MutexGuard};

use amalgam_index::maintenance::Signal;
use amalgam_index::mem::ItemRef;
use amalgam_index::{Configuration, Engine, OpenError, Statistics, Store};
use amalgam_op::{HashSeed, IgnorePoison, Now};

use state::State;
pub use worker::Memcached14Worker;

/// Buckets that a step of maintenance moves, each under the lock by itself.
const BUCKETS_PER_STEP: usize = 1024;

/// An engine of chained hashing under one lock with an LRU list for each slab class.
pub struct Memcached14 {
    state: Mutex<State>,
    seed: HashSeed,
    signal: Signal,
}

impl Store for Memcached14 {
    const NAME: &'static str = "global-lock";
    type Worker<'i> = Memcached14Worker<'i>;

    fn worker(&self) -> Memcached14Worker<'_> {
        Memcached14Worker::new(self)
    }

    fn seed(&self) -> &HashSeed {
        &self.seed
    }

    fn statistics(&self) -> Statistics {
        self.lock().statistics()
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.lock().set_limit(bytes);
    }
}

impl Engine for Memcached14 {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        Self::open_bumping(configuration, false)
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.signal
    }

    fn maintain(worker: &mut Memcached14Worker<'_>, now: &Now) -> bool {
        for _ in 0..BUCKETS_PER_STEP {
            if !worker.index.lock().grow() {
                break;
            }
        }
        let mut state = worker.index.lock();
        let shrinks = state.shrink();
        state.sweep(now) || shrinks || state.is_growing()
    }

    /// False always: no reference to an item leaves this engine, so a caller can have none.
    fn compare_exchange_item(
        _: &mut Memcached14Worker<'_>,
        _: u64,
        _: ItemRef,
        _: Option<ItemRef>,
    ) -> bool {
        false
    }
}

impl Memcached14 {
    /// An empty index that moves an item to the front of its LRU at every access, not once a
    /// minute.
    ///
    /// # Errors
    ///
    /// If [`Engine::open`] fails with the same configuration.
    pub fn without_lazy_bump(configuration: &Configuration) -> Result<Self, OpenError> {
        Self::open_bumping(configuration, true)
    }

    fn open_bumping(configuration: &Configuration, always: bool) -> Result<Self, OpenError> {
        Ok(Self {
            state: Mutex::new(State::open(configuration, always)?),
            seed: configuration.seed.clone(),
            signal: Signal::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }
}
