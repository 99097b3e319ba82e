//! The full log of a cache's backup, which forgets the items that were written the longest ago.
//!
//! Where the cluster is a cache, a read may find nothing, so a backup need not have every item, and
//! its space must not limit what owners accept. When segments run short and cleaning would free
//! little, the *oldest* segment is emptied: its items are forgotten, and everything else in it is
//! kept as ever. The owner keeps the items, and is not told.
//!
//! The rule: what a backup hands out of an item is the last state that it received, or nothing;
//! never an older state, whichever crashes happen. It holds because
//!
//! 1. all that the log has of an item under its holder's name lies no later than the record that
//!    counts: only that record is ever appended again. In the oldest segment there is nothing
//!    before it, so the item's older records are gone from the log along with the segment.
//! 2. records that name a former owner may have been appended again after the holder's own, while
//!    it was not certain which of the two would own the ids. So while the log has the record of
//!    any change of owner, the removal of the item is recorded as if the owner had sent it, and is
//!    kept as long as any such.
//! 3. a crash before the segment is freed undoes the whole, and the item is as it was. What has
//!    changed it since lies behind it in the log.
//!
//! An item that was forgotten is not said to be one that was never received ([`super::fetch`]).

use super::super::record::entry_record;
use super::super::{Mutation, RecordKey, ReplicationEntry};
use super::ReplicaStore;
use crate::log::LogError;
use crate::overlay::Peer;

/// Segments that are cleaned without one becoming free before cleaning counts as of no use: more
/// than it takes where a quarter of each is free.
const FUTILE_SEGMENTS: usize = 4;

impl ReplicaStore {
    /// Whether a full log forgets the items that were written the longest ago (in a cache), rather
    /// than refuse new ones (in a store, the default).
    pub fn set_forgets(&mut self, forgets: bool) {
        self.forgets = forgets;
    }

    /// Whether items may have been forgotten that owners have.
    pub(super) fn may_have_forgotten(&self) -> bool {
        self.forgets
    }

    /// The number of items forgotten since the log was opened.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The segment to clean next, if one is worth it, and whether its items are to be forgotten.
    pub(super) fn next_to_clean(&self) -> Option<(u32, bool)> {
        let is_futile = self.futile_cleaning.segments() >= FUTILE_SEGMENTS;
        let oldest = self.forgets.then(|| self.log.oldest_if_dense(is_futile)).flatten();
        let emptied = oldest.map(|segment| (segment, true));
        emptied.or_else(|| self.log.victim().map(|segment| (segment, false)))
    }

    /// Forgets items of which the records that count lie in the oldest segment, each with its
    /// holder.
    pub(super) fn forget_items(&mut self, items: Vec<(Peer, RecordKey)>) -> Result<(), LogError> {
        self.forgotten += items.len() as u64;
        let needs_records = !self.owner_changes.is_empty();
        for (holder, key) in items {
            let Some(replica) = self.replicas.get_mut(&holder) else { continue };
            let old = if needs_records {
                let (version, mutation) = (replica.last, Mutation::RemoveItem(key));
                let entry = ReplicationEntry { version, mutation, sessions: Vec::new() };
                let position = self.log.append_reserved(&entry_record(holder, &entry))?;
                let removed = Some(self.log.sequence(position));
                replica.records.insert((key, version), position, removed)
            } else {
                replica.records.remove(&key)
            };
            if let Some(old) = old {
                self.log.release(old.position);
            }
        }
        Ok(())
    }
}
