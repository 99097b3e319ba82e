//! The workload of an engine or a server: requests that are generated in advance.
//!
//! Invariants of this module:
//! 1. Equal seeds give equal requests, whatever is measured with them.
//! 2. A request takes four bytes, so that tens of millions fit in memory together with the
//!    index, and reading them costs a sixteenth of a cache line each.
//! 3. Nothing here knows an engine or a protocol.

mod key_space;
mod permutation;
mod popularity;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use amalgam_op::mix64;
pub use key_space::{KeySpace, LONGEST_KEY_BYTES, SHORTEST_KEY_BYTES, SHORTEST_TEXT_KEY_BYTES};
pub use permutation::Permutation;
pub use popularity::{Popularity, share_of_top};

/// The most keys that a workload may load: requests for absent keys need as many ids again.
pub const MOST_KEYS: u64 = 1 << 29;

/// The workloads, by the names of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// YCSB A: 50 % reads, 50 % updates.
    A,
    /// YCSB B: 95 % reads, 5 % updates.
    B,
    /// YCSB C: reads.
    C,
    /// YCSB D: 95 % reads of what was inserted last, 5 % inserts.
    D,
    /// YCSB F: 50 % reads, 50 % read-modify-writes.
    F,
    /// Reads, uniform unless a theta is given.
    Get,
    /// Updates, uniform unless a theta is given.
    Set,
    /// Reads of absent keys.
    Miss,
    /// Inserts into an empty index until all keys are there.
    Grow,
    /// Reads; half way through other keys become the popular ones.
    Shift,
    /// 50 % reads, 50 % inserts.
    Insert50,
    /// 90 % reads, 10 % inserts (MemC3, section 5.2).
    Insert10,
    /// 95 % reads, 5 % updates, from empty; what a read misses is written (MemC3, section 5.3).
    Cache,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads a key.
    Read,
    /// Writes a key that was loaded.
    Update,
    /// Writes the next new key.
    Insert,
    /// Reads a key, then writes it.
    ReadModifyWrite,
}

/// One request: an [`Action`] and a number below 2^30.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(u32);

/// Bits of a request that hold its number.
const NUMBER_BITS: u32 = 30;

impl Request {
    /// Packs a request.
    ///
    /// # Panics
    ///
    /// If `number` takes more than 30 bits.
    #[inline]
    pub fn new(action: Action, number: u32) -> Self {
        assert!(number < 1 << NUMBER_BITS, "{number} does not fit a request");
        Self((action as u32) << NUMBER_BITS | number)
    }

    /// The operation that the request asks for.
    #[inline]
    pub fn action(self) -> Action {
        match self.0 >> NUMBER_BITS {
            0 => Action::Read,
            1 => Action::Update,
            2 => Action::Insert,
            _ => Action::ReadModifyWrite,
        }
    }

    /// The key's id. For a read of a [`Workload::reads_latest`] it is the number of keys that were
    /// inserted after the key; an insert has none (0), because the driver counts inserts.
    #[inline]
    pub fn number(self) -> u32 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }
}

/// The shares of the actions in percent.
struct Mix {
    updates: u32,
    inserts: u32,
    read_modify_writes: u32,
}

impl Workload {
    /// The skew (theta) where none is given.
    pub fn default_theta(self) -> f64 {
        match self {
            Self::Get | Self::Set | Self::Miss | Self::Grow | Self::Insert10 => 0.0,
            _ => 0.99,
        }
    }

    /// Whether the number of a read counts back from the key that was inserted last.
    pub fn reads_latest(self) -> bool {
        self == Self::D
    }

    /// Whether the index grows under this workload.
    pub fn inserts(self) -> bool {
        self.mix().inserts > 0
    }

    /// Whether the workload has any operation but reads.
    pub fn writes(self) -> bool {
        let mix = self.mix();
        mix.updates + mix.inserts + mix.read_modify_writes > 0
    }

    /// Whether the index is empty at first.
    pub fn starts_empty(self) -> bool {
        self == Self::Grow
    }

    /// Whether the keys are loaded before anything is measured.
    pub fn loads(self) -> bool {
        !self.starts_empty() && !self.fills_misses()
    }

    /// Whether a read that misses is followed by a write of its key. Such a workload is measured
    /// over whole cycles of its requests, so that the hit ratio does not depend on speed.
    pub fn fills_misses(self) -> bool {
        self == Self::Cache
    }

    fn mix(self) -> Mix {
        let (updates, inserts, read_modify_writes) = match self {
            Self::A => (50, 0, 0),
            Self::B | Self::Cache => (5, 0, 0),
            Self::C | Self::Get | Self::Miss | Self::Shift => (0, 0, 0),
            Self::D => (0, 5, 0),
            Self::F => (0, 0, 50),
            Self::Set => (100, 0, 0),
            Self::Grow => (0, 100, 0),
            Self::Insert50 => (0, 50, 0),
            Self::Insert10 => (0, 10, 0),
        };
        Mix { updates, inserts, read_modify_writes }
    }
}

impl Mix {
    fn draw(&self, random: &mut SmallRng) -> Action {
        let percent = random.random_range(0..100u32);
        if percent < self.updates {
            Action::Update
        } else if percent < self.updates + self.inserts {
            Action::Insert
        } else if percent < self.updates + self.inserts + self.read_modify_writes {
            Action::ReadModifyWrite
        } else {
            Action::Read
        }
    }
}

