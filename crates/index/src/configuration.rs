//! The settings that an engine is built with.

use amalgam_op::HashSeed;

/// Settings of an engine, checked once in [`crate::Engine::open`].
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The bound in bytes of items, index and memory that waits for a grace period, together.
    pub memory_bytes: usize,
    /// Whether a full engine evicts or refuses new items.
    pub evicts: bool,
    /// How the victims of eviction are chosen.
    pub eviction: Eviction,
    /// The largest item in bytes: key, value and header.
    pub max_item_bytes: usize,
    /// The number of [`crate::Worker`]s that may exist at once, including the maintenance thread's.
    pub workers: usize,
    /// Whether a thread executes a fence (some 20 cycles) when it begins to read: once a batch. If
    /// not, the thread that frees memory interrupts all others of the process instead, once for
    /// some hundred items, or for each where few long ones fill the memory. For single reads
    /// without a fence; for servers, whose reads come in batches and whose items may be long, with.
    pub pins_execute_fence: bool,
    /// The number of items that the table has room for at start. It may grow beyond.
    pub expected_items: usize,
    /// Touch the whole arena at start, in the calling thread.
    pub prefault: bool,
    /// The seed that keys are hashed with.
    pub seed: HashSeed,
    /// The first CAS id: above those that clients may hold from before a restart. Not 0.
    pub first_cas: u64,
    /// Settings that only measurements vary.
    pub tuning: Tuning,
}

/// How an engine chooses the items that it evicts within a size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Eviction {
    /// CLOCK with one recency bit (MemC3, section 3.3): an item leaves when the hand passes it for
    /// the second time since it was read, or for the first if it was never read.
    Clock,
    /// CLOCK with a count (GCLOCK; Effelsberg and Haerder, TODS 1984): an item is spared once after
    /// its first read, and three times after any later one.
    #[default]
    GClock,
    /// GCLOCK, and new items that are not read leave sooner (S3-FIFO, SOSP 2023): how much sooner
    /// follows from the keys that return after their eviction (ARC, FAST 2003).
    Probation,
}

impl Eviction {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Clock, Self::GClock, Self::Probation];

    /// The name in options and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::GClock => "gclock",
            Self::Probation => "probation",
        }
    }

    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// What measurements vary and servers leave alone. An engine ignores settings that make no sense
/// for it. (Slots per bucket, and parts that a measurement leaves out, are types of the engines.)
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Start with this many buckets, rounded up to what the engine can have, instead of with what
    /// [`Configuration::expected_items`] takes.
    pub buckets: Option<usize>,
    /// Whether the table may grow (or rehash) by itself.
    pub grows: bool,
    /// How an engine with cuckoo paths looks for one.
    pub paths: Option<PathSearch>,
    /// How many items an insert may displace there, at most.
    pub max_displacements: Option<usize>,
    /// How many version counters a table's buckets share, a power of two.
    pub stripes: Option<usize>,
    /// Writers exclude each other by one lock, as where a paper has a single writer.
    pub single_writer: bool,
}

/// How an engine with cuckoo paths looks for a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathSearch {
    /// This many random walks at once.
    Walks(usize),
    /// One breadth-first search.
    BreadthFirst,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            buckets: None,
            grows: true,
            paths: None,
            max_displacements: None,
            stripes: None,
            single_writer: false,
        }
    }
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            evicts: true,
            eviction: Eviction::default(),
            max_item_bytes: 1 << 20,
            workers: 64,
            pins_execute_fence: false,
            expected_items: 1 << 16,
            prefault: false,
            seed: HashSeed::new(0),
            first_cas: 1,
            tuning: Tuning::default(),
        }
    }
}

/// Why an index could not be built.
///
/// ```
/// use amalgam_index::{Mercury, MapBuilder, OpenError};
///
/// match MapBuilder::new().memory_bytes(1).open::<Mercury>() {
///     Err(OpenError::Configuration(reason)) => println!("{reason}"),
///     other => panic!("{:?}", other.err()),
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The settings contradict each other or leave no room; the text says which and what to do.
    Configuration(String),
    /// The system refused the memory, or a thread.
    Memory(std::io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Configuration(reason) => formatter.write_str(reason),
            Self::Memory(error) => {
                write!(formatter, "the system refused the memory ({error}); lower --memory")
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl From<std::io::Error> for OpenError {
    fn from(error: std::io::Error) -> Self {
        Self::Memory(error)
    }
}
