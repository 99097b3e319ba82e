//! The line that `bench ids` prints for a structure.

use crate::ids::arguments::{IdsArguments, Structure};
use amalgam_bench::measure::{Machine, Spread, commit};

/// The times of one round, in nanoseconds an operation.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub get_ns: f64,
    pub migrate_ns: f64,
}

/// The measurements of one structure.
#[derive(Clone, Debug)]
pub struct Run {
    pub structure: Structure,
    pub ranges: u64,
    pub bytes: u64,
    pub counted_bytes: Option<u64>,
    pub fill_migrate_ns: Option<f64>,
    pub rounds: Vec<Round>,
}

impl Run {
    pub fn new(structure: Structure, ranges: u64) -> Self {
        let rounds = Vec::new();
        Self { structure, ranges, bytes: 0, counted_bytes: None, fill_migrate_ns: None, rounds }
    }
}

/// A result: the parameters, then the measurements.
#[derive(Clone, Debug, serde::Serialize)]
pub struct IdsResult {
    /// The structure that was measured.
    pub structure: Structure,
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    ids: u64,
    migrated: f64,
    backups: u8,
    copy_sets: u64,
    nodes: u16,
    leaf_entries: usize,
    together: usize,
    gets: u64,
    moves: u64,
    rounds: usize,
    seed: u64,
    /// Time in nanoseconds of a lookup of a random id, one after the other; the median of the
    /// rounds.
    pub get_ns: f64,
    /// `get_ns` of the fastest and of the slowest round.
    pub get_ns_min_max: [f64; 2],
    /// Time in nanoseconds of a migration of a random id that had not migrated; the median of the
    /// rounds.
    pub migrate_ns: f64,
    /// `migrate_ns` of the fastest and of the slowest round.
    pub migrate_ns_min_max: [f64; 2],
    /// `get_ns` of all rounds, in order.
    pub rounds_get_ns: Vec<f64>,
    /// `migrate_ns` of all rounds, in order.
    pub rounds_migrate_ns: Vec<f64>,
    /// The mean time in nanoseconds of the migrations before the rounds, which create the disorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_migrate_ns: Option<f64>,
    /// The growth in bytes of resident memory by the structure, measured before the rounds.
    pub bytes: u64,
    /// The bytes that the structure itself counts, without the allocator's share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted_bytes: Option<u64>,
    /// The larger of `bytes` and `counted_bytes`: a small map may lie in memory that was resident
    /// before, so that `bytes` is too small.
    pub size_bytes: u64,
    /// `bytes` over `ranges`.
    pub bytes_per_range: f64,
    /// The number of ranges; of entries, where the structure has no ranges.
    pub ranges: u64,
    /// `get_ns` over that of the structure named by `--ratio-to`: the median of the rounds' ratios.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub get_ratio: Option<f64>,
    /// `migrate_ns` over that of the same structure: the median of the rounds' ratios.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrate_ratio: Option<f64>,
    /// `size_bytes` of the structure named by `--ratio-to` over that of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_smaller: Option<f64>,
}

fn spread(run: &Run, figure: impl Fn(&Round) -> f64) -> Spread {
    let numbers: Vec<f64> = run.rounds.iter().map(figure).collect();
    Spread::of(&numbers).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 })
}

fn paired(run: &Run, other: Option<&Run>, figure: impl Fn(&Round) -> f64) -> Option<f64> {
    let pairs = run.rounds.iter().zip(&other?.rounds);
    let ratios: Vec<f64> = pairs.map(|(own, other)| figure(own) / figure(other)).collect();
    Spread::of(&ratios).map(|spread| round_to_tenth(spread.median * 100.0) / 100.0)
}

fn round_to_tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

impl IdsResult {
    /// Summarizes the rounds of a structure.
    pub fn new(arguments: &IdsArguments, run: &Run, reference: Option<&Run>) -> Self {
        let get = spread(run, |round| round.get_ns);
        let migrate = spread(run, |round| round.migrate_ns);
        Self {
            structure: run.structure,
            commit: commit(),
            machine: Machine::describe(),
            ids: arguments.ids,
            migrated: arguments.migrated,
            backups: arguments.backups,
            copy_sets: arguments.copy_sets,
            nodes: arguments.nodes,
            leaf_entries: arguments.leaf_entries,
            together: arguments.together,
            gets: arguments.gets,
            moves: arguments.moves,
            rounds: run.rounds.len(),
            seed: arguments.seed,
            get_ns: round_to_tenth(get.median),
            get_ns_min_max: [get.min, get.max].map(round_to_tenth),
            migrate_ns: round_to_tenth(migrate.median),
            migrate_ns_min_max: [migrate.min, migrate.max].map(round_to_tenth),
            rounds_get_ns: run.rounds.iter().map(|one| round_to_tenth(one.get_ns)).collect(),
            rounds_migrate_ns: run
                .rounds
                .iter()
                .map(|one| round_to_tenth(one.migrate_ns))
                .collect(),
            fill_migrate_ns: run.fill_migrate_ns.map(round_to_tenth),
            bytes: run.bytes,
            counted_bytes: run.counted_bytes,
            size_bytes: run.bytes.max(run.counted_bytes.unwrap_or(0)),
            bytes_per_range: (run.bytes as f64 / run.ranges.max(1) as f64 * 100.0).round() / 100.0,
            ranges: run.ranges,
            get_ratio: paired(run, reference, |round| round.get_ns),
            migrate_ratio: paired(run, reference, |round| round.migrate_ns),
            times_smaller: reference
                .map(|other| round_to_tenth(other.bytes as f64 / run.bytes.max(1) as f64)),
        }
    }

    /// The result as one line for people.
    pub fn summary(&self) -> String {
        format!(
            "{:?}  {} ids, {} % migrated  get {} ns  migrate {} ns  {:.1} MB  {} bytes/range  \
             {} ranges",
            self.structure,
            self.ids,
            self.migrated * 100.0,
            self.get_ns,
            self.migrate_ns,
            self.bytes as f64 / 1e6,
            self.bytes_per_range,
            self.ranges,
        )
    }
}
