//! The line that `bench server` prints for a target.

use crate::client::arguments::{Protocol, ServerArguments};
use crate::client::connections::Tally;
use crate::measure::{Machine, Spread, commit};

/// The share of its time above which a thread counts as saturated.
const SATURATED: f64 = 0.95;

/// The figures of one round.
#[derive(Clone, Debug)]
pub struct Round {
    pub(super) requests_per_second: f64,
    pub(super) keys_per_second: f64,
    pub(super) cpu_ns_per_key: Option<f64>,
    pub(super) p99_us: f64,
    pub(super) client_share: f64,
    pub(super) server_share: Option<f64>,
    pub(super) tally_hits: u64,
    pub(super) tally_asked: u64,
    pub(super) errors: u64,
    pub(super) resent: u64,
    quantiles_us: [f64; 3],
}

impl Round {
    /// The figures of a round from the merged tally of all threads and the CPU time in nanoseconds
    /// that the server used meanwhile; `None` where no process id was given.
    pub fn new(tally: &Tally, server_cpu_ns: Option<u64>) -> Self {
        let keys = tally.asked + tally.sets;
        let seconds = tally.seconds.max(1e-9);
        let quantile = |share| tally.latencies.value_at_quantile(share) as f64 / 1000.0;
        Self {
            requests_per_second: tally.answers.requests as f64 / seconds,
            keys_per_second: keys as f64 / seconds,
            cpu_ns_per_key: server_cpu_ns.map(|cpu| cpu as f64 / keys.max(1) as f64),
            p99_us: quantile(0.99),
            client_share: tally.cpu_ns as f64 / 1e9 / seconds,
            server_share: server_cpu_ns.map(|cpu| cpu as f64 / 1e9 / seconds),
            tally_hits: tally.answers.hits,
            tally_asked: tally.asked,
            errors: tally.answers.errors,
            resent: tally.resent,
            quantiles_us: [quantile(0.5), quantile(0.99), quantile(0.999)],
        }
    }

    /// Whether the client was saturated and the server, as far as known, was not.
    fn client_limited(&self) -> bool {
        self.client_share >= SATURATED && self.server_share.is_none_or(|share| share < SATURATED)
    }
}

/// The result of one target: parameters, then figures.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ServerResult {
    /// The server that was measured, as it was named on the command line.
    pub target: String,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    protocol: Protocol,
    connections: usize,
    idle: usize,
    depth: usize,
    multi: usize,
    set: f64,
    theta: f64,
    keys: u64,
    key_bytes: usize,
    value_bytes: usize,
    seconds: f64,
    rounds: usize,
    threads: usize,
    seed: u64,
    /// Requests a second. This figure, like every one without another note, is the median of the
    /// rounds.
    pub requests_per_second: f64,
    /// Requests a second in the slowest round.
    pub min: f64,
    /// Requests a second in the fastest round.
    pub max: f64,
    /// Keys read and keys set, a second.
    pub keys_per_second: f64,
    /// The median latency in microseconds, from the sending of a batch to each reply.
    pub p50_us: f64,
    /// The 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile of the latency in microseconds.
    pub p999_us: f64,
    /// CPU time of the server's threads in nanoseconds a key; absent without `--server-pid`.
    pub server_cpu_ns_per_key: Option<f64>,
    /// The smallest and the largest `server_cpu_ns_per_key` of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns_per_key_min_max: Option<[f64; 2]>,
    /// `server_cpu_ns_per_key` of all rounds, in order; empty without `--server-pid`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rounds_server_cpu_ns_per_key: Vec<f64>,
    /// `keys_per_second` of all rounds, in order.
    pub rounds_keys_per_second: Vec<f64>,
    /// CPU time a key over that of the target named by `--ratio-to`: the median of the ratios round
    /// by round. Absent without `--ratio-to` or process ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Requests a second over those of the target named by `--ratio-to`, computed like `ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_ratio: Option<f64>,
    /// `p99_us` over that of the target named by `--ratio-to`, computed like `ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ratio: Option<f64>,
    /// Keys found over keys read; absent where no key was read.
    pub hit_ratio: Option<f64>,
    /// Whether, in most rounds, the client was saturated and the server was not.
    pub client_limited: bool,
    /// CPU time of the busiest client thread over elapsed time, at most 1.
    pub client_cpu_share: f64,
    /// CPU time of the server over elapsed time (2 means two cores); absent without `--server-pid`.
    pub server_cpu_share: Option<f64>,
    /// Requests answered by an error, over all rounds.
    pub errors: u64,
    /// Datagrams that were sent again, over all rounds.
    pub resent: u64,
    /// Sets refused before the first round.
    pub refused_at_load: u64,
}

