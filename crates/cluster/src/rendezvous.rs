//! Rendezvous placement: which member should own each partition of the named ids.
//!
//! The *preferred owner* of a partition is the member with the highest score for it (rendezvous
//! hashing). It claims the partition if nobody owns it, so a new cluster shares the partitions
//! evenly. When the members change, each owner moves the partitions whose preferred owner is
//! another node now; a node that leaves moves everything.
//!
//! Invariants of this module:
//! 1. It only proposes. The metadata decides that a partition has one owner.
//! 2. It claims only after the members were unchanged for a while, so that nodes that start
//!    together share; and it repeats the claims, since a dead owner may be removed later.

use std::num::NonZeroU16;

use crate::hash::mix;
use crate::ids::{COUNTER_BITS, Creator, IdRange, NodeId};
use crate::overlay::View;

/// Time for which the members must be unchanged before partitions are claimed.
const SETTLE_MS: u64 = 500;

/// Interval at which a node repeats claims of partitions that had an owner.
const RECLAIM_MS: u64 = 3_000;

/// Interval at which a node looks for misplaced ids.
const MISPLACED_MS: u64 = 1_000;

/// The placement state of one node.
#[derive(Debug)]
pub struct RendezvousPlacement {
    /// The number of every partition with an owner is a multiple of this.
    partition_step: NonZeroU16,
    members: Vec<NodeId>,
    /// When the next claims are due.
    next_claims_ms: u64,
    /// Whether claims were made since the members changed.
    is_done: bool,
    /// When the next search for misplaced ids is due.
    next_misplaced_ms: u64,
    /// Pieces to move, and their targets.
    misplaced: Vec<(IdRange, NodeId)>,
}

/// The member that should own a partition; None without members.
pub fn preferred_owner(members: &[NodeId], partition: Creator) -> Option<NodeId> {
    members
        .iter()
        .copied()
        .max_by_key(|node| (mix(u64::from(partition.get()) << 16 | u64::from(node.get())), *node))
}

/// Size of an aligned piece in which chunks leave a node, as a power of two.
const PIECE_BITS: u32 = 20;

fn is_partition(ids: IdRange) -> bool {
    ids.first().creator().is_named() && ids.len() > 1
}

/// Cuts ids at the ends of partitions, or into pieces that one move accepts.
fn pieces(ids: IdRange) -> impl Iterator<Item = IdRange> {
    let is_named = ids.first().creator().is_named();
    let bits = if is_named { COUNTER_BITS } else { PIECE_BITS };
    let parts = ids.start() >> bits..=(ids.end() - 1) >> bits;
    parts.map(move |part| {
        let (start, end) = (part << bits, ((u128::from(part) + 1) << bits) as u64);
        IdRange::from_bits(start.max(ids.start()), end.min(ids.end()))
    })
}

impl RendezvousPlacement {
    /// For a node that claims partitions whose number is a multiple of `partition_step`; None if
    /// this is 0.
    pub fn new(partition_step: u16) -> Option<Self> {
        Some(Self {
            partition_step: NonZeroU16::new(partition_step)?,
            members: Vec::new(),
            next_claims_ms: 0,
            is_done: false,
            next_misplaced_ms: 0,
            misplaced: Vec::new(),
        })
    }

    /// The partitions that `me` should claim now, without those that it `has` or has claimed.
    pub fn claims(
        &mut self,
        me: NodeId,
        view: &View,
        now_ms: u64,
        has: impl Fn(Creator) -> bool,
    ) -> Vec<Creator> {
        if !view.members.keys().eq(&self.members) {
            self.members = view.members.keys().copied().collect();
            (self.is_done, self.next_claims_ms) = (false, now_ms + SETTLE_MS);
        }
        if now_ms < self.next_claims_ms {
            return Vec::new();
        }
        (self.is_done, self.next_claims_ms) = (true, now_ms + RECLAIM_MS);
        let is_mine = |partition: &Creator| {
            preferred_owner(&self.members, *partition) == Some(me) && !has(*partition)
        };
        let all = Creator::partitions().step_by(self.partition_step.get().into());
        all.filter(is_mine).collect()
    }

    /// Up to `most` pieces of what `me` owns whose preferred owner is another node, with that node.
    /// A leaving node gives everything away; others give whole partitions or the rest of one, since
    /// single ids were moved on purpose.
    pub fn misplaced(
        &mut self,
        (me, is_leaving): (NodeId, bool),
        now_ms: u64,
        most: usize,
        owned: impl Iterator<Item = IdRange>,
    ) -> Vec<(IdRange, NodeId)> {
        if !self.is_done && !is_leaving || most == 0 {
            return Vec::new();
        }
        if self.misplaced.is_empty() && now_ms >= self.next_misplaced_ms {
            self.next_misplaced_ms = now_ms + MISPLACED_MS;
            let staying = self.members.iter().copied().filter(|node| !is_leaving || *node != me);
            let staying: Vec<NodeId> = staying.collect();
            let pieces = owned.flat_map(pieces);
            let wanted = pieces.filter(|ids| is_leaving || is_partition(*ids));
            let moves = wanted.filter_map(|ids| {
                // Chunks of a leaving node are distributed by piece.
                let part = ids.first().bits() >> PIECE_BITS;
                let creator = ids.first().creator();
                let target = if creator.is_named() {
                    preferred_owner(&staying, creator)
                } else {
                    staying.get(part as usize % staying.len().max(1)).copied()
                };
                target.filter(|target| *target != me).map(|target| (ids, target))
            });
            self.misplaced = moves.collect();
        }
        let from = self.misplaced.len().saturating_sub(most);
        self.misplaced.split_off(from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::overlay::Member;

    fn view(nodes: u16) -> View {
        let member = |number| {
            (NodeId::new(number).expect("a node"), Member { incarnation: 1, is_super: false })
        };
        View { members: (0..nodes).map(member).collect(), ..View::default() }
    }

    #[test]
    fn partitions_are_shared_evenly_and_asked_for_once() {
        let (view, mut shares) = (view(5), Vec::new());
        for node in view.members.keys() {
            let mut placement = RendezvousPlacement::new(1).expect("it claims");
            let mut claims = |now_ms| placement.claims(*node, &view, now_ms, |_| false);
            assert!(claims(10).is_empty() && claims(SETTLE_MS).is_empty(), "members may change");
            shares.push(claims(SETTLE_MS + 10));
            assert!(claims(SETTLE_MS + 20).is_empty());
            assert_eq!(claims(SETTLE_MS + 10 + RECLAIM_MS), shares[shares.len() - 1], "again");
        }
        assert!(shares.iter().all(|share| (600..1_050).contains(&share.len())));
        let all: BTreeSet<Creator> = shares.into_iter().flatten().collect();
        assert_eq!(all.len(), Creator::partitions().count());
    }

    #[test]
    fn a_joining_node_claims_unowned_partitions_only() {
        let mut placement = RendezvousPlacement::new(1).expect("it claims");
        let me = NodeId::new(0).expect("a node");
        assert!(placement.claims(me, &view(1), 0, |_| true).is_empty());
        assert!(placement.claims(me, &view(1), SETTLE_MS, |_| true).is_empty());
        assert!(placement.claims(me, &view(2), SETTLE_MS, |_| false).is_empty());
        let wanted = placement.claims(me, &view(2), 2 * SETTLE_MS, |_| false).len();
        assert!((1_800..2_300).contains(&wanted), "about half: {wanted}");
    }
}
