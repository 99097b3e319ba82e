//! `bench caches`: the number of items that a cache of a given size holds and its hit ratio, for
//! each engine (MemC3, table 3).
//!
//! Each cache starts empty and runs the same requests twice: its contents then depend only on the
//! most recent requests, and the second pass is counted. The paper's sizes exclude the table, and
//! so do these.

use anyhow::Context;
use clap::{Args, FromArgMatches};

use super::engines::Entry;
use super::{IndexArguments, IndexLine, run};
use crate::measure::{Machine, commit, parse_count, parse_size};

/// Bytes of the smallest item that is assumed: tables are large enough for items of this size.
const SMALLEST_ITEM_BYTES: u64 = 48;

/// Measure the number of items and the hit ratio of caches by size.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheArguments {
    /// Engines to measure.
    #[arg(long, value_delimiter = ',', default_value = "global-lock,lru-cuckoo,memc3")]
    pub engine: Vec<String>,
    /// Sizes of the caches, without their tables.
    #[arg(long, value_delimiter = ',', value_parser = parse_size,
        default_value = "64Mi,128Mi,256Mi,512Mi,1Gi,2Gi")]
    pub sizes: Vec<u64>,
    /// Number of keys in the key space.
    #[arg(long, value_parser = parse_count, default_value = "100M")]
    pub keys: u64,
    /// Length of a key in bytes.
    #[arg(long, default_value_t = 16)]
    pub key_bytes: usize,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 32)]
    pub value_bytes: usize,
    /// Skew of the popularity of keys; 0 is uniform.
    #[arg(long, default_value_t = 0.99)]
    pub theta: f64,
    /// Number of requests in a pass. It must exceed the number in which n distinct keys occur, so
    /// that an LRU cache of n items has forgotten its initial state.
    #[arg(long, value_parser = parse_count, default_value = "100M")]
    pub requests: u64,
    /// Seed of the requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object per line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The result of one cell of the table: one engine at one size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CacheResult {
    /// The engine that was measured.
    pub engine: String,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// The memory for items in bytes.
    pub memory_bytes: u64,
    keys: u64,
    key_bytes: usize,
    value_bytes: usize,
    theta: f64,
    requests: u64,
    seed: u64,
    /// The number of items at the end.
    pub items: u64,
    /// The memory for items divided by the number of items.
    pub bytes_per_item: f64,
    /// The memory for items and the table, divided by the number of items.
    pub bytes_per_item_and_slot: Option<f64>,
    /// The share of reads that hit; only given if anything was evicted, because a cache that holds
    /// all requested keys always hits in the second pass.
    pub hit_ratio: Option<f64>,
    /// The number of items that were evicted.
    pub evictions: u64,
    /// Operations per second on one thread, which is not isolated from other work.
    pub ops_per_second: f64,
}

impl CacheResult {
    /// The result as text for people.
    pub fn summary(&self) -> String {
        let hits = self.hit_ratio.map_or("nothing was evicted".to_owned(), |ratio| {
            format!("hits {:.2} %", ratio * 100.0)
        });
        format!(
            "{:<14} {:>6} MiB  {:>7.3} M items  {:>6.1} bytes each  {hits}",
            self.engine,
            self.memory_bytes >> 20,
            self.items as f64 / 1e6,
            self.bytes_per_item,
        )
    }
}

/// Measures all engines at all sizes, and passes each result to `show` at once.
///
/// # Errors
///
/// If an argument is invalid, an engine cannot be built, or `show` fails.
pub fn run_caches(
    arguments: &CacheArguments,
    engines: &[Entry],
    mut show: impl FnMut(&CacheResult) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for size in &arguments.sizes {
        for engine in &arguments.engine {
            let index = arguments.index_arguments(engine, *size)?;
            let mut result = None;
            run(&index, engines, |line| {
                if let IndexLine::Measured(measured) = line {
                    result = Some(measured.clone());
                }
                Ok(())
            })?;
            let result = result.context("an engine has a result")?;
            let items = result.items.max(1) as f64;
            let bytes_per_item = *size as f64 / items;
            let index_bytes = result.index_bytes_per_item;
            show(&CacheResult {
                engine: engine.clone(),
                commit: commit(),
                machine: Machine::describe(),
                memory_bytes: *size,
                keys: arguments.keys,
                key_bytes: arguments.key_bytes,
                value_bytes: arguments.value_bytes,
                theta: arguments.theta,
                requests: arguments.requests,
                seed: arguments.seed,
                items: result.items,
                bytes_per_item,
                bytes_per_item_and_slot: index_bytes.map(|bytes| bytes + bytes_per_item),
                hit_ratio: result.hit_ratio.filter(|_| result.evictions > 0),
                evictions: result.evictions,
                ops_per_second: result.ops_per_second,
            })?;
        }
    }
    Ok(())
}

impl CacheArguments {
    /// The arguments of `bench index` that measure a cell.
    fn index_arguments(&self, engine: &str, size: u64) -> anyhow::Result<IndexArguments> {
        let expected = (size / SMALLEST_ITEM_BYTES).max(1);
        let mut words = vec![
            "index".to_owned(),
            format!("--engine={engine}"),
            "--workload=cache".to_owned(),
            format!("--memory={size}"),
            format!("--expected={expected}"),
            format!("--keys={}", self.keys),
            format!("--key-bytes={}", self.key_bytes),
            format!("--value-bytes={}", self.value_bytes),
            format!("--theta={}", self.theta),
            format!("--requests={}", self.requests),
            format!("--seed={}", self.seed),
            "--table-apart".to_owned(),
            "--rounds=1".to_owned(),
            "--timed=1".to_owned(),
        ];
        // Every access moves its item to the front, as in the paper; the clock is constant here.
        words.extend((engine == "global-lock").then(|| "--disable=lazy-bump".to_owned()));
        let command = IndexArguments::augment_args(clap::Command::new("index"));
        Ok(IndexArguments::from_arg_matches(&command.try_get_matches_from(words)?)?)
    }
}
