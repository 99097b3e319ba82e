//! Serves records that a new owner cannot read in its own log.

use std::collections::{BTreeMap, BTreeSet};

use super::super::record::value_of;
use super::super::{FETCH_KEYS_MAX, Mutation, RecordKey, ReplicationMessage};
use super::ReplicaStore;
use crate::ids::{ChunkId, IdRange};
use crate::log::RecordLoads;
use crate::overlay::Peer;

/// Approximate limit of an answer in bytes; one value may exceed it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Questions that wait for their records at a time; who asked any further asks again.
const FETCHES_MAX: usize = 16;

/// A question whose records are being loaded.
#[derive(Debug)]
pub(super) struct PendingFetch {
    from: Peer,
    source: Peer,
    ids: IdRange,
    /// The keys that the answer is about.
    keys: BTreeSet<RecordKey>,
    loads: RecordLoads<RecordKey>,
}

impl ReplicaStore {
    /// Handles [`ReplicationMessage::Fetch`] of a new owner: seals `source` and loads its records
    /// of `keys`; [`Self::flush`] answers. The new owner asks again for keys that did not fit into
    /// the answer. A chunk and its lock are returned together, whichever is asked for, since
    /// replies depend on both.
    pub fn on_fetch(&mut self, from: Peer, source: Peer, ids: IdRange, keys: &[RecordKey]) {
        if self.replicas.contains_key(&source) {
            self.seal(source);
            self.complete_owner_change(source, ids);
        }
        // A holder asks again until it has the answer, which would otherwise start over.
        let is_same = |one: &PendingFetch| (one.from, one.source, one.ids) == (from, source, ids);
        if self.fetches.iter().any(is_same) || self.fetches.len() >= FETCHES_MAX {
            return;
        }
        let mut wanted = BTreeSet::new();
        for key in keys.iter().filter(|key| ids.contains(key.id)).take(FETCH_KEYS_MAX) {
            wanted.insert(*key);
            if !key.id.creator().is_named() {
                wanted.extend([RecordKey::from(key.id), RecordKey::lock(key.id)]);
            }
        }
        let (mut keys, mut held, mut bytes) = (BTreeSet::new(), Vec::new(), 0);
        let records = self.replicas.get(&source).map(|replica| &replica.records);
        let mut last: Option<ChunkId> = None;
        for key in wanted {
            // A lock follows its chunk.
            if bytes >= ANSWER_BYTES_MAX && !(key.is_lock() && last == Some(key.id)) {
                break;
            }
            let stored = records.and_then(|records| records.get(&key));
            if let Some(stored) = stored.filter(|stored| !stored.is_removed) {
                bytes += stored.position.bytes();
                held.push((stored.position, key));
            }
            last = Some(key.id);
            keys.insert(key);
        }
        let loads = self.log.load(held);
        self.fetches.push(PendingFetch { from, source, ids, keys, loads });
    }

    /// Answers the questions whose records are loaded.
    pub(super) fn answer_fetches(&mut self, out: &mut Vec<(Peer, ReplicationMessage)>) {
        let (replicas, may_have_forgotten) = (&self.replicas, self.may_have_forgotten());
        self.fetches.retain(|fetch| {
            if !fetch.loads.is_loaded() {
                return true;
            }
            let PendingFetch { source, ids, .. } = *fetch;
            let mut values = BTreeMap::new();
            fetch.loads.each(|position, key, record| {
                values.insert(*key, (position, record.and_then(value_of)));
            });
            let replica = replicas.get(&source);
            let (mut found, mut lacking, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
            let (mut about, mut moved) = (BTreeSet::new(), BTreeSet::new());
            for key in &fetch.keys {
                let held = replica.and_then(|replica| replica.records.get(key));
                let value = match (held, values.remove(key)) {
                    (Some(held), Some((position, value))) if !held.is_removed => match value {
                        Some(value) => Some(value),
                        None => {
                            // The cleaner may have moved it meanwhile: it is asked for again.
                            match held.position == position {
                                true => damaged.push(*key),
                                false => drop(moved.insert(key.id)),
                            }
                            continue;
                        }
                    },
                    (Some(held), None) if !held.is_removed => {
                        moved.insert(key.id);
                        continue;
                    }
                    (None, _) if may_have_forgotten && key.id.creator().is_named() => None,
                    (None, _) if !(key.is_lock() && about.contains(&key.id)) => {
                        lacking.push(*key);
                        continue;
                    }
                    // It was removed, or the chunk was never locked. (An item that was forgotten
                    // above may have been acknowledged, so it is not lacking.)
                    _ => None,
                };
                about.insert(key.id);
                found.push(Mutation::of(*key, value));
            }
            // A chunk and its lock come together.
            let is_whole = |id: ChunkId| id.creator().is_named() || !moved.contains(&id);
            found.retain(|one| one.copy().is_none_or(|(key, _)| is_whole(key.id)));
            about.retain(|id| is_whole(*id));
            let sessions =
                replica.map_or_else(Vec::new, |replica| replica.answers(|id| about.contains(&id)));
            let answer =
                ReplicationMessage::Fetched { source, ids, found, sessions, lacking, damaged };
            out.push((fetch.from, answer));
            false
        });
    }
}
