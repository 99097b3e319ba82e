//! The line that `bench index` prints for an engine.

use amalgam_index::Statistics;
use clap::ValueEnum;

use crate::driver::arguments::IndexArguments;
use crate::driver::requests::Tally;
use crate::driver::watch::{POINT_SECONDS, Watch};
use crate::measure::{Machine, Spread, Timing, commit};

/// What `bench index` prints for an engine and a workload.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum IndexLine {
    /// The engine was measured.
    Measured(Box<IndexResult>),
    /// The engine could not be measured.
    Failed(Box<EngineFailure>),
}

impl IndexLine {
    /// The line for people.
    pub fn summary(&self) -> String {
        match self {
            Self::Measured(result) => result.summary(),
            Self::Failed(failed) => {
                format!("{:<16} not measured: {}", failed.engine, failed.failure)
            }
        }
    }
}

/// An engine that failed before it was measured, for want of memory say. It has no figures.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineFailure {
    /// The name of the engine.
    pub engine: String,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine of the run; see [`Machine`].
    pub machine: Machine,
    /// The parameters of the run.
    #[serde(flatten)]
    pub parameters: Parameters,
    /// The reason.
    pub failure: String,
}

impl EngineFailure {
    /// The failure of `engine`.
    pub fn new(engine: &str, parameters: Parameters, failure: String) -> Self {
        let (commit, machine) = (commit(), Machine::describe());
        Self { engine: engine.to_owned(), commit, machine, parameters, failure }
    }
}

/// The result of one engine: parameters, then figures. One operation is one key.
#[derive(Clone, Debug, serde::Serialize)]
pub struct IndexResult {
    /// The name of the engine that was measured.
    pub engine: String,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// The parameters of the measurement.
    #[serde(flatten)]
    pub parameters: Parameters,
    /// Operations a second of all threads together: the median of the rounds.
    pub ops_per_second: f64,
    /// Operations a second in the slowest round.
    pub min: f64,
    /// Operations a second in the fastest round.
    pub max: f64,
    /// The median of the rounds over the number of threads.
    pub ops_per_second_per_thread: f64,
    /// Operations a second of all rounds, in order.
    pub rounds_ops_per_second: Vec<f64>,
    /// Operations a second over those of the engine named by `--ratio-to`: the median of the ratios
    /// round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The smallest and the largest of these ratios.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_min_max: Option<[f64; 2]>,
    /// Growth of resident memory by the load, in bytes an item. Absent where all memory was touched
    /// when the engine was opened.
    pub bytes_per_item: Option<f64>,
    /// Memory of the tables alone, in bytes an item. Absent where the engine does not count it.
    pub index_bytes_per_item: Option<f64>,
    /// Last-level cache misses an operation, without those of the driver itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_accesses_per_op: Option<f64>,
    /// First-level cache misses an operation, without those of the driver itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_level_misses_per_op: Option<f64>,
    /// The means by which cache misses were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_counted_by: Option<String>,
    /// Items that an operation inspected before it found its own. Absent where the engine does not
    /// count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items_passed_per_op: Option<f64>,
    /// The median latency of single operations in nanoseconds, clock reading included.
    pub p50_ns: u64,
    /// The 99th percentile of the same latency.
    pub p99_ns: u64,
    /// The 99.9th percentile of the same latency.
    pub p999_ns: u64,
    /// The median latency of a loop that only reads the clocks, in nanoseconds.
    pub null_p50_ns: u64,
    /// The number of operations that were timed.
    pub timed_operations: u64,
    /// Reads that found their key over all reads; absent where nothing was read.
    pub hit_ratio: Option<f64>,
    /// The number of expansions (or rehashes) since the index was opened.
    pub expansions: u64,
    /// The longest operation by the thread's CPU clock, in nanoseconds.
    pub longest_pause_ns: u64,
    /// The longest iteration of the null loop by the same clock, in nanoseconds.
    pub longest_null_ns: u64,
    /// The longest operation by the wall clock, in nanoseconds.
    pub longest_pause_wall_ns: u64,
    /// The longest iteration of the null loop by the wall clock, in nanoseconds.
    pub longest_null_wall_ns: u64,
    /// The longest time in nanoseconds that an expansion excluded all threads, as the engine
    /// counted it; 0 where none did.
    pub longest_exclusion_ns: u64,
    /// Operations a second while the table expanded. Absent where no expansion was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_second_expanding: Option<f64>,
    /// Operations a second while the table did not expand, in the same rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_second_steady: Option<f64>,
    /// Throughput during an expansion over the mean of that right before and right after it: the
    /// median over all expansions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expansion_ratio: Option<f64>,
    /// Throughput during an expansion over that right before it, of the same table: the median over
    /// the expansions of the last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expansion_ratio_to_before: Option<f64>,
    /// Throughput during an expansion over that right after it, of the table with half the load:
    /// the median over the expansions of the last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expansion_ratio_to_after: Option<f64>,
    /// Operations a second in each tenth of a second of the last round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline_ops_per_second: Vec<f64>,
    /// The number of items at the end.
    pub items: u64,
    /// The number of buckets at the end.
    pub buckets: u64,
    /// Items evicted over the whole run.
    pub evictions: u64,
    /// Writes refused for want of memory, over the whole run.
    pub refused: u64,
}

