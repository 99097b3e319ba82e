//! Measures requests for small values, one and many in flight: reads of chunks, reads through a
//! gateway and reads from memcached; writes of chunks without backups and with three, and writes to
//! Redis with three replicas.

use amalgam_bench::ensure_usage;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use amalgam_node::cluster::chunks::{Action, Response};
use amalgam_node::cluster::ids::ChunkId;
use anyhow::{Context, ensure};

use super::{Nodes, end, free_port, pinned};
use amalgam_bench::measure::{
    Machine, Spread, Timing, allowed_cores, commit, cpu_of_threads_ns, pin_to, resident_bytes_of,
};
use amalgam_bench::workload::mix64;

/// Bytes of a value.
const VALUE_BYTES: usize = 64;
/// Requests in flight where there are many.
const FLIGHT: usize = 64;
/// Copies in addition to the first.
const REPLICAS: usize = 3;
/// The memory of a client's cache of chunks' locations, in bytes.
const CACHE_BYTES: usize = 4 << 20;

/// Parameters of `bench cluster-requests`.
#[derive(Clone, Debug, clap::Args)]
pub struct RequestArguments {
    /// memcached, to compare with.
    #[arg(long, value_name = "FILE")]
    pub memcached: PathBuf,
    /// Redis, to compare writes with: SET, and WAIT for three replicas.
    #[arg(long, value_name = "FILE")]
    pub redis: Option<PathBuf>,
    /// Engine of the nodes.
    #[arg(long, default_value = "mercury")]
    pub engine: String,
    /// Values that are read.
    #[arg(long, default_value_t = 10_000)]
    pub values: usize,
    /// Seconds of each part of a round.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Rounds, all parts in turns.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The result of one system: medians of the rounds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RequestResult {
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// The system that was measured.
    pub target: &'static str,
    /// The number of keys in a request.
    pub in_flight: usize,
    /// The median time of a request, in microseconds.
    pub p50_us: f64,
    /// CPU time of the servers in microseconds a key.
    pub cpu_us: f64,
    /// The ratios of `p50_us` and `cpu_us` to those of memcached (for writes, to those of chunks
    /// without backups): each the median of the rounds' ratios.
    pub ratios: [f64; 2],
    /// Memory of the servers in bytes for a value with its key or id: the growth of resident memory
    /// while the values were written. The figure is meaningful only with many values.
    pub bytes_a_value: f64,
}

impl RequestResult {
    /// The result as one line for people.
    pub fn summary(&self) -> String {
        format!(
            "{:<9} {:>3} in flight  p50 {:>7.1} us ({:.2})  CPU a key {:>6.2} us ({:.2})  {:.0} \
             bytes",
            self.target,
            self.in_flight,
            self.p50_us,
            self.ratios[0],
            self.cpu_us,
            self.ratios[1],
            self.bytes_a_value
        )
    }
}

/// A system that stores values by their numbers.
trait Target {
    fn name(&self) -> &'static str;
    /// The process ids of its servers.
    fn pids(&self) -> Vec<u32>;
    /// The memory of a value in bytes; see [`RequestResult::bytes_a_value`].
    fn bytes_a_value(&self) -> f64;
    /// Reads values and checks them, or writes them.
    fn request(&mut self, numbers: &[usize]) -> anyhow::Result<()>;
}

fn value(number: usize) -> Vec<u8> {
    format!("{number:0>width$}", width = VALUE_BYTES).into_bytes()
}

/// memcached's text protocol, at memcached or at a gateway.
struct Text {
    name: &'static str,
    pid: u32,
    stream: BufReader<TcpStream>,
    answer: Vec<u8>,
    expected: Vec<u8>,
    bytes_a_value: f64,
}

impl Text {
    fn connect(name: &'static str, pid: u32, address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let stream = BufReader::new(stream);
        let (answer, expected) = (Vec::new(), Vec::new());
        Ok(Self { name, pid, stream, answer, expected, bytes_a_value: f64::NAN })
    }

