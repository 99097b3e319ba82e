//! Measures the recovery of a node's chunks from its backups, and compares it with reading,
//! checking and inserting as many records with as many threads but without a cluster.
//!
//! All processes share the cores. Time counts from when the first backup knows that the owner is
//! gone. The time from the kill until then depends on the lease and is reported separately.

use amalgam_bench::ensure_usage;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amalgam_index::mercury::Mercury;
use amalgam_index::{Configuration, Engine};
use amalgam_node::cluster::chunks::{Action, ChunkStore, EngineStore, Response};
use amalgam_node::cluster::ids::{ChunkId, Creator, NodeId};
use amalgam_node::cluster::log::{Log, LogSettings};
use amalgam_node::cluster::replication::{Mutation, ReplicationEntry};
use amalgam_node::cluster::wire::{NodeStatus, Wire};
use amalgam_node::{ClusterClient, FileStorage};
use anyhow::{Context, ensure};

use super::{Nodes, end};
use amalgam_bench::measure::{Machine, allowed_cores, commit, parse_count};
use amalgam_bench::workload::mix64;

/// Chunks that are created with one call.
const BATCH: usize = 1_024;
/// The memory of a client's cache of chunks' locations, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// The most time that a step may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// An upper bound of the bytes that a chunk takes in addition to its value, in memory and in the
/// log.
const BESIDE_BYTES: u64 = 150;
/// Chunks that are read afterwards.
const CHECKED: u64 = 100_000;

/// Parameters of `bench recovery`.
#[derive(Clone, Debug, clap::Args)]
pub struct RecoveryArguments {
    /// Number of chunks of the node that is killed.
    #[arg(long, value_parser = parse_count, default_value = "10M")]
    pub chunks: u64,
    /// Bytes of a chunk.
    #[arg(long, default_value_t = 64)]
    pub bytes: usize,
    /// Number of further processes, which recover the chunks.
    #[arg(long, default_value_t = 8)]
    pub others: usize,
    /// Number of backups of each chunk.
    #[arg(long, default_value_t = 3)]
    pub backups: usize,
    /// Length of a lease in seconds.
    #[arg(long, default_value_t = 3)]
    pub lease: u64,
    /// The program of etcd.
    #[arg(long, value_name = "FILE", default_value = "etcd")]
    pub etcd: PathBuf,
    /// Engine of the nodes.
    #[arg(long, default_value = "mercury")]
    pub engine: String,
    /// Folder for the logs, which are removed afterwards.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The result of a recovery.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RecoveryResult {
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// The number of chunks that were recovered.
    pub chunks: u64,
    /// The size of each chunk in bytes.
    pub bytes: usize,
    /// The number of processes that recovered them.
    pub others: usize,
    /// Seconds to write the chunks with their backups.
    pub load_seconds: f64,
    /// Seconds from the kill until a node detected it.
    pub detect_seconds: f64,
    /// Seconds from the detection until every chunk was served again.
    pub readable_seconds: f64,
    /// Seconds from the detection until every chunk had all its backups again.
    pub full_seconds: f64,
    /// Seconds to read, check and insert as many records without a cluster.
    pub alone_seconds: f64,
}

impl RecoveryResult {
    /// The result as one line for people.
    pub fn summary(&self) -> String {
        let rate = |seconds: f64| {
            let millions = self.chunks as f64 / seconds / 1e6;
            format!(
                "{seconds:.2} s, {millions:.2} M/s, {:.3} GB/s",
                millions * self.bytes as f64 / 1e3
            )
        };
        let of_alone = |seconds: f64| self.alone_seconds / seconds;
        format!(
            "{} chunks of {} bytes, written in {:.1} s; the death known after {:.2} s\n\
             alone      {}\nreadable   {} ({:.2} of alone)\nall copies {} ({:.2} of alone)",
            self.chunks,
            self.bytes,
            self.load_seconds,
            self.detect_seconds,
            rate(self.alone_seconds),
            rate(self.readable_seconds),
            of_alone(self.readable_seconds),
            rate(self.full_seconds),
            of_alone(self.full_seconds),
        )
    }
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(bytes, number as u8);
    value
}

