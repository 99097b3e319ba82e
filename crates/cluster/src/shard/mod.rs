//! The ids that a node owns: who may access them, how they move to another node, and how they are
//! taken over from a dead one.
//!
//! Invariants of this module:
//! 1. A node serves an id only while it owns it: from the epoch at which the metadata says so,
//!    until the id is frozen for a transfer.
//! 2. An operation that changes something is executed at most once: its response is cached until
//!    the client confirms it, and moves along with the chunk.
//! 3. A lock ends with its lease, and with the session of its client. A change that carries a token
//!    is executed only while the lock of that token is held. Tokens of a chunk ascend.
//! 4. A chunk that moves is served by the source until it is frozen, then by nobody, then by the
//!    target; the metadata changes in between. Acknowledged writes move with it.
//! 5. Nothing is answered after the node's lease: the deadline is checked after the work is done.
//! 6. Queues, sessions, cached responses and pages are each bounded.

mod failover_task;
mod missing;
mod moves;
mod pending_replies;
mod scan;
mod served;
mod service;

pub use failover_task::UnreadableChunks;
pub use moves::{MOVES_MAX, MoveMessage, Page};
pub use pending_replies::Requester;
pub use served::{Served, ServedThread};
pub use service::{ChunkCommand, ChunkService, ChunkSettings};
