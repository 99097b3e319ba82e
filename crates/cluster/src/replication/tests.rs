//! Tests of one backup's [`ReplicaStore`]: [`mod@forgetting`] of a full log in a cache,
//! [`mod@late`] of a medium that reads late and [`mod@owner_change`] of changes of owner; those of
//! one owner are in [`mod@primary`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::chunks::{CachedReply, ClientId, ItemTime, ReplicaItem, Response, SessionState};
use crate::codec::Wire;
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::log::{Durability, Log, LogError, LogSettings, MemoryStorage, Storage, StorageError};
use crate::overlay::{
    Catalog, Change, Edit, MetadataRecord, Peer, ReplicaSet, RequestId, Term, Version,
};

mod forgetting;
mod late;
mod owner_change;
mod primary;

const SETTINGS: LogSettings =
    LogSettings { segment_bytes: 2_048, segments_max: 8, durability: Durability::Synced };

fn owner() -> Peer {
    Peer { node: NodeId::new(1).expect("a node"), incarnation: 4 }
}

fn ids(start: u64, length: u64) -> IdRange {
    let first = ChunkId::new(Creator::from(owner().node), start).expect("an id");
    IdRange::starting_at(first, length).expect("a range")
}

fn id(counter: u64) -> ChunkId {
    ids(counter, 1).first()
}

fn replica_store(storage: MemoryStorage) -> ReplicaStore {
    ReplicaStore::open(Box::new(storage), 7, SETTINGS).expect("it opens")
}

fn entry(version: u64, mutation: Mutation) -> ReplicationEntry {
    ReplicationEntry { version, mutation, sessions: Vec::new() }
}

fn answer(replica_store: &mut ReplicaStore) -> Vec<ReplicationMessage> {
    let mut out = Vec::new();
    replica_store.flush(&mut out);
    assert!(out.iter().all(|(to, _)| *to == owner()));
    out.into_iter().map(|(_, message)| message).collect()
}

/// Reads the records of an owner whose storage does not wait, and what they are with.
fn recover(
    replica_store: &mut ReplicaStore,
    owner: Peer,
    ids: IdRange,
    each: &mut dyn FnMut(RecordKey, Vec<u8>),
) -> ReplicaContents {
    let slice = replica_store.load_slice(owner, ids, u64::MAX);
    assert_eq!((slice.ids, slice.is_loaded()), (ids, true));
    replica_store.recover(owner, slice, each)
}

fn recovered(replica_store: &mut ReplicaStore) -> Vec<(ChunkId, Vec<u8>)> {
    let mut found = Vec::new();
    let contents = recover(replica_store, owner(), ids(0, 100), &mut |name, value| {
        found.push((name.id, value));
    });
    assert_eq!(contents.damaged, []);
    found.sort_unstable();
    found
}

#[test]
fn entry_batches_round_trip() {
    let (client, lease_ms, answered_below) = (ClientId(5), 9, 6);
    let answers = vec![(6, id(1), Ok(Response::Value(vec![7; 9]))), (7, id(2), Ok(Response::Ok))];
    let session = SessionState { client, lease_ms, answered_below, answers };
    let [put, remove] = [Mutation::Put(id(1), vec![1; 70]), Mutation::Remove(id(2))];
    let [clear, bury] = [Mutation::Clear(ids(3, 4)), Mutation::DiscardFormer(owner(), ids(5, 6))];
    let name = RecordKey::item(id(4), b"key");
    let [put_item, remove_item] =
        [Mutation::PutItem(name, vec![2; 50]), Mutation::RemoveItem(name)];
    let all = [put, remove, clear, Mutation::RepliesOnly, bury, put_item, remove_item];
    let all = all.into_iter().zip([2, 1, 0, 1, 0, 1, 0]);
    let entry = |(mutation, count)| ReplicationEntry {
        version: 8,
        mutation,
        sessions: vec![session.clone(); count],
    };
    let list: Vec<ReplicationEntry> = all.map(entry).collect();
    let entries = EntryBatch::from(list.clone());
    assert_eq!((entries.count(), entries.to_vec()), (7, list.clone()));
    for (seen, entry) in entries.iter().zip(&list) {
        assert_eq!(seen.sessions(), entry.sessions);
        assert_eq!(
            matches!(seen.mutation, Mutation::Put(..)),
            matches!(entry.mutation, Mutation::Put(..))
        );
    }
}

