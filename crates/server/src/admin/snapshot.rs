//! All numbers that the admin address shows, read once for each response.

use std::sync::atomic::Ordering;

use amalgam_index::{Statistics, Store};
use rustix::process::{Resource, getrlimit};

use crate::metrics::counters::Counts;
use crate::metrics::latency::{COMMANDS, Histogram};
use crate::metrics::miss_curve::{Estimate, MissCurve};
use crate::report::general::cpu_seconds;
use crate::state::server_state::ServerState;

/// The numbers at one moment. Each is exact, but they are read one after another.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The engine's name.
    pub engine: &'static str,
    /// Seconds since the start.
    pub uptime_seconds: u32,
    /// The time of the server's clock, in the unit of expiries.
    pub now_seconds: u32,
    /// The Unix time of the start.
    pub start_unix_seconds: i64,
    /// CPU time of the process in seconds.
    pub cpu_seconds: f64,
    /// Resident memory of the process in bytes.
    pub resident_bytes: u64,
    /// Open file descriptors of the process, sockets included; None if the system does not say.
    pub open_files: Option<u64>,
    /// The limit of open file descriptors; None if there is none.
    pub max_files: Option<u64>,
    /// Worker threads.
    pub threads: usize,
    /// The workers' counts since the start; unlike in `stats`, a reset does not affect them.
    pub counts: Counts,
    /// Open connections.
    pub connections: u64,
    /// Limit of open connections.
    pub max_connections: usize,
    /// Connections rejected because the limit was reached.
    pub rejected_connections: u64,
    /// How often accepting was paused.
    pub accept_pauses: u64,
    /// Whether connections are accepted at the moment.
    pub is_accepting: bool,
    /// The limit that items, index and buffers share, in bytes.
    pub memory_limit_bytes: usize,
    /// Bytes of connections' buffers.
    pub buffer_bytes: usize,
    /// The index's statistics.
    pub index: Statistics,
    /// What is known of the miss ratio with other memory sizes; None if it is not estimated.
    pub miss_curve: Option<Estimate>,
    /// Latency histograms in the order of [`COMMANDS`].
    pub durations: [Histogram; COMMANDS.len()],
}

impl Snapshot {
    /// Reads all numbers. A lock that a worker may wait for is held only to read a number.
    pub fn take<S: Store>(state: &ServerState<S>) -> Self {
        let uptime_seconds = state.clock.uptime_seconds();
        let (user, system) = cpu_seconds();
        let mut durations = <[Histogram; COMMANDS.len()]>::default();
        state.latencies.iter().for_each(|worker| worker.add_to(&mut durations));
        let mut index = state.index.statistics();
        state.index.sample_buckets(&mut index);
        Self {
            engine: S::NAME,
            uptime_seconds,
            now_seconds: state.clock.seconds(),
            start_unix_seconds: state.clock.unix_seconds() - i64::from(uptime_seconds),
            cpu_seconds: user + system,
            resident_bytes: resident_bytes().unwrap_or(0),
            open_files: open_files(),
            max_files: getrlimit(Resource::Nofile).current,
            threads: state.settings.threads,
            counts: state.counters.totals(),
            connections: state.counters.connections(),
            max_connections: state.settings.max_connections,
            rejected_connections: state.accept_gate.rejected.load(Ordering::Relaxed),
            accept_pauses: state.accept_gate.pauses.load(Ordering::Relaxed),
            is_accepting: state.accept_gate.is_open(),
            memory_limit_bytes: state.memory_limit(),
            buffer_bytes: state.buffers.total_bytes(),
            index,
            miss_curve: state.miss_curve.as_ref().map(MissCurve::estimate),
            durations,
        }
    }

    /// Items divided by slots; 0 if the engine has no slots.
    pub fn load_factor(&self) -> f64 {
        match self.index.slots {
            0 => 0.0,
            slots => self.index.items as f64 / slots as f64,
        }
    }
}

/// Counts the entries of `/proc/self/fd` but the one that reading it opens.
fn open_files() -> Option<u64> {
    Some((std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
