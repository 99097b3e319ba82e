//! Compares the CID-tree of `amalgam-cluster`, which maps chunk ids to nodes, with other maps
//! (DXRAM, figures 3 and 4).
//!
//! Invariants of this module:
//! 1. All structures of a call get the same ids and the same migrations.
//! 2. The answers are compared after each round: a structure that loses a migration fails.

mod arguments;
mod cuckoo;
mod java;
mod lookup_cache;
mod moves;
mod result;
mod runner;
mod structures;
mod super_peer;

pub use arguments::{IdsArguments, LookupCacheArguments, Structure};
pub use lookup_cache::{LookupCacheResult, run as run_lookup_cache};
pub use result::IdsResult;
pub use runner::run as run_ids;
