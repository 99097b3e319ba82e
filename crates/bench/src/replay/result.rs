//! The lines that `bench trace` prints and keeps.

use super::policy::PolicyName;
use crate::measure::Machine;

/// What is replayed: all that a server's misses depend on, apart from the server.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    /// The trace's name.
    pub trace: String,
    /// The model of values' lengths, or `trace`.
    pub sizes: String,
    /// Copies of the trace, each with keys of its own.
    pub copies: u32,
    /// Distinct keys of all copies.
    pub keys: u64,
    /// Requests of all copies.
    pub requests: u64,
    /// Bytes of all keys and values.
    pub total_payload_bytes: u64,
    /// Length of a key in bytes.
    pub key_bytes: usize,
    /// Connections of the client.
    pub connections: usize,
    /// Requests on the way at once.
    pub batch: usize,
}

/// One replay through one server.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ServerResult {
    /// Always `server`.
    pub kind: String,
    /// The server's name on the command line.
    pub server: String,
    /// Its program and arguments, or its address.
    pub command: String,
    /// What it says to be.
    pub version: String,
    /// The commit this program was built from.
    pub commit: String,
    /// Where it ran.
    pub machine: Machine,
    /// What was replayed.
    #[serde(flatten)]
    pub load: Load,
    /// The memory limit that it was given (`-m`), in bytes.
    pub memory_bytes: u64,
    /// Gets that missed.
    pub misses: u64,
    /// The same, over all gets.
    pub miss_ratio: f64,
    /// First requests of keys, which miss in any cache.
    pub compulsory_misses: u64,
    /// Sets that were not stored.
    pub refused: u64,
    /// Items found by asking for all after the replay.
    pub items: u64,
    /// Bytes of the keys and values of these.
    pub payload_bytes: u64,
    /// Evictions that the server counted.
    pub evictions: u64,
    /// Resident bytes before the first request; None where the process is not of this machine.
    pub idle_rss_bytes: Option<u64>,
    /// Resident bytes after the last.
    pub rss_bytes: Option<u64>,
    /// The difference of the two.
    pub rss_growth_bytes: Option<u64>,
    /// The most that were resident at any time.
    pub peak_rss_bytes: Option<u64>,
    /// CPU time of the server during the replay, in seconds.
    pub server_cpu_seconds: Option<f64>,
    /// The same for each request (a get, and the set if it missed), in nanoseconds.
    pub server_cpu_ns_per_request: Option<f64>,
    /// The replay's time by the clock, in seconds.
    pub wall_seconds: f64,
}

/// What a policy misses offline with the payload bytes of a server.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PolicyResult {
    /// Always `policy`.
    pub kind: &'static str,
    /// The policy.
    pub policy: PolicyName,
    /// The server whose payload bytes it has.
    pub server: String,
    /// What was replayed.
    #[serde(flatten)]
    pub load: Load,
    /// Bytes of keys and values that it may hold.
    pub capacity_bytes: u64,
    /// Copies of the trace that were simulated, in their part of the bytes.
    pub copies_simulated: u32,
    /// Requests of all copies that miss.
    pub misses: u64,
    /// The same, over all requests.
    pub miss_ratio: f64,
    /// The server's misses over these.
    pub ratio_of_server: f64,
}

impl PolicyResult {
    /// A row of the table for people, under that of [`ServerResult::summary`].
    pub fn summary(&self) -> String {
        format!(
            "  {:<18} {:>6} {:>11} {:>8.3} {:>10} {:>9.1}  {} misses {:.4} times these",
            self.policy.name(),
            "",
            self.misses,
            100.0 * self.miss_ratio,
            "",
            self.capacity_bytes as f64 / MEBIBYTE,
            self.server,
            self.ratio_of_server
        )
    }
}

/// A server compared with the reference, in one cell: a load at a memory limit.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Comparison {
    /// Always `comparison`.
    pub kind: &'static str,
    /// The server.
    pub server: String,
    /// The server that it is compared with.
    pub ratio_to: String,
    /// The trace's name.
    pub trace: String,
    /// The model of values' lengths.
    pub sizes: String,
    /// The reference's memory limit in bytes.
    pub memory_bytes: u64,
    /// Copies of the trace.
    pub copies: u32,
    /// Misses over the reference's.
    pub ratio: f64,
    /// Resident bytes over the reference's; None where either is unknown.
    pub rss_ratio: Option<f64>,
    /// Whether resident bytes are within the tolerance, or one mebibyte of the limit decides.
    pub is_equal: bool,
}

impl ServerResult {
    /// A row of the table for people.
    pub fn summary(&self) -> String {
        let mebibytes = |bytes: Option<u64>| {
            bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1}", bytes as f64 / MEBIBYTE))
        };
        format!(
            "{:<20} {:>6.0} {:>11} {:>8.3} {:>10} {:>9.1} {:>8} {:>8} {:>11} {:>8} {:>8.1}",
            self.server,
            self.memory_bytes as f64 / MEBIBYTE,
            self.misses,
            100.0 * self.miss_ratio,
            self.items,
            self.payload_bytes as f64 / MEBIBYTE,
            mebibytes(self.rss_bytes),
            mebibytes(self.rss_growth_bytes),
            self.evictions,
            self.server_cpu_ns_per_request.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}")),
            self.wall_seconds,
        )
    }
}

/// Bytes of a mebibyte.
pub const MEBIBYTE: f64 = 1_048_576.0;

/// The heads of the columns of [`ServerResult::summary`].
pub fn heads() -> String {
    format!(
        "{:<20} {:>6} {:>11} {:>8} {:>10} {:>9} {:>8} {:>8} {:>11} {:>8} {:>8}",
        "SERVER",
        "-m",
        "MISSES",
        "%",
        "ITEMS",
        "PAYLOAD",
        "RSS",
        "GROWTH",
        "EVICTIONS",
        "CPU ns",
        "WALL s"
    )
}
