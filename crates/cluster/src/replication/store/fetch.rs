//! What an heir cannot read in its own log, another holder may.

use std::collections::BTreeSet;

use super::super::record::value_of;
use super::super::{FETCH_KEYS_MAX, Mutation, RecordKey, ReplicationMessage};
use super::ReplicaStore;
use crate::ids::IdRange;
use crate::log::LogPosition;
use crate::overlay::Peer;

/// Bytes of an answer, about: those of one chunk at least.
const ANSWER_BYTES_MAX: usize = 1 << 20;

impl ReplicaStore {
    /// An heir of ids asks for some of what a life kept here that is over. What does not fit into
    /// the answer it asks for again. Nothing of that life is taken any more.
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
        for name in keys.iter().filter(|name| ids.contains(name.id)).take(FETCH_KEYS_MAX) {
            if bytes >= ANSWER_BYTES_MAX {
                break;
            }
            let held = self.replicas.get(&source).and_then(|replica| replica.records.get(name));
            let Some(held) = held else {
                lacking.push(*name);
                continue;
            };
            let is_item = name.id.creator().is_named();
            let mutation = if held.is_removed {
                if is_item { Mutation::RemoveItem(*name) } else { Mutation::Remove(name.id) }
            } else if let Some(value) = self.value(held.position) {
                bytes += value.len();
                if is_item {
                    Mutation::PutItem(*name, value)
                } else {
                    Mutation::Put(name.id, value)
                }
            } else {
                damaged.push(*name);
                continue;
            };
            about.insert(name.id);
            found.push(mutation);
        }
        let replica = self.replicas.get(&source);
        let sessions =
            replica.map_or_else(Vec::new, |replica| replica.answers(|id| about.contains(&id)));
        ReplicationMessage::Fetched { source, ids, found, sessions, lacking, damaged }
    }

    /// The value of a copy, if it can be read.
    fn value(&mut self, position: LogPosition) -> Option<Vec<u8>> {
        self.log.read(position).ok().as_deref().and_then(value_of)
    }
}
