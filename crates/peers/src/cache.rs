//! `amalgam-peers cache`: the library's map and moka, as bounded caches: hit ratios of traces at
//! equal resident memory, bytes an entry, and rates of gets and inserts.
//!
//! Invariants of this module:
//! 1. Each replay runs in a process of its own, so that neither cache finds memory that the other
//!    has returned. Bytes are the growth of the process's resident memory. As huge pages are
//!    resident as a whole, they differ between replays: the median replay is what counts.
//! 2. Rates of the two are measured in turns, in one process, on the same requests.
//! 3. moka gets a fast hash and values that a get does not copy.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use amalgam_bench::measure::{parse_size, resident_bytes_of};
use amalgam_bench::print_result;
use amalgam_bench::replay::{Generator, Reading, SizeModel, Trace};
use amalgam_index::{Map, MapBuilder, Memc3, Mercury};
use amalgam_op::mix64;
use anyhow::{Context, ensure};

/// The forms of our map: two engines with the default policy of eviction, one with the other.
const OURS: [&str; 3] = ["mercury", "unread-first", "memc3"];

/// Keys in a batch.
const BATCH: usize = 100;

/// Bytes of a key: a prefix and the number.
const KEY_BYTES: usize = 16;

/// Compares the library's map with moka as a bounded cache.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheArguments {
    /// Files of traces to replay; none for the rates alone.
    pub traces: Vec<PathBuf>,
    /// Lengths of values: `trace`, `fixed:BYTES`, `lognormal:MEDIAN[:SIGMA]`.
    #[arg(long, default_value = "lognormal:200")]
    pub sizes: String,
    /// Bytes of keys and values that moka may hold. Our map is bound to the memory that moka took.
    #[arg(long, value_parser = parse_size, default_value = "64MiB")]
    pub payload: u64,
    /// The share of all keys and values that the cache may hold: as many copies of the trace, in
    /// lockstep and each with keys of its own, are replayed as make it so.
    #[arg(long, default_value_t = 0.1)]
    pub share: f64,
    /// Replays of each cache; the one whose bytes an entry are the median is printed.
    #[arg(long, default_value_t = 5)]
    pub replays: usize,
    /// Items for the rates; 0 for the replays alone.
    #[arg(long, default_value_t = 1_000_000)]
    pub items: u32,
    /// Rounds of each rate, whose median is printed.
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Replays one trace in this process through `moka`, `mercury` or `memc3`.
    #[arg(long, hide = true)]
    pub only: Option<String>,
    /// The bound of our map in bytes, for a replay in this process.
    #[arg(long, hide = true, default_value_t = 0)]
    pub bound: u64,
}

/// What a replay left.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Replay {
    requests: u64,
    hits: u64,
    entries: u64,
    /// The growth of the process's resident memory.
    resident_bytes: u64,
    /// Bytes of the keys and values that are held.
    payload_bytes: u64,
    seconds: f64,
}

/// One line of results: several replays of a trace through a cache.
#[derive(Debug, serde::Serialize)]
struct Replays {
    trace: String,
    sizes: String,
    cache: &'static str,
    /// The median by bytes an entry.
    median: Replay,
    /// The fewest and the most bytes an entry above its key and value.
    overheads: [f64; 2],
}

/// A cache of bytes.
trait ByteCache {
    fn get(&mut self, key: &[u8]) -> Option<u8>;

    /// Reads several keys; returns how many there are.
    fn get_all(&mut self, keys: &[&[u8]]) -> usize;

    fn insert(&mut self, key: &[u8], value: &[u8]);

    /// Finishes what was put off; returns the number of entries.
    fn settle(&mut self) -> u64;
}

struct Moka(moka::sync::Cache<Box<[u8]>, Arc<[u8]>, rapidhash::fast::RandomState>);

impl Moka {
    fn new(payload_bytes: u64) -> Self {
        let weigher = weight;
        let builder = moka::sync::Cache::builder().max_capacity(payload_bytes).weigher(weigher);
        Self(builder.build_with_hasher(rapidhash::fast::RandomState::new()))
    }
}

#[expect(clippy::borrowed_box, reason = "the type that moka calls it with")]
fn weight(key: &Box<[u8]>, value: &Arc<[u8]>) -> u32 {
    (key.len() + value.len()) as u32
}

impl ByteCache for Moka {
    fn get(&mut self, key: &[u8]) -> Option<u8> {
        self.0.get(key).map(|value| value.first().copied().unwrap_or(0))
    }

