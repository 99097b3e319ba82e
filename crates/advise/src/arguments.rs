//! The command line of `amalgam advise`.

use std::path::PathBuf;
use std::time::Duration;

use amalgam_index::Configuration;
use anyhow::ensure;

use super::Source;
use super::replay::{ENGINES, Entry, Limit};
use amalgam_bench::measure::{parse_count, parse_size};

/// Replays the requests that a server got on every engine, and recommends one.
#[derive(Clone, Debug, clap::Args)]
pub struct AdviseArguments {
    /// File with a trace: lines of `watch fetchers mutations deletions`, or comma-separated; `-` is
    /// standard input
    #[arg(value_name = "TRACE", conflicts_with = "server")]
    pub trace: Option<PathBuf>,
    /// Watch this server instead of reading a file (Amalgam or memcached)
    #[arg(long, value_name = "HOST:PORT")]
    pub server: Option<String>,
    /// How long to watch the server
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "server",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch_seconds: u64,
    /// Also write the lines that were watched to this file
    #[arg(long, value_name = "FILE", requires = "server")]
    pub save: Option<PathBuf>,
    /// Memory limit of each engine [default: the server's, or 64 MiB]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Number of threads that replay the trace [default: the server's, or 1]
    #[arg(long, short, value_name = "NUM")]
    pub threads: Option<usize>,
    /// Number of requests in a batch: a loaded server takes up several at once
    #[arg(long, value_name = "NUM", default_value_t = 16)]
    pub batch: usize,
    /// Engines to compare, separated by commas [default: all that serve]
    #[arg(long, value_name = "ENGINES", value_delimiter = ',')]
    pub engine: Vec<String>,
    /// Number of rounds of each engine
    #[arg(long, value_name = "NUM", default_value_t = 5)]
    pub rounds: usize,
    /// Length of a round
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,
    /// Number of requests of each thread that are timed batch by batch, after the rounds
    #[arg(long, value_name = "NUM", value_parser = parse_count, default_value = "1M")]
    pub timed: u64,
    /// Number of requests of the trace to use, from its beginning; each takes memory
    #[arg(long, value_name = "NUM", value_parser = parse_count, default_value = "5M")]
    pub most_requests: u64,
    /// Hit ratios that differ by no more than this count as equal
    #[arg(long, value_name = "SHARE", default_value_t = 0.005)]
    pub hit_ratio_tolerance: f64,
    /// Draw the comparison into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object a line: the engines, then the advice
    #[arg(long)]
    pub json: bool,
}

/// The largest batch, in requests.
const LARGEST_BATCH: usize = 1024;

/// The longest item that a server accepts by default, in bytes.
const DEFAULT_ITEM_BYTES: usize = 1 << 20;

/// The most bytes that an item takes on top of its key and its value.
const ITEM_OVERHEAD_BYTES: usize = 256;

/// The smallest memory limit in bytes: enough for a table and some pages of items.
const LEAST_MEMORY_BYTES: u64 = 4 << 20;

impl AdviseArguments {
    /// Checks that the options can be run with.
    ///
    /// # Errors
    ///
    /// If an option is out of its range; the text names the option and the range.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=LARGEST_BATCH).contains(&self.batch), "--batch must be 1 to {LARGEST_BATCH}");
        ensure!((1..=1000).contains(&self.rounds), "--rounds must be 1 to 1000");
        ensure!((0.001..=3600.0).contains(&self.seconds), "--seconds must be 0.001 to 3600");
        ensure!(self.most_requests > 0, "--most-requests must be more than 0");
        let tolerance = self.hit_ratio_tolerance;
        ensure!((0.0..=1.0).contains(&tolerance), "--hit-ratio-tolerance must be 0 to 1");
        Ok(())
    }

    /// The engines that the command line asks for.
    pub(super) fn entries(&self) -> anyhow::Result<Vec<Entry>> {
        let names: Vec<_> = ENGINES.iter().map(|entry| entry.0).collect();
        let unknown = self.engine.iter().find(|name| !names.contains(&name.as_str()));
        ensure!(
            unknown.is_none(),
            "there is no engine '{}': choose among {}",
            unknown.map_or("", String::as_str),
            names.join(", ")
        );
        let is_wanted = |entry: &&Entry| {
            self.engine.is_empty() || self.engine.iter().any(|name| name == entry.0)
        };
        Ok(ENGINES.iter().filter(is_wanted).copied().collect())
    }

    /// The configuration of each engine, which is a server's.
    pub(super) fn configuration(&self, source: &Source) -> anyhow::Result<Configuration> {
        let trace = &source.trace;
        let largest = trace.largest_key_bytes() + trace.largest_value_bytes() + ITEM_OVERHEAD_BYTES;
        let memory_bytes = usize::try_from(source.memory_bytes)?;
        let max_item_bytes = largest.max(DEFAULT_ITEM_BYTES.min(memory_bytes / 4));
        let least = LEAST_MEMORY_BYTES.max(3 * max_item_bytes as u64);
        ensure!(
            source.memory_bytes >= least,
            "--memory must be at least {} MiB for items of up to {largest} bytes",
            least.div_ceil(1 << 20)
        );
        Ok(Configuration {
            memory_bytes,
            max_item_bytes,
            workers: source.threads + 2,
            ..Configuration::default()
        })
    }

    pub(super) fn round_limit(&self) -> Limit {
        Limit::Time(Duration::from_secs_f64(self.seconds))
    }
}
