//! Who is a member, and who holds which metadata: decided in one place.
//!
//! A cluster keeps these decisions in etcd. [`Coordinator`] is the same set of transactions as a
//! state machine: for a whole cluster on one machine, and for simulation.
//!
//! Invariants of this room:
//! 1. Every change is one step that compares what the proposer saw; who saw something else is
//!    refused and nothing changes.
//! 2. A name keeps its node id for ever, each life of it gets a higher incarnation, and no id is
//!    given to another name: no chunk can name two nodes.
//! 3. A member whose lease ended is none before anybody can be told so.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::ids::{NAMED_FIRST, NodeId};
use crate::overlay::{Group, Member, OverlaySettings, Peer, RingSegment, Term, View};

/// What a member asks the coordinator to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Make an ordinary peer a super peer.
    Promote(Peer),
    /// Say that nobody leads an segment but whose term this is, or a later one, if it is still held as
    /// `replaces` says: what was proposed before is refused then. Its groups stay.
    Claim {
        /// The positions.
        segment: RingSegment,
        /// A term that no group has.
        term: Term,
        /// As in [`Self::Regroup`].
        replaces: Vec<(Range<u64>, Group)>,
    },
    /// Give an segment to another group, if it is still held as `replaces` says.
    Regroup {
        /// The positions.
        segment: RingSegment,
        /// Who shall hold them.
        group: Group,
        /// Who does, part by part; parts that nobody holds are missing.
        replaces: Vec<(Range<u64>, Group)>,
    },
}

/// Why a request to the coordinator was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorError {
    /// The proposer saw an older state.
    Outdated,
    /// That life of that node is over.
    NoMember,
    /// All node ids are taken.
    Full,
    /// The node holds metadata that would be lost with it; ask again when others have it.
    Needed,
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outdated => "the proposal was made from an older state",
            Self::NoMember => "this life of the node is over",
            Self::Full => "all node ids are taken",
            Self::Needed => "the node holds metadata that others do not have yet",
        })
    }
}

impl std::error::Error for CoordinatorError {}

/// The embedded stand-in for etcd. Time is an argument, in milliseconds.
#[derive(Debug)]
pub struct Coordinator {
    settings: OverlaySettings,
    lease_ms: u64,
    view: View,
    /// A node's name -> its id and the last incarnation.
    names: BTreeMap<String, Peer>,
    /// When each lease ends.
    leases: BTreeMap<NodeId, u64>,
}

impl Coordinator {
    /// Of an empty cluster whose members' leases last `lease_ms`.
    pub fn new(settings: OverlaySettings, lease_ms: u64) -> Self {
        let view = View::default();
        Self { settings, lease_ms, view, names: BTreeMap::new(), leases: BTreeMap::new() }
    }

    /// The same again, of what [`Self::view`] and [`Self::names`] said. Leases are kept elsewhere.
    pub fn resume(
        settings: OverlaySettings,
        lease_ms: u64,
        view: View,
        names: BTreeMap<String, Peer>,
    ) -> Self {
        Self { settings, lease_ms, view, names, leases: BTreeMap::new() }
    }

    /// All names that ever joined, with their last lives.
    pub fn names(&self) -> &BTreeMap<String, Peer> {
        &self.names
    }

    /// The lease of a member ended, where others keep leases.
    pub fn end(&mut self, peer: Peer) {
        if self.view.has(peer) {
            self.remove(peer.node);
        }
    }

