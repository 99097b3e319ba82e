//! `bench index`: measures engines in this process in alternation.
//!
//! Invariants of this module:
//! 1. Engines are compared round by round on the same requests, and never run at the same time.
//! 2. A request makes no virtual call: the loop of `requests` is generic, [`Runner`] is not.
//! 3. Throughput is measured without reading a clock for each operation; latencies are measured in
//!    a pass of their own.

mod arguments;
mod caches;
mod config;
mod dram;
pub mod engines;
mod interleaving;
mod requests;
mod result;
mod runner;
mod watch;

pub use arguments::{IndexArguments, parse_paths};
pub use caches::{CacheArguments, CacheResult, run_caches};
pub use interleaving::LARGEST_SHARE;
pub use interleaving::run;
pub use result::{EngineFailure, IndexLine, IndexResult};
pub use runner::{EngineUnderTest, Runner, beside_maintenance, joined};
