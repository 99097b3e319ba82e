//! How a super peer becomes the leader of its segment without losing what others committed.
//!
//! An attempt stamps the metadata that it found with its term before the group of that term is
//! active, and the later term wins. So an attempt first reserves the segment: from then on no
//! earlier proposal for the segment can become active, and until a later reservation the groups are
//! those that the attempt asks. Hence (invariant 2 of the overlay) metadata stamped later than the
//! active group came from members of that group who had promised to follow no other leader, and of
//! whom every majority has one: whatever was committed is there, and no more will be.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::attempt::{Takeover, TakeoverStep};
use super::edit::{Snapshot, Summary, Version};
use super::message::{Message, OverlayCommand, OverlayEvent};
use super::proposal::Proposal;
use super::ring::RingSegment;
use super::super_peer::SuperPeer;
use super::view::{Group, Peer, Term, majority};

impl SuperPeer {
    /// Compares the group that holds the own segment with the one that should, and starts over if
    /// they differ.
    pub(super) fn reconsider(&mut self, out: &mut Vec<OverlayCommand>) {
        let Some(segment) = self.view.segment(self.me) else {
            self.takeover = None;
            return;
        };
        let members = self.view.wanted_group(self.me);
        if self.is_settled(segment, &members) {
            self.takeover = None;
            return;
        }
        let replaces = self.view.groups_of(segment);
        let goes_on = self.takeover.as_ref().is_some_and(|takeover| {
            let is_same = takeover.segment == segment && takeover.members == members;
            is_same && self.is_possible(takeover)
        });
        if let Some(takeover) = self.takeover.as_mut().filter(|_| goes_on) {
            let is_claimed = replaces.iter().all(|(_, group)| group.term == takeover.claim);
            if takeover.replaces == replaces {
                return;
            }
            if matches!(takeover.step, TakeoverStep::Claiming) && is_claimed {
                return self.seal_all(replaces, out);
            }
        }
        let promised = segment
            .parts()
            .filter_map(|part| self.promised.over(part).map(|(_, term)| term.number).max());
        let held = replaces.iter().map(|(_, group)| group.term.number);
        let number = promised.chain(held).max().unwrap_or(0) + 1;
        let [claim, term] = [number, number + 1].map(|number| Term { number, leader: self.me });
        for part in segment.parts() {
            self.promise(part, term);
        }
        let (without_metadata, answered) = Default::default();
        let (step, has_reported) = (TakeoverStep::Claiming, false);
        let takeover = Takeover {
            segment,
            claim,
            term,
            members,
            replaces,
            without_metadata,
            answered,
            has_reported,
            step,
        };
        self.takeover = Some(takeover);
        self.retry_takeover(out);
    }

    /// The segment is reserved: asks the old groups for promises.
    fn seal_all(&mut self, held_by: Vec<(Range<u64>, Group)>, out: &mut Vec<OverlayCommand>) {
        let Some(takeover) = &mut self.takeover else { return };
        takeover.replaces = held_by;
        takeover.step = TakeoverStep::Sealing(BTreeMap::new());
        let segment = takeover.segment;
        let held = self.held(segment);
        if let Some(takeover) = &mut self.takeover {
            takeover.credit((self.me, self.since), &held);
        }
        self.retry_takeover(out);
        self.fetch_if_sealed(out);
    }

    /// Logs what this node leads from now on, even by an attempt that it had given up.
    pub(super) fn record_leadership(&mut self, out: &mut Vec<OverlayCommand>) {
        let mut leads = Vec::new();
        for (span, group) in self.view.groups.iter() {
            let promised = self.promised.over(span).filter(|(_, term)| **term == group.term);
            let is_mine = group.members.first() == Some(&self.me);
            leads.extend(promised.filter(|_| is_mine).map(|(span, term)| (span, *term)));
        }
        for (span, term) in leads {
            if self.terms_led.over(span.clone()).all(|(_, terms_led)| *terms_led < term) {
                let segment = RingSegment { first: span.start as u16, last: (span.end - 1) as u16 };
                out.push(OverlayCommand::Log(OverlayEvent::BecameLeader(
                    segment,
                    term,
                    self.held(segment),
                )));
                self.terms_led.assign(span, Some(term));
            }
        }
        let is_over = self.takeover.as_ref().is_some_and(|takeover| {
            let groups = self.view.groups_of(takeover.segment);
            groups.iter().any(|(_, group)| group.term == takeover.term)
        });
        if is_over {
            self.takeover = None;
        }
    }

