//! Super peers watch the members, and vote against those that do not answer them.
//!
//! A node whose lease is renewed may still be cut off from the others, in one direction even: it
//! would own its keys for ever, and each request for them would time out. So each member is watched
//! by the super peers that follow it on the ring ([`View::watchers`]). They probe it once a second.
//! One that had no answer to [`OverlaySettings::silent_probes`] probes in a row votes against the
//! member, and repeats the vote while that lasts; the coordinator removes the member once a
//! majority of its watchers do.
//!
//! Silence is counted in probes, not in time: a watcher that stood still itself blames nobody. And
//! a watcher votes only while a majority of the member's watchers, itself included, hear each
//! other as far as it knows: one that is cut off itself hears nobody.

use std::collections::{BTreeMap, BTreeSet};

use super::SuperPeer;
use crate::overlay::message::{Message, OverlayCommand};
use crate::overlay::proposal::Proposal;
use crate::overlay::view::{Peer, majority};

/// A watcher hears another one if at most this many probes in a row are unanswered: the last, which
/// may be under way, and one that was lost.
const HEARD_PROBES_MAX: u32 = 2;
/// Votes of one round at most; the coordinator removes one member at a time.
const VOTES_MAX: usize = 16;

/// A member that has never answered may be reading its log before it serves: it is given as many
/// times as many probes.
const STARTING_FACTOR: u32 = 40;

/// What a super peer knows of the members that it probes.
#[derive(Debug, Default)]
pub(super) struct MemberWatch {
    members: BTreeMap<Peer, Watched>,
    next_probe_ms: u64,
}

/// A member that is probed.
#[derive(Debug, Default)]
struct Watched {
    /// The number of probes since the last answer.
    unanswered: u32,
    /// Whether it ever answered.
    has_answered: bool,
}

impl MemberWatch {
    /// A peer answered a probe.
    pub(super) fn on_alive(&mut self, from: Peer) {
        if let Some(watched) = self.members.get_mut(&from) {
            *watched = Watched { unanswered: 0, has_answered: true };
        }
    }

    /// Whether a peer is silent: `probes` in a row had no answer.
    fn is_silent(&self, peer: Peer, probes: u32) -> bool {
        self.members.get(&peer).is_some_and(|watched| {
            let factor = if watched.has_answered { 1 } else { STARTING_FACTOR };
            watched.unanswered >= probes.saturating_mul(factor)
        })
    }

    /// Whether a peer was probed and did not answer lately.
    fn is_doubtful(&self, peer: Peer) -> bool {
        let is_doubtful = |watched: &Watched| watched.unanswered > HEARD_PROBES_MAX;
        self.members.get(&peer).is_some_and(is_doubtful)
    }

    fn hears(&self, peer: Peer) -> bool {
        let hears =
            |watched: &Watched| watched.has_answered && watched.unanswered <= HEARD_PROBES_MAX;
        self.members.get(&peer).is_some_and(hears)
    }
}

impl SuperPeer {
    /// Super peers keep their number up, by members that answer them: one that does not would hold
    /// up the metadata of its segment. If there is none, the first member does, of all members.
    pub(super) fn promote(&self, out: &mut Vec<OverlayCommand>) {
        let next = match self.view.supers().next() {
            Some(_) if !self.view.is_super(self.me) => None,
            Some(_) => self.candidate().filter(|next| self.watch.hears(*next)),
            None if self.view.peers().next() != Some(self.me) => None,
            None => self.view.next_super(self.wanted_supers(), |_| true),
        };
        out.extend(next.map(|next| OverlayCommand::Propose(Proposal::Promote(next))));
    }

    fn wanted_supers(&self) -> usize {
        self.settings.supers_wanted(self.view.members.len())
    }

    /// The member to promote next if super peers are missing: one that answers, as far as is
    /// known.
    fn candidate(&self) -> Option<Peer> {
        self.view.next_super(self.wanted_supers(), |peer| !self.watch.is_doubtful(peer))
    }

    /// Votes against the members that are silent, and probes all that it watches, and those that
    /// watch them too.
    pub(super) fn watch_members(&mut self, now_ms: u64, out: &mut Vec<OverlayCommand>) {
        if now_ms < self.watch.next_probe_ms {
            return;
        }
        self.watch.next_probe_ms = now_ms + self.settings.announce_ms;
        let supers: Vec<Peer> = self.view.supers().collect();
        let (me, probes) = (self.me, self.settings.silent_probes());
        let (mut probed, mut votes) = (BTreeSet::new(), 0);
        for member in self.view.peers().filter(|member| *member != me) {
            let watchers = member.watchers(&supers);
            if !watchers.contains(&me) {
                continue;
            }
            let others = watchers.iter().filter(|other| **other != me);
            let heard = others.clone().filter(|other| self.watch.hears(**other)).count();
            probed.extend(others.copied());
            probed.insert(member);
            let votes_left = votes < VOTES_MAX && heard + 1 >= majority(watchers.len());
            if votes_left && self.watch.is_silent(member, probes) {
                votes += 1;
                out.push(OverlayCommand::Propose(Proposal::VoteOut { voter: me, member }));
            }
        }
        probed.extend(self.candidate());
        let view = &self.view;
        self.watch.members.retain(|peer, _| view.has(*peer));
        let revision = self.members_revision;
        for peer in probed {
            let watched = self.watch.members.entry(peer).or_default();
            watched.unanswered = watched.unanswered.saturating_add(1);
            out.push(OverlayCommand::Send(peer, Message::Probe { revision }));
        }
    }
}
