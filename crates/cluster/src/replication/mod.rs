//! Primary-backup replication: an owner acknowledges a change only after its backups have it
//! (DXRAM, section 2; the placement of a range names its owner and up to three backups).
//!
//! [`ReplicationPrimary`] is the owner's side, [`ReplicaStore`] the backup's. An owner sends its
//! changes to each backup in order; a backup keeps them in its log, under the owner's peer (node
//! and incarnation). When an incarnation of an owner ends, the metadata makes the first backup the
//! new owner. It seals what it has of the old one, loads it, turns the other backups into its own
//! without copying, or copies to a new set, and serves once the metadata has committed that set.
//!
//! Invariants:
//! 1. No reply depends on a change that some member of the committed set lacks: neither the reply
//!    to the change itself nor a read of a change in flight. So each member alone has everything
//!    that was acknowledged.
//! 2. A member leaves the set only by an edit of the metadata, and joins it only when it has
//!    everything. A learner (a node about to join) receives every change from the moment its
//!    catch-up begins.
//! 3. A backup that has sealed an owner's incarnation accepts nothing more of it. So an owner that
//!    was replaced without knowing acknowledges nothing.
//! 4. A backup in a new incarnation is in no set: what is in its log has no vote. Where every node
//!    that has something is gone, a leader asks their new incarnations; one whose log is complete
//!    ([`ReplicaStore::resume`]) counts as what it was before. So a cluster that lost power still
//!    has everything that was acknowledged.
//! 5. Chunks are distinguished by their ids. Items of one named id are distinguished by a checksum
//!    of their keys in addition to the id: two keys that agree in all 92 bits would be taken for
//!    one another.
//! 6. Changes queued for a backup are bounded in number; beyond the bound owners refuse writes.
//! 7. A node that has been a backup without a break since some change has every change from there
//!    to its last. So two nodes that seal an incarnation find the difference between them from two
//!    versions; a node that replayed part of it from a log ([`ReplicaStore::resume`]) does not
//!    offer that.

mod entry;
mod placement;
mod primary;
mod record;
mod store;
mod stream;
#[cfg(test)]
mod tests;
mod unacknowledged;

/// The most keys in one [`ReplicationMessage::Fetch`].
pub(crate) const FETCH_KEYS_MAX: usize = 1_024;

pub use entry::{EntryBatch, Mutation, MutationRef, RecordKey, ReplicationEntry, SkippedValue};
pub use primary::{Backlog, ItemKey, ReplicationCommand, ReplicationPrimary};
pub(crate) use primary::{NAMED_CHANGES_MAX, chunk};
pub use record::LogWriter;
pub use store::{RecoveredState, ReplicaContents, ReplicaSlice, ReplicaStore};
pub use unacknowledged::UnacknowledgedIds;

use crate::chunks::SessionState;
use crate::ids::IdRange;
use crate::overlay::Peer;

/// Parameters of [`ReplicationPrimary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicationSettings {
    /// Backups of each range, 0 to 3; fewer where the cluster has fewer other nodes. 0 turns
    /// replication off.
    pub backups: usize,
    /// The fewest replicas, the owner included, with which a range accepts changes.
    pub min_replicas: usize,
    /// A backup that owes an answer for this long is committed out of the set, in milliseconds.
    pub silent_ms: u64,
    /// Unanswered entries are sent again after this long, in milliseconds.
    pub retry_ms: u64,
    /// The most entries queued for one backup.
    pub window: usize,
    /// Number of different backup sets that the ranges of one node are spread over (Copysets); the
    /// same at all nodes. 0 gives each range a set of its own.
    pub copy_sets: usize,
}

impl Default for ReplicationSettings {
    fn default() -> Self {
        let (silent_ms, retry_ms, window) = (50, 20, 4_096);
        Self { backups: 0, min_replicas: 2, silent_ms, retry_ms, window, copy_sets: 0 }
    }
}

/// Messages between an owner and its backups. The sender's peer (node and incarnation) identifies
/// the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicationMessage {
    /// From the owner: store these entries.
    Append {
        /// Numbers the owner's streams to this backup; a message of an earlier stream is ignored.
        stream: u64,
        /// The number of the first entry in this stream, counted from 1.
        first: u64,
        /// The entries, in order.
        entries: EntryBatch,
    },
    /// From the backup: it has stored every entry below `next`.
    Appended {
        /// The stream that is answered.
        stream: u64,
        /// The number of the first entry that is missing.
        next: u64,
    },
    /// From the backup: it accepts nothing more.
    Refused {
        /// The stream that is refused.
        stream: u64,
        /// True if the owner's incarnation was sealed by its successor; false if the backup's log
        /// failed.
        is_sealed: bool,
    },
    /// From the backup: its records of these keys cannot be read any more, or the items look
    /// expired. The owner sends the present values again, or that they were removed.
    Resend {
        /// The stream to send on.
        stream: u64,
        /// Chunks and items to send again.
        keys: Vec<RecordKey>,
    },
    /// From a new owner to another replica: accept nothing more of an incarnation that has ended,
    /// and report how far you came.
    Seal {
        /// The incarnation that has ended.
        source: Peer,
        /// Ids that `source` owned and the sender takes over.
        ids: IdRange,
        /// The sender has everything up to this version.
        last: u64,
    },
    /// The answer of a replica that can keep its records in the new owner's name.
    Sealed {
        /// As in the request.
        source: Peer,
        /// As in the request.
        ids: IdRange,
        /// The replica has everything up to this version.
        last: u64,
        /// Keys that it has under later versions than the new owner; none if it cannot tell.
        beyond: Option<Vec<RecordKey>>,
    },
    /// From a new owner to another replica: send these, which the new owner cannot read itself.
    Fetch {
        /// The incarnation, which has ended, under which they are kept.
        source: Peer,
        /// Ids that `source` owned and the sender takes over.
        ids: IdRange,
        /// Chunks and items of `ids`.
        keys: Vec<RecordKey>,
    },
    /// The answer. A key that is not mentioned did not fit; it is asked for again.
    Fetched {
        /// As in the request.
        source: Peer,
        /// As in the request.
        ids: IdRange,
        /// The present values, or that they were removed; of a chunk and its lock, both.
        found: Vec<Mutation>,
        /// Replies that clients received about these keys. It may be older than what the new owner
        /// knows; then the new owner discards the later replies, since it lacks the changes they
        /// answered.
        sessions: Vec<SessionState>,
        /// Keys of which it has no record, so that nothing about them was ever acknowledged to
        /// anybody.
        lacking: Vec<RecordKey>,
        /// Keys that it cannot read either.
        damaged: Vec<RecordKey>,
    },
}
