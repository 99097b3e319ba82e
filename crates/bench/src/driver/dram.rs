//! DRAM accesses per operation: misses of the last level in a modelled cache, counted by
//! cachegrind, together with the misses of the first level.
//!
//! The program runs itself under cachegrind, once loading and warming up only, once with further
//! operations; the difference is the misses of these operations. The driver's own misses (it
//! streams through its requests) are counted in the same way with the `null` engine and subtracted.
//! The model has one level (32 MiB by default) behind small first-level caches, and models neither
//! prefetching nor page walks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::driver::arguments::IndexArguments;

/// The number of operations between the two counts.
const COUNTED: u64 = 1_000_000;

/// The number of operations before the first count: enough to fill the modelled cache.
pub const WARM_UP: u64 = 1_000_000;

/// A description of the model, which results include.
pub fn method(arguments: &IndexArguments) -> String {
    let size = arguments.dram_cache >> 10;
    format!("cachegrind, last-level data and instruction misses, LL {size} KiB 16-way")
}

/// Numbers of cache misses, of data and of instructions together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Misses {
    /// The misses of the first level, which the last level may have served.
    pub first_level: f64,
    /// The misses of the last level: accesses to memory.
    pub last_level: f64,
}

impl Misses {
    /// The difference between these misses and `others`.
    fn beyond(self, others: Self) -> Self {
        Self {
            first_level: self.first_level - others.first_level,
            last_level: self.last_level - others.last_level,
        }
    }
}

/// Counts the misses of engines, without those of the driver, which it counts once.
pub struct Counter<'a> {
    arguments: &'a IndexArguments,
    driver: Option<Misses>,
}

impl<'a> Counter<'a> {
    /// A counter of runs with these arguments; it has counted nothing yet.
    pub fn new(arguments: &'a IndexArguments) -> Self {
        Self { arguments, driver: None }
    }

    /// Counts the misses per operation of an engine on one thread.
    ///
    /// # Errors
    ///
    /// If valgrind is not installed or a run fails.
    pub fn count(&mut self, engine: &str) -> anyhow::Result<Misses> {
        let driver = match self.driver {
            Some(driver) => driver,
            None => *self.driver.insert(misses_per_operation(self.arguments, "null")?),
        };
        Ok(misses_per_operation(self.arguments, engine)?.beyond(driver))
    }
}

fn misses_per_operation(arguments: &IndexArguments, engine: &str) -> anyhow::Result<Misses> {
    eprintln!("{engine}: counting misses under cachegrind; this takes minutes");
    let before = misses(arguments, engine, 0)?;
    let all = misses(arguments, engine, COUNTED)?.beyond(before);
    let operations = COUNTED as f64;
    Ok(Misses {
        first_level: all.first_level / operations,
        last_level: all.last_level / operations,
    })
}

/// All misses of a run of this program with `operations` operations.
fn misses(arguments: &IndexArguments, engine: &str, operations: u64) -> anyhow::Result<Misses> {
    let output = Output::new(engine, operations);
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .arg(format!("--LL={},16,64", arguments.dram_cache))
        .args(["--I1=32768,8,64", "--D1=32768,8,64"])
        .arg(format!("--cachegrind-out-file={}", output.0.display()))
        .arg(program)
        // The subcommand under which this program was started.
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

/// An output file of cachegrind, removed on drop.
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

/// The cachegrind events that count as misses of each level.
const FIRST_LEVEL: [&str; 3] = ["I1mr", "D1mr", "D1mw"];
const LAST_LEVEL: [&str; 3] = ["ILmr", "DLmr", "DLmw"];

/// The sum of each level's miss events in cachegrind's output.
fn total_misses(text: &str) -> anyhow::Result<Misses> {
    let line = |start: &str| text.lines().rev().find_map(|line| line.strip_prefix(start));
    let events = line("events:").context("cachegrind's file has no events")?;
    let totals = line("summary:").context("cachegrind's file has no summary")?;
    let counts: Vec<_> = events.split_whitespace().zip(totals.split_whitespace()).collect();
    let sum = |level: [&str; 3]| {
        let of_level = counts.iter().filter(|(event, _)| level.contains(event));
        let numbers: anyhow::Result<Vec<u64>> = of_level
            .map(|(event, total)| total.parse().with_context(|| format!("{event} {total}")))
            .collect();
        let numbers = numbers?;
        ensure!(numbers.len() == level.len(), "cachegrind's file lacks one of {level:?}");
        Ok(numbers.iter().sum::<u64>() as f64)
    };
    Ok(Misses { first_level: sum(FIRST_LEVEL)?, last_level: sum(LAST_LEVEL)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_of_both_levels_are_summed() {
        let text = "desc: LL cache: 33554432 B\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\n\
                    fn=main\n1 2 3\nsummary: 100 20 3 50 9 5 40 8 7\n";
        let misses = Misses { first_level: 37.0, last_level: 15.0 };
        assert_eq!(total_misses(text).expect("well-formed"), misses);
        assert!(total_misses("summary: 1 2 3").is_err());
        assert!(total_misses("events: Ir\nsummary: 1").is_err());
        assert!(total_misses("").is_err());
    }
}