    fn get_all(&mut self, keys: &[&[u8]]) -> usize {
        keys.iter().filter(|key| self.get(key).is_some()).count()
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    fn settle(&mut self) -> u64 {
        self.0.run_pending_tasks();
        self.0.entry_count()
    }
}

impl<E: amalgam_index::Engine> ByteCache for Map<E> {
    fn get(&mut self, key: &[u8]) -> Option<u8> {
        self.with(|handle| handle.get_with(key, |value| value.first().copied().unwrap_or(0)))
    }

    fn get_all(&mut self, keys: &[&[u8]]) -> usize {
        let mut sum = 0_u64;
        let found = self.with(|handle| {
            handle.get_many(keys, |_, value| sum += u64::from(value.first().copied().unwrap_or(0)))
        });
        std::hint::black_box(sum);
        found
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        // An item that finds no room is one that the cache does not hold.
        let _ = self.with(|handle| handle.insert(key, value));
    }

    fn settle(&mut self) -> u64 {
        self.len()
    }
}

fn map(memory_bytes: u64) -> anyhow::Result<MapBuilder> {
    Ok(MapBuilder::new().memory_bytes(usize::try_from(memory_bytes)?))
}

/// # Errors
///
/// If a trace cannot be read, or a process fails.
pub fn run(arguments: &CacheArguments) -> anyhow::Result<()> {
    if let Some(name) = &arguments.only {
        let [trace] = &arguments.traces[..] else { anyhow::bail!("--only takes one trace") };
        let replayed = replay(arguments, trace, name)?;
        println!("{}", serde_json::to_string(&replayed)?);
        return Ok(());
    }
    for trace in &arguments.traces {
        let moka = replays(arguments, trace, "moka", 0)?;
        let bound = moka.median.resident_bytes;
        print_result(arguments.json, &moka, || moka.row())?;
        for engine in OURS {
            let ours = replays(arguments, trace, engine, bound)?;
            print_result(arguments.json, &ours, || ours.row())?;
        }
    }
    if arguments.items > 0 {
        rates(arguments)?;
    }
    Ok(())
}

impl Replay {
    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.requests as f64
    }

    /// Resident bytes an entry above its key and value.
    fn overhead(&self) -> f64 {
        (self.resident_bytes as f64 - self.payload_bytes as f64) / self.entries as f64
    }
}

impl Replays {
    fn row(&self) -> String {
        let Self { trace, sizes, cache, median, overheads: [fewest, most] } = self;
        format!(
            "{trace}, {sizes}, {cache}: {:.4} hit, {} entries, {:.1} MiB resident, {:.0} bytes an \
             entry above key and value ({fewest:.0} to {most:.0}), {:.2} M requests/s",
            median.hit_ratio(),
            median.entries,
            median.resident_bytes as f64 / f64::from(1 << 20),
            median.overhead(),
            median.requests as f64 / median.seconds / 1e6
        )
    }
}

/// Replays a trace through a cache as often as the arguments say.
fn replays(
    arguments: &CacheArguments,
    trace: &Path,
    cache: &'static str,
    bound: u64,
) -> anyhow::Result<Replays> {
    let run = |_| in_process(arguments, trace, cache, bound);
    let mut all = (0..arguments.replays.max(1)).map(run).collect::<anyhow::Result<Vec<_>>>()?;
    all.sort_by(|one, other| one.overhead().total_cmp(&other.overhead()));
    Ok(Replays {
        trace: trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        sizes: arguments.sizes.clone(),
        cache,
        median: all[all.len() / 2],
        overheads: [all[0].overhead(), all[all.len() - 1].overhead()],
    })
}

/// Runs [`replay`] in a process of its own.
fn in_process(
    arguments: &CacheArguments,
    trace: &Path,
    name: &str,
    bound: u64,
) -> anyhow::Result<Replay> {
    let output = Command::new(std::env::current_exe()?)
        .args(["cache", "--only", name, "--sizes", &arguments.sizes])
        .args(["--payload", &arguments.payload.to_string()])
        .args(["--share", &arguments.share.to_string(), "--bound", &bound.to_string()])
        .arg(trace)
        // Large memory goes back to the system when it is freed, so that what reading the trace
        // took is not what the cache finds.
        .env("MALLOC_MMAP_THRESHOLD_", "1048576")
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the replay of {} failed", trace.display());
    serde_json::from_slice(&output.stdout).context("the replay's result")
}

