//! Tests of what embedders rely on, for every engine.

use std::time::Duration;

use super::{Engine, InsertError, Map, MapBuilder};
use crate::{HotRingR, HotRingS, Memc3, Mercury, Pipeline};

fn map<E: Engine>() -> Map<E> {
    MapBuilder::new()
        .memory_bytes(8 << 20)
        .max_item_bytes(1 << 16)
        .handles(4)
        .open()
        .expect("opens")
}

fn answers<E: Engine>() {
    let map = map::<E>();
    let mut handle = map.handle();
    assert_eq!(handle.get(b"key"), None);
    assert_eq!(handle.insert(b"key", b"one"), Ok(()));
    assert_eq!(handle.insert(b"key", b"two"), Ok(()));
    assert_eq!(handle.insert_if_absent(b"key", b"three"), Ok(false));
    assert_eq!(handle.insert_if_absent(b"other", b"four"), Ok(true));
    assert_eq!(handle.get_with(b"key", <[u8]>::len), Some(3));
    assert_eq!(map.len(), 2);
    assert!(handle.remove(b"key") && !handle.remove(b"key") && !handle.contains(b"key"));
    assert_eq!(map.handle().get(b"other").as_deref(), Some(&b"four"[..]));
}

#[test]
fn each_engine_answers() {
    answers::<Mercury>();
    answers::<Memc3>();
    answers::<HotRingR>();
    answers::<HotRingS>();
    answers::<Pipeline>();
}

#[test]
fn keys_that_no_item_can_have_miss_or_are_refused() {
    let map: Map = map();
    let mut handle = map.handle();
    let long = [b'k'; 251];
    for key in [&b""[..], &long] {
        assert_eq!(handle.insert(key, b"value"), Err(InsertError::KeyLength));
        assert!(!handle.remove(key) && !handle.expire_after(key, Duration::from_secs(1)));
        assert_eq!(handle.get(key), None);
    }
    assert_eq!(handle.insert(&long[1..], &[0; 1 << 17]), Err(InsertError::TooLarge));
    assert_eq!(handle.insert(&long[1..], b""), Ok(()));
    assert_eq!(handle.get(&long[1..]), Some(Vec::new()));
}

/// The list is longer than a batch, contains invalid keys, and does not end with a whole batch.
#[test]
fn positions_are_those_of_the_keys() {
    let map: Map<Memc3> = map();
    let mut handle = map.handle();
    let names: Vec<String> = (0..150).map(|number| format!("key {number}")).collect();
    for name in names.iter().step_by(3) {
        assert_eq!(handle.insert(name.as_bytes(), name.as_bytes()), Ok(()));
    }
    let mut keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    keys[1] = b"";
    keys[70] = &[b'k'; 300];
    let mut seen = Vec::new();
    let found = handle.get_many(&keys, |position, value| {
        assert_eq!(value, names[position].as_bytes());
        seen.push(position);
    });
    assert_eq!(found, 50);
    assert_eq!(seen, (0..150).step_by(3).collect::<Vec<_>>());
    assert_eq!(handle.get_many(&[], |_, _| ()), 0);
}

#[test]
fn items_expire() {
    let map: Map = map();
    let mut handle = map.handle();
    assert_eq!(handle.insert_for(b"short", b"1", Duration::from_millis(1)), Ok(()));
    assert_eq!(handle.insert_for(b"long", b"2", Duration::MAX), Ok(()));
    assert_eq!(handle.insert(b"cut", b"3"), Ok(()));
    assert!(handle.expire_after(b"cut", Duration::ZERO));
    // The clock ticks in seconds: the items expire at its second tick at the latest.
    while handle.contains(b"short") || handle.contains(b"cut") {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(handle.contains(b"long"));
}

#[test]
fn a_full_map_evicts_or_refuses() {
    let value = [7; 1000];
    let fill = |map: &Map| {
        let mut handle = map.handle();
        (0_u32..20_000).find_map(|number| handle.insert(&number.to_le_bytes(), &value).err())
    };
    let cache: Map = map();
    assert_eq!(fill(&cache), None);
    let statistics = cache.statistics();
    assert!(statistics.evictions > 0 && statistics.memory.used <= 8 << 20);
    let builder = MapBuilder::new().memory_bytes(8 << 20).refuses_when_full();
    assert_eq!(fill(&builder.open().expect("opens")), Some(InsertError::OutOfMemory));
}

#[test]
fn settings_that_make_no_sense_are_errors() {
    assert!(MapBuilder::new().memory_bytes(1).open::<Mercury>().is_err());
    assert!(MapBuilder::new().max_item_bytes(1 << 30).open::<Memc3>().is_err());
}

/// Threads insert, remove and read at once. Each owns its keys, so it knows their values.
#[test]
fn threads_share_a_map() {
    let map: Map<HotRingR> = map();
    std::thread::scope(|scope| {
        for thread in 0_u8..3 {
            let map = &map;
            scope.spawn(move || {
                let mut handle = map.handle();
                for round in 0_u32..3000 {
                    let key = [&[thread][..], &(round % 50).to_le_bytes()].concat();
                    assert_eq!(handle.insert(&key, &round.to_le_bytes()), Ok(()));
                    assert_eq!(handle.get(&key).as_deref(), Some(&round.to_le_bytes()[..]));
                    assert!(handle.remove(&key) && !handle.remove(&key));
                }
            });
        }
    });
    assert!(map.is_empty());
}
