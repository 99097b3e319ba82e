//! Cells: each trace with each model of sizes at each memory limit, through each server.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;

use super::arguments::{Equal, ReplayArguments};
use super::client::Client;
use super::offline::Offline;
use super::policy::PolicyName;
use super::progress::Progress;
use super::result::{Comparison, Load, ServerResult, heads};
use super::server::{RunningServer, ServerName, Target};
use super::sizes::SizeModel;
use super::source::Trace;
use crate::measure::{Machine, commit, cpu_of_threads_ns};
use crate::{Usage, print_result};

/// Replays of one server that look for the memory limit that makes memory equal.
const MOST_TRIES: usize = 5;

/// Items that are asked for at once when all are counted.
const PROBE_ITEMS: usize = 500;

/// The smallest memory limit that is tried, in mebibytes.
const LEAST_MEBIBYTES: u64 = 2;

/// Runs the cells that `arguments` name, and prints a line for each replay and each comparison.
///
/// # Errors
///
/// If an argument is invalid, a trace cannot be read, or a server does not answer as memcached.
pub fn run(arguments: &ReplayArguments) -> anyhow::Result<()> {
    arguments.check().usage()?;
    let mut bench = Bench {
        arguments,
        reference: arguments.reference()?,
        kept: Kept::open(arguments.results.as_deref())?,
        offsets: HashMap::new(),
        ratios: Vec::new(),
    };
    if !arguments.json {
        println!("{}", heads());
    }
    for path in &arguments.traces {
        let trace = Trace::read(path, &arguments.reading())?;
        for sizes in &arguments.sizes {
            for memory_bytes in &arguments.memory {
                let shares: Vec<Option<f64>> = if arguments.share.is_empty() {
                    vec![None]
                } else {
                    arguments.share.iter().map(|share| Some(*share)).collect()
                };
                for share in shares {
                    bench.cell(&trace, *sizes, *memory_bytes, share)?;
                }
            }
        }
    }
    bench.sum_up()
}

struct Bench<'a> {
    arguments: &'a ReplayArguments,
    reference: &'a ServerName,
    kept: Kept,
    /// What the limit of a server must differ by from the reference's, in mebibytes, to have the
    /// same resident memory: of the last cell at this limit.
    offsets: HashMap<(String, u64), i64>,
    ratios: Vec<Comparison>,
}

/// A load, ready to be replayed.
struct Cell<'t> {
    trace: &'t Trace,
    load: Load,
    value_bytes: Vec<u32>,
}