    /// Whether no later term overruled the attempt, and the holders that it fetches from are
    /// members.
    fn is_possible(&self, takeover: &Takeover) -> bool {
        let has_holders = match &takeover.step {
            TakeoverStep::Fetching(missing) => {
                missing.values().all(|(_, holder)| self.view.has(*holder))
            }
            TakeoverStep::Claiming | TakeoverStep::Sealing(_) | TakeoverStep::Installing(_) => true,
        };
        let mut parts = takeover.segment.parts();
        has_holders && parts.all(|part| self.promised.all(part, |term| *term == takeover.term))
    }

    /// Whether this node leads all of its segment with the group that it should have.
    fn is_settled(&self, segment: RingSegment, members: &[Peer]) -> bool {
        segment.parts().all(|part| {
            self.view.groups.all(part.clone(), |group| group.members == members)
                && self
                    .view
                    .groups
                    .over(part)
                    .all(|(span, group)| self.promised.all(span, |term| *term == group.term))
        })
    }

    /// Repeats the messages of the present step to those who have not answered.
    pub(super) fn retry_takeover(&mut self, out: &mut Vec<OverlayCommand>) {
        let Some(takeover) = &self.takeover else { return };
        let (segment, term) = (takeover.segment, takeover.term);
        match &takeover.step {
            TakeoverStep::Claiming => {
                let (term, replaces) = (takeover.claim, takeover.replaces.clone());
                out.push(OverlayCommand::Propose(Proposal::Claim { segment, term, replaces }));
            }
            TakeoverStep::Sealing(sealed) => {
                let old = takeover.old_members().filter(|member| !sealed.contains_key(member));
                let living = |member: Peer| {
                    let incarnation = self.view.incarnation(member.node);
                    Peer { incarnation: incarnation.unwrap_or(member.incarnation), ..member }
                };
                let mut asked: BTreeSet<Peer> = old.map(living).collect();
                if self.settings.begins_empty {
                    asked.append(&mut takeover.outsiders(&self.view));
                }
                let message = || Message::Seal { segment, term };
                out.extend(asked.into_iter().map(|peer| OverlayCommand::Send(peer, message())));
            }
            TakeoverStep::Fetching(missing) => {
                for (creator, (_, holder)) in missing {
                    out.push(OverlayCommand::Send(*holder, Message::Fetch { creator: *creator }));
                }
            }
            TakeoverStep::Installing(same) => {
                for member in takeover.members.iter().filter(|member| !same.contains(member)) {
                    let message = Message::Compare { segment, term, held: self.held(segment) };
                    out.push(OverlayCommand::Send(*member, message));
                }
                if same.len() >= majority(takeover.members.len()) {
                    out.push(OverlayCommand::Propose(takeover.proposal()));
                }
            }
        }
    }

    /// As a member of an old group: promises, and reports its metadata.
    pub(super) fn seal(
        &mut self,
        from: Peer,
        segment: RingSegment,
        term: Term,
        out: &mut Vec<OverlayCommand>,
    ) {
        if from == term.leader && self.follow(from, segment.parts().collect::<Vec<_>>(), term, out)
        {
            let groups = self.view.groups_of(segment);
            let mut holders = groups.iter().flat_map(|(_, group)| &group.members);
            let is_owner = self.settings.begins_empty && !self.begins_empty(segment);
            if is_owner && !holders.any(|holder| self.speaks_for(*holder)) {
                return;
            }
            let (held, since) = (self.held(segment), self.since);
            out.push(OverlayCommand::Send(from, Message::Sealed { segment, term, held, since }));
        }
    }

    pub(super) fn sealed(
        &mut self,
        from: (Peer, u32),
        segment: RingSegment,
        term: Term,
        held: Vec<Summary>,
        out: &mut Vec<OverlayCommand>,
    ) {
        let own = self.held(segment);
        let Some(takeover) = &mut self.takeover else { return };
        if (takeover.segment, takeover.term) == (segment, term) {
            takeover.credit(from, &held);
            takeover.credit((self.me, self.since), &own);
            self.fetch_if_sealed(out);
        }
    }

