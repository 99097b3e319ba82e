//! `amalgam advise`: recommends an engine by replaying the requests that a server really got.
//!
//! Every engine gets the same trace at the same memory limit, in turns. The replay also acts as the
//! client: where a read misses an item that was there for the trace's own read, it stores the item
//! again.
//!
//! Invariants of this crate:
//! 1. Engines are compared round by round on the same requests, and never run at the same time.
//! 2. The advice follows only from the printed figures, by the rule that [`Advice`] states.
//! 3. Time is the trace's: an item expires when the trace says so, however fast it is replayed.

#![forbid(unsafe_code)]

mod advice;
mod arguments;
mod picture;
mod replay;
mod result;
pub mod trace;

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::Context;

use crate::trace::{Reading, Trace};
use amalgam_bench::driver::LARGEST_SHARE;
use amalgam_bench::measure::Machine;
use amalgam_bench::{Usage, UsageError, ensure_usage, print_result};

pub use advice::Advice;
pub use arguments::AdviseArguments;
pub use picture::draw;
pub use replay::{Entry, Replay, Round};
pub use result::{Row, table};

use result::Measured;

/// Runs `amalgam advise`. The table, or lines of JSON, go to standard output, everything else to
/// standard error.
///
/// # Errors
///
/// If an argument is invalid, or the trace cannot be read, or no engine runs at the limit.
pub fn run(arguments: &AdviseArguments) -> anyhow::Result<()> {
    // Before a server is watched for half a minute.
    arguments.check().usage()?;
    arguments.entries().usage()?;
    let source = Source::open(arguments)?;
    let (rows, advice) = advise(arguments, &source)?;
    if let Some(path) = &arguments.svg {
        let picture = draw(&rows, &advice);
        std::fs::write(path, picture).with_context(|| path.display().to_string())?;
    }
    if arguments.json {
        for row in &rows {
            print_result(true, row, String::new)?;
        }
        return print_result(true, &advice, String::new);
    }
    let text = format!("{}\n{advice}", table(&rows));
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}

/// A trace, and the settings of the server that it was taken from.
pub struct Source {
    /// The requests.
    pub trace: Trace,
    /// The memory limit of each engine, in bytes.
    pub memory_bytes: u64,
    /// The number of threads that replay.
    pub threads: usize,
}

/// The memory limit in bytes where neither the user nor a server names one: a server's default.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;

impl Source {
    fn open(arguments: &AdviseArguments) -> anyhow::Result<Self> {
        let most = arguments.most_requests;
        let (reading, memory, threads) = match (&arguments.server, &arguments.trace) {
            (Some(address), _) => {
                let found = amalgam_bench::resolve(address).map(drop);
                found.with_context(|| format!("--server {address}")).usage()?;
                eprintln!("watching {address} for {} seconds", arguments.watch_seconds);
                let mut copy: Box<dyn Write> = match &arguments.save {
                    Some(path) => Box::new(BufWriter::new(
                        File::create(path).with_context(|| path.display().to_string())?,
                    )),
                    None => Box::new(std::io::sink()),
                };
                let seen = trace::capture(address, arguments.watch_seconds, most, &mut copy)?;
                if seen.dropped > 0 {
                    eprintln!(
                        "the server dropped {} lines: its queue of watched lines was full",
                        seen.dropped
                    );
                }
                (seen.reading, seen.memory_bytes, seen.threads)
            }
            (None, Some(path)) if path.as_os_str() == "-" => {
                (trace::read(std::io::stdin().lock(), most)?, DEFAULT_MEMORY_BYTES, 1)
            }
            (None, Some(path)) => {
                let file = File::open(path).with_context(|| path.display().to_string())?;
                let reading = trace::read(file, most);
                let reading = reading.with_context(|| path.display().to_string())?;
                (reading, DEFAULT_MEMORY_BYTES, 1)
            }
            (None, None) => {
                let text = "name a file with a trace, or a server to watch: --server HOST:PORT";
                return Err(UsageError::new(text).into());
            }
        };
        tell_gaps(&reading);
        let memory_bytes = arguments.memory.unwrap_or(memory);
        let threads = arguments.threads.unwrap_or(threads);
        Ok(Self { trace: reading.trace, memory_bytes, threads })
    }
}

