//! The laboratory: the papers' tables and figures, the baselines they compare with, and benches of
//! ids, clusters and recovery. The product links nothing of it.
//!
//! Invariants of this crate:
//! 1. Baselines share hash function, arena and huge pages with the engines.
//! 2. What is compared runs in turns, on the same requests.
//! 3. A figure that was not measured is left out, never guessed.

pub mod baselines;
pub mod cluster;
mod command;
mod curves;
pub mod engines;
pub mod figures;
pub mod ids;
pub mod occupancy;
pub mod programs;
pub mod scale;

pub use command::{BenchCommand, run};
