//! How a [`Map`] is opened.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use amalgam_op::HashSeed;

use super::{Map, Shared};
use crate::{Configuration, Engine, OpenError, maintenance};

/// Settings of a [`Map`], and what opens it.
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

/// Handles that may exist at once, if nothing else is said.
const HANDLES: usize = 64;

impl Default for MapBuilder {
    fn default() -> Self {
        let configuration = Configuration {
            workers: HANDLES + 1,
            // Drawn anew for each map, so that nobody can aim keys at one bucket.
            seed: HashSeed::new(RandomState::new().hash_one(0_u8)),
            ..Configuration::default()
        };
        Self { configuration }
    }
}

impl MapBuilder {
    /// 64 MiB, evicting when full, items of up to 1 MiB, 64 handles, a seed of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bound of items, index and memory not reused yet together, in bytes.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.configuration.memory_bytes = bytes;
        self
    }

    /// The longest item: key, value and a header of some 30 bytes. Memory must have room for a few.
    #[must_use]
    pub fn max_item_bytes(mut self, bytes: usize) -> Self {
        self.configuration.max_item_bytes = bytes;
        self
    }

    /// Refuse new items at the bound instead of evicting old ones.
    #[must_use]
    pub fn refuses_when_full(mut self) -> Self {
        self.configuration.evicts = false;
        self
    }

    /// Items to make room for in the table at once. It grows beyond, but for that of
    /// [`Pipeline`](crate::Pipeline), whose size is fixed from this and from the memory.
    #[must_use]
    pub fn expected_items(mut self, items: usize) -> Self {
        self.configuration.expected_items = items;
        self
    }

    /// How many [`Handle`](crate::Handle)s may exist at once; each costs some hundred bytes, in use
    /// or not.
    #[must_use]
    pub fn handles(mut self, handles: usize) -> Self {
        // The background thread is a worker as well.
        self.configuration.workers = handles.saturating_add(1);
        self
    }

    /// Hash keys with this seed instead of one drawn at random: for runs that must repeat.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.configuration.seed = HashSeed::new(seed);
        self
    }

    /// Opens an empty map and starts its background thread, which grows the table, takes back
    /// expired items and moves memory to where it is needed.
    ///
    /// # Errors
    ///
    /// If the settings contradict each other, or the system refuses the memory or the thread.
    pub fn open<E: Engine>(&self) -> Result<Map<E>, OpenError> {
        let index = E::open(&self.configuration)?;
        let stop = AtomicBool::new(false);
        let shared = Arc::new(Shared { index, opened: Instant::now(), stop });
        let maintained = Arc::clone(&shared);
        let work = move || {
            maintenance::run(&maintained.index, || maintained.now(), &maintained.stop);
        };
        let maintenance = thread::Builder::new().name("amalgam-map".to_owned()).spawn(work)?;
        Ok(Map { shared, maintenance: Some(maintenance) })
    }
}
