//! The coordinator: it alone decides who is a member and which group holds which metadata.
//!
//! A cluster keeps these decisions in etcd. [`Coordinator`] is the same set of transactions as a
//! state machine, for a whole cluster in one process and for simulation.
//!
//! Invariants of this module:
//! 1. Every change is one step that compares the state with what the proposer saw; a proposal made
//!    from another state is refused and changes nothing.
//! 2. A name keeps its node id for ever, each start gets a higher incarnation, and no id is given
//!    to a second name: no chunk id can name two nodes.
//! 3. A member whose lease ended leaves the view before any node can learn that it left.
//! 4. A member that a majority of its watchers vote against leaves the view like one whose lease
//!    ended: its lease is not renewed, and it is a member until a full lease after the vote.
//! 5. A name's next incarnation joins only after the lease of the one before has ended: no two
//!    processes serve the same data, whichever of them clients reach.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::ids::{NAMED_FIRST, NodeId};
pub use crate::overlay::Proposal;
use crate::overlay::{
    Group, Member, OverlaySettings, Peer, RingSegment, VOTE_MS, VOTE_OUT_LEASES, View,
};

/// A node that comes back becomes a super peer at once if there are fewer than these.
const RETURNED_SUPERS_MAX: usize = 2;

/// The reason for which the coordinator refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorError {
    /// The proposal was made from an older state.
    Outdated,
    /// This incarnation of the node is no longer a member.
    NoMember,
    /// All node ids are taken.
    Full,
    /// The node holds metadata that would be lost with it; retry when other nodes hold it.
    Needed,
    /// The lease of the name's previous incarnation has not ended; retry when it has.
    Alive,
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outdated => {
                "the proposal was made from an older state; read the view and propose again"
            }
            Self::NoMember => {
                "this incarnation of the node is no longer a member; it must join again"
            }
            Self::Full => {
                "all node ids are taken; start the node under a name that has joined before"
            }
            Self::Needed => {
                "the node holds metadata that others do not have yet; retry the leave later"
            }
            Self::Alive => {
                "another process holds a lease under this name: stop it, or choose another name \
                 (--name)"
            }
        })
    }
}

impl std::error::Error for CoordinatorError {}

/// The in-process stand-in for etcd. Times are arguments, in milliseconds.
#[derive(Debug)]
pub struct Coordinator {
    settings: OverlaySettings,
    lease_ms: u64,
    view: View,
    /// A node's name -> its id and last incarnation.
    names: BTreeMap<String, Peer>,
    /// When each lease ends.
    leases: BTreeMap<NodeId, u64>,
    /// Members with votes against them: the voters, and until when each vote counts.
    votes: BTreeMap<Peer, BTreeMap<Peer, u64>>,
    /// The member that was voted out last, until its lease has ended; the lease is not renewed.
    fenced: Option<Peer>,
    /// When the next member may be voted out.
    next_vote_out_ms: u64,
}

impl Coordinator {
    /// An empty cluster whose members' leases last `lease_ms`.
    pub fn new(settings: OverlaySettings, lease_ms: u64) -> Self {
        Self::resume(settings, lease_ms, View::default(), BTreeMap::new())
    }

    /// Restores a coordinator from what [`Self::view`] and [`Self::names`] returned. Leases are
    /// kept elsewhere.
    pub fn resume(
        settings: OverlaySettings,
        lease_ms: u64,
        view: View,
        names: BTreeMap<String, Peer>,
    ) -> Self {
        let (leases, votes, fenced) = (BTreeMap::new(), BTreeMap::new(), None);
        Self { settings, lease_ms, view, names, leases, votes, fenced, next_vote_out_ms: 0 }
    }

    /// All names that ever joined, with their last incarnations.
    pub fn names(&self) -> &BTreeMap<String, Peer> {
        &self.names
    }

    /// Removes a member whose lease ended, where leases are kept elsewhere.
    pub fn end(&mut self, peer: Peer) {
        if self.view.has(peer) {
            self.remove(peer.node);
        }
    }