impl Bench<'_> {
    fn cell(
        &mut self,
        trace: &Trace,
        sizes: SizeModel,
        memory_bytes: u64,
        share: Option<f64>,
    ) -> anyhow::Result<()> {
        let arguments = self.arguments;
        let payload = |value_bytes: &[u32]| {
            let values: u64 = value_bytes.iter().map(|bytes| u64::from(*bytes)).sum();
            values + (arguments.key_bytes * value_bytes.len()) as u64
        };
        let of_one = payload(&sizes.value_bytes(trace, 1)?);
        let copies = arguments.copies_for(trace.keys, of_one, memory_bytes, share);
        let copies = copies.with_context(|| format!("{} with {sizes}", trace.name))?;
        let value_bytes = sizes.value_bytes(trace, copies)?;
        let load = Load {
            trace: trace.name.clone(),
            sizes: sizes.to_string(),
            copies,
            keys: value_bytes.len() as u64,
            requests: trace.requests.len() as u64 * u64::from(copies),
            total_payload_bytes: payload(&value_bytes),
            key_bytes: arguments.key_bytes,
            connections: arguments.connections,
            batch: arguments.batch,
        };
        if !arguments.json {
            println!(
                "# {}, {sizes}, {copies} copies: {} requests, {} keys, {:.1} MB of payload",
                load.trace,
                load.requests,
                load.keys,
                load.total_payload_bytes as f64 / 1e6
            );
        }
        let cell = Cell { trace, load, value_bytes };
        let limit = memory_bytes >> 20;
        let reference = self.replay(&cell, self.reference, limit)?;
        print_result(arguments.json, &reference, || reference.summary())?;
        let mut results = Vec::new();
        for server in &arguments.server {
            if server.name == self.reference.name {
                results.push(reference.clone());
                continue;
            }
            let (result, is_equal) = self.at_equal_memory(&cell, server, limit, &reference)?;
            print_result(arguments.json, &result, || result.summary())?;
            self.compare(&reference, &result, is_equal)?;
            results.push(result);
        }
        self.simulate(&cell, &results)
    }

    /// Prints what policies miss with the payload bytes of the first server, and CLOCK with those
    /// of the others.
    fn simulate(&self, cell: &Cell<'_>, results: &[ServerResult]) -> anyhow::Result<()> {
        let policies = &self.arguments.policies.0;
        if policies.is_empty() {
            return Ok(());
        }
        let offline = Offline::new(cell.trace, &cell.load, &cell.value_bytes);
        for (number, server) in results.iter().enumerate() {
            let of_this = if number == 0 { policies.as_slice() } else { &[PolicyName::Clock1] };
            for policy in of_this {
                let result = offline.result(*policy, server);
                print_result(self.arguments.json, &result, || result.summary())?;
            }
        }
        Ok(())
    }

    /// Replays with the memory limit that makes resident memory equal to the reference's.
    fn at_equal_memory(
        &mut self,
        cell: &Cell<'_>,
        server: &ServerName,
        limit: u64,
        reference: &ServerResult,
    ) -> anyhow::Result<(ServerResult, bool)> {
        let key = (server.name.clone(), limit);
        let is_fixed = self.arguments.equal == Equal::Limit
            || matches!(server.target, Target::Address(_))
            || reference.rss_bytes.is_none();
        let offset = if is_fixed { 0 } else { self.offsets.get(&key).copied().unwrap_or(0) };
        let mut mebibytes = limit.saturating_add_signed(offset).max(LEAST_MEBIBYTES);
        let mut tried: Vec<(u64, i64, ServerResult)> = Vec::new();
        for _ in 0..MOST_TRIES {
            let result = self.replay(cell, server, mebibytes)?;
            let (Some(own), Some(target)) = (result.rss_bytes, reference.rss_bytes) else {
                return Ok((result, false));
            };
            let excess = own as i64 - target as i64;
            let is_within =
                excess.unsigned_abs() as f64 <= self.arguments.tolerance * target as f64;
            // A server that evicts nothing holds all there is: a higher limit changes nothing.
            let is_all = result.evictions == 0 && excess <= 0;
            tried.push((mebibytes, excess, result));
            if is_within || is_all || is_fixed {
                break;
            }
            let step = (-excess as f64 / super::result::MEBIBYTE).round() as i64;
            let step = if step == 0 { -excess.signum() } else { step };
            mebibytes = mebibytes.saturating_add_signed(step).max(LEAST_MEBIBYTES);
            if tried.iter().any(|(other, ..)| *other == mebibytes) {
                break;
            }
        }
        let best = tried.into_iter().min_by_key(|(_, excess, _)| excess.unsigned_abs());
        let (mebibytes, excess, result) = best.context("nothing was replayed")?;
        self.offsets.insert(key, mebibytes as i64 - limit as i64);
        let target = reference.rss_bytes.unwrap_or(0);
        let bound = (self.arguments.tolerance * target as f64).max(super::result::MEBIBYTE / 2.0);
        Ok((result, excess.unsigned_abs() as f64 <= bound))
    }

    fn compare(
        &mut self,
        reference: &ServerResult,
        result: &ServerResult,
        is_equal: bool,
    ) -> anyhow::Result<()> {
        let rss = result.rss_bytes.zip(reference.rss_bytes);
        let comparison = Comparison {
            kind: "comparison",
            server: result.server.clone(),
            ratio_to: reference.server.clone(),
            trace: result.load.trace.clone(),
            sizes: result.load.sizes.clone(),
            memory_bytes: reference.memory_bytes,
            copies: result.load.copies,
            ratio: result.misses as f64 / reference.misses.max(1) as f64,
            rss_ratio: rss.map(|(own, other)| own as f64 / other as f64),
            is_equal,
        };
        print_result(self.arguments.json, &comparison, || {
            let memory = match comparison.rss_ratio {
                Some(ratio) if is_equal => format!("at {ratio:.3} of its memory"),
                Some(ratio) => format!("at {ratio:.3} of its memory, WHICH IS NOT EQUAL"),
                None => "memory unknown".to_owned(),
            };
            let (own, other) = (&comparison.server, &comparison.ratio_to);
            format!("  {own} misses {:.4} times what {other} does, {memory}", comparison.ratio)
        })?;
        self.ratios.push(comparison);
        Ok(())
    }

    /// Prints the geometric mean and the worst cell of each server.
    fn sum_up(&self) -> anyhow::Result<()> {
        #[derive(serde::Serialize)]
        struct Summary<'a> {
            kind: &'static str,
            server: &'a str,
            ratio_to: &'a str,
            cells: usize,
            geometric_mean_ratio: f64,
            worst_ratio: f64,
            worst_cell: String,
            cells_above_one: usize,
            cells_not_equal: usize,
        }
        for server in &self.arguments.server {
            let own = self.ratios.iter().filter(|ratio| ratio.server == server.name);
            let own: Vec<&Comparison> = own.collect();
            let Some(worst) = own.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio)) else {
                continue;
            };
            let logs: f64 = own.iter().map(|cell| cell.ratio.ln()).sum();
            let summary = Summary {
                kind: "summary",
                server: &server.name,
                ratio_to: &self.reference.name,
                cells: own.len(),
                geometric_mean_ratio: (logs / own.len() as f64).exp(),
                worst_ratio: worst.ratio,
                worst_cell: format!(
                    "{} {} {} MiB x{}",
                    worst.trace,
                    worst.sizes,
                    worst.memory_bytes >> 20,
                    worst.copies
                ),
                cells_above_one: own.iter().filter(|cell| cell.ratio > 1.0).count(),
                cells_not_equal: own.iter().filter(|cell| !cell.is_equal).count(),
            };
            print_result(self.arguments.json, &summary, || {
                format!(
                    "{}: {} cells, misses {:.4} times those of {} (geometric mean), {} above 1, \
                     worst {:.4} ({}), {} not at equal memory",
                    summary.server,
                    summary.cells,
                    summary.geometric_mean_ratio,
                    summary.ratio_to,
                    summary.cells_above_one,
                    summary.worst_ratio,
                    summary.worst_cell,
                    summary.cells_not_equal
                )
            })?;
        }
        Ok(())
    }

    /// The result on file, or a replay.
    fn replay(
        &mut self,
        cell: &Cell<'_>,
        server: &ServerName,
        mebibytes: u64,
    ) -> anyhow::Result<ServerResult> {
        if let Some(known) = self.kept.find(&cell.load, server, mebibytes) {
            return Ok(known.clone());
        }
        let result = cell.replay(server, mebibytes).with_context(|| {
            format!("{} through {} at {mebibytes} MiB", cell.load.trace, server.name)
        })?;
        self.kept.add(&result)?;
        Ok(result)
    }
}

