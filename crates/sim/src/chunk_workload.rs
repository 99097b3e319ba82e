//! The chunk workload: clients that create, read, write and lock chunks, with backups or without.

use amalgam_cluster::chunks::{Action, ChunkError, Response};
use amalgam_cluster::ids::{ChunkId, IdRange};
use amalgam_cluster::log::{Durability, LogSettings};
use amalgam_cluster::node::{NodeCommand, NodeSettings};
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::replication::{RecoveredState, ReplicaStore, ReplicationSettings};

use crate::memory_store::MemoryStore;
use crate::mutants::Mutant;
use crate::node_process::{Workload, WorkloadNode};
use crate::observations::Observations;
use crate::random::Random;

/// Creates, reads, writes, locks and moves chunks of all nodes. If `REPLICATED`, nodes keep backups
/// and may crash, and clients also remove chunks and have more operations in flight.
#[derive(Debug, Default)]
pub struct ChunkWorkload<const REPLICATED: bool> {
    /// Number of the last value.
    next_value: u64,
}

/// A node that runs the chunk workload without backups, and moves chunks that it owns to others.
pub type ChunkNode = WorkloadNode<ChunkWorkload<false>>;

/// A node that runs the chunk workload with backups.
pub type ReplicatedChunkNode = WorkloadNode<ChunkWorkload<true>>;

/// Replication settings of all nodes with backups.
pub(crate) const COPIES: ReplicationSettings = ReplicationSettings {
    backups: 3,
    min_replicas: 2,
    silent_ms: 120,
    retry_ms: 20,
    window: 4_096,
    copy_sets: 0,
};

/// Segments of a log that is too small for what its node is a backup of.
const FULL_LOG_SEGMENTS: u32 = 8;

/// Opens the replica store of a node, in segments of `segment_bytes`, with what its earlier
/// incarnations left there.
pub(crate) fn open_replica_store(
    peer: Peer,
    segment_bytes: u32,
    observed: &mut Observations,
) -> (ReplicaStore, RecoveredState) {
    let disk = observed.disks.entry(peer.node).or_default().clone();
    let is_synced = observed.is_synced && observed.mutant != Mutant::AcknowledgesBeforeSync;
    let durability = if is_synced { Durability::Synced } else { Durability::Buffered };
    let segments_max = if observed.has_full_logs { FULL_LOG_SEGMENTS } else { 400 };
    let settings = LogSettings { segment_bytes, segments_max, durability };
    let identity = (1, peer, disk.power_losses);
    let (replica_store, mut recovered) =
        ReplicaStore::resume(disk.storage(), identity, settings).expect("it is this cluster's");
    if replica_store.replay_report().was_torn {
        observed.coverage.record("a torn write");
    }
    if replica_store.replay_report().records > 0 && recovered.since == peer.incarnation {
        observed.coverage.record("a log that is not authoritative");
    }
    if observed.mutant == Mutant::TrustsIncompleteLog {
        recovered.since = 1;
    }
    (replica_store, recovered)
}

