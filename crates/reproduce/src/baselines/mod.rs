//! The baselines that engines are compared with.
//!
//! Invariants of this module:
//! 1. Baselines share the hash function, the memory limit and the driver with the engines, so that
//!    a difference in a figure is one of design.

mod chaining;
mod memc3_as_published;
mod memcached14;
mod null;
mod words;

pub use chaining::Chaining;
pub use memc3_as_published::{LruCuckoo, Memc3AsPublished};
pub use memcached14::Memcached14;
pub use null::Null;
