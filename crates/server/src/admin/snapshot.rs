//! What the admin address shows, read once for an answer.

use std::sync::atomic::Ordering;

use amalgam_index::{Statistics, Store};

use crate::counters::Counts;
use crate::latency::{COMMANDS, Histogram};
use crate::server::Shared;
use crate::statistics::cpu_seconds;

/// The numbers of one moment; each is right by itself, together they may be a moment apart.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The engine's name.
    pub engine: &'static str,
    /// Seconds since the start.
    pub uptime_seconds: u32,
    /// The Unix time of the start.
    pub start_unix_seconds: i64,
    /// CPU time of the process in seconds.
    pub cpu_seconds: f64,
    /// Memory of the process that is resident, in bytes.
    pub resident_bytes: u64,
    /// Worker threads.
    pub threads: usize,
    /// What workers counted since the start: unlike in `stats`, no reset is seen here.
    pub counts: Counts,
    /// Connections open now.
    pub connections: u64,
    /// Connections that may be open at once.
    pub max_connections: usize,
    /// Connections turned away.
    pub rejected_connections: u64,
    /// How often accepting was paused.
    pub accept_pauses: u64,
    /// Whether connections are accepted now.
    pub is_accepting: bool,
    /// The limit that items, index and buffers share, in bytes.
    pub memory_limit_bytes: usize,
    /// What connections keep between turns, in bytes.
    pub buffer_bytes: usize,
    /// Of the index.
    pub index: Statistics,
    /// Durations in the order of [`COMMANDS`].
    pub durations: [Histogram; COMMANDS.len()],
}

impl Snapshot {
    /// Reads everything. Takes no lock that a worker would wait for longer than to read a number.
    pub fn take<I: Store>(shared: &Shared<I>) -> Self {
        let uptime_seconds = shared.clock.uptime_seconds();
        let (user, system) = cpu_seconds();
        let mut durations = <[Histogram; COMMANDS.len()]>::default();
        shared.latencies.iter().for_each(|worker| worker.add_to(&mut durations));
        Self {
            engine: I::NAME,
            uptime_seconds,
            start_unix_seconds: shared.clock.unix_seconds() - i64::from(uptime_seconds),
            cpu_seconds: user + system,
            resident_bytes: resident_bytes().unwrap_or(0),
            threads: shared.settings.threads,
            counts: shared.counters.totals(),
            connections: shared.counters.connections(),
            max_connections: shared.settings.max_connections,
            rejected_connections: shared.gate.rejected.load(Ordering::Relaxed),
            accept_pauses: shared.gate.closed_count.load(Ordering::Relaxed),
            is_accepting: shared.gate.is_open.load(Ordering::Relaxed),
            memory_limit_bytes: shared.memory_limit(),
            buffer_bytes: shared.buffers.used_bytes(),
            index: shared.index.statistics(),
            durations,
        }
    }

    /// Items for each slot of the table; 0 where the engine has none.
    pub fn load_factor(&self) -> f64 {
        match self.index.slots {
            0 => 0.0,
            slots => self.index.items as f64 / slots as f64,
        }
    }
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
