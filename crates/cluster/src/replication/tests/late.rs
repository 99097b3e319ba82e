//! A backup whose medium delivers later what it is asked for.

use super::*;

/// A medium that has not delivered what is cleaned keeps entries waiting, and nothing else.
#[test]
fn the_cleaner_does_not_wait_for_the_medium() {
    let disk = Arc::new(Mutex::new(MemoryStorage::default()));
    let lock = || disk.lock().expect("one thread");
    lock().reads_late = true;
    let storage = Box::new(Arc::clone(&disk));
    let mut replica_store = ReplicaStore::open(storage, 7, SETTINGS).expect("it opens");
    let put =
        |version: u64| entry(version, Mutation::Put(id(version % 8), vec![version as u8; 90]));
    let mut next = 1;
    let send = |replica_store: &mut ReplicaStore, next: &mut u64| {
        replica_store.on_append(owner(), 3, *next, vec![put(*next)]);
        let mut out = Vec::new();
        replica_store.flush(&mut out);
        let took = out.iter().find_map(|(_, message)| match message {
            ReplicationMessage::Appended { next, .. } => Some(*next),
            _ => None,
        });
        let has_taken = took == Some(*next + 1);
        *next = took.unwrap_or(*next);
        has_taken
    };
    while send(&mut replica_store, &mut next) {
        assert!(next < 1_000, "it goes on without cleaning");
    }
    assert_eq!(replica_store.failure(), None, "it waits");
    assert!(!send(&mut replica_store, &mut next), "still");
    for _ in 0..1_000 {
        lock().deliver();
        send(&mut replica_store, &mut next);
    }
    assert!(next > 500 && replica_store.failure().is_none(), "{next}");
    let held = recovered_late(&mut replica_store, &disk);
    assert_eq!(held.len(), 8);
    assert!(held.iter().all(|(_, value)| value.len() == 90));
}

/// Metadata waits in memory while the medium has not delivered what is cleaned, up to a bound.
#[test]
fn metadata_that_waits_for_room_is_bounded() {
    let disk = Arc::new(Mutex::new(MemoryStorage::default()));
    let lock = || disk.lock().expect("one thread");
    lock().reads_late = true;
    let storage = Box::new(Arc::clone(&disk));
    let mut replica_store = ReplicaStore::open(storage, 7, SETTINGS).expect("it opens");
    let most = store::UNWRITTEN_METADATA_BYTES_MAX;
    assert!(replica_store.has_room_for_metadata(most), "it can be recorded at once");
    for version in 1..1_000 {
        let put = entry(version, Mutation::Put(id(version % 8), vec![version as u8; 90]));
        replica_store.on_append(owner(), 3, version, vec![put]);
        replica_store.flush(&mut Vec::new());
    }
    assert!(!replica_store.has_room_for_metadata(most / 2), "it waits");
    assert_eq!(replica_store.metadata_failure(), None);
    assert!(!replica_store.has_room_for_metadata(most));
    let stalled = LogError::Storage(StorageError::Stalled);
    assert_eq!(replica_store.metadata_failure(), Some(stalled));

    let mut catalog = Catalog::default();
    let term = Term { number: 1, leader: owner() };
    let apply = |catalog: &mut Catalog, sequence, edits: &[Edit]| {
        catalog.apply(id(1).creator(), Version { term, sequence }, edits);
    };
    apply(&mut catalog, 1, &[]);
    assert_eq!(catalog.record_bytes(), 0, "nothing is recorded");
    catalog.start_recording();
    apply(&mut catalog, 2, &[]);
    let empty = catalog.record_bytes();
    let request = RequestId { peer: owner(), sequence: 1 };
    let edit = Edit { request, ids: ids(0, 9), change: Change::Release };
    apply(&mut catalog, 3, &[edit; 100]);
    let more = catalog.record_bytes() - empty;
    assert!(empty > 0 && more > 100 * size_of::<Edit>(), "{empty}, {more}");
    assert_eq!((catalog.take_records().len(), catalog.record_bytes()), (2, 0));
}

/// What a slice holds that the medium delivers later.
fn recovered_late(
    replica_store: &mut ReplicaStore,
    disk: &Arc<Mutex<MemoryStorage>>,
) -> Vec<(ChunkId, Vec<u8>)> {
    let mut found = Vec::new();
    let slice = replica_store.load_slice(owner(), ids(0, 100), u64::MAX);
    assert!(!slice.is_loaded());
    disk.lock().expect("one thread").deliver();
    assert!(slice.is_loaded());
    let mut each = |key: RecordKey, value| found.push((key.id, value));
    let contents = replica_store.recover(owner(), slice, &mut each);
    assert!(contents.damaged.is_empty() && contents.moved.is_none());
    found
}

/// A record that the cleaner moves while it is read is read where it is then.
#[test]
fn a_record_that_moved_is_loaded_again() {
    let disk = Arc::new(Mutex::new(MemoryStorage::default()));
    let lock = || disk.lock().expect("one thread");
    let storage = Box::new(Arc::clone(&disk));
    let mut replica_store = ReplicaStore::open(storage, 7, SETTINGS).expect("it opens");
    replica_store.on_append(owner(), 3, 1, vec![entry(1, Mutation::Put(id(0), vec![7; 90]))]);
    answer(&mut replica_store);
    lock().reads_late = true;
    let slice = replica_store.load_slice(owner(), ids(0, 100), u64::MAX);
    replica_store.on_fetch(owner(), owner(), ids(0, 100), &[RecordKey::from(id(0))]);
    // The medium reads nothing until the first segment is used for other records.
    let other = Peer { incarnation: 5, ..owner() };
    for version in 1..400 {
        let mutation = Mutation::Put(id(100 + version % 2), vec![1; 90]);
        replica_store.on_append(other, 3, version, vec![entry(version, mutation)]);
        replica_store.flush(&mut Vec::new());
        if version == 1 {
            lock().reads_late = false;
        }
    }
    lock().deliver();
    let mut found = Vec::new();
    let contents =
        replica_store.recover(owner(), slice, &mut |key, value| found.push((key, value)));
    assert_eq!((contents.records, contents.damaged), (0, Vec::new()));
    let again = contents.moved.expect("it moved");
    let contents =
        replica_store.recover(owner(), again, &mut |key, value| found.push((key, value)));
    assert_eq!((contents.records, contents.moved.is_none()), (1, true));
    assert_eq!(found, [(RecordKey::from(id(0)), vec![7; 90])]);
}
