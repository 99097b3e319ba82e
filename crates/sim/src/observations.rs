//! What the simulation observes of a run from outside.

use std::collections::BTreeMap;

use amalgam_cluster::ids::{ChunkId, NodeId};
use amalgam_cluster::overlay::Peer;

use crate::coverage::Coverage;
use crate::disk::Disk;
use crate::history::History;
use crate::item_history::ItemHistory;
use crate::lock_history::LockHistory;
use crate::metadata_oracle::MetadataOracle;
use crate::mutants::Mutant;
use crate::recorder::Recorder;
use crate::scale_state::ScaleState;

/// State that all simulated nodes share, unlike real ones: what exists, and what was observed.
#[derive(Debug, Default)]
pub struct Observations {
    /// The defect that the run has.
    pub mutant: Mutant,
    /// All incarnations of nodes so far.
    pub peers: Vec<Peer>,
    /// The committed metadata.
    pub oracle: MetadataOracle,
    /// The owners that lookups returned at the end.
    pub located: BTreeMap<ChunkId, Option<NodeId>>,
    /// Chunks that were created.
    pub chunks: Vec<ChunkId>,
    /// All operations of clients, for checkers outside this project.
    pub recorder: Recorder,
    /// The history of chunks.
    pub history: History,
    /// The history of the chunks' locks.
    pub locks: LockHistory,
    /// Whether clients compete for the locks of a few chunks.
    pub has_contended_locks: bool,
    /// Whether nodes evict items, as a cache does.
    pub evicts: bool,
    /// Whether nodes' logs are small, and items long.
    pub has_full_logs: bool,
    /// The history of named items.
    pub items: ItemHistory,
    /// The state of large clusters.
    pub scale: ScaleState,
    /// Answers that no client should have got.
    pub wrong_answers: Vec<String>,
    /// Whether the workload is over.
    pub is_settling: bool,
    /// The true time, which no node knows: their clocks differ.
    pub true_ms: u64,
    /// Milliseconds for which the called node stalls before it reads its clock for the last time.
    pub stall_ms: u64,
    /// Whether nodes sync their disks before they answer.
    pub is_synced: bool,
    /// The disks of all nodes.
    pub disks: BTreeMap<NodeId, Disk>,
    /// Faults and races that the run went through.
    pub coverage: Coverage,
}

impl Observations {
    /// A node's disk reads what was asked for, unless it hangs.
    pub fn deliver_loads(&self, node: Peer) {
        if let Some(disk) = self.disks.get(&node.node) {
            disk.deliver();
        }
    }
}