fn tell_gaps(reading: &Reading) {
    if let Some(first) = reading.first_unreadable {
        eprintln!("{} lines are no requests, line {first} to begin with", reading.unreadable);
    }
    if reading.skipped > 0 {
        let skipped = reading.skipped;
        eprintln!("the server left out {skipped} lines that came faster than they were read");
    }
}

/// Replays a trace on every engine that is asked for.
///
/// # Errors
///
/// If an argument is invalid or no engine runs at the limit.
pub fn advise(arguments: &AdviseArguments, source: &Source) -> anyhow::Result<(Vec<Row>, Advice)> {
    arguments.check().usage()?;
    ensure_usage!((1..=256).contains(&source.threads), "1 to 256 threads, not {}", source.threads);
    let entries = arguments.entries().usage()?;
    let configuration = arguments.configuration(source).usage()?;
    let dealt = source.trace.deal(source.threads, arguments.batch);
    let dealt: Vec<_> = dealt.into_iter().filter(|trace| trace.requests() > 0).collect();
    let plan = replay::Plan {
        dealt: &dealt,
        batch: arguments.batch,
        period_seconds: source.trace.seconds().saturating_add(1),
        largest_value_bytes: source.trace.largest_value_bytes(),
    };
    let summary = source.trace.summary();
    eprintln!(
        "{} requests for {} keys, {:.1} % reads, {:.2} % for the hottest key, {:.0}-byte values",
        summary.requests,
        summary.keys,
        100.0 * summary.read_share,
        100.0 * summary.hottest_share,
        summary.mean_value_bytes
    );
    let all = source.memory_bytes as f64 * entries.len() as f64;
    let keeps = all <= LARGEST_SHARE * Machine::available_bytes() as f64;
    let mut contests: Vec<_> = entries.iter().map(|entry| Contest::new(*entry)).collect();
    let limit = arguments.round_limit();
    for round in 0..arguments.rounds {
        for contest in &mut contests {
            contest.round(&configuration, &plan, limit, keeps);
            if let Some(rate) = contest.measured.rates.last() {
                eprintln!("round {}: {:<11} {:>8.3} M/s", round + 1, contest.entry.0, rate / 1e6);
            }
        }
    }
    for contest in &mut contests {
        contest.timed_pass(&configuration, &plan, arguments.timed, keeps);
    }
    let row = |contest: &Contest| {
        Row::new(contest.entry.0, &contest.measured, arguments, source, summary)
    };
    let mut rows: Vec<Row> = contests.iter().map(row).collect();
    let advice = Advice::of(&rows, arguments.hit_ratio_tolerance)?;
    rows.iter_mut().for_each(|row| row.recommended = row.engine == advice.engine);
    Ok((rows, advice))
}

/// One engine in the comparison.
struct Contest {
    entry: Entry,
    replay: Option<Box<dyn Replay>>,
    measured: Measured,
}

impl Contest {
    fn new(entry: Entry) -> Self {
        Self { entry, replay: None, measured: Measured::default() }
    }

    /// Opens the engine and replays the trace on it once, unless it is open already.
    fn mount(
        &mut self,
        configuration: &amalgam_index::Configuration,
        plan: &replay::Plan<'_>,
    ) -> Option<&mut Box<dyn Replay>> {
        if self.measured.problem.is_some() {
            return None;
        }
        if self.replay.is_none() {
            match (self.entry.1)(configuration) {
                Ok(mut replay) => {
                    replay.run(plan, replay::Limit::OnePass, false);
                    self.replay = Some(replay);
                }
                Err(problem) => {
                    self.measured.problem = Some(problem.to_string());
                    return None;
                }
            }
        }
        self.replay.as_mut()
    }

    fn round(
        &mut self,
        configuration: &amalgam_index::Configuration,
        plan: &replay::Plan<'_>,
        limit: replay::Limit,
        keeps: bool,
    ) {
        let Some(replay) = self.mount(configuration, plan) else { return };
        let round = replay.run(plan, limit, false);
        let statistics = replay.statistics();
        self.measured.add(&round, statistics);
        if !keeps {
            self.replay = None;
        }
    }

    fn timed_pass(
        &mut self,
        configuration: &amalgam_index::Configuration,
        plan: &replay::Plan<'_>,
        operations: u64,
        keeps: bool,
    ) {
        let Some(replay) = self.mount(configuration, plan) else { return };
        let round = replay.run(plan, replay::Limit::Requests(operations), true);
        self.measured.timing = round.timing;
        if !keeps {
            self.replay = None;
        }
    }
}
