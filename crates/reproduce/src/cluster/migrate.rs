//! Moves chunks from one node to another while clients read and write them.
//!
//! Each chunk holds a counter that one writer increments and all clients read. A read is stale if
//! it shows less than the count that was acknowledged before the read began, and wrong if it shows
//! more than the writer ever sent.

use amalgam_bench::ensure_usage;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use amalgam_node::cluster::chunks::{Action, Response};
use amalgam_node::cluster::ids::{ChunkId, IdRange};
use anyhow::{Context, ensure};

use super::Nodes;
use amalgam_bench::measure::{Machine, commit, parse_count};
use amalgam_bench::workload::mix64;

/// Chunks that are created with one call.
const BATCH: usize = 1_024;
/// The memory of a client's cache of chunks' locations, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// The most time that the move may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// Parameters of `bench migrate`.
#[derive(Clone, Debug, clap::Args)]
pub struct MigrateArguments {
    /// Chunks that move, at most 2 million.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub chunks: u64,
    /// Bytes of a chunk, at least 8.
    #[arg(long, default_value_t = 64)]
    pub bytes: usize,
    /// Clients that read and write meanwhile.
    #[arg(long, default_value_t = 2)]
    pub clients: usize,
    /// Engine of the nodes.
    #[arg(long, default_value = "mercury")]
    pub engine: String,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The result of a migration.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MigrateResult {
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// The number of chunks that moved.
    pub chunks: u64,
    /// The time in seconds from the command until the target served all chunks and the source none.
    pub seconds: f64,
    /// Reads by clients during the move and half a second after it.
    pub reads: u64,
    /// Writes by clients during the same time.
    pub writes: u64,
    /// Reads and writes that failed.
    pub errors: u64,
    /// Reads that showed less than was acknowledged before.
    pub stale: u64,
    /// Reads that showed a value that was never written.
    pub wrong: u64,
    /// Requests that went to a node which did not own the chunk.
    pub misdirected: u64,
    /// The longest read or write, in milliseconds.
    pub longest_ms: f64,
}

impl MigrateResult {
    /// The result as one line for people.
    pub fn summary(&self) -> String {
        format!(
            "{} chunks in {:.2} s, {:.0} k/s; meanwhile {} reads and {} writes: {} errors, {} \
             stale, {} wrong, {} misdirected, longest {:.1} ms",
            self.chunks,
            self.seconds,
            self.chunks as f64 / self.seconds / 1e3,
            self.reads,
            self.writes,
            self.errors,
            self.stale,
            self.wrong,
            self.misdirected,
            self.longest_ms
        )
    }
}

/// For each chunk, the counts that its writer sent last, and that were acknowledged last.
struct Known {
    sent: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
}

#[derive(Default)]
struct Counts {
    reads: u64,
    writes: u64,
    errors: u64,
    stale: u64,
    wrong: u64,
    misdirected: u64,
    longest: Duration,
}

fn value(count: u64, bytes: usize) -> Vec<u8> {
    let mut value = count.to_le_bytes().to_vec();
    value.resize(bytes, count as u8);
    value
}

fn create(client: &mut ClusterClient, arguments: &MigrateArguments) -> anyhow::Result<IdRange> {
    let (mut left, mut ids) = (arguments.chunks as usize, Vec::new());
    while left > 0 {
        let count = left.min(BATCH);
        let actions = vec![Action::Create(value(0, arguments.bytes)); count];
        for done in client.call_all(actions) {
            match done? {
                Response::Created(id) => ids.push(id),
                other => anyhow::bail!("a chunk came to {other:?}"),
            }
        }
        left -= count;
    }
    ids.sort_unstable();
    let (first, last) = (ids[0], ids[ids.len() - 1]);
    let range = IdRange::new(first, last).context("ids of one node")?;
    ensure!(range.len() == arguments.chunks, "the new ids are not dense");
    Ok(range)
}

/// Reads and writes random chunks until it is told to stop.
fn work(
    mut client: ClusterClient,
    place: usize,
    (arguments, range): (&MigrateArguments, IdRange),
    known: &Known,
    stops: &AtomicBool,
) -> Counts {
    let mut counts = Counts::default();
    let mut step = 0;
    while !stops.load(Ordering::Relaxed) {
        step += 1;
        let mixed = mix64((place as u64) << 48 | step);
        let number = (mixed % range.len()) as usize;
        let bits = range.first().bits() + number as u64;
        let Ok(id) = ChunkId::from_bits(bits) else { continue };
        let began = Instant::now();
        if number % arguments.clients == place && mixed >> 63 == 0 {
            // A chunk has one writer, so no other thread changes its counts.
            let count = known.sent[number].load(Ordering::Relaxed) + 1;
            known.sent[number].store(count, Ordering::SeqCst);
            match client.put(id, &value(count, arguments.bytes)) {
                Ok(()) => known.answered[number].store(count, Ordering::SeqCst),
                Err(_) => counts.errors += 1,
            }
            counts.writes += 1;
        } else {
            let least = known.answered[number].load(Ordering::SeqCst);
            match client.get(id) {
                Ok(got) => {
                    let most = known.sent[number].load(Ordering::SeqCst);
                    let head = got.first_chunk().map(|head| u64::from_le_bytes(*head));
                    let count = head.unwrap_or(u64::MAX);
                    counts.stale += u64::from(count < least);
                    let is_whole = got == value(count, arguments.bytes);
                    counts.wrong += u64::from(count > most || !is_whole);
                }
                Err(_) => counts.errors += 1,
            }
            counts.reads += 1;
        }
        counts.longest = counts.longest.max(began.elapsed());
    }
    counts.misdirected = client.statistics().misdirected;
    counts
}

/// Moves all chunks of a node to another under load.
///
/// # Errors
///
/// If the cluster cannot be started, or the chunks do not move in time.
pub fn run(arguments: &MigrateArguments) -> anyhow::Result<MigrateResult> {
    ensure_usage!(arguments.clients > 0, "--clients must be at least 1");
    ensure_usage!(arguments.bytes >= 8, "--bytes must be at least 8");
    ensure_usage!((1..=2_000_000).contains(&arguments.chunks), "--chunks must be 1 to 2 million");
    let megabytes = 64 + (arguments.chunks * (arguments.bytes as u64 + 100)) / (1 << 20);
    let nodes = Nodes::start(2, &arguments.engine, 1, megabytes)?;
    let address = |place: usize| vec![nodes.addresses[place].0.clone()];
    let connect = |place: usize| ClusterClient::connect(&address(place), "", CACHE_BYTES);
    let (mut source, mut target) = (connect(0)?, connect(1)?);
    let range = create(&mut source, arguments)?;
    let counts = || (0..arguments.chunks).map(|_| AtomicU64::new(0)).collect();
    let known = Known { sent: counts(), answered: counts() };
    let stops = AtomicBool::new(false);
    let clients =
        (0..arguments.clients).map(connect_to(&address)).collect::<Result<Vec<_>, _>>()?;
    let (seconds, tallies) = std::thread::scope(|scope| {
        let (known, stops) = (&known, &stops);
        let start = |(place, client)| {
            scope.spawn(move || work(client, place, (arguments, range), known, stops))
        };
        let threads: Vec<_> = clients.into_iter().enumerate().map(start).collect();
        let moved = move_all(&mut source, &mut target, range);
        // Clients go on for a while at the new owner.
        std::thread::sleep(Duration::from_millis(500));
        stops.store(true, Ordering::Relaxed);
        let tallies: Vec<Counts> = threads.into_iter().filter_map(|one| one.join().ok()).collect();
        moved.map(|seconds| (seconds, tallies))
    })?;
    ensure!(tallies.len() == arguments.clients, "a client panicked");
    let sum = |of: fn(&Counts) -> u64| tallies.iter().map(of).sum();
    let longest = tallies.iter().map(|counts| counts.longest).max().unwrap_or_default();
    Ok(MigrateResult {
        commit: commit(),
        machine: Machine::describe(),
        chunks: arguments.chunks,
        seconds,
        reads: sum(|counts| counts.reads),
        writes: sum(|counts| counts.writes),
        errors: sum(|counts| counts.errors),
        stale: sum(|counts| counts.stale),
        wrong: sum(|counts| counts.wrong),
        misdirected: sum(|counts| counts.misdirected),
        longest_ms: longest.as_secs_f64() * 1e3,
    })
}

/// Connects clients, each to one of the two nodes.
fn connect_to(
    address: &impl Fn(usize) -> Vec<String>,
) -> impl Fn(usize) -> anyhow::Result<ClusterClient> {
    move |place| Ok(ClusterClient::connect(&address(place % 2), "", CACHE_BYTES)?)
}

/// Orders the move and waits for its end; returns the seconds.
fn move_all(
    source: &mut ClusterClient,
    target: &mut ClusterClient,
    range: IdRange,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let is_moving = source.migrate(range, target.home().node)?;
    ensure!(is_moving, "the node refused to move the chunks");
    while began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        if source.status()?.moves.0 == 0 && target.status()?.moves.1 == 0 {
            let is_there = target.status()?.ids >= range.len();
            ensure!(is_there, "the node gave up the move");
            return Ok(began.elapsed().as_secs_f64());
        }
    }
    anyhow::bail!("the chunks did not move in time")
}
