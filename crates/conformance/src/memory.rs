//! Bounded memory: it evicts or refuses, never grows, and nothing starves.

use amalgam_index::{Configuration, Engine, MemoryStatistics, Worker};
use amalgam_op::{HashSeed, Now, Outcome, StoreMode};

use crate::harness::{Random, Session, configuration, effort, open, stored, with_maintenance};

const LIMIT: usize = 32 << 20;

fn settings(evicts: bool) -> Configuration {
    Configuration { memory_bytes: LIMIT, evicts, workers: 4, ..configuration() }
}

fn assert_bounded(memory: &MemoryStatistics) {
    assert!(memory.used <= memory.limit, "more in use than allowed: {memory:?}");
    assert!(memory.items <= memory.used, "items lie within what is used: {memory:?}");
}

fn name(number: usize) -> Vec<u8> {
    format!("key {number:08}").into_bytes()
}

/// A value that tells which key it belongs to.
fn value(number: usize, length: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(length).collect()
}

/// How many stores make a turn, with a slice of background work: a few hundred kilobytes.
fn turn_every(length: usize) -> usize {
    ((256 << 10) / (length + 1)).clamp(1, 64)
}

/// Stores until memory is full; returns how many keys were stored.
fn fill<I: Engine>(session: &mut Session<'_, I>, length: usize) -> usize {
    for number in 0.. {
        assert!(number * (length + 12) < 2 * LIMIT, "the limit bounds what is stored");
        match session.store(StoreMode::Set, &name(number), &value(number, length)) {
            Outcome::Stored(_) => {}
            Outcome::OutOfMemory => return number,
            other => panic!("{other:?} is no answer to set"),
        }
        if number % 64 == 0 {
            session.worker_turn();
        }
    }
    unreachable!("the loop has no end")
}

/// While memory is free, nothing is evicted: the table grows, however small it was at first.
pub fn growth_loses_nothing<I: Engine>() {
    for seed in 0..4 * effort() as u64 {
        let seed = HashSeed::new(seed);
        let index: I = open(&Configuration { expected_items: 1000, seed, ..settings(true) });
        with_maintenance(&index, Now::at(10), || {
            let mut session = Session::new(&index);
            for number in 0..20_000 {
                session.set(&name(number), b"stays");
                let (new, old) = (name(number), name(number / 2));
                let found = session.get_batch(&[&new, &old]);
                assert!(found.iter().all(Option::is_some), "lost one at {number}: {found:?}");
            }
        });
        assert_eq!(index.statistics().evictions, 0);
    }
}

/// A cache takes several times its memory, evicts, stays within its limit, and keeps most of it
/// in use. What is there is right.
pub fn cache_evicts<I: Engine>() {
    let index: I = open(&settings(true));
    let mut session = Session::new(&index);
    for length in [100, 2000, 30_000] {
        let keys = 2 * LIMIT / (length + 60);
        for number in 0..keys {
            let outcome = session.store(StoreMode::Set, &name(number), &value(number, length));
            assert_eq!(outcome, stored(length), "key {number} of length {length}");
            if number % turn_every(length) == 0 {
                session.now.seconds += 1;
                session.worker_turn();
                assert_bounded(&index.statistics().memory);
            }
        }
        let mut bytes = 0;
        for number in 0..keys {
            if let Some(found) = session.value(&name(number)) {
                assert_eq!(found, value(number, length), "key {number}");
                bytes += 12 + length;
            }
        }
        assert!(bytes > LIMIT / 4, "length {length}: only {bytes} of {LIMIT} bytes serve");
    }
    let statistics = index.statistics();
    assert!(statistics.evictions > 0, "{statistics:?}");
    assert_eq!(statistics.out_of_memory, 0, "{statistics:?}");
}

/// In a full cache an item that grows by appends, through size classes in which nothing else lives,
/// is not evicted to make room for itself.
pub fn growing_item_stays<I: Engine>() {
    let index: I = open(&settings(true));
    let mut session = Session::new(&index);
    for number in 0..2 * LIMIT / 300_000 {
        session.set(&name(number), &value(number, 200_000 + number % 200 * 1000));
    }
    let part = [b'x'; 50];
    session.set(b"grows", &part);
    for count in 2..=2000 {
        let outcome = session.store(StoreMode::Append, b"grows", &part);
        assert_eq!(outcome, stored(count * part.len()), "append {count}");
        let found = session.value(b"grows").map(|value| value.len());
        assert_eq!(found, Some(count * part.len()), "append {count}");
    }
}

/// A worker that rests keeps no free memory: in a full cache, others store items of sizes that were
/// not there before.
pub fn resting_workers_keep_nothing<I: Engine>() {
    let index: I = open(&settings(true));
    let mut sessions: Vec<_> = (0..4).map(|_| Session::new(&index)).collect();
    for number in 0..2 * LIMIT / 200 {
        sessions[0].set(&name(number), &value(number, 200));
        if number % 64 == 0 {
            sessions[0].worker_turn();
        }
    }
    for length in [1000, 3000, 11_000, 40_000] {
        for number in 0..4 * sessions.len() {
            let session = &mut sessions[number / 4];
            let outcome = session.store(StoreMode::Set, &name(number), &value(number, length));
            assert_eq!(outcome, stored(length), "item {number} of length {length}");
            while session.worker.rest() {}
        }
    }
}