impl Cell<'_> {
    fn replay(&self, server: &ServerName, mebibytes: u64) -> anyhow::Result<ServerResult> {
        let running = RunningServer::open(server, mebibytes)?;
        let load = &self.load;
        let connections = load.connections.min(load.copies as usize).max(1);
        let mut client = Client::connect(running.address, connections, load.key_bytes)?;
        let before = client.statistics()?;
        let number = |statistics: &HashMap<String, String>, name: &str| {
            statistics.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        if number(&before, "curr_items") > 0 {
            eprintln!("{} is not empty, and its items are hits: send it flush_all", server.name);
        }
        let idle_rss_bytes = running.memory("VmRSS");
        let cpu = || running.pid.and_then(|pid| cpu_of_threads_ns(pid).ok());
        let (cpu_before, started) = (cpu(), Instant::now());
        let what = format!("{} {} {} {mebibytes} MiB", load.trace, load.sizes, server.name);
        self.play(&mut client, &mut Progress::new(what, load.requests))?;
        let wall_seconds = started.elapsed().as_secs_f64();
        let cpu_seconds = cpu_before.zip(cpu()).map(|(begin, end)| (end - begin) as f64 / 1e9);
        let rss_bytes = running.memory("VmRSS");
        let after = client.statistics()?;
        let counts = client.counts;
        let (items, payload_bytes) = self.count_items(&mut client)?;
        let of_launch = server.target_memory(mebibytes);
        Ok(ServerResult {
            kind: "server".to_owned(),
            server: server.name.clone(),
            command: server.text.clone(),
            version: after.get("version").cloned().unwrap_or_default(),
            commit: commit().to_owned(),
            machine: Machine::describe(),
            load: load.clone(),
            memory_bytes: of_launch.unwrap_or_else(|| number(&after, "limit_maxbytes")),
            misses: counts.misses,
            miss_ratio: counts.misses as f64 / counts.gets.max(1) as f64,
            compulsory_misses: load.keys,
            refused: counts.refused,
            items,
            payload_bytes,
            evictions: number(&after, "evictions").saturating_sub(number(&before, "evictions")),
            idle_rss_bytes,
            rss_bytes,
            rss_growth_bytes: idle_rss_bytes
                .zip(rss_bytes)
                .map(|(idle, now)| now.saturating_sub(idle)),
            peak_rss_bytes: running.memory("VmHWM"),
            server_cpu_seconds: cpu_seconds,
            server_cpu_ns_per_request: cpu_seconds
                .map(|seconds| seconds * 1e9 / counts.gets.max(1) as f64),
            wall_seconds,
        })
    }

    /// Sends all requests: request r of every copy, then r + 1 of every copy, in batches in which
    /// no item stands twice.
    fn play(&self, client: &mut Client, progress: &mut Progress) -> anyhow::Result<()> {
        let load = &self.load;
        let keys = self.trace.keys;
        let connections = load.connections.min(load.copies as usize).max(1);
        let connection_of = |item: u32| (item / keys) as usize % connections;
        let mut last_batch_of = vec![0u32; self.value_bytes.len()];
        let mut number = 1;
        let mut batch = Vec::with_capacity(load.batch);
        for request in &self.trace.requests {
            for copy in 0..load.copies {
                let item = copy * keys + request;
                if batch.len() == load.batch || last_batch_of[item as usize] == number {
                    client.look_aside(&batch, &self.value_bytes, connection_of)?;
                    batch.clear();
                    number += 1;
                    progress.tell(client.counts.gets, client.counts.misses);
                }
                last_batch_of[item as usize] = number;
                batch.push(item);
            }
        }
        client.look_aside(&batch, &self.value_bytes, connection_of)?;
        client.flush()
    }

    /// Asks for every item, and returns how many the server has, and the bytes of their keys and
    /// values.
    fn count_items(&self, client: &mut Client) -> anyhow::Result<(u64, u64)> {
        let (mut items, mut bytes) = (0, 0);
        let all: Vec<u32> = (0..self.value_bytes.len() as u32).collect();
        for some in all.chunks(PROBE_ITEMS) {
            client.probe(some, &self.value_bytes, |item, is_hit| {
                if is_hit {
                    items += 1;
                    bytes += u64::from(self.value_bytes[item as usize]);
                }
            })?;
        }
        Ok((items, bytes + items * self.load.key_bytes as u64))
    }
}

