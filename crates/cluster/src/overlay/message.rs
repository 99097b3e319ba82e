//! What nodes say to each other about metadata.

use super::edit::{Edit, FailoverGrant, Refusal, RequestId, Snapshot, Summary, Version};
use super::ring::RingSegment;
use super::view::{Peer, Term};
use crate::coordinator::Proposal;
use crate::ids::{ChunkId, Creator};
use crate::ranges::Range;

/// Times that a request is handed on to who should know better, at most.
pub const HOPS_MAX: u8 = 2;

/// A message. Lost, repeated and late ones do no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To a super peer: who owns an id?
    LookUp {
        /// Who wants to know.
        origin: Peer,
        /// The asker's name for the question.
        token: u64,
        /// The id.
        id: ChunkId,
        /// How often it was handed on.
        hops: u8,
    },
    /// The answer.
    Found {
        /// The asker's name for the question.
        token: u64,
        /// The id.
        id: ChunkId,
        /// The epoch at which this was so.
        epoch: u64,
        /// The range around the id and the present life of its owner; none if nobody owns it.
        /// Incarnation 0 if the owner is not there.
        found: Option<(Range, u32)>,
        /// Whether that is committed. Who takes a chunk over must know; to ask its owner for it,
        /// nobody has to.
        is_certain: bool,
    },
    /// To a super peer: change who owns ids.
    Change {
        /// What to change.
        edit: Edit,
        /// How often it was handed on.
        hops: u8,
    },
    /// The answer: the epoch from which on, or why not.
    Changed {
        /// The request.
        request: RequestId,
        /// Whose ids.
        creator: Creator,
        /// The epoch of the change.
        result: Result<u64, Refusal>,
    },
    /// To peers: these are the super peers.
    SuperPeers {
        /// How new the list is.
        revision: u64,
        /// In the order of the ring.
        super_peers: Vec<Peer>,
    },
    /// To a member of an segment's old group: accept nothing of older terms any more.
    Seal {
        /// The segment.
        segment: RingSegment,
        /// The new term.
        term: Term,
    },
    /// The answer: what is held of the segment.
    Sealed {
        /// The segment.
        segment: RingSegment,
        /// The new term.
        term: Term,
        /// How far the replica is.
        held: Vec<Summary>,
        /// The first life of the sender's node that it speaks for: its own, or an earlier one
        /// whose promises and replicas it has from a log.
        since: u32,
    },
    /// Somebody has a later term there.
    Overruled {
        /// A position that the question named.
        at: u16,
        /// The later term.
        promised: Term,
    },
    /// Send all you hold of a creator.
    Fetch {
        /// Whose ids.
        creator: Creator,
    },
    /// All that is held of a creator. From a leader: hold the same.
    Install {
        /// What is held.
        snapshot: Snapshot,
    },
    /// From an segment's leader: this is what its members must hold.
    Compare {
        /// The segment.
        segment: RingSegment,
        /// The leader's term.
        term: Term,
        /// Everything in the segment.
        held: Vec<Summary>,
    },
    /// The answer of a member that holds the same.
    Matches {
        /// The segment.
        segment: RingSegment,
        /// The leader's term.
        term: Term,
    },
    /// The answer of one that does not.
    Missing {
        /// The leader's term.
        term: Term,
        /// What it wants.
        creators: Vec<Creator>,
    },
    /// From a leader: the next batch.
    Append {
        /// Whose ids.
        creator: Creator,
        /// What the replica is after it.
        version: Version,
        /// The batch.
        edits: Vec<Edit>,
    },
    /// The answer of a member that holds it.
    Appended {
        /// Whose ids.
        creator: Creator,
        /// What the replica is.
        version: Version,
    },
    /// From a leader: you own these ids and have to recover them. Repeated until they are yours by
    /// an edit of your own.
    GrantFailover(FailoverGrant),
    /// From a leader: is all there that this former life of your node had as a backup?
    QueryReplica {
        /// Whose ids it is about.
        creator: Creator,
        /// The former life.
        former: Peer,
    },
    /// The answer.
    ReplicaStatus {
        /// Whose ids it is about.
        creator: Creator,
        /// The former life.
        former: Peer,
        /// Whether all is there; else nothing counts.
        is_whole: bool,
    },
    /// From a backup to a leader: does somebody need what I keep in that name?
    QueryNeeded {
        /// Whose ids it is about.
        creator: Creator,
        /// The owner's life, which is over.
        source: Peer,
        /// Of the coordinator's state in which it is. Who knows an older one does not answer.
        revision: u64,
    },
    /// The answer of a leader, if nobody does.
    NotNeeded {
        /// Whose ids it is about.
        creator: Creator,
        /// The owner's life.
        source: Peer,
    },
    /// From a leader: do you live?
    Probe {
        /// The coordinator's state in which it asks.
        revision: u64,
    },
    /// The answer.
    Alive {
        /// As it was asked.
        revision: u64,
    },
}

/// What the logic wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayCommand {
    /// Send a message to that life of a node, and to no other.
    Send(Peer, Message),
    /// Ask the coordinator to decide.
    Propose(Proposal),
    /// Something for the log.
    Log(OverlayEvent),
}

/// What is worth a line in the log, and what simulations check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayEvent {
    /// A leader asks its group to hold a batch.
    Proposed(Creator, Version, Vec<Edit>),
    /// A majority holds it.
    Committed(Creator, Version),
    /// This node leads an segment from now on, and found that.
    BecameLeader(RingSegment, Term, Vec<Summary>),
    /// Chunks that were backed up in somebody's name can be read by nobody who has them: they are
    /// lost.
    ChunksLost(Peer, Vec<ChunkId>),
    /// What is kept of chunks in somebody's name cannot be read; others who have them are asked.
    ChunksUnreadable(Peer, Vec<ChunkId>),
    /// Nobody has what a creator's ids held any more that this life was the last to have.
    ReplicaLost(Creator, Peer),
    /// All who held an segment's metadata live again and have nothing: it stays unserved.
    MetadataLost(RingSegment),
    /// A replica differed from its leader at the same version.
    ReplicaDiverged(Creator, Version),
}
