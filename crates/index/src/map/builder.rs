//! The builder of a [`Map`]: its settings, and opening it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;

use amalgam_op::HashSeed;

use super::Map;
use super::owner::{OwnedWorker, Owner, Shared};
use super::pool::HandlePool;
use super::removal::{Listener, RemovalCause};
use crate::{Configuration, Engine, Eviction, OpenError, Worker};

/// The settings of a [`Map`], and [`MapBuilder::open`].
///
/// ```
/// use amalgam_index::{Map, MapBuilder, Memc3};
///
/// let map: Map<Memc3> = MapBuilder::new()
///     .memory_bytes(32 << 20)
///     .expected_items(100_000)
///     .open()?;
/// assert!(map.is_empty());
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MapBuilder {
    configuration: Configuration,
    /// None if it follows from the memory.
    expected_items: Option<usize>,
    listener: Listener,
}

/// Bytes of memory for each item that the table has room for, unless told otherwise. Items are
/// seldom longer in the mean: a table for more would be larger than it ever has to be.
const BYTES_PER_EXPECTED_ITEM: usize = 4096;
/// The default number of handles that may exist at once.
const HANDLES: usize = 64;
/// The largest number of handles that may exist at once.
const MOST_HANDLES: usize = 1 << 16;

impl Default for MapBuilder {
    fn default() -> Self {
        let configuration = Configuration {
            workers: HANDLES + 1,
            // The seed is random for each map, so that nobody can choose keys that share a bucket.
            seed: HashSeed::new(RandomState::new().hash_one(0_u8)),
            ..Configuration::default()
        };
        Self { configuration, expected_items: None, listener: Listener::default() }
    }
}

