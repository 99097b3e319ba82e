//! One thread's access to a [`Map`](super::Map).

use std::fmt::{Display, Formatter, Result as FormatResult};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use amalgam_op::{
    Delete, Get, HashSeed, ItemView, Key, MAX_KEY_BYTES, Op, Outcome, Store, StoreMode, Verb,
};

use super::owner::{OwnedWorker, Owner, Permit, Shared};
use crate::mercury::Mercury;
use crate::{Engine, Found, Sink, Worker};

/// The longest time to live in seconds that is written as a duration, thirty days: engines read a
/// larger number as a date, as memcached does.
const LONGEST_DURATION_SECONDS: u64 = 60 * 60 * 24 * 30;

/// The number of keys in a batch of the engine.
const BATCH: usize = 64;

/// One thread's access to a [`Map`](crate::Map). A handle may move to another thread (it is
/// `Send`), but threads do not share it. Methods are linearizable unless they say otherwise.
///
/// A handle keeps memory at hand for its next writes. Drop it, or call [`rest`](Self::rest), before
/// a long pause.
///
/// ```
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// let mut handle = map.handle();
/// handle.insert(b"key", b"value")?;
/// std::thread::scope(|scope| {
///     scope.spawn(move || assert!(handle.contains(b"key")));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Handle<'m, E: Engine> {
    // Dropped before the permit, which stands for it.
    pub(super) worker: OwnedWorker<E>,
    seed: HashSeed,
    permit: Permit<E>,
    /// The lifetime binds borrowed handles to their map; an [`OwnedHandle`] needs none.
    map: PhantomData<&'m ()>,
}

/// A [`Handle`] that keeps its map open and borrows nothing: for tasks, thread pools, and
/// structures that outlive a scope. The map's background thread ends with the map or, if that is
/// later, with its last owned handle. From [`Map::owned_handle`](crate::Map::owned_handle).
///
/// ```
/// use amalgam_index::{Map, MapBuilder, OwnedHandle};
///
/// let map: Map = MapBuilder::new().open()?;
/// let mut handle: OwnedHandle = map.owned_handle();
/// let thread = std::thread::spawn(move || handle.insert(b"key", b"value"));
/// assert_eq!(thread.join().expect("it ends"), Ok(()));
/// assert!(map.handle().contains(b"key"));
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
pub type OwnedHandle<E = Mercury> = Handle<'static, E>;

/// The reason why an item was not inserted.
///
/// ```
/// use amalgam_index::InsertError;
///
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// assert_eq!(map.handle().insert(b"", b"value"), Err(InsertError::KeyLength));
/// assert_eq!(map.handle().insert(b"key", &[0; 2 << 20]), Err(InsertError::TooLarge));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertError {
    /// The key does not have 1 to 250 bytes.
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

impl From<InsertError> for std::io::Error {
    fn from(error: InsertError) -> Self {
        Self::other(error)
    }
}

impl<'m, E: Engine> Handle<'m, E> {
    /// None if as many handles exist as may at once.
    pub(super) fn new(owner: &Arc<Owner<E>>) -> Option<Self> {
        let permit = Permit::take(owner)?;
        let worker = OwnedWorker::new(Arc::clone(&owner.shared));
        let seed = worker.shared.index.seed().clone();
        Some(Self { worker, seed, permit, map: PhantomData })
    }

    /// Whether this is a handle of the map of `owner`.
    pub(super) fn belongs_to(&self, owner: &Arc<Owner<E>>) -> bool {
        Arc::ptr_eq(&self.permit.0, owner)
    }

    pub(super) fn shared(&self) -> &Arc<Shared<E>> {
        &self.worker.shared
    }

