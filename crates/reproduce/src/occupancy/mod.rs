//! `bench occupancy` measures how full MemC3's table gets before an insert fails, how many items
//! inserts displace until then and how long they take, and compares with a bare table of chains
//! (MemC3, table 2 and figure 6).

mod chains;

use amalgam_bench::ensure_usage;
use std::time::Instant;

use amalgam_index::PathSearch;
use amalgam_index::memc3::occupancy::{Filling, MAX_DISPLACEMENTS, fill};

use amalgam_bench::driver::parse_paths;
use amalgam_bench::measure::{Machine, Spread, commit, parse_count};

/// Fills MemC3's table until an insert fails, or memcached's chains as far as they go.
#[derive(Clone, Debug, clap::Args)]
pub struct OccupancyArguments {
    /// Slots a bucket: 4 as printed, or 8.
    #[arg(long, default_value_t = 4)]
    pub slots: usize,
    /// Slots of the table, a power of two; the paper's is 2^27.
    #[arg(long, value_parser = parse_count, default_value = "4Mi")]
    pub size: u64,
    /// How paths are searched: 1 to 4 walks at once, or bfs.
    #[arg(long, value_parser = parse_paths, default_value = "2")]
    pub paths: PathSearch,
    /// Measure chains instead: half as many buckets as slots, and 1.5 items to each, as in
    /// memcached.
    #[arg(long, conflicts_with_all = ["slots", "paths"])]
    pub chaining: bool,
    /// Tables that are filled, each from a seed of its own.
    #[arg(long, default_value_t = 1)]
    pub runs: u64,
    /// One JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The means of all runs.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OccupancyResult {
    /// `memc3` or `chaining`.
    pub engine: &'static str,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    slots_per_bucket: usize,
    slots: u64,
    paths: String,
    runs: u64,
    /// Items over slots when an insert failed for the first time.
    pub load_percent: f64,
    /// The load of each run.
    pub load_percent_by_run: Vec<f64>,
    /// Bytes of the table for each item.
    pub bytes_per_item: f64,
    /// The inserts per second of one thread: the median of the runs.
    pub inserts_per_second: f64,
    /// The inserts per second of the slowest and of the fastest run.
    pub inserts_per_second_min_max: [f64; 2],
    /// The inserts per second of all runs, in order.
    pub rounds_inserts_per_second: Vec<f64>,
    /// Items in the fullest bucket of all runs.
    pub largest_bucket: usize,
    /// Displacements an insert until the table was 80 % full.
    pub displacements_below_80: f64,
    /// Displacements an insert until an insert failed.
    pub displacements: f64,
    /// The points of figure 6: the kind of path search, the percentage of slots in use, and
    /// displacements an insert at that load.
    pub points: Vec<(String, f64, f64)>,
}

/// A table that was filled, and the time that it took.
struct Timed {
    filling: Filling,
    largest_bucket: usize,
    seconds: f64,
}

impl Timed {
    /// Fills a table. The time includes the first touch of the table's memory, as in a server.
    fn of(arguments: &OccupancyArguments, size: usize, seed: u64) -> anyhow::Result<Self> {
        let started = Instant::now();
        if arguments.chaining {
            let chains = chains::fill(size / 2, seed)?;
            let seconds = started.elapsed().as_secs_f64();
            let filling = Filling {
                slots: size,
                bytes: chains.bytes,
                items: chains.items,
                displacements: Vec::new(),
                total_displacements: 0,
            };
            return Ok(Self { filling, largest_bucket: chains.largest_bucket(), seconds });
        }
        let filling = match arguments.slots {
            4 => fill::<4>(size, arguments.paths, MAX_DISPLACEMENTS, seed),
            _ => fill::<8>(size, arguments.paths, MAX_DISPLACEMENTS, seed),
        };
        let (filling, seconds) = (filling?, started.elapsed().as_secs_f64());
        // A failed insert has found its buckets full.
        Ok(Self { filling, largest_bucket: arguments.slots, seconds })
    }

    fn inserts_per_second(&self) -> f64 {
        self.filling.items as f64 / self.seconds
    }
}