    fn load(&mut self, values: usize) -> anyhow::Result<()> {
        let before = resident_bytes_of(self.pid)?;
        for number in 0..values {
            let mut set = format!("set key-{number:08} 0 0 {VALUE_BYTES}\r\n").into_bytes();
            set.extend(value(number));
            set.extend(b"\r\n");
            self.stream.get_mut().write_all(&set)?;
            let mut answer = [0; 8];
            self.stream.read_exact(&mut answer)?;
            ensure!(&answer == b"STORED\r\n", "{}: not stored", self.name);
        }
        self.bytes_a_value = bytes_since(before, self.pid, values)?;
        Ok(())
    }
}

/// Memory of a process that became resident, for each of some values.
fn bytes_since(before: u64, pid: u32, values: usize) -> anyhow::Result<f64> {
    Ok(resident_bytes_of(pid)?.saturating_sub(before) as f64 / values as f64)
}

impl Target for Text {
    fn name(&self) -> &'static str {
        self.name
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.pid]
    }

    fn bytes_a_value(&self) -> f64 {
        self.bytes_a_value
    }

    fn request(&mut self, numbers: &[usize]) -> anyhow::Result<()> {
        let mut request = b"get".to_vec();
        self.expected.clear();
        for number in numbers {
            write!(request, " key-{number:08}")?;
            write!(self.expected, "VALUE key-{number:08} 0 {VALUE_BYTES}\r\n")?;
            self.expected.extend(value(*number));
            self.expected.extend(b"\r\n");
        }
        request.extend(b"\r\n");
        self.expected.extend(b"END\r\n");
        self.stream.get_mut().write_all(&request)?;
        self.answer.resize(self.expected.len(), 0);
        self.stream.read_exact(&mut self.answer)?;
        ensure!(self.answer == self.expected, "{}: another value", self.name);
        Ok(())
    }
}

/// Reads of a node's chunks, whose range the client has cached.
struct Chunks {
    pid: u32,
    client: ClusterClient,
    ids: Vec<ChunkId>,
    bytes_a_value: f64,
}

impl Chunks {
    fn load(pid: u32, address: &str, values: usize) -> anyhow::Result<Self> {
        let mut client = ClusterClient::connect(&[address.to_owned()], "", CACHE_BYTES)?;
        let before = resident_bytes_of(pid)?;
        let ids = (0..values).map(|number| client.create(&value(number)));
        let ids = ids.collect::<Result<_, _>>()?;
        let bytes_a_value = bytes_since(before, pid, values)?;
        Ok(Self { pid, client, ids, bytes_a_value })
    }
}

impl Target for Chunks {
    fn name(&self) -> &'static str {
        "chunks"
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.pid]
    }

    fn bytes_a_value(&self) -> f64 {
        self.bytes_a_value
    }

    fn request(&mut self, numbers: &[usize]) -> anyhow::Result<()> {
        let ids: Vec<ChunkId> = numbers.iter().map(|number| self.ids[*number]).collect();
        for (number, got) in numbers.iter().zip(self.client.get_all(&ids)) {
            ensure!(got? == value(*number), "another value");
        }
        Ok(())
    }
}

/// Writes of chunks whose range the client has cached.
struct Puts(&'static str, Chunks);

impl Target for Puts {
    fn name(&self) -> &'static str {
        self.0
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.1.pid]
    }

    fn bytes_a_value(&self) -> f64 {
        self.1.bytes_a_value
    }

    fn request(&mut self, numbers: &[usize]) -> anyhow::Result<()> {
        let put = |number: &usize| Action::Put(self.1.ids[*number], value(*number));
        for answer in self.1.client.call_all(numbers.iter().map(put).collect()) {
            ensure!(answer? == Response::Ok, "it was not written");
        }
        Ok(())
    }
}

/// Four nodes, each of which keeps backups of all others' chunks in a folder of its own.
struct BackedUp {
    nodes: Nodes,
    folder: PathBuf,
}

impl BackedUp {
    fn start(engine: &str, core: usize) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("amalgam-backups-{}", std::process::id()));
        let text = folder.to_str().context("the folder for temporary files")?.to_owned();
        let options = ["--backups", "3", "--backup-dir", &text, "--backup-space", "1GiB"];
        let nodes = Nodes::start_with(4, engine, core, 64, &options)?;
        let started = Self { nodes, folder };
        let mut client =
            ClusterClient::connect(&[started.nodes.addresses[0].0.clone()], "", CACHE_BYTES)?;
        let end = Instant::now() + Duration::from_secs(30);
        while client.status()?.reduced != (0, 0) {
            ensure!(Instant::now() < end, "the backups are not complete");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started)
    }
}

