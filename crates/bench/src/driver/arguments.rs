//! The command line of `bench index`.

use std::path::PathBuf;
use std::time::Duration;

use amalgam_index::{Configuration, PathSearch, Tuning};
use amalgam_op::HashSeed;
use anyhow::ensure;
use clap::ValueEnum;

use crate::measure::{Machine, parse_count, parse_size};
use crate::workload::{KeySpace, MOST_KEYS, Recipe, Workload};

/// Measure engines in this process.
#[derive(Clone, Debug, clap::Args)]
pub struct IndexArguments {
    /// Engines to measure, separated by commas; several engines run in alternation.
    #[arg(long, value_delimiter = ',', required = true)]
    pub engine: Vec<String>,
    /// The mix of operations.
    #[arg(long, value_enum, default_value = "c")]
    pub workload: Workload,
    /// More workloads to run on the same items, which saves loading them again: names separated by
    /// commas, each with an optional colon and theta. Each is warmed up for a round.
    #[arg(long, value_delimiter = ',', value_parser = parse_next, conflicts_with = "fill")]
    pub then: Vec<(Workload, Option<f64>)>,
    /// Keys to load (for `grow`: to insert); 16M is 16 million, 16Mi is 2^24.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub keys: u64,
    /// Length of a key in bytes.
    #[arg(long, default_value_t = 8)]
    pub key_bytes: usize,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 8)]
    pub value_bytes: usize,
    /// Skew of the popularity of keys; 0 is uniform [default: 0.99 for the YCSB mixes, else 0].
    #[arg(long)]
    pub theta: Option<f64>,
    /// Number of threads, each pinned to a core.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Number of threads that load [default: that of --threads].
    #[arg(long)]
    pub load_threads: Option<usize>,
    /// Keys per bucket at load time; the table then stays at that size.
    #[arg(long)]
    pub ratio: Option<f64>,
    /// Number of keys that an engine sizes its table for at start [default: that of --keys]. A
    /// table that is sized for all keys it will ever hold never expands.
    #[arg(long, value_parser = parse_count)]
    pub expected: Option<u64>,
    /// Keys per call; 1 is one key per call through the same trait.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Duration of a round in seconds.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Seconds of warm-up before the first round [default: half a round, at most 5]. Engines whose
    /// heads follow hot items take long to find items that are rarely accessed.
    #[arg(long)]
    pub warm_up: Option<f64>,
    /// Number of rounds of each engine.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Compare every engine with this one, round by round.
    #[arg(long)]
    pub ratio_to: Option<String>,
    /// Limit the index to this size and let it evict [default: enough memory for everything].
    #[arg(long, value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Do not count the table towards --memory; it keeps the size that --expected gives.
    #[arg(long, requires = "memory")]
    pub table_apart: bool,
    /// Do not use huge pages.
    #[arg(long)]
    pub small_pages: bool,
    /// Load this share of the table's slots (0.95 is 95 %); the table does not grow. `--keys`
    /// sizes it.
    #[arg(long)]
    pub fill: Option<f64>,
    /// Number of slots per bucket.
    #[arg(long)]
    pub slots: Option<usize>,
    /// How cuckoo paths are searched: by 1 to 4 concurrent walks, or breadth-first (bfs).
    #[arg(long, value_parser = parse_paths)]
    pub paths: Option<PathSearch>,
    /// Maximum number of items that an insert may displace.
    #[arg(long)]
    pub displacements: Option<usize>,
    /// Number of version counters that the buckets share.
    #[arg(long)]
    pub stripes: Option<usize>,
    /// Concurrency of writers: with 1, one lock lets a single writer run at a time; or many.
    #[arg(long, value_parser = ["1", "many"], default_value = "many")]
    pub writers: String,
    /// Features to disable, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub disable: Vec<String>,
    /// Requests to generate for each thread; the thread repeats them cyclically.
    #[arg(long, value_parser = parse_count, default_value = "16Mi")]
    pub requests: u64,
    /// Number of operations that each thread times individually after the rounds.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub timed: u64,
    /// Seed of the requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Touch all memory of an index before it is used [default: true for workloads that insert].
    #[arg(long)]
    pub prefault: Option<bool>,
    /// Also count DRAM accesses: last-level misses on one thread under cachegrind. Takes minutes.
    #[arg(long)]
    pub dram: bool,
    /// Size of the cache that --dram models, a power of two. Fewer keys need a smaller one.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32MiB")]
    pub dram_cache: u64,
    /// Load, warm up, run this many operations and exit: the run that `--dram` observes.
    #[arg(long, hide = true)]
    pub count: Option<u64>,
    /// Also draw the throughput of all engines to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Print one JSON object per line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The most keys in a call. Larger batches gain nothing, and their buffers outgrow the