    /// The latest replica of a creator among those who promised holds all that was committed: each
    /// majority of the group has one of them, who promised only afterwards.
    fn fetch_if_sealed(&mut self, out: &mut Vec<OverlayCommand>) {
        let Some(segment) = self.takeover.as_ref().map(|takeover| takeover.segment) else { return };
        let begins_empty = self.begins_empty(segment);
        let Some(takeover) = &mut self.takeover else { return };
        let view = Some(&self.view).filter(|_| begins_empty);
        let furthest = takeover.furthest(view);
        let lost = takeover.newly_lost(furthest.is_some());
        let event = |segment| OverlayEvent::MetadataLost(segment, furthest.is_some());
        out.extend(lost.into_iter().map(|segment| OverlayCommand::Log(event(segment))));
        let Some(furthest) = furthest else { return };
        let stale = self.held(segment).into_iter().map(|summary| summary.creator);
        for creator in stale.filter(|creator| !furthest.contains_key(creator)).collect::<Vec<_>>() {
            self.catalog.remove(creator);
        }
        let mut missing = furthest;
        missing.retain(|creator, (summary, _)| self.catalog.summary(*creator) != Some(*summary));
        if let Some(takeover) = &mut self.takeover {
            takeover.step = TakeoverStep::Fetching(missing);
        }
        self.retry_takeover(out);
        self.install_if_fetched(out);
    }

    /// Installs a snapshot that this takeover waits for; false if it does not.
    pub(super) fn fetched(
        &mut self,
        from: Peer,
        snapshot: &Snapshot,
        out: &mut Vec<OverlayCommand>,
    ) -> bool {
        let Some(takeover) = &mut self.takeover else { return false };
        let TakeoverStep::Fetching(missing) = &mut takeover.step else { return false };
        // The holder may have a later state of the same term, which is as good.
        let is_wanted = missing.get(&snapshot.creator).is_some_and(|(summary, holder)| {
            let is_older = snapshot.version.term < takeover.term;
            *holder == from && snapshot.version >= summary.version && is_older
        });
        if is_wanted {
            missing.remove(&snapshot.creator);
            self.catalog.install(snapshot);
            self.install_if_fetched(out);
        }
        is_wanted
    }

    fn install_if_fetched(&mut self, out: &mut Vec<OverlayCommand>) {
        let Some(takeover) = &mut self.takeover else { return };
        if !matches!(&takeover.step, TakeoverStep::Fetching(missing) if missing.is_empty()) {
            return;
        }
        let (segment, term) = (takeover.segment, takeover.term);
        takeover.step = TakeoverStep::Installing(BTreeSet::from([self.me]));
        for held in self.held(segment) {
            let version = Version { term, sequence: held.version.sequence };
            self.catalog.restamp(held.creator, version);
        }
        self.retry_takeover(out);
    }

