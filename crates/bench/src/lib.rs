//! Load generators, drivers and workloads: how Amalgam is measured.
//!
//! Invariants of this crate:
//! 1. Requests are generated before the clock starts.
//! 2. What is compared runs in turns, in one process, on the same requests.
//! 3. A figure that was not measured is left out, never guessed.

#![forbid(unsafe_code)]

pub mod client;
pub mod driver;
pub mod measure;
mod output;
pub mod replay;
pub mod target;
pub mod trace;
mod usage;
pub mod workload;

pub use output::print_result;
pub use usage::{Usage, UsageError, exit_code, resolve};
