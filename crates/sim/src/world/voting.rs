//! Members that others cannot reach although their leases are renewed, and the votes against them.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::Action;
use amalgam_cluster::coordinator::Proposal;
use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::{Message, Peer, VOTE_MS};
use amalgam_cluster::wire::Packet;

use super::{LEASE_MS, World};
use crate::mutants::Mutant;
use crate::node_process::{NodeProcess, Workload, WorkloadNode};

/// Silence after which a super peer votes, in runs with one-way cuts.
pub(super) const SILENCE_MS: u64 = 3_000;
/// A one-way cut lasts this long, in milliseconds; at times it heals before anybody votes.
const CUT_MS: std::ops::Range<u64> = 2_000..16_000;

/// Packets of one node to all others, or those of all others to it, are lost. Its lease is renewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneWayCut {
    node: NodeId,
    is_inbound: bool,
    until_ms: u64,
}

/// What the world knows of votes, apart from the coordinator.
#[derive(Debug, Default)]
pub(super) struct Voting {
    pub cut: Option<OneWayCut>,
    /// When each vote against a member arrived last, by member and voter.
    votes: BTreeMap<(Peer, Peer), u64>,
    /// When a super peer was last answered by a member that it probed.
    heard: BTreeMap<(Peer, Peer), u64>,
}

impl<P: NodeProcess> World<P> {
    /// Cuts a node off in one direction for a time, in place of an earlier cut.
    pub fn cut_one_way(&mut self, node: NodeId, is_inbound: bool, for_ms: u64) {
        self.observed.coverage.record("a node cut off in one direction");
        let until_ms = self.now_ms + for_ms;
        self.voting.cut = Some(OneWayCut { node, is_inbound, until_ms });
    }

    /// From now on faults are only those that are asked for.
    pub fn faults_end(&mut self) {
        self.draws_faults = false;
    }

    /// Whether a node is cut off in one direction.
    pub(super) fn is_cut(&self, node: NodeId) -> bool {
        self.voting.cut.is_some_and(|cut| cut.node == node && self.now_ms < cut.until_ms)
    }

    /// Whether a packet passes the one-way cut.
    pub(super) fn passes_cut(&self, from: Peer, to: Peer) -> bool {
        self.voting.cut.is_none_or(|cut| {
            let node = if cut.is_inbound { to.node } else { from.node };
            self.now_ms >= cut.until_ms || node != cut.node || from.node == to.node
        })
    }

    /// Cuts a node off in one direction, if its loss would be spared nobody.
    pub(super) fn draw_cut(&mut self, peer: Peer) {
        if self.voting.cut.is_some_and(|cut| self.now_ms < cut.until_ms) || self.is_needed(peer) {
            return;
        }
        let for_ms = CUT_MS.start + self.random.below(CUT_MS.end - CUT_MS.start);
        let is_inbound = self.random.percent(50);
        self.cut_one_way(peer.node, is_inbound, for_ms);
    }

    /// A packet arrives.
    pub(super) fn note_answer(&mut self, from: Peer, to: Peer, packet: &Packet) {
        if let Packet::Overlay(Message::Alive { .. }) = packet {
            self.voting.heard.insert((to, from), self.now_ms);
        }
    }

    /// A node makes a proposal. It votes only against a member that it has not heard.
    pub(super) fn check_proposal(&mut self, from: Peer, proposal: &Proposal) {
        let Proposal::VoteOut { voter, member } = proposal else { return };
        let heard_ms = self.voting.heard.get(&(*voter, *member)).copied().unwrap_or(0);
        let silence_ms = self.settings.silence_ms - self.settings.announce_ms;
        if *voter != from || heard_ms + silence_ms > self.now_ms {
            let now_ms = self.now_ms;
            self.observed.wrong_answers.push(format!(
                "{voter:?} votes against {member:?} at {now_ms}, which answered at {heard_ms}"
            ));
        }
    }

    /// A proposal arrives at the coordinator.
    pub(super) fn decide(&mut self, proposal: &Proposal) {
        let Proposal::VoteOut { voter, member } = *proposal else {
            // A refused proposer learns it from the next view.
            let _ = self.coordinator.propose(proposal, self.now_ms);
            return;
        };
        // As if the network had lost it, where faults spare the member.
        let may_crash = self.faults.crashes || self.faults.worst || self.faults.one_way;
        if self.observed.is_settling || !may_crash || self.is_needed(member) {
            return;
        }
        let before = self.coordinator.fenced();
        self.voting.votes.insert((member, voter), self.now_ms);
        match self.mutant {
            Mutant::VotesWithoutMajority => self.coordinator.fence(member, self.now_ms),
            _ => drop(self.coordinator.propose(proposal, self.now_ms)),
        }
        if before.is_none() && self.coordinator.fenced() == Some(member) {
            self.check_votes(member);
        }
    }

    /// Others take over what a node owns once it is no member: it must not answer any more then.
    pub(super) fn check_removed(&mut self) {
        let (view, now_ms) = (self.coordinator.view(), self.now_ms);
        let removed = self.nodes.values().filter(|node| !view.has(node.peer));
        for node in removed.filter(|node| node.deadline_ms > now_ms) {
            let (peer, deadline_ms) = (node.peer, node.deadline_ms);
            self.observed.wrong_answers.push(format!(
                "{peer:?} was removed at {now_ms}, and may answer until {deadline_ms}"
            ));
        }
    }

    /// A member was voted out: most of the super peers that watch it, and two at least, must have
    /// voted lately.
    fn check_votes(&mut self, member: Peer) {
        self.observed.coverage.record("a member voted out");
        let watchers = self.view().watchers(member);
        let voted = |watcher: &&Peer| {
            let vote_ms = self.voting.votes.get(&(member, **watcher));
            vote_ms.is_some_and(|vote_ms| vote_ms + VOTE_MS > self.now_ms)
        };
        let votes = watchers.iter().filter(voted).count();
        if votes < 2 || 2 * votes <= watchers.len() {
            self.observed
                .wrong_answers
                .push(format!("{member:?} was voted out by {votes} of {}", watchers.len()));
        }
        if self.mutant == Mutant::RemovesBeforeLeaseEnds {
            self.coordinator.end(member);
            if let Some(node) = self.nodes.get_mut(&member) {
                // It renews its lease, and learns that it is gone, when this ends.
                node.keep_alive_ms = self.now_ms + LEASE_MS;
            }
        }
    }
}

impl<W: Workload> World<WorkloadNode<W>> {
    /// Reads all created chunks, through all nodes but one.
    pub fn read_all_without(&mut self, node: NodeId) {
        let clients = self.nodes.keys().copied().filter(|peer| peer.node != node);
        let clients: Vec<Peer> = clients.collect();
        for id in self.observed.chunks.clone() {
            let peer = *self.random.pick(&clients).expect("there is one");
            self.with_node(peer, |host, now_ms, out| host.submit(Action::Get(id), now_ms, out));
        }
        self.run(2_000);
    }

    /// Requests of the clients of all nodes but one that are not answered.
    pub fn waiting_without(&self, node: NodeId) -> usize {
        let others = self.nodes.values().filter(|other| other.peer.node != node);
        others.map(|other| other.process.waiting()).sum()
    }
}
