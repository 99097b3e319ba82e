//! The lock workload: clients that compete for the locks of a few chunks, with leases of seconds,
//! and change them with tokens that may be old.

use amalgam_cluster::chunks::{Action, FencedChange};
use amalgam_cluster::node::NodeCommand;

use crate::chunk_workload::{ChunkWorkload, removal_of};
use crate::node_process::WorkloadNode;
use crate::observations::Observations;
use crate::random::Random;

/// Chunks for whose locks clients compete.
const CONTENDED: usize = 12;
/// The longest and the shortest lease of a lock; a failover takes a few seconds.
const LEASE_MS: std::ops::Range<u64> = 1_000..10_000;
/// Tokens of a chunk from which clients choose.
const TOKENS: usize = 4;

impl<const REPLICATED: bool> WorkloadNode<ChunkWorkload<REPLICATED>> {
    /// Starts an operation that takes, ends or needs the lock of a contended chunk. There may be
    /// no chunk yet.
    pub(crate) fn use_lock(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let contended = observed.chunks.len().min(CONTENDED);
        let Some(id) = random.pick(&observed.chunks[..contended]).copied() else { return };
        let tokens: Vec<u64> = observed.locks.tokens(id).take(TOKENS).collect();
        let newest = if random.percent(75) { 1 } else { TOKENS };
        let token = random.pick(&tokens[..newest.min(tokens.len())]).copied();
        let (began_ms, value) = (observed.true_ms, self.new_value());
        let action = match (random.below(20), token) {
            (0, _) => Action::Unlock(id),
            (1..8, _) | (_, None) => {
                let lease_ms = LEASE_MS.start + random.below(LEASE_MS.end - LEASE_MS.start);
                Action::Lock { id, lease_ms }
            }
            (8..11, _) => {
                observed.history.write_begins(id, value, began_ms);
                Action::Put(id, value.to_le_bytes().to_vec())
            }
            (11, Some(token)) if REPLICATED && random.percent(10) => {
                observed.chunks.retain(|other| *other != id);
                observed.history.removal_begins(id, removal_of(began_ms), began_ms);
                Action::Fenced(Box::new(FencedChange { id, token, value: None }))
            }
            (_, Some(token)) => {
                observed.history.write_begins(id, value, began_ms);
                let value = Some(value.to_le_bytes().to_vec());
                Action::Fenced(Box::new(FencedChange { id, token, value }))
            }
        };
        observed.locks.begins(self.peer, &action, began_ms);
        observed.recorder.begins(self.peer, &action, began_ms);
        self.submit(action, now_ms, out);
    }
}
