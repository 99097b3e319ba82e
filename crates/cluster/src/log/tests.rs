//! The log against a list of records, with crashes at every byte.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const CLUSTER: u64 = 7;

fn settings(durability: Durability) -> LogSettings {
    LogSettings { segment_bytes: 256, segments_max: 12, durability }
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
    let mut each = |_: LogPosition, record: &[u8]| records.push(record.to_vec());
    let opened = Log::open(storage, CLUSTER, settings(durability), &mut each);
    let (log, replay) = opened.expect("it opens");
    assert_eq!(replay.records as usize, records.len());
    (log, records, replay)
}

fn record(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) * 7 % 60]
}

/// Reads a record of a log whose storage does not wait.
fn read(log: &mut Log<MemoryStorage>, position: LogPosition) -> Option<Vec<u8>> {
    let mut read = None;
    log.load(vec![(position, ())]).each(|_, (), record| read = record.map(<[u8]>::to_vec));
    read
}

/// Cleans a whole segment in parts of N bytes; what was appended again.
fn clean(
    log: &mut Log<MemoryStorage>,
    victim: u32,
    bytes: u32,
    is_live: &mut dyn FnMut(LogPosition, &[u8]) -> bool,
) -> Result<Vec<Relocation>, LogError> {
    let (mut all, mut from, mut length) = (Vec::new(), SEGMENT_BEGIN, bytes);
    while let Some(part) = log.load_to_clean(victim, (from, length)) {
        let CleanedPart { moved, next } = log.clean_part(&part, is_live)?;
        all.extend(moved);
        let Some(next) = next else { break };
        (from, length) = (next, if next == from { 2 * length } else { bytes });
    }
    Ok(all)
}

