//! Tests of the engine alone, small enough for Miri.

use std::ops::ControlFlow;

use amalgam_op::{Delete, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use super::expand::{SHRINK_AFTER_SECONDS, least_buckets};
use super::{Locking, MercuryEngine, MercuryWorker, NoLock, Pthread, TestAndSet};
use crate::{Configuration, Engine, Found, Sink, Store as _, Tuning, Worker};

const NOW: Now = Now::at(10);

/// The values of the last batch, by position.
#[derive(Default)]
struct Answers(Vec<Option<Vec<u8>>>);

impl Sink for Answers {
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        assert_eq!(position, self.0.len(), "answers come in the order of the keys");
        self.0.push(Some(found.item.value.as_bytes().to_vec()));
        ControlFlow::Continue(())
    }

    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        assert_eq!(position, self.0.len(), "answers come in the order of the keys");
        self.0.push(None);
        ControlFlow::Continue(())
    }
}

fn open<L: Locking>() -> MercuryEngine<L> {
    let configuration = Configuration {
        memory_bytes: 2 << 20,
        max_item_bytes: 1 << 10,
        evicts: false,
        workers: 3,
        tuning: Tuning { buckets: Some(8), ..Tuning::default() },
        ..Configuration::default()
    };
    Engine::open(&configuration).expect("a valid configuration")
}

fn apply<L: Locking>(worker: &mut MercuryWorker<'_, L>, name: &str, verb: Verb<'_>) -> Outcome {
    let key = Key::new(name.as_bytes(), worker.engine.seed());
    worker.apply(&Op { key, verb }, &NOW, &mut Answers::default())
}

fn set<L: Locking>(worker: &mut MercuryWorker<'_, L>, name: &str, value: &str) {
    let store = Store::new(StoreMode::Set, value.as_bytes(), 0, 0);
    assert!(matches!(apply(worker, name, Verb::Store(store)), Outcome::Stored(_)));
}

/// Reads `names` in one batch. The values are text.
fn read<L: Locking>(worker: &mut MercuryWorker<'_, L>, names: &[String]) -> Vec<Option<String>> {
    let seed = worker.engine.seed();
    let keys: Vec<_> = names.iter().map(|name| Key::new(name.as_bytes(), seed)).collect();
    let mut answers = Answers::default();
    assert_eq!(worker.get_batch(&keys, &NOW, &mut answers), keys.len());
    let text = |value: Vec<u8>| String::from_utf8(value).expect("text");
    answers.0.into_iter().map(|answer| answer.map(text)).collect()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key {number}")).collect()
}

/// Grows from 8 buckets to more than an item each needs one and shrinks back, and loses nothing on
/// the way.
fn grows_and_shrinks<L: Locking>(count: usize) {
    let index = open::<L>();
    let mut worker = index.worker();
    let names = names(count);
    for name in &names {
        set(&mut worker, name, name);
    }
    while MercuryEngine::maintain(&mut worker, &NOW) {}
    let statistics = index.statistics();
    assert!(statistics.expansions >= 2, "{statistics:?}");
    assert_eq!(statistics.buckets, least_buckets(count).next_power_of_two() as u64);
    let all: Vec<_> = names.iter().cloned().map(Some).collect();
    assert_eq!(read(&mut worker, &names), all);
    for name in &names[1..] {
        assert_eq!(apply(&mut worker, name, Verb::Delete(Delete::default())), Outcome::Deleted);
    }
    while MercuryEngine::maintain(&mut worker, &NOW) {}
    assert_eq!(index.statistics().buckets, least_buckets(count).next_power_of_two() as u64);
    let later = Now::at(NOW.seconds + SHRINK_AFTER_SECONDS);
    while MercuryEngine::maintain(&mut worker, &later) {}
    assert_eq!(index.statistics().buckets, 8);
    let left = read(&mut worker, &names);
    assert_eq!(left[0].as_deref(), Some("key 0"));
    assert!(left[1..].iter().all(Option::is_none));
}

#[test]
fn tables_follow_the_load() {
    grows_and_shrinks::<TestAndSet>(if cfg!(miri) { 30 } else { 1000 });
    if cfg!(not(miri)) {
        grows_and_shrinks::<Pthread>(100);
        grows_and_shrinks::<NoLock>(100);
    }
}

/// A worker reads and updates while another thread expands the table.
#[test]
fn nothing_is_missed_while_chains_move() {
    let (rounds, keys) = if cfg!(miri) { (2, 12) } else { (200, 200) };
    let index = open::<TestAndSet>();
    let names = names(keys);
    let mut worker = index.worker();
    names[..keys / 2].iter().for_each(|name| set(&mut worker, name, "0"));
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut expander = index.worker();
            let mut seconds = NOW.seconds;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                // The time lies far enough ahead that a table found too large shrinks at once.
                seconds += SHRINK_AFTER_SECONDS;
                MercuryEngine::maintain(&mut expander, &Now::at(seconds));
                std::thread::yield_now();
            }
        });
        for round in 1..=rounds {
            for name in &names {
                set(&mut worker, name, &round.to_string());
            }
            let answers = read(&mut worker, &names);
            assert!(answers.iter().all(|answer| answer.as_deref() == Some(&*round.to_string())));
            if round % 2 == 0 {
                for name in &names[8..] {
                    apply(&mut worker, name, Verb::Delete(Delete::default()));
                }
            }
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
