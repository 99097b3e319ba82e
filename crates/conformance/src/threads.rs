//! Races: what many threads must never see.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use amalgam_index::{Configuration, Engine, Tuning, Worker};
use amalgam_op::{Outcome, StoreMode};

use crate::harness::{
    Random, Session, Stop, configuration, effort, number, open, stored, with_maintenance,
};

/// Threads of a race; more than the machine may have, so that some are always preempted.
const THREADS: usize = 4;

fn name(kind: &str, number: usize) -> Vec<u8> {
    format!("{kind} {number}").into_bytes()
}

/// Increments from all threads sum up exactly, while the number crosses lengths.
pub fn counters<I: Engine>() {
    const TURNS: usize = 5000;
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let counters = 3;
    for counter in 0..counters {
        session.set(&name("counter", counter), b"5");
    }
    let turns = TURNS * effort();
    with_maintenance(&index, session.now, || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let index = &index;
                scope.spawn(move || {
                    let mut session = Session::new(index);
                    let mut last = 0;
                    for turn in 0..turns {
                        // Everybody on one counter most of the time.
                        let counter = if turn % 8 == 0 { turn / 8 % counters } else { 0 };
                        let outcome = session.add(&name("counter", counter), 1);
                        let sum = number(outcome).expect("a number");
                        if counter == 0 {
                            assert!(sum > last, "thread {thread}: {sum} after {last}");
                            last = sum;
                        }
                        session.worker.quiesce();
                    }
                });
            }
        });
    });
    let sum: u64 = (0..counters)
        .map(|counter| number(session.add(&name("counter", counter), 0)).expect("a number") - 5)
        .sum();
    assert_eq!(sum, (THREADS * turns) as u64, "no increment is lost or done twice");
}

/// The byte that the list starts with, and no piece has.
const START: u8 = 0xff;

/// Appends and prepends from all threads: each byte arrives once, in its thread's order.
pub fn appends<I: Engine>() {
    const TURNS: usize = 1000;
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for round in 0..effort() {
        let key = name("list", round);
        session.set(&key, &[START]);
        with_maintenance(&index, session.now, || {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (index, key) = (&index, key.as_slice());
                    scope.spawn(move || {
                        let mut session = Session::new(index);
                        for turn in 0..TURNS {
                            let piece = [thread as u8, (turn % 251) as u8];
                            let (mode, piece) = match thread % 2 {
                                0 => (StoreMode::Append, piece),
                                _ => (StoreMode::Prepend, [piece[1], piece[0]]),
                            };
                            let outcome = session.store(mode, key, &piece);
                            assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
                            session.worker.quiesce();
                        }
                    });
                }
            });
        });
        let list = session.value(&key).expect("the list");
        assert_eq!(list.len(), 1 + 2 * THREADS * TURNS);
        let middle = list.iter().position(|byte| *byte == START).expect("the start");
        let mut before: Vec<u8> = list[..middle].to_vec();
        before.reverse();
        check_pieces(&list[middle + 1..], TURNS);
        check_pieces(&before, TURNS);
    }
}

fn check_pieces(pieces: &[u8], turns: usize) {
    let mut next = [0_usize; THREADS];
    for piece in pieces.chunks_exact(2) {
        let turn = &mut next[usize::from(piece[0])];
        assert_eq!(usize::from(piece[1]), *turn % 251, "in the order of thread {}", piece[0]);
        *turn += 1;
    }
    assert!(next.iter().all(|count| *count == 0 || *count == turns), "{next:?}");
}

/// One `add` of each key wins, one `delete` of each key finds it.
pub fn one_wins<I: Engine>() {
    let keys = 3000 * effort();
    let index: I = open(&configuration());
    let (added, deleted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let now = Session::new(&index).now;
    with_maintenance(&index, now, || {
        for is_adding in [true, false] {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (index, added, deleted) = (&index, &added, &deleted);
                    scope.spawn(move || {
                        let mut session = Session::new(index);
                        for turn in 0..keys {
                            // Neighbours meet at the same keys.
                            let key = name("key", (turn + thread * 3) % keys);
                            let won = match is_adding {
                                true => session.store(StoreMode::Add, &key, &[thread as u8; 20]),
                                false => session.delete(&key),
                            };
                            match won {
                                Outcome::Stored(_) => added.fetch_add(1, Ordering::Relaxed),
                                Outcome::Deleted => deleted.fetch_add(1, Ordering::Relaxed),
                                Outcome::NotStored | Outcome::NotFound => 0,
                                other => panic!("{other:?}"),
                            };
                            session.worker.quiesce();
                        }
                    });
                }
            });
        }
    });
    assert_eq!(added.into_inner(), keys, "each key is added once");
    assert_eq!(deleted.into_inner(), keys, "each key is deleted once");
    let mut session = Session::new(&index);
    session.settle();
    assert_eq!(index.statistics().items, 0);
}

