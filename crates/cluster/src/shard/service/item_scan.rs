//! The scan for named items. Their ids are sparse, so items to move or remove are found by walking
//! through the engine in slices; one scan serves all moves that began before it. After the scan a
//! move of items is like one of chunks, with keys in place of ids.
//!
//! Invariants of this module:
//! 1. A scan begins after its moves started to note writes, and after other threads have ended
//!    theirs: an item that it does not see was written since, and was noted.
//! 2. Items of transferred ids are removed by a scan; until it ends the ids are neither accepted
//!    back nor claimed.
//! 3. Backups that catch up are sent every write since they joined, and all items of a scan that
//!    began later.
//! 4. Expired items are removed by a scan. Backups drop them when the scan finds them, or when a
//!    backup asks about them.

use amalgam_index::Cursor;

use super::super::scan::ItemScan;
use super::{ChunkCommand, ChunkService};
use crate::chunks::ChunkStore;
use crate::ids::IdRange;
use crate::interval_map::IntervalMap;
use crate::overlay::Peer;
use crate::replication::{Mutation, RecordKey};

/// Buckets that one slice covers.
const SLICE_BUCKETS: usize = 8_192;
/// Interval of scans for expired items, where there are backups to tell.
const ENDED_MS: u64 = 60_000;
/// Items that backups may have asked for at once; more are dropped, and the backups ask again.
const REPAIRS_MAX: usize = 1 << 16;

impl<S: ChunkStore> ChunkService<S> {
    /// Whether items of these transferred ids may still be here.
    pub(super) fn is_removing(&self, ids: IdRange) -> bool {
        self.scan.removes(ids)
    }

    /// A backup lacks an item, or has one that looks expired. It gets the item, or its removal,
    /// from the next scan.
    pub(super) fn repair_later(&mut self, from: Peer, stream: u64, record: RecordKey) {
        let asked = &mut self.scan.asked;
        if self.replication.is_backup(from, stream, record.id)
            && (asked.len() < REPAIRS_MAX || asked.contains_key(&record))
        {
            asked.entry(record).or_default().insert((from, stream));
        }
    }

    /// Continues the scan, or begins one if something waits for it.
    pub(super) fn tick_scan(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        // Otherwise a write past this thread might be neither seen nor noted (invariant 1).
        let may_begin = self.served.earlier_writes_have_ended();
        if self.scan.at.is_none() && !(may_begin && self.begin_scan(now_ms)) {
            return;
        }
        if !self.scan_slice() {
            return;
        }
        for number in std::mem::take(&mut self.scan.moves) {
            self.collected(number, now_ms, out);
        }
        let joins = std::mem::take(&mut self.scan.joins);
        joins.iter().for_each(|(_, number)| self.replication.finish_item_scan(*number));
        // An item that the scan did not find, and nobody wrote meanwhile, does not exist.
        for (record, backups) in std::mem::take(&mut self.scan.repairs) {
            for (peer, stream) in backups {
                self.replication.resend(peer, stream, record.id, Mutation::RemoveItem(record));
            }
        }
    }

    /// Removes the items of transferred ids before the ids are served again. Rare: it runs a whole
    /// scan at once. No other thread writes these ids: their writes had ended before the scan of
    /// the move that transferred them; ids that a failover took have backups, so none writes them.
    pub(super) fn remove_now(&mut self, ids: IdRange) {
        while self.is_removing(ids) {
            if self.scan.at.is_none() {
                self.begin_scan(0);
            }
            // What waited for this scan waits for the next.
            if self.scan_slice() {
                self.scan.moves.clear();
                self.scan.joins = IntervalMap::default();
                let repairs = std::mem::take(&mut self.scan.repairs);
                self.scan.asked.extend(repairs);
            }
        }
    }

    fn begin_scan(&mut self, now_ms: u64) -> bool {
        let moves = self.uncollected();
        let mut joins = IntervalMap::default();
        for (number, ids) in self.replication.pending_item_scans() {
            joins.assign(ids.start()..ids.end(), Some(number));
        }
        let ItemScan { given, asked, next_ended_ms, .. } = &mut self.scan;
        let is_time = self.limits.replication.backups > 0 && now_ms >= *next_ended_ms;
        let is_idle = moves.is_empty() && joins.is_empty() && given.is_empty() && asked.is_empty();
        if is_idle && !is_time {
            return false;
        }
        let (removes, repairs) = (std::mem::take(given), std::mem::take(asked));
        let next_ended_ms = (*next_ended_ms).max(now_ms + ENDED_MS);
        let at = Some(Cursor::START);
        self.scan =
            ItemScan { at, moves, joins, repairs, removes, next_ended_ms, ..ItemScan::default() };
        true
    }

    /// Scans one slice. True at the end of the scan.
    fn scan_slice(&mut self) -> bool {
        let Some(from) = self.scan.at else { return true };
        let (mut gone, mut ended, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let (scan, outgoing, replication) = (&self.scan, &mut self.outgoing, &mut self.replication);
        let tells = self.limits.replication.backups > 0;
        let next = self.store.scan_items(from, SLICE_BUCKETS, &mut |id, key, is_dead| {
            if scan.removes.get(id.bits()).is_some() {
                gone.push(key.to_vec());
            } else if is_dead && tells {
                ended.push((id, key.to_vec()));
            }
            for number in &scan.moves {
                if let Some(outgoing) = outgoing.get_mut(number) {
                    outgoing.mark(id, key);
                }
            }
            if let Some(number) = scan.joins.get(id.bits()) {
                replication.add_scanned_item(*number, (id, key.to_vec()));
            }
            if !scan.repairs.is_empty() && scan.repairs.contains_key(&RecordKey::item(id, key)) {
                found.push((id, key.to_vec()));
            }
        });
        gone.iter().for_each(|key| self.store.remove_item_of(key));
        for (id, key) in found {
            let (mutation, record) = (self.kept(id, &key), RecordKey::item(id, &key));
            for (peer, stream) in self.scan.repairs.remove(&record).unwrap_or_default() {
                self.replication.resend(peer, stream, id, mutation.clone());
            }
        }
        for (id, key) in ended {
            // It may have been written since the scan saw it, or be moving away.
            if self.serves(id) && self.store.replica_item(&key).is_none() {
                self.store.remove_item_of(&key);
                self.replication.remove_item(RecordKey::item(id, &key));
            }
        }
        self.scan.at = next;
        if next.is_none() {
            self.scan.removes = IntervalMap::default();
        }
        next.is_none()
    }
}
