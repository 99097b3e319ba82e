//! The coordinator's view: the members, and the groups that hold the metadata.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ring::RingSegment;
use crate::ids::NodeId;
use crate::interval_map::IntervalMap;

/// A node in one of its incarnations. A restarted node has a higher incarnation and no memory, so
/// what it promised and stored before does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// Number of starts of the node.
    pub incarnation: u32,
}

impl Peer {
    /// The super peers that watch this member, given all super peers in ring order: those that
    /// follow it on the ring.
    pub(super) fn watchers(self, supers: &[Peer]) -> Vec<Peer> {
        let next = supers.partition_point(|peer| peer.node <= self.node);
        let around = supers[next..].iter().chain(&supers[..next]);
        around.copied().filter(|peer| *peer != self).take(WATCHERS).collect()
    }
}

/// Orders the leaders of a part of the ring; no two leaders share a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// Grows with every attempt.
    pub number: u64,
    /// The peer that attempts to lead. A new incarnation has forgotten its earlier attempts.
    pub leader: Peer,
}

/// The super peers that hold the metadata of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The term since which they hold it.
    pub term: Term,
    /// The leader first, then its successors on the ring.
    pub members: Vec<Peer>,
}

impl Group {
    /// Members that form a majority.
    pub fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// The fewest members of which every majority has one: half of an even number.
    pub fn witnesses(&self) -> usize {
        self.members.len() + 1 - self.majority()
    }

    /// Whom `me` sends a lookup to: the leader or, if it is a repeated one, a follower, itself if
    /// it is one. `number` differs from lookup to lookup, so that another follower is asked each
    /// time.
    pub fn answerer(&self, me: Peer, is_repeated: bool, number: u64) -> Option<Peer> {
        let (leader, followers) = self.members.split_first()?;
        let place = usize::try_from(number).unwrap_or_default() % followers.len().max(1);
        match is_repeated {
            true if followers.contains(&me) => Some(me),
            true => Some(*followers.get(place).unwrap_or(leader)),
            false => Some(*leader),
        }
    }
}

/// More than half of `members`.
pub(super) fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// Super peers that hold a segment's metadata, if there are enough. A majority of five is left when
/// two of them die at once.
pub const GROUP_MEMBERS: usize = 5;

/// Super peers that watch a member, if there are enough.
const WATCHERS: usize = 3;

/// Votes that a member is removed by, at least.
const VOTES_MIN: usize = 2;

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its present incarnation.
    pub incarnation: u32,
    /// Whether it is a super peer.
    pub is_super: bool,
}

/// The state of the coordinator at a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Grows with every change.
    pub revision: u64,
    /// The members.
    pub members: BTreeMap<NodeId, Member>,
    /// The group that holds the metadata at each position of the ring, where there is one.
    pub groups: IntervalMap<Group>,
}

impl View {
    /// Whether this incarnation of the node is a member.
    pub fn has(&self, peer: Peer) -> bool {
        self.incarnation(peer.node) == Some(peer.incarnation)
    }

    /// All members in their present incarnations.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        let members = self.members.iter();
        members.map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
    }

    /// The present incarnation of a node; None if it is not a member.
    pub fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.members.get(&node).map(|member| member.incarnation)
    }

    /// Whether a peer is a super peer.
    pub fn is_super(&self, peer: Peer) -> bool {
        self.has(peer) && self.members[&peer.node].is_super
    }

    /// The super peers in ring order.
    pub fn supers(&self) -> impl DoubleEndedIterator<Item = Peer> + Clone {
        let supers = self.members.iter().filter(|(_, member)| member.is_super);
        supers.map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
    }

    /// The segment of a super peer; None for any other peer.
    pub fn segment(&self, own: Peer) -> Option<RingSegment> {
        if !self.is_super(own) {
            return None;
        }
        let before = self.supers().rev().find(|peer| peer.node < own.node);
        let predecessor = before.or_else(|| self.supers().next_back())?;
        Some(RingSegment::between(predecessor.node, own.node))
    }

    /// The group that should hold a super peer's segment: itself and its successors.
    pub fn wanted_group(&self, own: Peer) -> Vec<Peer> {
        let after = self.supers().filter(|peer| peer.node >= own.node);
        let around = after.chain(self.supers().filter(|peer| peer.node < own.node));
        around.take(GROUP_MEMBERS).collect()
    }

    /// The super peers that watch a member, and vote against it if it does not answer.
    pub fn watchers(&self, member: Peer) -> Vec<Peer> {
        member.watchers(&self.supers().collect::<Vec<_>>())
    }

    /// Whether these votes suffice to remove a member: they come from a majority of its watchers,
    /// and from two at least.
    pub fn is_voted_out(&self, member: Peer, voters: &[Peer]) -> bool {
        let watchers = self.watchers(member);
        let votes = watchers.iter().filter(|watcher| voters.contains(watcher)).count();
        self.has(member) && votes >= majority(watchers.len()).max(VOTES_MIN)
    }

    /// The groups that hold a segment at present, part by part.
    pub fn groups_of(&self, segment: RingSegment) -> Vec<(Range<u64>, Group)> {
        let of_part = |part| self.groups.over(part).map(|(span, group)| (span, group.clone()));
        segment.parts().flat_map(of_part).collect()
    }

    /// The peer to promote next, if there are fewer than `wanted` super peers: the middle of the
    /// longest run of ordinary peers that are fit, so that segments stay of similar size.
    pub fn next_super(&self, wanted: usize, is_fit: impl Fn(Peer) -> bool) -> Option<Peer> {
        if self.supers().count() >= wanted.min(self.members.len()) {
            return None;
        }
        let nodes = self.members.iter().map(|(node, member)| (*node, *member));
        let is_left = |(node, member): &(NodeId, Member)| {
            member.is_super || is_fit(Peer { node: *node, incarnation: member.incarnation })
        };
        let nodes: Vec<(NodeId, Member)> = nodes.filter(is_left).collect();
        let runs = nodes.split(|(_, member)| member.is_super);
        let longest = runs.rev().max_by_key(|run| run.len())?;
        let (node, member) = longest.get(longest.len() / 2)?;
        Some(Peer { node: *node, incarnation: member.incarnation })
    }
}