/// first-level cache.
const LARGEST_BATCH: usize = 1024;

/// Bytes that an item may take in addition to key and value, where no limit is given.
const ROOM_PER_ITEM_BYTES: u64 = 96;

/// Bytes of the table for each key that an engine is told to expect, where no limit is given.
const ROOM_PER_EXPECTED_BYTES: u64 = 32;

/// Memory in addition to the items, where no limit is given.
const ROOM_BYTES: u64 = 256 << 20;

/// Reads `--paths`.
pub fn parse_paths(text: &str) -> anyhow::Result<PathSearch> {
    match text {
        "1" | "2" | "3" | "4" => Ok(PathSearch::Walks(text.parse()?)),
        "bfs" => Ok(PathSearch::BreadthFirst),
        _ => anyhow::bail!("'{text}' is none of 1, 2, 3, 4, bfs"),
    }
}

fn parse_next(text: &str) -> anyhow::Result<(Workload, Option<f64>)> {
    let (name, theta) = match text.split_once(':') {
        Some((name, theta)) => (name, Some(theta.parse()?)),
        None => (text, None),
    };
    let workload = Workload::from_str(name, false).map_err(anyhow::Error::msg)?;
    Ok((workload, theta))
}

impl IndexArguments {
    /// The series of runs to measure on the same items, one after the other.
    pub fn series(&self) -> Vec<Self> {
        let next = |&(workload, theta): &(Workload, Option<f64>)| {
            let theta = theta.or(self.theta);
            Self { workload, theta, warm_up: Some(self.seconds), ..self.clone() }
        };
        std::iter::once(self.clone()).chain(self.then.iter().map(next)).collect()
    }

    /// Checks that the options can be run.
    ///
    /// # Errors
    ///
    /// If an option is invalid; the error names it and says what is wrong.
    pub fn check(&self) -> anyhow::Result<()> {
        KeySpace::new(self.key_bytes)?;
        ensure!((1..=MOST_KEYS).contains(&self.keys), "--keys must be 1 to {MOST_KEYS}");
        ensure!(self.value_bytes <= 1 << 20, "--value-bytes must be at most 1 MiB");
        ensure!((1..=1024).contains(&self.threads), "--threads must be 1 to 1024");
        let loaders = self.load_threads.unwrap_or(self.threads);
        ensure!((1..=1024).contains(&loaders), "--load-threads must be 1 to 1024");
        ensure!((1..=LARGEST_BATCH).contains(&self.batch), "--batch must be 1 to {LARGEST_BATCH}");
        ensure!(self.rounds >= 1, "--rounds must be at least 1");
        ensure!((0.001..=86400.0).contains(&self.seconds), "--seconds must be 0.001 to 86400");
        let is_brief = |seconds: f64| (0.0..=86400.0).contains(&seconds);
        ensure!(self.warm_up.is_none_or(is_brief), "--warm-up must be 0 to 86400");
        ensure!((1..=1 << 32).contains(&self.requests), "--requests must be 1 to 4Gi");
        ensure!(self.ratio.is_none_or(|r| r > 0.0 && r <= 1e6), "--ratio must be above 0");
        let expected = self.expected.unwrap_or(1);
        ensure!((1..=MOST_KEYS).contains(&expected), "--expected must be 1 to {MOST_KEYS}");
        ensure!(self.fill.is_none_or(|f| f > 0.0 && f <= 1.0), "--fill must be above 0, at most 1");
        ensure!(self.fill.is_none() || self.ratio.is_none(), "--fill and --ratio contradict");
        let counts = self.dram && self.workload.starts_empty();
        let is_modelled =
            self.dram_cache.is_power_of_two() && (1 << 16..=1 << 30).contains(&self.dram_cache);
        ensure!(is_modelled, "--dram-cache must be a power of two from 64 KiB to 1 GiB");
        ensure!(!counts, "--dram counts at a steady state, which {:?} has not", self.workload);
        let resizes = self.fill.is_some() && self.workload.starts_empty();
        ensure!(!resizes, "--fill loads a table and {:?} starts empty", self.workload);
        let fills = self.workload.fills_misses();
        ensure!(!fills || self.batch == 1, "what a read missed is written before the next request");
        let goes_on = !self.then.is_empty();
        let loads = |workload: Workload| workload.loads();
        let all_load = loads(self.workload) && self.then.iter().all(|next| loads(next.0));
        ensure!(!goes_on || all_load, "--then goes on with items that were loaded");
        ensure!(!goes_on || self.count.is_none(), "--count counts one workload");
        if let Some(name) = &self.ratio_to {
            ensure!(self.engine.contains(name), "--ratio-to {name} is not among --engine");
        }
        Ok(())
    }

