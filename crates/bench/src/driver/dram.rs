//! DRAM accesses an operation: last-level misses in a modelled cache, counted by cachegrind.
//!
//! The program runs itself under cachegrind, once loading and warming up only, once with more
//! operations behind that; the difference is what the operations missed. The driver's own misses
//! (it streams through its requests) are counted in the same way with the `null` engine and taken
//! off. The model has one level, of 32 MiB where nothing else is asked for, behind small caches of
//! the first level, and knows neither prefetching nor page walks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::driver::arguments::IndexArguments;

/// Operations between the two counts.
const COUNTED: u64 = 1_000_000;

/// Operations before the first: enough to fill the modelled cache.
pub const WARM_UP: u64 = 1_000_000;

/// What a result says about the count.
pub fn method(arguments: &IndexArguments) -> String {
    let size = arguments.dram_cache >> 10;
    format!("cachegrind, last-level data and instruction misses, LL {size} KiB 16-way")
}

/// Counts last-level misses an operation of each engine, on one thread.
///
/// # Errors
///
/// If valgrind is not there or a run failed.
pub fn count(arguments: &IndexArguments, engines: &[&str]) -> anyhow::Result<Vec<f64>> {
    let driver = misses_per_operation(arguments, "null")?;
    let own = |engine: &&str| Ok(misses_per_operation(arguments, engine)? - driver);
    engines.iter().map(own).collect()
}

fn misses_per_operation(arguments: &IndexArguments, engine: &str) -> anyhow::Result<f64> {
    eprintln!("{engine}: counting misses under cachegrind; this takes minutes");
    let before = misses(arguments, engine, 0)?;
    let after = misses(arguments, engine, COUNTED)?;
    Ok((after as f64 - before as f64) / COUNTED as f64)
}

/// All last-level misses of a run of this program that counts `operations`.
fn misses(arguments: &IndexArguments, engine: &str, operations: u64) -> anyhow::Result<u64> {
    let output = Output::new(engine, operations);
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .arg(format!("--LL={},16,64", arguments.dram_cache))
        .args(["--I1=32768,8,64", "--D1=32768,8,64"])
        .arg(format!("--cachegrind-out-file={}", output.0.display()))
        .arg(program)
        // How this program is asked for the command that we are in.
        .args(std::env::args().skip(1).take_while(|word| !word.starts_with('-')))
        .args(arguments.words_to_count(engine, operations))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let finished = command.output().context("valgrind could not be run; is it installed?")?;
    if !finished.status.success() {
        bail!("cachegrind failed: {}", String::from_utf8_lossy(&finished.stderr));
    }
    total_misses(&fs::read_to_string(&output.0).context("what cachegrind wrote")?)
}

/// A file of cachegrind's, removed in the end.
struct Output(PathBuf);

impl Output {
    fn new(engine: &str, operations: u64) -> Self {
        let name = format!("amalgam-{}-{engine}-{operations}.cachegrind", std::process::id());
        Self(Path::new(&std::env::temp_dir()).join(name))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The sum of the last-level events in cachegrind's output.
fn total_misses(text: &str) -> anyhow::Result<u64> {
    let line = |start: &str| text.lines().rev().find_map(|line| line.strip_prefix(start));
    let events = line("events:").context("cachegrind's file has no events")?;
    let totals = line("summary:").context("cachegrind's file has no summary")?;
    let (mut misses, mut found) = (0, 0);
    for (event, total) in events.split_whitespace().zip(totals.split_whitespace()) {
        if ["ILmr", "DLmr", "DLmw"].contains(&event) {
            misses += total.parse::<u64>().with_context(|| format!("{event} {total}"))?;
            found += 1;
        }
    }
    ensure!(found == 3, "cachegrind's file lacks last-level events");
    Ok(misses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_level_misses_are_summed() {
        let text = "desc: LL cache: 33554432 B\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\n\
                    fn=main\n1 2 3\nsummary: 100 20 3 50 9 5 40 8 7\n";
        assert_eq!(total_misses(text).expect("well-formed"), 15);
        assert!(total_misses("summary: 1 2 3").is_err());
        assert!(total_misses("events: Ir\nsummary: 1").is_err());
        assert!(total_misses("").is_err());
    }
}
