//! What clients ask of the owner of chunks, and what they are answered.

use std::fmt;

use super::items::{ItemAnswer, ItemOp};
use crate::ids::ChunkId;
use crate::ranges::Placement;

/// The longest chunk in bytes.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Operations of a request at most.
pub const OPERATIONS_MAX: usize = 1024;

/// A client in one of its lives; nobody has the same number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Operations for one node; several are the multi forms of `get`, `put` and the rest. They are
/// carried out in their order, each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub client: ClientId,
    /// Which life of the node is meant.
    pub incarnation: u32,
    /// All operations of this client with smaller numbers were answered.
    pub answered_below: u64,
    /// What to do.
    pub operations: Vec<Operation>,
}

/// What to do with a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Ascending for each client. A repetition has the same.
    pub number: u64,
    /// At which epoch the client knew the node to own the chunk.
    pub epoch: u64,
    /// The operation.
    pub action: Action,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a session here; operations with smaller numbers are not carried out any more.
    Open {
        /// How long the session lasts without a sign of the client.
        lease_ms: u64,
    },
    /// End it: its locks are released.
    Close,
    /// A new chunk with that value.
    Create(Vec<u8>),
    /// Read a chunk.
    Get(ChunkId),
    /// Replace the value of a chunk that there is.
    Put(ChunkId, Vec<u8>),
    /// Remove a chunk.
    Delete(ChunkId),
    /// Let nobody else put, delete or lock a chunk.
    Lock {
        /// The chunk.
        id: ChunkId,
        /// For how long at most.
        lease_ms: u64,
    },
    /// Release it.
    Unlock(ChunkId),
    /// An operation on a named item.
    Item {
        /// Where its key places it.
        id: ChunkId,
        /// The operation.
        op: Box<ItemOp>,
    },
}

impl Action {
    /// The chunk that it names.
    pub fn id(&self) -> Option<ChunkId> {
        match self {
            Self::Open { .. } | Self::Close | Self::Create(_) => None,
            Self::Get(id) | Self::Put(id, _) | Self::Delete(id) | Self::Unlock(id) => Some(*id),
            Self::Lock { id, .. } | Self::Item { id, .. } => Some(*id),
        }
    }

    /// The value that it gives a chunk; nothing if it gives none.
    pub fn value(&self) -> &[u8] {
        match self {
            Self::Create(value) | Self::Put(_, value) => value,
            _ => &[],
        }
    }

    /// Whether it must not be carried out twice.
    pub fn changes(&self) -> bool {
        match self {
            Self::Get(_) | Self::Open { .. } | Self::Close => false,
            Self::Item { op, .. } => op.verb.changes(),
            _ => true,
        }
    }
}

/// Answers in the order of the operations.
pub type Reply = Vec<(u64, Result<Response, ChunkError>)>;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// That is all.
    Ok,
    /// The id of the new chunk.
    Created(ChunkId),
    /// The value.
    Value(Vec<u8>),
    /// The session was opened or closed.
    Session,
    /// What became of an operation on a named item.
    Item(Box<ItemAnswer>),
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// There is no such chunk.
    NoChunk,
    /// The chunk would be longer than [`MAX_CHUNK_BYTES`].
    TooLarge,
    /// The node has no memory left.
    Full,
    /// Somebody else holds a lock.
    Locked,
    /// The client does not hold the lock.
    NotLocked,
    /// The chunk belongs to somebody else; to whom, if it left from here.
    Moved(Option<Placement>),
    /// The client's knowledge is older than the node's ownership: look it up again.
    Outdated,
    /// The chunk is about to move, or ids are being claimed: ask again soon.
    Retry,
    /// The node is not sure to be a member any more.
    Unavailable,
    /// Another life of the node was meant; this is the present one.
    Restarted(u32),
    /// The client has no session here (any more).
    NoSession,
    /// The operation is older than what the client knows to be answered.
    Forgotten,
    /// Too many sessions, operations or answers that wait to be confirmed.
    Busy,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChunk => "there is no such chunk",
            Self::TooLarge => "the chunk is too long",
            Self::Full => "the node has no memory left",
            Self::Locked => "somebody else has locked the chunk",
            Self::NotLocked => "the chunk is not locked by this client",
            Self::Moved(_) => "the chunk is owned by another node",
            Self::Outdated => "the owner was looked up too long ago",
            Self::Retry => "the chunk is about to move, ask again",
            Self::Unavailable => "the node may have lost its membership",
            Self::Restarted(_) => "the node was started again",
            Self::NoSession => "the client has no session here",
            Self::Forgotten => "the operation was answered before",
            Self::Busy => "too many requests are open",
        })
    }
}

impl std::error::Error for ChunkError {}
