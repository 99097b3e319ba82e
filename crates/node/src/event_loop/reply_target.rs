//! The receivers of the event loop's replies.

use std::sync::Arc;

use amalgam_cluster::chunks::{ChunkError, Reply, Request};

use crate::own_requests::OwnReplies;

/// Where the reply to a request goes.
#[derive(Debug)]
pub(super) enum ReplyTarget {
    /// A connection, and the number of the request there.
    Connection(u64, u64),
    /// A worker of this process, and when it gives the request up, in [`crate::boot_ms`].
    Worker(Arc<OwnReplies>, Option<u64>),
}

impl ReplyTarget {
    /// Whether nobody waits for the reply any more.
    pub(super) fn is_late(&self, now_ms: u64) -> bool {
        matches!(self, Self::Worker(_, Some(until_ms)) if now_ms >= *until_ms)
    }
}

/// The reply to a request that comes too late to be executed.
pub(super) fn refuse(request: &Request) -> Reply {
    let numbers = request.operations.iter().map(|operation| operation.number);
    numbers.map(|number| (number, Err(ChunkError::Unavailable))).collect()
}
