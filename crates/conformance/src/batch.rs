//! Batched gets: every size, duplicates, misses, sinks that break, and resumption.

use amalgam_index::{Engine, Worker};
use amalgam_op::{Key, Store, StoreMode, Verb};

use crate::harness::{Random, Recorder, Session, configuration, effort, open, stored};

fn name(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Values of all kinds: empty, in the in-place word, at its edge, long.
fn value(number: usize) -> Vec<u8> {
    let length = [0, 1, 7, 8, 9, 30, 200, 3000][number % 8];
    (0..length).map(|i| (i + number) as u8).collect()
}

const PRESENT: usize = 500;
const MAX_BATCH: usize = 200;

fn filled<I: Engine>() -> I {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for number in 0..PRESENT {
        session.set(&name(number), &value(number));
    }
    drop(session);
    index
}

fn picks(random: &mut Random, size: usize) -> Vec<usize> {
    // A third of the keys is missing, and many come twice.
    let range = if random.below(2) == 0 { PRESENT * 3 / 2 } else { PRESENT * 3 / 2 / 20 };
    (0..size).map(|_| random.below(range)).collect()
}

/// Batches of 1 to 200 keys answer each key, in order.
pub fn every_size<I: Engine>() {
    let index: I = filled();
    let mut session = Session::new(&index);
    let mut random = Random(1);
    assert!(session.get_batch(&[]).is_empty());
    for size in (1..=MAX_BATCH).cycle().take(MAX_BATCH * effort()) {
        let picks = picks(&mut random, size);
        let names: Vec<_> = picks.iter().map(|number| name(*number)).collect();
        let keys: Vec<_> = names.iter().map(Vec::as_slice).collect();
        for (number, item) in picks.iter().zip(session.get_batch(&keys)) {
            let expected = (*number < PRESENT).then(|| value(*number));
            assert_eq!(item.map(|item| item.value), expected, "key {number} of {size}");
        }
    }
}

/// A sink that breaks ends the batch right there, and the rest can be read later, after writes.
pub fn breaks_and_resumes<I: Engine>() {
    let index: I = filled();
    let mut session = Session::new(&index);
    let mut random = Random(2);
    for size in (1..=MAX_BATCH).step_by(7).cycle().take(60 * effort()) {
        let picks = picks(&mut random, size);
        let names: Vec<_> = picks.iter().map(|number| name(*number)).collect();
        let mut left: Vec<_> = names.iter().map(Vec::as_slice).collect();
        let mut answers = Vec::new();
        while !left.is_empty() {
            let (answered, items) = session.get_some(&left, Some(1 + random.below(20)));
            answers.extend(items.into_iter().map(|item| item.map(|item| item.value)));
            left.drain(..answered);
            // Something else happens before the batch goes on.
            session.set(b"between", &vec![7; random.below(100)]);
            session.worker.quiesce();
        }
        let expected = picks.iter().map(|number| (*number < PRESENT).then(|| value(*number)));
        assert_eq!(answers, expected.collect::<Vec<_>>());
    }
}

/// Threads that each apply batches of sets of the same few keys, several of one key in a batch. A
/// thread never reads less than the last that it wrote itself, another never a number that is lower
/// than one that it read before, and once all have ended each key holds a last one.
pub fn sets_of_one_key_in_order<I: Engine>() {
    const KEYS: usize = 3;
    const THREADS: usize = 3;
    const ROUNDS: usize = 400;
    let index: I = open(&configuration());
    let name = |thread: usize, key: usize| format!("set {thread} {key}").into_bytes();
    // In the in-place word, and longer.
    let value = |key: usize, number: usize| format!("{number:0width$}", width = 8 + key * 12);
    let rounds = ROUNDS * effort();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let index = &index;
            scope.spawn(move || {
                let mut session = Session::new(index);
                let mut lowest = [[0; KEYS]; THREADS];
                for round in 0..rounds {
                    let numbers: Vec<_> = (1..=24).map(|step| round * 24 + step).collect();
                    let names: Vec<_> = numbers.iter().map(|n| name(thread, n % KEYS)).collect();
                    let values: Vec<_> = numbers.iter().map(|n| value(n % KEYS, *n)).collect();
                    let set = |value| Verb::Store(Store::new(StoreMode::Set, value, 0, 0));
                    let ops = names.iter().zip(&values);
                    let ops: Vec<_> = ops.map(|(n, v)| (&**n, set(v.as_bytes()))).collect();
                    for ((outcome, item), value) in
                        session.apply_batch(&ops).into_iter().zip(&values)
                    {
                        assert_eq!((outcome, item), (stored(value.len()), None));
                    }
                    for number in &numbers[numbers.len() - KEYS..] {
                        lowest[thread][number % KEYS] = *number;
                    }
                    for (writer, lowest) in lowest.iter_mut().enumerate() {
                        for (key, lowest) in lowest.iter_mut().enumerate() {
                            let text = session.value(&name(writer, key)).unwrap_or_default();
                            let text = String::from_utf8(text).expect("digits");
                            let number = text.parse().unwrap_or(0);
                            let is_own = writer == thread;
                            assert!(number >= *lowest, "{writer} {key}: {number} after {lowest}");
                            assert!(!is_own || number == *lowest, "{number} after {lowest}");
                            *lowest = number;
                        }
                    }
                    session.worker.quiesce();
                }
            });
        }
    });
}