impl MapBuilder {
    /// The default settings: 64 MiB, eviction when full, items of up to 1 MiB, 64 handles, a random
    /// seed.
    ///
    /// ```
    /// let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// assert_eq!(map.statistics().memory.limit, 64 << 20);
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// The bound in bytes of items, index and memory that waits to be reused, together. An item
    /// weighs the bytes that it takes: there is no other weight to choose, and none to get wrong.
    ///
    /// ```
    /// use amalgam_index::{Map, MapBuilder};
    ///
    /// let map: Map = MapBuilder::new().memory_bytes(16 << 20).open()?;
    /// assert_eq!(map.statistics().memory.limit, 16 << 20);
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.configuration.memory_bytes = bytes;
        self
    }

    /// The largest item in bytes: key, value and a header of about 30 bytes. The memory must be
    /// large enough for several such items.
    ///
    /// ```
    /// use amalgam_index::{InsertError, Map, MapBuilder};
    ///
    /// let map: Map = MapBuilder::new().max_item_bytes(10_000).open()?;
    /// assert_eq!(map.handle().insert(b"key", &[0; 11_000]), Err(InsertError::TooLarge));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn max_item_bytes(mut self, bytes: usize) -> Self {
        self.configuration.max_item_bytes = bytes;
        self
    }

    /// Refuses new items at the bound instead of evicting old ones.
    ///
    /// ```
    /// use amalgam_index::{InsertError, Map, MapBuilder};
    ///
    /// let builder = MapBuilder::new().memory_bytes(4 << 20).max_item_bytes(100_000);
    /// let map: Map = builder.refuses_when_full().open()?;
    /// let mut handle = map.handle();
    /// let mut store = |n: u32| handle.insert(&n.to_le_bytes(), &[0; 90_000]);
    /// let refused = (0..100).find_map(|n| store(n).err());
    /// assert_eq!(refused, Some(InsertError::OutOfMemory));
    /// assert!(handle.contains(&0_u32.to_le_bytes()));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn refuses_when_full(mut self) -> Self {
        self.configuration.evicts = false;
        self
    }

    /// Evicts new items that nobody reads sooner than others; how much sooner follows from the keys
    /// that return after their eviction. Better where scans come between other reads, and worse
    /// where most keys are read once, late.
    ///
    /// ```
    /// let builder = amalgam_index::MapBuilder::new().evicts_unread_first();
    /// let map: amalgam_index::Map = builder.open()?;
    /// assert!(map.is_empty());
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn evicts_unread_first(mut self) -> Self {
        self.configuration.eviction = Eviction::Probation;
        self
    }

    /// The number of items that the table is built for; by default one for each 4 KiB of memory,
    /// and 65,536 at most. The table grows when there are more, except that of
    /// [`Pipeline`](crate::Pipeline), whose size follows from this number and the memory.
    ///
    /// ```
    /// use amalgam_index::{Map, MapBuilder};
    ///
    /// let map: Map = MapBuilder::new().expected_items(1_000_000).open()?;
    /// assert!(map.statistics().slots >= 1_000_000);
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn expected_items(mut self, items: usize) -> Self {
        self.expected_items = Some(items);
        self
    }

    /// The number of [`Handle`](crate::Handle)s that may exist at once. Each costs some hundred
    /// bytes, in use or not. At least 1, at most 65,536.
    ///
    /// ```
    /// let map: amalgam_index::Map = amalgam_index::MapBuilder::new().handles(2).open()?;
    /// let (_first, _second) = (map.handle(), map.handle());
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn handles(mut self, handles: usize) -> Self {
        // The background thread is a worker as well.
        self.configuration.workers = handles.saturating_add(1);
        self
    }

    /// Hashes keys with this seed instead of a random one: for runs that must be repeatable.
    ///
    /// ```
    /// let map: amalgam_index::Map = amalgam_index::MapBuilder::new().seed(42).open()?;
    /// assert!(map.is_empty());
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.configuration.seed = HashSeed::new(seed);
        self
    }

    /// Calls `listener` with the key, the value and the cause for each item that leaves the map,
    /// other than with the map itself.
    ///
    /// The call comes after the operation that the item left by, under no lock, in the thread of
    /// any handle or in the background thread; calls may be concurrent, and come in another order
    /// than the removals. The listener may use the map through handles other than that whose
    /// operation calls it. A panic of the listener is printed and ends nothing.
    ///
    /// With a listener an operation that replaces or removes an item reads it first and compares
    /// its id, about twice the work; evictions copy the item.
    ///
    /// ```
    /// use std::sync::mpsc::channel;
    /// use amalgam_index::{Map, MapBuilder, RemovalCause};
    ///
    /// let (sender, removed) = channel();
    /// let builder = MapBuilder::new().on_removal(move |key, value, cause| {
    ///     let _ = sender.send((key.to_vec(), value.to_vec(), cause));
    /// });
    /// let map: Map = builder.open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"one").expect("it fits");
    /// handle.insert(b"key", b"two").expect("it fits");
    /// handle.remove(b"key");
    /// let mut next = || removed.try_recv().expect("it was told");
    /// assert_eq!(next(), (b"key".to_vec(), b"one".to_vec(), RemovalCause::Replaced));
    /// assert_eq!(next(), (b"key".to_vec(), b"two".to_vec(), RemovalCause::Removed));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    #[must_use]
    pub fn on_removal(
        mut self,
        listener: impl Fn(&[u8], &[u8], RemovalCause) + Send + Sync + 'static,
    ) -> Self {
        self.listener = Listener::new(listener);
        self
    }

    /// Opens an empty map and starts its background thread, which grows the table, reclaims expired
    /// items and moves memory between sizes of items.
    ///
    /// ```
    /// use amalgam_index::{HotRingR, Map, MapBuilder, OpenError};
    ///
    /// let builder = MapBuilder::new();
    /// let (default, skewed): (Map, Map<HotRingR>) = (builder.open()?, builder.open()?);
    /// let refused = MapBuilder::new().handles(0).open::<HotRingR>();
    /// assert!(matches!(refused, Err(OpenError::Configuration(_))));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the settings contradict each other, or the system refuses the memory or the thread.
    pub fn open<E: Engine>(&self) -> Result<Map<E>, OpenError> {
        let handles = self.configuration.workers - 1;
        if !(1..=MOST_HANDLES).contains(&handles) {
            return Err(OpenError::Configuration(format!(
                "a map has 1 to {MOST_HANDLES} handles, not {handles}"
            )));
        }
        let mut configuration = self.configuration.clone();
        let fitting = configuration.memory_bytes / BYTES_PER_EXPECTED_ITEM;
        configuration.expected_items =
            self.expected_items.unwrap_or(configuration.expected_items.min(fitting));
        let index = E::open(&configuration)?;
        self.listener.listen_to(&index);
        let shared = Arc::new(Shared::new(index, self.listener.clone()));
        // Before the thread starts, and before anybody can take a handle: the index has no worker
        // to spare, and the thread must not be the one that finds none left.
        let worker = OwnedWorker::new(Arc::clone(&shared));
        let pool = Arc::new(HandlePool::new(handles));
        let idle = Arc::downgrade(&pool);
        let mut owner = Owner::new(shared, handles);
        let work = move || maintain(worker, &idle);
        owner.set_thread(thread::Builder::new().name("amalgam-map".to_owned()).spawn(work)?);
        Ok(Map { pool, owner: Arc::new(owner) })
    }
}

/// The background thread of a map.
fn maintain<E: Engine>(mut worker: OwnedWorker<E>, pool: &Weak<HandlePool<E>>) {
    let shared = Arc::clone(&worker.shared);
    let mut rested_at = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let now = shared.now();
        let more = E::maintain(&mut worker, &now);
        worker.quiesce();
        shared.listener.report(&shared.index);
        if rested_at != now.seconds
            && let Some(pool) = pool.upgrade()
        {
            pool.rest_idle();
            rested_at = now.seconds;
        }
        if !more {
            shared.index.maintenance_signal().wait();
        }
    }
}
