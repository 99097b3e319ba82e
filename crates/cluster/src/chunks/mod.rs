//! The chunk service: a node's chunks, who may access them, and how they move to another node
//! (DXRAM, section 2.1).
//!
//! Chunks lie in one of the index engines, keyed by their id. A request carries the epoch at which
//! the client learned the owner, and the incarnation of the node that it means. So a request that
//! was under way while a chunk moved, even away and back, is refused and repeated.
//!
//! Invariants of this module:
//! 1. A node serves an id only while it owns it: from the epoch at which the metadata says so,
//!    until the id is frozen for a transfer.
//! 2. An operation that changes something is executed at most once: its response is cached until
//!    the client confirms it, and moves along with the chunk.
//! 3. A lock ends with its lease, and with the session of its client.
//! 4. A chunk that moves is served by the source until it is frozen, then by nobody, then by the
//!    target; the metadata changes in between. Acknowledged writes move with it.
//! 5. Nothing is answered after the node's lease: the deadline is checked after the work is done.
//! 6. Queues, sessions, cached responses and pages are each bounded.

mod failover;
mod item_scan;
mod items;
mod migration;
mod pending_replies;
mod request;
mod service;
mod sessions;
mod store;

pub use failover::UnreadableChunks;
pub use items::{
    ItemAnswer, ItemOp, ItemRecord, ItemTime, ItemVerb, MovingItem, ReplicaItem, StoreHead,
    from_relative, to_relative, with_times,
};
pub(crate) use migration::overlap;
pub use migration::{MOVES_MAX, MoveMessage, Page};
pub use pending_replies::Requester;
pub use request::{
    Action, ChunkError, ClientId, MAX_CHUNK_BYTES, OPERATIONS_MAX, Operation, Reply, Request,
    Response,
};
pub use service::{ChunkCommand, ChunkService, ChunkSettings};
pub use sessions::{ClientState, SessionState};
pub use store::{ChunkStore, EngineStore, ItemClock, ItemStore, StoreError};
