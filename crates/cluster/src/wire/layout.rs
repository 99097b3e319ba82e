//! The layout of each message. The order of fields and the codes are the format; docs/wire.md
//! describes it.

use amalgam_op::{
    Arithmetic, Compare, Counted, Delete, Expiry, Get, Hit, Outcome, StoreMode, Written,
};

use crate::chunks::{
    Action, ChunkError, ClientId, ClientState, FencedChange, ItemAnswer, ItemOp, ItemRecord,
    ItemVerb, LockGrant, MovingItem, Operation, ReplicaItem, Reply, Request, Response,
    SessionState, StoreHead,
};
use crate::codec::{Wire, WireError, WireReader, wire_enum, wire_struct};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::load::LoadMessage;
use crate::overlay::{
    Change, Edit, FailoverGrant, Group, LastRequest, Message, MetadataRecord, Peer, Refusal,
    ReplicaSet, RequestId, RingSegment, Snapshot, Summary, Term, Version,
};
use crate::ranges::{BACKUPS_MAX, Placement, Range};
use crate::replication::{LogWriter, Mutation, RecordKey, ReplicationEntry, ReplicationMessage};
use crate::shard::MoveMessage;

/// The latest format version that this code speaks.
pub const WIRE_VERSION: u16 = 10;
/// The oldest format version that this code speaks. Nodes of two releases use the later version
/// that both know.
pub const WIRE_SINCE: u16 = 4;

/// The first format version in which locks have tokens.
pub(super) const TOKENS_SINCE: u16 = 9;

/// Everything that nodes and clients send after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Between nodes, about metadata.
    Overlay(Message),
    /// Between the source and target of a migration.
    Move(MoveMessage),
    /// From a client to the owner of chunks.
    Request(Request),
    /// The reply to a request.
    Reply(Reply),
    /// From a client or operator to a node, about the node itself, and the answer.
    Control(Control),
    /// Between an owner and its backups.
    Replication(ReplicationMessage),
    /// Between nodes, about their load.
    Load(LoadMessage),
    /// A request that must not be executed once the receiver's clock
    /// ([`Control::Clock`]) shows this time.
    Timed(u64, Request),
}

impl Packet {
    /// The first format version with this message. It is not sent to a peer of an older version,
    /// which could not answer it.
    pub fn since(&self) -> u16 {
        match self {
            Self::Replication(
                ReplicationMessage::Seal { .. } | ReplicationMessage::Sealed { .. },
            ) => 5,
            Self::Replication(
                ReplicationMessage::Fetch { .. } | ReplicationMessage::Fetched { .. },
            ) => 6,
            Self::Control(Control::Forbidden) => 7,
            Self::Request(request) | Self::Timed(_, request) if request.has_tokens() => {
                TOKENS_SINCE
            }
            Self::Timed(..) | Self::Control(Control::GetClock | Control::Clock(_)) => 8,
            Self::Control(Control::GetMemory | Control::Memory(_)) => 10,
            _ => WIRE_SINCE,
        }
    }
}

wire_enum!(Packet {
    1 Overlay(message),
    2 Move(message),
    3 Request(request),
    4 Reply(reply),
    5 Control(control),
    6 Replication(message),
    7 Load(message),
    8 Timed(until_ms, request),
});

wire_enum!(LoadMessage { 1 Query, 2 Report(rate) });

