//! The log against a list of records, with crashes at every byte.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const CLUSTER: u64 = 7;

fn settings(durability: Durability) -> LogSettings {
    LogSettings { segment_bytes: 256, segments_max: 12, durability, clean_below_percent: 50 }
}

fn open(storage: MemoryStorage, durability: Durability) -> (Log<MemoryStorage>, Vec<Vec<u8>>) {
    let (log, records, _) = open_with_replay(storage, durability);
    (log, records)
}

fn open_with_replay(
    storage: MemoryStorage,
    durability: Durability,
) -> (Log<MemoryStorage>, Vec<Vec<u8>>, Replay) {
    let mut records = Vec::new();
    let mut each = |_: Place, record: &[u8]| records.push(record.to_vec());
    let opened = Log::open(storage, CLUSTER, settings(durability), &mut each);
    let (log, replay) = opened.expect("it opens");
    assert_eq!(replay.records as usize, records.len());
    (log, records, replay)
}

fn record(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) * 7 % 60]
}

#[test]
fn what_is_committed_comes_back_and_can_be_read() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    let mut places = Vec::new();
    for number in 1..20 {
        places.push(log.append(&record(number)).expect("there is room"));
        assert_eq!(log.read(places[places.len() - 1]), Ok(record(number)), "before it is written");
    }
    assert_eq!(log.commit(), Ok(()));
    for (number, place) in (1..).zip(&places) {
        assert_eq!(log.read(*place), Ok(record(number)));
    }
    let (_, records, replay) = open_with_replay(log.into_storage(), Durability::Buffered);
    assert_eq!(records, (1..20).map(record).collect::<Vec<_>>());
    assert_eq!((replay.was_torn, replay.damages), (false, Vec::new()));
}

/// Power is lost after any number of writes and any byte of the next one.
#[test]
fn a_write_torn_at_any_byte_costs_nothing_that_was_synced() {
    let mut safe = MemoryStorage::default();
    let mut committed = 0;
    for number in 1..=9 {
        let (mut log, before) = open(safe.clone(), Durability::Synced);
        assert_eq!(before.len(), committed, "what was committed is there");
        // Two records go together; the second commit is cut off.
        for part in [number, number + 100] {
            log.append(&record(part)).expect("there is room");
        }
        // The same again on a medium that never syncs, to cut it off.
        let mut buffered = safe.clone();
        buffered.sync().expect("memory");
        let (mut cut, _) = open(buffered, Durability::Buffered);
        for part in [number, number + 100] {
            cut.append(&record(part)).expect("there is room");
        }
        cut.commit().expect("memory");
        let written = cut.into_storage();
        for writes in 0..written.unsynced() {
            for bytes in 0..=256 {
                let mut storage = written.clone();
                storage.crash(Crash::Power { writes, bytes });
                let (_, records, replay) = open_with_replay(storage, Durability::Synced);
                assert_eq!(records[..committed], before[..], "{number} {writes} {bytes}");
                let tail = &records[committed..];
                let whole = [record(number), record(number + 100)];
                assert_eq!(tail, &whole[..tail.len()], "whole records, in their order");
                assert_eq!(replay.damages, Vec::new(), "{number} {writes} {bytes}");
            }
        }
        log.commit().expect("memory");
        committed += 2;
        safe = log.into_storage();
        assert_eq!(safe.unsynced(), 0, "all was synced before commit returned");
    }
}

/// Any byte of any segment is damaged: at most one record is lost where the next can be found, what
/// is lost is reported, nothing wrong is replayed, and a second replay says the same.
#[test]
fn damage_is_reported_and_what_is_whole_comes_back() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    let all: Vec<Vec<u8>> = (1..16).map(record).collect();
    for record in &all {
        log.append(record).expect("there is room");
    }
    log.commit().expect("memory");
    let whole = log.into_storage();
    let mut lost_most = 0;
    for (segment, length) in whole.clone().segments().expect("memory") {
        for at in 32..length as usize {
            let mut storage = whole.clone();
            storage.segment(segment).expect("it is there")[at] ^= 0x40;
            let (log, records, replay) = open_with_replay(storage, Durability::Buffered);
            assert!(records.iter().all(|record| all.contains(record)), "nothing is made up");
            let lost = all.len() - records.len();
            lost_most = lost_most.max(lost);
            let is_reported = replay.was_torn || !replay.damages.is_empty();
            assert!(lost == 0 || is_reported, "segment {segment}, byte {at}: {replay:?}");
            let (_, again) = open(log.into_storage(), Durability::Buffered);
            assert_eq!(again, records);
        }
    }
    assert!(lost_most >= 1);
}

