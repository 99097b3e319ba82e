//! The chunk service: a node's chunks, who may touch them, and how they move to another node
//! (DXRAM, section 2.1).
//!
//! Chunks lie in one of the index engines, keyed by their id. Requests carry the epoch at which the
//! client learned who the owner is, and the life of the node that it means; so one that was
//! underway while a chunk moved, or moved away and back, is refused and asked again.
//!
//! Invariants of this room:
//! 1. An id is served by a node only while it owns it: from the epoch on at which the metadata
//!    says so, and no more once it is frozen to be given away.
//! 2. An operation that changes something is carried out at most once: what it answered is
//!    remembered until the client says that it knows, and moves along with the chunk.
//! 3. A lock ends with its lease, and with the session of its owner.
//! 4. A chunk that moves is served by the source until it is frozen, then by nobody, then by the
//!    target; the change of the metadata lies between. What was acknowledged moves with it.
//! 5. Nothing is answered after the node's lease: the deadline is compared after the work is done.
//! 6. Queues, sessions, remembered answers, pages: each has a bound.

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