/// Full and told to refuse: reads, deletes and counting go on; deleting makes room again.
pub fn refuses_when_full<I: Engine>() {
    let index: I = open(&settings(false));
    let mut session = Session::new(&index);
    session.set(b"counter", b"1000");
    let keys = fill(&mut session, 200);
    assert!(keys * 212 > LIMIT / 3, "only {keys} items of 212 bytes fit {LIMIT} bytes");
    assert_bounded(&index.statistics().memory);
    assert_eq!(index.statistics().evictions, 0, "nobody asked to evict");
    assert!(index.statistics().out_of_memory > 0);
    for number in 0..keys {
        assert_eq!(session.value(&name(number)), Some(value(number, 200)), "key {number}");
    }
    assert_eq!(session.value(&name(keys)), None, "refused means not stored");
    // The failed store of a present key leaves the old value.
    let large = vec![1; 500_000];
    if session.store(StoreMode::Set, &name(0), &large) == Outcome::OutOfMemory {
        assert_eq!(session.value(&name(0)), Some(value(0, 200)));
    }
    for number in 0..keys / 2 {
        assert_eq!(session.delete(&name(number)), Outcome::Deleted);
    }
    session.settle();
    for number in 0..keys / 4 {
        let outcome = session.store(StoreMode::Set, &name(number), &value(number, 200));
        assert_eq!(outcome, stored(200), "there is room for key {number} of {keys} again");
        session.worker.quiesce();
    }
    assert!(session.value(b"counter").is_some());
    assert_bounded(&index.statistics().memory);
}

/// After small items filled everything, larger ones get memory, and the other way round. An engine
/// may move memory by the clock, so seconds pass.
pub fn no_size_starves<I: Engine>() {
    let index: I = open(&settings(true));
    let mut session = Session::new(&index);
    for length in [60, 400, 100_000, 10, 2000, 500_000, 900_000, 100] {
        let keys = LIMIT / (length + 60);
        for number in 0..keys {
            let outcome = session.store(StoreMode::Set, &name(number), &value(number, length));
            assert_eq!(outcome, stored(length), "key {number} of {keys}, length {length}");
            if number % turn_every(length) == 0 {
                session.now.seconds += 1;
                session.worker_turn();
            }
        }
        let last = keys - 1;
        assert_eq!(session.value(&name(last)), Some(value(last, length)), "length {length}");
        let recent = LIMIT / 16 / (length + 60);
        let found = (keys - recent..keys).filter(|number| session.get(&name(*number)).is_some());
        let found = found.count();
        assert!(found * 2 >= recent, "{found} of {recent} of length {length} are there");
        assert_bounded(&index.statistics().memory);
    }
}

/// Nothing leaks: as many items fit the third time as the first, of one size or another.
pub fn memory_returns<I: Engine>() {
    let index: I = open(&settings(false));
    let mut session = Session::new(&index);
    let mut first: Vec<Option<usize>> = vec![None; 3];
    for round in 0..3 {
        for (place, length) in [100, 3000, 40_000].into_iter().enumerate() {
            let keys = fill(&mut session, length);
            let before = *first[place].get_or_insert(keys);
            assert!(keys * 10 >= before * 9, "round {round}: {keys} of length {length}, {before}");
            for number in 0..keys {
                assert_eq!(session.delete(&name(number)), Outcome::Deleted);
            }
            session.settle();
            let statistics = index.statistics();
            assert_eq!(statistics.items, 0);
            assert_eq!(statistics.memory.items, 0, "{:?}", statistics.memory);
        }
    }
}

/// Replacing, growing and shrinking values in place of each other leaks nothing either.
pub fn churn<I: Engine>() {
    let index: I = open(&settings(false));
    let mut session = Session::new(&index);
    let mut random = Random(5);
    let keys = 500;
    for turn in 0..100_000 * effort() {
        let name = name(random.below(keys));
        let length = 1 << random.below(14);
        let value = vec![turn as u8; random.below(length)];
        match random.below(10) {
            0 => drop(session.delete(&name)),
            // At most 500 items of 16 KiB: far below the limit.
            _ => assert_eq!(
                session.store(StoreMode::Set, &name, &value),
                stored(value.len()),
                "turn {turn}: {:?}",
                index.statistics().memory
            ),
        }
        if turn % 16 == 0 {
            session.worker_turn();
        }
    }
    assert_bounded(&index.statistics().memory);
}

/// A lower limit takes hold over time, a higher one at once.
pub fn limit_changes<I: Engine>() {
    let index: I = open(&settings(true));
    let mut session = Session::new(&index);
    let length = 500;
    let store_some = |session: &mut Session<'_, I>| {
        for number in 0..2 * LIMIT / length {
            session.set(&name(number), &value(number, length));
            if number % 32 == 0 {
                session.worker_turn();
            }
        }
        session.settle();
        session.index.statistics()
    };
    let full = store_some(&mut session);
    index.set_memory_limit(LIMIT / 2);
    let half = store_some(&mut session);
    assert_bounded(&half.memory);
    assert!(half.items < full.items * 3 / 4, "{} of {} items", half.items, full.items);
    index.set_memory_limit(LIMIT);
    let again = store_some(&mut session);
    assert!(again.items > half.items * 5 / 4, "{} after {} items", again.items, half.items);
}