    /// The state as decided so far.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Starts a node under a name. A name that joined before gets a new incarnation.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Alive`] if the previous incarnation is a member;
    /// [`CoordinatorError::Full`] if all node ids are taken.
    pub fn join(&mut self, name: &str, now_ms: u64) -> Result<Peer, CoordinatorError> {
        let peer = match self.names.get(name) {
            Some(last) if self.view.has(*last) => return Err(CoordinatorError::Alive),
            Some(last) => {
                let next = last.incarnation.checked_add(1).ok_or(CoordinatorError::Full)?;
                Peer { incarnation: next, ..*last }
            }
            None => {
                // The number of names, as none is ever removed, unless the state was damaged.
                let last = self.names.values().map(|peer| peer.node.get()).max();
                let number = last.map_or(Some(0), |last| last.checked_add(1));
                let number = number.filter(|number| *number < NAMED_FIRST);
                let node = number.and_then(|number| NodeId::new(number).ok());
                Peer { node: node.ok_or(CoordinatorError::Full)?, incarnation: 1 }
            }
        };
        self.names.insert(name.to_owned(), peer);
        self.leases.insert(peer.node, now_ms + self.lease_ms);
        let member = Member { incarnation: peer.incarnation, is_super: false };
        self.view.members.insert(peer.node, member);
        self.view.revision += 1;
        // The first members become super peers without a proposal. If there are two, they promote
        // one that comes back once it answers them: it may be a member that was voted out.
        let wanted = self.settings.supers_wanted(self.view.members.len());
        let most =
            if peer.incarnation > 1 { RETURNED_SUPERS_MAX } else { self.settings.supers_min };
        if self.view.supers().count() < wanted.min(most) {
            self.promote(peer)?;
        }
        Ok(peer)
    }

    /// Renews a lease.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::NoMember`] if it has ended.
    pub fn keep_alive(&mut self, peer: Peer, now_ms: u64) -> Result<(), CoordinatorError> {
        self.expire(now_ms);
        if !self.view.has(peer) || self.fenced == Some(peer) {
            return Err(CoordinatorError::NoMember);
        }
        self.leases.insert(peer.node, now_ms + self.lease_ms);
        Ok(())
    }

    /// Gives these peers a full lease again, as after a time in which no renewal could arrive.
    pub fn prolong(&mut self, peers: &[Peer], now_ms: u64) {
        for peer in peers.iter().filter(|peer| self.view.has(**peer)) {
            self.leases.insert(peer.node, now_ms + self.lease_ms);
        }
    }

    /// Removes the members whose leases have ended.
    pub fn expire(&mut self, now_ms: u64) {
        let over = |(node, end): (&NodeId, &u64)| (*end <= now_ms).then_some(*node);
        for node in self.leases.iter().filter_map(over).collect::<Vec<_>>() {
            self.remove(node);
        }
    }

    /// Removes a node that stops on purpose.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Needed`] if no new leader could take over from those whom it leaves;
    /// [`CoordinatorError::NoMember`] if it is not a member.
    pub fn leave(&mut self, peer: Peer) -> Result<(), CoordinatorError> {
        if !self.view.has(peer) {
            return Err(CoordinatorError::NoMember);
        }
        if self.is_needed(peer) && self.view.members.len() > 1 {
            return Err(CoordinatorError::Needed);
        }
        self.remove(peer.node);
        Ok(())
    }

    /// Whether too few members of a group would be left for a takeover if this member stopped now.
    pub fn is_needed(&self, peer: Peer) -> bool {
        let stays = |member: &&Peer| **member != peer && self.view.has(**member);
        self.view.groups.iter().any(|(_, group)| {
            let left = group.members.iter().filter(stays).count();
            group.members.contains(&peer) && left < group.witnesses()
        })
    }

    /// Decides a proposal.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Outdated`] if it was made from another state.
    pub fn propose(&mut self, proposal: &Proposal, now_ms: u64) -> Result<(), CoordinatorError> {
        match proposal {
            Proposal::VoteOut { voter, member } => self.vote_out(*voter, *member, now_ms),
            Proposal::Promote(peer) => {
                let wanted = self.settings.supers_wanted(self.view.members.len());
                if self.view.next_super(wanted, |_| true).is_none() || self.view.is_super(*peer) {
                    return Err(CoordinatorError::Outdated);
                }
                self.promote(*peer)
            }
            Proposal::Claim { segment, term, replaces } => {
                // A part without a group gets an empty group, so that it is reserved as well.
                let nobody = Group { term: *term, members: Vec::new() };
                self.replace(*segment, &nobody, replaces)?;
                for (part, old) in replaces {
                    let group = Group { term: *term, members: old.members.clone() };
                    self.view.groups.assign(part.clone(), Some(group));
                }
                Ok(())
            }
            Proposal::Regroup { segment, group, replaces } => {
                self.replace(*segment, group, replaces)
            }
        }
    }

