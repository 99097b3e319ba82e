//! Expiry, flush generations, and taking dead items back.

use std::ops::ControlFlow;

use amalgam_index::{Cursor, Engine, Worker};
use amalgam_op::{Arithmetic, Get, Outcome, Store, StoreMode, Verb};

use crate::harness::{Session, configuration, open, stored};

fn set<I: Engine>(session: &mut Session<'_, I>, key: &[u8], expiry: i64) {
    let store = Store::new(StoreMode::Set, b"value", 0, expiry);
    assert_eq!(session.apply(key, Verb::Store(store)).0, stored(5));
}

/// Relative, absolute, negative and no expiry, at their exact seconds.
pub fn expiry<I: Engine>() {
    const DAYS_30: i64 = 60 * 60 * 24 * 30;
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    session.now.epoch_unix_seconds = 1_700_000_000;
    let start = session.now.seconds;
    let unix = |seconds: u32| 1_700_000_000 + i64::from(seconds);
    // (as the client sends it, the last second at which it answers)
    let cases: [(i64, Option<u32>); 8] = [
        (0, Some(u32::MAX)),
        (-1, None),
        (i64::MIN, None),
        (1, Some(start)),
        (100, Some(start + 99)),
        (DAYS_30, Some(start + DAYS_30 as u32 - 1)),
        (unix(start + 500), Some(start + 499)),
        // A Unix time that is over, however far.
        (DAYS_30 + 1, None),
    ];
    for (expiry, last) in cases {
        session.now.seconds = start;
        set(&mut session, b"k", expiry);
        let Some(last) = last else {
            assert!(session.get(b"k").is_none(), "{expiry} is over");
            continue;
        };
        for seconds in [start, last] {
            session.now.seconds = seconds;
            assert!(session.get(b"k").is_some(), "{expiry} at second {seconds}");
        }
        if last < u32::MAX {
            session.now.seconds = last + 1;
            assert!(session.get(b"k").is_none(), "{expiry} is over at second {}", last + 1);
        }
    }
}

/// To every verb an expired item is no item.
pub fn dead_to_every_verb<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let store = |mode| Verb::Store(Store::new(mode, b"1", 0, 0));
    let verbs = [
        (Verb::Get(Get::default()), Outcome::NotFound),
        (Verb::Get(Get { touch: Some(100), ..Get::default() }), Outcome::NotFound),
        (store(StoreMode::Replace), Outcome::NotStored),
        (store(StoreMode::Append), Outcome::NotStored),
        (store(StoreMode::Prepend), Outcome::NotStored),
        (Verb::Arithmetic(Arithmetic { delta: 1, ..Arithmetic::default() }), Outcome::NotFound),
        (Verb::Delete(amalgam_op::Delete::default()), Outcome::NotFound),
        (store(StoreMode::Add), stored(1)),
    ];
    for (verb, expected) in verbs {
        for flushed in [false, true] {
            set(&mut session, b"k", 10);
            if flushed {
                session.flush();
            } else {
                session.now.seconds += 10;
            }
            assert_eq!(session.apply(b"k", verb).0, expected, "{verb:?}, flushed: {flushed}");
            session.delete(b"k");
        }
    }
}

/// A flush ends what was there before and nothing after; generations wrap around.
pub fn flush<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for round in 0..200_u32 {
        let old = format!("old {round}");
        session.set(old.as_bytes(), b"1");
        session.set(b"both", b"1");
        session.flush();
        assert!(session.get(old.as_bytes()).is_none(), "round {round}");
        assert!(session.get(b"both").is_none(), "round {round}");
        session.set(b"both", b"2");
        assert_eq!(session.value(b"both").as_deref(), Some(&b"2"[..]));
        // The contract of generations: a sweep removes the dead before their number comes again.
        session.sweep_to(1);
    }
}

