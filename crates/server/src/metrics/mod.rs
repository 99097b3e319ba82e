//! What workers measure while they serve: counters, latencies, hot keys, counts by key prefix.

pub mod counters;
pub mod hot_keys;
pub mod latency;
pub mod prefixes;