impl Drop for BackedUp {
    fn drop(&mut self) {
        self.nodes.processes.iter_mut().for_each(end);
        // What is left is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Redis without files and its three replicas, on a core, until this ends.
struct Redis {
    processes: Vec<Child>,
    stream: BufReader<TcpStream>,
}

impl Redis {
    fn start(program: &Path, core: usize) -> anyhow::Result<Self> {
        let first = free_port()?;
        let mut processes = Vec::new();
        for place in 0..=REPLICAS {
            let port = if place == 0 { first } else { free_port()? };
            let mut command = pinned(core);
            command.arg(program).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
            command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
            // Redis must not write files to the current folder.
            command.args(["--repl-diskless-load", "on-empty-db"]);
            if place > 0 {
                command.args(["--replicaof", "127.0.0.1", &first.to_string()]);
            }
            let process = command.stdout(Stdio::null()).spawn();
            processes
                .push(process.with_context(|| format!("{} cannot be run", program.display()))?);
            let end = Instant::now() + Duration::from_secs(5);
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                ensure!(Instant::now() < end, "Redis does not listen");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let stream = TcpStream::connect(("127.0.0.1", first))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut started = Self { processes, stream: BufReader::new(stream) };
        let end = Instant::now() + Duration::from_secs(30);
        while started.request(&[0]).is_err() {
            ensure!(Instant::now() < end, "the replicas do not follow");
        }
        Ok(started)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Target for Redis {
    fn name(&self) -> &'static str {
        "redis-3"
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }

    fn bytes_a_value(&self) -> f64 {
        f64::NAN
    }

    fn request(&mut self, numbers: &[usize]) -> anyhow::Result<()> {
        let mut request = Vec::new();
        for number in numbers {
            write!(request, "*3\r\n$3\r\nSET\r\n$12\r\nkey-{number:08}\r\n${VALUE_BYTES}\r\n")?;
            request.extend(value(*number));
            request.extend(b"\r\n");
        }
        write!(request, "*3\r\n$4\r\nWAIT\r\n$1\r\n{REPLICAS}\r\n$4\r\n1000\r\n")?;
        self.stream.get_mut().write_all(&request)?;
        // All answers are read, or the next request would be answered by these.
        let answers: Vec<String> =
            numbers.iter().map(|_| self.line()).collect::<anyhow::Result<_>>()?;
        let replicas = self.line()?;
        ensure!(answers.iter().all(|answer| answer == "+OK"), "Redis does not write");
        ensure!(replicas == format!(":{REPLICAS}"), "{replicas} replicas have it");
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(end);
    }
}

/// memcached on a core, until this ends.
struct Memcached {
    process: Child,
    address: String,
}

impl Memcached {
    fn start(arguments: &RequestArguments, core: usize) -> anyhow::Result<Self> {
        let port = free_port()?;
        let process = pinned(core)
            .arg(&arguments.memcached)
            .args(["-p", &port.to_string(), "-l", "127.0.0.1", "-t", "1", "-u", "root"])
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} cannot be run", arguments.memcached.display()))?;
        let started = Self { process, address: format!("127.0.0.1:{port}") };
        let end = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect(&started.address).is_err() {
            ensure!(Instant::now() < end, "memcached does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(started)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Measures all targets in turns: the client on one core, all servers on the other.
///
/// # Errors
///
/// If a server cannot be started or answers wrongly.
pub fn run(arguments: &RequestArguments) -> anyhow::Result<Vec<RequestResult>> {
    ensure_usage!(arguments.values >= FLIGHT && arguments.rounds > 0, "too few values or rounds");
    let cores = allowed_cores();
    let core = cores.get(1).copied().context("two cores are needed")?;
    pin_to(&cores, 0);
    let memcached = Memcached::start(arguments, core)?;
    let one = Nodes::start(1, &arguments.engine, core, 64)?;
    let two = Nodes::start(2, &arguments.engine, core, 64)?;
    let mut text = Text::connect("memcached", memcached.process.id(), &memcached.address)?;
    text.load(arguments.values)?;
    let mut own = Text::connect("gateway1", one.pid(), &one.addresses[0].1)?;
    own.load(arguments.values)?;
    let mut gateway = Text::connect("gateway2", two.pid(), &two.addresses[0].1)?;
    gateway.load(arguments.values)?;
    let chunks = Chunks::load(one.pid(), &one.addresses[0].0, arguments.values)?;
    let bare = Nodes::start(4, &arguments.engine, core, 64)?;
    let safe = BackedUp::start(&arguments.engine, core)?;
    let load = |nodes: &Nodes| Chunks::load(nodes.pid(), &nodes.addresses[0].0, arguments.values);
    let (bare_chunks, safe_chunks) = (load(&bare)?, load(&safe.nodes)?);
    let reads: Vec<Box<dyn Target>> =
        vec![Box::new(text), Box::new(chunks), Box::new(own), Box::new(gateway)];
    let mut writes: Vec<Box<dyn Target>> =
        vec![Box::new(Puts("puts", bare_chunks)), Box::new(Puts("puts-3", safe_chunks))];
    if let Some(program) = &arguments.redis {
        writes.push(Box::new(Redis::start(program, core)?));
    }
    let mut results = Vec::new();
    for mut targets in [reads, writes] {
        results.extend(in_turns(&mut targets, arguments)?);
    }
    Ok(results)
}

/// Measures targets in turns. The first is the one that the others are compared with.
fn in_turns(
    targets: &mut [Box<dyn Target>],
    arguments: &RequestArguments,
) -> anyhow::Result<Vec<RequestResult>> {
    let mut results = Vec::new();
    for in_flight in [1, FLIGHT] {
        let mut rounds = vec![Vec::new(); targets.len()];
        for round in 0..arguments.rounds {
            for (target, rounds) in targets.iter_mut().zip(&mut rounds) {
                rounds.push(measure(&mut **target, in_flight, round as u64, arguments)?);
            }
        }
        results.extend(summaries(targets, &rounds, in_flight));
    }
    Ok(results)
}

/// The median time of a request and the servers' CPU time a key, in microseconds.
fn measure(
    target: &mut dyn Target,
    in_flight: usize,
    seed: u64,
    arguments: &RequestArguments,
) -> anyhow::Result<[f64; 2]> {
    let mut timing = Timing::default();
    let mut keys = 0;
    let cpu = |target: &dyn Target| -> anyhow::Result<u64> {
        target.pids().into_iter().map(cpu_of_threads_ns).sum()
    };
    let cpu_before = cpu(target)?;
    let end = Instant::now() + Duration::from_secs_f64(arguments.seconds);
    let mut numbers = vec![0; in_flight];
    while Instant::now() < end {
        for number in &mut numbers {
            keys += 1;
            *number = (mix64(seed << 40 | keys) % arguments.values as u64) as usize;
        }
        timing.start();
        target.request(&numbers)?;
        timing.lap(1);
    }
    let cpu_ns = cpu(target)?.saturating_sub(cpu_before);
    Ok([timing.quantile_ns(0.5) as f64 / 1e3, cpu_ns as f64 / 1e3 / keys as f64])
}

fn summaries(
    targets: &[Box<dyn Target>],
    rounds: &[Vec<[f64; 2]>],
    in_flight: usize,
) -> Vec<RequestResult> {
    let median = |numbers: Vec<f64>| Spread::of(&numbers).map_or(f64::NAN, |spread| spread.median);
    let of = |rounds: &[[f64; 2]], which: usize| {
        median(rounds.iter().map(|round| round[which]).collect())
    };
    let ratio = |rounds: &[[f64; 2]], base: &[[f64; 2]], which: usize| {
        median(rounds.iter().zip(base).map(|(one, base)| one[which] / base[which]).collect())
    };
    let result = |((name, bytes_a_value), own): (_, &Vec<[f64; 2]>)| RequestResult {
        commit: commit(),
        machine: Machine::describe(),
        target: name,
        bytes_a_value,
        in_flight,
        p50_us: of(own, 0),
        cpu_us: of(own, 1),
        ratios: [ratio(own, &rounds[0], 0), ratio(own, &rounds[0], 1)],
    };
    let named = targets.iter().map(|target| (target.name(), target.bytes_a_value()));
    named.zip(rounds).map(result).collect()
}