#[test]
fn encoding_by_reference_equals_encoding_the_entry() {
    let (client, lease_ms, answered_below, number) = (ClientId(5), 9, 6, 8);
    let answer = Ok(Response::Created(id(1)));
    let answered = CachedReply { client, lease_ms, answered_below, number, answer: &answer };
    let answers = vec![(number, id(1), answer.clone())];
    let session = SessionState { client, lease_ms, answered_below, answers };
    let (value, remove) = (vec![3; 70], Mutation::Remove(id(1)));
    let put = (MutationRef::Put(id(1), &value), Mutation::Put(id(1), value.clone()));
    for (changed, mutation) in [put, (MutationRef::Other(id(1), &remove), remove.clone())] {
        for (answered, sessions) in [(None, vec![]), (Some(answered), vec![session.clone()])] {
            let (mut encoded, mut expected) = (Vec::new(), Vec::new());
            changed.encode(7, answered, &mut encoded);
            ReplicationEntry { version: 7, mutation: mutation.clone(), sessions }
                .encode(&mut expected);
            assert_eq!(encoded, expected);
        }
    }
}

#[test]
fn entries_count_once_and_in_their_order() {
    let mut replica_store = replica_store(MemoryStorage::default());
    let put = |version, value| entry(version, Mutation::Put(id(3), vec![value]));
    replica_store.on_append(owner(), 2, 1, vec![put(1, 1), put(2, 2)]);
    assert_eq!(answer(&mut replica_store), [ReplicationMessage::Appended { stream: 2, next: 3 }]);
    assert_eq!(answer(&mut replica_store), [], "nobody asked");
    replica_store.on_append(owner(), 2, 2, vec![put(2, 2), put(3, 3)]);
    replica_store.on_append(owner(), 2, 5, vec![put(5, 5)]);
    replica_store.on_append(owner(), 1, 1, vec![put(9, 9)]);
    assert_eq!(
        answer(&mut replica_store),
        [ReplicationMessage::Appended { stream: 2, next: 4 }],
        "4 is missing"
    );
    replica_store.seal(owner());
    assert_eq!(recovered(&mut replica_store), [(id(3), vec![3])]);
    replica_store.on_append(owner(), 2, 4, vec![put(4, 4)]);
    let refused = ReplicationMessage::Refused { stream: 2, is_sealed: true };
    assert_eq!(answer(&mut replica_store), [refused]);
    assert_eq!(recovered(&mut replica_store), [(id(3), vec![3])]);
}

#[test]
fn removed_and_cleared_chunks_are_not_recovered_and_replies_are() {
    let mut replica_store = replica_store(MemoryStorage::default());
    let answers = vec![(6, id(1), Ok(Response::Ok)), (7, id(50), Ok(Response::Ok))];
    let (client, lease_ms, answered_below) = (ClientId(5), 9, 6);
    let session = SessionState { client, lease_ms, answered_below, answers };
    let mut entries: Vec<ReplicationEntry> =
        (0..6).map(|n| entry(n + 1, Mutation::Put(id(n), vec![n as u8]))).collect();
    entries.push(entry(7, Mutation::Remove(id(1))));
    entries.push(entry(8, Mutation::Clear(ids(3, 2))));
    entries.push(ReplicationEntry {
        version: 9,
        mutation: Mutation::RepliesOnly,
        sessions: vec![session],
    });
    replica_store.on_append(owner(), 1, 1, entries);
    replica_store.seal(owner());
    let left: Vec<ChunkId> = recovered(&mut replica_store).into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, [id(0), id(2), id(5)]);
    let contents = recover(&mut replica_store, owner(), ids(0, 10), &mut |_, _| {});
    let sessions = &contents.export.sessions;
    assert_eq!((sessions.len(), sessions[0].answers.len()), (1, 1), "those of the ids");
    let other = Peer { incarnation: 5, ..owner() };
    replica_store.on_append(
        other,
        1,
        1,
        vec![entry(1, Mutation::DiscardFormer(owner(), ids(0, 3)))],
    );
    assert_eq!(recovered(&mut replica_store).len(), 1);
}

