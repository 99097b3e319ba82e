//! The builder of a [`Map`]: its settings, and opening it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use amalgam_op::HashSeed;

use super::{Map, Shared};
use crate::{Configuration, Engine, OpenError, maintenance};

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
}

/// The default number of handles that may exist at once.
const HANDLES: usize = 64;

impl Default for MapBuilder {
    fn default() -> Self {
        let configuration = Configuration {
            workers: HANDLES + 1,
            // The seed is random for each map, so that nobody can choose keys that share a bucket.
            seed: HashSeed::new(RandomState::new().hash_one(0_u8)),
            ..Configuration::default()
        };
        Self { configuration }
    }
}

impl MapBuilder {
    /// The default settings: 64 MiB, eviction when full, items of up to 1 MiB, 64 handles, a random
    /// seed.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bound in bytes of items, index and memory that waits to be reused, together.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.configuration.memory_bytes = bytes;
        self
    }

    /// The largest item in bytes: key, value and a header of about 30 bytes. The memory must be
    /// large enough for several such items.
    #[must_use]
    pub fn max_item_bytes(mut self, bytes: usize) -> Self {
        self.configuration.max_item_bytes = bytes;
        self
    }

    /// Refuses new items at the bound instead of evicting old ones.
    #[must_use]
    pub fn refuses_when_full(mut self) -> Self {
        self.configuration.evicts = false;
        self
    }

    /// The number of items that the table is built for. The table grows when there are more, except
    /// that of [`Pipeline`](crate::Pipeline), whose size follows from this number and the memory.
    #[must_use]
    pub fn expected_items(mut self, items: usize) -> Self {
        self.configuration.expected_items = items;
        self
    }

    /// The number of [`Handle`](crate::Handle)s that may exist at once. Each costs some hundred
    /// bytes, in use or not.
    #[must_use]
    pub fn handles(mut self, handles: usize) -> Self {
        // The background thread is a worker as well.
        self.configuration.workers = handles.saturating_add(1);
        self
    }

    /// Hashes keys with this seed instead of a random one: for runs that must be repeatable.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.configuration.seed = HashSeed::new(seed);
        self
    }

    /// Opens an empty map and starts its background thread, which grows the table, reclaims expired
    /// items and moves memory between sizes of items.
    ///
    /// # Errors
    ///
    /// If the settings contradict each other, or the system refuses the memory or the thread.
    pub fn open<E: Engine>(&self) -> Result<Map<E>, OpenError> {
        let index = E::open(&self.configuration)?;
        let stop = AtomicBool::new(false);
        let (opened, in_flight) = (Instant::now(), Default::default());
        let shared = Arc::new(Shared { index, opened, stop, in_flight });
        let maintained = Arc::clone(&shared);
        let work = move || {
            maintenance::run(&maintained.index, || maintained.now(), &maintained.stop);
        };
        let maintenance = thread::Builder::new().name("amalgam-map".to_owned()).spawn(work)?;
        Ok(Map { shared, maintenance: Some(maintenance) })
    }
}
