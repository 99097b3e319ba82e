//! What an index is built with.

use amalgam_op::HashSeed;

/// Settings of an index, checked once in [`crate::Index::open`].
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Bounds items, index, and what waits for a grace period together, in bytes.
    pub memory_bytes: usize,
    /// Whether a full index evicts (CLOCK) or refuses new items.
    pub evicts: bool,
    /// The largest item in bytes: key, value and what the engine keeps beside them.
    pub max_item_bytes: usize,
    /// How many [`crate::Worker`]s may exist at once, the maintenance thread's included.
    pub workers: usize,
    /// How many items to make room for in the table at start; it grows beyond.
    pub expected_items: usize,
    /// Touch the whole arena at start, in the calling thread.
    pub prefault: bool,
    /// The seed that keys are hashed with.
    pub seed: HashSeed,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            evicts: true,
            max_item_bytes: 1 << 20,
            workers: 64,
            expected_items: 1 << 16,
            prefault: false,
            seed: HashSeed::new(0),
        }
    }
}

/// Why an index could not be built.
#[derive(Debug)]
pub enum OpenError {
    /// The settings contradict each other or leave no room; the text says which and what to do.
    Configuration(String),
    /// The system refused the memory.
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