/// A batch that touches an expired item, a flushed one and a live one tells them apart, and so does
/// a read of one key.
pub fn dead_items_miss<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    session.set(b"flushed", b"1");
    session.flush();
    session.apply(b"expired", Verb::Store(Store::new(StoreMode::Set, b"2", 0, 5)));
    session.set(b"live", b"3");
    session.now.seconds += 5;
    let keys: [&[u8]; 6] = [b"flushed", b"live", b"expired", b"live", b"never", b"flushed"];
    let keys = keys.map(|key| Key::new(key, index.seed()));
    let mut batch = Recorder::default();
    session.worker.get_batch(&keys, &session.now, &mut batch);
    let found: Vec<_> = batch.seen.iter().map(|(_, item)| item.is_some()).collect();
    assert_eq!(found, [false, true, false, true, false, false]);
    // The second read of a dead item may find it gone.
    batch.dead.retain(|(position, _)| *position < 5);
    assert_eq!(batch.dead, [(0, true), (2, false)]);
    for (key, is_flushed) in [(&b"fleeting"[..], false), (b"forgotten", true)] {
        session.apply(key, Verb::Store(Store::new(StoreMode::Set, b"4", 0, 5)));
        if is_flushed {
            session.flush();
        }
        session.now.seconds += 5;
        let mut single = Recorder::default();
        session.worker.get_batch(&[Key::new(key, index.seed())], &session.now, &mut single);
        assert_eq!(
            (single.seen.as_slice(), single.dead),
            (&[(0, None)][..], vec![(0, is_flushed)])
        );
    }
}

/// A prefetched key reads the same; prefetching changes nothing.
pub fn prefetch_is_a_hint<I: Engine>() {
    let index: I = filled();
    let mut session = Session::new(&index);
    for number in 0..PRESENT * 2 {
        let name = name(number);
        session.worker.prefetch(&Key::new(&name, index.seed()));
        assert_eq!(session.value(&name), (number < PRESENT).then(|| value(number)));
    }
    let mut sink = Recorder::default();
    assert_eq!(session.worker.get_batch(&[], &session.now, &mut sink), 0);
    assert_eq!(index.statistics().items, PRESENT as u64);
}

/// A pinned value outlives its item, its successor and the worker.
pub fn pins<I: Engine>() {
    use amalgam_index::{Found, Sink, mem::Pinned};
    use std::ops::ControlFlow;

    #[derive(Default)]
    struct Pins(Vec<Option<Pinned>>);
    impl Sink for Pins {
        fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
            self.0.push(found.pin());
            ControlFlow::Continue(())
        }
        fn miss(&mut self, position: usize) -> ControlFlow<()> {
            panic!("key {position} is there")
        }
    }

    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let value = |round: u8| vec![round; 300_000];
    let mut pins = Pins::default();
    const ROUNDS: u8 = 30;
    for round in 0..ROUNDS {
        session.set(b"k", &value(round));
        let key = Key::new(b"k", index.seed());
        assert_eq!(session.worker.get_batch(&[key], &session.now, &mut pins), 1);
        session.worker.quiesce();
    }
    session.delete(b"k");
    session.settle();
    for number in 0..200 {
        session.set(&name(number), &[0xee; 50_000]);
        session.worker.quiesce();
    }
    drop(session);
    for (round, pinned) in (0..ROUNDS).zip(&pins.0) {
        if let Some(pinned) = pinned {
            assert_eq!(pinned.as_bytes(), value(round), "pinned in round {round}");
        }
    }
    drop(pins);
    let mut session = Session::new(&index);
    session.set(b"k", &value(1));
    assert_eq!(session.value(b"k"), Some(value(1)));
}