/// Parameters of the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaySettings {
    /// Super peers per hundred nodes; the paper has 5 to 10.
    pub super_share_percent: u8,
    /// Super peers at least, where there are as many nodes.
    pub supers_min: usize,
    /// Time without an answer after which a message is repeated.
    pub retry_ms: u64,
    /// Interval at which groups compare their digests.
    pub compare_ms: u64,
    /// Interval at which super peers send the list of super peers to their peers, and probe the
    /// members that they watch.
    pub announce_ms: u64,
    /// Time without renewal after which a member is removed.
    pub lease_ms: u64,
    /// Time without an answer after which a super peer votes against a member; a lease at least.
    /// On a busy machine one turn of a sound node's event loop may take seconds.
    pub silence_ms: u64,
    /// Queued edits of one creator at most; more are dropped, and their requesters repeat them.
    pub queue_max: usize,
    /// Whether metadata that is lost with all its holders begins empty where nobody can own
    /// anything any more, as in a cache. Otherwise what it was about stays unserved.
    pub begins_empty: bool,
}

impl Default for OverlaySettings {
    fn default() -> Self {
        Self {
            super_share_percent: 8,
            supers_min: GROUP_MEMBERS,
            retry_ms: 100,
            compare_ms: 1_000,
            announce_ms: 1_000,
            lease_ms: 3_000,
            silence_ms: 5_000,
            queue_max: 4_096,
            begins_empty: false,
        }
    }
}

impl OverlaySettings {
    /// Probes without an answer after which a super peer votes against a member.
    pub(super) fn silent_probes(&self) -> u32 {
        let silence_ms = self.silence_ms.max(self.lease_ms);
        u32::try_from(silence_ms.div_ceil(self.announce_ms.max(1))).unwrap_or(u32::MAX).max(1)
    }

    /// Number of super peers that a cluster of `nodes` should have.
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
        assert_eq!(wanted, [1, 2, 3, 5, 5, 5, 8, 80]);
    }

    #[test]
    fn a_group_is_a_super_peer_and_its_successors() {
        let view = view(&[2, 5, 6, 9, 12, 15], &[3]);
        assert_eq!(view.wanted_group(peer(9)), [9, 12, 15, 2, 5].map(peer));
        assert_eq!(view.segment(peer(2)), Some(RingSegment { first: 16, last: 2 }));
        assert_eq!(view.segment(peer(9)), Some(RingSegment { first: 7, last: 9 }));
        assert_eq!(view.segment(peer(3)), None);
        assert_eq!(view.segment(Peer { incarnation: 2, ..peer(9) }), None);
    }

    #[test]
    fn a_repeated_lookup_goes_to_a_follower() {
        let (term, all) = (Term { number: 1, leader: peer(2) }, [2, 5, 9].map(peer));
        let group = |members: &[Peer]| Group { term, members: members.to_vec() };
        let asked = |me, number| group(&all).answerer(peer(me), true, number);
        assert_eq!(group(&all).answerer(peer(9), false, 0), Some(peer(2)));
        assert_eq!([asked(9, 0), asked(9, 1)], [Some(peer(9)); 2]);
        assert_eq!([asked(2, 0), asked(7, 1)], [5, 9].map(peer).map(Some));
        assert_eq!(group(&all[..1]).answerer(peer(9), true, 3), Some(peer(2)));
        assert_eq!(group(&[]).answerer(peer(9), true, 3), None);
    }

    #[test]
    fn the_middle_of_the_longest_run_is_next() {
        let view = view(&[10], &[1, 2, 20, 21, 22]);
        assert_eq!(view.next_super(3, |_| true), Some(peer(21)));
        assert_eq!(view.next_super(1, |_| true), None);
        assert_eq!(view.next_super(3, |fit| fit != peer(21)), Some(peer(2)));
        assert_eq!(view.next_super(3, |_| false), None);
    }
}
