//! Edits of the metadata, their identifiers and results, and snapshots of what they produce.

use super::view::{Peer, Term};
use crate::ids::{Creator, IdRange, NodeId};
use crate::ranges::{BACKUPS_MAX, Placement, PlacementError, Range};

/// Ids in one edit at most. Named ids are exempt, since they are sparse.
pub const EDIT_IDS_MAX: u64 = 1 << 31;

/// The version of a replica of a creator's metadata. The sequence counts batches of edits and
/// continues across terms; it is the *epoch* that data requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The term in which the last batch was written.
    pub term: Term,
    /// Number of batches applied.
    pub sequence: u64,
}

/// Identifies a request for ever: each peer numbers its edits of a creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The requester.
    pub peer: Peer,
    /// Number of the request; ascending.
    pub sequence: u64,
}

/// A placement with the incarnation of each node that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    /// The owner and its backups.
    pub placement: Placement,
    /// Their incarnations in the same order; 0 where there is no backup.
    pub incarnations: [u32; BACKUPS_MAX + 1],
}

impl ReplicaSet {
    /// A set of an owner without backups.
    pub fn of_owner(owner: Peer) -> Self {
        Self::new(owner, &[]).expect("one node is there once")
    }

    /// A set of an owner and its backups.
    ///
    /// # Errors
    ///
    /// As [`Placement::new`].
    pub fn new(owner: Peer, backups: &[Peer]) -> Result<Self, PlacementError> {
        let nodes: Vec<NodeId> = backups.iter().map(|backup| backup.node).collect();
        let placement = Placement::new(owner.node, &nodes)?;
        let mut incarnations = [0; BACKUPS_MAX + 1];
        let peers = std::iter::once(&owner).chain(backups);
        incarnations
            .iter_mut()
            .zip(peers)
            .for_each(|(incarnation, peer)| *incarnation = peer.incarnation);
        Ok(Self { placement, incarnations })
    }

    /// The owner, then the backups.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        let nodes = std::iter::once(self.placement.owner()).chain(self.placement.backups());
        nodes.zip(self.incarnations).map(|(node, incarnation)| Peer { node, incarnation })
    }
}

/// What an edit does to its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ids without an owner become the requester's.
    Claim(ReplicaSet),
    /// Ids of the requester get another owner or other backups.
    Migrate(ReplicaSet),
    /// Ids that were granted to the requester in failover, from this source, are recovered and get
    /// backups. In a set without any, the requester's own log keeps the ids: they are recovered
    /// from it when it is back. With the requester as the source, that holds for ids that it
    /// serves.
    CompleteFailover(ReplicaSet, Peer),
    /// Ids of the requester lose their owner.
    Release,
    /// Changes nothing; earlier requests of the requester are refused from now on.
    Fence,
    /// By the leader: this peer is dead. Where it was the owner, its first backup becomes the owner
    /// and has to recover the ids from its replica; elsewhere it is removed from the backups. Ids
    /// without a backup lose their owner. Ids whose holders are all removed in one batch keep them:
    /// one of them may come back with its log.
    RemoveDead(Peer),
    /// By the leader: this peer is dead, and nothing it held is left.
    MarkLost(Peer),
    /// By the leader: the node is back in this incarnation, and its log holds all its replicas.
    /// What it owned is handled as in `RemoveDead`.
    Rejoin(Peer, u32),
}

/// A request to change the ownership of ids of one creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Identifies the request. A repetition gets the first answer; an older request is refused.
    pub request: RequestId,
    /// The ids to change.
    pub ids: IdRange,
    /// The change.
    pub change: Change,
}

impl Change {
    /// The replica set that the change assigns, if it assigns one.
    pub fn replica_set(&self) -> Option<ReplicaSet> {
        match self {
            Self::Claim(set) | Self::Migrate(set) | Self::CompleteFailover(set, _) => Some(*set),
            Self::Release | Self::Fence => None,
            Self::RemoveDead(_) | Self::MarkLost(_) | Self::Rejoin(..) => None,
        }
    }