fn median(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    let numbers: Vec<f64> = rounds.iter().map(figure).collect();
    Spread::of(&numbers).map_or(0.0, |spread| spread.median)
}

fn spread_of_some(rounds: &[Round], figure: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
    Spread::of(&rounds.iter().filter_map(figure).collect::<Vec<_>>())
}

/// The median over rounds of the ratio between a figure and the same figure of the reference.
fn paired(
    rounds: &[Round],
    reference: Option<&[Round]>,
    figure: impl Fn(&Round) -> Option<f64>,
) -> Option<f64> {
    let pairs = rounds.iter().zip(reference?);
    let ratios = pairs.filter_map(|(own, other)| Some(figure(own)? / figure(other)?));
    Spread::of(&ratios.collect::<Vec<_>>()).map(|spread| spread.median)
}

impl ServerResult {
    /// Summarizes the rounds of a target.
    pub fn new(
        arguments: &ServerArguments,
        target: &str,
        rounds: &[Round],
        reference: Option<&[Round]>,
        refused_at_load: u64,
    ) -> Self {
        let requests = spread_of_some(rounds, |round| Some(round.requests_per_second));
        let requests = requests.unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
        let cpu = spread_of_some(rounds, |round| round.cpu_ns_per_key);
        let hits: u64 = rounds.iter().map(|round| round.tally_hits).sum();
        let asked: u64 = rounds.iter().map(|round| round.tally_asked).sum();
        let limited = rounds.iter().filter(|round| round.client_limited()).count();
        Self {
            target: target.to_owned(),
            commit: commit(),
            machine: Machine::describe(),
            protocol: arguments.protocol,
            connections: arguments.connections,
            idle: arguments.idle,
            depth: arguments.depth,
            multi: arguments.multi,
            set: arguments.set,
            theta: arguments.theta,
            keys: arguments.keys,
            key_bytes: arguments.key_bytes,
            value_bytes: arguments.value_bytes,
            seconds: arguments.seconds,
            rounds: rounds.len(),
            threads: arguments.threads,
            seed: arguments.seed,
            requests_per_second: requests.median.round(),
            min: requests.min.round(),
            max: requests.max.round(),
            keys_per_second: median(rounds, |round| round.keys_per_second).round(),
            p50_us: median(rounds, |round| round.quantiles_us[0]),
            p99_us: median(rounds, |round| round.quantiles_us[1]),
            p999_us: median(rounds, |round| round.quantiles_us[2]),
            server_cpu_ns_per_key: cpu.map(|cpu| cpu.median),
            server_cpu_ns_per_key_min_max: cpu.map(|cpu| [cpu.min, cpu.max]),
            rounds_server_cpu_ns_per_key: rounds
                .iter()
                .filter_map(|round| round.cpu_ns_per_key)
                .collect(),
            rounds_keys_per_second: rounds
                .iter()
                .map(|round| round.keys_per_second.round())
                .collect(),
            ratio: paired(rounds, reference, |round| round.cpu_ns_per_key),
            requests_ratio: paired(rounds, reference, |round| Some(round.requests_per_second)),
            p99_ratio: paired(rounds, reference, |round| Some(round.p99_us)),
            hit_ratio: (asked > 0).then(|| hits as f64 / asked as f64),
            client_limited: 2 * limited > rounds.len(),
            client_cpu_share: median(rounds, |round| round.client_share),
            server_cpu_share: spread_of_some(rounds, |round| round.server_share)
                .map(|spread| spread.median),
            errors: rounds.iter().map(|round| round.errors).sum(),
            resent: rounds.iter().map(|round| round.resent).sum(),
            refused_at_load,
        }
    }

    /// The result as one line for people.
    pub fn summary(&self) -> String {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
        format!(
            "{}  {:.0} requests/s ({:.0} to {:.0})  {:.0} keys/s  p50 {:.0} us  p99 {:.0} us  \
             server {} ns/key  ratio {}  hits {}{}",
            self.target,
            self.requests_per_second,
            self.min,
            self.max,
            self.keys_per_second,
            self.p50_us,
            self.p99_us,
            number(self.server_cpu_ns_per_key),
            number(self.ratio),
            number(self.hit_ratio),
            if self.client_limited { "  (the client was the limit)" } else { "" },
        )
    }
}
