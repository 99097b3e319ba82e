//! Tests of what embedders rely on, for every engine.

use std::time::Duration;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Engine, IncrementError, InsertError, Map, MapBuilder};
use amalgam_op::{Get, Verb};

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
fn items_live_for_longer_than_thirty_days() {
    let map: Map = map();
    let mut handle = map.handle();
    let day = 24 * 60 * 60;
    for days in [29, 30, 31, 400, 40_000] {
        let ttl = Duration::from_secs(days * day);
        assert_eq!(handle.insert_for(b"key", b"value", ttl), Ok(()));
        let now = map.owner.shared.now();
        let mut left = None;
        let get = Verb::Get(Get { wants_cas: true, ..Get::default() });
        handle.apply_with(b"key", get, |item| left = item.expiry.remaining_seconds(&now));
        let left = u64::from(left.expect("it expires"));
        assert!((ttl.as_secs() - 60..=ttl.as_secs()).contains(&left), "{days} days: {left}");
    }
}

/// What is decided by a value, by all threads at once, for every engine.
fn changes<E: Engine>() {
    const ROUNDS: u64 = 500;
    let map = map::<E>();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut handle = map.handle();
                for _ in 0..ROUNDS {
                    handle.increment(b"sum", 2).expect("a number");
                    let longer = |old: Option<&[u8]>| Some([old.unwrap_or(b""), b"x"].concat());
                    assert_eq!(handle.update(b"text", longer), Ok(true));
                }
            });
        }
    });
    let mut handle = map.handle();
    assert_eq!(handle.get(b"sum"), Some((3 * ROUNDS * 2).to_string().into_bytes()));
    assert_eq!(handle.get_with(b"text", <[u8]>::len), Some(3 * ROUNDS as usize));
    assert_eq!(handle.increment(b"text", 1), Err(IncrementError::NotANumber));
    let refused = IncrementError::Insert(InsertError::KeyLength);
    assert_eq!(handle.increment(b"", 1), Err(refused));
    assert_eq!(handle.update(b"", |_| Some(Vec::new())), Err(InsertError::KeyLength));
    assert_eq!(handle.update(b"text", |_| Some(vec![0; 1 << 17])), Err(InsertError::TooLarge));
    assert_eq!(handle.clear(), 2);
    assert!(handle.get(b"sum").is_none() && handle.get(b"text").is_none());
}

/// All items are visited, the unwanted ones removed, and no others.
fn visits<E: Engine>() {
    const ITEMS: u32 = 3000;
    let map = map::<E>();
    let mut handle = map.handle();
    for number in 0..ITEMS {
        assert_eq!(handle.insert(&number.to_be_bytes(), &number.to_le_bytes()), Ok(()));
    }
    let mut seen = std::collections::BTreeSet::new();
    handle.for_each(|key, value| {
        assert!(key.iter().eq(value.iter().rev()), "{key:?} {value:?}");
        seen.insert(key.to_vec());
    });
    assert_eq!(seen.len(), ITEMS as usize);
    let is_even = |_: &[u8], value: &[u8]| value[0].is_multiple_of(2);
    assert_eq!(handle.retain(is_even), u64::from(ITEMS / 2));
    assert_eq!(handle.retain(is_even), 0);
    assert!((0..ITEMS).all(|number| handle.contains(&number.to_be_bytes()) == (number % 2 == 0)));
    assert_eq!(handle.clear(), u64::from(ITEMS / 2));
    handle.for_each(|key, _| panic!("{key:?} is still there"));
}

#[test]
fn each_engine_changes_and_visits() {
    changes::<Mercury>();
    changes::<Memc3>();
    changes::<HotRingR>();
    changes::<HotRingS>();
    changes::<Pipeline>();
    visits::<Mercury>();
    visits::<Memc3>();
    visits::<HotRingR>();
    visits::<HotRingS>();
    visits::<Pipeline>();
}

#[test]
fn retain_spares_what_another_thread_stores_meanwhile() {
    let map: Map = map();
    let (mut handle, mut other) = (map.handle(), map.handle());
    assert_eq!(handle.insert(b"key", b"old"), Ok(()));
    let mut calls = 0;
    // The new value is stored between the two looks: at the scanned item, and under its id.
    let removed = handle.retain(|_, value| {
        calls += 1;
        if calls == 2 {
            assert_eq!(value, b"old");
            assert_eq!(other.insert(b"key", b"new"), Ok(()));
        }
        value == b"new"
    });
    assert_eq!((removed, calls), (0, 2));
    assert_eq!(handle.get(b"key").as_deref(), Some(&b"new"[..]));
}

#[test]
fn one_thread_makes_what_many_ask_for() {
    let map: Map = map();
    let (made, start) = (AtomicU32::new(0), Barrier::new(3));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut handle = map.handle();
                for round in 0_u32..200 {
                    start.wait();
                    let value = handle.get_or_insert_with(&round.to_le_bytes(), || {
                        std::thread::yield_now();
                        made.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec()
                    });
                    assert_eq!(value, Ok(round.to_le_bytes().to_vec()));
                    start.wait();
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 200);
}

#[test]
fn a_value_whose_making_panics_is_made_by_the_next() {
    let map: Map = map();
    let failed = std::thread::scope(|scope| {
        let fails = || map.handle().get_or_insert_with(b"key", || panic!("as expected"));
        scope.spawn(fails).join()
    });
    assert!(failed.is_err());
    let mut handle = map.handle();
    assert_eq!(handle.get_or_insert_with(b"key", || b"made".to_vec()), Ok(b"made".to_vec()));
    let refused = handle.get_or_insert_with(b"", || unreachable!("the key is refused"));
    assert_eq!(refused, Err(InsertError::KeyLength));
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
    for bytes in [1 << 44, 1 << 62, usize::MAX / 2, usize::MAX] {
        let refuses = |builder: MapBuilder| {
            let error = builder.open::<Mercury>().err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.contains("exceeds the address space")));
            assert!(builder.open::<Pipeline>().is_err());
        };
        refuses(MapBuilder::new().memory_bytes(bytes));
        refuses(MapBuilder::new().max_item_bytes(bytes));
    }
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
