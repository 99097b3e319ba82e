//! What a backup keeps when the owner of its records changes.

use super::*;

/// Makes `new_owner` take over from the owner. One replica is behind it and one ahead; the latter
/// is `replica_store`.
fn take_over(replica_store: &mut ReplicaStore, new_owner: Peer) {
    let put = |version, n: u64, value| entry(version, Mutation::Put(id(n), vec![value; 60]));
    let entries = vec![put(1, 0, 1), put(2, 1, 1), put(3, 2, 1), put(4, 0, 2), put(5, 3, 5)];
    replica_store.on_append(owner(), 1, 1, entries);
    replica_store.flush(&mut Vec::new());
    // The new owner has version 4 as the last, and a version of chunk 2 that this node never
    // received.
    let answer = replica_store.on_seal(owner(), ids(0, 3), 4);
    let sealed =
        |beyond| ReplicationMessage::Sealed { source: owner(), ids: ids(0, 3), last: 5, beyond };
    assert_eq!(answer, Some(sealed(Some(vec![]))), "what is beyond is not among those ids");
    assert_eq!(
        replica_store.on_seal(owner(), ids(0, 4), 5).map(|_| replica_store.last_version(owner())),
        Some(5)
    );
    let all = replica_store.keys_changed_after(owner(), 3, ids(0, 4));
    assert_eq!(all, Some(vec![RecordKey::from(id(0)), RecordKey::from(id(3))]));
    let entries = vec![entry(1, Mutation::ChangeOwner(owner(), ids(0, 3))), put(2, 2, 9)];
    replica_store.on_append(new_owner, 1, 1, entries);
    replica_store.flush(&mut Vec::new());
}

fn of(replica_store: &mut ReplicaStore, owner: Peer) -> Vec<(u64, u8)> {
    let mut found = Vec::new();
    recover(replica_store, owner, ids(0, 100), &mut |name, value| {
        found.push((name.id.counter(), value[0]));
    });
    found.sort_unstable();
    found
}

#[test]
fn an_owner_change_holds_once_committed_and_goes_to_the_next_owner_if_not() {
    let new_owner = owners()[1];
    let new = || {
        let mut replica_store = replica_store(MemoryStorage::default());
        take_over(&mut replica_store, new_owner);
        replica_store
    };
    let (before, adopted) = ([(0, 2), (1, 1), (2, 1), (3, 5)], [(0, 2), (1, 1), (2, 9)]);
    let mut replica_store = new();
    assert_eq!(
        of(&mut replica_store, owner()),
        before,
        "the new owner died before it was committed"
    );
    // It is not discarded meanwhile.
    assert_eq!(replica_store.forget(owner(), id(0).creator()), Ok(()));
    assert_eq!(of(&mut replica_store, new_owner), adopted, "after it");
    assert_eq!(of(&mut replica_store, owner()), [(3, 5)]);
    let mut replica_store = new();
    let changes = vec![
        entry(3, Mutation::DiscardFormer(owner(), ids(0, 3))),
        entry(4, Mutation::Remove(id(1))),
    ];
    replica_store.on_append(new_owner, 1, 3, changes);
    assert_eq!(of(&mut replica_store, owner()), [(3, 5)]);
    assert_eq!(of(&mut replica_store, new_owner), [(0, 2), (2, 9)]);
    // An owner change that came to nothing, and another.
    let mut replica_store = new();
    let again = vec![
        entry(3, Mutation::ChangeOwner(owner(), ids(0, 2))),
        entry(4, Mutation::Clear(ids(2, 1))),
    ];
    replica_store.on_append(new_owner, 1, 3, again);
    assert_eq!(of(&mut replica_store, new_owner), [(0, 2), (1, 1)]);
    // Then a successor of the successor.
    let mut replica_store = new();
    let last = Peer { node: NodeId::new(3).expect("a node"), incarnation: 1 };
    assert!(replica_store.on_seal(new_owner, ids(0, 2), 2).is_some());
    replica_store.on_append(
        last,
        1,
        1,
        vec![entry(1, Mutation::ChangeOwner(new_owner, ids(0, 2)))],
    );
    assert_eq!(of(&mut replica_store, new_owner), adopted);
    replica_store.on_append(
        last,
        1,
        2,
        vec![entry(2, Mutation::DiscardFormer(new_owner, ids(0, 2)))],
    );
    assert_eq!(
        (of(&mut replica_store, new_owner), of(&mut replica_store, last)),
        (vec![(2, 9)], adopted[..2].to_vec())
    );
}

