//! Moves of chunks to another node and from it: their messages and progress.

use super::scan::KeySet;
use crate::chunks::ClientState;
use crate::ids::{ChunkId, IdRange};
use crate::overlay::Peer;

/// Concurrent moves at most, from a node and to it each.
pub const MOVES_MAX: usize = 64;
/// Ids in a move of chunks at most: as many as a range may hold.
const MOVE_IDS_MAX: u64 = 2_000_000;

/// Chunks in transit; None for a chunk that was deleted meanwhile. Named items travel as the bytes
/// of a [`crate::chunks::MovingItem`], deleted ones too.
pub type Page = Vec<(ChunkId, Option<Vec<u8>>)>;

/// A message between the source and the target of a move. `number` is the source's number of the
/// move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveMessage {
    /// From the source: offers ids.
    Offer {
        /// Number of the move.
        number: u64,
        /// The ids.
        ids: IdRange,
        /// The epoch since which the source owns all of them.
        since: u64,
    },
    /// From the source: the next chunks.
    Page {
        /// Number of the move.
        number: u64,
        /// Number of the page, from 1.
        page: u32,
        /// The chunks.
        chunks: Page,
        /// In the last page: locks and sessions that move along.
        tail: Option<ClientState>,
    },
    /// From the target: it has this page, or accepts the offer (page 0).
    Ack {
        /// Number of the move.
        number: u64,
        /// Number of the page.
        page: u32,
        /// Backups of the target that have it too.
        backups: Vec<Peer>,
    },
    /// From the target: it declines the move.
    Declined {
        /// Number of the move.
        number: u64,
    },
    /// From the source: the target owns the ids.
    Transferred {
        /// Number of the move.
        number: u64,
        /// The ids.
        ids: IdRange,
        /// The epoch from which it owns them.
        epoch: u64,
    },
    /// From the target: it serves the ids.
    TransferAck {
        /// Number of the move.
        number: u64,
    },
    /// From the source: the move is cancelled, or unknown.
    Cancelled {
        /// Number of the move.
        number: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveStage {
    Offering,
    /// A scan for the items is under way or due.
    Collecting,
    /// Chunks from this id on are not copied yet.
    Copying(u64),
    /// Resends what was written meanwhile, for this many more rounds.
    CatchingUp(u32),
    /// The ids are frozen; the rest is being sent.
    Frozen,
    /// The metadata is being changed.
    Committing,
    /// The target has to learn that it owns the ids since this epoch.
    HandingOver(u64),
}

#[derive(Debug)]
pub(super) struct OutgoingMove {
    pub(super) ids: IdRange,
    pub(super) target: Peer,
    pub(super) stage: MoveStage,
    /// Written since they were copied, and not sent yet.
    pub(super) dirty: KeySet,
    /// The message that the target has to answer.
    pub(super) in_flight: Option<MoveMessage>,
    pub(super) page: u32,
    pub(super) sent_ms: u64,
    pub(super) heard_ms: u64,
    /// The target is dead, so nobody will acknowledge the transfer.
    pub(super) is_target_dead: bool,
}

#[derive(Debug)]
pub(super) struct IncomingMove {
    pub(super) ids: IdRange,
    /// The epoch since which the source owns them.
    pub(super) since: u64,
    /// Number of the next page.
    pub(super) next_page: u32,
    pub(super) staged: KeySet,
    /// Set once the last page is here.
    pub(super) tail: Option<ClientState>,
    pub(super) heard_ms: u64,
    /// The change by which the target's backups catch up as the pages arrive; None without backups.
    pub(super) change: Option<u64>,
    pub(super) backups: Vec<Peer>,
}

impl OutgoingMove {
    /// Whether the ids are being transferred right now.
    pub(super) fn is_leaving(&self, ids: IdRange) -> bool {
        self.stage == MoveStage::Committing && self.ids.overlaps(ids)
    }

    /// Takes an item that the scan found.
    pub(super) fn mark(&mut self, id: ChunkId, key: &[u8]) {
        if self.ids.contains(id) {
            self.dirty.insert(id, key);
        }
    }
}

/// Moves of chunks scan every id and are bounded; moves of items are not.
pub(super) fn is_movable(ids: IdRange) -> bool {
    ids.first().creator().is_named() || ids.len() <= MOVE_IDS_MAX
}