/// A value that names its key and version and shows when it is torn.
fn versioned(key: usize, version: u64, length: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(length.max(16));
    value.extend_from_slice(&(key as u64).to_le_bytes());
    value.extend_from_slice(&version.to_le_bytes());
    value.resize(length.max(16), version as u8);
    value
}

/// The version of a value that must belong to `key` and be whole.
fn version_of(key: usize, value: &[u8]) -> u64 {
    let (head, rest) = value.split_at(16);
    assert_eq!(head[..8], (key as u64).to_le_bytes(), "the value belongs to its key");
    let version = u64::from_le_bytes(head[8..].try_into().expect("8 bytes"));
    assert!(rest.iter().all(|byte| *byte == version as u8), "the value is whole");
    version
}

/// A key that is always there is never missed, and never goes back in time, while its value is
/// replaced, its neighbours come and go, and the table grows from a few buckets on.
pub fn present_keys_are_found<I: Engine>() {
    const PRESENT: usize = 200;
    for round in 0..3 * effort() {
        let index: I = open(&Configuration { expected_items: 16, ..configuration() });
        let mut session = Session::new(&index);
        for key in 0..PRESENT {
            session.set(&name("present", key), &versioned(key, 0, 16));
        }
        let stop = AtomicBool::new(false);
        with_maintenance(&index, session.now, || {
            std::thread::scope(|scope| {
                let _stop = Stop(&stop);
                let readers: Vec<_> = (0..2)
                    .map(|reader| {
                        let (index, stop) = (&index, &stop);
                        scope.spawn(move || read_present(index, PRESENT, reader, stop))
                    })
                    .collect();
                let updater = {
                    let (index, stop) = (&index, &stop);
                    scope.spawn(move || update_present(index, PRESENT, stop))
                };
                // Neighbours: the table grows while this thread inserts, and empties again.
                for turn in 0..60_000 {
                    session.set(&name("neighbour", turn), b"here for a while");
                    if turn >= 20_000 {
                        session.delete(&name("neighbour", turn - 20_000));
                    }
                    session.worker.quiesce();
                }
                stop.store(true, Ordering::Relaxed);
                for reader in readers {
                    assert!(reader.join().expect("no reader panics") > 0, "round {round}");
                }
                assert!(updater.join().expect("the updater does not panic") > 0);
            });
        });
    }
}

/// A key that is always there is never missed in a table without room to spare, which does not
/// grow: where keys make way for each other, that happens all the time.
pub fn present_keys_make_way<I: Engine>() {
    const BUCKETS: usize = 256;
    const TURNS: usize = 40_000;
    let tuning = Tuning { buckets: Some(BUCKETS), grows: false, ..Tuning::default() };
    let index: I = open(&Configuration { evicts: false, tuning, ..configuration() });
    let mut session = Session::new(&index);
    // The table is full except for a few slots, in which the neighbours come and go. An engine
    // whose keys have one bucket each refuses keys earlier; its table counts as full then.
    let slots = (index.statistics().slots as usize).clamp(BUCKETS, 64 * BUCKETS);
    let neighbours = slots * 3 / 100;
    let mut set = |key: &usize| {
        session.store(StoreMode::Set, &name("present", *key), &versioned(*key, 0, 16))
    };
    let present = (0..slots * 93 / 100).take_while(|key| set(key) == stored(16)).count();
    assert!(present >= slots / 4, "only {present} of {slots} slots can be used");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (index, stop) = (&index, &stop);
                scope.spawn(move || read_present(index, present, reader, stop))
            })
            .collect();
        let mut room = 0;
        for turn in 0..TURNS * effort() {
            let outcome = session.store(StoreMode::Set, &name("neighbour", turn), b"for a while");
            room += usize::from(matches!(outcome, Outcome::Stored(_)));
            if let Some(oldest) = turn.checked_sub(neighbours) {
                session.delete(&name("neighbour", oldest));
            }
            session.worker.quiesce();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("no reader panics") > 0);
        }
        assert!(room > TURNS * effort() / 2, "neighbours find room: {room}");
    });
}

fn read_present<I: Engine>(index: &I, present: usize, reader: u64, stop: &AtomicBool) -> usize {
    let mut session = Session::new(index);
    let mut random = Random(reader);
    let mut newest = vec![0; present];
    let mut reads = 0;
    while !stop.load(Ordering::Relaxed) {
        let picks: Vec<_> = (0..=random.below(40)).map(|_| random.below(present)).collect();
        let names: Vec<_> = picks.iter().map(|key| name("present", *key)).collect();
        let keys: Vec<_> = names.iter().map(Vec::as_slice).collect();
        for (key, item) in picks.iter().zip(session.get_batch(&keys)) {
            let item = item.unwrap_or_else(|| panic!("missed present key {key}"));
            let version = version_of(*key, &item.value);
            assert!(version >= newest[*key], "{version} after {} of key {key}", newest[*key]);
            newest[*key] = version;
            reads += 1;
        }
        session.worker.quiesce();
    }
    reads
}

