//! Workloads, drivers and baselines: everything that measures Amalgam.
//!
//! Invariants of this room:
//! 1. Requests are generated before the clock starts.
//! 2. What is compared runs in turns, in one process, on the same requests.
//! 3. A figure that was not measured is left out, never guessed.

pub mod advise;
pub mod baselines;
pub mod client;
pub mod cluster;
mod command;
pub mod driver;
pub mod engines;
pub mod figures;
pub mod ids;
pub mod measure;
pub mod scale;
pub mod subject;
pub mod trace;
pub mod workload;

pub use command::{BenchCommand, run};
