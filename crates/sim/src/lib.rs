//! A simulation of a whole cluster in one thread: nodes, network, clock and crashes, all from one
//! seed.
//!
//! [`World`] runs the cluster's logic and a workload. [`MetadataOracle`] and the tests in `tests/`,
//! one invariant per file, look for violations. The same seed gives the same run.
//!
//! Invariants of this crate:
//! 1. No clock, no thread, no randomness except [`Random`]; ordered maps only.
//! 2. A message reaches only the incarnation of a node that it was sent to.
//! 3. Mutants ([`Mutant`]) act on packets and inputs: the logic under test has no switch for them.

#![forbid(unsafe_code)]

mod chunk_workload;
mod coverage;
mod direct_items;
mod disk;
mod event_queue;
mod faults;
mod history;
mod item_history;
mod item_workload;
mod lock_history;
mod lock_workload;
mod memory_store;
mod metadata_oracle;
mod metadata_workload;
mod mutants;
mod network;
mod node_process;
mod observations;
mod random;
mod recorder;
mod report;
mod run;
mod scale_state;
mod scale_workload;
mod scenario;
mod shrink;
mod world;

pub use chunk_workload::{ChunkNode, ChunkWorkload, ReplicatedChunkNode};
pub use coverage::Coverage;
pub use disk::Disk;
pub use event_queue::EventQueue;
pub use faults::{Faults, NetworkFaults};
pub use history::History;
pub use item_history::ItemHistory;
pub use item_workload::{ItemNode, ItemWorkload, ReplicatedItemNode};
pub use lock_history::LockHistory;
pub use memory_store::MemoryStore;
pub use metadata_oracle::MetadataOracle;
pub use metadata_workload::{IDS, MetadataNode};
pub use mutants::Mutant;
pub use network::{Partition, arrivals};
pub use node_process::{NodeProcess, Workload, WorkloadNode};
pub use observations::Observations;
pub use random::{Random, from_environment, seeds};
pub use recorder::Recorder;
pub use report::Report;
pub use run::Run;
pub use scale_state::ScaleState;
pub use scale_workload::{ScaleNode, ScaleWorkload};
pub use scenario::Scenario;
pub use shrink::shrink;
pub use world::World;
