//! Which nodes can be backups of a primary's ids, and how many each set needs.

use std::collections::BTreeMap;

use super::super::placement::ReplicaPlacement;
use super::ReplicationPrimary;
use crate::ids::{IdRange, NodeId};
use crate::overlay::Peer;

impl ReplicationPrimary {
    /// Sets the members of the cluster, this node included.
    pub fn set_members(&mut self, members: impl Iterator<Item = Peer>) {
        let was_alone = self.is_alone();
        self.others = members.collect();
        self.futile_scan = None;
        self.recheck_racks();
        self.is_member |= self.others.contains(&self.me);
        self.others.retain(|peer| *peer != self.me);
        if self.is_alone() != was_alone {
            self.min_backups_seen = None;
            self.most_scanned_items = None;
        }
    }

    /// Whether this node is the only member. Then it keeps its changes in its own log, as its own
    /// backup. False where nothing has backups.
    pub(super) fn is_alone(&self) -> bool {
        self.settings.backups > 0 && self.is_member && self.others.is_empty()
    }

    /// How many of these backups are other nodes.
    pub(super) fn others_in(&self, set: &[Peer]) -> usize {
        set.iter().filter(|peer| **peer != self.me).count()
    }

    /// Sets the rack of each node. A backup that shares a rack with another replica is replaced by
    /// a node in an unused rack if there is one.
    pub fn set_racks(&mut self, racks: BTreeMap<NodeId, String>) {
        self.racks = racks;
        self.recheck_racks();
    }

    /// Requests a scan of all sets: a better rack may be available.
    pub(super) fn recheck_racks(&mut self) {
        if !self.racks.is_empty() {
            self.min_backups_seen = None;
        }
    }

    /// Whether new ids would get their backups. False while this node does not know the members and
    /// would take itself for the only one.
    pub fn is_ready(&self) -> bool {
        self.is_member || self.settings.backups == 0
    }

    /// Whether N backups suffice to take over chunks that were acknowledged elsewhere: the new
    /// owner must not hold the only replica unless it is the only node.
    pub fn meets_min_replicas(&self, backups: usize) -> bool {
        self.is_ready() && (self.settings.backups == 0 || backups + 1 >= self.min_replicas())
    }

    /// Backups that each set should have now.
    pub(super) fn backup_target(&self) -> usize {
        self.settings.backups.min(self.others.len())
    }

    /// Whether a set has fewer backups than it should have.
    pub(super) fn is_small(&self, set: &[Peer]) -> bool {
        match self.is_alone() {
            true => set.is_empty() && self.is_eligible(self.me),
            false => self.others_in(set) < self.backup_target(),
        }
    }

    /// Replicas that each set must have at least; fewer only if the cluster has fewer nodes.
    pub(super) fn min_replicas(&self) -> usize {
        self.settings.min_replicas.min(self.others.len() + 1)
    }

    /// Chooses up to `count` backups for `ids`, other than `without`, which already are replicas.
    pub fn choose_backups(&self, ids: IdRange, without: &[Peer], count: usize) -> Vec<Peer> {
        self.placement().choose(ids, without, count)
    }

    pub(super) fn placement(&self) -> ReplicaPlacement<'_> {
        ReplicaPlacement {
            me: self.me,
            others: &self.others,
            copy_sets: self.settings.copy_sets,
            replicas: self.settings.backups + 1,
            racks: &self.racks,
            suspected: &self.suspected,
        }
    }

    /// Whether a node is another member. A member that accepts nothing more may still be asked for
    /// what it has.
    pub fn is_member(&self, peer: Peer) -> bool {
        self.others.contains(&peer)
    }

    /// Whether a node is a member, this one included.
    pub(super) fn is_present(&self, peer: Peer) -> bool {
        peer == self.me || self.others.contains(&peer)
    }

    /// Whether a node can be a backup: another member, or this node while it is alone.
    pub(super) fn is_available(&self, peer: Peer) -> bool {
        self.others.contains(&peer) || self.is_alone() && peer == self.me
    }

    /// Whether a node can be a backup and has not timed out recently.
    pub fn is_healthy(&self, peer: Peer) -> bool {
        self.is_available(peer) && !self.suspected.contains_key(&peer)
    }

    /// Whether a node can be a backup and has not refused for the rest of its incarnation.
    pub fn is_eligible(&self, peer: Peer) -> bool {
        self.is_available(peer) && self.suspected.get(&peer) != Some(&u64::MAX)
    }

    /// Notes that a node answered a recent question: it is no longer suspected.
    pub fn on_response(&mut self, peer: Peer, now_ms: u64) {
        if self.is_eligible(peer) {
            self.suspected.remove(&peer);
            if let Some(stream) = self.streams.get_mut(&peer)
                && stream.awaiting_since_ms.is_some()
            {
                stream.awaiting_since_ms = Some(now_ms);
            }
        }
    }

    /// Marks a node as suspected until `until_ms`: it is not chosen before.
    pub fn suspect(&mut self, peer: Peer, until_ms: u64) {
        let until = self.suspected.entry(peer).or_default();
        *until = until_ms.max(*until);
    }

    /// Chooses healthy backups for `ids` in addition to `have`, up to the target number.
    pub fn choose_missing_backups(&self, ids: IdRange, have: &[Peer]) -> Vec<Peer> {
        let mut more = self.choose_eligible_backups(ids, have);
        more.retain(|peer| self.is_healthy(*peer));
        more
    }

    /// As [`Self::choose_missing_backups`], and suspected ones where there are too few healthy
    /// ones.
    pub fn choose_eligible_backups(&self, ids: IdRange, have: &[Peer]) -> Vec<Peer> {
        let count = self.backup_target().saturating_sub(have.len());
        let mut more = match self.is_alone() && have.is_empty() {
            true => vec![self.me],
            false => self.choose_backups(ids, have, count),
        };
        more.retain(|peer| self.is_eligible(*peer));
        more
    }
}
