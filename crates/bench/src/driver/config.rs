//! What a round of requests is asked for.

use std::time::Duration;

use crate::workload::{KeySpace, Stream};

/// What a round asks for.
pub struct RunConfig<'o> {
    /// One stream a thread.
    pub streams: &'o [Stream],
    /// Keys that were loaded.
    pub loaded: u64,
    /// How keys are made.
    pub key_space: KeySpace,
    /// Length of values in bytes.
    pub value_bytes: usize,
    /// Keys a call.
    pub batch: usize,
    /// Reads count back from the last insert.
    pub reads_latest: bool,
    /// What a read misses is written.
    pub fills_misses: bool,
    /// When to stop, at the latest.
    pub limit: Limit,
    /// Time each call.
    pub is_timed: bool,
    /// Sample throughput over time.
    pub is_watched: bool,
}

/// When a round ends.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The round ends after this time.
    Time(Duration),
    /// The round ends after this many operations of each thread.
    Operations(u64),
}