/// The parameters of [`generate`].
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// The workload to generate.
    pub workload: Workload,
    /// The number of keys that are loaded, or that the index grows to; at most [`MOST_KEYS`].
    pub keys: u64,
    /// The skew of the keys' popularity; 0 is uniform.
    pub theta: f64,
    /// The number of requests to generate for a thread.
    pub requests: usize,
    /// The seed of the requests; equal seeds give equal requests.
    pub seed: u64,
}

/// The requests of one thread, to be repeated cyclically.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The requests up to the shift, or all of them where there is none.
    pub first: Vec<Request>,
    /// The requests after the hot spot has shifted; `None` where the workload does not shift it.
    pub shifted: Option<Vec<Request>>,
}

/// Generates the requests of thread number `thread`.
///
/// # Errors
///
/// If the recipe has no keys, more than [`MOST_KEYS`], no requests or an invalid theta.
pub fn generate(recipe: &Recipe, thread: usize) -> anyhow::Result<Stream> {
    anyhow::ensure!(
        recipe.keys <= MOST_KEYS,
        "a workload has at most {MOST_KEYS} keys, not {}",
        recipe.keys
    );
    anyhow::ensure!(recipe.requests > 0, "a workload needs at least one request");
    let popularity = Popularity::new(recipe.keys, recipe.theta)?;
    let phase = |phase: u64| {
        let scatter = Permutation::new(recipe.keys, mix64(recipe.seed ^ phase));
        let seed = mix64(recipe.seed ^ phase << 32 ^ (thread as u64 + 1));
        fill(recipe, &popularity, &scatter, seed)
    };
    let shifted = (recipe.workload == Workload::Shift).then(|| phase(1));
    Ok(Stream { first: phase(0), shifted })
}

fn fill(
    recipe: &Recipe,
    popularity: &Popularity,
    scatter: &Permutation,
    seed: u64,
) -> Vec<Request> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mix = recipe.workload.mix();
    let request = |_| {
        let action = mix.draw(&mut random);
        if action == Action::Insert {
            return Request::new(action, 0);
        }
        let rank = popularity.draw(&mut random);
        let number = match recipe.workload {
            workload if workload.reads_latest() => rank,
            Workload::Miss => recipe.keys + scatter.apply(rank),
            _ => scatter.apply(rank),
        };
        Request::new(action, number as u32)
    };
    (0..recipe.requests).map(request).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::ValueEnum;

    use super::*;

    fn recipe(workload: Workload) -> Recipe {
        let theta = workload.default_theta();
        Recipe { workload, keys: 10_000, theta, requests: 40_000, seed: 5 }
    }

    fn share(requests: &[Request], action: Action) -> f64 {
        let count = requests.iter().filter(|request| request.action() == action).count();
        count as f64 / requests.len() as f64
    }

    #[test]
    fn requests_hold_what_was_packed() {
        use Action::{Insert, Read, ReadModifyWrite, Update};
        for action in [Read, Update, Insert, ReadModifyWrite] {
            for number in [0, 1, (1 << 30) - 1] {
                let request = Request::new(action, number);
                assert_eq!((request.action(), request.number()), (action, number));
            }
        }
    }

    #[test]
    fn shares_are_those_of_the_workload() {
        for workload in Workload::value_variants() {
            let stream = generate(&recipe(*workload), 0).expect("valid");
            let mix = workload.mix();
            for (action, percent) in [
                (Action::Update, mix.updates),
                (Action::Insert, mix.inserts),
                (Action::ReadModifyWrite, mix.read_modify_writes),
            ] {
                let found = share(&stream.first, action) * 100.0;
                assert!((found - f64::from(percent)).abs() < 1.5, "{workload:?} {action:?}");
            }
            let keys = 10_000;
            let range = if *workload == Workload::Miss { keys..2 * keys } else { 0..keys };
            assert!(
                stream.first.iter().all(|request| request.action() == Action::Insert
                    || range.contains(&request.number()))
            );
        }
    }

    fn hottest(requests: &[Request]) -> u32 {
        let mut counts = HashMap::new();
        for request in requests {
            *counts.entry(request.number()).or_insert(0) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(number, _)| number)
    }

    #[test]
    fn threads_share_hot_keys_and_differ_in_order() {
        let one = generate(&recipe(Workload::C), 0).expect("valid").first;
        let two = generate(&recipe(Workload::C), 1).expect("valid").first;
        assert_eq!(hottest(&one), hottest(&two));
        assert_ne!(one[..100], two[..100]);
        let again = generate(&recipe(Workload::C), 0).expect("valid").first;
        assert_eq!(one, again);
    }

    #[test]
    fn the_hot_spot_shifts() {
        let stream = generate(&recipe(Workload::Shift), 0).expect("valid");
        let shifted = stream.shifted.expect("the workload has a second phase");
        assert_ne!(hottest(&stream.first), hottest(&shifted));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = recipe(Workload::C);
        assert!(generate(&Recipe { keys: 0, ..good }, 0).is_err());
        assert!(generate(&Recipe { keys: MOST_KEYS + 1, ..good }, 0).is_err());
        assert!(generate(&Recipe { requests: 0, ..good }, 0).is_err());
        assert!(generate(&Recipe { theta: -1.0, ..good }, 0).is_err());
        assert!(generate(&Recipe { theta: f64::NAN, ..good }, 0).is_err());
    }
}
