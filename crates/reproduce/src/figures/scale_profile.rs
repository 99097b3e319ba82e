//! How large and how long: what a machine and a user's patience allow of a paper's setting.

use amalgam_bench::measure::Machine;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Numbers that mean nothing, in seconds: whether every figure can be had.
    Toy,
    /// Ten minutes on two cores for all of them.
    Quick,
    /// The papers' sizes, as far as memory goes; hours.
    Full,
}

/// What figures are planned for.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScaleProfile {
    /// How much is asked for.
    pub scale: Scale,
    /// Where it runs.
    pub machine: Machine,
    /// Memory that may be used, in bytes.
    pub available_bytes: u64,
}

/// Keys of a figure at most, by scale: beyond the caches of today's machines but at toy scale.
const TOY_KEYS: u64 = 4_000;
const QUICK_KEYS: u64 = 1_000_000;

impl ScaleProfile {
    /// This machine.
    pub fn of_this_machine(scale: Scale) -> Self {
        let available_bytes = Machine::available_bytes();
        Self { scale, machine: Machine::describe(), available_bytes }
    }

    /// How many keys stand for `printed`, where all engines of a run take `bytes_a_key` together.
    pub fn keys(&self, printed: u64, bytes_a_key: u64) -> u64 {
        let fit = self.available_bytes / 10 * 6 / bytes_a_key;
        let most = match self.scale {
            Scale::Toy => TOY_KEYS,
            Scale::Quick => QUICK_KEYS,
            Scale::Full => fit,
        };
        printed.min(most).min(fit).max(1_000)
    }

    /// One of three numbers.
    pub fn choose<T>(&self, toy: T, quick: T, full: T) -> T {
        match self.scale {
            Scale::Toy => toy,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }

    /// Of a round.
    pub fn seconds(&self) -> f64 {
        self.choose(0.005, 0.1, 2.0)
    }

    /// How often all figures are gone through, so that the rounds of a number lie minutes apart: a
    /// machine is not the same then, least of all one that is shared.
    pub fn passes(&self) -> usize {
        2
    }

    /// Of each engine in a pass; the contract asks for five where a figure is to be quoted.
    pub fn rounds(&self) -> usize {
        self.choose(1, 2, 3)
    }

    /// Generated for each thread; they are repeated in a circle.
    pub fn requests(&self) -> u64 {
        self.choose(20_000, 1 << 20, 1 << 24)
    }

    /// Counts of threads: powers of two up to the cores, and all of them.
    pub fn threads(&self) -> Vec<usize> {
        let cores = self.machine.cores.max(1);
        let powers = (0..).map(|power| 1 << power).take_while(|threads| *threads <= cores);
        let mut threads: Vec<usize> = powers.collect();
        if threads.last() != Some(&cores) {
            threads.push(cores);
        }
        threads
    }

    /// As many threads as the paper had, or as there are.
    pub fn threads_up_to(&self, printed: usize) -> usize {
        printed.min(self.machine.cores.max(1))
    }

    /// A sentence on threads and keys, which differ from the paper's everywhere.
    pub fn about(&self, keys: u64, threads: usize) -> String {
        let keys = match keys {
            0..1_000_000 => format!("{} thousand", keys / 1000),
            _ => format!("{:.1} million", keys as f64 / 1e6),
        };
        let threads =
            if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        format!("{keys} keys, {threads}: what this machine and this scale allow.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(scale: Scale, cores: usize, gigabytes: u64) -> ScaleProfile {
        let machine = Machine { cpu: "a CPU".to_owned(), cores, memory_bytes: gigabytes << 30 };
        ScaleProfile { scale, machine, available_bytes: gigabytes << 30 }
    }

    #[test]
    fn keys_are_bounded_by_paper_patience_and_memory() {
        assert_eq!(profile(Scale::Full, 2, 64).keys(32_000_000, 100), 32_000_000);
        assert!(profile(Scale::Full, 2, 1).keys(250_000_000, 200) < 3_300_000);
        assert_eq!(profile(Scale::Quick, 2, 64).keys(250_000_000, 100), QUICK_KEYS);
        assert_eq!(profile(Scale::Toy, 2, 64).keys(250_000_000, 100), TOY_KEYS);
    }

    #[test]
    fn threads_end_with_all_cores() {
        assert_eq!(profile(Scale::Quick, 1, 1).threads(), [1]);
        assert_eq!(profile(Scale::Quick, 2, 1).threads(), [1, 2]);
        assert_eq!(profile(Scale::Quick, 12, 1).threads(), [1, 2, 4, 8, 12]);
    }
}
