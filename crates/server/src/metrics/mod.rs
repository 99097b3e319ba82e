//! What workers measure while they serve: counters, latencies, hot keys, counts by key prefix,
//! the miss ratio with other memory sizes.

pub mod counters;
pub mod hot_keys;
pub mod latency;
pub mod miss_curve;
pub mod prefixes;