/// Overwrites chunks far more often than the log has room for.
#[test]
fn the_log_is_cleaned_and_a_new_incarnation_has_nothing() {
    let disk = MemoryStorage::default();
    let mut replica_store = replica_store(disk);
    for round in 0..200u64 {
        let entries =
            (0..10).map(|n| entry(round * 10 + n, Mutation::Put(id(n), vec![round as u8; 90])));
        replica_store.on_append(owner(), 1, round * 10 + 1, entries.collect::<Vec<_>>());
        let next = round * 10 + 11;
        assert_eq!(answer(&mut replica_store), [ReplicationMessage::Appended { stream: 1, next }]);
    }
    replica_store.seal(owner());
    let expected: Vec<_> = (0..10).map(|n| (id(n), vec![199; 90])).collect();
    assert_eq!(recovered(&mut replica_store), expected);
    let mut again =
        ReplicaStore::open(replica_store.into_storage(), 7, SETTINGS).expect("it opens");
    assert!(again.replay_report().records >= 10 && again.replay_report().damages.is_empty());
    assert_eq!((recovered(&mut again), again.counts()), (vec![], (0, 0)), "it has no vote");
}

#[test]
fn a_backup_acknowledges_what_its_disk_has_carried_out() {
    let disk = Arc::new(Mutex::new(MemoryStorage::default()));
    let settings = LogSettings { segments_max: 200, ..SETTINGS };
    let mut store = ReplicaStore::open(Box::new(Arc::clone(&disk)), 7, settings).expect("it opens");
    let put = |version| entry(version, Mutation::Put(id(version), vec![version as u8; 90]));
    store.on_append(owner(), 1, 1, vec![put(1)]);
    assert_eq!(answer(&mut store), [ReplicationMessage::Appended { stream: 1, next: 2 }]);
    disk.lock().expect("one thread").hang();
    // Longer than a segment, so that another is begun meanwhile.
    for version in 2..40 {
        store.on_append(owner(), 1, version, vec![put(version)]);
        assert_eq!(answer(&mut store), [], "{version} is not written");
    }
    let (begun, completed) = store.commits();
    assert_eq!(begun, completed + 1, "one commit at a time");
    let release = || disk.lock().expect("one thread").release(usize::MAX);
    release();
    let appended = |next| ReplicationMessage::Appended { stream: 1, next };
    assert_eq!(answer(&mut store), [appended(3), appended(40)], "the first commit had one");
    // Its buffer is bounded: what is too much is not accepted, and the owner sends it again.
    disk.lock().expect("one thread").hang();
    let large = |version| entry(version, Mutation::Put(id(version), vec![1; 1_900]));
    for version in 40..140 {
        store.on_append(owner(), 1, version, vec![large(version)]);
        assert_eq!(answer(&mut store), []);
    }
    assert!(disk.lock().expect("one thread").queued() > 0 && store.failure().is_none());
    release();
    let all = answer(&mut store);
    let Some(ReplicationMessage::Appended { next, .. }) = all.last() else { panic!("{all:?}") };
    assert!((41..140).contains(next), "{next}");
    // An error that comes late is one.
    disk.lock().expect("one thread").hang();
    store.on_append(owner(), 1, *next, vec![put(*next)]);
    assert_eq!(answer(&mut store), []);
    disk.lock().expect("one thread").syncs_left = Some(0);
    release();
    assert_eq!(answer(&mut store), [ReplicationMessage::Refused { stream: 1, is_sealed: false }]);
    assert_eq!(store.failure(), Some(LogError::Storage(StorageError::Broken)));
}

#[test]
fn a_backup_whose_log_is_full_refuses_further_entries() {
    let mut full = MemoryStorage::default();
    full.capacity_bytes = Some(4_096);
    let mut replica_store = replica_store(full);
    let entries = (0..100).map(|n| entry(n, Mutation::Put(id(n), vec![1; 90])));
    let entries: Vec<ReplicationEntry> = entries.collect();
    replica_store.on_append(owner(), 1, 1, entries);
    let refused = [ReplicationMessage::Refused { stream: 1, is_sealed: false }];
    assert_eq!(answer(&mut replica_store), refused);
    assert_eq!(replica_store.failure(), Some(LogError::Full));
    replica_store.on_append(owner(), 1, 1, vec![entry(1, Mutation::Put(id(0), vec![1]))]);
    assert_eq!(answer(&mut replica_store), refused);
}

