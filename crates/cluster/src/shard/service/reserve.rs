//! The memory that a node keeps for what other nodes hand over: for its part of a dead node's
//! chunks and items, or of one that leaves.
//!
//! The store refuses clients as if it were smaller. What comes from other nodes goes to the same
//! memory, and opens the reserve only when that is used up; while it is open, clients store nothing
//! here, so that they cannot take it.

use super::ChunkService;
use crate::chunks::{ChunkStore, StoreError};

/// Whether the reserve may be used, and is.
#[derive(Debug)]
pub(super) struct Reserve {
    /// Only nodes with backups take over what a dead node had.
    exists: bool,
    is_open: bool,
}

impl Reserve {
    pub(super) fn new(exists: bool) -> Self {
        Self { exists, is_open: false }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Writes what another node handed over, and opens the reserve if it has to.
    pub(super) fn write<S: ChunkStore>(
        &mut self,
        store: &mut S,
        write: impl Fn(&mut S) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match write(store) {
            Err(StoreError::Full) if self.exists && !self.is_open => {
                self.is_open = true;
                store.use_reserve(true);
                write(store)
            }
            done => done,
        }
    }
}

impl<S: ChunkStore> ChunkService<S> {
    /// Closes the reserve once nothing more is being handed over.
    pub(super) fn close_reserve(&mut self) {
        let is_quiet = self.failovers() == 0 && self.incoming.is_empty();
        if self.reserve.is_open && is_quiet {
            self.reserve.is_open = false;
            self.store.use_reserve(false);
        }
    }
}
