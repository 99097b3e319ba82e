//! Loads the records of an owner that has ended, in slices.

use super::super::RecordKey;
use super::super::record::value_of;
use super::ReplicaStore;
use crate::chunks::ClientState;
use crate::ids::IdRange;
use crate::log::{LogPosition, RecordLoads};
use crate::overlay::Peer;

/// The most bytes of records in a slice; one id may exceed it. A node serves nobody while it takes
/// over a slice.
const SLICE_BYTES_MAX: u64 = 1 << 20;

/// What was recovered of an owner.
#[derive(Debug, Default)]
pub struct ReplicaContents {
    /// Number of chunks and items.
    pub records: u64,
    /// Replies to clients.
    pub export: ClientState,
    /// Keys whose records cannot be read.
    pub damaged: Vec<RecordKey>,
    /// Those that the cleaner has moved meanwhile, and that are being loaded again.
    pub moved: Option<ReplicaSlice>,
}

/// A slice of the records of an owner that are being loaded.
#[derive(Debug)]
pub struct ReplicaSlice {
    /// The ids.
    pub ids: IdRange,
    /// Number of chunks and items.
    pub records: u64,
    /// Bytes that are loaded for them.
    pub bytes: u64,
    loads: RecordLoads<RecordKey>,
}

impl ReplicaSlice {
    /// Whether [`ReplicaStore::recover`] can be called.
    pub fn is_loaded(&self) -> bool {
        self.loads.is_loaded()
    }
}

impl ReplicaStore {
    /// Begins to load the records of a sealed owner incarnation: of a prefix of `ids` with about
    /// `ids_max` ids, or as many items; all items of one id stay together.
    pub fn load_slice(&mut self, owner: Peer, ids: IdRange, ids_max: u64) -> ReplicaSlice {
        self.complete_owner_change(owner, ids);
        let is_named = ids.first().creator().is_named();
        let mut end = match is_named {
            true => ids.end(),
            false => ids.end().min(ids.start().saturating_add(ids_max.max(1))),
        };
        let (mut held, mut bytes) = (Vec::new(), 0);
        let records = self.replicas.get(&owner).map(|replica| &replica.records);
        let all = records.into_iter().flat_map(|records| records.stored(RecordKey::all(ids)));
        for (key, stored) in all {
            let is_full = bytes >= SLICE_BYTES_MAX || is_named && held.len() as u64 >= ids_max;
            let is_next = held.last().is_some_and(|(_, last): &(_, RecordKey)| last.id != key.id);
            if key.id.bits() >= end || is_full && is_next {
                end = end.min(key.id.bits());
                break;
            }
            if !stored.is_removed {
                bytes += stored.position.bytes();
                held.push((stored.position, key));
            }
        }
        let ids = IdRange::from_bits(ids.start(), end);
        self.slice_of(ids, held)
    }

    fn slice_of(&mut self, ids: IdRange, held: Vec<(LogPosition, RecordKey)>) -> ReplicaSlice {
        let (records, loads) = (held.len() as u64, self.log.load(held));
        ReplicaSlice { ids, records, bytes: loads.bytes(), loads }
    }

    /// Takes the records of a slice that is loaded, in the order of the log.
    pub fn recover(
        &mut self,
        owner: Peer,
        slice: ReplicaSlice,
        each: &mut dyn FnMut(RecordKey, Vec<u8>),
    ) -> ReplicaContents {
        let mut contents = ReplicaContents::default();
        let Some(replica) = self.replicas.get(&owner) else { return contents };
        let mut moved: Vec<(LogPosition, RecordKey)> = Vec::new();
        slice.loads.each(|position, key, record| match record.and_then(value_of) {
            Some(value) => {
                contents.records += 1;
                each(*key, value);
            }
            None => match replica.records.get(key).filter(|held| !held.is_removed) {
                Some(held) if held.position != position => moved.push((held.position, *key)),
                Some(_) => contents.damaged.push(*key),
                None => {}
            },
        });
        contents.damaged.sort_unstable();
        let ids = slice.ids;
        contents.export.sessions = replica.answers(|id| ids.contains(id));
        if !moved.is_empty() {
            contents.moved = Some(self.slice_of(ids, moved));
        }
        contents
    }
}
