//! What the world's faults spare, since its durability is promised: members of each group of which
//! every majority has one, and one replica of each range.

use amalgam_cluster::overlay::Peer;

use super::{LEASE_MS, Node, World};
use crate::node_process::NodeProcess;

impl<P: NodeProcess> World<P> {
    /// After all nodes stopped: notes when their state is replicated again.
    pub(super) fn note_recovered(&mut self) {
        if !self.is_recovering_all() || !self.is_backed_up() {
            return;
        }
        // The present groups hold everything committed; an old edit that they lack never will be.
        let unrecovered = std::mem::take(&mut self.unrecovered);
        let is_old =
            |peer: Peer| unrecovered.get(&peer.node).is_some_and(|last| peer.incarnation <= *last);
        self.pending_sets.retain(|(_, request), _| !is_old(request.peer));
    }

    pub(super) fn is_recovering_all(&self) -> bool {
        !self.unrecovered.is_empty()
    }

    /// Whether the logs still hold everything since all nodes stopped, which they do until a node
    /// crashes alone and is replaced.
    pub(super) fn is_in_logs(&self) -> bool {
        self.is_recovering_all() && !self.crashed_alone
    }

    /// Whether enough of every group run, and a backup of every range, whose log has everything.
    /// The owner's state is only in memory.
    pub(super) fn is_backed_up(&self) -> bool {
        let runs = |peer: &&Peer| self.runs(**peer);
        let truth = self.observed.oracle.truth();
        let has_backup = |peers: &[Peer]| peers.iter().skip(1).any(|peer| self.keeps(*peer));
        let mut groups = self.view().groups.iter();
        let is_old = |peer: Peer| {
            self.unrecovered.get(&peer.node).is_some_and(|last| peer.incarnation <= *last)
        };
        let mut asked = self.pending_sets.iter();
        asked.all(|((_, request), peers)| is_old(request.peer) || has_backup(peers))
            && groups
                .all(|(_, group)| group.members.iter().filter(runs).count() >= group.witnesses())
            && truth
                .summaries()
                .all(|summary| truth.replica_sets(summary.creator).all(|peers| has_backup(&peers)))
    }

    /// Whether a node runs, others reach it, and it will be back from a pause before its lease
    /// ends.
    fn runs(&self, peer: Peer) -> bool {
        let node = self.nodes.get(&peer);
        let is_stalling = self.stalling.is_some_and(|(stalling, _)| stalling == peer);
        let comes_back = |node: &Node<P>| {
            let ends_ms = node.keep_alive_ms + LEASE_MS / 2;
            node.paused_until_ms <= self.now_ms || node.paused_until_ms < ends_ms
        };
        !is_stalling
            && !self.is_stuck(peer.node)
            && !self.is_cut(peer.node)
            && self.coordinator.fenced() != Some(peer)
            && self.view().has(peer)
            && node.is_some_and(comes_back)
    }

    /// Whether a node runs and its disk does not rot.
    fn keeps(&self, peer: Peer) -> bool {
        self.rotting_node != Some(peer.node) && self.runs(peer)
    }

    /// Whether without this node a group would have too few that run, or a range would lose the
    /// last member of its committed replica set or of one that may be committed. The members of a
    /// smaller set count alone once it has been asked for.
    pub(super) fn is_needed(&mut self, peer: Peer) -> bool {
        let truth = self.observed.oracle.truth();
        self.pending_sets.retain(|(creator, request), _| {
            truth
                .last_request(*creator, request.peer.node)
                .is_none_or(|seen| seen.request < *request)
        });
        let runs = |member: &&Peer| **member != peer && self.runs(**member);
        let keeps = |member: &Peer| *member != peer && self.keeps(*member);
        let is_left_alone = |peers: &Vec<Peer>| peers.contains(&peer) && !peers.iter().any(keeps);
        let is_last = self.pending_sets.values().any(is_left_alone)
            || truth.summaries().any(|summary| {
                truth.replica_sets(summary.creator).any(|peers| is_left_alone(&peers))
            });
        self.spares_last_holder && is_last
            || self.view().groups.iter().any(|(_, group)| {
                group.members.contains(&peer)
                    && group.members.iter().filter(runs).count() < group.witnesses()
            })
    }
}