impl OccupancyResult {
    /// The result as one line for people.
    pub fn summary(&self) -> String {
        let loads: Vec<String> =
            self.load_percent_by_run.iter().map(|load| format!("{load:.2}")).collect();
        format!(
            "{} slots a bucket, {}  {:.2} % full ({})  {:.2} bytes an item  {:.2} M inserts/s  \
             largest bucket {}  displacements an insert {:.3} below 80 %, {:.3} in all",
            self.slots_per_bucket,
            self.paths,
            self.load_percent,
            loads.join(" "),
            self.bytes_per_item,
            self.inserts_per_second / 1e6,
            self.largest_bucket,
            self.displacements_below_80,
            self.displacements
        )
    }
}

/// Fills tables as often as the arguments say.
///
/// # Errors
///
/// If an argument is invalid, or the system refuses the memory.
pub fn run_occupancy(arguments: &OccupancyArguments) -> anyhow::Result<OccupancyResult> {
    ensure_usage!(matches!(arguments.slots, 4 | 8), "--slots must be 4 or 8");
    ensure_usage!(arguments.runs >= 1, "--runs must be at least 1");
    let size = usize::try_from(arguments.size)?;
    ensure_usage!(
        size.is_power_of_two() && size >= 1024,
        "--size must be a power of two, 1024 at least: 1Ki, 4Mi, 128Mi"
    );
    let timed: anyhow::Result<Vec<Timed>> =
        (1..=arguments.runs).map(|seed| Timed::of(arguments, size, seed)).collect();
    let timed = timed?;
    let rates: Vec<f64> = timed.iter().map(Timed::inserts_per_second).collect();
    let by_run = rates.iter().map(|rate| rate.round()).collect();
    let rates = Spread::of(&rates).expect("there is a run");
    let largest_bucket = timed.iter().map(|one| one.largest_bucket).max().unwrap_or(0);
    let fillings: Vec<Filling> = timed.into_iter().map(|one| one.filling).collect();
    let mean = |figure: &dyn Fn(&Filling) -> f64| {
        fillings.iter().map(figure).sum::<f64>() / fillings.len() as f64
    };
    let load = |filling: &Filling| 100.0 * filling.load_factor();
    let loads = fillings.iter().map(load);
    let all = |filling: &Filling| filling.total_displacements as f64 / filling.items as f64;
    let name = match arguments.paths {
        _ if arguments.chaining => "chaining".to_owned(),
        PathSearch::Walks(1) => "1 path".to_owned(),
        PathSearch::Walks(walks) => format!("{walks} paths"),
        PathSearch::BreadthFirst => "breadth first".to_owned(),
    };
    let percents = fillings.iter().map(|filling| filling.displacements.len()).min().unwrap_or(0);
    let point = |percent: usize| {
        let so_far = percent as f64 + 1.0;
        let displaced = |filling: &Filling| filling.displacements.iter().take(percent + 1).sum();
        (
            name.clone(),
            so_far,
            mean(&|filling| {
                let sum: f64 = displaced(filling);
                sum / so_far
            }),
        )
    };
    Ok(OccupancyResult {
        engine: if arguments.chaining { "chaining" } else { "memc3" },
        commit: commit(),
        machine: Machine::describe(),
        // A bucket of chains has one slot, its head.
        slots_per_bucket: if arguments.chaining { 1 } else { arguments.slots },
        slots: arguments.size,
        runs: arguments.runs,
        load_percent: mean(&load),
        load_percent_by_run: loads.collect(),
        bytes_per_item: mean(&Filling::bytes_per_item),
        inserts_per_second: rates.median.round(),
        inserts_per_second_min_max: [rates.min.round(), rates.max.round()],
        rounds_inserts_per_second: by_run,
        largest_bucket,
        displacements_below_80: mean(&|filling| {
            // Chains displace nothing. The fold begins at 0, because the sum of no numbers is −0.
            filling.displacements.iter().take(80).fold(0.0, |sum, part| sum + part) / 80.0
        }),
        displacements: mean(&all),
        points: (0..percents).map(point).collect(),
        paths: name,
    })
}
