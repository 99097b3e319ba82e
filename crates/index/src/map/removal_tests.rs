//! Tests of what a listener is told, for every engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Engine, Map, MapBuilder, RemovalCause};
use crate::{HotRingR, HotRingS, Memc3, Mercury, Pipeline};

type Told = Arc<Mutex<Vec<(Vec<u8>, Vec<u8>, RemovalCause)>>>;

fn open<E: Engine>(told: &Told) -> Map<E> {
    let told = Arc::clone(told);
    MapBuilder::new()
        .memory_bytes(8 << 20)
        .max_item_bytes(1 << 16)
        .handles(4)
        .on_removal(move |key, value, cause| {
            told.lock().expect("no panic").push((key.to_vec(), value.to_vec(), cause));
        })
        .open()
        .expect("opens")
}

fn take(told: &Told) -> Vec<(Vec<u8>, Vec<u8>, RemovalCause)> {
    std::mem::take(&mut *told.lock().expect("no panic"))
}

fn one(key: &[u8], value: &[u8], cause: RemovalCause) -> Vec<(Vec<u8>, Vec<u8>, RemovalCause)> {
    vec![(key.to_vec(), value.to_vec(), cause)]
}

fn tells_of_changes<E: Engine>() {
    let told = Told::default();
    let map: Map<E> = open(&told);
    let mut handle = map.handle();
    assert_eq!(handle.insert(b"key", b"one"), Ok(()));
    assert_eq!(handle.insert_if_absent(b"key", b"not stored"), Ok(false));
    assert_eq!(handle.get(b"key").as_deref(), Some(&b"one"[..]));
    assert_eq!(take(&told), []);
    assert_eq!(handle.insert_for(b"key", b"two", Duration::from_secs(1000)), Ok(()));
    assert_eq!(take(&told), one(b"key", b"one", RemovalCause::Replaced));
    assert_eq!(handle.update(b"key", |_| Some(b"three".to_vec())), Ok(true));
    assert_eq!(take(&told), one(b"key", b"two", RemovalCause::Replaced));
    assert!(handle.remove(b"key") && !handle.remove(b"key"));
    assert_eq!(take(&told), one(b"key", b"three", RemovalCause::Removed));
    assert_eq!(handle.increment(b"sum", 7), Ok(7));
    assert_eq!(take(&told), []);
    assert_eq!(handle.increment(b"sum", 5), Ok(12));
    assert_eq!(take(&told), one(b"sum", b"7", RemovalCause::Replaced));
    assert_eq!(handle.retain(|_, value| value != b"12"), 1);
    assert_eq!(take(&told), one(b"sum", b"12", RemovalCause::Removed));
}

/// Every item that was stored is there at the end, or was reported once with its value.
fn tells_of_each_item_once<E: Engine>() {
    const ITEMS: u32 = 20_000;
    let told = Told::default();
    let map: Map<E> = open(&told);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let map = &map;
            scope.spawn(move || {
                let mut handle = map.handle();
                let mut value = [7; 1000];
                for number in (thread..ITEMS).step_by(2) {
                    value[..4].copy_from_slice(&number.to_le_bytes());
                    let key = number.to_be_bytes();
                    let stored = match number % 3 {
                        0 => handle.insert_for(&key, &value, Duration::from_secs(1)),
                        _ => handle.insert(&key, &value),
                    };
                    assert_eq!(stored, Ok(()));
                }
            });
        }
    });
    let mut handle = map.handle();
    let is_expiring = |key: &[u8]| u32::from_be_bytes(key.try_into().expect("four")) % 3 == 0;
    // The background thread reclaims what has expired.
    loop {
        let mut left = 0;
        handle.for_each(|key, _| left += u32::from(is_expiring(key)));
        let told = told.lock().expect("no panic");
        if left == 0 && told.iter().any(|(_, _, cause)| *cause == RemovalCause::Expired) {
            break;
        }
        drop(told);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(handle.clear() > 0);
    let causes = |seen: &[(Vec<u8>, Vec<u8>, RemovalCause)]| {
        let mut causes = HashMap::new();
        seen.iter().for_each(|(_, _, cause)| *causes.entry(*cause).or_insert(0) += 1);
        causes
    };
    // An item that expired may be dead and not yet reclaimed.
    let mut seen = take(&told);
    while seen.len() < ITEMS as usize {
        std::thread::sleep(Duration::from_millis(20));
        seen.extend(take(&told));
    }
    assert_eq!(seen.len(), ITEMS as usize, "{:?}", causes(&seen));
    for (key, value, cause) in &seen {
        assert!(key.iter().eq(value[..4].iter().rev()), "{key:?} {cause:?}");
        assert!(*cause != RemovalCause::Expired || is_expiring(key), "{key:?}");
    }
    for cause in [RemovalCause::Evicted, RemovalCause::Expired, RemovalCause::Removed] {
        assert!(causes(&seen).contains_key(&cause), "{:?}", causes(&seen));
    }
    let keys: std::collections::HashSet<_> = seen.iter().map(|(key, ..)| key).collect();
    assert_eq!(keys.len(), ITEMS as usize);
}

macro_rules! for_each_engine {
    ($($name:ident: $engine:ty;)+) => {
        $(mod $name {
            #[test]
            fn a_listener_is_told_of_changes() {
                super::tells_of_changes::<$engine>();
            }

            #[test]
            fn a_listener_is_told_of_each_item_once() {
                super::tells_of_each_item_once::<$engine>();
            }
        })+
    };
}

for_each_engine! {
    mercury: super::Mercury;
    memc3: super::Memc3;
    hotring_r: super::HotRingR;
    hotring_s: super::HotRingS;
    pipeline: super::Pipeline;
}

/// A sum that threads count, so that each value but the last is replaced once.
#[test]
fn what_threads_replace_is_told_once() {
    const ROUNDS: u64 = 500;
    let told = Told::default();
    let map: Map = open(&told);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    map.with(|handle| handle.increment(b"sum", 1)).expect("a number");
                }
            });
        }
    });
    let mut sums: Vec<u64> = take(&told)
        .into_iter()
        .map(|(_, value, _)| String::from_utf8(value).expect("digits").parse().expect("digits"))
        .collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..3 * ROUNDS).collect::<Vec<_>>());
}

#[test]
fn a_listener_that_panics_ends_nothing() {
    let builder = MapBuilder::new().on_removal(|_, _, _| panic!("as expected"));
    let map: Map = builder.memory_bytes(8 << 20).max_item_bytes(1 << 16).open().expect("opens");
    let mut handle = map.handle();
    for number in 0_u32..20_000 {
        assert_eq!(handle.insert(&number.to_le_bytes(), &[7; 1000]), Ok(()));
        if map.statistics().evictions > 5 {
            break;
        }
    }
    assert!(map.statistics().evictions > 5 && map.owner.is_maintained());
    assert_eq!(handle.insert(b"key", b"one"), Ok(()));
    assert!(handle.remove(b"key"));
}
