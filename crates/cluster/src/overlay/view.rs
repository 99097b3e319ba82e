//! Who is there, and who keeps which part of the metadata: what the coordinator knows.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ring::RingSegment;
use crate::ids::NodeId;
use crate::interval_map::IntervalMap;

/// A node in one of its lives. Who restarts comes back with another incarnation and without its
/// memory, so what it promised and stored is not counted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// How often it was started.
    pub incarnation: u32,
}

/// Orders those who lead a part of the ring one after the other; two never have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// Grows with every attempt.
    pub number: u64,
    /// Who attempts, in which life: it forgets what it attempted before.
    pub leader: Peer,
}

/// The super peers that hold the metadata of an segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Since when.
    pub term: Term,
    /// The leader first, then its successors on the ring.
    pub members: Vec<Peer>,
}

impl Group {
    /// How many members make a majority.
    pub fn majority(&self) -> usize {
        majority(self.members.len())
    }
}

/// More than half of `members`.
pub(super) fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// How many super peers hold an segment's metadata, where there are as many.
pub const GROUP_MEMBERS: usize = 3;

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which of its lives this is.
    pub incarnation: u32,
    /// Whether it keeps metadata for others.
    pub is_super: bool,
}

/// The coordinator's state at a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Grows with every change.
    pub revision: u64,
    /// Who is there.
    pub members: BTreeMap<NodeId, Member>,
    /// Who holds the metadata of each position of the ring, as far as somebody does.
    pub groups: IntervalMap<Group>,
}

impl View {
    /// Whether that life of that node goes on.
    pub fn has(&self, peer: Peer) -> bool {
        self.incarnation(peer.node) == Some(peer.incarnation)
    }

    /// The present lives of all.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        let members = self.members.iter();
        members.map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
    }

    /// The present life of a node.
    pub fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.members.get(&node).map(|member| member.incarnation)
    }

    /// Whether a node keeps metadata for others.
    pub fn is_super(&self, peer: Peer) -> bool {
        self.has(peer) && self.members[&peer.node].is_super
    }

    /// The super peers in the order of the ring.
    pub fn supers(&self) -> impl DoubleEndedIterator<Item = Peer> + Clone {
        let supers = self.members.iter().filter(|(_, member)| member.is_super);
        supers.map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
    }

    /// What a super peer is responsible for; none if it is none.
    pub fn segment(&self, own: Peer) -> Option<RingSegment> {
        if !self.is_super(own) {
            return None;
        }
        let before = self.supers().rev().find(|peer| peer.node < own.node);
        let predecessor = before.or_else(|| self.supers().next_back())?;
        Some(RingSegment::between(predecessor.node, own.node))
    }

    /// A super peer and its successors: who should hold its segment.
    pub fn wanted_group(&self, own: Peer) -> Vec<Peer> {
        let after = self.supers().filter(|peer| peer.node >= own.node);
        let around = after.chain(self.supers().filter(|peer| peer.node < own.node));
        around.take(GROUP_MEMBERS).collect()
    }

    /// The groups that hold an segment today, part by part.
    pub fn groups_of(&self, segment: RingSegment) -> Vec<(Range<u64>, Group)> {
        let of_part = |part| self.groups.over(part).map(|(span, group)| (span, group.clone()));
        segment.parts().flat_map(of_part).collect()
    }

    /// Who should be made a super peer next, if `wanted` are more than there are: the one in the
    /// middle of the longest run of ordinary peers, so that segments stay alike.
    pub fn next_super(&self, wanted: usize) -> Option<Peer> {
        if self.supers().count() >= wanted.min(self.members.len()) {
            return None;
        }
        let nodes: Vec<(NodeId, Member)> = self.members.iter().map(|(n, m)| (*n, *m)).collect();
        let runs = nodes.split(|(_, member)| member.is_super);
        let longest = runs.rev().max_by_key(|run| run.len())?;
        let (node, member) = longest.get(longest.len() / 2)?;
        Some(Peer { node: *node, incarnation: member.incarnation })
    }
}

/// Who is made a super peer, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaySettings {
    /// Super peers a hundred nodes; the paper has 5 to 10.
    pub super_share_percent: u8,
    /// Super peers at least, where there are as many nodes.
    pub supers_min: usize,
    /// How long an answer may take before the question is asked again.
    pub retry_ms: u64,
    /// How often those who hold an segment compare their digests.
    pub compare_ms: u64,
    /// How often super peers tell their peers who they are.
    pub announce_ms: u64,
    /// How long a member may be gone before it is none.
    pub lease_ms: u64,
    /// Edits of one creator that wait at most; more are dropped, and asked for again.
    pub queue_max: usize,
}

impl Default for OverlaySettings {
    fn default() -> Self {
        Self {
            super_share_percent: 8,
            supers_min: 3,
            retry_ms: 100,
            compare_ms: 1_000,
            announce_ms: 1_000,
            lease_ms: 3_000,
            queue_max: 4_096,
        }
    }
}

impl OverlaySettings {
    /// How many of `nodes` should be super peers.
    pub fn supers_wanted(&self, nodes: usize) -> usize {
        let share = nodes.saturating_mul(usize::from(self.super_share_percent.min(100)));
        share.div_ceil(100).max(self.supers_min).min(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(supers: &[u16], peers: &[u16]) -> View {
        let member = |is_super| Member { incarnation: 1, is_super };
        let listed = |nodes: &[u16], is_super| {
            let of = move |n: &u16| (NodeId::new(*n).expect("a node"), member(is_super));
            nodes.iter().map(of).collect::<Vec<_>>()
        };
        let members = listed(supers, true).into_iter().chain(listed(peers, false)).collect();
        View { revision: 1, members, groups: IntervalMap::default() }
    }

    fn peer(number: u16) -> Peer {
        Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
    }

    #[test]
    fn the_share_of_super_peers_is_kept() {
        let settings = OverlaySettings::default();
        let wanted = [1, 2, 3, 5, 37, 38, 100, 1000].map(|nodes| settings.supers_wanted(nodes));
        assert_eq!(wanted, [1, 2, 3, 3, 3, 4, 8, 80]);
    }

    #[test]
    fn a_group_is_a_super_peer_and_its_successors() {
        let view = view(&[2, 5, 9, 12], &[3]);
        assert_eq!(view.wanted_group(peer(9)), [peer(9), peer(12), peer(2)]);
        assert_eq!(view.segment(peer(2)), Some(RingSegment { first: 13, last: 2 }));
        assert_eq!(view.segment(peer(9)), Some(RingSegment { first: 6, last: 9 }));
        assert_eq!(view.segment(peer(3)), None);
        assert_eq!(view.segment(Peer { incarnation: 2, ..peer(9) }), None);
    }

    #[test]
    fn the_middle_of_the_longest_run_is_next() {
        let view = view(&[10], &[1, 2, 20, 21, 22]);
        assert_eq!(view.next_super(3), Some(peer(21)));
        assert_eq!(view.next_super(1), None);
    }
}
