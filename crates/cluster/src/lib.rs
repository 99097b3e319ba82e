//! One store over many nodes, after DXRAM: metadata in proportion to disorder, not to data.
//!
//! Invariants of this room:
//! 1. Nothing here does I/O, reads a clock or draws a random number.
//! 2. Bad input is answered by a typed error and changes nothing.
//! 3. No `unsafe`.

#![forbid(unsafe_code)]

pub mod chunks;
pub mod client;
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
pub mod wire;

pub use interval_map::IntervalMap;
