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
