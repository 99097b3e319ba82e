//! The statistics of an engine, for operators and for figures.

use crate::Eviction;

/// A snapshot of an engine's counters, and of a sample of its buckets.
///
/// ```
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// map.handle().insert(b"key", b"value")?;
/// let statistics = map.statistics();
/// println!("{} items in {} buckets", statistics.items, statistics.buckets);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Items linked now, dead ones that were not reclaimed yet included.
    pub items: u64,
    /// The number of items that were ever linked.
    pub items_total: u64,
    /// Buckets of the table (of both tables during an expansion).
    pub buckets: u64,
    /// Slots of the table: as many items as it takes at load factor 1.
    pub slots: u64,
    /// The number of expansions (or rehashes) that have finished.
    pub expansions: u64,
    /// Whether an expansion (or a rehash) is under way.
    pub is_expanding: bool,
    /// The longest time that an expansion kept all workers out, in nanoseconds.
    pub longest_pause_ns: u64,
    /// How many buckets hold 0, 1, 2, … items, from a sample; the last entry counts all above.
    pub length_histogram: Vec<u64>,
    /// Of the same sample, where heads follow hot items: buckets of two items or more whose head
    /// item was read since the last sweep.
    pub hot_heads: u64,
    /// The mean number of items that an access inspects before it finds its own, over some
    /// thousands of one worker's latest requests; 0 where the engine does not count them.
    pub items_passed: f64,
    /// The number of items that were evicted while they were alive.
    pub evictions: u64,
    /// The number of expired or flushed items whose memory was reclaimed.
    pub reclaimed: u64,
    /// The part of [`Statistics::evictions`] whose items were never read.
    pub evicted_unfetched: u64,
    /// The part of [`Statistics::reclaimed`] whose items were never read.
    pub expired_unfetched: u64,
    /// The number of stores that were refused for want of memory.
    pub out_of_memory: u64,
    /// The engine's memory by use.
    pub memory: MemoryStatistics,
}

/// Memory by use, in bytes.
///
/// ```
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// let memory = map.statistics().memory;
/// println!("{} of {} bytes, {} of them the table", memory.used, memory.limit, memory.index);
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryStatistics {
    /// The memory limit in bytes.
    pub limit: u64,
    /// Bytes taken from the system for all uses.
    pub used: u64,
    /// Bytes of the engine's tables.
    pub index: u64,
    /// Bytes of keys, values and headers of linked items.
    pub items: u64,
    /// Bytes retired and waiting for a grace period.
    pub waiting: u64,
    /// The number of pages that belong to no class.
    pub free_pages: u64,
    /// The size of a page in bytes.
    pub page_bytes: u64,
    /// The number of pages that moved from one size class to another.
    pub pages_moved: u64,
    /// No item expires before this [`Now::seconds`](amalgam_op::Now::seconds); None if no item has
    /// an expiry. An item that was replaced may count until that time has come. If it lies in the
    /// past, expired items may wait for maintenance since then.
    pub first_expiry_seconds: Option<u32>,
    /// The age of expired items, in seconds: the largest among the items that maintenance reclaimed
    /// last, counted from their expiry.
    pub reclaim_lag_seconds: u32,
    /// The policy of eviction in force.
    pub eviction: Eviction,
    /// Bytes of pages and runs that hold no key and no value, by cause.
    pub losses: MemoryLosses,
    /// The size classes that have pages or have evicted items.
    pub classes: Vec<ClassStatistics>,
}

/// Bytes of pages and runs that hold no key and no value, by cause. (Optional fields of items, such
/// as CAS ids and expiries, count as items.)
///
/// ```
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// map.handle().insert(b"key", b"value")?;
/// let losses = map.statistics().memory.losses;
/// println!("{} bytes of headers, {} of rounding", losses.headers, losses.rounding);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLosses {
    /// Headers and links of items.
    pub headers: u64,
    /// Slots and runs longer than their items.
    pub rounding: u64,
    /// Bitmaps of pages, and ends of pages shorter than a slot.
    pub page_tails: u64,
    /// Items that wait for a grace period.
    pub grace: u64,
    /// Other free slots of pages that belong to a size class.
    pub free_slots: u64,
}

impl MemoryStatistics {
    /// The time in seconds for which an expired item may have waited for maintenance, at second
    /// `now_seconds` of [`Now::seconds`](amalgam_op::Now::seconds); 0 if none waits.
    ///
    /// ```
    /// use amalgam_index::MemoryStatistics;
    ///
    /// let memory = MemoryStatistics { first_expiry_seconds: Some(100), ..Default::default() };
    /// assert_eq!(memory.expiry_lag_seconds(103), 3);
    /// assert_eq!(memory.expiry_lag_seconds(90), 0);
    /// ```
    pub fn expiry_lag_seconds(&self, now_seconds: u32) -> u32 {
        self.first_expiry_seconds.map_or(0, |first| now_seconds.saturating_sub(first))
    }
}

/// One size class. Items that are too large for a class of slots are counted by length, as if each
/// length had a class.
///
/// ```
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// map.handle().insert(b"key", b"value")?;
/// for class in map.statistics().memory.classes {
///     println!("{} of {} slots of {} bytes", class.used_slots, class.slots, class.slot_bytes);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassStatistics {
    /// The number of the class.
    pub class: usize,
    /// The size of a slot in bytes.
    pub slot_bytes: u64,
    /// The number of pages that the class has.
    pub pages: u64,
    /// The number of slots in these pages.
    pub slots: u64,
    /// The number of slots with an item that was filled and not retired.
    pub used_slots: u64,
    /// The number of items that were evicted from the class.
    pub evictions: u64,
    /// The part of these evictions whose items had an expiry time.
    pub mortal_evictions: u64,
    /// The number of dead items that the sweep of the class's pages removed.
    pub swept: u64,
}
