//! The command line of `bench trace`.

use std::path::PathBuf;

use anyhow::{Context, ensure};

use super::client::MOST_BATCH_KEYS;
use super::generator::Generator;
use super::policy::PolicySet;
use super::server::ServerName;
use super::sizes::SizeModel;
use super::source::{Format, Reading};
use crate::measure::{parse_count, parse_size};
use crate::workload::{LONGEST_KEY_BYTES, SHORTEST_TEXT_KEY_BYTES};

/// Replay traces through memcached's protocol, and count what each server misses.
///
/// A client that looks aside: it gets, and sets what it missed. Servers are compared at equal
/// resident memory.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayArguments {
    /// Files of traces, plain or compressed by xz or zstd.
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// A server to start, NAME=PROGRAM[,ARGUMENT…] (-l, -p, -m and, as root, -u are added), or one
    /// that runs and is empty, NAME=HOST:PORT. May be repeated.
    #[arg(long, value_name = "NAME=SERVER")]
    pub server: Vec<ServerName>,
    /// The server that the others' memory is made equal to, and their misses divided by [default:
    /// the last].
    #[arg(long, value_name = "NAME")]
    pub ratio_to: Option<String>,
    /// Lengths of values: trace, fixed:BYTES, lognormal:MEDIAN or lognormal:MEDIAN:SIGMA;
    /// several after commas.
    #[arg(long, value_name = "MODELS", value_delimiter = ',', default_value = "lognormal:200")]
    pub sizes: Vec<SizeModel>,
    /// Memory limit of the server that others are compared with; several after commas.
    #[arg(long, short, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
          default_value = "64MiB")]
    pub memory: Vec<u64>,
    /// Memory limit over the bytes of all keys and values; copies are made so that it holds;
    /// several after commas.
    #[arg(long, value_name = "SHARES", value_delimiter = ',', conflicts_with = "copies")]
    pub share: Vec<f64>,
    /// Copies of the trace with keys of their own, in lockstep [default: 1].
    #[arg(long, value_name = "COUNT")]
    pub copies: Option<u32>,
    /// Make the memory of servers equal: their resident bytes, or only their limits.
    #[arg(long, value_enum, default_value = "rss")]
    pub equal: Equal,
    /// Resident bytes that differ by no more than this share count as equal.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02)]
    pub tolerance: f64,
    /// Policies to simulate with the payload bytes that the first server held, and CLOCK with one
    /// bit with those of each: all, none, or fifo, lru, clock-1, clock-2, sieve, s3-fifo,
    /// w-tinylfu, w-tinylfu-adaptive, gdsf, belady after commas.
    #[arg(long, value_name = "NAMES", default_value = "all")]
    pub policies: PolicySet,
    /// Format of the traces [default: by name and first bytes].
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Requests of each trace to replay, from its beginning, or to generate for files that hold
    /// none [default: 20M; 5M are generated].
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub requests: Option<u64>,
    /// Popular keys of requests that follow CacheLib's distributions.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1M")]
    pub keys: u64,
    /// Skew of requests that are generated for a dump of keys.
    #[arg(long, default_value_t = 0.99)]
    pub theta: f64,
    /// Seed of requests that are generated.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Length of a key in bytes.
    #[arg(long, default_value_t = 16)]
    pub key_bytes: usize,
    /// Connections to each server; a copy uses one of them.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub connections: usize,
    /// Requests that are on the way at once.
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub batch: usize,
    /// File of results: replays that it holds are not repeated, others are appended.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
}

/// What is made equal when servers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Equal {
    /// Resident memory after the replay.
    Rss,
    /// Memory limits.
    Limit,
}

/// The most items that copies of a trace may have.
const MOST_ITEMS: u64 = 1 << 31;

impl ReplayArguments {
    /// Checks that the options can be run with.
    ///
    /// # Errors
    ///
    /// If an option is out of its range; the text names the option and the range.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.server.is_empty(), "name at least one --server");
        let mut names: Vec<&str> = self.server.iter().map(|server| server.name.as_str()).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(twice.is_none(), "--server: two are called {}", twice.map_or("", |pair| pair[0]));
        ensure!(
            (SHORTEST_TEXT_KEY_BYTES..=LONGEST_KEY_BYTES).contains(&self.key_bytes),
            "--key-bytes must be {SHORTEST_TEXT_KEY_BYTES} to {LONGEST_KEY_BYTES}"
        );
        ensure!((1..=256).contains(&self.connections), "--connections must be 1 to 256");
        ensure!(
            (1..=MOST_BATCH_KEYS).contains(&self.batch),
            "--batch must be 1 to {MOST_BATCH_KEYS}"
        );
        ensure!(self.requests != Some(0), "--requests must be at least 1");
        ensure!((1..=1 << 31).contains(&self.keys), "--keys must be 1 to 2^31");
        ensure!((0.001..=1.0).contains(&self.tolerance), "--tolerance must be 0.001 to 1");
        ensure!(self.copies.is_none_or(|copies| copies > 0), "--copies must be at least 1");
        ensure!(
            self.share.iter().all(|share| (0.0001..=100.0).contains(share)),
            "--share must be 0.0001 to 100"
        );
        let is_whole = |bytes: &u64| *bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20);
        ensure!(self.memory.iter().all(is_whole), "--memory must be whole mebibytes");
        self.reference().map(|_| ())
    }

    /// The server that others are compared with.
    pub(super) fn reference(&self) -> anyhow::Result<&ServerName> {
        let Some(name) = &self.ratio_to else {
            return self.server.last().context("name at least one --server");
        };
        let found = self.server.iter().find(|server| server.name == *name);
        found.with_context(|| format!("--ratio-to {name} is not the name of a --server"))
    }

    /// Which part of a trace is read, and how requests are generated.
    pub fn reading(&self) -> Reading {
        Reading {
            format: self.format,
            requests: self.requests,
            generator: Generator { keys: self.keys, theta: self.theta, seed: self.seed },
        }
    }

    /// Copies of a trace of `keys` keys with `bytes` bytes of keys and values, for a memory limit
    /// that is `share` of them all.
    pub(super) fn copies_for(
        &self,
        keys: u32,
        bytes: u64,
        memory_bytes: u64,
        share: Option<f64>,
    ) -> anyhow::Result<u32> {
        let copies = match share {
            None => u64::from(self.copies.unwrap_or(1)),
            Some(share) => (memory_bytes as f64 / (share * bytes as f64)).round() as u64,
        };
        let items = copies.saturating_mul(u64::from(keys));
        ensure!(items <= MOST_ITEMS, "{copies} copies have more than {MOST_ITEMS} items");
        ensure!(
            copies > 0,
            "one copy has {bytes} bytes: a share of {} needs more than {memory_bytes} bytes of \
             memory, so raise --memory",
            share.unwrap_or(1.0)
        );
        Ok(u32::try_from(copies)?)
    }
}