/// Questions of clients and operators to a node, and their answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Ask for the node's status and the members it knows.
    GetStatus,
    /// The answer to `GetStatus`.
    Status(Box<NodeStatus>),
    /// Migrate ids of the node to another node.
    Migrate {
        /// The ids.
        ids: IdRange,
        /// The node to migrate them to.
        target: NodeId,
    },
    /// Ask for the named id of the item with this key.
    LocateItem(Vec<u8>),
    /// The answer to `LocateItem`.
    ItemLocation(ChunkId),
    /// The answer to `Migrate`: whether the migration began.
    Migrating(bool),
    /// Ask whether the node owns this id.
    GetOwnership(ChunkId),
    /// The answer to `GetOwnership`: the owned range; none if the node does not own the id.
    Ownership(Option<OwnedRange>),
    /// Migrate everything to other nodes and take over nothing more.
    Drain,
    /// The answer to `Drain`: whether other nodes have taken over everything.
    Drained(bool),
    /// The answer to `Migrate` or `Drain` of a client that has not proved to be an operator.
    Forbidden,
    /// Ask for the node's clock.
    GetClock,
    /// The answer to `GetClock`: milliseconds since the node's machine started, when it answered.
    Clock(u64),
    /// Ask for the node's memory.
    GetMemory,
    /// The answer to `GetMemory`.
    Memory(NodeMemory),
}

/// Codes of the packets that clients send, which are checked before a packet is decoded.
pub(super) const OVERLAY: u8 = 1;
pub(super) const REQUEST: u8 = 3;
pub(super) const CONTROL: u8 = 5;
pub(super) const TIMED: u8 = 8;
/// The code of [`Message::LookUp`].
pub(super) const LOOK_UP: u8 = 1;
/// The codes of the questions among [`Control`].
pub(super) const CONTROL_QUESTIONS: [u8; 7] = [1, 3, 5, 7, 9, 12, 14];

/// An owner's description of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    /// The range of ids around it that the node owns.
    pub ids: IdRange,
    /// The epoch since which it owns them.
    pub epoch: u64,
    /// The backups and learners of the id, and how many changes each has not acknowledged.
    pub replicas: Vec<(Peer, u64)>,
}

/// A node's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node and its incarnation.
    pub peer: Peer,
    /// The members it knows, and their addresses.
    pub members: Vec<(Peer, String)>,
    /// The super peers among the members.
    pub supers: Vec<Peer>,
    /// The revision of the coordinator's state that it knows.
    pub revision: u64,
    /// Number of flushes that it carried out.
    pub flushes: u64,
    /// Number of partitions of named ids that it serves.
    pub partitions: u64,
    /// Number of chunk ids that it owns.
    pub ids: u64,
    /// Number of intervals that these ids form.
    pub spans: u64,
    /// Number of ranges that it holds as a super peer, and of the creators that they belong to.
    pub ranges: (u64, u64),
    /// Migrations in progress from it, and to it.
    pub moves: (u64, u64),
    /// Intervals of its ids with fewer backups than the target, and intervals that it has yet to
    /// recover.
    pub reduced: (u64, u64),
    /// Number of chunks and items that it keeps as a backup.
    pub kept: u64,
    /// Remaining lease in milliseconds.
    pub lease_left_ms: u64,
    /// Operations in the last second.
    pub rate: u64,
    /// Number of ids that it migrated because they were hot.
    pub hot_moves: u64,
    /// The release of the program.
    pub release: String,
    /// The configured number of backups.
    pub backups: u64,
}

/// The memory of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// That of items.
    pub items: MemoryUse,
    /// That of chunks.
    pub chunks: MemoryUse,
    /// Whether items make way for others when theirs is full.
    pub evicts: bool,
}

/// The use of one memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What is used, without what is free in pages.
    pub used: u64,
    /// What clients can fill.
    pub fillable: u64,
    /// All of it.
    pub limit: u64,
}

wire_enum!(Control {
    1 GetStatus,
    2 Status(status),
    3 Migrate { ids, target },
    4 Migrating(does),
    5 LocateItem(key),
    6 ItemLocation(id),
    7 GetOwnership(id),
    8 Ownership(owned),
    9 Drain,
    10 Drained(is),
    11 Forbidden,
    12 GetClock,
    13 Clock(ms),
    14 GetMemory,
    15 Memory(memory),
});
wire_struct!(NodeMemory { items: MemoryUse, chunks: MemoryUse, evicts: bool });
wire_struct!(MemoryUse { used: u64, fillable: u64, limit: u64 });
wire_struct!(OwnedRange { ids: IdRange, epoch: u64, replicas: Vec<(Peer, u64)> });
wire_struct!(NodeStatus {
    peer: Peer,
    members: Vec<(Peer, String)>,
    supers: Vec<Peer>,
    revision: u64,
    flushes: u64,
    partitions: u64,
    ids: u64,
    spans: u64,
    ranges: (u64, u64),
    moves: (u64, u64),
    reduced: (u64, u64),
    kept: u64,
    lease_left_ms: u64,
    rate: u64,
    hot_moves: u64,
    release: String,
    backups: u64,
});

