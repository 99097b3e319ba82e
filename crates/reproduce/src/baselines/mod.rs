//! What engines are compared with.
//!
//! Invariants of this room:
//! 1. Baselines share hash function, memory room and driver with the engines, so that a difference
//!    is one of design.

mod chaining;
mod global_lock;
mod null;
mod printed;
mod words;

pub use chaining::Chaining;
pub use global_lock::GlobalLock;
pub use null::Null;
pub use printed::{LruCuckoo, Memc3Printed};
