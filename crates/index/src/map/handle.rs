//! What one thread does with a [`Map`](super::Map).

use std::fmt::{Display, Formatter, Result as FormatResult};
use std::ops::ControlFlow;
use std::time::Duration;

use amalgam_op::{Delete, Get, HashSeed, Key, MAX_KEY_BYTES, Op, Outcome, Store, StoreMode, Verb};

use super::Shared;
use crate::{Engine, Found, Sink, Worker};

/// The longest time to live that the vocabulary takes as relative, in seconds: thirty days.
const LONGEST_SECONDS: u64 = 60 * 60 * 24 * 30;

/// Keys looked up at once.
const BATCH: usize = 64;

/// One thread's access to a [`Map`](crate::Map). It stays with its thread; other threads have their
/// own. Methods are linearizable unless they say otherwise.
pub struct Handle<'m, E: Engine> {
    shared: &'m Shared<E>,
    seed: &'m HashSeed,
    worker: E::Worker<'m>,
}

/// Why an item was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertError {
    /// A key has 1 to 250 bytes.
    KeyLength,
    /// The item is longer than [`MapBuilder::max_item_bytes`](crate::MapBuilder::max_item_bytes).
    TooLarge,
    /// The map is full and refuses, or nothing could be evicted in bounded time.
    OutOfMemory,
}

impl Display for InsertError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        formatter.write_str(match self {
            Self::KeyLength => "a key has 1 to 250 bytes",
            Self::TooLarge => "the item is longer than the map accepts",
            Self::OutOfMemory => "the map is full",
        })
    }
}

impl std::error::Error for InsertError {}

impl<'m, E: Engine> Handle<'m, E> {
    pub(super) fn new(shared: &'m Shared<E>) -> Self {
        Self { shared, seed: shared.index.seed(), worker: shared.index.worker() }
    }

    /// A copy of the value of `key`, if it is there and has not expired.
    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// What `read` makes of the value of `key`, without a copy. `read` should be short: memory that
    /// others give up waits for it.
    pub fn get_with<R>(&mut self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (mut read, mut answer) = (Some(read), None);
        self.get_many(&[key], |_, value| {
            if let Some(read) = read.take() {
                answer = Some(read(value));
            }
        });
        answer
    }

    /// Reads many keys, and hands each value that is there to `read` under its key's position.
    /// Returns how many there were. The memory accesses of the keys overlap, which for a table
    /// beyond the caches is several times faster than to read one after the other. Each read is
    /// linearizable by itself; together they are no transaction.
    pub fn get_many(&mut self, keys: &[&[u8]], read: impl FnMut(usize, &[u8])) -> usize {
        let mut sink = Reads { read, positions: [0; BATCH], hits: 0 };
        let now = self.shared.now();
        for (number, group) in keys.chunks(BATCH).enumerate() {
            let mut hashed = [None; BATCH];
            let mut count = 0;
            for (place, key) in group.iter().enumerate() {
                if let Some(key) = hash(key, self.seed) {
                    hashed[count] = Some(key);
                    sink.positions[count] = number * BATCH + place;
                    count += 1;
                }
            }
            if let Some(first) = hashed[0] {
                let keys = hashed.map(|key| key.unwrap_or(first));
                self.worker.get_batch(&keys[..count], &now, &mut sink);
            }
        }
        self.worker.quiesce();
        sink.hits
    }

    /// Whether `key` is there and has not expired.
    pub fn contains(&mut self, key: &[u8]) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Puts `value` under `key`, over whatever was there.
    ///
    /// # Errors
    ///
    /// If the key has no valid length, the item is too long, or there is no memory. On the last two
    /// the item that was there may be gone.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), InsertError> {
        self.store(key, value, StoreMode::Set, 0).map(|_| ())
    }

    /// As [`insert`](Self::insert), for `ttl`, in whole seconds rounded up and at most thirty days;
    /// after that the item is gone. It may go up to a second earlier, since the map's clock ticks
    /// in seconds.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub fn insert_for(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<(), InsertError> {
        self.store(key, value, StoreMode::Set, expiry(ttl)).map(|_| ())
    }

    /// Puts `value` under `key` only if nothing is there; returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub fn insert_if_absent(&mut self, key: &[u8], value: &[u8]) -> Result<bool, InsertError> {
        self.store(key, value, StoreMode::Add, 0)
    }

    /// Lets the item under `key` live for `ttl` from now, as in [`insert_for`](Self::insert_for).
    /// Returns whether there is one.
    pub fn expire_after(&mut self, key: &[u8], ttl: Duration) -> bool {
        let get = Get { touch: Some(expiry(ttl)), ..Get::default() };
        matches!(self.apply(key, Verb::Get(get)), Some(Outcome::Hit(_)))
    }

    /// Removes `key`. Returns whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.apply(key, Verb::Delete(Delete::default())) == Some(Outcome::Deleted)
    }

    fn store(
        &mut self,
        key: &[u8],
        value: &[u8],
        mode: StoreMode,
        expiry: i64,
    ) -> Result<bool, InsertError> {
        match self.apply(key, Verb::Store(Store::new(mode, value, 0, expiry))) {
            None => Err(InsertError::KeyLength),
            Some(Outcome::Stored(_)) => Ok(true),
            Some(Outcome::TooLarge) => Err(InsertError::TooLarge),
            Some(Outcome::OutOfMemory) => Err(InsertError::OutOfMemory),
            Some(_) => Ok(false),
        }
    }

    /// None if the key has no valid length.
    fn apply(&mut self, key: &[u8], verb: Verb<'_>) -> Option<Outcome> {
        let op = Op { key: hash(key, self.seed)?, verb };
        let mut sink = Reads { read: |_, _: &[u8]| (), positions: [0; BATCH], hits: 0 };
        let outcome = self.worker.apply(&op, &self.shared.now(), &mut sink);
        self.worker.quiesce();
        Some(outcome)
    }
}

fn hash<'k>(key: &'k [u8], seed: &HashSeed) -> Option<Key<'k>> {
    (1..=MAX_KEY_BYTES).contains(&key.len()).then(|| Key::new(key, seed))
}

/// As a client of the server would say it: 0 would be for ever.
fn expiry(ttl: Duration) -> i64 {
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    seconds.clamp(1, LONGEST_SECONDS) as i64
}

/// Hands values on, under the positions of the keys that were asked for.
struct Reads<F> {
    read: F,
    /// Of each key of the batch.
    positions: [usize; BATCH],
    hits: usize,
}

impl<F: FnMut(usize, &[u8])> Sink for Reads<F> {
    #[inline]
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.hits += 1;
        (self.read)(self.positions[position], found.item.value.as_bytes());
        ControlFlow::Continue(())
    }

    #[inline]
    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
