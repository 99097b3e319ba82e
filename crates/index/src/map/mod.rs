//! The library's public interface: an engine with its background thread, clock and seed, as a map
//! that other programs embed. `api.txt`, next to `Cargo.toml`, lists what stays compatible.
//!
//! Thread safety: a [`Map`] is shared by reference; each thread works through a [`Handle`], of its
//! own or out of the map's pool.
//!
//! Invariants:
//! 1. No other module of the crate reads a clock. Engines get the time as an argument.
//! 2. No input causes a panic: a key of an invalid length is a miss to reads and an error to
//!    writes.
//! 3. The background thread ends before the engine is dropped. The map and its handles own it
//!    together; the pool of handles belongs to the map alone, or nobody would be the last owner.

mod builder;
mod compute;
mod handle;
mod in_flight;
mod owner;
#[cfg(test)]
mod owner_tests;
mod pool;
mod removal;
// An interpreter takes too long for maps that evict.
#[cfg(all(test, not(miri)))]
mod removal_tests;
mod task;
#[cfg(test)]
mod tests;
mod typed;

use std::sync::Arc;

use crate::mercury::Mercury;
use crate::{Engine, Statistics};
use owner::Owner;
use pool::HandlePool;

pub use builder::MapBuilder;
pub use compute::IncrementError;
pub use handle::{Handle, InsertError, OwnedHandle};
pub use removal::RemovalCause;
pub use typed::{Codec, Plain, TypedError, TypedMap};

/// A concurrent map from byte strings to byte strings within a bound of memory.
///
/// Keys have 1 to 250 bytes. At the bound the map evicts items that have not been used for long,
/// unless [`MapBuilder::refuses_when_full`] was set. Operations on one key are linearizable.
///
/// ```
/// use amalgam_index::{Map, MapBuilder};
///
/// let map: Map = MapBuilder::new().memory_bytes(16 << 20).open()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| map.handle().insert(b"greeting", b"hello"));
/// });
/// assert_eq!(map.handle().get(b"greeting").as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
pub struct Map<E: Engine = Mercury> {
    pool: Arc<HandlePool<E>>,
    owner: Arc<Owner<E>>,
}

impl<E: Engine> Map<E> {
    /// A handle for the calling thread. Making one takes about a microsecond, so a thread should
    /// keep its handle for as long as it works, or call [`with`](Self::with).
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// std::thread::scope(|scope| {
    ///     for number in [1, 2_u8] {
    ///         let map = &map;
    ///         scope.spawn(move || map.handle().insert(&[number], b"value"));
    ///     }
    /// });
    /// assert_eq!(map.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If more handles exist at once than [`MapBuilder::handles`] allows.
    pub fn handle(&self) -> Handle<'_, E> {
        self.owned_handle()
    }

    /// A [`handle`](Self::handle) that borrows nothing and keeps the map open.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.owned_handle();
    /// let thread = std::thread::spawn(move || handle.insert(b"key", b"value"));
    /// thread.join().expect("it ends")?;
    /// assert!(map.handle().contains(b"key"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If more handles exist at once than [`MapBuilder::handles`] allows.
    pub fn owned_handle(&self) -> OwnedHandle<E> {
        Handle::new(&self.owner)
            .or_else(|| self.pool.take_idle())
            .expect("more handles at once than MapBuilder::handles allows")
    }

    /// Calls `work` with a handle from the map's pool: a map in an `Arc` or a `static` serves any
    /// thread or task, as often as it likes, and nobody keeps a handle. Taking one and putting it
    /// back takes two atomic operations, usually on a cache line of the calling thread's own.
    ///
    /// Calls wait while all of [`MapBuilder::handles`] are in use, so `work` should not call `with`
    /// in turn: it would wait for itself if it came to the last.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use amalgam_index::{Map, MapBuilder};
    ///
    /// let map: Arc<Map> = Arc::new(MapBuilder::new().open()?);
    /// let threads = [1, 2].map(|number: u8| {
    ///     let map = Arc::clone(&map);
    ///     std::thread::spawn(move || map.with(|handle| handle.insert(&[number], b"value")))
    /// });
    /// for thread in threads {
    ///     assert_eq!(thread.join().expect("it ends"), Ok(()));
    /// }
    /// assert_eq!(map.with(|handle| handle.get_many(&[&[1], &[2], &[3]], |_, _| ())), 2);
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    pub fn with<R>(&self, work: impl FnOnce(&mut OwnedHandle<E>) -> R) -> R {
        self.pool.with(&self.owner, work)
    }

    /// The number of items in the map. Expired items count until their memory is reclaimed.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// map.handle().insert(b"key", b"value")?;
    /// assert_eq!(map.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len(&self) -> u64 {
        self.statistics().items
    }

    /// Whether the map holds no item.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// assert!(map.is_empty());
    /// map.handle().insert(b"key", b"value")?;
    /// assert!(!map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts of items, memory by use, evictions, and the engine's figures of its table. The call
    /// visits a sample of the table, so it is meant for displays and not for every request.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// map.handle().insert(b"key", b"value")?;
    /// let statistics = map.statistics();
    /// assert_eq!((statistics.items, statistics.evictions), (1, 0));
    /// assert!(statistics.memory.used <= statistics.memory.limit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics(&self) -> Statistics {
        let index = &self.owner.shared.index;
        let mut statistics = index.statistics();
        index.sample_buckets(&mut statistics);
        statistics
    }

    /// Changes the bound of memory in bytes, up to four times that at opening. After a reduction
    /// items are evicted over time.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// map.set_memory_bytes(128 << 20);
    /// assert_eq!(map.statistics().memory.limit, 128 << 20);
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    pub fn set_memory_bytes(&self, bytes: usize) {
        self.owner.shared.index.set_memory_limit(bytes);
    }
}

impl<E: Engine> Drop for Map<E> {
    fn drop(&mut self) {
        // The background thread may hold the pool for a moment yet; it must not end up with the
        // handles.
        self.pool.clear();
    }
}
