//! What is promised to survive, which the world's faults leave alone: a majority of each group, and
//! one copy of each range.

use amalgam_cluster::overlay::Peer;

use super::{LEASE_MS, Node, World};
use crate::node_process::NodeProcess;

impl<P: NodeProcess> World<P> {
    /// Whether what all nodes have had when they ended is where it should be again.
    pub(super) fn note_recovered(&mut self) {
        if !self.is_recovering_all() || !self.is_backed_up() {
            return;
        }
        // Groups of today hold all that was committed; what is not among it will never be.
        let unrecovered = std::mem::take(&mut self.unrecovered);
        let is_old =
            |peer: Peer| unrecovered.get(&peer.node).is_some_and(|last| peer.incarnation <= *last);
        self.pending_sets.retain(|(_, request), _| !is_old(request.peer));
    }

    pub(super) fn is_recovering_all(&self) -> bool {
        !self.unrecovered.is_empty()
    }

    /// Whether of every group a majority runs, and of every range a backup: its log has all. What
    /// its owner has is in memory.
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
                .all(|(_, group)| group.members.iter().filter(runs).count() >= group.majority())
            && truth
                .summaries()
                .all(|summary| truth.replica_sets(summary.creator).all(|peers| has_backup(&peers)))
    }

    /// Whether a life runs, and not only stands.
    fn runs(&self, peer: Peer) -> bool {
        let node = self.nodes.get(&peer.node).filter(|node| node.peer == peer);
        let is_stalling = self.stalling.is_some_and(|(stalling, _)| stalling == peer);
        let comes_back = |node: &Node<P>| {
            let ends_ms = node.keep_alive_ms + LEASE_MS / 2;
            node.paused_until_ms <= self.now_ms || node.paused_until_ms < ends_ms
        };
        !is_stalling && self.view().has(peer) && node.is_some_and(comes_back)
    }

    /// Whether what a life keeps is there.
    fn keeps(&self, peer: Peer) -> bool {
        self.rotting_node != Some(peer.node) && self.runs(peer)
    }

    /// Whether a group would be left without a majority of those who run, or a range without any
    /// member of its committed set, or of one that may be committed: the members of a smaller set
    /// count alone from the moment on at which it is asked for.
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
                    && group.members.iter().filter(runs).count() < group.majority()
            })
    }
}