/// Looks each key of a trace up, and stores it where it is absent.
fn replay(arguments: &CacheArguments, trace: &Path, name: &str) -> anyhow::Result<Replay> {
    let generator = Generator { keys: 1_000_000, theta: 0.99, seed: 1 };
    let trace = Trace::read(trace, &Reading { format: None, requests: None, generator })?;
    let sizes: SizeModel = arguments.sizes.parse()?;
    let bytes_of = |length: &u32| KEY_BYTES as u64 + u64::from(*length);
    let one: u64 = sizes.value_bytes(&trace, 1)?.iter().map(bytes_of).sum();
    let copies =
        (arguments.payload as f64 / (arguments.share * one as f64)).round().max(1.0) as u32;
    let lengths = sizes.value_bytes(&trace, copies)?;
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    let value = vec![7; longest];
    let before = resident_bytes_of(std::process::id())?;
    let items = trace.keys * copies;
    let mut cache: Box<dyn ByteCache> = match name {
        "moka" => Box::new(Moka::new(arguments.payload)),
        "mercury" => Box::new(map(arguments.bound)?.open::<Mercury>()?),
        "unread-first" => Box::new(map(arguments.bound)?.evicts_unread_first().open::<Mercury>()?),
        "memc3" => Box::new(map(arguments.bound)?.open::<Memc3>()?),
        _ => anyhow::bail!("'{name}' is none of moka and {OURS:?}"),
    };
    let mut hits = 0;
    let started = Instant::now();
    for request in &trace.requests {
        for copy in 0..copies {
            let item = copy * trace.keys + request;
            let key = key_of(item);
            if cache.get(&key).is_some() {
                hits += 1;
            } else {
                cache.insert(&key, &value[..lengths[item as usize] as usize]);
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let entries = cache.settle();
    let resident = resident_bytes_of(std::process::id())?;
    let held = (0..items).filter(|item| cache.get(&key_of(*item)).is_some());
    let payload_bytes = held.map(|item| KEY_BYTES as u64 + u64::from(lengths[item as usize])).sum();
    Ok(Replay {
        requests: trace.requests.len() as u64 * u64::from(copies),
        hits,
        entries,
        resident_bytes: resident.saturating_sub(before),
        payload_bytes,
        seconds,
    })
}

fn key_of(item: u32) -> [u8; KEY_BYTES] {
    let mut key = *b"item:00000000000";
    key[8..].copy_from_slice(&mix64(u64::from(item)).to_le_bytes());
    key
}

/// Rates of reads and writes of caches that hold all items, in turns.
fn rates(arguments: &CacheArguments) -> anyhow::Result<()> {
    const VALUE: [u8; 100] = [7; 100];
    let items = arguments.items;
    let keys: Vec<_> = (0..items).map(key_of).collect();
    // A permutation of sorts: the order of keys in memory must not be that of the requests.
    let order: Vec<u32> =
        (0..u64::from(items)).map(|number| (mix64(number) % u64::from(items)) as u32).collect();
    let requests: Vec<&[u8]> = order.iter().map(|item| &keys[*item as usize][..]).collect();
    let memory = u64::from(items) * 400 + (64 << 20);
    let mut caches: [(&str, Box<dyn ByteCache>); 3] = [
        ("moka", Box::new(Moka::new(memory))),
        ("mercury", Box::new(map(memory)?.expected_items(items as usize).open::<Mercury>()?)),
        ("memc3", Box::new(map(memory)?.expected_items(items as usize).open::<Memc3>()?)),
    ];
    for (_, cache) in &mut caches {
        keys.iter().for_each(|key| cache.insert(key, &VALUE));
        cache.settle();
    }
    let mut seconds = vec![[[0.0; 3]; 3]; arguments.rounds.max(1)];
    for round in &mut seconds {
        for ((_, cache), seconds) in caches.iter_mut().zip(round) {
            let started = Instant::now();
            let found = requests.iter().filter(|key| cache.get(key).is_some()).count();
            seconds[0] = started.elapsed().as_secs_f64();
            ensure!(found == requests.len(), "a cache with room for all lost {found}");
            let started = Instant::now();
            let found: usize = requests.chunks(BATCH).map(|keys| cache.get_all(keys)).sum();
            seconds[1] = started.elapsed().as_secs_f64();
            ensure!(found == requests.len(), "a cache with room for all lost {found}");
            let started = Instant::now();
            requests.iter().for_each(|key| cache.insert(key, &VALUE));
            cache.settle();
            seconds[2] = started.elapsed().as_secs_f64();
        }
    }
    for (place, (name, _)) in caches.iter().enumerate() {
        let rate = |what: usize| {
            let mut all: Vec<f64> = seconds.iter().map(|round| round[place][what]).collect();
            all.sort_by(f64::total_cmp);
            f64::from(items) / all[all.len() / 2] / 1e6
        };
        let rates = serde_json::json!({
            "cache": name, "items": items, "get": rate(0), "get_100": rate(1), "insert": rate(2),
        });
        print_result(arguments.json, &rates, || {
            format!(
                "{name}: {:.2} M gets/s one by one, {:.2} in batches of {BATCH}, {:.2} M inserts/s",
                rate(0),
                rate(1),
                rate(2)
            )
        })?;
    }
    Ok(())
}