/// The replays that are on file.
struct Kept {
    results: Vec<ServerResult>,
    file: Option<File>,
}

impl Kept {
    fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self { results: Vec::new(), file: None }) };
        let about = || format!("results {}", path.display());
        let mut results = Vec::new();
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).append(true).create(true).open(path).with_context(about)?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(about)?;
        // The last line may be cut off by the end of an earlier run: the next begins on its own.
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").with_context(about)?;
        }
        for (number, line) in text.lines().enumerate() {
            match serde_json::from_str(line) {
                Ok(result) => results.push(result),
                Err(error) => {
                    eprintln!("{}, line {}: {error}; it counts as not run", about(), number + 1);
                }
            }
        }
        Ok(Self { results, file: Some(file) })
    }

    fn find(&self, load: &Load, server: &ServerName, mebibytes: u64) -> Option<&ServerResult> {
        self.results.iter().find(|result| {
            result.server == server.name
                && result.command == server.text
                && result.load == *load
                && server.target_memory(mebibytes).is_none_or(|bytes| bytes == result.memory_bytes)
        })
    }

    fn add(&mut self, result: &ServerResult) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(result)? + "\n";
            file.write_all(line.as_bytes()).context("writing results")?;
            self.results.push(result.clone());
        }
        Ok(())
    }
}