#[test]
fn a_log_full_of_long_records_refuses_instead_of_cleaning_for_ever() {
    let mut replica_store = replica_store(MemoryStorage::default());
    // Each takes more than half of a segment, and less than what is worth cleaning.
    let put = |n| entry(n, Mutation::Put(id(n), vec![1; 1_200]));
    replica_store.on_append(owner(), 1, 1, (1..=20).map(put).collect::<Vec<_>>());
    let refused = [ReplicationMessage::Refused { stream: 1, is_sealed: false }];
    assert_eq!(answer(&mut replica_store), refused);
    assert_eq!(replica_store.failure(), Some(LogError::Full));
    // What is changed again and again needs no more space.
    let mut replica_store = self::replica_store(MemoryStorage::default());
    for n in 1..=200 {
        let put = Mutation::Put(id(n % 3), vec![1; 1_200]);
        replica_store.on_append(owner(), 1, n, vec![entry(n, put)]);
        let taken = [ReplicationMessage::Appended { stream: 1, next: n + 1 }];
        assert_eq!(answer(&mut replica_store), taken);
    }
}

/// A replica store and the entries that it was sent, so that it can be sent more.
struct Told {
    replica_store: ReplicaStore,
    catalog: Catalog,
    versions: [u64; 2],
    /// Streams of the owners to this backup, one an incarnation, and the number at which the
    /// present one began.
    links: u64,
    firsts: [u64; 2],
    /// No operation of the owners' clients below this number is asked for again.
    answered_below: [u64; 2],
    is_over: bool,
    is_buried: bool,
}

const CLIENT: ClientId = ClientId(5);

/// Chunks, and operations with replies.
type Found = (Vec<(ChunkId, Vec<u8>)>, Vec<(u64, ChunkId)>);

fn owners() -> [Peer; 2] {
    [owner(), Peer { node: NodeId::new(2).expect("a node"), incarnation: 1 }]
}

impl Told {
    /// Applies one entry of any kind, of one of two owners; at some point the second takes over
    /// from the first.
    fn tell(&mut self, step: u64, (who, kind, at, length): (usize, u8, u64, u64)) {
        let who = if self.is_over { 1 } else { who };
        let version = self.versions[who] + 1;
        let some = ids(at, length);
        let answered = [(step, id(at), Ok(Response::Ok))];
        let session = |answers: &[_]| SessionState {
            client: CLIENT,
            lease_ms: 9,
            answered_below: step.saturating_sub(20),
            answers: answers.to_vec(),
        };
        let (mutation, sessions) = match kind {
            0..6 => (Mutation::Put(id(at), vec![step as u8; 20 + at as usize]), vec![]),
            6 => (Mutation::Put(id(at), vec![step as u8]), vec![session(&answered)]),
            7 | 8 => (Mutation::Remove(id(at)), vec![session(&answered)]),
            9 => (Mutation::Clear(some), vec![]),
            10 => (Mutation::RepliesOnly, vec![session(&answered)]),
            11..15 if who == 1 && (self.is_over || length == 4 && at < 3) => {
                self.is_over = true;
                // No owner takes over what it has discarded.
                self.is_buried |= kind == 11;
                let adopts = !self.is_buried;
                (
                    if adopts {
                        Mutation::ChangeOwner(owner(), some)
                    } else {
                        Mutation::DiscardFormer(owner(), some)
                    },
                    vec![],
                )
            }
            _ => return self.note(step, at, length),
        };
        self.versions[who] = version;
        let belows = sessions.iter().map(|session| session.answered_below);
        self.answered_below[who] = belows.fold(self.answered_below[who], u64::max);
        let number = version - self.firsts[who];
        let entry = ReplicationEntry { version, mutation, sessions };
        self.replica_store.on_append(owners()[who], self.links, number, vec![entry]);
        self.replica_store.flush(&mut Vec::new());
    }

