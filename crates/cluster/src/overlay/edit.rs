//! What leaders, replicas and askers say of the metadata: changes, their names, and what came of
//! them.

use super::view::{Peer, Term};
use crate::ids::{Creator, IdRange, NodeId};
use crate::ranges::{BACKUPS_MAX, Placement, PlacementError, Range};

/// Ids that one edit names at most, but for named ids, which are sparse.
pub const EDIT_IDS_MAX: u64 = 1 << 31;

/// How far a replica of a creator's metadata is. Sequences go on over terms, and count the batches
/// of edits; they are the *epochs* that data requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Under whose lead it was written.
    pub term: Term,
    /// How many batches it holds.
    pub sequence: u64,
}

/// Names a request for ever: a peer counts its edits of each creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks.
    pub peer: Peer,
    /// The number of the request, ascending.
    pub sequence: u64,
}

/// A placement in which each node is meant in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    /// The owner and its backups.
    pub placement: Placement,
    /// Their lives, in the same order; 0 for a backup that is missing.
    pub incarnations: [u32; BACKUPS_MAX + 1],
}

impl ReplicaSet {
    /// An owner without backups.
    pub fn of_owner(owner: Peer) -> Self {
        Self::new(owner, &[]).expect("one node is there once")
    }

    /// An owner and its backups.
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

/// What shall become of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ids that nobody owns become the asker's.
    Claim(ReplicaSet),
    /// Ids of the asker become somebody else's, or get other backups.
    Migrate(ReplicaSet),
    /// Ids that the asker inherited in that name are recovered, and get backups.
    CompleteFailover(ReplicaSet, Peer),
    /// Ids of the asker become nobody's.
    Release,
    /// Nothing but that no older request of the asker is carried out any more.
    Fence,
    /// Of the leader: that life is over. Where it was the owner the first backup takes its place,
    /// and has to recover what it has of it; elsewhere it is a backup no more. What had no backup
    /// is nobody's. Where all who have something are buried in the same batch nothing changes:
    /// one of them may come back with its log.
    RemoveDead(Peer),
    /// Of the leader: that life is over, and nothing is left of what it had.
    MarkLost(Peer),
    /// Of the leader: the node lives again, in that life, and its log has all that it had as a
    /// backup. What it owned goes as if it were buried.
    Rejoin(Peer, u32),
}

/// A request to change who owns ids of one creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Its name. A repetition is answered as the first was, an older one refused.
    pub request: RequestId,
    /// The ids.
    pub ids: IdRange,
    /// What shall become of them.
    pub change: Change,
}

impl Change {
    /// The placement that it gives, if it does.
    pub fn replica_set(&self) -> Option<ReplicaSet> {
        match self {
            Self::Claim(set) | Self::Migrate(set) | Self::CompleteFailover(set, _) => Some(*set),
            Self::Release | Self::Fence => None,
            Self::RemoveDead(_) | Self::MarkLost(_) | Self::Rejoin(..) => None,
        }
    }

    /// Whether it is for leaders alone to ask for.
    pub fn is_of_leader(&self) -> bool {
        matches!(self, Self::RemoveDead(_) | Self::MarkLost(_) | Self::Rejoin(..))
    }
}

/// How a catalog changed, for a log that it can be made from again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataRecord {
    /// A batch of edits, and what the replica is after it.
    Batch(Creator, Version, Vec<Edit>),
    /// All that is held of a creator now.
    Snapshot(Snapshot),
    /// What is held is held under another version.
    Restamp(Creator, Version),
    /// Nothing is held of a creator any more.
    Removed(Creator),
    /// Which terms the replica follows, by positions from the first to the last.
    Promises(Vec<(u64, u64, Term)>),
}

impl Edit {
    /// The same, naming lives that nobody has: it will be refused as [`Refusal::StalePeer`].
    pub(super) fn refused(self) -> Self {
        let gone = |set: ReplicaSet| ReplicaSet { incarnations: [0; BACKUPS_MAX + 1], ..set };
        let change = match self.change {
            Change::Claim(set) => Change::Claim(gone(set)),
            Change::Migrate(set) => Change::Migrate(gone(set)),
            Change::CompleteFailover(set, source) => Change::CompleteFailover(gone(set), source),
            other => other,
        };
        Self { change, ..self }
    }
}

/// Why an edit changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody owns one of the ids already.
    Owned,
    /// The asker does not own all of them, or claims for somebody else.
    NotOwner,
    /// A later request of the asker was carried out before.
    Outdated,
    /// More than [`EDIT_IDS_MAX`] ids.
    TooWide,
    /// Somebody is named in a life that is over, or whose former one is not buried yet.
    StalePeer,
}

/// The last request of a peer, and how it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRequest {
    /// The request.
    pub request: RequestId,
    /// From which epoch on, or why not.
    pub result: Result<u64, Refusal>,
}

/// How far a replica is, and a fingerprint of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whose ids.
    pub creator: Creator,
    /// How far.
    pub version: Version,
    /// Of ranges and requests.
    pub digest: u64,
}

/// All metadata of a creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose ids.
    pub creator: Creator,
    /// How far.
    pub version: Version,
    /// Who owns them.
    pub ranges: Vec<Range>,
    /// The last request of each peer.
    pub last_requests: Vec<LastRequest>,
    /// In which life nodes are meant.
    pub incarnations: Vec<Peer>,
    /// Ids that their owners have yet to recover, and in whose name they were backed up.
    pub to_recover: Vec<(IdRange, Peer)>,
}

/// Ids that a node owns and has to recover first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverGrant {
    /// The ids.
    pub ids: IdRange,
    /// The epoch at which this is so.
    pub epoch: u64,
    /// In whose name they were backed up.
    pub source: Peer,
    /// Owner and backups: each has all that was acknowledged.
    pub holders: Vec<Peer>,
}
