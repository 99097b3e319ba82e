//! The state of a takeover; [`super::takeover`] has its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::edit::Summary;
use super::proposal::Proposal;
use super::ring::{RingSegment, position};
use super::view::{Group, Peer, Term, View};
use crate::ids::Creator;

/// An attempt to take over the own segment. Its steps follow each other; each is repeated until it
/// is answered.
#[derive(Debug)]
pub(super) struct Takeover {
    pub(super) segment: RingSegment,
    /// The term of the reservation; the next number is the term of the attempt.
    pub(super) claim: Term,
    pub(super) term: Term,
    /// The new group, this node first.
    pub(super) members: Vec<Peer>,
    /// The present groups, part by part.
    pub(super) replaces: Vec<(Range<u64>, Group)>,
    /// Members of these groups whose nodes are back without their metadata.
    pub(super) without_metadata: BTreeSet<Peer>,
    /// Peers that answered since a member last joined or left. Where metadata may begin empty, one
    /// that owns something of the segment answers only if it has the metadata of it.
    pub(super) answered: BTreeSet<Peer>,
    pub(super) has_reported: bool,
    pub(super) step: TakeoverStep,
}

#[derive(Debug)]
pub(super) enum TakeoverStep {
    /// The coordinator must reserve the segment, so that earlier proposals are refused.
    Claiming,
    /// [`Group::witnesses`] of every old group must promise and report their metadata. For each
    /// member: the peer that speaks for it (itself or a later incarnation with all it had), and its
    /// report.
    Sealing(BTreeMap<Peer, (Peer, Vec<Summary>)>),
    /// Replicas to fetch, and their holders.
    Fetching(BTreeMap<Creator, (Summary, Peer)>),
    /// Members of the new group that hold the same; a majority is needed.
    Installing(BTreeSet<Peer>),
}

impl Takeover {
    /// A peer promised, for all incarnations of its node from `since` on.
    pub(super) fn credit(&mut self, (from, since): (Peer, u32), held: &[Summary]) {
        let old: BTreeSet<Peer> = self.old_members().collect();
        let TakeoverStep::Sealing(sealed) = &mut self.step else { return };
        self.answered.insert(from);
        let incarnations = since..=from.incarnation;
        for member in old.into_iter().filter(|member| member.node == from.node) {
            if incarnations.contains(&member.incarnation) {
                sealed.insert(member, (from, held.to_vec()));
            } else if member.incarnation < since {
                self.without_metadata.insert(member);
            }
        }
    }

    /// Whether the metadata that a group held is lost, since all its members are back and have
    /// nothing.
    fn has_forgotten(&self, group: &Group) -> bool {
        let mut members = group.members.iter();
        !group.members.is_empty() && members.all(|member| self.without_metadata.contains(member))
    }

    /// Whether the metadata that a group held may begin empty: it is lost, and each member of the
    /// view has answered. So none is left who owns what the metadata was about; and none becomes an
    /// owner of it, as all who could give it away are gone.
    fn may_begin_empty(&self, group: &Group, view: &View) -> bool {
        self.has_forgotten(group) && view.peers().all(|peer| self.answered.contains(&peer))
    }

    /// Forgets what was answered, when a member has joined or left.
    pub(super) fn ask_anew(&mut self) {
        self.without_metadata.clear();
        self.answered.clear();
    }

    /// The members that are asked although they were in no group: all, where a group has forgotten.
    pub(super) fn outsiders(&self, view: &View) -> BTreeSet<Peer> {
        let has_forgotten = self.replaces.iter().any(|(_, group)| self.has_forgotten(group));
        let asked = view.peers().filter(|_| has_forgotten);
        asked.filter(|peer| !self.answered.contains(peer)).collect()
    }

    /// Parts whose metadata is lost. Nobody can know who owns what there, so the attempt never ends
    /// and nobody serves it, unless it begins empty. Reports once, and again if it does.
    pub(super) fn newly_lost(&mut self, begins_empty: bool) -> Vec<RingSegment> {
        let lost = self.replaces.iter().filter(|(_, group)| self.has_forgotten(group));
        let segment = |part: &Range<u64>| RingSegment {
            first: part.start as u16,
            last: (part.end - 1) as u16,
        };
        let lost: Vec<RingSegment> = lost.map(|(part, _)| segment(part)).collect();
        let has_reported = std::mem::replace(&mut self.has_reported, !lost.is_empty());
        if has_reported && !begins_empty { Vec::new() } else { lost }
    }

    pub(super) fn old_members(&self) -> impl Iterator<Item = Peer> {
        self.replaces.iter().flat_map(|(_, group)| group.members.iter().copied())
    }

    pub(super) fn proposal(&self) -> Proposal {
        let group = Group { term: self.term, members: self.members.clone() };
        Proposal::Regroup { segment: self.segment, group, replaces: self.replaces.clone() }
    }

    /// The latest replica of each creator and its holder, once [`Group::witnesses`] have promised;
    /// None before. What may begin empty does if there is a view to judge it by.
    pub(super) fn furthest(
        &self,
        begins_empty: Option<&View>,
    ) -> Option<BTreeMap<Creator, (Summary, Peer)>> {
        let TakeoverStep::Sealing(sealed) = &self.step else { return None };
        let mut furthest: BTreeMap<Creator, (Summary, Peer)> = BTreeMap::new();
        for (part, group) in &self.replaces {
            let promised = group.members.iter().filter_map(|member| sealed.get(member));
            let promised: Vec<_> = promised.collect();
            // A part that no group held has no metadata.
            let is_empty = group.members.is_empty()
                || begins_empty.is_some_and(|view| self.may_begin_empty(group, view));
            if promised.len() < group.witnesses() && !is_empty {
                return None;
            }
            for (holder, held) in promised {
                for summary in held.iter().filter(|held| part.contains(&position(held.creator))) {
                    let best = furthest.entry(summary.creator).or_insert((*summary, *holder));
                    if best.0.version < summary.version {
                        *best = (*summary, *holder);
                    }
                }
            }
        }
        Some(furthest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    fn peer(number: u16) -> Peer {
        Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
    }

    /// Of an even number half are enough, so that of two nodes one may be gone for good.
    #[test]
    fn a_takeover_waits_until_every_majority_has_one_who_promised() {
        for (members, needed) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            let term = Term { number: 1, leader: peer(0) };
            let group = Group { term, members: (0..members).map(peer).collect() };
            assert!(group.majority() + needed > group.members.len());
            let mut takeover = Takeover {
                segment: RingSegment { first: 0, last: 0 },
                claim: term,
                term,
                members: vec![peer(9)],
                replaces: vec![(0..1, group)],
                without_metadata: BTreeSet::new(),
                answered: BTreeSet::new(),
                has_reported: false,
                step: TakeoverStep::Sealing(BTreeMap::new()),
            };
            for number in 0..needed {
                assert!(takeover.furthest(None).is_none(), "{number} of {members}");
                takeover.credit((peer(number as u16), 1), &[]);
            }
            assert!(takeover.furthest(None).is_some(), "{needed} of {members}");
        }
    }
}
