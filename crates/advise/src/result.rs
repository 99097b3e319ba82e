//! The measurements of each engine, as JSON for programs and as a table for people.

use amalgam_index::Statistics;

use super::replay::Round;
use super::{AdviseArguments, Source};
use crate::trace::Summary;
use amalgam_bench::measure::{Machine, Spread, Timing, commit};

/// The measurements of one engine, over all its rounds.
#[derive(Default)]
pub struct Measured {
    /// The throughput of each round, in requests a second.
    pub rates: Vec<f64>,
    /// The times of batches in the timed pass; None before it.
    pub timing: Option<Timing>,
    /// The engine's statistics at the end of the last round.
    pub statistics: Statistics,
    /// Why the engine did not run.
    pub problem: Option<String>,
    reads: u64,
    hits: u64,
    stores: u64,
    refused: u64,
}

impl Measured {
    /// Adds a round.
    pub fn add(&mut self, round: &Round, statistics: Statistics) {
        self.rates.push(round.requests_per_second);
        self.reads += round.reads;
        self.hits += round.hits;
        self.stores += round.stores;
        self.refused += round.refused;
        self.statistics = statistics;
    }
}

/// The line of an engine. None stands for what was not measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The engine's name.
    pub engine: &'static str,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// A summary of the trace that was replayed.
    pub trace: Summary,
    /// The memory limit, in bytes.
    pub memory_bytes: u64,
    /// The number of threads that replayed.
    pub threads: usize,
    /// Requests in a batch.
    pub batch: usize,
    /// The throughput of all threads in requests a second: the median of the rounds.
    pub requests_per_second: Option<f64>,
    /// The throughput of the slowest and of the fastest round.
    pub min_max: Option<[f64; 2]>,
    /// The throughput of each round, in order.
    pub rounds_requests_per_second: Vec<f64>,
    /// The share of the reads that hit.
    pub hit_ratio: Option<f64>,
    /// The share of the stores that were refused.
    pub refused_share: f64,
    /// The number of items at the end.
    pub items: u64,
    /// The bytes of `memory_bytes` that were in use at the end.
    pub used_bytes: u64,
    /// `used_bytes` over `items`.
    pub bytes_per_item: Option<f64>,
    /// The bytes of tables alone, over `items`.
    pub index_bytes_per_item: Option<f64>,
    /// The items that were evicted in the whole run.
    pub evictions: u64,
    /// The median time of a batch by the wall clock, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// The time that 99 % of the batches do not exceed, in nanoseconds.
    pub p99_ns: Option<u64>,
    /// The time that 99.9 % of the batches do not exceed, in nanoseconds.
    pub p999_ns: Option<u64>,
    /// The longest batch by the thread's CPU clock, in nanoseconds.
    pub longest_ns: Option<u64>,
    /// Why the engine did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether this is the engine that the advice recommends.
    pub recommended: bool,
}

impl Row {
    /// Sums up the rounds of an engine.
    pub fn new(
        engine: &'static str,
        measured: &Measured,
        arguments: &AdviseArguments,
        source: &Source,
        trace: Summary,
    ) -> Self {
        let rates = Spread::of(&measured.rates);
        let statistics = &measured.statistics;
        let timing = measured.timing.as_ref();
        let by_item =
            |bytes: u64| (statistics.items > 0).then(|| bytes as f64 / statistics.items as f64);
        let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
        Self {
            engine,
            commit: commit(),
            machine: Machine::describe(),
            trace,
            memory_bytes: source.memory_bytes,
            threads: source.threads,
            batch: arguments.batch,
            requests_per_second: rates.map(|rates| rates.median.round()),
            min_max: rates.map(|rates| [rates.min.round(), rates.max.round()]),
            rounds_requests_per_second: measured.rates.iter().map(|rate| rate.round()).collect(),
            hit_ratio: share(measured.hits, measured.reads),
            refused_share: share(measured.refused, measured.stores).unwrap_or(0.0),
            items: statistics.items,
            used_bytes: statistics.memory.used,
            bytes_per_item: by_item(statistics.memory.used),
            index_bytes_per_item: by_item(statistics.memory.index),
            evictions: statistics.evictions,
            p50_ns: timing.map(|timing| timing.quantile_ns(0.5)),
            p99_ns: timing.map(|timing| timing.quantile_ns(0.99)),
            p999_ns: timing.map(|timing| timing.quantile_ns(0.999)),
            longest_ns: timing.map(|timing| timing.longest_cpu_ns),
            problem: measured.problem.clone(),
            recommended: false,
        }
    }
}

/// The rows as a table, for people.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<11} {:>10} {:>8} {:>9} {:>9} {:>10} {:>8} {:>8} {:>9}\n",
        "ENGINE", "M REQ/S", "HITS", "MEMORY", "ITEMS", "BYTES/ITEM", "50 %", "99 %", "99.9 %"
    );
    let decimals = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let micros = |time: Option<u64>| decimals(time.map(|time| time as f64 / 1e3), 1);
    for row in rows {
        if let Some(problem) = &row.problem {
            text += &format!("{:<11} did not run: {problem}\n", row.engine);
            continue;
        }
        text += &format!(
            "{:<11} {:>10} {:>8} {:>9} {:>9} {:>10} {:>8} {:>8} {:>9}\n",
            row.engine,
            decimals(row.requests_per_second.map(|rate| rate / 1e6), 3),
            decimals(row.hit_ratio.map(|ratio| 100.0 * ratio), 2) + " %",
            format!("{:.1} MiB", row.used_bytes as f64 / f64::from(1 << 20)),
            row.items,
            decimals(row.bytes_per_item, 1),
            micros(row.p50_ns),
            micros(row.p99_ns),
            micros(row.p999_ns),
        );
    }
    if let Some(row) = rows.first() {
        let (batch, threads) = (row.batch, row.threads);
        let memory = row.memory_bytes as f64 / f64::from(1 << 20);
        text += &format!(
            "Microseconds for {batch} requests at once; {threads} threads, {memory:.0} MiB."
        );
    }
    text
}
