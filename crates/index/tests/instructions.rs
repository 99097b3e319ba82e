//! Constant work in the pipelined table: a look-up costs the same number of instructions wherever
//! its key lies and however full its bucket is. Counts hold for optimised code, so other builds
//! have no test.
//!
//! And engines run where there is no AVX-512: valgrind's processor has none.
//!
//! Cheap updates: a plain set of a key that is present costs little more than a get.
//!
//! The examples `constant_work` and `write_work` do one thing as often as asked. The count of a
//! short run, taken from that of a longer one, leaves the operations alone.

#![cfg(not(debug_assertions))]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;

use amalgam_index::memc3::{Memc3, Memc3Engine, Standard};
use amalgam_index::pipeline::{Pipeline, PipelineEngine};
use amalgam_index::{Configuration, Engine, Found, Sink, Worker};
use amalgam_op::{Key, Now, Op, Outcome, Store, StoreMode, Verb};

/// Lengths of keys: half a slot's, a whole slot's, more than a slot holds.
const KEY_BYTES: [usize; 3] = [8, 16, 40];
/// The most that two cases which must cost the same may differ, in percent.
const TOLERANCE_PERCENT: u64 = 10;

/// The most instructions of a plain set of a key that is present: engine, length of the value in
/// bytes, bound of one set, and of one in a batch. A value of 8 bytes changes in place, one of 32
/// bytes makes a new item.
const SETS: [(&str, usize, u64, u64); 6] = [
    ("memc3", 8, 450, 660),
    ("memc3", 32, 840, 1000),
    ("mercury", 8, 370, 400),
    ("mercury", 32, 700, 690),
    ("pipeline", 8, 410, 470),
    ("pipeline", 32, 800, 850),
];

fn example(name: &str) -> PathBuf {
    // target/PROFILE/deps/this-test
    let test = std::env::current_exe().expect("a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("two folders up");
    profile.join("examples").join(name)
}

/// Instructions of a run of `operations` operations of an example.
fn count(name: &str, arguments: &[&str], operations: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(example(name))
        .args(arguments)
        .arg(operations.to_string())
        .output()
        .expect("valgrind is installed (make test does so on Debian)");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) = collected.unwrap_or_else(|| panic!("no count in {text}"));
    number.trim().parse().expect("a number")
}

/// Instructions of one operation of an example, over `operations` of them.
fn cost(name: &str, arguments: &[&str], operations: u64) -> u64 {
    let [once, twice] = [1, 2].map(|times| count(name, arguments, times * operations));
    let cost = (twice - once) / operations;
    println!("{name} {arguments:?}: {cost} instructions");
    cost
}

fn assert_alike(cases: [&str; 2], key_bytes: usize) -> u64 {
    let bytes = key_bytes.to_string();
    let costs = cases.map(|case| cost("constant_work", &[case, &bytes], 2000));
    let [least, most] = [costs[0].min(costs[1]), costs[0].max(costs[1])];
    assert!(
        (most - least) * 100 <= most * TOLERANCE_PERCENT,
        "{cases:?} cost {costs:?} instructions with {key_bytes} bytes"
    );
    most
}

#[test]
fn the_work_depends_on_the_key_s_length_alone() {
    for key_bytes in KEY_BYTES {
        let hit = assert_alike(["hit-first", "hit-last"], key_bytes);
        let miss = assert_alike(["miss-full", "miss-empty"], key_bytes);
        // A hit also confirms its item and hands the value over.
        assert!(miss < hit, "{miss} for a miss, {hit} for a hit");
        // Up to there, hits and misses cost the same.
        let hit = assert_alike(["table-hit-first", "table-hit-last"], key_bytes);
        let miss = assert_alike(["table-miss-full", "table-miss-empty"], key_bytes);
        assert!(hit.abs_diff(miss) * 100 <= hit * TOLERANCE_PERCENT, "{miss} and {hit}");
    }
}

#[test]
fn a_plain_set_has_its_price() {
    for (engine, value_bytes, single, batched) in SETS {
        for (case, bound) in [("set", single), ("sets", batched)] {
            // Rounds over all keys of the example, with the work that a round does once.
            let cost = cost("write_work", &[engine, case, &value_bytes.to_string()], 3 * 4096);
            assert!(cost <= bound, "{engine} {case} {value_bytes} bytes: {cost} instructions");
        }
    }
}

/// Whether this process is the one under valgrind.
const INNER: &str = "AMALGAM_ON_AN_OLDER_PROCESSOR";

#[test]
fn engines_run_on_a_processor_without_avx512() {
    if std::env::var_os(INNER).is_some() {
        write_and_read::<Memc3Engine<4, Standard>>();
        write_and_read::<Memc3>();
        write_and_read::<Pipeline>();
        write_and_read::<PipelineEngine<16>>();
        return;
    }
    let output = Command::new("valgrind")
        .arg("--tool=none")
        .arg(std::env::current_exe().expect("a path"))
        .args(["--exact", "engines_run_on_a_processor_without_avx512"])
        .env(INNER, "1")
        .output()
        .expect("valgrind is installed (make test does so on Debian)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn write_and_read<I: Engine>() {
    let index = I::open(&Configuration::default()).expect("it opens");
    let (mut worker, now, mut hits) = (index.worker(), Now::at(1000), Hits(0));
    let names: Vec<_> = (0..100_u64).map(u64::to_le_bytes).collect();
    let keys: Vec<_> = names.iter().map(|name| Key::new(name, index.seed())).collect();
    for (key, name) in keys.iter().zip(&names) {
        let verb = Verb::Store(Store::new(StoreMode::Set, name, 0, 0));
        let outcome = worker.apply(&Op { key: *key, verb }, &now, &mut Hits(0));
        assert!(matches!(outcome, Outcome::Stored(_)), "{}: {outcome:?}", I::NAME);
    }
    assert_eq!(worker.get_batch(&keys, &now, &mut hits), keys.len());
    assert_eq!(hits.0, keys.len(), "{}", I::NAME);
}

struct Hits(usize);

impl Sink for Hits {
    fn hit(&mut self, _position: usize, _found: &Found<'_>) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