    pub(super) fn same(
        &mut self,
        from: Peer,
        segment: RingSegment,
        term: Term,
        out: &mut Vec<OverlayCommand>,
    ) {
        let Some(takeover) = &mut self.takeover else { return };
        if let TakeoverStep::Installing(same) = &mut takeover.step
            && (takeover.segment, takeover.term) == (segment, term)
            && takeover.members.contains(&from)
        {
            same.insert(from);
            if same.len() >= majority(takeover.members.len()) {
                out.push(OverlayCommand::Propose(takeover.proposal()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Creator, NodeId};
    use crate::interval_map::IntervalMap;
    use crate::overlay::view::{Member, View};
    use crate::overlay::{OverlaySettings, POSITIONS};

    fn peer(number: u16) -> Peer {
        Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
    }

    /// A node that came back without metadata may own something since.
    #[test]
    fn who_owns_something_does_not_say_that_it_has_nothing() {
        let settings = OverlaySettings { begins_empty: true, ..OverlaySettings::default() };
        let (me, leader) = (Peer { incarnation: 2, ..peer(1) }, peer(2));
        let segment = RingSegment { first: 0, last: 9 };
        for (holder, owned, answers) in [
            (peer(1), None, true),
            (peer(1), Some(7), false),
            (peer(1), Some(10), true),
            (me, Some(7), true),
        ] {
            let term = Term { number: 1, leader };
            let mut groups = IntervalMap::default();
            groups.assign(0..POSITIONS, Some(Group { term, members: vec![leader, holder] }));
            let member =
                |peer: Peer| (peer.node, Member { incarnation: peer.incarnation, is_super: true });
            let view = View { revision: 1, members: [me, leader].map(member).into(), groups };
            let (mut node, mut out) = (SuperPeer::new(me, settings), Vec::new());
            node.on_view(&view, &mut out);
            node.set_owned(owned.into_iter());
            out.clear();
            let term = Term { number: 9, leader };
            node.on_message(leader, Message::Seal { segment, term }, &mut out);
            let is_answer = |command: &OverlayCommand| {
                matches!(command, OverlayCommand::Send(_, Message::Sealed { .. }))
            };
            assert_eq!(out.iter().any(is_answer), answers, "{holder:?} {owned:?}");
        }
    }

    /// Another attempt, which failed, took the replica that this one has to fetch into a later
    /// term.
    #[test]
    fn a_takeover_restarts_when_its_replica_has_a_later_term() {
        let members: Vec<Peer> = [1, 3, 4].map(peer).to_vec();
        let of = |number, leader| Term { number, leader: peer(leader) };
        let held_under = |term| {
            let mut groups = IntervalMap::default();
            groups.assign(0..POSITIONS, Some(Group { term, members: members.clone() }));
            groups
        };
        let groups = held_under(of(11, 1));
        let member = |number| (peer(number).node, Member { incarnation: 1, is_super: true });
        let view = View { revision: 1, members: [2, 3, 4].map(member).into(), groups };
        let (mut node, mut out) = (SuperPeer::new(peer(2), OverlaySettings::default()), Vec::new());
        node.on_view(&view, &mut out);
        let Some(Takeover { segment, claim, term, .. }) = node.takeover else {
            panic!("it leads nobody")
        };
        // Another group may hold the segment already: nobody is asked, and nothing is stamped.
        let replaces = view.groups_of(segment);
        let proposal = Proposal::Claim { segment, term: claim, replaces };
        let is_asked = |out: &[OverlayCommand]| {
            out.iter()
                .any(|command| matches!(command, OverlayCommand::Send(_, Message::Seal { .. })))
        };
        assert!(out.contains(&OverlayCommand::Propose(proposal)) && !is_asked(&out), "{out:?}");
        let mut groups = view.groups.clone();
        for part in segment.parts() {
            let claimed = held_under(claim).get(part.start).cloned();
            groups.assign(part, claimed);
        }
        let view = View { revision: 2, groups, ..view };
        node.on_view(&view, &mut out);
        assert!(is_asked(&out), "{out:?}");
        let creator = Creator::new(0).expect("a creator");
        let version = |term| Version { term, sequence: 250 };
        let mut answer = |node: &mut SuperPeer, from, message| {
            out.clear();
            node.on_message(peer(from), message, &mut out);
            std::mem::take(&mut out)
        };
        let summary = Summary { creator, version: version(of(11, 1)), digest: 7 };
        answer(&mut node, 3, Message::Sealed { segment, term, held: Vec::new(), since: 1 });
        let sealed = Message::Sealed { segment, term, held: vec![summary], since: 1 };
        let asked = answer(&mut node, 4, sealed);
        assert_eq!(asked, [OverlayCommand::Send(peer(4), Message::Fetch { creator })]);

        let later = of(term.number + 1, 3);
        let (ranges, last_requests, incarnations, to_recover) = Default::default();
        let version = version(later);
        let snapshot =
            Snapshot { creator, version, ranges, last_requests, incarnations, to_recover };
        answer(&mut node, 4, Message::Install { snapshot });
        let mut out = Vec::new();
        node.on_tick(1_000, &mut out);
        let (term, replaces) = (of(later.number + 1, 2), view.groups_of(segment));
        assert!(
            out.contains(&OverlayCommand::Propose(Proposal::Claim { segment, term, replaces })),
            "{out:?}"
        );
    }
}
