//! A backup by itself: what it keeps, refuses and hands out; and an owner by itself.

use super::*;
use crate::chunks::{ChunkStore, ClientId, Done, SessionExport, StoreError};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::log::{Durability, LogError, LogSettings, MemoryStorage};
use crate::overlay::Peer;

const SETTINGS: LogSettings = LogSettings {
    segment_bytes: 2_048,
    segments_max: 8,
    durability: Durability::Synced,
    clean_below_percent: 50,
};

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

fn vault(storage: MemoryStorage) -> Vault {
    Vault::open(Box::new(storage), 7, SETTINGS).expect("it opens")
}

fn entry(version: u64, what: What) -> Entry {
    Entry { version, what, sessions: Vec::new() }
}

fn answer(vault: &mut Vault) -> Vec<BackupMessage> {
    let mut out = Vec::new();
    vault.flush(&mut out);
    assert!(out.iter().all(|(to, _)| *to == owner()));
    out.into_iter().map(|(_, message)| message).collect()
}

fn recovered(vault: &mut Vault) -> Vec<(ChunkId, Vec<u8>)> {
    let mut found = Vec::new();
    let heritage = vault.recover(owner(), ids(0, 100), &mut |id, value| found.push((id, value)));
    assert_eq!(heritage.damaged, []);
    found.sort_unstable();
    found
}

#[test]
fn entries_are_taken_apart_as_they_were_put_together() {
    let (client, lease_ms, answered_below) = (ClientId(5), 9, 6);
    let answers = vec![(6, id(1), Ok(Done::Value(vec![7; 9]))), (7, id(2), Ok(Done::Ok))];
    let session = SessionExport { client, lease_ms, answered_below, answers };
    let [put, remove] = [What::Put(id(1), vec![1; 70]), What::Remove(id(2))];
    let [clear, bury] = [What::Clear(ids(3, 4)), What::Bury(owner(), ids(5, 6))];
    let all = [put, remove, clear, What::Answers, bury].into_iter().zip([2, 1, 0, 1, 0]);
    let entry = |(what, count)| Entry { version: 8, what, sessions: vec![session.clone(); count] };
    let list: Vec<Entry> = all.map(entry).collect();
    let entries = Entries::from(list.clone());
    assert_eq!((entries.count(), entries.to_vec()), (5, list.clone()));
    for (seen, entry) in entries.iter().zip(&list) {
        assert_eq!(seen.sessions(), entry.sessions);
        assert_eq!(matches!(seen.what, What::Put(..)), matches!(entry.what, What::Put(..)));
    }
}

#[test]
fn entries_count_once_and_in_their_order() {
    let mut vault = vault(MemoryStorage::default());
    let put = |version, value| entry(version, What::Put(id(3), vec![value]));
    vault.on_append(owner(), 2, 1, vec![put(1, 1), put(2, 2)]);
    assert_eq!(answer(&mut vault), [BackupMessage::Appended { link: 2, next: 3 }]);
    assert_eq!(answer(&mut vault), [], "nobody asked");
    vault.on_append(owner(), 2, 2, vec![put(2, 2), put(3, 3)]);
    vault.on_append(owner(), 2, 5, vec![put(5, 5)]);
    vault.on_append(owner(), 1, 1, vec![put(9, 9)]);
    assert_eq!(answer(&mut vault), [BackupMessage::Appended { link: 2, next: 4 }], "4 is missing");
    vault.seal(owner());
    assert_eq!(recovered(&mut vault), [(id(3), vec![3])]);
    vault.on_append(owner(), 2, 4, vec![put(4, 4)]);
    let refused = BackupMessage::Refused { link: 2, is_sealed: true };
    assert_eq!(answer(&mut vault), [refused]);
    assert_eq!(recovered(&mut vault), [(id(3), vec![3])]);
}

