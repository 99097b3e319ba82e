//! What a backup keeps of owners: it holds what it acknowledged, in the order of versions, over
//! restarts and through any cleaning, and survives messages and records that make no sense.
#![no_main]

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{ClientId, ItemTime, Response, SessionState};
use amalgam_cluster::ids::{ChunkId, Creator, IdRange, NodeId};
use amalgam_cluster::log::{Durability, Log, LogSettings, MemoryStorage, Storage};
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::replication::{
    EntryBatch, Mutation, RecordKey, ReplicaStore, ReplicationEntry, ReplicationMessage,
};
use amalgam_cluster::wire::Wire;
use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use libfuzzer_sys::fuzz_target;

const CLUSTER: u64 = 7;
const BOOT: u64 = 1;
const IDS: u64 = 16;
const SETTINGS: LogSettings = LogSettings {
    segment_bytes: 2_048,
    segments_max: 12,
    durability: Durability::Synced,
};

fn peer(node: u16, incarnation: u32) -> Peer {
    Peer { node: NodeId::new(node).expect("a node"), incarnation }
}

/// The owners whose changes are modelled, and one whose messages are arbitrary.
fn owners() -> [Peer; 3] {
    [peer(1, 4), peer(2, 1), peer(3, 1)]
}

fn ids(start: u64, length: u64) -> IdRange {
    let first = ChunkId::new(Creator::from(peer(1, 1).node), start).expect("an id");
    IdRange::starting_at(first, length).expect("a range")
}

/// What an owner was told to be stored.
#[derive(Default)]
struct Owner {
    version: u64,
    stream: u64,
    next: u64,
    /// The stream of the last message, and the number of the entry that follows it.
    sent: (u64, u64),
    records: BTreeMap<RecordKey, Vec<u8>>,
}

struct Model {
    store: ReplicaStore,
    incarnation: u32,
    owners: [Owner; 2],
    /// Whether the log held records that are not modelled.
    is_hostile: bool,
}

impl Model {
    fn open(storage: Box<dyn Storage>, incarnation: u32) -> Option<ReplicaStore> {
        let me = peer(9, incarnation);
        ReplicaStore::resume(storage, (CLUSTER, me, BOOT), SETTINGS).ok().map(|(store, _)| store)
    }

    /// Sends entries of one owner, some of them twice.
    fn append(&mut self, script: &mut Script<'_>, number: usize, count: u8) {
        let model = &mut self.owners[number];
        let mut entries = Vec::new();
        for _ in 0..=count % 4 {
            let action = script.byte().unwrap_or(0);
            let id = ids(u64::from(action >> 4), 1).first();
            let key = RecordKey::item(id, &[action & 1]);
            model.version += 1 + u64::from(action & 1);
            let value = vec![action; script.number() % 300];
            let mutation = match action % 8 {
                0..=2 => Mutation::Put(id, value),
                3 => Mutation::Remove(id),
                4 => Mutation::PutItem(key, value),
                5 => Mutation::RemoveItem(key),
                6 => Mutation::Clear(ids(u64::from(action >> 4), 1 + u64::from(action >> 6))),
                _ => Mutation::RepliesOnly,
            };
            match &mutation {
                Mutation::Clear(ids) => model.records.retain(|key, _| !ids.contains(key.id)),
                Mutation::Put(_, value) | Mutation::PutItem(_, value) => {
                    let (key, _) = mutation.copy().expect("a record");
                    model.records.insert(key, value.clone());
                }
                other => {
                    other.copy().map(|(key, _)| model.records.remove(&key));
                }
            }
            let number = model.version;
            let answers = vec![(number, id, Ok(Response::Ok)); usize::from(action >> 6)];
            let session =
                SessionState { client: ClientId(1), lease_ms: 9, answered_below: 0, answers };
            let sessions = vec![session; usize::from(action & 1)];
            entries.push(ReplicationEntry { version: model.version, mutation, sessions });
        }
        let first = model.next;
        model.next += entries.len() as u64;
        model.sent = (model.stream, model.next);
        self.store.on_append(owners()[number], model.stream, first, entries);
    }

    /// Commits; whether the store goes on.
    fn flush(&mut self) -> bool {
        let mut out = Vec::new();
        self.store.flush(&mut out);
        for (owner, message) in out {
            let Some(number) = owners()[..2].iter().position(|one| *one == owner) else { continue };
            let (stream, next) = self.owners[number].sent;
            let expected = ReplicationMessage::Appended { stream, next };
            let is_excused = self.is_hostile || self.store.failure().is_some();
            assert!(message == expected || is_excused, "{message:?}");
        }
        self.store.failure().is_none()
    }