    /// Whether only leaders may request it.
    pub fn is_of_leader(&self) -> bool {
        matches!(self, Self::RemoveDead(_) | Self::MarkLost(_) | Self::Rejoin(..))
    }
}

/// A record of a change to the catalog, from which a log can rebuild it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataRecord {
    /// A batch of edits, and the version that it produces.
    Batch(Creator, Version, Vec<Edit>),
    /// The whole metadata of a creator.
    Snapshot(Snapshot),
    /// The version changes, the content does not.
    Restamp(Creator, Version),
    /// The metadata of a creator is removed.
    Removed(Creator),
    /// The terms that the replica has promised to follow: first position, last position, term.
    Promises(Vec<(u64, u64, Term)>),
}

impl MetadataRecord {
    /// The bytes of memory that the record takes, without what an allocator adds.
    pub(super) fn memory_bytes(&self) -> usize {
        let owned = match self {
            Self::Batch(_, _, edits) => size_of_val(&edits[..]),
            Self::Snapshot(all) => {
                size_of_val(&all.ranges[..])
                    + size_of_val(&all.last_requests[..])
                    + size_of_val(&all.incarnations[..])
                    + size_of_val(&all.to_recover[..])
            }
            Self::Promises(terms) => size_of_val(&terms[..]),
            Self::Restamp(..) | Self::Removed(_) => 0,
        };
        size_of::<Self>() + owned
    }
}

impl Edit {
    /// The same edit with incarnations that no node has; it will be refused as
    /// [`Refusal::StalePeer`].
    pub(super) fn refused(self) -> Self {
        let stale = |set: ReplicaSet| ReplicaSet { incarnations: [0; BACKUPS_MAX + 1], ..set };
        let change = match self.change {
            Change::Claim(set) => Change::Claim(stale(set)),
            Change::Migrate(set) => Change::Migrate(stale(set)),
            Change::CompleteFailover(set, source) => Change::CompleteFailover(stale(set), source),
            other => other,
        };
        Self { change, ..self }
    }
}

/// The reason for which an edit changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// One of the ids has an owner already.
    Owned,
    /// The requester does not own all of the ids, or claims for another node.
    NotOwner,
    /// A later request of the requester was executed before.
    Outdated,
    /// The edit names more than [`EDIT_IDS_MAX`] ids.
    TooWide,
    /// The edit names a dead peer, or a node whose former incarnation is not removed yet.
    StalePeer,
}

/// The last request of a peer, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRequest {
    /// The request.
    pub request: RequestId,
    /// The epoch from which it holds, or the reason for a refusal.
    pub result: Result<u64, Refusal>,
}

/// The version and a digest of a replica of one creator's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The creator of the ids.
    pub creator: Creator,
    /// The version.
    pub version: Version,
    /// Digest of ranges, requests, incarnations and ids to recover.
    pub digest: u64,
}

/// All metadata of a creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The creator of the ids.
    pub creator: Creator,
    /// The version.
    pub version: Version,
    /// The ranges and their placements.
    pub ranges: Vec<Range>,
    /// The last request of each peer.
    pub last_requests: Vec<LastRequest>,
    /// The incarnations in which the ranges name nodes.
    pub incarnations: Vec<Peer>,
    /// Ids that their owners have yet to recover, and the peer in whose name they were replicated.
    pub to_recover: Vec<(IdRange, Peer)>,
}

/// A grant to a new owner: ids that it owns and has to recover before it serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverGrant {
    /// The ids.
    pub ids: IdRange,
    /// The epoch of the grant.
    pub epoch: u64,
    /// The peer in whose name they were replicated.
    pub source: Peer,
    /// Owner and backups; each has every acknowledged write.
    pub holders: Vec<Peer>,
}