#[test]
fn what_is_removed_or_cleared_is_not_recovered_and_answers_are() {
    let mut vault = vault(MemoryStorage::default());
    let answers = vec![(6, id(1), Ok(Done::Ok)), (7, id(50), Ok(Done::Ok))];
    let (client, lease_ms, answered_below) = (ClientId(5), 9, 6);
    let session = SessionExport { client, lease_ms, answered_below, answers };
    let mut entries: Vec<Entry> =
        (0..6).map(|n| entry(n + 1, What::Put(id(n), vec![n as u8]))).collect();
    entries.push(entry(7, What::Remove(id(1))));
    entries.push(entry(8, What::Clear(ids(3, 2))));
    entries.push(Entry { version: 9, what: What::Answers, sessions: vec![session] });
    vault.on_append(owner(), 1, 1, entries);
    vault.seal(owner());
    let left: Vec<ChunkId> = recovered(&mut vault).into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, [id(0), id(2), id(5)]);
    let heritage = vault.recover(owner(), ids(0, 10), &mut |_, _| {});
    let sessions = &heritage.export.sessions;
    assert_eq!((sessions.len(), sessions[0].answers.len()), (1, 1), "those of the ids");
    let other = Peer { incarnation: 5, ..owner() };
    vault.on_append(other, 1, 1, vec![entry(1, What::Bury(owner(), ids(0, 3)))]);
    assert_eq!(recovered(&mut vault).len(), 1);
}

/// Chunks are overwritten far more often than the log has room for.
#[test]
fn the_log_is_cleaned_and_a_new_life_has_nothing() {
    let disk = MemoryStorage::default();
    let mut vault = vault(disk);
    for round in 0..200u64 {
        let entries =
            (0..10).map(|n| entry(round * 10 + n, What::Put(id(n), vec![round as u8; 90])));
        vault.on_append(owner(), 1, round * 10 + 1, entries.collect::<Vec<_>>());
        let next = round * 10 + 11;
        assert_eq!(answer(&mut vault), [BackupMessage::Appended { link: 1, next }]);
    }
    vault.seal(owner());
    let expected: Vec<_> = (0..10).map(|n| (id(n), vec![199; 90])).collect();
    assert_eq!(recovered(&mut vault), expected);
    let mut again = Vault::open(vault.into_storage(), 7, SETTINGS).expect("it opens");
    assert!(again.replay().records >= 10 && again.replay().damages.is_empty());
    assert_eq!((recovered(&mut again), again.holdings()), (vec![], (0, 0)), "it has no vote");
}

#[test]
fn a_backup_without_room_says_so_and_keeps_nothing_more() {
    let mut full = MemoryStorage::default();
    full.capacity_bytes = Some(4_096);
    let mut vault = vault(full);
    let entries = (0..100).map(|n| entry(n, What::Put(id(n), vec![1; 90])));
    let entries: Vec<Entry> = entries.collect();
    vault.on_append(owner(), 1, 1, entries);
    let refused = [BackupMessage::Refused { link: 1, is_sealed: false }];
    assert_eq!(answer(&mut vault), refused);
    assert_eq!(vault.failed(), Some(LogError::Full));
    vault.on_append(owner(), 1, 1, vec![entry(1, What::Put(id(0), vec![1]))]);
    assert_eq!(answer(&mut vault), refused);
}

/// Of an owner whose chunks nobody reads.
struct Empty;

impl ChunkStore for Empty {
    fn read(&mut self, _: ChunkId, _: &mut dyn FnMut(&[u8])) -> bool {
        false
    }

    fn write(&mut self, _: ChunkId, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove(&mut self, _: ChunkId) -> bool {
        false
    }
}

#[test]
fn the_only_backup_is_left_out_only_when_it_is_gone() {
    let other = Peer { node: NodeId::new(2).expect("a node"), incarnation: 1 };
    let settings = CopySettings { backups: 3, ..CopySettings::default() };
    let mut copies = Copies::new(owner(), settings);
    assert!(!copies.is_ready(), "it does not know who else there is");
    copies.set_members([owner(), other].into_iter());
    assert!(copies.is_ready());
    copies.own(ids(0, 10), vec![other]);
    assert!(copies.accepts(id(1)));
    copies.write(id(1), What::Put(id(1), vec![1]), Vec::new());
    copies.flush(0, &mut Vec::new());
    let tick = |copies: &mut Copies, now_ms| {
        let mut out = Vec::new();
        copies.on_tick(now_ms, &|_| false, &mut Empty, &|_| Vec::new(), &mut out);
        out
    };
    for now_ms in [10, 100, 1_000, 10_000] {
        assert_eq!(tick(&mut copies, now_ms), [], "perhaps it is this node that is cut off");
        assert!(copies.awaited(id(1)).is_some());
        copies.take_done(|version| panic!("{version} has one copy"));
    }
    copies.set_members([owner()].into_iter());
    assert_eq!(tick(&mut copies, 11_000), [Wanted::Commit(1, ids(0, 10), Vec::new())]);
    copies.on_committed(1, Ok(5));
    let mut done = Vec::new();
    copies.take_done(|version| done.push(version));
    assert_eq!(done, [1], "it is alone");
}