    /// What the store has of an owner is what it acknowledged.
    fn check(&mut self, number: usize) {
        let mut found = BTreeMap::new();
        let (owner, all) = (owners()[number], ids(0, 1 << 20));
        let slice = self.store.load_slice(owner, all, u64::MAX);
        assert_eq!(slice.ids, all);
        let contents = self.store.recover(owner, slice, &mut |key, value| {
            assert!(found.insert(key, value).is_none(), "each record once");
        });
        assert_eq!(contents.damaged, [], "nothing was damaged");
        assert_eq!(found, self.owners[number].records, "owner {number}");
    }
}

/// A store over a log of one segment whose records are arbitrary: kinds 1 to 3 are known.
fn hostile(script: &mut Script<'_>) -> Option<ReplicaStore> {
    let storage = MemoryStorage::default();
    let (mut log, _) = Log::open(storage, CLUSTER, SETTINGS, &mut |_, _| {}).ok()?;
    for _ in 0..script.byte().unwrap_or(0) % 16 {
        let _ = log.append(script.bytes());
    }
    // A writer, so that the records count.
    let mut writer = vec![3];
    (u64::from(script.byte().unwrap_or(0)), peer(9, 1)).encode(&mut writer);
    (1_u32, BOOT, true).encode(&mut writer);
    log.append(&writer).and_then(|_| log.commit()).ok()?;
    Model::open(Box::new(log.into_storage()), 2)
}

/// Whether the store goes on.
fn act(script: &mut Script<'_>, model: &mut Model) -> Option<bool> {
    let action = script.byte()?;
    let number = usize::from(action >> 7);
    let stranger = owners()[2];
    let some_ids = ids(u64::from(action >> 4), IDS);
    match action % 16 {
        0..=5 => model.append(script, number, action >> 4),
        6 | 7 => return Some(model.flush()),
        8 => {
            // A restart. Everything was synced, so everything counts.
            if !model.flush() {
                return Some(false);
            }
            let empty = ReplicaStore::open(Box::new(MemoryStorage::default()), CLUSTER, SETTINGS);
            let store = std::mem::replace(&mut model.store, empty.ok()?);
            model.incarnation += 1;
            let Some(store) = Model::open(store.into_storage(), model.incarnation) else {
                // Each start takes a segment, and nothing was appended that would free one.
                model.is_hostile = true;
                return Some(false);
            };
            model.store = store;
            for owner in &mut model.owners {
                (owner.stream, owner.next) = (owner.stream + 1, 1);
            }
        }
        9 => {
            // A new stream: what was sent is sent again.
            let owner = &mut model.owners[number];
            (owner.stream, owner.next) = (owner.stream + 1, 1);
        }
        10 if !model.is_hostile && model.flush() => model.check(number),
        // From here on, whatever anybody sends about a stranger.
        11 => {
            if let Ok(entries) = EntryBatch::decode_all(script.bytes()) {
                let stream = u64::from(script.byte().unwrap_or(0));
                model.store.on_append(stranger, stream, script.number() as u64, entries);
            }
        }
        12 => {
            let last = script.number() as u64;
            let _ = model.store.on_seal(stranger, some_ids, last);
        }
        13 => {
            let keys: Vec<_> = (0..IDS).map(|at| RecordKey::from(ids(at, 1).first())).collect();
            model.store.on_fetch(stranger, stranger, some_ids, &keys);
            let slice = model.store.load_slice(stranger, some_ids, u64::from(action >> 4));
            model.store.recover(stranger, slice, &mut |_, _| {});
        }
        14 => {
            let creator = some_ids.first().creator();
            let _ = model.store.forget(stranger, creator);
            let _ = model.store.creators(stranger);
        }
        _ => {
            let time = ItemTime::FIRST;
            let mut out = Vec::new();
            let damaged = model.store.scrub(usize::from(action), &time, &mut out);
            assert!(damaged.is_empty(), "nothing was damaged");
        }
    }
    Some(model.store.failure().is_none())
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let is_hostile = script.byte().is_some_and(|choice| choice & 1 == 1);
    let opened = match is_hostile {
        true => memory::within(64 * data.len() + (256 << 10), || hostile(&mut script)),
        false => Model::open(Box::new(MemoryStorage::default()), 2),
    };
    let Some(store) = opened else { return };
    let owner = || Owner { stream: 1, next: 1, ..Owner::default() };
    let mut model = Model { store, incarnation: 2, owners: [owner(), owner()], is_hostile };
    while act(&mut script, &mut model) == Some(true) {}
    if !model.is_hostile && model.flush() {
        for number in 0..2 {
            model.check(number);
        }
    }
});