    /// Counts a vote against a member. Once there are enough, the member's lease is not renewed any
    /// more; it leaves the view when that ends, since until then it may answer.
    fn vote_out(&mut self, voter: Peer, member: Peer, now_ms: u64) -> Result<(), CoordinatorError> {
        if !self.view.has(voter) || !self.view.has(member) {
            return Err(CoordinatorError::NoMember);
        }
        let votes = self.votes.entry(member).or_default();
        votes.insert(voter, now_ms + VOTE_MS);
        votes.retain(|_, until_ms| *until_ms > now_ms);
        let voters: Vec<Peer> = votes.keys().copied().collect();
        if now_ms >= self.next_vote_out_ms && self.may_vote_out(member, &voters) {
            self.fence(member, now_ms);
        }
        Ok(())
    }

    /// Whether a member may be removed by these votes: they suffice, and from what is left of each
    /// group a new leader can take over.
    pub fn may_vote_out(&self, member: Peer, voters: &[Peer]) -> bool {
        self.view.is_voted_out(member, voters) && !self.is_needed(member)
    }

    /// Renews the lease of a member no more, which then ends a full lease from now on.
    pub fn fence(&mut self, member: Peer, now_ms: u64) {
        self.votes.clear();
        self.fenced = Some(member);
        self.leases.insert(member.node, now_ms + self.lease_ms);
        self.next_vote_out_ms = now_ms + VOTE_OUT_LEASES * self.lease_ms;
    }

    /// The member that was voted out and whose lease has not ended.
    pub fn fenced(&self) -> Option<Peer> {
        self.fenced.filter(|peer| self.view.has(*peer))
    }

    fn replace(
        &mut self,
        segment: RingSegment,
        group: &Group,
        replaces: &[(Range<u64>, Group)],
    ) -> Result<(), CoordinatorError> {
        let is_newer = replaces.iter().all(|(_, old)| old.term < group.term);
        if !is_newer || self.view.groups_of(segment) != replaces {
            return Err(CoordinatorError::Outdated);
        }
        for part in segment.parts() {
            self.view.groups.assign(part, Some(group.clone()));
        }
        self.view.revision += 1;
        Ok(())
    }

    fn promote(&mut self, peer: Peer) -> Result<(), CoordinatorError> {
        if !self.view.has(peer) {
            return Err(CoordinatorError::NoMember);
        }
        let member = Member { incarnation: peer.incarnation, is_super: true };
        self.view.members.insert(peer.node, member);
        self.view.revision += 1;
        Ok(())
    }