    fn note(&mut self, step: u64, at: u64, length: u64) {
        let term = Term { number: step, leader: owner() };
        let creator = Creator::from(owner().node);
        let request = RequestId { peer: owner(), sequence: step };
        let set = ReplicaSet::new(owner(), &owners()[1..]).expect("two nodes");
        let change = [Change::Claim(set), Change::Release][(step % 2) as usize];
        let edits = [Edit { request, ids: ids(at, length), change }];
        self.catalog.apply(creator, Version { term, sequence: step }, &edits);
        if step.is_multiple_of(5) {
            self.catalog.restamp(creator, Version { term, sequence: step + 1 });
        }
        if step.is_multiple_of(31) {
            self.catalog.remove(creator);
        }
        let mut notes = self.catalog.take_records();
        notes.push(MetadataRecord::Promises(vec![(0, at, term)]));
        let catalog = &self.catalog;
        self.replica_store.append_metadata(&notes, &|creator| catalog.snapshot(creator));
        self.replica_store.flush(&mut Vec::new());
    }

    /// Everything that a store would hand out of the first owner and, if that is said to have
    /// owned the ids after it, of the second.
    fn all(replica_store: &mut ReplicaStore, is_committed: bool) -> Vec<Found> {
        let of = |replica_store: &mut ReplicaStore, owner| {
            let mut chunks = Vec::new();
            let contents = recover(replica_store, owner, ids(0, 100), &mut |name, value| {
                chunks.push((name.id, value));
            });
            assert_eq!(contents.damaged, []);
            let answers = contents.export.sessions.into_iter().flat_map(|one| one.answers);
            let mut answers: Vec<_> = answers.map(|(number, id, _)| (number, id)).collect();
            answers.sort_unstable();
            (chunks, answers)
        };
        let [first, second] = owners();
        let second = is_committed.then(|| of(replica_store, second));
        [of(replica_store, first)].into_iter().chain(second).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// However often the cleaner ran, the next incarnation finds what the last one had.
    #[test]
    fn a_log_is_taken_up_as_it_was_left(
        steps in prop::collection::vec((0..2usize, 0..16u8, 0..12u64, 1..5u64), 1..700),
        committed_life in 2..6_u64,
    ) {
        let settings =
            LogSettings { segments_max: 64, durability: Durability::Buffered, ..SETTINGS };
        let resume = |storage, life| {
            ReplicaStore::resume(storage, (7, me(life), 3), settings).expect("it is its own")
        };
        let (replica_store, recovered) = resume(Box::<MemoryStorage>::default(), 1);
        prop_assert_eq!((recovered.since, recovered.metadata), (1, vec![]));
        let mut catalog = Catalog::default();
        catalog.start_recording();
        let (versions, firsts, answered_below) = ([0, 0], [0, 0], [0, 0]);
        let (links, is_over, is_buried) = (1, false, false);
        let mut told = Told {
            replica_store,
            catalog,
            versions,
            links,
            firsts,
            answered_below,
            is_over,
            is_buried,
        };
        let creator = Creator::from(owner().node);
        for (life, steps) in (2..).zip(steps.chunks(250)) {
            for (step, mutation) in (1..).zip(steps) {
                told.tell(u64::from(life) * 250 + step, *mutation);
            }
            let store = &told.replica_store;
            prop_assert_eq!((store.failure(), store.metadata_failure()), (None, None));
            let is_committed = u64::from(life) >= committed_life;
            let before = Told::all(&mut told.replica_store, is_committed);
            let storage = told.replica_store.into_storage();
            let (mut replica_store, recovered) = resume(storage, 2 * life);
            prop_assert_eq!(recovered.since, 1);
            let both = Told::all(&mut replica_store, is_committed).into_iter().zip(before);
            for ((found, before), below) in both.zip(told.answered_below) {
                prop_assert_eq!(found.0, before.0);
                // A reply that nobody asks for again may reappear.
                let asked = |answers: Vec<(u64, ChunkId)>| -> Vec<_> {
                    answers.into_iter().filter(|(number, _)| *number >= below).collect()
                };
                prop_assert_eq!(asked(found.1), asked(before.1));
            }
            let mut again = Catalog::default();
            recovered.metadata.iter().for_each(|note| again.replay(note));
            prop_assert_eq!(again.summary(creator), told.catalog.summary(creator));
            let promises = |note: &&MetadataRecord| matches!(note, MetadataRecord::Promises(_));
            prop_assert!(recovered.metadata.iter().filter(promises).count() <= 1);
            // A committed owner takes over nothing more.
            told.is_buried |= is_committed && told.is_over;
            told.replica_store = resume(replica_store.into_storage(), 2 * life + 1).0;
            told.links += 1;
            told.firsts = told.versions;
        }
    }
}

#[test]
fn a_backup_that_joined_later_does_not_offer_earlier_removals() {
    let mut replica_store = replica_store(MemoryStorage::default());
    replica_store.on_append(owner(), 1, 1, vec![entry(5, Mutation::Clear(ids(0, 9)))]);
    assert_eq!(replica_store.keys_changed_after(owner(), 4, ids(0, 9)), None);
    assert_eq!(replica_store.keys_changed_after(owner(), 5, ids(0, 9)), Some(vec![]));
    assert_eq!(replica_store.keys_changed_after(owner(), 4, ids(9, 9)), Some(vec![]));
}

#[test]
fn a_backup_without_the_latest_changes_admits_it() {
    let mut replica_store = replica_store(MemoryStorage::default());
    let entries = (1..=20).map(|n| entry(n, Mutation::Put(id(n), vec![1; 20])));
    replica_store.on_append(owner(), 1, 1, entries.collect::<Vec<_>>());
    assert_eq!(replica_store.keys_changed_after(owner(), 11, ids(0, 100)), None);
    assert_eq!(
        replica_store.keys_changed_after(owner(), 18, ids(0, 100)).map(|keys| keys.len()),
        Some(2)
    );
    assert_eq!(replica_store.keys_changed_after(owner(), 30, ids(0, 100)), Some(vec![]));
    // Later entries were about other ids.
    let many = ids(1 << 20, 100);
    let entries = (21..=40).map(|n| entry(n, Mutation::Put(many.first(), vec![1; 20])));
    replica_store.on_append(owner(), 1, 21, entries.collect::<Vec<_>>());
    assert_eq!(replica_store.keys_changed_after(owner(), 20, ids(0, 100)), Some(vec![]));
    assert_eq!(replica_store.keys_changed_after(owner(), 19, ids(0, 100)), None);
    assert_eq!(replica_store.keys_changed_after(owner(), 20, many), None);
    assert_eq!(
        replica_store.keys_changed_after(owners()[1], 0, ids(0, 100)),
        Some(vec![]),
        "it never said anything"
    );
}

/// An incarnation of a node that is no owner.
fn me(incarnation: u32) -> Peer {
    Peer { node: NodeId::new(9).expect("a node"), incarnation }
}

/// Takes a log up as this incarnation.
fn resume(storage: Box<dyn Storage>, incarnation: u32) -> (ReplicaStore, RecoveredState) {
    ReplicaStore::resume(storage, (7, me(incarnation), 3), SETTINGS).expect("whole")
}

#[test]
fn forgotten_records_do_not_come_back() {
    let (mut replica_store, _) = resume(Box::<MemoryStorage>::default(), 1);
    let creator = Creator::from(owner().node);
    replica_store.on_append(owner(), 1, 1, vec![entry(1, Mutation::Put(id(1), vec![1]))]);
    replica_store.flush(&mut Vec::new());
    assert_eq!(
        (replica_store.owners().collect::<Vec<_>>(), replica_store.creators(owner())),
        (vec![owner()], vec![creator])
    );
    assert_eq!(replica_store.forget(owner(), creator), Ok(()));
    assert_eq!(replica_store.owners().count(), 0);
    replica_store.on_append(owners()[1], 1, 1, vec![entry(1, Mutation::Put(id(2), vec![1]))]);
    replica_store.flush(&mut Vec::new());
    let (again, recovered) = resume(replica_store.into_storage(), 2);
    assert_eq!((recovered.since, again.owners().collect::<Vec<_>>()), (1, vec![owners()[1]]));
    // After a reboot the log may lack the last records.
    let settings = LogSettings { durability: Durability::Buffered, ..SETTINGS };
    let open = |storage, life, boot| {
        ReplicaStore::resume(storage, (7, me(life), boot), settings).expect("it opens")
    };
    let (buffered, _) = open(again.into_storage(), 3, 3);
    let (lacking, recovered) = open(buffered.into_storage(), 4, 4);
    assert_eq!((recovered.since, lacking.owners().count()), (4, 0));
    // They never count again, though later records do.
    let (later, recovered) = open(lacking.into_storage(), 5, 4);
    assert_eq!((recovered.since, later.owners().count()), (4, 0));
}

/// A loss of power may undo the only segment header and keep what was written behind it.
#[test]
fn records_behind_a_lost_header_never_count_for_a_later_incarnation() {
    let settings = LogSettings { durability: Durability::Buffered, ..SETTINGS };
    let resume = |storage: MemoryStorage, life, boot| {
        ReplicaStore::resume(Box::new(storage), (7, me(life), boot), settings).expect("it opens")
    };
    let put = |replica_store: &mut ReplicaStore, count| {
        for n in 1..=count {
            replica_store.on_append(
                owner(),
                1,
                n,
                vec![entry(n, Mutation::Put(id(n), vec![1; 60]))],
            );
            answer(replica_store);
        }
    };
    let medium = |replica_store: &mut ReplicaStore| {
        let mut bytes = vec![0; 2_048];
        replica_store.log.storage_mut().read(0, 0, &mut bytes).expect("memory");
        let mut storage = MemoryStorage::default();
        storage.create(0, 2_048).expect("memory");
        storage.write(0, 0, &bytes).expect("memory");
        storage
    };
    let (mut first, _) = resume(MemoryStorage::default(), 1, 1);
    put(&mut first, 15);
    let mut left = medium(&mut first);
    left.write(0, 0, &[0; 512]).expect("memory");
    let (mut second, recovered) = resume(left, 2, 2);
    assert_eq!(recovered.since, 2, "none of it counts");
    put(&mut second, 2);
    let left = medium(&mut second);
    let (third, recovered) = resume(left, 3, 2);
    assert_eq!((recovered.since, third.counts()), (2, (2, 1)), "{:?}", third.replay_report());
}

#[test]
fn damaged_records_are_requested_again() {
    let mut replica_store = replica_store(MemoryStorage::default());
    let entries = (0..6).map(|n| entry(n + 1, Mutation::Put(id(n), vec![n as u8; 90])));
    replica_store.on_append(owner(), 3, 1, entries.collect::<Vec<_>>());
    answer(&mut replica_store);
    let mut out = Vec::new();
    assert!(replica_store.scrub(100, &ItemTime::FIRST, &mut out).is_empty() && out.is_empty());
    // The storage corrupts the middle of the third record.
    let third = replica_store.log.storage_mut();
    let mut segment = vec![0; 2_048];
    third.read(0, 0, &mut segment).expect("memory");
    let at = segment.windows(90).position(|bytes| bytes == [2; 90]).expect("it is there");
    third.write(0, at as u32 + 40, &[9]).expect("memory");
    assert!(
        replica_store.scrub(2, &ItemTime::FIRST, &mut out).is_empty(),
        "the first two are as they were"
    );
    let found: Vec<_> = replica_store.scrub(100, &ItemTime::FIRST, &mut out).into_iter().collect();
    assert_eq!(found, [(owner(), vec![id(2)])]);
    assert_eq!(
        out,
        [(owner(), ReplicationMessage::Resend { stream: 3, keys: vec![RecordKey::from(id(2))] })]
    );
    replica_store.on_append(owner(), 3, 7, vec![entry(7, Mutation::Put(id(2), vec![2; 90]))]);
    out.clear();
    assert!(
        replica_store.scrub(100, &ItemTime::FIRST, &mut out).is_empty()
            && replica_store.scrub(100, &ItemTime::FIRST, &mut out).is_empty()
    );
}

fn kept(key: &[u8], ends_unix_seconds: i64, flushes: u64) -> Vec<u8> {
    let (key, value) = (key.to_vec(), vec![7; 40]);
    let (flags, cas, stale) = (0, None, false);
    let mut bytes = Vec::new();
    ReplicaItem { ends_unix_seconds, flushes, key, value, flags, cas, stale }.encode(&mut bytes);
    bytes
}

#[test]
fn items_of_one_id_are_separate_and_queried_once_expired() {
    let mut replica_store = replica_store(MemoryStorage::default());
    let place = |hash| ChunkId::named(hash);
    let put = |version, id, key: &[u8], ends, flushes| {
        entry(version, Mutation::PutItem(RecordKey::item(id, key), kept(key, ends, flushes)))
    };
    let (both, other) = (place(1 << 40), place(1 << 41));
    assert_ne!(both, other);
    let entries = vec![
        put(1, both, b"one", 0, 2),
        put(2, both, b"two", 900, 2),
        put(3, other, b"three", 0, 1),
        put(4, both, b"four", 0, 2),
        put(5, both, b"one", 0, 2),
        entry(6, Mutation::RemoveItem(RecordKey::item(both, b"four"))),
    ];
    replica_store.on_append(owner(), 3, 1, entries);
    answer(&mut replica_store);
    assert_eq!(replica_store.creators(owner()), [both.creator()]);
    let mut out = Vec::new();
    let now = amalgam_op::Now { epoch_unix_seconds: 1_000, ..amalgam_op::Now::at(1) };
    assert!(
        replica_store.scrub(100, &ItemTime { now, flushes: 2 }, &mut out).is_empty(),
        "none is damaged"
    );
    let [(to, ReplicationMessage::Resend { stream: 3, keys })] = &out[..] else {
        panic!("{out:?}")
    };
    let mut expected = vec![RecordKey::item(both, b"two"), RecordKey::item(other, b"three")];
    expected.sort_unstable();
    assert_eq!((*to, keys), (owner(), &expected), "one ended, one was dropped");
    replica_store.seal(owner());
    let partition = both.creator().ids();
    let read = |replica_store: &mut ReplicaStore, ids| {
        let mut keys = Vec::new();
        let contents = recover(replica_store, owner(), ids, &mut |name, value| {
            keys.push((name.id, ReplicaItem::decode_all(&value).expect("it was kept").key));
        });
        keys.sort();
        (contents.records, keys)
    };
    let all = [(both, b"one".to_vec()), (both, b"two".to_vec()), (other, b"three".to_vec())];
    assert_eq!(read(&mut replica_store, partition), (3, all.to_vec()));
    // Slices end where an id ends.
    let end_of = |replica_store: &mut ReplicaStore, ids, most| {
        replica_store.load_slice(owner(), ids, most).ids.end()
    };
    assert_eq!(end_of(&mut replica_store, partition, 1), other.bits(), "all of the first");
    let end = end_of(&mut replica_store, partition, 2);
    assert_eq!(end, other.bits());
    let first = IdRange::new(partition.first(), ChunkId::from_bits(end - 1).expect("an id"));
    assert_eq!(read(&mut replica_store, first.expect("a range")).0, 2);
    let rest = IdRange::new(ChunkId::from_bits(end).expect("an id"), partition.last());
    assert_eq!(read(&mut replica_store, rest.expect("a range")).0, 1);
    assert_eq!(end_of(&mut replica_store, partition, 100), partition.last().bits() + 1);
}

/// No number would be left for the records of this incarnation.
#[test]
fn a_record_with_the_last_number_does_not_count() {
    let storage = MemoryStorage::default();
    let (mut log, _) = Log::open(storage, 7, SETTINGS, &mut |_, _| {}).expect("it opens");
    let writer = LogWriter { peer: me(1), since: 1, boot: 3, is_synced: true };
    let mut record = vec![record::WRITER];
    u64::MAX.encode(&mut record);
    writer.encode(&mut record);
    log.append(&record).expect("there is room");
    log.commit().expect("memory");
    let storage = Box::new(log.into_storage());
    let (_, recovered) = ReplicaStore::resume(storage, (7, me(2), 3), SETTINGS).expect("its own");
    assert_eq!(recovered.since, 2);
}