/// Kills a node and waits until the others have what it had.
///
/// # Errors
///
/// If the cluster cannot be started, or does not recover, or a chunk has another value afterwards.
pub fn run(arguments: &RecoveryArguments) -> anyhow::Result<RecoveryResult> {
    ensure_usage!(arguments.bytes >= 8 && arguments.chunks > 0, "a value has at least 8 bytes");
    ensure_usage!((1..=3).contains(&arguments.backups), "--backups must be 1 to 3");
    ensure_usage!(arguments.others >= arguments.backups, "too few processes for the backups");
    let base = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = Folder(base.join(format!("amalgam-recovery-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).with_context(|| folder.0.display().to_string())?;
    let alone_seconds = alone(&folder.0, arguments)?;
    let mut nodes = start(&folder.0, arguments)?;
    let began = Instant::now();
    let homes = vec![nodes.addresses[0].0.clone()];
    let mut client = ClusterClient::connect(&homes, "", CACHE_BYTES)?;
    let ids = create(&mut client, arguments)?;
    let mut others = nodes.addresses[1..]
        .iter()
        .map(|(address, _)| ClusterClient::connect(std::slice::from_ref(address), "", CACHE_BYTES))
        .collect::<Result<Vec<_>, _>>()?;
    wait(|| Ok(client.status()?.reduced == (0, 0) && is_whole(&all(&mut others)?)))?;
    let load_seconds = began.elapsed().as_secs_f64();
    let dying = client.status()?;
    let ids_before: u64 = all(&mut others)?.iter().map(|status| status.ids).sum();
    drop(client);
    let killed = Instant::now();
    end(&mut nodes.processes[0]);
    wait(|| {
        let knows = |status: &NodeStatus| status.members.iter().all(|(p, _)| *p != dying.peer);
        Ok(all(&mut others)?.iter().any(knows))
    })?;
    let (known, mut readable) = (Instant::now(), None);
    wait(|| {
        let statuses = all(&mut others)?;
        let owned: u64 = statuses.iter().map(|status| status.ids).sum();
        let is_readable = owned >= ids_before + dying.ids;
        if is_readable && readable.is_none() {
            readable = Some(known.elapsed());
        }
        Ok(is_readable && is_whole(&statuses))
    })?;
    let full_seconds = known.elapsed().as_secs_f64();
    check(&mut others[0], &ids, arguments)?;
    Ok(RecoveryResult {
        commit: commit(),
        machine: Machine::describe(),
        chunks: arguments.chunks,
        bytes: arguments.bytes,
        others: arguments.others,
        load_seconds,
        detect_seconds: known.duration_since(killed).as_secs_f64(),
        readable_seconds: readable.unwrap_or_default().as_secs_f64(),
        full_seconds,
        alone_seconds,
    })
}

fn start(folder: &Path, arguments: &RecoveryArguments) -> anyhow::Result<Nodes> {
    let data = arguments.chunks * (arguments.bytes as u64 + BESIDE_BYTES);
    let megabytes = 256 + data / (1 << 20);
    let (backups, lease) = (arguments.backups.to_string(), arguments.lease.to_string());
    let space = format!("{}MiB", 2 * megabytes);
    let options = ["--backups", &backups, "--backup-space", &space, "--lease-seconds", &lease];
    let count = arguments.others + 1;
    let cores = allowed_cores().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let (etcd, engine, logs) = (&arguments.etcd, &arguments.engine, folder.join("logs"));
    Nodes::start_apart(etcd, count, engine, &cores, megabytes, &options, Some(&logs))
}

/// Writes the chunks; returns their ids in the order of their values.
fn create(
    client: &mut ClusterClient,
    arguments: &RecoveryArguments,
) -> anyhow::Result<Vec<ChunkId>> {
    let mut ids = Vec::with_capacity(arguments.chunks as usize);
    while (ids.len() as u64) < arguments.chunks {
        let count = (arguments.chunks - ids.len() as u64).min(BATCH as u64);
        let number = |place: u64| ids.len() as u64 + place;
        let create = |place| Action::Create(value(number(place), arguments.bytes));
        for done in client.call_all((0..count).map(create).collect()) {
            match done? {
                Response::Created(id) => ids.push(id),
                other => anyhow::bail!("a chunk came to {other:?}"),
            }
        }
    }
    Ok(ids)
}

fn all(clients: &mut [ClusterClient]) -> anyhow::Result<Vec<NodeStatus>> {
    clients.iter_mut().map(|client| Ok(client.status()?)).collect()
}

fn is_whole(statuses: &[NodeStatus]) -> bool {
    statuses.iter().all(|status| status.reduced == (0, 0))
}

fn wait(mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let began = Instant::now();
    while !is_so()? {
        ensure!(began.elapsed() < PATIENCE, "the cluster did not recover within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reads a sample of the chunks.
fn check(
    client: &mut ClusterClient,
    ids: &[ChunkId],
    arguments: &RecoveryArguments,
) -> anyhow::Result<()> {
    let numbers: Vec<u64> = (0..CHECKED).map(|step| mix64(step) % arguments.chunks).collect();
    for numbers in numbers.chunks(BATCH) {
        let asked: Vec<ChunkId> = numbers.iter().map(|number| ids[*number as usize]).collect();
        for (number, got) in numbers.iter().zip(client.get_all(&asked)) {
            let got = got.with_context(|| format!("chunk {number}"))?;
            ensure!(got == value(*number, arguments.bytes), "chunk {number} holds another value");
        }
    }
    Ok(())
}

/// The same records in logs of our own, one a thread: how long it takes to read and check them and
/// to insert the chunks into one engine.
fn alone(folder: &Path, arguments: &RecoveryArguments) -> anyhow::Result<f64> {
    let threads = allowed_cores().len() as u64;
    let part = |thread: u64| {
        let (from, to) = (thread, thread + 1);
        arguments.chunks * from / threads..arguments.chunks * to / threads
    };
    let path = |thread: u64| folder.join(format!("alone-{thread}"));
    for thread in 0..threads {
        write_log(&path(thread), part(thread), arguments)?;
    }
    let data = arguments.chunks * (arguments.bytes as u64 + BESIDE_BYTES);
    let index = Mercury::open(&Configuration {
        memory_bytes: (256 << 20) + data as usize,
        evicts: false,
        workers: threads as usize + 2,
        ..Configuration::default()
    })
    .map_err(|error| anyhow::anyhow!("{error}"))?;
    let began = Instant::now();
    let inserted = std::thread::scope(|scope| {
        let insert = |thread| {
            let (index, path) = (&index, path(thread));
            scope.spawn(move || read_log(index, &path))
        };
        let threads: Vec<_> = (0..threads).map(insert).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .sum::<anyhow::Result<u64>>()
    })?;
    let seconds = began.elapsed().as_secs_f64();
    ensure!(inserted == arguments.chunks, "{inserted} chunks were inserted");
    for thread in 0..threads {
        std::fs::remove_dir_all(path(thread))?;
    }
    Ok(seconds)
}

/// Records as a backup writes them.
fn write_log(
    path: &Path,
    numbers: std::ops::Range<u64>,
    arguments: &RecoveryArguments,
) -> anyhow::Result<()> {
    let storage = FileStorage::open(path)?;
    let (mut log, _) = Log::open(storage, 1, LogSettings::default(), &mut |_, _| {})?;
    let creator = Creator::from(NodeId::new(0)?);
    for number in numbers {
        let mutation =
            Mutation::Put(ChunkId::new(creator, number)?, value(number, arguments.bytes));
        let mut record = Vec::new();
        ReplicationEntry { version: number, mutation, sessions: Vec::new() }.encode(&mut record);
        log.append(&record)?;
        if number.is_multiple_of(BATCH as u64) {
            log.commit()?;
        }
    }
    Ok(log.commit()?)
}

fn read_log(index: &Mercury, path: &Path) -> anyhow::Result<u64> {
    let (mut store, mut inserted) = (EngineStore::from(index), 0);
    let mut insert = |_, record: &[u8]| {
        if let Ok(ReplicationEntry { mutation: Mutation::Put(id, value), .. }) =
            ReplicationEntry::decode_all(record)
        {
            inserted += u64::from(store.write(id, &value).is_ok());
        }
    };
    Log::open(FileStorage::open(path)?, 1, LogSettings::default(), &mut insert)?;
    Ok(inserted)
}