#[test]
fn other_clusters_and_later_formats_are_refused() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    log.append(b"mine").expect("there is room");
    log.commit().expect("memory");
    let storage = log.into_storage();
    let open = |storage, cluster| {
        let opened = Log::open(storage, cluster, settings(Durability::Buffered), &mut |_, _| {});
        opened.map(|_| ()).expect_err("it is refused")
    };
    assert_eq!(open(storage.clone(), 8), LogError::Foreign(CLUSTER));
    let of_version = |version: u8| {
        let mut storage = storage.clone();
        let head = storage.segment(0).expect("it is there");
        head[4] = version;
        let checksum = crc32c::crc32c(&head[..24]).to_le_bytes();
        head[24..28].copy_from_slice(&checksum);
        storage
    };
    assert_eq!(open(of_version(4), CLUSTER), LogError::Later(4));
    // Those of formats before are read, and say whether they count.
    for (version, is_current) in [(1, false), (2, true), (3, true)] {
        let storage = of_version(version);
        let (_, records, replay) = open_with_replay(storage, Durability::Buffered);
        assert_eq!((&records[..], replay.is_current), (&[b"mine".to_vec()][..], is_current));
    }
}

#[test]
fn a_full_or_read_only_medium_says_so_and_loses_nothing() {
    let mut full = MemoryStorage::default();
    full.capacity_bytes = Some(600);
    let (mut log, _) = open(full, Durability::Synced);
    let mut kept = Vec::new();
    let error = loop {
        match log.append(&record(8)) {
            Ok(_) => kept.push(record(8)),
            Err(error) => break error,
        }
        log.commit().expect("there was room");
    };
    assert_eq!(error, LogError::Full);
    let (mut log, found) = open(log.into_storage(), Durability::Synced);
    assert_eq!(found, kept);
    log.append(&[]).expect_err("a record has bytes");
    log.append(&[1; 250]).expect_err("a record fits into a segment");
}

#[test]
fn after_a_failed_write_nothing_is_appended() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    log.append(b"one").expect("there is room");
    log.commit().expect("memory");
    let mut locked = log.storage_mut().clone();
    locked.is_read_only = true;
    let read_only = LogError::Storage(StorageError::ReadOnly);
    let opened = Log::open(locked, CLUSTER, settings(Durability::Buffered), &mut |_, _| {});
    assert_eq!(opened.map(|_| ()).err(), Some(read_only), "its end cannot be marked");
    log.storage_mut().is_read_only = true;
    log.append(b"two").expect("it is only remembered");
    let failed = Err(LogError::Storage(StorageError::ReadOnly));
    assert_eq!(log.commit(), failed);
    log.storage_mut().is_read_only = false;
    assert_eq!(log.append(b"three").map(|_| ()), failed, "nobody knows what was written");
    assert_eq!(log.commit(), failed);
    let (_, records) = open(log.into_storage(), Durability::Buffered);
    assert_eq!(records, [b"one"]);
}

