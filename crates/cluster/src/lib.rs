//! The logic of a cluster that serves one store from many nodes, after DXRAM: the memory for
//! metadata grows with how scattered ownership is, not with the number of objects.
//!
//! Invariants of this crate:
//! 1. No module does I/O, reads a clock or draws a random number.
//! 2. Bad input is refused with a typed error and changes nothing.
//! 3. There is no `unsafe`.

#![forbid(unsafe_code)]

pub mod chunks;
pub mod client;
mod codec;
pub mod coordinator;
mod hash;
pub mod ids;
mod interval_map;
pub mod load;
pub mod log;
pub mod node;
pub mod overlay;
pub mod ranges;
pub mod rendezvous;
pub mod replication;
pub mod shard;
pub mod wire;

pub use hash::IntHashMap;
pub use interval_map::IntervalMap;
