//! What a look-up in the pipelined table costs, for an instruction counter to watch:
//! `constant_work CASE KEY_BYTES COUNT` looks one key up COUNT times.
//!
//! Cases: `hit-first` and `hit-last` find their key in the first and in the last slot of a full
//! bucket; `miss-full` misses in that bucket, `miss-empty` in an empty one. With `table-` in front
//! the slot memory is asked alone, without the item that it names.

use std::hint::black_box;
use std::ops::ControlFlow;

use amalgam_index::op::{Key, Now, Op, Outcome, Store, StoreMode, Verb};
use amalgam_index::pipeline::Pipeline;
use amalgam_index::pipeline::twin::Twin;
use amalgam_index::{Configuration, Engine, Found, Sink, Store as _, Tuning, Worker};

const SLOTS: usize = 8;
const BUCKETS: u64 = 16;
const NOW: Now = Now::at(1000);

/// Takes a value of one word, as an answer under construction would.
#[derive(Default)]
struct Answers {
    hits: u64,
    words: u64,
}

impl Sink for Answers {
    fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.hits += 1;
        if let Some(word) = found.item.value.as_bytes().first_chunk() {
            self.words ^= u64::from_le_bytes(*word);
        }
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// `count` keys of `length` bytes that share bucket `bucket`.
fn keys(index: &Pipeline, bucket: u64, length: usize, count: usize) -> Vec<Vec<u8>> {
    let keys = (0..).map(|number| format!("{number:0length$}").into_bytes());
    let in_bucket = |key: &Vec<u8>| {
        let low = index.seed().hash(key) & 0xffff_ffff;
        (low * BUCKETS) >> 32 == bucket
    };
    keys.filter(in_bucket).take(count).collect()
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, case, length, count] = arguments.as_slice() else {
        panic!("usage: constant_work CASE KEY_BYTES COUNT");
    };
    let (length, count): (usize, u64) =
        (length.parse().expect("a length"), count.parse().expect("a count"));
    let tuning = Tuning { buckets: Some(BUCKETS as usize), ..Tuning::default() };
    let index = Pipeline::open(&Configuration { tuning, ..Configuration::default() });
    let index = index.expect("it opens");
    let full = keys(&index, 3, length, SLOTS + 1);
    let mut worker = index.worker();
    let mut answers = Answers::default();
    for key in &full[..SLOTS] {
        let verb = Verb::Store(Store::new(StoreMode::Set, b"8 bytes.", 0, 0));
        let outcome =
            worker.apply(&Op { key: Key::new(key, index.seed()), verb }, &NOW, &mut answers);
        assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
    }
    let empty = keys(&index, 4, length, 1);
    let (is_table_only, case) =
        case.strip_prefix("table-").map_or((false, case.as_str()), |case| (true, case));
    let (key, is_hit) = match case {
        "hit-first" => (&full[0], true),
        "hit-last" => (&full[SLOTS - 1], true),
        "miss-full" => (&full[SLOTS], false),
        "miss-empty" => (&empty[0], false),
        other => panic!("there is no case '{other}'"),
    };
    if is_table_only {
        answers.hits = table_only(&full[..SLOTS], key, count);
    } else {
        for _ in 0..count {
            let key = Key::new(black_box(key), index.seed());
            worker.get_batch(&[key], &NOW, &mut answers);
            worker.quiesce();
        }
    }
    black_box(answers.words);
    assert_eq!(answers.hits, if is_hit { count } else { 0 });
}

/// How often the slot memory, with these keys in it, may hold the one that is sought.
fn table_only(present: &[Vec<u8>], key: &[u8], count: u64) -> u64 {
    let mut table = Twin::new(BUCKETS as usize);
    for (place, key) in (1..).zip(present) {
        table.set(key, 8 * place, 0, 8);
    }
    (0..count).map(|_| u64::from(table.may_hold(black_box(key)))).sum()
}