    /// The options of a run in which `engine` is loaded and carries out `operations`, on one
    /// thread.
    pub fn words_to_count(&self, engine: &str, operations: u64) -> Vec<String> {
        let workload = self.workload.to_possible_value();
        let mut words = vec![
            format!("--engine={engine}"),
            format!("--workload={}", workload.as_ref().map_or("get", |value| value.get_name())),
            format!("--count={operations}"),
            format!("--keys={}", self.keys),
            format!("--key-bytes={}", self.key_bytes),
            format!("--value-bytes={}", self.value_bytes),
            format!("--theta={}", self.theta()),
            format!("--batch={}", self.batch),
            format!("--writers={}", self.writers),
            format!("--seed={}", self.seed),
            "--prefault=false".to_owned(),
        ];
        let paths = self.paths.map(|paths| match paths {
            PathSearch::Walks(walks) => walks.to_string(),
            PathSearch::BreadthFirst => "bfs".to_owned(),
        });
        let disable = (!self.disable.is_empty()).then(|| self.disable.join(","));
        for (name, value) in [
            ("ratio", self.ratio.map(|ratio| ratio.to_string())),
            ("expected", self.expected.map(|expected| expected.to_string())),
            ("fill", self.fill.map(|fill| fill.to_string())),
            ("memory", self.memory.map(|bytes| bytes.to_string())),
            ("slots", self.slots.map(|slots| slots.to_string())),
            ("paths", paths),
            ("displacements", self.displacements.map(|displacements| displacements.to_string())),
            ("stripes", self.stripes.map(|stripes| stripes.to_string())),
            ("disable", disable),
        ] {
            words.extend(value.map(|value| format!("--{name}={value}")));
        }
        for (name, is_set) in [("table-apart", self.table_apart), ("small-pages", self.small_pages)]
        {
            words.extend(is_set.then(|| format!("--{name}")));
        }
        words
    }

    /// The skew to use.
    pub fn theta(&self) -> f64 {
        self.theta.unwrap_or(self.workload.default_theta())
    }

    /// The duration of a round.
    pub fn round_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// The duration of an engine's warm-up.
    pub fn warm_up_time(&self) -> Duration {
        let half_a_round = (self.round_time() / 2).min(Duration::from_secs(5));
        self.warm_up.map_or(half_a_round, Duration::from_secs_f64)
    }

    /// The recipe of the requests, for `keys` loaded keys.
    pub fn recipe(&self, keys: u64) -> Recipe {
        // A cycle of inserts needs no length: inserts are numbered as they run.
        let most = if self.workload.starts_empty() { 1 << 16 } else { usize::MAX };
        Recipe {
            workload: self.workload,
            keys,
            theta: self.theta(),
            requests: usize::try_from(self.requests).unwrap_or(usize::MAX).min(most),
            seed: self.seed,
        }
    }

    /// The configuration to build an engine with.
    pub fn configuration(&self) -> Configuration {
        let buckets = self.ratio.map(|ratio| (self.keys as f64 / ratio).ceil().max(1.0) as usize);
        let starts_empty = self.workload.starts_empty();
        let expected = self.expected.unwrap_or(if starts_empty { 1024 } else { self.keys });
        let defaults = Configuration::default();
        Configuration {
            memory_bytes: usize::try_from(self.memory_bytes()).unwrap_or(usize::MAX),
            evicts: self.memory.is_some(),
            workers: self.threads.max(self.load_threads.unwrap_or(0)) + 4,
            expected_items: usize::try_from(expected).unwrap_or(usize::MAX),
            prefault: self.prefault.unwrap_or(self.workload.inserts()),
            seed: HashSeed::new(self.seed),
            tuning: Tuning {
                buckets,
                grows: self.fill.is_none() && self.ratio.is_none() && !self.table_apart,
                paths: self.paths,
                max_displacements: self.displacements,
                stripes: self.stripes,
                single_writer: self.writers == "1",
            },
            ..defaults
        }
    }

    /// The memory limit of an engine. If none is given, it has memory for every key, and as much as
    /// the machine can spare for keys that the workload inserts.
    fn memory_bytes(&self) -> u64 {
        let item = (self.key_bytes + self.value_bytes) as u64 + ROOM_PER_ITEM_BYTES;
        let table = self.expected.unwrap_or(0) * ROOM_PER_EXPECTED_BYTES;
        let needed = self.keys * item * 5 / 4 + table + ROOM_BYTES;
        let grows = self.workload.inserts() && !self.workload.starts_empty();
        let spare = Machine::available_bytes() / 2 / self.engine.len().max(1) as u64;
        self.memory.unwrap_or(if grows { needed.max(spare.min(4 * needed)) } else { needed })
    }
}
