//! The library's public interface: an engine with its background thread, clock and seed, as a map
//! that other programs embed. `api.txt`, next to `Cargo.toml`, lists what stays compatible.
//!
//! Thread safety: a [`Map`] is shared by reference; each thread works through a [`Handle`].
//!
//! Invariants:
//! 1. No other module of the crate reads a clock. Engines get the time as an argument.
//! 2. No input causes a panic: a key of an invalid length is a miss to reads and an error to
//!    writes.
//! 3. The background thread ends before the engine is dropped: [`Map`] joins it on drop.

mod builder;
mod compute;
mod handle;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use amalgam_op::Now;

use crate::mercury::Mercury;
use crate::{Engine, Statistics};

pub use builder::MapBuilder;
pub use compute::IncrementError;
pub use handle::{Handle, InsertError};

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
    shared: Arc<Shared<E>>,
    maintenance: Option<JoinHandle<()>>,
}

/// What a map shares with its background thread.
struct Shared<E> {
    index: E,
    opened: Instant,
    stop: AtomicBool,
    in_flight: compute::InFlight,
}

impl<E> Shared<E> {
    /// The time since the map was opened, from second 1 on: engines have no second 0.
    fn now(&self) -> Now {
        Now::at(u32::try_from(self.opened.elapsed().as_secs() + 1).unwrap_or(u32::MAX))
    }
}

impl<E: Engine> Map<E> {
    /// A handle for the calling thread. Making one takes about a microsecond, so a thread should
    /// keep its handle for as long as it works.
    ///
    /// # Panics
    ///
    /// If more handles exist at once than [`MapBuilder::handles`] allows.
    pub fn handle(&self) -> Handle<'_, E> {
        Handle::new(&self.shared)
    }

    /// The number of items in the map. Expired items count until their memory is reclaimed.
    pub fn len(&self) -> u64 {
        self.statistics().items
    }

    /// Whether the map holds no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts of items, memory by use, evictions, and the engine's figures of its table. The call
    /// visits a sample of the table, so it is meant for displays and not for every request.
    pub fn statistics(&self) -> Statistics {
        self.shared.index.statistics()
    }

    /// Changes the bound of memory in bytes, up to four times that at opening. After a reduction
    /// items are evicted over time.
    pub fn set_memory_bytes(&self, bytes: usize) {
        self.shared.index.set_memory_limit(bytes);
    }
}

impl<E: Engine> Drop for Map<E> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.index.maintenance_signal().raise();
        if let Some(thread) = self.maintenance.take() {
            // If the thread panicked, its message has been printed.
            let _ = thread.join();
        }
    }
}
