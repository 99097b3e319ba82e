//! `bench occupancy`: how full MemC3's table gets before an insert fails, and what inserts displace
//! on the way (MemC3, table 2 and figure 6).

use amalgam_index::PathSearch;
use amalgam_index::memc3::occupancy::{Filling, MAX_DISPLACEMENTS, fill};
use anyhow::ensure;

use super::arguments::parse_paths;
use crate::measure::{Machine, commit, parse_count};

/// Fills MemC3's table until an insert fails.
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
    engine: &'static str,
    /// See [`commit`].
    pub commit: &'static str,
    /// See [`Machine`].
    pub machine: Machine,
    slots_per_bucket: usize,
    slots: u64,
    paths: String,
    runs: u64,
    /// Items over slots when an insert failed for the first time.
    pub load_percent: f64,
    /// The same of each run.
    pub load_percent_by_run: Vec<f64>,
    /// Bytes of the table for each item.
    pub bytes_per_item: f64,
    /// Displacements an insert, until 80 % were full.
    pub displacements_below_80: f64,
    /// Displacements an insert, in all.
    pub displacements: f64,
    /// Paths, percent full and displacements an insert until then.
    pub points: Vec<(String, f64, f64)>,
}

impl OccupancyResult {
    /// For people.
    pub fn summary(&self) -> String {
        let loads: Vec<String> =
            self.load_percent_by_run.iter().map(|load| format!("{load:.2}")).collect();
        format!(
            "{} slots a bucket, {}  {:.2} % full ({})  {:.2} bytes an item  displacements an \
             insert {:.3} below 80 %, {:.3} in all",
            self.slots_per_bucket,
            self.paths,
            self.load_percent,
            loads.join(" "),
            self.bytes_per_item,
            self.displacements_below_80,
            self.displacements
        )
    }
}

/// Fills as often as asked.
///
/// # Errors
///
/// If an argument makes no sense, or the system refuses the memory.
pub fn run_occupancy(arguments: &OccupancyArguments) -> anyhow::Result<OccupancyResult> {
    ensure!(matches!(arguments.slots, 4 | 8), "--slots must be 4 or 8");
    ensure!(arguments.runs >= 1, "--runs must be at least 1");
    let size = usize::try_from(arguments.size)?;
    ensure!(
        size.is_power_of_two() && size >= 1024,
        "--size must be a power of two, 1024 at least: 1Ki, 4Mi, 128Mi"
    );
    let filling = |seed| match arguments.slots {
        4 => fill::<4>(size, arguments.paths, MAX_DISPLACEMENTS, seed),
        _ => fill::<8>(size, arguments.paths, MAX_DISPLACEMENTS, seed),
    };
    let fillings: Result<Vec<Filling>, _> = (1..=arguments.runs).map(filling).collect();
    let fillings = fillings?;
    let mean = |figure: &dyn Fn(&Filling) -> f64| {
        fillings.iter().map(figure).sum::<f64>() / fillings.len() as f64
    };
    let load = |filling: &Filling| 100.0 * filling.load_factor();
    let loads = fillings.iter().map(load);
    let all = |filling: &Filling| filling.total_displacements as f64 / filling.items as f64;
    let name = match arguments.paths {
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
        engine: "memc3",
        commit: commit(),
        machine: Machine::describe(),
        slots_per_bucket: arguments.slots,
        slots: arguments.size,
        runs: arguments.runs,
        load_percent: mean(&load),
        load_percent_by_run: loads.collect(),
        bytes_per_item: mean(&Filling::bytes_per_item),
        displacements_below_80: mean(&|filling| {
            filling.displacements.iter().take(80).sum::<f64>() / 80.0
        }),
        displacements: mean(&all),
        points: (0..percents).map(point).collect(),
        paths: name,
    })
}
