//! The cost of a request in instructions. Counts are repeatable: a regression shows here before it
//! shows in a benchmark. They hold for optimised code, so other builds have no test.
//!
//! The example `in_process` runs fixed byte scripts through a worker's batches; the count of a
//! short run taken from that of a longer one leaves the batches alone. The index behind it answers
//! every key at once: the instructions are those of parsing, queueing and answering.

#![cfg(not(debug_assertions))]

use std::path::PathBuf;
use std::process::Command;

/// The name of a script, the number of operations in a batch, and the limit of instructions for one
/// operation.
const BOUNDS: &[(&str, u64, u64)] = &[
    ("get-1x1", 32, 900),
    ("get-1x32", 32 * 32, 620),
    ("get-100x1", 50 * 100, 300),
    ("get-100x8", 8 * 800, 300),
    ("mixed-1x32", 32 * 32, 640),
    ("set-1x32", 32 * 32, 980),
];

/// Operations that are counted, at least. What differs between two starts of the program, as seeds
/// of hash tables do, is some thousand instructions.
const OPERATIONS_MIN: u64 = 20_000;

fn example() -> PathBuf {
    // target/PROFILE/deps/this-test
    let test = std::env::current_exe().expect("a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("two folders up");
    profile.join("examples/in_process")
}

/// Instructions of a run of this number of batches.
fn count(script: &str, batches: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(example())
        .args([script, &batches.to_string()])
        .output()
        .expect("valgrind is installed (make test does so on Debian)");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) = collected.unwrap_or_else(|| panic!("no count in {text}"));
    number.trim().parse().expect("a number")
}

#[test]
fn requests_cost_no_more_instructions_than_they_did() {
    let mut excess = Vec::new();
    for (script, operations, bound) in BOUNDS {
        let batches = (OPERATIONS_MIN / operations).max(20);
        let cost = (count(script, 2 * batches) - count(script, batches)) / (batches * operations);
        println!("{script}: {cost} instructions an operation, at most {bound}");
        if cost > *bound {
            excess.push(*script);
        }
    }
    assert!(excess.is_empty(), "more instructions than allowed: {excess:?}");
}
