//! Items that the owner's engine has evicted, where the cluster is a cache.
//!
//! The rule: a read shows the value of the last acknowledged write, or nothing; never an older
//! value, and never one that was deleted. An item that was evicted may come back by a failover
//! while its value is the last acknowledged one. It follows from two things:
//!
//! 1. What changes an item is acknowledged once all backups have the item's new state. A delete
//!    that finds no item is such a change here: the item may have been evicted, and backups may
//!    still have it.
//! 2. Backups are told of an eviction some time later, or not at all if evictions are too many to
//!    be kept. They are told the item's state at that time, between the changes that this thread
//!    makes: if the item was stored again, nothing is sent. So it costs memory at the backups at
//!    most.
//!
//! Backups forget items by themselves when their logs are full, and tell nobody: the head of
//! `replication/store/forgetting.rs` says why no older value comes back by that.

use super::ChunkService;
use crate::chunks::{ChunkStore, ItemOp, ItemVerb};
use crate::replication::RecordKey;

impl<S: ChunkStore> ChunkService<S> {
    /// Whether the store evicts items.
    pub fn evicts(&self) -> bool {
        self.limits.evicts
    }

    /// Whether backups may have an item that the operation, which found none, has to remove there.
    pub(super) fn may_differ_at_backups(&self, op: &ItemOp) -> bool {
        self.limits.evicts && matches!(op.verb, ItemVerb::Delete(_))
    }

    /// Tells backups of what was evicted since the last call.
    pub(super) fn tell_of_evictions(&mut self) {
        if !self.limits.evicts {
            return;
        }
        for key in self.store.take_evicted() {
            let Some(id) = self.store.item_id(&key) else { continue };
            // It may be another node's meanwhile, or be stored again.
            if self.serves(id) && self.store.moving_item(&key).item.is_none() {
                self.replication.remove_item(RecordKey::item(id, &key));
            }
        }
    }
}