/// The parameters of a measurement: the options of the command line after defaults.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Parameters {
    workload: crate::workload::Workload,
    /// The number of keys that were loaded.
    keys: u64,
    key_bytes: usize,
    value_bytes: usize,
    theta: f64,
    threads: usize,
    batch: usize,
    seconds: f64,
    warm_up_seconds: f64,
    rounds: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_keys_per_bucket: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fill: Option<f64>,
    memory_bytes: u64,
    evicts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    displacements: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stripes: Option<usize>,
    writers: String,
    disable: Vec<String>,
    requests: u64,
    seed: u64,
    prefault: bool,
    pinned: bool,
    /// Whether all engines were kept in memory; otherwise each was loaded anew for each round.
    side_by_side: bool,
}

impl Parameters {
    /// The parameters of `arguments` with `keys` loaded keys. `pinned` and `side_by_side` are facts
    /// of the run.
    pub fn new(arguments: &IndexArguments, keys: u64, pinned: bool, side_by_side: bool) -> Self {
        let configuration = arguments.configuration();
        Self {
            workload: arguments.workload,
            keys,
            key_bytes: arguments.key_bytes,
            value_bytes: arguments.value_bytes,
            theta: arguments.theta(),
            threads: arguments.threads,
            batch: arguments.batch,
            seconds: arguments.seconds,
            warm_up_seconds: arguments.warm_up_time().as_secs_f64(),
            rounds: arguments.rounds,
            ratio_keys_per_bucket: arguments.ratio,
            fill: arguments.fill,
            memory_bytes: configuration.memory_bytes as u64,
            evicts: configuration.evicts,
            slots: arguments.slots,
            paths: arguments.paths.map(|paths| format!("{paths:?}").to_lowercase()),
            displacements: arguments.displacements,
            stripes: arguments.stripes,
            writers: arguments.writers.clone(),
            disable: arguments.disable.clone(),
            requests: arguments.recipe(keys).requests as u64,
            seed: arguments.seed,
            prefault: configuration.prefault,
            pinned,
            side_by_side,
        }
    }
}

impl Parameters {
    /// The parameters that distinguish the runs of one command, for a heading.
    pub fn heading(&self) -> String {
        let workload = self.workload.to_possible_value();
        let workload = workload.as_ref().map_or("get", |value| value.get_name());
        let thread = if self.threads == 1 { "thread" } else { "threads" };
        format!(
            "workload {workload}, theta {}; {} keys of {} + {} bytes; {} {thread}, batches of {}",
            self.theta, self.keys, self.key_bytes, self.value_bytes, self.threads, self.batch
        )
    }
}

/// The measurements of one engine over all its rounds.
#[derive(Default)]
pub struct Measured {
    /// Operations a second of each round.
    pub rates: Vec<f64>,
    /// The counts of operations over all rounds.
    pub tally: Tally,
    /// The latencies of the timed pass.
    pub timing: Timing,
    /// The latencies of the null loop, measured right after the timed pass.
    pub null: Timing,
    /// Growth of resident memory by the load, in bytes an item; `None` where it was not measured.
    pub bytes_per_item: Option<f64>,
    /// The engine's statistics after the last round.
    pub statistics: Statistics,
    /// Memory of the tables in bytes an item; `None` where the engine does not count it.
    pub index_bytes_per_item: Option<f64>,
    /// Throughput over time in the last round.
    pub watch: Watch,
    /// The expansion ratio of each round in which the table expanded.
    pub expansion_ratios: Vec<f64>,
    /// The number of writes that were refused during the load.
    pub refused_at_load: u64,
}

