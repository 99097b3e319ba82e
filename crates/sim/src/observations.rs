//! What the simulation observes of a run from outside.

use std::collections::BTreeMap;

use amalgam_cluster::ids::{ChunkId, NodeId};
use amalgam_cluster::overlay::Peer;

use crate::coverage::Coverage;
use crate::disk::Disk;
use crate::history::History;
use crate::item_history::ItemHistory;
use crate::metadata_oracle::MetadataOracle;

/// What all actors share, as nobody in a real cluster does: what exists, and what was observed.
#[derive(Debug, Default)]
pub struct Observations {
    /// Every life so far.
    pub peers: Vec<Peer>,
    /// What leaders committed.
    pub oracle: MetadataOracle,
    /// What lookups named, once the work is over.
    pub located: BTreeMap<ChunkId, Option<NodeId>>,
    /// Chunks that were created.
    pub chunks: Vec<ChunkId>,
    /// What clients saw.
    pub history: History,
    /// What clients saw of named items.
    pub items: ItemHistory,
    /// What nobody should have been answered.
    pub wrong: Vec<String>,
    /// Whether the work is over.
    pub is_settling: bool,
    /// The time that no node knows: their clocks differ.
    pub true_ms: u64,
    /// For how long the node that is called stands still before it looks at its clock last.
    pub stall_ms: u64,
    /// Whether what is written to disks is synced before it is answered.
    pub is_synced: bool,
    /// The disks of nodes, which outlive them.
    pub disks: BTreeMap<NodeId, Disk>,
    /// Which races the run reached.
    pub coverage: Coverage,
}