fn update_present<I: Engine>(index: &I, present: usize, stop: &AtomicBool) -> usize {
    let mut session = Session::new(index);
    let mut random = Random(99);
    let mut versions = vec![0; present];
    let mut writes = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = random.below(present);
        versions[key] += 1;
        let value = versioned(key, versions[key], 16 + random.below(200));
        let mode = if random.below(2) == 0 { StoreMode::Set } else { StoreMode::Replace };
        let outcome = session.store(mode, &name("present", key), &value);
        assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?} of present key {key}");
        writes += 1;
        session.worker.quiesce();
    }
    writes
}

/// Under eviction a key may go, but what its only writer sees is one story: a miss stays a miss
/// until the next write, and a hit shows the last write and no earlier one.
pub fn evicted_keys_stay_gone<I: Engine>() {
    const OWNED: usize = 20_000;
    let settings = Configuration { memory_bytes: 48 << 20, ..configuration() };
    let index: I = open(&settings);
    let now = Session::new(&index).now;
    with_maintenance(&index, now, || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS - 1 {
                let index = &index;
                scope.spawn(move || own_keys(index, thread * OWNED, OWNED, 60_000 * effort()));
            }
        });
    });
    let statistics = index.statistics();
    assert!(statistics.evictions > 0, "the race was about eviction: {statistics:?}");
    assert!(statistics.memory.used <= statistics.memory.limit, "{:?}", statistics.memory);
}

fn own_keys<I: Engine>(index: &I, first: usize, keys: usize, turns: usize) {
    let mut session = Session::new(index);
    let mut random = Random(first as u64);
    let mut written = vec![None; keys];
    for turn in 1..=turns as u64 {
        let pick = random.below(keys);
        let key = first + pick;
        let name = name("owned", key);
        match session.value(&name) {
            Some(value) => assert_eq!(Some(version_of(key, &value)), written[pick], "key {key}"),
            None => written[pick] = None,
        }
        let value = versioned(key, turn, 1 << (5 + random.below(8)));
        match session.store(StoreMode::Set, &name, &value) {
            Outcome::Stored(_) => written[pick] = Some(turn),
            // Nothing could be evicted in bounded time: the old value, if any, is still right.
            Outcome::OutOfMemory => {}
            other => panic!("{other:?} is no answer to set"),
        }
        session.worker.quiesce();
    }
}

/// Workers come and go; the index keeps what they wrote and takes their memory back.
pub fn workers_come_and_go<I: Engine>() {
    let index: I = open(&Configuration { workers: 4, ..configuration() });
    for round in 0..300 {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let index = &index;
                scope.spawn(move || {
                    let mut session = Session::new(index);
                    let key = name("key", thread);
                    let before = session.value(&key);
                    assert_eq!(before.is_some(), round > 0, "thread {thread} in round {round}");
                    session.set(&key, format!("{round} by {thread}").as_bytes());
                    session.set(&name("other", round * 3 + thread), &[1; 300]);
                });
            }
        });
    }
    assert_eq!(index.statistics().items, 3 + 900);
}

/// Whatever the limit does meanwhile, a write of any size ends: stored, or refused for want of
/// memory.
pub fn writes_end_while_the_limit_moves<I: Engine>() {
    const LIMIT: usize = 16 << 20;
    const LONGEST: usize = 1 << 20;
    for evicts in [true, false] {
        let defaults = configuration();
        let workers = THREADS + 2;
        let index: I = open(&Configuration { memory_bytes: LIMIT, evicts, workers, ..defaults });
        let session = Session::new(&index);
        with_maintenance(&index, session.now, || {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let index = &index;
                    scope.spawn(move || {
                        let mut session = Session::new(index);
                        let mut random = Random(thread as u64);
                        let longest = vec![b'v'; LONGEST - 4096];
                        for turn in 0..60 * effort() {
                            let name = name("key", random.below(40));
                            let length = longest.len() >> random.below(8);
                            match random.below(4) {
                                0 => drop(session.delete(&name)),
                                _ => {
                                    let value = &longest[..length];
                                    let outcome = session.store(StoreMode::Set, &name, value);
                                    let ends = [stored(length), Outcome::OutOfMemory];
                                    assert!(ends.contains(&outcome), "turn {turn}: {outcome:?}");
                                }
                            }
                            let share = [1, 1, 2, 4][random.below(4)];
                            index.set_memory_limit(LIMIT / share);
                            session.worker.quiesce();
                        }
                    });
                }
            });
        });
    }
}