    /// What is decided so far.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A node starts. One that joins under its name again while it is a member replaces itself.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Full`].
    pub fn join(&mut self, name: &str, now_ms: u64) -> Result<Peer, CoordinatorError> {
        let peer = match self.names.get(name) {
            Some(last) => Peer { incarnation: last.incarnation + 1, ..*last },
            None => {
                let number = u16::try_from(self.names.len()).ok();
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
        // The first members need nobody's leave to keep metadata.
        let wanted = self.settings.supers_wanted(self.view.members.len());
        if self.view.supers().count() < wanted.min(self.settings.supers_min) {
            self.promote(peer)?;
        }
        Ok(peer)
    }

    /// Prolongs a lease.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::NoMember`] if it ended.
    pub fn keep_alive(&mut self, peer: Peer, now_ms: u64) -> Result<(), CoordinatorError> {
        self.expire(now_ms);
        if !self.view.has(peer) {
            return Err(CoordinatorError::NoMember);
        }
        self.leases.insert(peer.node, now_ms + self.lease_ms);
        Ok(())
    }

    /// Gives lives a whole lease again, as after a time in which nobody could be heard.
    pub fn prolong(&mut self, peers: &[Peer], now_ms: u64) {
        for peer in peers.iter().filter(|peer| self.view.has(**peer)) {
            self.leases.insert(peer.node, now_ms + self.lease_ms);
        }
    }

    /// Ends the leases that are over.
    pub fn expire(&mut self, now_ms: u64) {
        let over = |(node, end): (&NodeId, &u64)| (*end <= now_ms).then_some(*node);
        for node in self.leases.iter().filter_map(over).collect::<Vec<_>>() {
            self.remove(node);
        }
    }

    /// A node stops on purpose.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Needed`] if a group would be left without a majority.
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

    /// Whether a group would be left without a majority if a member stopped now.
    pub fn is_needed(&self, peer: Peer) -> bool {
        let stays = |member: &&Peer| **member != peer && self.view.has(**member);
        self.view.groups.iter().any(|(_, group)| {
            let left = group.members.iter().filter(stays).count();
            group.members.contains(&peer) && left < group.majority()
        })
    }

    /// Decides a proposal.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Outdated`] if it was made from another state.
    pub fn propose(&mut self, proposal: &Proposal) -> Result<(), CoordinatorError> {
        match proposal {
            Proposal::Promote(peer) => {
                let wanted = self.settings.supers_wanted(self.view.members.len());
                if self.view.next_super(wanted).is_none() || self.view.is_super(*peer) {
                    return Err(CoordinatorError::Outdated);
                }
                self.promote(*peer)
            }
            Proposal::Claim { segment, term, replaces } => {
                // What nobody holds is held by a group of nobody, so that it is claimed as well.
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
        self.view.members.remove(&node);
        self.view.revision += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: usize) -> (Coordinator, Vec<Peer>) {
        let mut coordinator = Coordinator::new(OverlaySettings::default(), 1_000);
        let join = |n: usize| coordinator.join(&format!("node-{n}"), 0).expect("there is room");
        let peers = (0..nodes).map(join).collect();
        (coordinator, peers)
    }

    #[test]
    fn a_name_keeps_its_id_and_each_life_is_told_apart() {
        let (mut coordinator, peers) = cluster(3);
        coordinator.expire(1_000);
        assert!(coordinator.view().members.is_empty());
        assert_eq!(coordinator.keep_alive(peers[1], 1_000), Err(CoordinatorError::NoMember));
        let other = coordinator.join("other", 1_000).expect("there is room");
        assert!(peers.iter().all(|peer| peer.node != other.node), "no id is given again");
        let again = coordinator.join("node-1", 1_000).expect("there is room");
        assert_eq!(again, Peer { incarnation: 2, ..peers[1] });
        assert!(!coordinator.view().has(peers[1]));
        assert_eq!(coordinator.keep_alive(again, 1_500), Ok(()));
        coordinator.expire(2_000);
        assert_eq!(coordinator.view().members.keys().collect::<Vec<_>>(), [&again.node]);
    }

    #[test]
    fn a_proposal_from_another_state_changes_nothing() {
        let (mut coordinator, peers) = cluster(5);
        assert_eq!(coordinator.view().supers().count(), 3);
        let promote = Proposal::Promote(peers[4]);
        assert_eq!(coordinator.propose(&promote), Err(CoordinatorError::Outdated));
        let segment = coordinator.view().segment(peers[0]).expect("a super peer");
        let group = |number| Group {
            term: Term { number, leader: peers[0] },
            members: peers[..3].to_vec(),
        };
        let regroup =
            |number, replaces| Proposal::Regroup { segment, group: group(number), replaces };
        assert_eq!(coordinator.propose(&regroup(2, Vec::new())), Ok(()));
        let before = coordinator.view().clone();
        assert_eq!(coordinator.propose(&regroup(3, Vec::new())), Err(CoordinatorError::Outdated));
        let held = before.groups_of(segment);
        assert_eq!(coordinator.propose(&regroup(2, held.clone())), Err(CoordinatorError::Outdated));
        assert_eq!(coordinator.view(), &before);
        // Who claims an segment is the only one who can give it to somebody.
        let term = Term { number: 4, leader: peers[1] };
        let claim = Proposal::Claim { segment, term, replaces: held.clone() };
        assert_eq!(coordinator.propose(&claim), Ok(()));
        assert_eq!(coordinator.propose(&claim), Err(CoordinatorError::Outdated));
        assert_eq!(coordinator.propose(&regroup(5, held)), Err(CoordinatorError::Outdated));
        let held = coordinator.view().groups_of(segment);
        assert!(held.iter().all(|(_, group)| group.term == term && group.members == peers[..3]));
        assert_eq!(coordinator.propose(&regroup(5, held)), Ok(()));
        // Two of three hold a majority, one of three does not.
        assert_eq!(coordinator.leave(peers[1]), Ok(()));
        assert_eq!(coordinator.leave(peers[2]), Err(CoordinatorError::Needed));
    }
}