proptest! {
    /// Keys are overwritten, segments cleaned in parts and the log opened anew; the last version of
    /// each key is there, and segments are used again rather than made.
    #[test]
    fn a_map_on_the_log_is_a_map(
        steps in prop::collection::vec((0..12u8, 0..10u8), 1..400),
        part_bytes in 1..500_u32,
    ) {
        let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
        let mut model: BTreeMap<u8, (u32, Place)> = BTreeMap::new();
        let encode = |key: u8, version: u32| {
            [&[key][..], &version.to_le_bytes(), &[key; 20]].concat()
        };
        for (version, (key, what)) in (1..).zip(steps) {
            if what == 0 {
                log.commit().expect("memory");
                let mut found: BTreeMap<u8, (u32, Place)> = BTreeMap::new();
                let mut old = Vec::new();
                let mut each = |place: Place, record: &[u8]| {
                    let number = u32::from_le_bytes(record[1..5].try_into().expect("4 bytes"));
                    match found.get(&record[0]) {
                        Some((held, _)) if *held >= number => old.push(place),
                        _ => old.extend(found.insert(record[0], (number, place)).map(|(_, at)| at)),
                    }
                };
                let storage = log.into_storage();
                let (opened, replay) =
                    Log::open(storage, CLUSTER, settings(Durability::Buffered), &mut each)
                        .expect("it opens");
                prop_assert_eq!(replay.damages, Vec::new());
                log = opened;
                old.into_iter().for_each(|place| log.release(place));
                let versions = |map: &BTreeMap<u8, (u32, Place)>| -> Vec<(u8, u32)> {
                    map.iter().map(|(key, (version, _))| (*key, *version)).collect()
                };
                prop_assert_eq!(versions(&found), versions(&model));
                model = found;
            }
            let place = log.append(&encode(key, version)).expect("the cleaner makes room");
            if let Some((_, old)) = model.insert(key, (version, place)) {
                log.release(old);
            }
            while let Some(victim) = log.victim() {
                let mut is_live = |place: Place, record: &[u8]| model[&record[0]].1 == place;
                let mut all = Vec::new();
                let mut from = Some(SEGMENT_BEGIN);
                while let Some(begin) = from {
                    let part = (begin, part_bytes);
                    let cleaned = log.clean_part(victim, part, &mut is_live);
                    let (moved, next) = cleaned.expect("memory");
                    all.extend(moved);
                    from = next;
                }
                log.retire(victim).expect("memory");
                for (from, to) in all {
                    let moved = model.values_mut().find(|(_, place)| *place == from);
                    moved.expect("it is live").1 = to;
                }
            }
            prop_assert_eq!(log.read(place).is_ok(), model[&key].1 == place);
            let (live, used, free) = log.usage();
            prop_assert!(live <= 12 * 33 && used + free <= 6, "{} {} {}", live, used, free);
        }
        let mut places = Vec::new();
        for (key, (version, place)) in model {
            prop_assert_eq!(log.read(place), Ok(encode(key, version)));
            places.push((place, encode(key, version)));
        }
        let mut is_same = true;
        log.read_many(&mut places, &mut |expected, found| {
            is_same &= found == Some(expected.as_slice());
        });
        prop_assert!(is_same, "together as one by one");
    }
}

/// A segment whose head is damaged is not one that was never used.
#[test]
fn a_damaged_head_is_reported() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    for number in 0..30 {
        log.append(&record(number)).expect("there is room");
    }
    log.commit().expect("memory");
    let whole = log.into_storage();
    let segments = whole.clone().segments().expect("memory");
    assert!(segments.len() > 1);
    for (segment, _) in segments {
        for at in 0..28 {
            let mut storage = whole.clone();
            storage.segment(segment).expect("it is there")[at] ^= 0x40;
            let (mut log, _, replay) = open_with_replay(storage, Durability::Buffered);
            let damages = [Damage { segment, offset: 0 }];
            assert_eq!(replay.damages, damages, "segment {segment}, byte {at}");
            log.retire_all().expect("memory");
            let (_, _, replay) = open_with_replay(log.into_storage(), Durability::Buffered);
            assert_eq!((replay.damages, replay.records), (Vec::new(), 0), "it is free");
        }
    }
}

/// Neighbours that are damaged end neither the log nor what the cleaner keeps.
#[test]
fn what_follows_several_damaged_records_is_found() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    let all: Vec<Vec<u8>> = (1..6).map(|_| vec![7; 9]).collect();
    let places: Vec<Place> =
        all.iter().map(|record| log.append(record).expect("there is room")).collect();
    log.commit().expect("memory");
    let mut storage = log.into_storage();
    let segment = storage.segment(0).expect("it is there");
    // The bytes of the second and third, past checksum and length.
    (32 + 17 + 8..32 + 3 * 17).filter(|at| (at - 32) % 17 >= 8).for_each(|at| segment[at] ^= 1);
    let (mut log, records, replay) = open_with_replay(storage, Durability::Buffered);
    assert_eq!(records.len(), 3, "{places:?}");
    assert!(!replay.damages.is_empty() && !replay.was_torn);
    let (moved, next) = log.clean_part(0, (SEGMENT_BEGIN, 4), &mut |_, _| true).expect("it reads");
    let mut moved = moved.len();
    let mut next = next;
    while let Some(from) = next {
        let (more, after) = log.clean_part(0, (from, 4), &mut |_, _| true).expect("it reads");
        (moved, next) = (moved + more.len(), after);
    }
    assert_eq!(moved, 3, "the cleaner keeps what is whole");
}