#[test]
fn an_owner_change_that_was_never_committed_loses_nothing() {
    let (mut replica_store, _) = resume(Box::<MemoryStorage>::default(), 1);
    let new_owner = owners()[1];
    take_over(&mut replica_store, new_owner);
    assert_eq!(replica_store.owners().collect::<Vec<_>>(), [owner(), new_owner]);
    assert_eq!(replica_store.forget(new_owner, id(0).creator()), Ok(()));
    assert_eq!(replica_store.owners().collect::<Vec<_>>(), [owner()]);
    replica_store.flush(&mut Vec::new());
    replica_store.log.commit().expect("memory");
    let (mut again, recovered) = resume(replica_store.into_storage(), 2);
    assert_eq!(recovered.since, 1);
    assert_eq!(of(&mut again, owner()), [(0, 2), (1, 1), (2, 1), (3, 5)]);
}

#[test]
fn a_former_owner_is_not_forgotten_while_a_replay_needs_its_records() {
    let (mut replica_store, _) = resume(Box::<MemoryStorage>::default(), 1);
    let new_owner = owners()[1];
    take_over(&mut replica_store, new_owner);
    // The new owner was committed and died before it said so.
    assert!(replica_store.on_seal(new_owner, ids(0, 3), 2).is_some());
    assert_eq!(replica_store.forget(owner(), id(0).creator()), Ok(()));
    assert_eq!(replica_store.owners().collect::<Vec<_>>(), [new_owner]);
    replica_store.flush(&mut Vec::new());
    replica_store.log.commit().expect("memory");
    let (mut again, recovered) = resume(replica_store.into_storage(), 2);
    assert_eq!(recovered.since, 1);
    assert_eq!(of(&mut again, new_owner), [(0, 2), (1, 1), (2, 9)]);
    assert_eq!(of(&mut again, owner()), []);
}

#[test]
fn replies_about_ids_of_a_pending_owner_change_are_kept() {
    let mut replica_store = replica_store(MemoryStorage::default());
    let [source, new_owner] = owners();
    let put = |version, n| entry(version, Mutation::Put(id(n), vec![1; 60]));
    replica_store.on_append(source, 1, 1, vec![put(1, 0), put(2, 1)]);
    let (client, lease_ms, answered_below) = (CLIENT, 9, 0);
    let answers = vec![(6, id(0), Ok(Response::Ok))];
    let session = SessionState { client, lease_ms, answered_below, answers };
    let answers =
        ReplicationEntry { version: 2, mutation: Mutation::RepliesOnly, sessions: vec![session] };
    replica_store.on_append(
        new_owner,
        1,
        1,
        vec![entry(1, Mutation::ChangeOwner(source, ids(0, 1))), answers],
    );
    replica_store.on_append(new_owner, 1, 3, vec![put(3, 50)]);
    // The new owner was committed and died; another recovers other records of it.
    replica_store.seal(new_owner);
    let last = Peer { node: NodeId::new(3).expect("a node"), incarnation: 1 };
    replica_store.on_append(
        last,
        1,
        1,
        vec![entry(1, Mutation::DiscardFormer(new_owner, ids(50, 1)))],
    );
    let contents = recover(&mut replica_store, new_owner, ids(0, 1), &mut |_, _| {});
    assert_eq!((contents.records, contents.export.sessions.len()), (1, 1));
}
