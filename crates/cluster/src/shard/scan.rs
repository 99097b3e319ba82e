//! The state of the scan for named items, and sets of keys.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_index::Cursor;

use crate::ids::{ChunkId, IdRange};
use crate::interval_map::IntervalMap;
use crate::overlay::Peer;
use crate::replication::RecordKey;

/// Chunks by id, and items by id and key.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    ids: BTreeSet<ChunkId>,
    keys: BTreeSet<(ChunkId, Vec<u8>)>,
}

impl KeySet {
    pub(super) fn len(&self) -> usize {
        self.ids.len() + self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a chunk or an item; an empty key stands for a chunk.
    pub(super) fn insert(&mut self, id: ChunkId, key: &[u8]) {
        if id.creator().is_named() {
            self.keys.insert((id, key.to_vec()));
        } else {
            self.ids.insert(id);
        }
    }

    pub(super) fn pop(&mut self) -> Option<(ChunkId, Vec<u8>)> {
        let chunk = self.ids.pop_first().map(|id| (id, Vec::new()));
        chunk.or_else(|| self.keys.pop_first())
    }
}

/// A scan over all items, for moves, catch-ups and repairs that wait for it, and to remove
/// transferred ids.
#[derive(Debug, Default)]
pub(super) struct ItemScan {
    /// Position of the scan; None between scans.
    pub(super) at: Option<Cursor>,
    /// The moves that it serves.
    pub(super) moves: BTreeSet<u64>,
    /// The changes of replica sets that it serves, by ids.
    pub(super) joins: IntervalMap<u64>,
    /// `repairs`: items that backups asked for and that the scan has not found. `asked`: requests
    /// for the next scan.
    pub(super) repairs: BTreeMap<RecordKey, BTreeSet<Repair>>,
    pub(super) asked: BTreeMap<RecordKey, BTreeSet<Repair>>,
    /// When the next scan for expired items is due.
    pub(super) next_ended_ms: u64,
    /// Ids whose items it removes.
    pub(super) removes: IntervalMap<()>,
    /// Ids whose items the next scan removes.
    pub(super) given: IntervalMap<()>,
}

/// A backup and its stream.
pub(super) type Repair = (Peer, u64);

impl ItemScan {
    /// Has the items of these ids removed by the next scan.
    pub(super) fn remove_later(&mut self, ids: IdRange) {
        self.given.assign(ids.start()..ids.end(), Some(()));
        // The ids may come back before the scan that serves the request.
        for asked in [&mut self.repairs, &mut self.asked] {
            asked.retain(|record, _| !ids.contains(record.id));
        }
    }

    /// Notes a write, perhaps behind the scan's position: the backups already have the item's new
    /// state.
    pub(super) fn note_write(&mut self, record: RecordKey) {
        if !self.repairs.is_empty() {
            self.repairs.remove(&record);
        }
    }

    pub(super) fn removes(&self, ids: IdRange) -> bool {
        let over = |spans: &IntervalMap<()>| spans.over(ids.start()..ids.end()).next().is_some();
        over(&self.given) || over(&self.removes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a backup would be told that an item written behind the scan's position is gone.
    #[test]
    fn an_item_written_or_transferred_during_a_scan_is_not_reported_missing() {
        let ids = [1 << 40, 1 << 41, 1 << 62].map(ChunkId::named);
        let records = ids.map(|id| RecordKey::item(id, b"key"));
        let all = || records.iter().map(|record| (*record, BTreeSet::new())).collect();
        let mut scan = ItemScan { repairs: all(), asked: all(), ..ItemScan::default() };
        scan.note_write(records[0]);
        scan.remove_later(IdRange::single(ids[1]));
        assert_eq!(scan.repairs.keys().collect::<Vec<_>>(), [&records[2]]);
        assert_eq!(scan.asked.keys().collect::<Vec<_>>(), [&records[0], &records[2]], "later");
    }
}
