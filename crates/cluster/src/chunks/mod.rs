//! What clients ask the owners of chunks for: requests and their answers, the sessions of clients,
//! and the store in which chunks and named items lie (DXRAM, section 2.1).
//!
//! Chunks lie in one of the index engines, keyed by their id. A request carries the epoch at which
//! the client learned the owner, and the incarnation of the node that it means. So a request that
//! was under way while a chunk moved, even away and back, is refused and repeated.

mod items;
mod request;
mod sessions;
mod store;

pub(crate) use items::added_to_bytes;
pub use items::{
    ItemAnswer, ItemOp, ItemRecord, ItemTime, ItemVerb, MovingItem, ReplicaItem, StoreHead,
    from_relative, to_relative, with_cas_ids, with_times, without_unasked_cas,
};
pub(crate) use request::value_bytes;
pub use request::{
    Action, ChunkError, ClientId, FencedChange, MAX_CHUNK_BYTES, OPERATIONS_MAX, Operation, Reply,
    Request, Response,
};
pub(crate) use sessions::Sessions;
pub use sessions::{CachedReply, ClientState, LockGrant, SessionState};
pub use store::{ChunkStore, EngineStore, ItemClock, ItemStore, StoreError, StoreHost};
