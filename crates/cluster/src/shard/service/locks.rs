//! Locks of chunks: who may change a chunk, and what backups are told.

use super::ChunkService;
use crate::chunks::{Action, ChunkError, ChunkStore, ClientId};
use crate::ids::ChunkId;
use crate::replication::Mutation;

impl<S: ChunkStore> ChunkService<S> {
    /// Tells backups of the locks that have ended by themselves.
    pub(super) fn replicate_ended_locks(&mut self) {
        for id in self.sessions.take_ended() {
            self.replication.replicate(id, Mutation::RemoveLock(id), Vec::new());
        }
    }

    /// Whether the chunk's lock, if there is one, lets a client change the chunk.
    #[inline(never)]
    pub(super) fn check_lock(
        &mut self,
        client: ClientId,
        id: ChunkId,
        action: &Action,
        now_ms: u64,
    ) -> Result<(), ChunkError> {
        let lock = self.sessions.lock_of(id, now_ms);
        self.replicate_ended_locks();
        match action {
            Action::Fenced(_) if !self.store.has(id) => Err(ChunkError::NoChunk),
            Action::Fenced(change) => match lock {
                Some(lock) if lock.token == change.token => Ok(()),
                _ => Err(ChunkError::Fenced),
            },
            _ => match lock {
                Some(lock) if lock.client != client => Err(ChunkError::Locked),
                _ => Ok(()),
            },
        }
    }
}
