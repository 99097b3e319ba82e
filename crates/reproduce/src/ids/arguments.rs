//! The command lines of `bench ids` and `bench lookup-cache`.

use anyhow::ensure;

use amalgam_bench::measure::{parse_count, parse_size};

/// The data structure that keeps the owners of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Structure {
    /// The tree of ranges of `amalgam-cluster`.
    CidTree,
    /// A B-tree by the last ids of ranges, as in the paper.
    BTree,
    /// The standard library's hash map.
    Hash,
    /// Cuckoo hashing of primitive ids, 90 % full.
    Cuckoo,
    /// An array with two bytes for each possible id.
    Array,
    /// Java's `HashMap<Long, Short>`, in a process of its own.
    Java,
}

/// Measures maps from chunk ids to owners.
#[derive(Clone, Debug, clap::Args)]
pub struct IdsArguments {
    /// Ids of one creator; 1G is a billion.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub ids: u64,
    /// Share of the ids that migrate alone, at random.
    #[arg(long, default_value_t = 0.01)]
    pub migrated: f64,
    /// Structures to compare, with commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cid-tree")]
    pub structure: Vec<Structure>,
    /// Backups of each range: 0 or 3 (tree structures only).
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub backups: u8,
    /// Sets of backups that an owner has; 0 draws backups anew for each migration.
    #[arg(long, default_value_t = 16)]
    pub copy_sets: u64,
    /// Nodes that ids migrate to.
    #[arg(long, default_value_t = 999)]
    pub nodes: u16,
    /// The most entries in a leaf of the CID-tree.
    #[arg(long, default_value_t = 128)]
    pub leaf_entries: usize,
    /// Ids that the CID-tree prefetches together before their lookups, so that it waits for the
    /// memory of all at once; 1 for none.
    #[arg(long, default_value_t = 1)]
    pub together: usize,
    /// Lookups of a round.
    #[arg(long, value_parser = parse_count, default_value = "2M")]
    pub gets: u64,
    /// Further migrations of a round.
    #[arg(long, value_parser = parse_count, default_value = "200k")]
    pub moves: u64,
    /// Rounds of each structure, in turns.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Compare every structure with this one, round by round.
    #[arg(long, value_enum)]
    pub ratio_to: Option<Structure>,
    /// Seed of ids and migrations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

impl IdsArguments {
    /// Checks that the options can be run.
    ///
    /// # Errors
    ///
    /// If an option is invalid; the error names it and says what is wrong.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=1 << 40).contains(&self.ids), "--ids must be 1 to 2^40");
        ensure!((0.0..=1.0).contains(&self.migrated), "--migrated must be 0 to 1");
        ensure!(self.rounds >= 1, "--rounds must be at least 1");
        ensure!((1..=4096).contains(&self.together), "--together must be 1 to 4096");
        ensure!((4..=60_000).contains(&self.nodes), "--nodes must be 4 to 60000");
        ensure!((1..=1 << 28).contains(&self.gets), "--gets must be 1 to 2^28");
        ensure!(self.moves >= 1, "--moves must be at least 1");
        let most = (self.ids - self.migrations()) / self.rounds as u64;
        ensure!(
            self.moves <= most,
            "--moves {} in {} rounds are more ids than are left: at most {most}",
            self.moves,
            self.rounds
        );
        ensure!(self.backups == 0 || self.backups == 3, "--backups must be 0 or 3");
        let keeps_backups = |one: &Structure| matches!(one, Structure::CidTree | Structure::BTree);
        ensure!(
            self.backups == 0 || self.structure.iter().all(keeps_backups),
            "backups are kept by cid-tree and b-tree only"
        );
        if let Some(name) = &self.ratio_to {
            ensure!(self.structure.contains(name), "--ratio-to {name:?} is not among --structure");
        }
        Ok(())
    }

    /// The number of ids that migrate before the rounds.
    pub fn migrations(&self) -> u64 {
        (self.ids as f64 * self.migrated).round() as u64
    }
}

/// Measures lookups of owners with and without a client's cache.
#[derive(Clone, Debug, clap::Args)]
pub struct LookupCacheArguments {
    /// Ids of one creator.
    #[arg(long, value_parser = parse_count, default_value = "10M")]
    pub ids: u64,
    /// Share of the ids that migrate, in ranges of 1 to 100.
    #[arg(long, default_value_t = 0.01)]
    pub migrated: f64,
    /// Requests of a round with the cache, for ids that follow each other.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub requests: u64,
    /// Requests of a round without the cache.
    #[arg(long, value_parser = parse_count, default_value = "20k")]
    pub uncached_requests: u64,
    /// Limit of the cache in bytes.
    #[arg(long, value_parser = parse_size, default_value = "64MiB")]
    pub cache_bytes: u64,
    /// Rounds, in turns.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seed of the migrations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

impl LookupCacheArguments {
    /// Checks that the options can be run.
    ///
    /// # Errors
    ///
    /// If an option is invalid; the error names it and says what is wrong.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1000..=1 << 40).contains(&self.ids), "--ids must be 1000 to 2^40");
        ensure!((0.0..=1.0).contains(&self.migrated), "--migrated must be 0 to 1");
        ensure!(self.rounds >= 1, "--rounds must be at least 1");
        let asked = self.requests.checked_mul(self.rounds as u64);
        ensure!(
            self.requests >= 1 && asked.is_some_and(|asked| asked <= self.ids),
            "--requests must be at least 1, and in all rounds at most --ids: each is asked once"
        );
        let most = self.requests;
        ensure!((1..=most).contains(&self.uncached_requests), "--uncached-requests: 1 to {most}");
        Ok(())
    }
}
