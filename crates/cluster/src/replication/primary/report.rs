//! What a primary tells operators about its backups.

use super::ReplicationPrimary;
use crate::ids::ChunkId;
use crate::overlay::Peer;

/// What a backup has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The backup.
    pub peer: Peer,
    /// The number of its entries.
    pub entries: usize,
    /// Their bytes, at most.
    pub bytes: usize,
}

impl ReplicationPrimary {
    /// Counts for the status: intervals with fewer backups than the target, with one that has
    /// refused for the rest of its incarnation, or that the log of the only member lacks; set
    /// changes in progress; and pending writes.
    pub fn counts(&self) -> (usize, usize, usize) {
        let has_refused = |peer: &Peer| self.suspected.get(peer) == Some(&u64::MAX);
        let is_reduced = |set: &[Peer]| {
            let is_only_elsewhere = self.is_alone() && !set.contains(&self.me);
            is_only_elsewhere || self.is_small(set) || set.iter().any(has_refused)
        };
        let reduced = self.backup_sets.iter().filter(|(_, set)| is_reduced(set)).count();
        (reduced, self.set_changes.len(), self.pending_writes.len())
    }

    /// The peers that must have each change of `id`, and how many queued entries each has not
    /// acknowledged.
    pub fn lag(&self, id: ChunkId) -> Vec<(Peer, u64)> {
        let waiting =
            |peer: &Peer| self.streams.get(peer).map_or(0, |stream| stream.queued() as u64);
        self.peers(id).map(|peer| (peer, waiting(&peer))).collect()
    }

    /// What each backup of any id has not acknowledged.
    pub fn backlogs(&self) -> Vec<Backlog> {
        let streams = self.streams.iter();
        let backlogs = streams.map(|(peer, stream)| Backlog {
            peer: *peer,
            entries: stream.queued(),
            bytes: stream.queued_bytes(),
        });
        backlogs.collect()
    }
}
