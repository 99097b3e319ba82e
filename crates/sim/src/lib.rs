//! A whole cluster in one thread: nodes, network, clock and crashes, all from one seed.
//!
//! [`World`] runs the cluster's logic and a workload; [`Ledger`] and the tests in `tests/`, one
//! invariant a file, look for what must not be. The same seed gives the same run.
//!
//! Invariants of this room:
//! 1. No clock, no thread, no chance but [`Random`]; ordered maps only.
//! 2. A message reaches only the life of a node that it was sent to.
//! 3. What the world plants as a fault it does outside the logic: that has no switch for tests.

#![forbid(unsafe_code)]

mod actor;
mod disk;
mod keeper;
mod ledger;
mod names;
mod network;
mod planted;
mod races;
mod random;
mod scenario;
mod store;
mod tally;
mod trial;
mod world;

pub use actor::{Actor, Common, Editor, Host, IDS, Pursuit};
pub use disk::Disk;
pub use keeper::{Chunks, Keeper, SafeKeeper};
pub use ledger::Ledger;
pub use names::{Namer, Names, Naming, SafeNamer};
pub use network::{Agenda, Partition, Weather, arrivals};
pub use planted::Planted;
pub use races::Reached;
pub use random::{Random, seeds};
pub use scenario::Scenario;
pub use store::{History, MemoryStore};
pub use tally::Tally;
pub use trial::Trial;
pub use world::{Faults, World};
