//! `bench index`: engines in this process, in turns.
//!
//! Invariants of this room:
//! 1. Engines are compared round by round on the same requests, and never run at the same time.
//! 2. No virtual call for a request: the loop of `requests` is generic, [`Runner`] is not.
//! 3. Throughput is measured without reading a clock for each operation; latencies are measured in
//!    a pass of their own.

mod arguments;
mod caches;
mod dram;
mod requests;
mod result;
mod runner;
mod turns;
mod watch;

pub use arguments::{IndexArguments, parse_paths};
pub use caches::{CacheArguments, CacheResult, run_caches};
pub use result::IndexResult;
pub use runner::{Mounted, Runner, beside_maintenance, joined};
pub use turns::LARGEST_SHARE;
pub use turns::run;
