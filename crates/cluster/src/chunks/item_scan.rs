//! How named items move. They are found by looking through the engine, a slice at a time, since
//! their ids are sparse; one pass serves all moves that began before it. From then on a move of
//! items is as one of chunks, with keys where those have ids.
//!
//! Invariants of this room:
//! 1. A pass begins after the moves that it serves began to note writes: what it does not see was
//!    written since, and was noted.
//! 2. Items of ids that were given away are removed by a pass; until it ended those ids are neither
//!    taken back nor claimed.
//! 3. Backups that join are told of every write since they began to, and of all items that a pass
//!    sees that began later.
//! 4. What has ended is removed by a pass, and from the backups by what the pass, or a backup that
//!    asks, comes by.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_index::Cursor;

use super::service::{ChunkCommand, ChunkService};
use super::store::ChunkStore;
use crate::ids::{ChunkId, IdRange};
use crate::interval_map::IntervalMap;
use crate::overlay::Peer;
use crate::replication::{Mutation, RecordKey};

/// Buckets that are looked at in one go.
const SLICE_BUCKETS: usize = 8_192;
/// How often all items are looked at for those that have ended, where there are backups to tell.
const ENDED_MS: u64 = 60_000;
/// Items that backups ask for, at most; they ask again.
const REPAIRS_MAX: usize = 1 << 16;

/// Chunks by their ids and items by their keys.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    ids: BTreeSet<ChunkId>,
    keys: BTreeSet<(ChunkId, Vec<u8>)>,
}

impl KeySet {
    pub fn len(&self) -> usize {
        self.ids.len() + self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty key stands for a chunk.
    pub fn insert(&mut self, id: ChunkId, key: &[u8]) {
        if id.creator().is_named() {
            self.keys.insert((id, key.to_vec()));
        } else {
            self.ids.insert(id);
        }
    }

    pub fn pop(&mut self) -> Option<(ChunkId, Vec<u8>)> {
        let chunk = self.ids.pop_first().map(|id| (id, Vec::new()));
        chunk.or_else(|| self.keys.pop_first())
    }
}

/// A pass over all items, for moves that wait for it and for ids that were given away.
#[derive(Debug, Default)]
pub(super) struct ItemScan {
    /// Where it stands; none between passes.
    at: Option<Cursor>,
    /// The moves that it serves.
    moves: BTreeSet<u64>,
    /// The changes of backups that it serves, by their ids.
    joins: IntervalMap<u64>,
    /// What backups asked for, and what they are to be told of when this one has ended.
    repairs: BTreeMap<RecordKey, BTreeSet<Repair>>,
    asked: BTreeMap<RecordKey, BTreeSet<Repair>>,
    /// When to begin one for what has ended.
    next_ended_ms: u64,
    /// What it removes.
    removes: IntervalMap<()>,
    /// What the next one is to remove.
    given: IntervalMap<()>,
}

/// A backup, and its attempt.
type Repair = (Peer, u64);

impl ItemScan {
    /// Items of those ids are to be removed.
    pub fn remove_later(&mut self, ids: IdRange) {
        self.given.assign(ids.start()..ids.end(), Some(()));
        // If they come back, they do while this pass does not look.
        for asked in [&mut self.repairs, &mut self.asked] {
            asked.retain(|name, _| !ids.contains(name.id));
        }
    }

    /// An item was written, perhaps where this pass has been already: backups were told what it is.
    pub fn note_write(&mut self, name: RecordKey) {
        if !self.repairs.is_empty() {
            self.repairs.remove(&name);
        }
    }

    fn removes(&self, ids: IdRange) -> bool {
        let over = |spans: &IntervalMap<()>| spans.over(ids.start()..ids.end()).next().is_some();
        over(&self.given) || over(&self.removes)
    }
}

impl<S: ChunkStore> ChunkService<S> {
    /// Whether items of ids that were given away may be here yet.
    pub(super) fn is_removing(&self, ids: IdRange) -> bool {
        self.scan.removes(ids)
    }

    /// A backup lacks an item, or has one that looks as if it had ended: it is told when the item
    /// was found, or was not.
    pub(super) fn repair_later(&mut self, from: Peer, stream: u64, name: RecordKey) {
        let asked = &mut self.scan.asked;
        if self.replication.is_backup(from, stream, name.id)
            && (asked.len() < REPAIRS_MAX || asked.contains_key(&name))
        {
            asked.entry(name).or_default().insert((from, stream));
        }
    }

    /// Goes on with the pass, or begins one if something waits for it.
    pub(super) fn tick_scan(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        if self.scan.at.is_none() && !self.begin_scan(now_ms) {
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
        // What it did not come by, and nobody wrote meanwhile, is not there.
        for (name, backups) in std::mem::take(&mut self.scan.repairs) {
            for (peer, stream) in backups {
                self.replication.resend(peer, stream, name.id, Mutation::RemoveItem(name));
            }
        }
    }

    /// Removes what is to be removed before `ids` are served again. Rare: a whole pass at once.
    pub(super) fn remove_now(&mut self, ids: IdRange) {
        while self.is_removing(ids) {
            if self.scan.at.is_none() {
                self.begin_scan(0);
            }
            // What waited for this pass waits for the next.
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

    /// Looks at a slice; whether the pass has ended.
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
            let (mutation, name) = (self.kept(id, &key), RecordKey::item(id, &key));
            for (peer, stream) in self.scan.repairs.remove(&name).unwrap_or_default() {
                self.replication.resend(peer, stream, id, mutation.clone());
            }
        }
        for (id, key) in ended {
            // It may have been written since it was seen, or be on its way to somebody else.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Or a backup would be told that what was written behind the pass is gone.
    #[test]
    fn what_is_written_or_leaves_while_a_pass_looks_is_not_told_to_be_gone() {
        let ids = [1 << 40, 1 << 41, 1 << 62].map(ChunkId::named);
        let names = ids.map(|id| RecordKey::item(id, b"key"));
        let all = || names.iter().map(|name| (*name, BTreeSet::new())).collect();
        let mut scan = ItemScan { repairs: all(), asked: all(), ..ItemScan::default() };
        scan.note_write(names[0]);
        scan.remove_later(IdRange::single(ids[1]));
        assert_eq!(scan.repairs.keys().collect::<Vec<_>>(), [&names[2]]);
        assert_eq!(scan.asked.keys().collect::<Vec<_>>(), [&names[0], &names[2]], "later");
    }
}