impl IndexResult {
    /// Seconds between two points of the timeline.
    pub const TIMELINE_SECONDS: f64 = POINT_SECONDS;

    /// Summarizes the measurements of `engine`. `reference` are the rates of each round of the
    /// engine named by `--ratio-to`.
    pub fn new(
        engine: &str,
        parameters: Parameters,
        measured: &Measured,
        reference: Option<&[f64]>,
    ) -> anyhow::Result<Self> {
        let rates = Spread::of(&measured.rates)
            .ok_or_else(|| anyhow::anyhow!("no round of {engine} was measured"))?;
        let ratios = reference.and_then(|reference| {
            let pairs = measured.rates.iter().zip(reference);
            Spread::of(&pairs.map(|(own, other)| own / other).collect::<Vec<_>>())
        });
        let timing = &measured.timing;
        let statistics = &measured.statistics;
        let tally = &measured.tally;
        Ok(Self {
            engine: engine.to_owned(),
            commit: commit(),
            machine: Machine::describe(),
            ops_per_second: rates.median.round(),
            min: rates.min.round(),
            max: rates.max.round(),
            ops_per_second_per_thread: (rates.median / parameters.threads as f64).round(),
            rounds_ops_per_second: measured.rates.iter().map(|rate| rate.round()).collect(),
            ratio: ratios.map(|ratios| ratios.median),
            ratio_min_max: ratios.map(|ratios| [ratios.min, ratios.max]),
            bytes_per_item: measured.bytes_per_item,
            index_bytes_per_item: measured.index_bytes_per_item,
            dram_accesses_per_op: None,
            first_level_misses_per_op: None,
            dram_counted_by: None,
            items_passed_per_op: (statistics.items_passed > 0.0).then_some(statistics.items_passed),
            p50_ns: timing.quantile_ns(0.5),
            p99_ns: timing.quantile_ns(0.99),
            p999_ns: timing.quantile_ns(0.999),
            null_p50_ns: measured.null.quantile_ns(0.5),
            timed_operations: timing.operations(),
            hit_ratio: (tally.reads > 0).then(|| tally.hits as f64 / tally.reads as f64),
            expansions: statistics.expansions,
            longest_pause_ns: timing.longest_cpu_ns,
            longest_null_ns: measured.null.longest_cpu_ns,
            longest_pause_wall_ns: timing.longest_wall_ns(),
            longest_null_wall_ns: measured.null.longest_wall_ns(),
            longest_exclusion_ns: statistics.longest_pause_ns,
            ops_per_second_expanding: measured.watch.rate(true).map(f64::round),
            ops_per_second_steady: measured.watch.rate(false).map(f64::round),
            expansion_ratio: Spread::of(&measured.expansion_ratios).map(|spread| spread.median),
            expansion_ratio_to_before: measured.watch.expansion_ratio_to_before(),
            expansion_ratio_to_after: measured.watch.expansion_ratio_to_after(),
            timeline_ops_per_second: measured.watch.timeline(),
            items: statistics.items,
            buckets: statistics.buckets,
            evictions: statistics.evictions,
            refused: tally.refused + measured.refused_at_load,
            parameters,
        })
    }

    /// The result as one line for people.
    pub fn summary(&self) -> String {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
        let counted = |name: &str, value: Option<f64>| {
            value.map_or(String::new(), |value| format!("  {name} {value:.3}"))
        };
        format!(
            "{:<16} {:>8.2} M/s  ({:.2} to {:.2})  ratio {}  p50 {} ns  p99 {} ns  longest {} us  \
             hits {}  bytes/item {}  passed {}{}{}{}",
            self.engine,
            self.ops_per_second / 1e6,
            self.min / 1e6,
            self.max / 1e6,
            number(self.ratio),
            self.p50_ns,
            self.p99_ns,
            self.longest_pause_ns / 1000,
            number(self.hit_ratio),
            number(self.bytes_per_item),
            number(self.items_passed_per_op),
            counted("DRAM accesses", self.dram_accesses_per_op),
            counted("expanding, of before", self.expansion_ratio_to_before),
            counted("of after", self.expansion_ratio_to_after),
        )
    }
}