/// Numbers with a restricted range of values.
macro_rules! wire_checked {
    ($($name:ty: $number:ty, $to:expr, $from:expr;)*) => {$(
        impl Wire for $name {
            const BYTES_MIN: usize = size_of::<$number>();

            fn encode(&self, to: &mut Vec<u8>) {
                let number: $number = $to(*self);
                number.encode(to);
            }

            fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
                $from(<$number>::decode(from)?).map_err(|_| WireError::Invalid)
            }
        }
    )*};
}

wire_checked! {
    NodeId: u16, NodeId::get, NodeId::new;
    Creator: u16, Creator::get, Creator::new;
    ChunkId: u64, ChunkId::bits, ChunkId::from_bits;
    Placement: u64, Placement::bits, Placement::from_bits;
    usize: u64, |number: usize| number as u64, usize::try_from;
    Expiry: u32, |expiry: Expiry| expiry.0, |number| Ok::<_, WireError>(Expiry(number));
    ClientId: u64, |client: ClientId| client.0, |number| Ok::<_, WireError>(ClientId(number));
}

/// A placement, and an incarnation for each node that it names.
impl Wire for ReplicaSet {
    const BYTES_MIN: usize = 12;

    fn encode(&self, to: &mut Vec<u8>) {
        self.placement.encode(to);
        self.peers().for_each(|peer| peer.incarnation.encode(to));
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        let placement = Placement::decode(from)?;
        let mut incarnations = [0; BACKUPS_MAX + 1];
        for incarnation in &mut incarnations[..=placement.backups().count()] {
            *incarnation = u32::decode(from)?;
        }
        Ok(Self { placement, incarnations })
    }
}

impl Wire for IdRange {
    const BYTES_MIN: usize = 16;

    fn encode(&self, to: &mut Vec<u8>) {
        self.first().encode(to);
        self.last().encode(to);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        let (first, last) = Wire::decode(from)?;
        Self::new(first, last).map_err(|_| WireError::Invalid)
    }
}

/// In place of the number of locks: locks with tokens follow.
const WITH_TOKENS: u32 = u32::MAX;

/// The locks are in the form that versions without tokens know, unless one has a token.
impl Wire for ClientState {
    const BYTES_MIN: usize = 8;

    fn encode(&self, to: &mut Vec<u8>) {
        if self.locks.iter().any(|(_, lock)| lock.token != 0) {
            WITH_TOKENS.encode(to);
            self.locks.encode(to);
        } else {
            let locks = self.locks.iter().map(|(id, lock)| (*id, lock.client, lock.lease_ms));
            locks.collect::<Vec<_>>().encode(to);
        }
        self.sessions.encode(to);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        let mut ahead = *from;
        let locks = if u32::decode(&mut ahead)? == WITH_TOKENS {
            *from = ahead;
            let locks: Vec<(ChunkId, LockGrant)> = Wire::decode(from)?;
            if locks.iter().all(|(_, lock)| lock.token == 0) {
                return Err(WireError::Invalid);
            }
            locks
        } else {
            let locks: Vec<(ChunkId, ClientId, u64)> = Wire::decode(from)?;
            let without = |(id, client, lease_ms)| (id, LockGrant { client, token: 0, lease_ms });
            locks.into_iter().map(without).collect()
        };
        Ok(Self { locks, sessions: Wire::decode(from)? })
    }
}

