//! The scale of a reproduction: how many keys, threads and seconds the machine and the chosen scale
//! allow of a paper's setting.

use amalgam_bench::measure::Machine;

/// The scale of a reproduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// A test that every figure can be produced, in seconds; its numbers mean nothing.
    Toy,
    /// Fewer keys and shorter rounds than the papers': about ten minutes on two cores for all
    /// figures.
    Quick,
    /// The papers' sizes as far as memory allows, which takes hours.
    Full,
}

/// The scale and the machine that figures are planned for.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScaleProfile {
    /// The scale that the user chose.
    pub scale: Scale,
    /// The machine that measures.
    pub machine: Machine,
    /// The memory that runs may use, in bytes.
    pub available_bytes: u64,
}

/// The most keys of a figure at toy scale.
const TOY_KEYS: u64 = 4_000;
const QUICK_KEYS: u64 = 1_000_000;

impl ScaleProfile {
    /// The profile of this machine at `scale`.
    pub fn of_this_machine(scale: Scale) -> Self {
        let available_bytes = Machine::available_bytes();
        Self { scale, machine: Machine::describe(), available_bytes }
    }

    /// The number of keys to measure where the paper has `printed`; all engines of a run together
    /// take `bytes_a_key` bytes for each key.
    pub fn keys(&self, printed: u64, bytes_a_key: u64) -> u64 {
        let fit = self.available_bytes / 10 * 6 / bytes_a_key;
        let most = match self.scale {
            Scale::Toy => TOY_KEYS,
            Scale::Quick => QUICK_KEYS,
            Scale::Full => fit,
        };
        printed.min(most).min(fit).max(1_000)
    }

    /// The argument that belongs to the scale.
    pub fn choose<T>(&self, toy: T, quick: T, full: T) -> T {
        match self.scale {
            Scale::Toy => toy,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }

    /// The length of a round in seconds.
    pub fn seconds(&self) -> f64 {
        self.choose(0.005, 0.1, 2.0)
    }

    /// The number of passes through all figures. The rounds of a number then lie minutes apart, so
    /// that their differences include drift of the machine.
    pub fn passes(&self) -> usize {
        2
    }

    /// The number of rounds of each engine in a pass. A figure that is to be quoted needs five
    /// rounds in all.
    pub fn rounds(&self) -> usize {
        self.choose(1, 2, 3)
    }

    /// The number of requests that are generated for each thread and repeated cyclically.
    pub fn requests(&self) -> u64 {
        self.choose(20_000, 1 << 20, 1 << 24)
    }

    /// The numbers of threads to measure: the powers of two up to the number of cores, and that
    /// number.
    pub fn threads(&self) -> Vec<usize> {
        let cores = self.machine.cores.max(1);
        let powers = (0..).map(|power| 1 << power).take_while(|threads| *threads <= cores);
        let mut threads: Vec<usize> = powers.collect();
        if threads.last() != Some(&cores) {
            threads.push(cores);
        }
        threads
    }

    /// The number of threads for a paper's `printed` threads: as many, but at most the number of
    /// cores.
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
