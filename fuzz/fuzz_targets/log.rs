//! Segments of a backup's log that hold anything, under right checksums or wrong ones, and are then
//! used: what is read is what was replayed, and what is committed afterwards is still there when
//! the log is opened again, however much was cleaned meanwhile.
#![no_main]

use std::collections::BTreeMap;

use amalgam_cluster::log::{
    CleanedPart, Crash, Durability, Log, LogError, LogPosition, LogSettings, MemoryStorage,
    SEGMENT_BEGIN, Storage,
};
use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use libfuzzer_sys::fuzz_target;

const CLUSTER: u64 = 7;
const SEGMENT_BYTES: u32 = 512;
const SEGMENTS_MAX: u32 = 10;

const SETTINGS: LogSettings = LogSettings {
    segment_bytes: SEGMENT_BYTES,
    segments_max: SEGMENTS_MAX,
    durability: Durability::Synced,
};

/// A head with a right checksum.
fn head(version: u16, cluster: u64, sequence: u64) -> Vec<u8> {
    let mut head = b"AMLG".to_vec();
    head.extend_from_slice(&version.to_le_bytes());
    head.extend_from_slice(&[0; 2]);
    head.extend_from_slice(&cluster.to_le_bytes());
    head.extend_from_slice(&sequence.to_le_bytes());
    let sum = crc32c::crc32c(&head);
    head.extend_from_slice(&sum.to_le_bytes());
    head.extend_from_slice(&[0; 4]);
    head
}

/// Appends a record, or mark, with a right checksum.
fn record(segment: &mut Vec<u8>, sequence: u64, length: u32, bytes: &[u8]) {
    let mut sum = sequence.to_le_bytes().to_vec();
    sum.extend_from_slice(&(segment.len() as u32).to_le_bytes());
    sum.extend_from_slice(&length.to_le_bytes());
    sum.extend_from_slice(bytes);
    segment.extend_from_slice(&crc32c::crc32c(&sum).to_le_bytes());
    segment.extend_from_slice(&length.to_le_bytes());
    segment.extend_from_slice(bytes);
}

/// Segments as `script` says.
fn storage(script: &mut Script<'_>) -> MemoryStorage {
    let mut storage = MemoryStorage::default();
    for number in 0..u32::from(script.byte().unwrap_or(0) % 6) {
        let choice = script.byte().unwrap_or(0);
        let sequence = u64::from(choice >> 3) << (script.byte().unwrap_or(0) % 60);
        let mut segment = match choice % 8 {
            0 => script.bytes().to_vec(),
            1 => head(u16::from(choice >> 3), CLUSTER, sequence),
            _ => head(5, CLUSTER + u64::from(choice == 255), sequence),
        };
        for _ in 0..script.byte().unwrap_or(0) % 16 {
            let kind = script.byte().unwrap_or(0);
            let bytes = script.bytes();
            let vouches = u32::from(kind >> 7) << 31;
            match kind % 8 {
                0 => record(&mut segment, sequence, (1 << 31) - 1 | vouches, &[]),
                1 => record(&mut segment, sequence, vouches, &[]),
                2 => record(&mut segment, sequence, script.number() as u32 | vouches, bytes),
                3 => segment.extend_from_slice(bytes),
                _ => record(&mut segment, sequence, bytes.len() as u32 | vouches, bytes),
            }
        }
        // Most are as long as the log makes them.
        if choice % 8 < 7 {
            segment.resize(SEGMENT_BYTES as usize, 0);
        }
        storage.create(number, segment.len() as u32).expect("there is room");
        storage.write(number, 0, &segment).expect("it was created");
    }
    storage.sync().expect("memory");
    storage
}

type Records = BTreeMap<LogPosition, Vec<u8>>;

fn open(storage: MemoryStorage) -> Result<(Log<MemoryStorage>, Records), LogError> {
    let mut records = Records::new();
    let mut each = |position, record: &[u8]| drop(records.insert(position, record.to_vec()));
    let (log, replay) = Log::open(storage, CLUSTER, SETTINGS, &mut each)?;
    assert_eq!(replay.records, records.len() as u64, "each is passed on once");
    Ok((log, records))
}

/// Cleans one segment, if one is worth it.
fn clean(log: &mut Log<MemoryStorage>, records: &mut Records, bytes: u32) -> Result<(), LogError> {
    let Some(victim) = log.victim() else { return Ok(()) };
    let (mut from, mut length, mut parts) = (SEGMENT_BEGIN, bytes, 0);
    while let Some(part) = log.load_to_clean(victim, (from, length)) {
        parts += 1;
        assert!(parts <= 2 * SEGMENT_BYTES, "each part is behind the one before, or longer");
        let known = &*records;
        let mut is_live = |position: LogPosition, _: &[u8]| known.contains_key(&position);
        let CleanedPart { moved, next } = log.clean_part(&part, &mut is_live)?;
        for (old, new) in moved {
            let record = records.remove(&old).expect("it was live");
            records.insert(new, record);
        }
        let Some(next) = next else { break };
        length = if next == from { length.max(1).saturating_mul(2) } else { bytes };
        from = next;
    }
    // What could not be read again is lost with its segment.
    records.retain(|position, _| position.segment() != victim);
    log.retire(victim)
}

/// Whether the log goes on.
fn act(
    script: &mut Script<'_>,
    log: &mut Log<MemoryStorage>,
    records: &mut Records,
) -> Option<Result<(), LogError>> {
    let action = script.byte()?;
    let nth = usize::from(action >> 3);
    Some(match action % 8 {
        0..=2 => match log.append(&vec![action; script.number() % 600]) {
            Ok(position) => {
                records.insert(position, read(log, position).expect("it was just appended"));
                Ok(())
            }
            Err(LogError::Length | LogError::Full) => Ok(()),
            Err(error) => Err(error),
        },
        3 => log.commit(),
        4 => {
            if let Some(position) = records.keys().nth(nth).copied() {
                log.release(position);
                records.remove(&position);
            }
            Ok(())
        }
        5 => clean(log, records, u32::from(action) * 4).or_else(|error| match error {
            // There was no room for the live records: they are where they were.
            LogError::Full => Ok(()),
            error => Err(error),
        }),
        6 => log.vouch(),
        _ => {
            log.begin_incarnation(u32::from(action));
            Ok(())
        }
    })
}

fn read(log: &mut Log<MemoryStorage>, position: LogPosition) -> Option<Vec<u8>> {
    let mut read = None;
    log.load(vec![(position, ())]).each(|_, (), record| read = record.map(<[u8]>::to_vec));
    read
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let storage = storage(&mut script);
    let most = 16 * data.len() + (64 << 10);
    let Ok((mut log, mut records)) = memory::within(most, || open(storage)) else { return };
    while let Some(result) = act(&mut script, &mut log, &mut records) {
        if result.is_err() {
            return;
        }
    }
    for (position, record) in &records {
        assert_eq!(read(&mut log, *position).as_ref(), Some(record), "{position:?}");
    }
    if log.commit().is_err() {
        return;
    }
    let mut storage = log.into_storage();
    storage.crash(Crash::Power { writes: 0, bytes: 0 });
    let (_, again) = open(storage).expect("it opened before");
    for (position, record) in &records {
        assert_eq!(again.get(position), Some(record), "what was committed comes back");
    }
});
