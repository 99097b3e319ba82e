//! What a plain set and a get cost, for an instruction counter to watch: `write_work ENGINE
//! CASE VALUE_BYTES COUNT` runs COUNT operations on keys that are present, with values of the same
//! length.
//!
//! Cases: `get` and `set` carry one operation out at a time, `gets` and `sets` batches of them.

use std::hint::black_box;
use std::ops::ControlFlow;

use amalgam_index::op::{Key, Now, Op, Outcome, Store, StoreMode, Verb};
use amalgam_index::{Configuration, Engine, Found, Sink, Worker};
use amalgam_index::{HotRingR, Memc3, Mercury, Pipeline};

/// The keys: few enough for caches, more than the pages of a size class are wide.
const KEYS: usize = 4096;
/// Operations of a batch.
const BATCH: usize = 32;
const NOW: Now = Now::at(1000);

/// Takes a value as an answer under construction would: a short one in a register, else a copy.
struct Answers {
    hits: u64,
    copy: Vec<u8>,
}

impl Sink for Answers {
    #[inline]
    fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.hits += 1;
        let value = found.item.value.as_bytes();
        let length = value.len().min(self.copy.len());
        self.copy[..length].copy_from_slice(&value[..length]);
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, engine, case, value_bytes, count] = arguments.as_slice() else {
        panic!("usage: write_work ENGINE CASE VALUE_BYTES COUNT");
    };
    let value_bytes = value_bytes.parse().expect("a length");
    let count = count.parse().expect("a count");
    match engine.as_str() {
        "memc3" => run::<Memc3>(case, value_bytes, count),
        "mercury" => run::<Mercury>(case, value_bytes, count),
        "pipeline" => run::<Pipeline>(case, value_bytes, count),
        "hotring" => run::<HotRingR>(case, value_bytes, count),
        other => panic!("there is no engine '{other}'"),
    }
}

// Functions of their own, so that the code of one case is the same whatever the others do.

#[inline(never)]
fn get_each(worker: &mut impl Worker, keys: &[Key<'_>], answers: &mut Answers) {
    for key in keys {
        worker.get_batch(std::slice::from_ref(key), &NOW, answers);
    }
}

#[inline(never)]
fn set_each(worker: &mut impl Worker, keys: &[Key<'_>], value: &[u8], answers: &mut Answers) {
    for key in keys {
        let outcome = worker.apply(&set(key, value), &NOW, answers);
        answers.hits += u64::from(matches!(outcome, Outcome::Stored(_)));
    }
}

#[inline(never)]
fn set_batch(worker: &mut impl Worker, keys: &[Key<'_>], value: &[u8], answers: &mut Answers) {
    let ops: Vec<_> = keys.iter().map(|key| set(key, value)).collect();
    let mut outcomes = [Outcome::NotFound; BATCH];
    worker.apply_batch(&ops, &NOW, answers, &mut outcomes);
    let stored = outcomes[..ops.len()].iter();
    answers.hits += stored.filter(|outcome| matches!(outcome, Outcome::Stored(_))).count() as u64;
}

fn set<'a>(key: &Key<'a>, value: &'a [u8]) -> Op<'a> {
    Op { key: *key, verb: Verb::Store(Store::new(StoreMode::Set, black_box(value), 0, 0)) }
}

fn run<I: Engine>(case: &str, value_bytes: usize, count: usize) {
    let configuration = Configuration { expected_items: 4 * KEYS, ..Configuration::default() };
    let index = I::open(&configuration).expect("it opens");
    let mut worker = index.worker();
    let mut answers = Answers { hits: 0, copy: vec![0; value_bytes] };
    let value = vec![b'v'; value_bytes];
    let names: Vec<_> = (0..KEYS).map(|number| format!("{number:016}")).collect();
    let keys: Vec<_> = names.iter().map(|name| Key::new(name.as_bytes(), index.seed())).collect();
    // The second round of sets fills the magazines, the gets train what reads learn.
    for key in keys.iter().chain(&keys) {
        let outcome = worker.apply(&set(key, &value), &NOW, &mut answers);
        assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
        worker.quiesce();
    }
    worker.get_batch(&keys, &NOW, &mut answers);
    worker.get_batch(&keys, &NOW, &mut answers);
    answers.hits = 0;
    let mut done = 0;
    for batch in keys.chunks(BATCH).cycle().take(count.div_ceil(BATCH)) {
        done += batch.len();
        match case {
            "get" => get_each(&mut worker, batch, &mut answers),
            "gets" => assert_eq!(worker.get_batch(batch, &NOW, &mut answers), batch.len()),
            "set" => set_each(&mut worker, batch, &value, &mut answers),
            "sets" => set_batch(&mut worker, batch, &value, &mut answers),
            other => panic!("there is no case '{other}'"),
        }
        worker.quiesce();
    }
    black_box(&answers.copy);
    assert_eq!(answers.hits, done as u64);
}
