//! The workload of large clusters: clients create their share of the chunks as fast as they may,
//! and then read and write chunks of all nodes at a steady rate.

use amalgam_cluster::chunks::{Action, ChunkError, Response};
use amalgam_cluster::node::{NodeCommand, NodeSettings};
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::replication::{RecoveredState, ReplicaStore};

use crate::chunk_workload::{ChunkWorkload, open_replica_store};
use crate::memory_store::MemoryStore;
use crate::node_process::{Workload, WorkloadNode};
use crate::observations::Observations;
use crate::random::Random;

/// Creations of a client in flight at most, and other operations.
const CREATIONS_MAX: usize = 64;
const OPERATIONS_MAX: usize = 8;
/// Bytes of a segment of a log: the index of 1,000 logs is small, and cleaning is seldom.
const SEGMENT_BYTES: u32 = 64 << 10;

/// A node that runs the workload of large clusters.
pub type ScaleNode = WorkloadNode<ScaleWorkload>;

/// The state of one client.
#[derive(Debug, Default)]
pub struct ScaleWorkload {
    chunks: ChunkWorkload<true>,
    /// Number of the last value.
    next_value: u64,
}

impl Workload for ScaleWorkload {
    type Store = MemoryStore;

    fn open(settings: &mut NodeSettings, observed: &Observations) -> (Self, MemoryStore) {
        let (chunks, store) = ChunkWorkload::open(settings, observed);
        settings.chunks.replication.backups = observed.scale.backups;
        (Self { chunks, next_value: 0 }, store)
    }

    fn replica_store(
        peer: Peer,
        observed: &mut Observations,
    ) -> Option<(ReplicaStore, RecoveredState)> {
        Some(open_replica_store(peer, SEGMENT_BYTES, observed))
    }

    fn observe(
        &mut self,
        observed: &mut Observations,
        client: Peer,
        begun: (Action, u64),
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    ) {
        if matches!(begun.0, Action::Create(_)) && result.is_err() {
            *observed.scale.to_create.entry(client.node).or_default() += 1;
        }
        self.chunks.observe(observed, client, begun, result, now_ms);
    }

    fn work(
        host: &mut WorkloadNode<Self>,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let (peer, began_ms) = (host.peer, observed.true_ms);
        while host.in_flight.len() < CREATIONS_MAX {
            let Some(left) = observed.scale.to_create.get_mut(&peer.node) else { break };
            if *left == 0 {
                break;
            }
            *left -= 1;
            let value = host.new_value();
            observed.history.creation_begins(value, began_ms);
            host.submit(Action::Create(value.to_le_bytes().to_vec()), now_ms, out);
        }
        let begins = random.percent(observed.scale.operations_percent);
        if !begins || host.in_flight.len() >= OPERATIONS_MAX {
            return;
        }
        let Some(id) = random.pick(&observed.chunks).copied() else { return };
        if random.percent(70) {
            return host.submit(Action::Get(id), now_ms, out);
        }
        let value = host.new_value();
        observed.history.write_begins(id, value, began_ms);
        host.submit(Action::Put(id, value.to_le_bytes().to_vec()), now_ms, out);
    }
}

impl WorkloadNode<ScaleWorkload> {
    /// A value that nobody else writes.
    fn new_value(&mut self) -> u64 {
        self.workload.next_value += 1;
        let Peer { node, incarnation } = self.peer;
        let incarnation = u64::from(incarnation) & 0xFFF;
        u64::from(node.get()) << 48 | incarnation << 36 | self.workload.next_value
    }
}
