//! Serves records that a new owner cannot read in its own log.

use std::collections::BTreeSet;

use super::super::record::value_of;
use super::super::{FETCH_KEYS_MAX, Mutation, RecordKey, ReplicationMessage};
use super::ReplicaStore;
use crate::ids::IdRange;
use crate::log::LogPosition;
use crate::overlay::Peer;

/// Approximate limit of an answer in bytes; one value may exceed it.
const ANSWER_BYTES_MAX: usize = 1 << 20;

impl ReplicaStore {
    /// Handles [`ReplicationMessage::Fetch`] of a new owner: seals `source` and returns its records
    /// of `keys`. The new owner asks again for keys that did not fit into the answer. A chunk and
    /// its lock are returned together, whichever is asked for, since replies depend on both.
    pub fn on_fetch(
        &mut self,
        source: Peer,
        ids: IdRange,
        keys: &[RecordKey],
    ) -> ReplicationMessage {
        if self.replicas.contains_key(&source) {
            self.seal(source);
            self.complete_owner_change(source, ids);
        }
        let (mut found, mut lacking, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        let (mut about, mut bytes) = (BTreeSet::new(), 0);
        let mut wanted = BTreeSet::new();
        for key in keys.iter().filter(|key| ids.contains(key.id)).take(FETCH_KEYS_MAX) {
            wanted.insert(*key);
            if !key.id.creator().is_named() {
                wanted.extend([RecordKey::from(key.id), RecordKey::lock(key.id)]);
            }
        }
        for key in wanted {
            // A lock follows its chunk.
            if bytes >= ANSWER_BYTES_MAX && !(key.is_lock() && about.contains(&key.id)) {
                break;
            }
            let held = self.replicas.get(&source).and_then(|replica| replica.records.get(&key));
            let value = match held {
                Some(held) if !held.is_removed => match self.value(held.position) {
                    Some(value) => Some(value),
                    None => {
                        damaged.push(key);
                        continue;
                    }
                },
                None if !(key.is_lock() && about.contains(&key.id)) => {
                    lacking.push(key);
                    continue;
                }
                // It was removed, or the chunk was never locked.
                _ => None,
            };
            bytes += value.as_ref().map_or(0, Vec::len);
            about.insert(key.id);
            found.push(Mutation::of(key, value));
        }
        let replica = self.replicas.get(&source);
        let sessions =
            replica.map_or_else(Vec::new, |replica| replica.answers(|id| about.contains(&id)));
        ReplicationMessage::Fetched { source, ids, found, sessions, lacking, damaged }
    }

    /// The value of a record, if it can be read.
    fn value(&mut self, position: LogPosition) -> Option<Vec<u8>> {
        self.log.read(position).ok().as_deref().and_then(value_of)
    }
}
