//! Messages about metadata.

use super::edit::{Edit, FailoverGrant, Refusal, RequestId, Snapshot, Summary, Version};
use super::proposal::Proposal;
use super::ring::RingSegment;
use super::view::{Peer, Term};
use crate::ids::{ChunkId, Creator};
use crate::ranges::Range;

/// Times that a request is forwarded to another super peer at most.
pub const HOPS_MAX: u8 = 2;

/// A message. Loss, repetition and delay do no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To a super peer: asks who owns an id.
    LookUp {
        /// The peer that asks.
        origin: Peer,
        /// The requester's token of this lookup.
        token: u64,
        /// The id.
        id: ChunkId,
        /// Times that it was forwarded; a repeated one starts at 1. If it is not 0, a follower
        /// answers it too: the leader may be silent, or another node than its sender takes it to
        /// be.
        hops: u8,
    },
    /// Answers `LookUp`.
    Found {
        /// The requester's token of this lookup.
        token: u64,
        /// The id.
        id: ChunkId,
        /// The epoch at which this held.
        epoch: u64,
        /// The range around the id and its owner's present incarnation, or 0 if the owner is not a
        /// member; None if nobody owns the id.
        found: Option<(Range, u32)>,
        /// Whether it is committed. A node that takes over a chunk must know; a request to the
        /// owner need not.
        is_certain: bool,
    },
    /// To a super peer: asks for an edit.
    Change {
        /// The edit.
        edit: Edit,
        /// Times that it was forwarded.
        hops: u8,
    },
    /// Answers `Change`: the epoch from which the edit holds, or the reason for a refusal.
    Changed {
        /// The request.
        request: RequestId,
        /// The creator of the ids.
        creator: Creator,
        /// The epoch of the edit.
        result: Result<u64, Refusal>,
    },
    /// To peers: the list of super peers.
    SuperPeers {
        /// The coordinator's revision of the list.
        revision: u64,
        /// The super peers in ring order.
        super_peers: Vec<Peer>,
    },
    /// To a member of a segment's old group: accept nothing of earlier terms from now on.
    Seal {
        /// The segment.
        segment: RingSegment,
        /// The new term.
        term: Term,
    },
    /// Answers `Seal`: what the replica holds of the segment.
    Sealed {
        /// The segment.
        segment: RingSegment,
        /// The new term.
        term: Term,
        /// Versions and digests of the replica.
        held: Vec<Summary>,
        /// The first incarnation that the sender speaks for: its own, or an earlier one whose
        /// promises and replicas it has from a log.
        since: u32,
    },
    /// The receiver of a message has promised a later term.
    Overruled {
        /// A position that the message named.
        at: u16,
        /// The later term.
        promised: Term,
    },
    /// Asks for all metadata of a creator.
    Fetch {
        /// The creator.
        creator: Creator,
    },
    /// All metadata of a creator. A leader sends it to be installed.
    Install {
        /// The metadata.
        snapshot: Snapshot,
    },
    /// From a segment's leader: what its members must hold.
    Compare {
        /// The segment.
        segment: RingSegment,
        /// The leader's term.
        term: Term,
        /// Versions and digests of everything in the segment.
        held: Vec<Summary>,
    },
    /// Answers `Compare`: the member holds the same.
    Matches {
        /// The segment.
        segment: RingSegment,
        /// The leader's term.
        term: Term,
    },
    /// Answers `Compare` or `Append`: the member lacks something.
    Missing {
        /// The leader's term.
        term: Term,
        /// The creators whose metadata it needs.
        creators: Vec<Creator>,
    },
    /// From a leader: the next batch of edits.
    Append {
        /// The creator of the ids.
        creator: Creator,
        /// The version that the batch produces.
        version: Version,
        /// The edits.
        edits: Vec<Edit>,
    },
    /// Answers `Append`: the member holds the batch.
    Appended {
        /// The creator of the ids.
        creator: Creator,
        /// The version of the replica.
        version: Version,
    },
    /// From a leader: the receiver owns these ids and has to recover them. Repeated until it
    /// completes the failover by an edit.
    GrantFailover(FailoverGrant),
    /// From a leader: asks whether the node still has all replicas of this former incarnation.
    QueryReplica {
        /// The creator of the ids.
        creator: Creator,
        /// The former incarnation.
        former: Peer,
    },
    /// Answers `QueryReplica`.
    ReplicaStatus {
        /// The creator of the ids.
        creator: Creator,
        /// The former incarnation.
        former: Peer,
        /// Whether everything is there; if not, nothing counts.
        is_whole: bool,
    },
    /// From a backup to a leader: asks whether replicas in the name of a dead owner are still
    /// needed.
    QueryNeeded {
        /// The creator of the ids.
        creator: Creator,
        /// The dead owner.
        source: Peer,
        /// The coordinator's revision in which it is dead. A leader with an older one does not
        /// answer.
        revision: u64,
    },
    /// Answers `QueryNeeded`: nobody needs them.
    NotNeeded {
        /// The creator of the ids.
        creator: Creator,
        /// The dead owner.
        source: Peer,
    },
    /// From a leader: asks whether the receiver is alive.
    Probe {
        /// The coordinator's revision at which it asks.
        revision: u64,
    },
    /// Answers `Probe`.
    Alive {
        /// The revision of the question.
        revision: u64,
    },
}

/// A command of the overlay to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayCommand {
    /// Sends a message to exactly this incarnation of a node.
    Send(Peer, Message),
    /// Asks the coordinator to decide a proposal.
    Propose(Proposal),
    /// Reports an event for the log.
    Log(OverlayEvent),
}

/// An event for the log; simulations check them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayEvent {
    /// A leader asks its group to hold a batch.
    Proposed(Creator, Version, Vec<Edit>),
    /// A majority holds the batch.
    Committed(Creator, Version),
    /// This node leads a segment from now on, and holds these replicas of it.
    BecameLeader(RingSegment, Term, Vec<Summary>),
    /// No holder can read these chunks, which were replicated in the name of this peer: they are
    /// lost.
    ChunksLost(Peer, Vec<ChunkId>),
    /// The replicas of these chunks, in the name of this peer, cannot be read here; other holders
    /// are asked.
    ChunksUnreadable(Peer, Vec<ChunkId>),
    /// This peer was the last holder of ids of a creator, and has nothing left of them.
    ReplicaLost(Creator, Peer),
    /// All holders of a segment's metadata are back and have nothing. The segment is not served, or
    /// begins empty if this is true.
    MetadataLost(RingSegment, bool),
    /// A replica differed from its leader at the same version.
    ReplicaDiverged(Creator, Version),
}
