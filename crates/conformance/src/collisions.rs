//! Keys whose hashes agree where an engine looks: in a bucket's bits, in a tag's, in all.

use amalgam_index::{Configuration, Engine};
use amalgam_op::Outcome;

use crate::harness::{Random, Session, configuration, effort, open, weak_seed};

/// As many keys as fit two buckets of four slots and leave one free.
const FEW: usize = 7;

fn weak(mask: u64) -> Configuration {
    Configuration { seed: weak_seed(mask), ..configuration() }
}

fn name(number: usize) -> Vec<u8> {
    format!("colliding {number}").into_bytes()
}

/// A few keys with the same bits live side by side through every change.
pub fn few_keys<I: Engine>() {
    for mask in [0, 0xff, 0xff << 56, 0xffff << 24, 0xf00f_0000_00f0_0f00] {
        let index: I = open(&weak(mask));
        let mut session = Session::new(&index);
        let mut expected: Vec<Option<Vec<u8>>> = vec![None; FEW];
        let mut random = Random(mask);
        for _ in 0..3000 * effort() {
            let pick = random.below(FEW);
            let name = name(pick);
            match random.below(4) {
                0 => {
                    let outcome = session.delete(&name);
                    let was_there = expected[pick].take().is_some();
                    assert_eq!(outcome == Outcome::Deleted, was_there, "mask {mask:x}");
                }
                1 => assert_eq!(session.value(&name), expected[pick], "mask {mask:x}"),
                _ => {
                    let value = vec![pick as u8; random.below(30)];
                    session.set(&name, &value);
                    expected[pick] = Some(value);
                }
            }
        }
        for (pick, value) in expected.iter().enumerate() {
            assert_eq!(session.value(&name(pick)), *value, "mask {mask:x}");
        }
    }
}

/// Far more equal hashes than buckets have room for: an engine may evict, and tells whoever
/// watches, or refuse; but it ends, keeps its memory, finds what it said it stored last, and shows
/// nothing wrong.
pub fn many_keys<I: Engine>() {
    for mask in [0, 0xf, 0xf << 60] {
        let index: I = open(&weak(mask));
        let evictions = index.evictions();
        evictions.inspect(|evictions| evictions.watch(4_096));
        let mut session = Session::new(&index);
        let keys = 200;
        for turn in 0..2 * keys {
            let name = name(turn % keys);
            let value = format!("value {}", turn % keys).into_bytes();
            let outcome = session.store(amalgam_op::StoreMode::Set, &name, &value);
            match outcome {
                Outcome::Stored(_) => assert_eq!(session.value(&name), Some(value)),
                Outcome::OutOfMemory => {}
                other => panic!("{other:?} is no answer to set"),
            }
            session.worker_turn();
        }
        for number in 0..keys {
            let found = session.value(&name(number));
            let right = format!("value {number}").into_bytes();
            assert!(found.is_none_or(|value| value == right), "mask {mask:x}, key {number}");
        }
        let statistics = index.statistics();
        assert!(statistics.memory.used <= statistics.memory.limit, "{statistics:?}");
        if let Some(evictions) = evictions {
            let told = evictions.take();
            assert_eq!(told.len() as u64, statistics.evictions, "who watches hears of each");
            assert!(told.iter().all(|evicted| evicted.key.starts_with(b"colliding ")));
        }
    }
}
