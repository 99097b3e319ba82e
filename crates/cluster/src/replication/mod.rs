//! Backups: what an owner changes lies on other nodes before anybody is told so (DXRAM, section 2;
//! the placement of a range names its owner and up to three backups).
//!
//! [`ReplicationPrimary`] is the owner's side, [`ReplicaStore`] the backup's. An owner sends its changes to each
//! backup in their order; a backup keeps them in its log, in the owner's name. When a life of an
//! owner is over, the metadata puts the first backup in its place, which seals what it has of it,
//! loads it, makes the other backups its own in place, or copies it to a new set, and serves once
//! that set is committed.
//!
//! Invariants of this room:
//! 1. Nothing is answered that a member of the committed set does not have: neither a change, nor a
//!    read of a change that is on its way. So each member alone has all that was acknowledged.
//! 2. A member leaves the set only by an edit of the metadata, and joins it only when it has all.
//!    Who is about to join gets every change from its first day on.
//! 3. A backup that sealed an owner's life takes nothing of it any more; so an owner that was
//!    replaced, and does not know, acknowledges nothing.
//! 4. A backup in a new life is in no set: what it has in its log has no vote. But where all who
//!    have something are gone, a leader asks their new lives; whose log is whole
//!    ([`ReplicaStore::resume`]) is what it was before. So a cluster that lost its power has all that was
//!    acknowledged.
//! 5. Chunks are told apart by their ids. Items of one named id are told apart by a checksum of
//!    their keys beside it: keys that agree in 92 bits would be taken for one another.
//! 6. Changes that wait for a member are bounded in number and bytes; beyond, owners refuse.
//! 7. Who was a backup from some change on without a break has all changes up to the last that it
//!    has. So two who seal what they have of a life tell by two versions what they differ in; who
//!    took some of it up from a log ([`ReplicaStore::resume`]) does not say so.

mod entry;
mod placement;
mod primary;
mod record;
mod store;
mod stream;
#[cfg(test)]
mod tests;

/// Chunks and items that are fetched together at most.
pub(crate) const FETCH_KEYS_MAX: usize = 1_024;

pub use entry::{
    CachedReply, EntryBatch, Mutation, MutationRef, RecordKey, ReplicationEntry, SkippedValue,
};
pub use primary::{ItemKey, ReplicationCommand, ReplicationPrimary};
pub(crate) use primary::{NAMED_CHANGES_MAX, chunk};
pub use record::LogWriter;
pub use store::{RecoveredState, ReplicaContents, ReplicaStore};

use crate::chunks::SessionState;
use crate::ids::IdRange;
use crate::overlay::Peer;

/// Parameters of [`ReplicationPrimary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicationSettings {
    /// Backups of each range, up to three; as many as there are other nodes where those are fewer.
    /// 0 for none at all.
    pub backups: usize,
    /// Below so many copies, the owner's among them, nothing is changed.
    pub min_replicas: usize,
    /// A backup that is silent for so long is committed out of the set.
    pub silent_ms: u64,
    /// After that long what was not answered is sent again.
    pub retry_ms: u64,
    /// Changes that wait for one backup at most, and sent in one message.
    pub window: usize,
    /// Sets of backups that the ranges of one node lie in, alike at all nodes; 0 for a set of its
    /// own for each range.
    pub copy_sets: usize,
}

impl Default for ReplicationSettings {
    fn default() -> Self {
        let (silent_ms, retry_ms, window) = (50, 20, 4_096);
        Self { backups: 0, min_replicas: 2, silent_ms, retry_ms, window, copy_sets: 0 }
    }
}

/// What owner and backup say to each other. The sender's life is the owner's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicationMessage {
    /// From the owner: keep these.
    Append {
        /// Counts the owner's attempts with this backup; what is of an earlier one is too late.
        stream: u64,
        /// The number of the first; they are counted from 1 on.
        first: u64,
        /// Changes, in their order.
        entries: EntryBatch,
    },
    /// From the backup: everything below is kept.
    Appended {
        /// The attempt.
        stream: u64,
        /// The number that comes next.
        next: u64,
    },
    /// From the backup: it keeps no more.
    Refused {
        /// The attempt.
        stream: u64,
        /// Because somebody else takes the owner's place, and not because its log failed.
        is_sealed: bool,
    },
    /// From the backup: what it kept of these cannot be read any more, or looks as if it had ended.
    /// Send them again, or that they are gone.
    Resend {
        /// The attempt.
        stream: u64,
        /// Chunks and items.
        keys: Vec<RecordKey>,
    },
    /// From an heir to another who has copies: take nothing more of a life that is over, and say
    /// how far you came with it.
    Seal {
        /// The life.
        source: Peer,
        /// Ids that it owned and the sender is to own.
        ids: IdRange,
        /// Up to this version the sender has all.
        last: u64,
    },
    /// The answer of who can keep what it has in the heir's name.
    Sealed {
        /// The life.
        source: Peer,
        /// The ids.
        ids: IdRange,
        /// Up to this version it has all.
        last: u64,
        /// What it has of these ids under later versions than the heir; none if it does not know.
        beyond: Option<Vec<RecordKey>>,
    },
    /// From an heir to another who has copies: it cannot read what it has of these itself.
    Fetch {
        /// In the name of which life, which is over, they are kept.
        source: Peer,
        /// Ids that it owned and the sender is to own.
        ids: IdRange,
        /// Chunks and items among them.
        keys: Vec<RecordKey>,
    },
    /// The answer. What it does not mention had no room in it.
    Fetched {
        /// The life.
        source: Peer,
        /// The ids.
        ids: IdRange,
        /// What they are, or that they are gone.
        found: Vec<Mutation>,
        /// What clients were answered about these. It may be less than the asker knows, and then it
        /// has to forget the rest: so are the changes.
        sessions: Vec<SessionState>,
        /// Of these it has nothing, as it would if anybody had been told of them.
        lacking: Vec<RecordKey>,
        /// It cannot read these either.
        damaged: Vec<RecordKey>,
    },
}
