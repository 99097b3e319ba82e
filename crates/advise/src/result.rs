//! What was measured of each engine, for programs and for people.

use amalgam_index::Statistics;

use super::replay::Round;
use super::{AdviseArguments, Source};
use crate::trace::Summary;
use amalgam_bench::measure::{Machine, Spread, Timing, commit};

/// What was measured of one engine, over all its turns.
#[derive(Default)]
pub struct Measured {
    /// Requests a second, by round.
    pub rates: Vec<f64>,
    /// Of the timed pass.
    pub timing: Option<Timing>,
    /// At the end of the last round.
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

/// The line of an engine. Absent is what was not measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The engine.
    pub engine: &'static str,
    /// See [`commit`].
    pub commit: &'static str,
    /// See [`Machine`].
    pub machine: Machine,
    /// What was replayed.
    pub trace: Summary,
    /// The memory limit.
    pub memory_bytes: u64,
    /// Threads.
    pub threads: usize,
    /// Requests at once.
    pub batch: usize,
    /// Requests a second of all threads: the median of the rounds.
    pub requests_per_second: Option<f64>,
    /// The slowest and the fastest round.
    pub min_max: Option<[f64; 2]>,
    /// All rounds, in order.
    pub rounds_requests_per_second: Vec<f64>,
    /// Reads that hit over reads.
    pub hit_ratio: Option<f64>,
    /// Stores refused over stores.
    pub refused_share: f64,
    /// Items at the end.
    pub items: u64,
    /// Memory in use at the end, of the limit.
    pub used_bytes: u64,
    /// That over items.
    pub bytes_per_item: Option<f64>,
    /// Tables alone, over items.
    pub index_bytes_per_item: Option<f64>,
    /// Items evicted over the whole run.
    pub evictions: u64,
    /// How long a batch takes on the wall.
    pub p50_ns: Option<u64>,
    /// As `p50_ns`.
    pub p99_ns: Option<u64>,
    /// As `p50_ns`.
    pub p999_ns: Option<u64>,
    /// The longest batch by the thread's CPU clock.
    pub longest_ns: Option<u64>,
    /// Why the engine did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether this is the one to choose.
    pub recommended: bool,
}

impl Row {
    /// Sums up.
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

/// The rows side by side, for people.
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
