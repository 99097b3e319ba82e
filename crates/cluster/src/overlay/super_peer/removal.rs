//! Dead nodes leave the metadata: their incarnations are removed from replica sets, or lost ones
//! are marked, once it is certain that somebody alive has what they had.

use std::collections::BTreeSet;

use super::{ASKED_MAX, SuperPeer};
use crate::ids::Creator;
use crate::overlay::edit::{Change, Edit};
use crate::overlay::message::{Message, OverlayCommand};
use crate::overlay::ring::position;
use crate::overlay::view::Peer;

impl SuperPeer {
    /// As a leader: removes dead peers from the metadata. A peer that this leader does not know yet
    /// is in no edit that it accepted ([`Self::is_known`]), and leaders before it knew less, since
    /// its group was decided after their last edit.
    ///
    /// A peer that looks alive may have died at the same time and be the last holder of something.
    /// So for each range some holder must have answered a probe that was sent after the others were
    /// known to be dead. Until then, or until all of them are dead, nobody is removed. Many may die
    /// at once, and the last lease may end much later than the first: a coordinator that was away
    /// prolongs all leases.
    ///
    /// No edit names a peer that is not a member. So all creators are scanned only when the view
    /// has changed, and otherwise only those that still name dead peers.
    pub(super) fn remove_dead_members(&mut self, out: &mut Vec<OverlayCommand>) {
        if self.scanned_revision.replace(self.view.revision) != Some(self.view.revision) {
            let named = self.catalog.summaries().map(|summary| summary.creator);
            let is_concerned = |creator: &Creator| {
                self.leads(position(*creator)).is_some() && !self.dead(*creator).is_empty()
            };
            self.creators_with_dead = named.filter(is_concerned).collect();
        }
        for creator in self.queues.keys().copied().collect::<Vec<_>>() {
            self.start_batch(creator, out);
        }
        let mut asked = 0;
        let mut silent = BTreeSet::new();
        for creator in self.creators_with_dead.iter().copied().collect::<Vec<_>>() {
            if self.dead(creator).is_empty() {
                self.creators_with_dead.remove(&creator);
                continue;
            }
            silent.extend(self.silent(creator));
            let (removals, last) = self.removals(creator);
            let queue = self.queues.entry(creator).or_default();
            for edit in removals {
                if !queue.contains(&edit) {
                    queue.push_front(edit);
                }
            }
            if queue.is_empty() {
                self.queues.remove(&creator);
            }
            self.start_batch(creator, out);
            for former in last {
                if let Some(incarnation) = self.view.incarnation(former.node)
                    && asked < ASKED_MAX
                {
                    asked += 1;
                    let message = Message::QueryReplica { creator, former };
                    out.push(OverlayCommand::Send(Peer { incarnation, ..former }, message));
                }
            }
        }
        let revision = self.members_revision;
        out.extend(
            silent.into_iter().map(|to| OverlayCommand::Send(to, Message::Probe { revision })),
        );
    }

    /// Peers that ranges of a creator name, that look alive, and that have not answered since the
    /// last change of members.
    pub(super) fn silent(&self, creator: Creator) -> Vec<Peer> {
        // Without a log there are no replicas to wait for.
        if !self.is_recording {
            return Vec::new();
        }
        let is_silent = |peer: &Peer| {
            let answered = self.alive.get(peer).copied().unwrap_or(0);
            *peer != self.me && self.view.has(*peer) && answered < self.members_revision
        };
        self.catalog.named_peers(creator).filter(is_silent).collect()
    }

    /// A peer was alive at a revision of the coordinator.
    pub(super) fn on_alive(&mut self, from: Peer, revision: u64) {
        self.watch.on_alive(from);
        let answered = self.alive.entry(from).or_default();
        *answered = revision.max(*answered);
        // A removal may have waited for it.
        if revision == self.members_revision && !self.creators_with_dead.is_empty() {
            self.next_retry_ms = 0;
        }
    }

    /// The removals that would change a creator's metadata, and the dead peers that are the last
    /// holders of something.
    pub(super) fn removals(&self, creator: Creator) -> (Vec<Edit>, Vec<Peer>) {
        let dead = self.dead(creator);
        if dead.is_empty() {
            return Default::default();
        }
        let silent = self.silent(creator);
        let (last, may_remove) = self.catalog.last_holders(creator, &dead, &silent);
        // All or none: a dead peer that is left out would count as alive.
        let removed = dead.into_iter().filter(|_| may_remove);
        (removed.map(|peer| self.own_edit(creator, Change::RemoveDead(peer))).collect(), last)
    }

    pub(super) fn dead(&self, creator: Creator) -> Vec<Peer> {
        self.catalog.named_peers(creator).filter(|peer| !self.view.has(*peer)).collect()
    }
}