wire_struct!(Range { ids: IdRange, placement: Placement });
wire_struct!(RingSegment { first: u16, last: u16 });
wire_struct!(Peer { node: NodeId, incarnation: u32 });
wire_struct!(Term { number: u64, leader: Peer });
wire_struct!(Group { term: Term, members: Vec<Peer> });
wire_struct!(Version { term: Term, sequence: u64 });
wire_struct!(RequestId { peer: Peer, sequence: u64 });
wire_struct!(Edit { request: RequestId, ids: IdRange, change: Change });
wire_struct!(LastRequest { request: RequestId, result: Result<u64, Refusal> });
wire_struct!(Summary { creator: Creator, version: Version, digest: u64 });
wire_struct!(Snapshot {
    creator: Creator,
    version: Version,
    ranges: Vec<Range>,
    last_requests: Vec<LastRequest>,
    incarnations: Vec<Peer>,
    to_recover: Vec<(IdRange, Peer)>,
});
wire_struct!(FailoverGrant { ids: IdRange, epoch: u64, source: Peer, holders: Vec<Peer> });

wire_enum!(Change {
    1 Claim(set),
    2 Migrate(set),
    3 Release,
    4 Fence,
    5 RemoveDead(peer),
    6 CompleteFailover(set, source),
    7 MarkLost(peer),
    8 Rejoin(peer, incarnation),
});
wire_enum!(MetadataRecord {
    1 Batch(creator, version, edits),
    2 Snapshot(snapshot),
    3 Restamp(creator, version),
    4 Removed(creator),
    5 Promises(terms),
});
wire_enum!(Refusal { 1 Owned, 2 NotOwner, 3 Outdated, 4 TooWide, 5 StalePeer });

wire_enum!(Message {
    1 LookUp { origin, token, id, hops },
    2 Found { token, id, epoch, found, is_certain },
    3 Change { edit, hops },
    4 Changed { request, creator, result },
    5 SuperPeers { revision, super_peers },
    6 Seal { segment, term },
    7 Sealed { segment, term, held, since },
    8 Overruled { at, promised },
    9 Fetch { creator },
    10 Install { snapshot },
    11 Compare { segment, term, held },
    12 Matches { segment, term },
    13 Missing { term, creators },
    14 Append { creator, version, edits },
    15 Appended { creator, version },
    16 GrantFailover(grant),
    17 QueryReplica { creator, former },
    18 ReplicaStatus { creator, former, is_whole },
    19 QueryNeeded { creator, source, revision },
    20 NotNeeded { creator, source },
    21 Probe { revision },
    22 Alive { revision },
});

wire_struct!(Request {
    client: ClientId,
    incarnation: u32,
    answered_below: u64,
    operations: Vec<Operation>,
});
wire_struct!(Operation { number: u64, epoch: u64, action: Action });
wire_enum!(Action {
    1 Open { lease_ms },
    2 Close,
    3 Create(value),
    4 Get(id),
    5 Put(id, value),
    6 Delete(id),
    7 Lock { id, lease_ms },
    8 Unlock(id),
    9 Item { id, op },
    10 Fenced(change),
});
wire_struct!(FencedChange { id: ChunkId, token: u64, value: Option<Vec<u8>> });
wire_enum!(Response {
    1 Ok,
    2 Created(id),
    3 Value(value),
    4 Session,
    5 Item(answer),
    6 Locked(token),
});

