//! The instructions of a put with three backups while many are in flight: of the owner and its
//! three backups together, without system calls. Counts are for optimised code, so other builds
//! have no test.
//!
//! The example `replicated_put` runs a number of puts; the difference between a long and a short
//! run is the cost of the puts alone.

#![cfg(not(debug_assertions))]

use std::process::Command;

/// Puts in flight.
const FLIGHT: u64 = 64;
/// Measured: 12,600; a put without backups costs 2,750.
const REPLICATED_MAX: u64 = 16_000;

/// Instructions of a run of `batches` batches.
fn count(batches: u64, backups: u64) -> u64 {
    // target/PROFILE/deps/this-test
    let test = std::env::current_exe().expect("a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("two folders up");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(profile.join("examples/replicated_put"))
        .args([batches, backups, FLIGHT].map(|number| number.to_string()))
        .output()
        .expect("valgrind is installed (make test does so on Debian)");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) = collected.unwrap_or_else(|| panic!("no count in {text}"));
    number.trim().parse().expect("a number")
}

#[test]
fn a_put_with_backups_costs_no_more_than_it_did() {
    let [alone, replicated] = [0, 3].map(|backups| {
        let cost = (count(100, backups) - count(50, backups)) / (50 * FLIGHT);
        println!("{backups} backups: {cost} instructions a put");
        cost
    });
    assert!(alone < replicated && replicated <= REPLICATED_MAX, "{replicated}");
}