fn number_of(value: &[u8]) -> u64 {
    value.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// The value that stands for a removal that began at this time; nobody reads it.
pub(crate) fn removal_of(value: u64) -> u64 {
    value | 1 << 63
}

impl<const REPLICATED: bool> Workload for ChunkWorkload<REPLICATED> {
    type Store = MemoryStore;

    fn open(settings: &mut NodeSettings, _: &Observations) -> (Self, MemoryStore) {
        if REPLICATED {
            settings.chunks.replication = COPIES;
        }
        Default::default()
    }

    fn replica_store(
        peer: Peer,
        observed: &mut Observations,
    ) -> Option<(ReplicaStore, RecoveredState)> {
        REPLICATED.then(|| open_replica_store(peer, 16 << 10, observed))
    }

    fn observe(
        &mut self,
        observed: &mut Observations,
        client: Peer,
        (action, began_ms): (Action, u64),
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    ) {
        observed.locks.ends(client, &action, began_ms, result, now_ms);
        let history = &mut observed.history;
        match (&action, result) {
            (Action::Create(value), Ok(Response::Created(id))) => {
                history.creation_ends(*id, number_of(value), now_ms);
                observed.chunks.push(*id);
            }
            (Action::Put(id, value), Ok(Response::Ok)) => {
                history.write_ends(*id, number_of(value), now_ms);
            }
            (Action::Get(id), Ok(Response::Value(value))) => {
                history.read(*id, number_of(value), began_ms, now_ms);
                observed.locks.read(*id, number_of(value), now_ms);
            }
            (Action::Delete(id), Ok(Response::Ok)) => {
                history.write_ends(*id, removal_of(began_ms), now_ms);
            }
            (Action::Fenced(change), Ok(Response::Ok)) => {
                let value = change.value.as_deref().map_or(removal_of(began_ms), number_of);
                history.write_ends(change.id, value, now_ms);
            }
            // Another client holds the lock, or the lock of the token has ended.
            (Action::Put(..), Err(ChunkError::Locked))
            | (Action::Fenced(_), Err(ChunkError::Fenced)) => {
                history.write_refused(number_of(action.value()));
            }
            (Action::Delete(_) | Action::Lock { .. }, Err(ChunkError::Locked))
            | (Action::Unlock(_), Err(ChunkError::Locked | ChunkError::NotLocked))
            | (Action::Lock { .. }, Ok(Response::Locked(_)))
            | (Action::Unlock(_), Ok(Response::Ok)) => {}
            (action, Err(ChunkError::NoChunk)) if REPLICATED => {
                if let Some(id) = action.id() {
                    history.missing(id, now_ms);
                }
            }
            (action, Err(ChunkError::Unavailable)) if !action.value().is_empty() => {
                history.write_refused(number_of(action.value()));
            }
            (_, Err(ChunkError::Unavailable | ChunkError::Unknown)) => {}
            (action, result) => {
                observed.wrong_answers.push(format!("{now_ms}: {action:?} got {result:?}"));
            }
        }
    }

    fn work(
        host: &mut WorkloadNode<Self>,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        host.write_and_read(observed, random, now_ms, out);
    }
}

impl<const REPLICATED: bool> WorkloadNode<ChunkWorkload<REPLICATED>> {
    /// Operations of a client in flight at most.
    const IN_FLIGHT_MAX: usize = if REPLICATED { 32 } else { 8 };

    /// Reads a chunk.
    pub fn get(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<NodeCommand>) {
        self.submit(Action::Get(id), now_ms, out);
    }

    /// A value that nobody else writes.
    pub(crate) fn new_value(&mut self) -> u64 {
        self.workload.next_value += 1;
        let incarnation = u64::from(self.peer.incarnation) & 0xFFF;
        u64::from(self.peer.node.get()) << 48 | incarnation << 36 | self.workload.next_value
    }

    fn write_and_read(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        if random.percent(10) {
            self.move_random(observed, random, now_ms, out);
        }
        if self.in_flight.len() > Self::IN_FLIGHT_MAX {
            return;
        }
        if observed.has_contended_locks && random.percent(50) {
            return self.use_lock(observed, random, now_ms, out);
        }
        let began_ms = observed.true_ms;
        let value = self.new_value();
        let Some(id) = random.pick(&observed.chunks).copied().filter(|_| random.percent(95)) else {
            observed.history.creation_begins(value, began_ms);
            let action = Action::Create(value.to_le_bytes().to_vec());
            observed.recorder.begins(self.peer, &action, began_ms);
            return self.submit(action, now_ms, out);
        };
        let action = match random.below(10) {
            0..5 => Action::Get(id),
            5 => Action::Lock { id, lease_ms: 200 },
            6 => Action::Unlock(id),
            7 if REPLICATED && random.percent(10) => {
                observed.chunks.retain(|other| *other != id);
                observed.history.removal_begins(id, removal_of(began_ms), began_ms);
                Action::Delete(id)
            }
            _ => {
                observed.history.write_begins(id, value, began_ms);
                Action::Put(id, value.to_le_bytes().to_vec())
            }
        };
        observed.locks.begins(self.peer, &action, began_ms);
        observed.recorder.begins(self.peer, &action, began_ms);
        self.submit(action, now_ms, out);
    }

    /// Moves a few ids around one that this node serves.
    fn move_random(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let target = *random.pick(&observed.peers).expect("there is one");
        let chunks = observed.chunks.iter().filter(|id| self.node.chunks().serves(**id));
        let own: Vec<ChunkId> = chunks.copied().collect();
        let Some(first) = random.pick(&own).copied() else { return };
        let length = if random.percent(50) { 1 } else { 1 + random.below(80) };
        let ids = IdRange::starting_at(first, length).expect("a range");
        self.node.migrate(ids, target, now_ms, out);
    }
}