    fn remove(&mut self, node: NodeId) {
        self.leases.remove(&node);
        self.votes.retain(|member, _| member.node != node);
        self.view.members.remove(&node);
        self.view.revision += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::Term;

    fn cluster(nodes: usize) -> (Coordinator, Vec<Peer>) {
        let mut coordinator = Coordinator::new(OverlaySettings::default(), 1_000);
        let join = |n: usize| coordinator.join(&format!("node-{n}"), 0).expect("there is room");
        let peers = (0..nodes).map(join).collect();
        (coordinator, peers)
    }

    #[test]
    fn a_name_keeps_its_id_and_gets_new_incarnations() {
        let (mut coordinator, peers) = cluster(3);
        coordinator.expire(1_000);
        assert!(coordinator.view().members.is_empty());
        assert_eq!(coordinator.keep_alive(peers[1], 1_000), Err(CoordinatorError::NoMember));
        let other = coordinator.join("other", 1_000).expect("there is room");
        assert!(peers.iter().all(|peer| peer.node != other.node), "no id is given again");
        let again = coordinator.join("node-1", 1_000).expect("its lease has ended");
        assert_eq!(coordinator.join("node-1", 1_000), Err(CoordinatorError::Alive));
        assert_eq!(again, Peer { incarnation: 2, ..peers[1] });
        assert!(!coordinator.view().has(peers[1]));
        assert_eq!(coordinator.keep_alive(again, 1_500), Ok(()));
        coordinator.expire(2_000);
        assert_eq!(coordinator.view().members.keys().collect::<Vec<_>>(), [&again.node]);
    }

    /// A state that was damaged where it is kept must not make two nodes of one.
    #[test]
    fn ids_and_incarnations_are_not_given_twice_whatever_the_names_are() {
        let peer =
            |node, incarnation| Peer { node: NodeId::new(node).expect("a node"), incarnation };
        let names = [("a".to_owned(), peer(1, u32::MAX)), ("b".to_owned(), peer(7, 1))];
        let settings = OverlaySettings::default();
        let mut coordinator =
            Coordinator::resume(settings, 1_000, View::default(), BTreeMap::from(names));
        assert_eq!(coordinator.join("a", 0), Err(CoordinatorError::Full));
        assert_eq!(coordinator.join("b", 0), Ok(peer(7, 2)));
        assert_eq!(coordinator.join("c", 0), Ok(peer(8, 1)));
        assert_eq!(coordinator.join("d", 0), Ok(peer(9, 1)));
    }

    #[test]
    fn a_proposal_from_another_state_changes_nothing() {
        let (mut coordinator, peers) = cluster(6);
        assert_eq!(coordinator.view().supers().count(), 5);
        let promote = Proposal::Promote(peers[5]);
        assert_eq!(coordinator.propose(&promote, 0), Err(CoordinatorError::Outdated));
        let segment = coordinator.view().segment(peers[0]).expect("a super peer");
        let group = |number| Group {
            term: Term { number, leader: peers[0] },
            members: peers[..5].to_vec(),
        };
        let regroup =
            |number, replaces| Proposal::Regroup { segment, group: group(number), replaces };
        assert_eq!(coordinator.propose(&regroup(2, Vec::new()), 0), Ok(()));
        let before = coordinator.view().clone();
        assert_eq!(
            coordinator.propose(&regroup(3, Vec::new()), 0),
            Err(CoordinatorError::Outdated)
        );
        let held = before.groups_of(segment);
        assert_eq!(
            coordinator.propose(&regroup(2, held.clone()), 0),
            Err(CoordinatorError::Outdated)
        );
        assert_eq!(coordinator.view(), &before);
        // Only the node that reserved a segment can give it to a group.
        let term = Term { number: 4, leader: peers[1] };
        let claim = Proposal::Claim { segment, term, replaces: held.clone() };
        assert_eq!(coordinator.propose(&claim, 0), Ok(()));
        assert_eq!(coordinator.propose(&claim, 0), Err(CoordinatorError::Outdated));
        assert_eq!(coordinator.propose(&regroup(5, held), 0), Err(CoordinatorError::Outdated));
        let held = coordinator.view().groups_of(segment);
        assert!(held.iter().all(|(_, group)| group.term == term && group.members == peers[..5]));
        assert_eq!(coordinator.propose(&regroup(5, held), 0), Ok(()));
        // Three of five are a majority, two are not.
        assert_eq!(coordinator.leave(peers[1]), Ok(()));
        assert_eq!(coordinator.leave(peers[2]), Ok(()));
        assert_eq!(coordinator.leave(peers[3]), Err(CoordinatorError::Needed));
    }

    /// Half of an even group hold all that was committed: one of two nodes may stop.
    #[test]
    fn as_many_stay_as_a_takeover_asks() {
        for (members, stay) in [(2, 1), (3, 2), (4, 2), (5, 3)] {
            let (mut coordinator, peers) = cluster(members);
            let segment = coordinator.view().segment(peers[0]).expect("a super peer");
            let term = Term { number: 1, leader: peers[0] };
            let group = Group { term, members: peers.clone() };
            assert_eq!(group.witnesses(), stay);
            let regroup = Proposal::Regroup { segment, group, replaces: Vec::new() };
            assert_eq!(coordinator.propose(&regroup, 0), Ok(()));
            for peer in &peers[stay..] {
                assert_eq!(coordinator.leave(*peer), Ok(()), "{stay} of {members} stay");
            }
            let needed = if stay == 1 { Ok(()) } else { Err(CoordinatorError::Needed) };
            assert_eq!(coordinator.leave(peers[0]), needed, "{stay} of {members} are left");
        }
    }

    #[test]
    fn a_majority_of_the_watchers_votes_a_member_out_and_its_lease_ends_first() {
        let (mut coordinator, peers) = cluster(5);
        let watchers = coordinator.view().watchers(peers[4]);
        assert_eq!(watchers, peers[..3], "the super peers that follow it on the ring");
        let vote = |coordinator: &mut Coordinator, voter, member, now_ms| {
            let fenced = coordinator.fenced();
            let others = coordinator.view().peers().filter(|peer| fenced != Some(*peer));
            coordinator.prolong(&others.collect::<Vec<_>>(), now_ms);
            coordinator.propose(&Proposal::VoteOut { voter, member }, now_ms).expect("members");
        };
        // One of three is no majority, however often it votes; nor is one that does not watch.
        for voter in [peers[0], peers[0], peers[3]] {
            vote(&mut coordinator, voter, peers[4], 100);
        }
        assert_eq!(coordinator.fenced(), None);
        // The first vote counts no more.
        vote(&mut coordinator, peers[1], peers[4], 100 + VOTE_MS);
        assert_eq!(coordinator.fenced(), None);
        let voted_ms = 200 + VOTE_MS;
        vote(&mut coordinator, peers[2], peers[4], voted_ms);
        assert_eq!(coordinator.fenced(), Some(peers[4]));
        assert_eq!(coordinator.keep_alive(peers[4], voted_ms + 1), Err(CoordinatorError::NoMember));
        // What it may still answer under its lease ends before it leaves the view.
        for peer in &peers[..4] {
            coordinator.keep_alive(*peer, voted_ms + 999).expect("a member");
        }
        assert!(coordinator.view().has(peers[4]));
        assert_eq!(coordinator.join("node-4", voted_ms + 999), Err(CoordinatorError::Alive));
        coordinator.expire(voted_ms + 1_000);
        assert!(!coordinator.view().has(peers[4]) && coordinator.view().members.len() == 4);
        assert_eq!(
            coordinator.join("node-4", voted_ms + 1_000).map(|peer| peer.incarnation),
            Ok(2)
        );
        // The next one has to wait, and is not removed by old votes then.
        for now_ms in [voted_ms + 1_500, voted_ms + 1_000 * VOTE_OUT_LEASES - 1] {
            for voter in [peers[0], peers[1]] {
                vote(&mut coordinator, voter, peers[3], now_ms);
                assert_eq!(coordinator.fenced(), None);
            }
        }
        vote(&mut coordinator, peers[0], peers[3], voted_ms + 1_000 * VOTE_OUT_LEASES);
        assert_eq!(coordinator.fenced(), Some(peers[3]));
    }

    #[test]
    fn no_vote_takes_a_group_what_a_takeover_asks() {
        let (mut coordinator, peers) = cluster(3);
        let segment = coordinator.view().segment(peers[0]).expect("a super peer");
        let term = Term { number: 1, leader: peers[0] };
        let group = Group { term, members: vec![peers[2]] };
        let regroup = Proposal::Regroup { segment, group, replaces: Vec::new() };
        assert_eq!(coordinator.propose(&regroup, 0), Ok(()));
        for member in [peers[2], peers[1]] {
            for voter in peers.iter().copied().filter(|voter| *voter != member) {
                assert_eq!(coordinator.propose(&Proposal::VoteOut { voter, member }, 0), Ok(()));
            }
        }
        assert_eq!(coordinator.fenced(), Some(peers[1]), "the other is needed");
        // Of two members neither can tell which one is cut off.
        let (mut coordinator, peers) = cluster(2);
        let vote = Proposal::VoteOut { voter: peers[0], member: peers[1] };
        assert_eq!(coordinator.propose(&vote, 0), Ok(()));
        assert_eq!(coordinator.fenced(), None);
    }
}
