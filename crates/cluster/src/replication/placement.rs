//! Chooses the backups of a range: pseudo-random by range, from few sets, and in different racks.
//!
//! If each range has a set of its own, all other nodes take part in recovering a dead node; but in
//! a large cluster any few nodes lost at once were all replicas of some range. With few *copy sets*
//! (A. Cidon et al., Copysets, USENIX ATC 2013) that is rare: all nodes are put into a
//! pseudo-random order and cut into groups of as many nodes as a range has replicas; there are as
//! many orders as each node has sets. Each node computes the same groups from the members, so sets
//! last as long as the members do.
//!
//! Racks have precedence over sets: a replica goes to a rack that has none yet, as long as there is
//! one.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash::mix;
use crate::ids::{ChunkId, IdRange, NodeId};
use crate::overlay::Peer;

/// The inputs of a choice.
#[derive(Debug)]
pub(super) struct ReplicaPlacement<'c> {
    /// The owner whose backups are chosen.
    pub me: Peer,
    /// Members other than the owner.
    pub others: &'c [Peer],
    /// Copy sets of each node; 0 gives each range a set of its own.
    pub copy_sets: usize,
    /// Replicas in a set, the owner included.
    pub replicas: usize,
    /// Rack of each node; a node without an entry shares its rack with no other.
    pub racks: &'c BTreeMap<NodeId, String>,
    /// Peers that timed out, and until when: chosen only if there is no other, and last of all
    /// those that refused for good (`u64::MAX`).
    pub suspected: &'c BTreeMap<Peer, u64>,
}

fn mixed(number: u64, node: NodeId) -> u64 {
    mix(number ^ u64::from(node.get()).rotate_left(40))
}

