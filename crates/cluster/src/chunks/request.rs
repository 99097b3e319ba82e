//! Requests of clients to the owner of chunks, and their responses.

use std::fmt;

use super::items::{ItemAnswer, ItemOp};
use crate::ids::ChunkId;
use crate::ranges::Placement;

/// The longest chunk in bytes.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Operations in one request at most.
pub const OPERATIONS_MAX: usize = 1024;

/// A client in one incarnation; the number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Operations for one node; several form a multi-`get`, multi-`put` and so on. They are executed in
/// order, each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client.
    pub client: ClientId,
    /// The incarnation of the node that is meant.
    pub incarnation: u32,
    /// All operations of this client with smaller numbers were answered.
    pub answered_below: u64,
    /// The operations.
    pub operations: Vec<Operation>,
}

impl Request {
    /// Whether some operation carries the token of a lock.
    pub(crate) fn has_tokens(&self) -> bool {
        self.operations.iter().any(|one| matches!(one.action, Action::Fenced(_)))
    }
}

/// A numbered operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Ascending per client. A repetition has the same number.
    pub number: u64,
    /// The epoch at which the client learned that the node owns the chunk.
    pub epoch: u64,
    /// The operation.
    pub action: Action,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begins a session; operations with smaller numbers are refused from then on.
    Open {
        /// Time without a request after which the session ends.
        lease_ms: u64,
    },
    /// Ends the session and its locks.
    Close,
    /// Creates a chunk with this value.
    Create(Vec<u8>),
    /// Reads a chunk.
    Get(ChunkId),
    /// Replaces the value of an existing chunk.
    Put(ChunkId, Vec<u8>),
    /// Removes a chunk.
    Delete(ChunkId),
    /// Locks a chunk: nobody else can put, delete or lock it, except with the token that this
    /// returns.
    Lock {
        /// The chunk.
        id: ChunkId,
        /// The longest duration of the lock.
        lease_ms: u64,
    },
    /// Releases a lock.
    Unlock(ChunkId),
    /// An operation on a named item.
    Item {
        /// The named id of its key.
        id: ChunkId,
        /// The operation.
        op: Box<ItemOp>,
    },
    /// Replaces or removes a chunk, if the lock that a token was granted for is still held.
    Fenced(Box<FencedChange>),
}

/// A change that carries the token of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedChange {
    /// The chunk.
    pub id: ChunkId,
    /// The token of its lock, from [`Response::Locked`]; any client may present it.
    pub token: u64,
    /// The new value; None removes the chunk.
    pub value: Option<Vec<u8>>,
}

impl Action {
    /// The chunk or item that the action names.
    pub fn id(&self) -> Option<ChunkId> {
        match self {
            Self::Open { .. } | Self::Close | Self::Create(_) => None,
            Self::Get(id) | Self::Put(id, _) | Self::Delete(id) | Self::Unlock(id) => Some(*id),
            Self::Lock { id, .. } | Self::Item { id, .. } => Some(*id),
            Self::Fenced(change) => Some(change.id),
        }
    }

    /// The value that it gives a chunk; empty if it gives none.
    pub fn value(&self) -> &[u8] {
        match self {
            Self::Create(value) | Self::Put(_, value) => value,
            Self::Fenced(change) => change.value.as_deref().unwrap_or_default(),
            _ => &[],
        }
    }

    /// Whether it must not be executed twice.
    pub fn changes(&self) -> bool {
        match self {
            Self::Get(_) | Self::Open { .. } | Self::Close => false,
            Self::Item { op, .. } => op.verb.changes(),
            _ => true,
        }
    }
}

/// Responses in the order of the operations, with their numbers.
pub type Reply = Vec<(u64, Result<Response, ChunkError>)>;

/// Bytes of the value that a result carries.
pub(crate) fn value_bytes(result: &Result<Response, ChunkError>) -> usize {
    match result {
        Ok(Response::Value(value)) => value.len(),
        Ok(Response::Item(answer)) => answer.item.as_ref().map_or(0, |item| item.value.len()),
        _ => 0,
    }
}

/// The response to an operation that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Done; there is nothing to return.
    Ok,
    /// The id of the new chunk.
    Created(ChunkId),
    /// The value.
    Value(Vec<u8>),
    /// The session was opened or closed.
    Session,
    /// The answer to an operation on a named item.
    Item(Box<ItemAnswer>),
    /// The chunk is locked; the token of the lock. Tokens of a chunk ascend, whichever nodes grant
    /// them.
    Locked(u64),
}

/// The reason for which an operation was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// There is no such chunk.
    NoChunk,
    /// The chunk would be longer than [`MAX_CHUNK_BYTES`].
    TooLarge,
    /// The node has no memory left, or its backups accept nothing more; nothing was executed.
    Full,
    /// Another client holds a lock.
    Locked,
    /// The client does not hold the lock.
    NotLocked,
    /// Another node owns the chunk; its placement, if the chunk moved from here.
    Moved(Option<Placement>),
    /// The client looked up the owner before the node became the owner; look it up again.
    Outdated,
    /// The chunk is about to move, or ids are being claimed; retry soon.
    Retry,
    /// The node is not certain to be a member, or the request came too late; nothing was executed.
    /// From a client: the operation was given up, and was not executed.
    Unavailable,
    /// Another incarnation of the node was meant; this is the present one.
    Restarted(u32),
    /// The client has no session here, or no longer.
    NoSession,
    /// The client has confirmed a response to this operation or a later one.
    Forgotten,
    /// Too many sessions, operations or unconfirmed responses.
    Busy,
    /// Only from a client, never from an owner: the operation was given up, and may have been
    /// executed.
    Unknown,
    /// The lock that the token was granted for has ended.
    Fenced,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChunk => "there is no such chunk",
            Self::TooLarge => "the chunk is longer than 1 MiB",
            Self::Full => "the owner has no memory left, or its backups no disk space; add nodes",
            Self::Locked => "another client has locked the chunk",
            Self::NotLocked => "the chunk is not locked by this client",
            Self::Moved(_) => "the chunk is owned by another node",
            Self::Outdated => "the chunk changed owners since it was looked up; look it up again",
            Self::Retry => "the chunk is about to move; retry",
            Self::Unavailable => "the owner cannot be reached, or may have lost its lease; retry",
            Self::Restarted(_) => "the node has restarted; look up the owner again",
            Self::NoSession => "the client has no session at this node; open one",
            Self::Forgotten => "the operation was answered and confirmed before",
            Self::Busy => "too many requests are open at this node; retry later",
            Self::Unknown => "the owner did not answer in time: it may have executed the operation",
            Self::Fenced => {
                "nothing was changed: the lock of this token has ended; lock the chunk again and \
                 read it again"
            }
        })
    }
}

impl std::error::Error for ChunkError {}
