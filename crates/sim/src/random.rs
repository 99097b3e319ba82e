//! Random numbers from a seed.

use std::ops::Range;

use amalgam_conformance::harness::{Random as Bits, effort};

/// `count` seeds from `first` on, multiplied by `AMALGAM_EFFORT`.
pub fn seeds(first: u64, count: u64) -> Range<u64> {
    first..first + count * effort() as u64
}

/// A number from an environment variable.
///
/// # Panics
///
/// If the variable holds something else.
pub fn from_environment(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

/// A random sequence that is the same on every machine.
pub struct Random(Bits);

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Bits(seed ^ 0x6a09_e667_f3bc_c908))
    }

    /// A number below `bound`. Requires: `bound` is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.bits() % bound
    }

    /// True with a probability of `percent` in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random element; None of an empty slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let place = self.below(of.len().max(1) as u64);
        of.get(place as usize)
    }
}
