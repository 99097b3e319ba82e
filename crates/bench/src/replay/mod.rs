//! `bench trace`: traces of real requests, replayed through memcached's protocol.
//!
//! Invariants of this module:
//! 1. Servers are compared on the same requests, at resident memory that is equal within a stated
//!    tolerance, and never run at the same time.
//! 2. Misses are counted by the client; the server's word is taken for evictions only.
//! 3. A replay whose result is on file is not repeated.

mod arguments;
mod builder;
mod cells;
mod client;
mod generator;
mod offline;
mod policy;
mod progress;
mod result;
mod server;
mod sizes;
mod source;

pub use arguments::{Equal, ReplayArguments};
pub use cells::run;
pub use generator::Generator;
pub use policy::{PolicyName, PolicySet, Simulation, next_requests};
pub use result::{Comparison, Load, PolicyResult, ServerResult};
pub use server::ServerName;
pub use sizes::SizeModel;
pub use source::{Format, Reading, Trace};
