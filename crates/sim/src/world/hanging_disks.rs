//! Disks that hang: the node goes on, and what it hands to its disk waits.

use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::Peer;

use super::{Event, LEASE_MS, STUCK_MS, World};
use crate::mutants::Mutant;
use crate::node_process::NodeProcess;

/// How long all disks hang at most before all nodes stop, in milliseconds.
const BEFORE_STOP_MS: u64 = 200;

impl<P: NodeProcess> World<P> {
    /// Has the disk of a random node hang, or at times those of all nodes. A node whose lease that
    /// ends is one that may crash as well.
    pub(super) fn hang_disks(&mut self) {
        let peers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        let Some(peer) = self.hang_random.pick(&peers).copied() else { return };
        if self.hang_random.percent(10) {
            let for_ms = 1 + self.hang_random.below(STUCK_MS);
            return peers.into_iter().for_each(|peer| self.hang_disk(peer.node, for_ms));
        }
        let is_long = self.hang_random.percent(20);
        let most_ms = if is_long && !self.is_needed(peer) { 2 * LEASE_MS } else { STUCK_MS };
        let for_ms = 1 + self.hang_random.below(most_ms);
        self.hang_disk(peer.node, for_ms);
    }

    /// Has all disks hang just before all nodes stop. Whether they have only begun to.
    pub(super) fn hang_before_stop(&mut self) -> bool {
        let hangs = self.observed.disks.values().any(|disk| disk.hangs_ms.is_some());
        if !self.faults.hangs || hangs || self.hang_random.percent(30) {
            return false;
        }
        let nodes: Vec<NodeId> = self.observed.disks.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.hang_disk(node, BEFORE_STOP_MS));
        let for_ms = 1 + self.hang_random.below(BEFORE_STOP_MS);
        self.queue.schedule(self.now_ms + for_ms, Event::ClusterStops);
        true
    }

    fn hang_disk(&mut self, node: NodeId, for_ms: u64) {
        let Some(disk) = self.observed.disks.get_mut(&node) else { return };
        if disk.hangs_ms.is_none() {
            let until_ms = self.now_ms + for_ms;
            let is_hidden = self.mutant == Mutant::AcknowledgesBeforeWriting;
            disk.hang(self.now_ms, until_ms, is_hidden);
            self.observed.coverage.record("a disk that hangs");
            self.queue.schedule(until_ms, Event::DiskReturns(node));
        }
    }

    /// The disk carries out what waited.
    pub(super) fn release_disk(&mut self, node: NodeId) {
        let Some(disk) = self.observed.disks.get_mut(&node) else { return };
        // A disk that crashed meanwhile may hang again.
        if disk.hangs_ms.is_some_and(|(_, until_ms)| until_ms <= self.now_ms) {
            if disk.queued() > 0 {
                self.observed.coverage.record("a disk that hung while writes waited");
            }
            disk.release();
        }
    }

    /// Whether the node's disk hangs for so long that its lease may end.
    pub(super) fn is_stuck(&self, node: NodeId) -> bool {
        let hangs_ms = self.observed.disks.get(&node).and_then(|disk| disk.hangs_ms);
        hangs_ms.is_some_and(|(since_ms, until_ms)| until_ms > since_ms + STUCK_MS)
    }
}
