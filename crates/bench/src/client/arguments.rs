//! The command line of `bench server` and `bench null-server`.

use std::net::SocketAddr;

use anyhow::{Context, ensure};

use crate::measure::parse_count;
use crate::workload::{KeySpace, MOST_KEYS, SHORTEST_TEXT_KEY_BYTES};

/// The protocol that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The text protocol's `get` and `set`.
    Text,
    /// The meta protocol's `mg` and `ms`.
    Meta,
    /// The binary protocol.
    Binary,
    /// The binary protocol in UDP datagrams.
    Udp,
}

/// Measures servers over sockets.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerArguments {
    /// Servers to measure, separated by commas; several servers run in alternation.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    pub target: Vec<String>,
    /// Protocol to use.
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value = "text")]
    pub protocol: Protocol,
    /// Number of connections that send requests.
    #[arg(long, value_name = "NUM", default_value_t = 32)]
    pub connections: usize,
    /// Number of connections that are open and idle.
    #[arg(long, value_name = "NUM", default_value_t = 0)]
    pub idle: usize,
    /// Number of requests in flight per connection.
    #[arg(long, value_name = "NUM", default_value_t = 1)]
    pub depth: usize,
    /// Number of keys per get.
    #[arg(long, value_name = "NUM", default_value_t = 1)]
    pub multi: usize,
    /// Fraction of the requests that are sets, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub set: f64,
    /// Skew of the popularity of keys (the exponent of Zipf's law); 0 is uniform.
    #[arg(long, value_name = "NUM", default_value_t = 0.99)]
    pub theta: f64,
    /// Number of keys in the key space.
    #[arg(long, value_name = "NUM", value_parser = parse_count, default_value = "1M")]
    pub keys: u64,
    /// Length of a key in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub key_bytes: usize,
    /// Length of a value in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 32)]
    pub value_bytes: usize,
    /// Duration of a round in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub seconds: f64,
    /// Number of rounds of each server [default: 1, or 5 for several servers].
    #[arg(long, value_name = "NUM")]
    pub rounds: Option<usize>,
    /// Compare every server with this one, round by round.
    #[arg(long, value_name = "HOST:PORT")]
    pub ratio_to: Option<String>,
    /// Process ids of the servers, one per target, whose CPU time is reported.
    #[arg(long, value_name = "PIDS", value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Number of client threads.
    #[arg(long, value_name = "NUM", default_value_t = 1)]
    pub threads: usize,
    /// Cores for the client's threads, separated by commas [default: the system chooses].
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Number of keys in the generated requests, which are repeated cyclically [default: that of
    /// --keys, between 1M and 16M].
    #[arg(long, value_name = "NUM", value_parser = parse_count)]
    pub requests: Option<u64>,
    /// Do not store the keys first.
    #[arg(long)]
    pub no_load: bool,
    /// Compare every value with the stored one (text protocol only; costs client CPU time).
    #[arg(long)]
    pub verify: bool,
    /// Seed of the requests.
    #[arg(long, value_name = "NUM", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object for each server on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The largest value whose answer fits one datagram.
const LARGEST_DATAGRAM_VALUE_BYTES: usize = 1200;

impl ServerArguments {
    /// Checks that the options can be run.
    ///
    /// # Errors
    ///
    /// If an option is invalid; the error names it and says what is wrong.
    pub fn check(&self) -> anyhow::Result<()> {
        KeySpace::new(self.key_bytes)?;
        let shortest = SHORTEST_TEXT_KEY_BYTES;
        ensure!(self.key_bytes >= shortest, "--key-bytes must be at least {shortest}");
        ensure!((1..=MOST_KEYS).contains(&self.keys), "--keys must be 1 to {MOST_KEYS}");
        ensure!((1..=64 << 20).contains(&self.value_bytes), "--value-bytes must be 1 to 64 MiB");
        ensure!((1..=100_000).contains(&self.connections), "--connections must be 1 to 100000");
        ensure!(self.idle <= 1_000_000, "--idle must be at most a million");
        ensure!((1..=4096).contains(&self.depth), "--depth must be 1 to 4096");
        ensure!((1..=1024).contains(&self.multi), "--multi must be 1 to 1024");
        ensure!((0.0..=1.0).contains(&self.set), "--set must be 0 to 1");
        ensure!((0.01..=86400.0).contains(&self.seconds), "--seconds must be 0.01 to 86400");
        ensure!(self.rounds != Some(0), "--rounds must be at least 1");
        ensure!(
            (1..=self.connections).contains(&self.threads),
            "--threads must be 1 to the number of connections"
        );
        let pids = self.server_pid.len();
        ensure!(
            pids == 0 || pids == self.target.len(),
            "--server-pid needs one process id for each --target"
        );
        if let Some(name) = &self.ratio_to {
            ensure!(self.target.contains(name), "--ratio-to {name} is not among --target");
        }
        ensure!(!self.verify || self.protocol == Protocol::Text, "--verify needs --protocol text");
        if self.protocol == Protocol::Udp {
            ensure!(self.multi == 1, "--multi over UDP would be answered in several datagrams");
            let largest = LARGEST_DATAGRAM_VALUE_BYTES;
            ensure!(
                self.value_bytes <= largest,
                "--value-bytes must be at most {largest} over UDP"
            );
        }
        Ok(())
    }

    /// The number of rounds to run for each target.
    pub fn round_count(&self) -> usize {
        self.rounds.unwrap_or(if self.target.len() > 1 { 5 } else { 1 })
    }

    /// The number of requests to generate.
    pub fn request_count(&self) -> usize {
        let keys = self.requests.unwrap_or(self.keys.clamp(1 << 20, 16 << 20));
        let fitting = usize::try_from(keys).unwrap_or(usize::MAX) / self.multi;
        fitting.max(4 * self.depth)
    }
}

/// The first address that a name resolves to.
pub fn address_of(target: &str) -> anyhow::Result<SocketAddr> {
    let mut addresses = crate::resolve(target).with_context(|| format!("'{target}'"))?;
    addresses.next().with_context(|| format!("'{target}' has no address"))
}

/// Answer every text request with constants, to measure the cost of sockets alone.
#[derive(Clone, Debug, clap::Args)]
pub struct StubServerArguments {
    /// TCP port; 0 chooses a free port, which is printed.
    #[arg(short, long, value_name = "NUM", default_value_t = 11311)]
    pub port: u16,
    /// Keys per get.
    #[arg(long, default_value_t = 1)]
    pub multi: usize,
    /// Length of a key in bytes.
    #[arg(long, default_value_t = 16)]
    pub key_bytes: usize,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 32)]
    pub value_bytes: usize,
    /// Core to run on.
    #[arg(long)]
    pub core: Option<usize>,
}