wire_struct!(ItemOp { key: Vec<u8>, verb: ItemVerb });
wire_enum!(ItemVerb {
    1 Read,
    2 Get(get),
    3 Store(head, value),
    4 Arithmetic(arithmetic),
    5 Delete(delete),
});
wire_struct!(Get {
    touch: Option<i64>,
    vivify: Option<i64>,
    recache_below_seconds: Option<i64>,
    wants_cas: bool,
    new_cas: Option<u64>,
    checks_stale: bool,
    touches_before_recache: bool,
    is_quiet_access: bool,
});
wire_struct!(StoreHead {
    mode: StoreMode,
    flags: u32,
    expiry: i64,
    compare: Option<Compare>,
    vivify: Option<i64>,
    wants_cas: bool,
    new_cas: Option<u64>,
});
wire_enum!(StoreMode { 1 Set, 2 Add, 3 Replace, 4 Append, 5 Prepend });
wire_struct!(Compare { cas: u64, accepts_older_as_stale: bool });
wire_struct!(Arithmetic {
    delta: u64,
    is_decrement: bool,
    initial: Option<u64>,
    initial_expiry: i64,
    touch: Option<i64>,
    compare: Option<u64>,
    wants_cas: bool,
    new_cas: Option<u64>,
});
wire_struct!(Delete {
    compare: Option<u64>,
    marks_stale: bool,
    drops_value: bool,
    flags: u32,
    touch: Option<i64>,
    new_cas: Option<u64>,
});
wire_struct!(ItemAnswer { outcome: Outcome, item: Option<ItemRecord> });
wire_struct!(MovingItem { key: Vec<u8>, generation: u8, item: Option<ItemRecord> });
wire_struct!(ItemRecord {
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
    cas: Option<u64>,
    fetched: bool,
    stale: bool,
    won: bool,
    idle_seconds: Option<u32>,
});
wire_struct!(ReplicaItem {
    ends_unix_seconds: i64,
    flushes: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    cas: Option<u64>,
    stale: bool,
});
wire_enum!(Outcome {
    1 Hit(hit),
    2 NotFound,
    3 Stored(written),
    4 NotStored,
    5 Exists,
    6 Deleted,
    7 Invalidated,
    8 Number(counted),
    9 NotANumber,
    10 TooLarge,
    11 OutOfMemory,
    12 Unavailable,
    13 Unknown,
});
wire_struct!(Hit {
    won: bool,
    already_won: bool,
    stale: bool,
    created: bool,
    expiry_before: Expiry,
});
wire_struct!(Written { cas: Option<u64>, value_bytes: usize });
wire_struct!(Counted {
    number: u64,
    created: bool,
    cas: Option<u64>,
    expiry: Expiry,
    expiry_before: Expiry,
});
wire_enum!(ChunkError {
    1 NoChunk,
    2 TooLarge,
    3 Full,
    4 Locked,
    5 NotLocked,
    6 Moved(to),
    7 Outdated,
    8 Retry,
    9 Unavailable,
    10 Restarted(incarnation),
    11 NoSession,
    12 Forgotten,
    13 Busy,
    14 Unknown,
    15 Fenced,
});

wire_enum!(MoveMessage {
    1 Offer { number, ids, since },
    2 Page { number, page, chunks, tail },
    3 Ack { number, page, backups },
    4 Declined { number },
    5 Transferred { number, ids, epoch },
    6 TransferAck { number },
    7 Cancelled { number },
});
wire_enum!(ReplicationMessage {
    1 Append { stream, first, entries },
    2 Appended { stream, next },
    3 Refused { stream, is_sealed },
    4 Resend { stream, keys },
    5 Seal { source, ids, last },
    6 Sealed { source, ids, last, beyond },
    7 Fetch { source, ids, keys },
    8 Fetched { source, ids, found, sessions, lacking, damaged },
});
wire_struct!(LogWriter { peer: Peer, since: u32, boot: u64, is_synced: bool });
wire_struct!(RecordKey { id: ChunkId, tag: u32 });
wire_struct!(ReplicationEntry { version: u64, mutation: Mutation, sessions: Vec<SessionState> });
wire_enum!(for V, Mutation<V> {
    1 Put(id, value),
    2 Remove(id),
    3 Clear(ids),
    4 RepliesOnly,
    5 DiscardFormer(source, ids),
    6 PutItem(key, value),
    7 RemoveItem(key),
    8 ChangeOwner(source, ids),
    9 PutLock(id, value),
    10 RemoveLock(id),
});
wire_struct!(LockGrant { client: ClientId, token: u64, lease_ms: u64 });
wire_struct!(SessionState {
    client: ClientId,
    lease_ms: u64,
    answered_below: u64,
    answers: Vec<(u64, ChunkId, Result<Response, ChunkError>)>,
});