    /// Gives up the memory that the handle keeps at hand for its next writes, so that others can
    /// take it. Returns whether more can be given up later, when other threads have finished what
    /// they read. Worth a call before a long pause; takes some microseconds.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"value")?;
    /// while handle.rest() {
    ///     std::thread::yield_now();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rest(&mut self) -> bool {
        self.worker.rest()
    }

    /// A copy of the value of `key`; None if the key is absent or its item has expired.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"value")?;
    /// assert_eq!(handle.get(b"key"), Some(b"value".to_vec()));
    /// assert_eq!(handle.get(b"other"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `read` with the value of `key`, without a copy, and returns its result; None on a
    /// miss. `read` should be short, because memory that other threads free is not reused
    /// meanwhile.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"value")?;
    /// assert_eq!(handle.get_with(b"key", |value| value.len()), Some(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_with<R>(&mut self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (mut read, mut answer) = (Some(read), None);
        self.get_many(&[key], |_, value| {
            if let Some(read) = read.take() {
                answer = Some(read(value));
            }
        });
        answer
    }

    /// Reads many keys, and calls `read` with the position in `keys` and the value of each that is
    /// found. Returns the number found. The memory accesses of the keys overlap, which is several
    /// times faster than single reads for a table that exceeds the caches. Each read is
    /// linearizable by itself; together they are not a transaction.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"one", b"1")?;
    /// handle.insert(b"two", b"2")?;
    /// let mut values = [const { Vec::new() }; 3];
    /// let found = handle.get_many(&[b"one", b"three", b"two"], |position, value| {
    ///     values[position] = value.to_vec();
    /// });
    /// assert_eq!((found, values), (2, [b"1".to_vec(), Vec::new(), b"2".to_vec()]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_many(&mut self, keys: &[&[u8]], read: impl FnMut(usize, &[u8])) -> usize {
        let mut sink = Reads { read, positions: [0; BATCH], hits: 0 };
        let now = self.shared().now();
        for (number, group) in keys.chunks(BATCH).enumerate() {
            let mut hashed = [None; BATCH];
            let mut count = 0;
            for (place, key) in group.iter().enumerate() {
                if let Some(key) = hash(key, &self.seed) {
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
        self.report();
        sink.hits
    }

    /// Tells the listener of items that left by themselves.
    #[inline]
    fn report(&self) {
        self.shared().listener.report(&self.shared().index);
    }

    /// Whether there is an item of `key` that has not expired.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// assert!(!handle.contains(b"key"));
    /// handle.insert(b"key", b"value")?;
    /// assert!(handle.contains(b"key"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contains(&mut self, key: &[u8]) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Stores `value` under `key` in place of any older value.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"old")?;
    /// handle.insert(b"key", b"new")?;
    /// assert_eq!(handle.get(b"key"), Some(b"new".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the length of the key is invalid, the item is too large, or there is no memory. In the
    /// last two cases the older value may be gone.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), InsertError> {
        self.store(key, value, StoreMode::Set, 0).map(|_| ())
    }

    /// Stores `value` under `key` like [`insert`](Self::insert), and lets it expire after `ttl`,
    /// which is rounded up to whole seconds. The item may expire up to a second earlier, because
    /// the map's clock ticks in seconds.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert_for(b"session", b"42", Duration::from_secs(3_600))?;
    /// assert!(handle.contains(b"session"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`insert`](Self::insert) would fail.
    pub fn insert_for(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<(), InsertError> {
        let expiry = self.expiry(ttl);
        self.store(key, value, StoreMode::Set, expiry).map(|_| ())
    }

    /// Stores `value` under `key` if the key is absent; returns whether it was.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// assert_eq!(handle.insert_if_absent(b"key", b"first"), Ok(true));
    /// assert_eq!(handle.insert_if_absent(b"key", b"second"), Ok(false));
    /// assert_eq!(handle.get(b"key"), Some(b"first".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`insert`](Self::insert) would fail.
    pub fn insert_if_absent(&mut self, key: &[u8], value: &[u8]) -> Result<bool, InsertError> {
        self.store(key, value, StoreMode::Add, 0)
    }

    /// Lets the item of `key` expire after `ttl` from now, with the limits of
    /// [`insert_for`](Self::insert_for). Returns whether there is such an item.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"value")?;
    /// assert!(handle.expire_after(b"key", Duration::from_secs(60)));
    /// assert!(!handle.expire_after(b"other", Duration::from_secs(60)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expire_after(&mut self, key: &[u8], ttl: Duration) -> bool {
        let get = Get { touch: Some(self.expiry(ttl)), ..Get::default() };
        matches!(self.apply(key, Verb::Get(get)), Some(Outcome::Hit(_)))
    }

    /// Removes the item of `key`. Returns whether there was one.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"value")?;
    /// assert!(handle.remove(b"key"));
    /// assert!(!handle.remove(b"key"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if self.has_listener() {
            return self.remove_noticed(key);
        }
        self.apply(key, Verb::Delete(Delete::default())) == Some(Outcome::Deleted)
    }

    /// Whether somebody wants to know of items that leave.
    pub(super) fn has_listener(&self) -> bool {
        self.shared().listener.is_there()
    }

    fn store(
        &mut self,
        key: &[u8],
        value: &[u8],
        mode: StoreMode,
        expiry: i64,
    ) -> Result<bool, InsertError> {
        if mode == StoreMode::Set && self.has_listener() {
            return self.change(key, expiry, |_| Some(value.to_vec()));
        }
        match self.apply(key, Verb::Store(Store::new(mode, value, 0, expiry))) {
            None => Err(InsertError::KeyLength),
            Some(Outcome::Stored(_)) => Ok(true),
            Some(Outcome::TooLarge) => Err(InsertError::TooLarge),
            Some(Outcome::OutOfMemory) => Err(InsertError::OutOfMemory),
            Some(_) => Ok(false),
        }
    }

    /// Applies an operation to `key`; None if the length of the key is invalid.
    pub(super) fn apply(&mut self, key: &[u8], verb: Verb<'_>) -> Option<Outcome> {
        self.apply_with(key, verb, |_| ())
    }

    /// As [`Self::apply`]; `read` is called with the item of a hit.
    pub(super) fn apply_with(
        &mut self,
        key: &[u8],
        verb: Verb<'_>,
        read: impl FnMut(&ItemView<'_>),
    ) -> Option<Outcome> {
        let op = Op { key: hash(key, &self.seed)?, verb };
        let now = self.shared().now();
        let outcome = self.worker.apply(&op, &now, &mut Shown(read));
        self.worker.quiesce();
        self.report();
        Some(outcome)
    }

    /// A time to live as engines read it: a duration, or a date on the map's clock. At least 1
    /// second, because 0 means for ever.
    fn expiry(&self, ttl: Duration) -> i64 {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).max(1);
        if seconds <= LONGEST_DURATION_SECONDS {
            return seconds as i64;
        }
        let now = self.shared().now();
        let date = seconds.saturating_add(u64::from(now.seconds));
        i64::try_from(date).unwrap_or(i64::MAX).saturating_add(now.epoch_unix_seconds)
    }
}

/// Whether an item can have the key.
pub(super) fn is_valid(key: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len())
}

fn hash<'k>(key: &'k [u8], seed: &HashSeed) -> Option<Key<'k>> {
    is_valid(key).then(|| Key::new(key, seed))
}

/// A sink that passes on the item of a hit.
struct Shown<F>(F);

impl<F: FnMut(&ItemView<'_>)> Sink for Shown<F> {
    fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
        (self.0)(&found.item);
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A sink that passes values on with the positions of their keys in the caller's list.
struct Reads<F> {
    read: F,
    /// The position in the caller's list of each key of the batch.
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