impl ReplicaPlacement<'_> {
    /// Chooses up to `count` backups for `ids` in addition to those that `have` them. The choice
    /// and its order depend on the ids, so that many nodes share the recovery of one owner.
    pub fn choose(&self, ids: IdRange, have: &[Peer], count: usize) -> Vec<Peer> {
        let group = self.group(ids);
        let mut racks: BTreeSet<&str> =
            have.iter().chain([&self.me]).filter_map(|peer| self.rack(peer)).collect();
        let mut left: Vec<_> = self.others.iter().filter(|peer| !have.contains(peer)).collect();
        let mut chosen = Vec::new();
        while chosen.len() < count {
            let score = |peer: &Peer| {
                let is_shared = self.rack(peer).is_some_and(|rack| racks.contains(rack));
                let is_outside = !group.contains(peer);
                let random = mixed(ids.start(), peer.node);
                let refused = self.suspected.get(peer).map(|until_ms| *until_ms == u64::MAX);
                (refused, is_shared, is_outside, random, *peer)
            };
            let best = left.iter().enumerate().min_by_key(|(_, peer)| score(peer));
            let Some(place) = best.map(|(place, _)| place) else { break };
            let peer = left.swap_remove(place);
            racks.extend(self.rack(peer));
            chosen.push(*peer);
        }
        chosen
    }

    /// Returns a member of a set that shares a rack with another replica, and a node that would not
    /// in its place.
    pub fn better(&self, start: u64, set: &[Peer]) -> Option<(Peer, Peer)> {
        let shares = |peer: &Peer, with: &[Peer]| {
            let rack = self.rack(peer);
            let mut others = with.iter().chain([&self.me]).filter(|other| *other != peer);
            rack.is_some() && others.any(|other| self.rack(other) == rack)
        };
        if self.racks.is_empty() {
            return None;
        }
        let out = *set.iter().rev().find(|peer| shares(peer, set))?;
        let rest: Vec<Peer> = set.iter().filter(|peer| **peer != out).copied().collect();
        let from = ChunkId::from_bits(start).ok()?;
        let free = self.choose(IdRange::single(from), set, 1).into_iter().next()?;
        let is_better = !self.suspected.contains_key(&free) && !shares(&free, &rest);
        is_better.then_some((out, free))
    }

    fn rack(&self, peer: &Peer) -> Option<&str> {
        self.racks.get(&peer.node).map(String::as_str)
    }

    /// The copy set for `ids` of this owner; empty if there are no copy sets.
    fn group(&self, ids: IdRange) -> Vec<Peer> {
        let all = self.others.len() + 1;
        if self.copy_sets == 0 || self.replicas == 0 || all <= self.replicas {
            return Vec::new();
        }
        let number = mixed(ids.start(), self.me.node) % self.copy_sets as u64;
        let mut order: Vec<Peer> = self.others.iter().chain([&self.me]).copied().collect();
        order.sort_by_key(|peer| (mixed(number, peer.node), *peer));
        let own = order.iter().position(|peer| *peer == self.me).unwrap_or_default();
        // The last group shares members with the one before rather than being smaller.
        let start = (own / self.replicas * self.replicas).min(all - self.replicas);
        order[start..start + self.replicas].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: u16) -> Vec<Peer> {
        let peer = |node| Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 };
        (1..=count).map(peer).collect()
    }

    /// The sets, as sorted nodes, of a hundred ranges of each node.
    fn sets(all: &[Peer], copy_sets: usize, racks: &BTreeMap<NodeId, String>) -> Vec<Vec<NodeId>> {
        let mut sets = Vec::new();
        for me in all {
            let others: Vec<Peer> = all.iter().filter(|peer| *peer != me).copied().collect();
            let (me, suspected) = (*me, &BTreeMap::new());
            let placement =
                ReplicaPlacement { me, others: &others, copy_sets, replicas: 3, racks, suspected };
            for range in 0..100 {
                let id = ChunkId::new(me.node.into(), range << 16).expect("an id");
                let chosen = placement.choose(IdRange::single(id), &[], 2);
                let mut set: Vec<NodeId> =
                    chosen.iter().chain([&me]).map(|peer| peer.node).collect();
                set.sort_unstable();
                set.dedup();
                assert_eq!(set.len(), 3, "different nodes");
                sets.push(set);
            }
        }
        sets
    }

    #[test]
    fn few_copy_sets_are_shared_by_all_nodes_of_a_group() {
        let all = peers(18);
        let distinct = |all: &[Peer], copy_sets| {
            let sets: BTreeSet<_> = sets(all, copy_sets, &BTreeMap::new()).into_iter().collect();
            sets.len()
        };
        // 816 sets of three are possible.
        assert!(distinct(&all, 0) > 600, "{}", distinct(&all, 0));
        // Six groups of three in each order.
        assert_eq!(distinct(&all, 1), 6);
        assert!((20..=24).contains(&distinct(&all, 4)), "{}", distinct(&all, 4));
        // Two nodes are left over: they form a group with one node of another.
        assert_eq!(distinct(&peers(20), 1), 7);
        // The ranges of a dead node are recovered by a few nodes.
        let others = |copy_sets| {
            let sets = sets(&all, copy_sets, &BTreeMap::new());
            let about = sets.into_iter().filter(|set| set.contains(&all[0].node));
            about.flatten().collect::<BTreeSet<_>>().len() - 1
        };
        assert_eq!((others(0), others(1)), (17, 2));
        assert!((5..=8).contains(&others(4)), "{}", others(4));
    }

    #[test]
    fn replicas_lie_in_different_racks_while_there_are_any() {
        let all = peers(12);
        let rack = |racks: u16| {
            let label = |peer: &Peer| (peer.node, (peer.node.get() % racks).to_string());
            all.iter().map(label).collect::<BTreeMap<_, _>>()
        };
        for copy_sets in [0, 2] {
            for (racks, wanted) in [(4, 3), (3, 3), (2, 2)] {
                let racks = rack(racks);
                for set in sets(&all, copy_sets, &racks) {
                    let in_racks: BTreeSet<_> = set.iter().map(|node| &racks[node]).collect();
                    assert_eq!(in_racks.len(), wanted, "{set:?}");
                }
            }
        }
        // A node without a rack shares its rack with no other.
        let some = BTreeMap::from([(all[0].node, "r".to_owned()), (all[1].node, "r".to_owned())]);
        let together = [all[0].node, all[1].node];
        let sets = sets(&all, 0, &some);
        assert!(sets.iter().all(|set| together.iter().any(|node| !set.contains(node))));
    }

    #[test]
    fn replicas_count_for_racks_and_suspected_nodes_come_last() {
        let all = peers(4);
        let racks = all.iter().zip(["a", "b", "b", "c"]);
        let racks = racks.map(|(peer, rack)| (peer.node, rack.to_owned())).collect();
        let silent = all[3];
        let suspected = BTreeMap::from([(silent, 1)]);
        let placement = |suspected| ReplicaPlacement {
            me: all[0],
            others: &all[1..],
            copy_sets: 0,
            replicas: 3,
            racks: &racks,
            suspected,
        };
        let ids = IdRange::single(ChunkId::new(all[0].node.into(), 1).expect("an id"));
        let nobody = BTreeMap::new();
        assert_eq!(placement(&nobody).choose(ids, &[all[1]], 1), [silent]);
        assert_eq!(placement(&suspected).choose(ids, &[all[1]], 1), [all[2]]);
        assert_eq!(placement(&suspected).choose(ids, &[all[1]], 5), [all[2], silent]);
        let start = ids.start();
        let better = Some((all[2], silent));
        assert_eq!(
            placement(&nobody).better(start, &[all[1], all[2]]),
            better,
            "of two in one rack"
        );
        assert_eq!(placement(&suspected).better(start, &[all[1], all[2]]), None);
        assert_eq!(
            placement(&nobody).better(start, &[all[1], silent]),
            None,
            "no two replicas share a rack"
        );
    }
}