#[test]
fn what_is_committed_comes_back_and_can_be_read() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    let mut places = Vec::new();
    for number in 1..20 {
        places.push(log.append(&record(number)).expect("there is room"));
        let last = places[places.len() - 1];
        assert_eq!(read(&mut log, last), Some(record(number)), "before it is written");
    }
    assert_eq!(log.commit(), Ok(()));
    for (number, place) in (1..).zip(&places) {
        assert_eq!(read(&mut log, *place), Some(record(number)));
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
        // The same operations on a medium that never syncs, to cut it off.
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

/// Any byte of any segment is damaged: at most one record is lost where the next can be found, the
/// loss is reported, nothing wrong is replayed, and a second replay gives the same result.
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
    assert_eq!(open(of_version(6), CLUSTER), LogError::Later(6));
    // Earlier formats are read, and report whether they count.
    for (version, is_current) in [(1, false), (2, true), (3, true), (4, true), (5, true)] {
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
    /// Keys are overwritten, segments cleaned in parts and the log reopened; the last version of
    /// each key is there, and segments are reused.
    #[test]
    fn a_map_on_the_log_is_a_map(
        steps in prop::collection::vec((0..12u8, 0..10u8), 1..400),
        part_bytes in 1..500_u32,
    ) {
        let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
        let mut model: BTreeMap<u8, (u32, LogPosition)> = BTreeMap::new();
        let encode = |key: u8, version: u32| {
            [&[key][..], &version.to_le_bytes(), &[key; 20]].concat()
        };
        for (version, (key, what)) in (1..).zip(steps) {
            if what == 0 {
                log.commit().expect("memory");
                let mut found: BTreeMap<u8, (u32, LogPosition)> = BTreeMap::new();
                let mut old = Vec::new();
                let mut each = |place: LogPosition, record: &[u8]| {
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
                let versions = |map: &BTreeMap<u8, (u32, LogPosition)>| -> Vec<(u8, u32)> {
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
                let mut is_live = |place: LogPosition, record: &[u8]| model[&record[0]].1 == place;
                let all = clean(&mut log, victim, part_bytes, &mut is_live).expect("memory");
                log.retire(victim).expect("memory");
                for (from, to) in all {
                    let moved = model.values_mut().find(|(_, place)| *place == from);
                    moved.expect("it is live").1 = to;
                }
            }
            prop_assert_eq!(read(&mut log, place).is_some(), model[&key].1 == place);
            let (live, used, free) = log.usage();
            let is_bounded = live <= 12 * 33 && used <= 9 && used + free <= 10;
            prop_assert!(is_bounded, "{} {} {}", live, used, free);
        }
        let mut places = Vec::new();
        for (key, (version, place)) in model {
            prop_assert_eq!(read(&mut log, place), Some(encode(key, version)));
            places.push((place, encode(key, version)));
        }
        let mut is_same = true;
        let mut next = 0;
        log.load(places.clone()).each(|place, expected, found| {
            let is_expected = places.contains(&(place, expected.clone()));
            is_same &= found == Some(expected.as_slice()) && is_expected;
            next += 1;
        });
        prop_assert_eq!(next, places.len());
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

/// Zeros over a head are written whole or up to some byte.
#[test]
fn a_head_that_was_being_freed_is_not_damage() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    log.append(b"gone").expect("there is room");
    log.commit().expect("memory");
    let whole = log.into_storage();
    for freed in 1..=32 {
        let mut storage = whole.clone();
        storage.segment(0).expect("it is there")[..freed].fill(0);
        let (_, records, replay) = open_with_replay(storage, Durability::Buffered);
        assert_eq!((records, replay.damages), (Vec::new(), Vec::new()), "{freed} bytes");
    }
}

/// A segment of a format in which lengths could not vouch.
fn segment_of_version_3(sequence: u64, records: &[Vec<u8>], is_complete: bool) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..6].copy_from_slice(b"AMLG\x03\0");
    bytes[8..16].copy_from_slice(&CLUSTER.to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
    let mut append = |length: u32, record: &[u8]| {
        let offset = bytes.len() as u32;
        let covered = [&sequence.to_le_bytes()[..], &offset.to_le_bytes(), &length.to_le_bytes()];
        let checksum = crc32c::crc32c(&[&covered.concat(), record].concat());
        bytes.extend([checksum.to_le_bytes(), length.to_le_bytes()].concat());
        bytes.extend(record);
    };
    records.iter().for_each(|record| append(record.len() as u32, record));
    if is_complete {
        append(u32::MAX, &[]);
    }
    bytes.resize(256, 0);
    bytes
}

#[test]
fn segments_of_the_version_before_are_read_and_count() {
    let records: Vec<Vec<u8>> = (1..=8).map(|number| vec![number; 12]).collect();
    let stored = |damaged: &[(u32, usize)]| {
        let mut storage = MemoryStorage::default();
        for (number, records) in (0..).zip(records.chunks(4)) {
            storage.create(number, 256).expect("memory");
            let bytes = segment_of_version_3(number.into(), records, number == 0);
            storage.write(number, 0, &bytes).expect("memory");
        }
        for (segment, record) in damaged {
            storage.segment(*segment).expect("it is there")[32 + record * 20 + 8] ^= 1;
        }
        storage
    };
    let (mut log, found, replay) = open_with_replay(stored(&[]), Durability::Synced);
    assert_eq!((&found, replay.damages, replay.is_current), (&records, Vec::new(), true));
    log.append(b"new").expect("there is room");
    log.commit().expect("memory");
    let (_, found, replay) = open_with_replay(log.into_storage(), Durability::Synced);
    assert_eq!((found.len(), found[8].as_slice(), replay.damages), (9, &b"new"[..], Vec::new()));
    // Damage at the end may be a torn write, but not with a valid record behind it.
    let (_, found, replay) = open_with_replay(stored(&[(1, 1), (1, 2)]), Durability::Synced);
    assert_eq!((found.len(), replay.was_torn, replay.damages), (5, true, Vec::new()));
    let (_, found, replay) = open_with_replay(stored(&[(1, 1)]), Durability::Synced);
    assert_eq!((found.len(), replay.was_torn, replay.damages.len()), (7, false, 1));
    // Its highest length bit does not vouch.
    let mut complete = stored(&[]);
    let bytes = segment_of_version_3(1, &records[4..], true);
    complete.write(1, 0, &bytes).expect("memory");
    let segment = complete.segment(1).expect("it is there");
    [1, 2].into_iter().for_each(|record| segment[32 + record * 20 + 8] ^= 1);
    let (_, found, replay) = open_with_replay(complete, Durability::Synced);
    assert_eq!((found.len(), replay.was_torn, replay.damages), (5, true, Vec::new()));
    // In other segments no write is torn.
    let (_, found, replay) = open_with_replay(stored(&[(0, 1), (0, 2)]), Durability::Synced);
    assert_eq!((found.len(), replay.was_torn, replay.damages.len()), (6, false, 1));
}

/// A value may contain the bytes of a valid record for its position.
#[test]
fn a_value_is_not_taken_apart() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    let first = log.append(b"first").expect("there is room");
    let mut value = vec![7; 60];
    format::encode(log.sequence(first), 32 + 13 + 8 + 60, &[9; 40], true, &mut value);
    log.append(&value).expect("there is room");
    log.commit().expect("memory");
    let (mut log, records) = open(log.into_storage(), Durability::Buffered);
    assert_eq!(records, [b"first".to_vec(), value.clone()]);
    for part_bytes in 1..200 {
        let mut moved = Vec::new();
        let mut is_live = |_: LogPosition, record: &[u8]| {
            moved.push(record.to_vec());
            false
        };
        clean(&mut log, first.segment, part_bytes, &mut is_live).expect("it reads");
        assert_eq!(moved, records, "in parts of {part_bytes}");
    }
}

/// A power loss undoes a segment's header and leaves its records. The next use has another
/// sequence, for which they do not count.
#[test]
fn numbers_of_uses_do_not_come_again() {
    for durability in [Durability::Buffered, Durability::Synced] {
        let (mut log, _) = open(MemoryStorage::default(), durability);
        log.append(&[1; 200]).expect("there is room");
        let mut begun = log.storage_mut().clone();
        begun.crash(Crash::Power { writes: 0, bytes: 0 });
        assert_eq!(begun.segment(0).expect("it is there")[..4], *b"AMLG", "the first is synced");
        for number in [2, 3] {
            log.append(&[number; 60]).expect("there is room");
        }
        log.commit().expect("memory");
        let mut storage = log.into_storage();
        storage.segment(1).expect("it was begun")[..32].fill(0);
        let (mut log, records) = open(storage, durability);
        assert_eq!(records, [vec![1; 200]]);
        log.append(&[4; 60]).expect("there is room");
        log.commit().expect("memory");
        let (_, records) = open(log.into_storage(), durability);
        assert_eq!(records, [vec![1; 200], vec![4; 60]], "the third is gone");
    }
}

/// Events of a machine with a syncing log that loses power.
#[derive(Clone, Copy, Debug)]
enum Step {
    Append(usize),
    Commit,
    Vouch,
    /// The oldest committed record is released.
    Release,
    /// After N syncs, or at once.
    End(Option<usize>, Crash),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let blocks = prop::sample::select(vec![32_usize, 64, 128]);
    let scattered = (blocks, any::<u64>())
        .prop_map(|(block_bytes, seed)| Crash::Scattered { block_bytes, seed });
    let torn =
        (0..6_usize, 0..200_usize).prop_map(|(writes, bytes)| Crash::Power { writes, bytes });
    let crash = prop_oneof![4 => scattered, 1 => torn, 1 => Just(Crash::Process)];
    let step = prop_oneof![
        // Few lengths, so that remains of one use lie where records of another end.
        8 => prop::sample::select(vec![0_usize, 4, 20, 52]).prop_map(Step::Append),
        4 => Just(Step::Commit),
        1 => Just(Step::Vouch),
        3 => Just(Step::Release),
        1 => (prop::option::weighted(0.7, 0..4_usize), crash)
            .prop_map(|(syncs, crash)| Step::End(syncs, crash)),
    ];
    prop::collection::vec(step, 1..300)
}

/// A log whose records are their numbers, and what it must contain.
struct Model {
    log: Log<MemoryStorage>,
    next: u32,
    appended: BTreeMap<u32, LogPosition>,
    committed: BTreeMap<u32, LogPosition>,
    /// Records that were lost for good before they were committed.
    gone: BTreeSet<u32>,
    /// The crash that follows a failed sync.
    end: Crash,
}

impl Model {
    fn number(record: &[u8]) -> u32 {
        u32::from_le_bytes(record[..4].try_into().expect("4 bytes"))
    }

    fn new() -> Self {
        let (log, _) = open(MemoryStorage::default(), Durability::Synced);
        let (appended, committed, gone) = Default::default();
        Self { log, next: 0, appended, committed, gone, end: Crash::Process }
    }

    fn crash(self, crash: Crash) -> Self {
        let Self { next, mut appended, committed, mut gone, .. } = self;
        let mut storage = self.log.into_storage();
        storage.crash(crash);
        storage.syncs_left = None;
        let (mut found, mut released) = (BTreeMap::new(), Vec::new());
        let mut each = |place: LogPosition, record: &[u8]| {
            let number = Self::number(record);
            assert!(number < next && record[4..].iter().all(|byte| *byte == number as u8));
            assert!(!gone.contains(&number), "{number} was gone");
            appended.remove(&number);
            // Some are there twice, and released records may be there again.
            let twice = match committed.contains_key(&number) {
                true => found.insert(number, place),
                false => Some(place),
            };
            released.extend(twice);
        };
        let settings = settings(Durability::Synced);
        let opened = Log::open(storage, CLUSTER, settings, &mut each).expect("it opens");
        let (mut log, replay) = opened;
        assert_eq!(replay.damages, Vec::new(), "nothing is damaged");
        assert!(found.keys().eq(committed.keys()), "{found:?} of {committed:?}");
        released.into_iter().for_each(|place| log.release(place));
        gone.extend(appended.into_keys());
        let (appended, committed) = (BTreeMap::new(), found);
        Self { log, next, appended, committed, gone, end: Crash::Process }
    }

    fn clean(&mut self) -> Result<(), LogError> {
        for _ in 0..4 {
            let Some(victim) = self.log.victim() else { break };
            let (committed, appended) = (&self.committed, &self.appended);
            let mut is_live = |place: LogPosition, record: &[u8]| {
                let number = Self::number(record);
                [committed, appended].into_iter().any(|map| map.get(&number) == Some(&place))
            };
            for (from, to) in clean(&mut self.log, victim, 64, &mut is_live)? {
                let mut places = self.committed.values_mut().chain(self.appended.values_mut());
                *places.find(|place| **place == from).expect("it is live") = to;
            }
            self.log.retire(victim)?;
            self.committed.append(&mut self.appended);
        }
        Ok(())
    }

    fn step(mut self, step: Step) -> Self {
        let result = match step {
            Step::Append(bytes) => {
                let number = self.next;
                let record = [&number.to_le_bytes()[..], &vec![number as u8; bytes]].concat();
                if self.committed.len() + self.appended.len() >= 16 {
                    return self;
                }
                self.next += 1;
                let place = self.log.append(&record);
                place.map(|place| {
                    self.appended.insert(number, place);
                })
            }
            Step::Commit => self.log.commit().map(|()| self.committed.append(&mut self.appended)),
            Step::Vouch => self.log.vouch().and_then(|()| self.log.vouch()),
            Step::Release => {
                if let Some((_, place)) = self.committed.pop_first() {
                    self.log.release(place);
                }
                self.clean()
            }
            Step::End(None, crash) => return self.crash(crash),
            Step::End(syncs, crash) => {
                self.log.storage_mut().syncs_left = syncs;
                self.end = crash;
                Ok(())
            }
        };
        match result {
            Err(LogError::Storage(_)) => {
                let end = self.end;
                self.crash(end)
            }
            _ => self,
        }
    }
}

proptest! {
    /// Unsynced writes reach the medium in part and in any order. None of that is taken for damage;
    /// otherwise no log would count when all nodes lose power.
    #[test]
    fn a_loss_of_power_is_never_taken_for_damage(steps in steps()) {
        let mut model = Model::new();
        for step in steps.into_iter().chain([Step::Commit, Step::End(None, Crash::Process)]) {
            model = model.step(step);
        }
    }

    /// Up to 64 consecutive bytes are damaged, behind which something vouches: the damage is
    /// reported, everything else is replayed, and the cleaner keeps it. Damage for which nothing
    /// vouches may be a torn write.
    #[test]
    fn damage_is_never_silent(
        groups in prop::collection::vec((prop::collection::vec(0..60_usize, 1..5), 0..5_u8), 2..9),
        (is_vouched, segment, at) in (any::<bool>(), any::<prop::sample::Index>(), 0..1_000_u32),
        changes in prop::collection::vec(1..=255_u8, 1..=64),
        part_bytes in 1..300_u32,
    ) {
        let settings = LogSettings { segments_max: 99, ..settings(Durability::Buffered) };
        let open = |storage| {
            let mut found = Vec::new();
            let mut each = |_: LogPosition, record: &[u8]| found.push(record.to_vec());
            let opened = Log::open(storage, CLUSTER, settings, &mut each);
            let (log, replay) = opened.expect("it opens");
            (log, found, replay)
        };
        let (mut log, _, _) = open(MemoryStorage::default());
        let (mut places, mut last, mut numbers) = (Vec::<(LogPosition, Vec<u8>)>::new(), None, 0..);
        for (sizes, idle) in groups {
            last = Some(places.len());
            for size in sizes {
                let record = vec![numbers.next().expect("one"); size + 1];
                places.push((log.append(&record).expect("there is room"), record));
            }
            log.commit().expect("memory");
            // Most commits are followed by something, or vouched for once only.
            (0..idle / 2).for_each(|_| log.vouch().expect("memory"));
        }
        if is_vouched {
            (0..2).for_each(|_| log.vouch().expect("memory"));
        }
        let end = |place: &LogPosition| place.offset + 8 + place.length;
        let newest = places.last().expect("one").0;
        // Nothing vouches for the last commit, and the records before it end where it begins.
        let is_before = |(place, _): &&(LogPosition, Vec<u8>)| place.segment == newest.segment;
        let before = places[..last.expect("one")].iter().rfind(is_before);
        let vouched = match before {
            _ if is_vouched => end(&newest),
            Some((place, _)) => end(place),
            None => 32,
        };
        let mut storage = log.into_storage();
        let segment = segment.index(newest.segment as usize + 1) as u32;
        let there = places.iter().map(|(place, _)| place).filter(|place| place.segment == segment);
        let limit = there.map(end).max().expect("one") + 8 * u32::from(segment < newest.segment);
        let begin = 32 + at % (limit - 32);
        let is_certain = segment < newest.segment || begin < vouched;
        let limit = if segment == newest.segment && is_certain { vouched } else { limit };
        let damaged = begin..limit.min(begin + changes.len() as u32);
        let bytes = storage.segment(segment).expect("it is there");
        for (at, change) in damaged.clone().zip(&changes) {
            bytes[at as usize] ^= change;
        }
        let is_hit = |place: &LogPosition| {
            place.segment == segment && place.offset < damaged.end && damaged.start < end(place)
        };
        let whole = places.iter().filter(|(place, _)| !is_hit(place));
        let whole: Vec<_> = whole.map(|(_, record)| record.clone()).collect();
        let (mut log, found, replay) = open(storage);
        prop_assert!(found.iter().all(|found| places.iter().any(|(_, one)| one == found)));
        if !is_certain {
            // The rest of the last commit may be missing, but nothing else.
            let others = places.iter().filter(|(place, _)| {
                place.segment < segment || end(place) <= vouched
            });
            prop_assert!(others.clone().all(|(_, record)| found.contains(record)));
            let is_said = replay.was_torn || !replay.damages.is_empty();
            prop_assert!(found.len() == places.len() || is_said);
            return Ok(());
        }
        prop_assert!(!replay.damages.is_empty(), "{damaged:?} of {segment}: {replay:?}");
        prop_assert!(replay.damages.iter().all(|damage| damage.segment == segment));
        prop_assert_eq!(&found, &whole);
        let moved = clean(&mut log, segment, part_bytes, &mut |_, _| true).expect("there is room");
        let moved: Vec<Vec<u8>> = moved
            .into_iter()
            .map(|(_, place)| read(&mut log, place).expect("it was appended again"))
            .collect();
        let there = places.iter().filter(|(place, _)| place.segment == segment && !is_hit(place));
        prop_assert!(moved.iter().eq(there.map(|(_, record)| record)), "the cleaner keeps it");
        let (_, _, replay) = open(log.into_storage());
        prop_assert!(!replay.damages.is_empty(), "it is said again");
    }
}

/// What is asked for is delivered as it was then: neither later writes nor another use of its
/// segment come in its place.
#[test]
fn records_are_loaded_late_or_not_at_all() {
    let (mut log, _) = open(MemoryStorage::default(), Durability::Buffered);
    let places: Vec<_> = (0..30).map(|n| log.append(&record(n)).expect("there is room")).collect();
    log.storage_mut().reads_late = true;
    let named = |places: &[LogPosition]| (0_u8..).zip(places).map(|(n, at)| (*at, n)).collect();
    let early = log.load(named(&places));
    log.commit().expect("memory");
    let late = log.load(named(&places));
    assert!(!early.is_loaded() && !late.is_loaded());
    let mut there = 0;
    late.each(|_, _, found| there += u8::from(found.is_some()));
    assert_eq!(there, 0, "nothing is read yet");
    log.storage_mut().deliver();
    assert!(early.is_loaded() && late.is_loaded());
    for loads in [early, late] {
        let mut next = 0;
        loads.each(|_, number, found| {
            assert_eq!((*number, found), (next, Some(&record(next)[..])));
            next += 1;
        });
        assert_eq!(next, 30);
    }
    // The first segment is used again before the medium reads.
    let reads = log.load(named(&places[..3]));
    log.retire(0).expect("memory");
    for number in 0..30 {
        log.append(&record(number)).expect("there is room");
    }
    log.commit().expect("memory");
    log.storage_mut().deliver();
    reads.each(|place, _, found| assert_eq!((place.segment, found), (0, None)));
}
