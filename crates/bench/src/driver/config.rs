//! The configuration of a round of requests.

use std::time::Duration;

use crate::workload::{KeySpace, Stream};

/// The configuration of a round.
pub struct RunConfig<'o> {
    /// One stream of requests per thread.
    pub streams: &'o [Stream],
    /// The number of keys that were loaded.
    pub loaded: u64,
    /// The mapping of ids to keys.
    pub key_space: KeySpace,
    /// Length of values in bytes.
    pub value_bytes: usize,
    /// The number of keys per call.
    pub batch: usize,
    /// Reads count back from the last insert.
    pub reads_latest: bool,
    /// A key that a read misses is written.
    pub fills_misses: bool,
    /// The limit at which the round stops at the latest.
    pub limit: Limit,
    /// Whether each call is timed.
    pub is_timed: bool,
    /// The throughput is sampled over time.
    pub is_watched: bool,
}

/// The condition that ends a round.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The round ends after this time.
    Time(Duration),
    /// The round ends after this many operations of each thread.
    Operations(u64),
}