/// A worker that sampled its time before a flush does not kill what came after.
pub fn newer_generation_is_alive<I: Engine>() {
    let index: I = open(&configuration());
    let mut early = Session::new(&index);
    let mut late = Session::new(&index);
    early.set(b"old", b"1");
    late.flush();
    late.set(b"new", b"2");
    assert!(early.get(b"new").is_some(), "alive to those who have not seen the flush");
    assert!(late.get(b"old").is_none());
    early.set(b"slow", b"3");
    assert!(late.get(b"slow").is_none(), "written under the old generation");
}

/// Without any access, a sweep takes dead items back, and their memory serves again.
pub fn sweep<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for number in 0..10_000 {
        set(&mut session, format!("expires {number}").as_bytes(), 10);
        session.set(format!("stays {number}").as_bytes(), b"v");
    }
    session.now.seconds += 10;
    session.sweep_to(10_000);
    for number in 0..10_000 {
        assert!(session.get(format!("stays {number}").as_bytes()).is_some(), "{number}");
    }
    session.flush();
    session.sweep_to(0);
    let statistics = index.statistics();
    assert_eq!((statistics.items, statistics.reclaimed), (0, 20_000));
    assert_eq!(statistics.evictions, 0, "taking back the dead is no eviction");
}

/// When background work ends at a second, no item that had expired by then is left, whatever became
/// of the item since it was given its expiry, and no other is gone.
pub fn every_second_reclaims_what_has_expired<I: Engine>() {
    const KEYS: i64 = 2000;
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let large = vec![b'v'; 20_000];
    let mut expiries = Vec::new();
    for number in 0..KEYS {
        let (key, ttl) = (number.to_string(), 1 + number % 40);
        set(&mut session, key.as_bytes(), ttl);
        let ttl = match number % 6 {
            0 => {
                let get = Get { touch: Some(ttl + 7), ..Get::default() };
                let outcome = session.apply(key.as_bytes(), Verb::Get(get)).0;
                assert!(matches!(outcome, Outcome::Hit(_)), "{outcome:?}");
                ttl + 7
            }
            1 => {
                set(&mut session, key.as_bytes(), 0);
                continue;
            }
            2 => {
                session.delete(key.as_bytes());
                continue;
            }
            3 => {
                set(&mut session, key.as_bytes(), 45 - ttl);
                45 - ttl
            }
            4 if number % 5 == 0 => {
                let store = Store::new(StoreMode::Set, &large, 0, ttl);
                assert_eq!(session.apply(key.as_bytes(), Verb::Store(store)).0, stored(20_000));
                ttl
            }
            _ => ttl,
        };
        expiries.push(ttl);
    }
    let start = session.now.seconds;
    let immortal = (0..KEYS).filter(|number| number % 6 == 1).count();
    for second in 0..50 {
        session.now.seconds = start + second;
        session.settle();
        let live = expiries.iter().filter(|expiry| **expiry > i64::from(second)).count();
        assert_eq!(index.statistics().items, (live + immortal) as u64, "second {second}");
    }
}

/// The last access: a write of a whole item, or the first read after it; a quiet read is none.
pub fn last_access<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    // Seconds that every engine keeps exactly, and reads that are far enough apart to be noted.
    session.now.seconds = 10;
    set(&mut session, b"k", 0);
    for (seconds, is_quiet_access, last) in [(12, true, 10), (87, false, 87), (95, true, 87)] {
        session.now.seconds = seconds;
        let read = Verb::Get(Get { is_quiet_access, ..Get::default() });
        assert!(session.apply(b"k", read).1.is_some());
        assert_eq!(last_access_of_the_item(&mut session), Some(last), "at second {seconds}");
    }
    // Too long to be changed in place.
    session.set(b"k", b"another value");
    assert_eq!(last_access_of_the_item(&mut session), Some(95));
}

fn last_access_of_the_item<I: Engine>(session: &mut Session<'_, I>) -> Option<u32> {
    let (mut last, mut cursor) = (None, Some(Cursor::START));
    while let Some(from) = cursor {
        cursor = session.worker.scan(from, 64, &mut |item| {
            last = item.last_access_seconds;
            ControlFlow::Continue(())
        });
    }
    last
}
