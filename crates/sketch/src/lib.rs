//! Finds hot keys or ids: those with the largest shares of the accesses of the last [`SECONDS`].
//!
//! One access in [`ACCESSES_PER_SAMPLE`] is sampled ([`AccessSampler`]) and counted in a
//! [`Sketch`]: Space-Saving (Metwally et al., ICDT 2005) in sets of eight ways, with a count for
//! each of the last seconds, so that an old share is forgotten to the second. The server has a
//! sketch of keys for each worker, a node of a cluster one of the ids that it owns.
//!
//! [`miss_ratio_curve`] estimates the misses of a cache with less or more memory.
//!
//! Invariants of this crate:
//! 1. A way's total is the sum of its counts, and each inherited count is at most the count.
//! 2. A name that is not in a full set was sampled at most as often as the set's smallest total.
//! 3. Memory is fixed: [`SETS`] × [`WAYS`] names.

#![forbid(unsafe_code)]

pub mod miss_ratio_curve;

/// Accesses per sample, on average.
pub const ACCESSES_PER_SAMPLE: u32 = 16;

/// The seconds that shares are computed over, including the current one.
pub const SECONDS: usize = 5;

/// Number of sets in a sketch.
pub const SETS: usize = 128;

/// Number of names in a set.
pub const WAYS: usize = 8;

/// Names whose hashes fall into one set.
#[derive(Clone, Copy, Debug)]
struct Set {
    /// The bits of the names' hashes that do not select the set. Two names with equal tags are
    /// counted as one, which happens to one pair in some hundred million.
    tags: [u32; WAYS],
    totals: [u32; WAYS],
    /// Samples by way, and by second modulo [`SECONDS`].
    counts: [[u32; SECONDS]; WAYS],
    /// The part of each count that belongs to the name which the present one replaced.
    inherited: [[u32; SECONDS]; WAYS],
}

const EMPTY: Set = Set {
    tags: [0; WAYS],
    totals: [0; WAYS],
    counts: [[0; SECONDS]; WAYS],
    inherited: [[0; SECONDS]; WAYS],
};

/// The samples of one thread or node. `N` names a key or an id.
#[derive(Debug)]
pub struct Sketch<N> {
    sets: Box<[Set]>,
    /// The names, separate from the counts because a name is written only when it enters.
    names: Box<[N]>,
    /// Samples by second.
    samples: [u32; SECONDS],
    second: u32,
}

/// What a sketch knows of a name: it was sampled `count` to `count + inherited` times.
#[derive(Clone, Copy, Debug)]
pub struct Estimate<'s, N> {
    /// The name.
    pub name: &'s N,
    /// The set it is in, for [`Sketch::missed`].
    pub set: usize,
    /// The least number of samples that it can have got.
    pub count: u32,
    /// How many more samples it may have got.
    pub inherited: u32,
}

impl<N: Clone> Sketch<N> {
    /// Creates a sketch without samples; unused name slots hold `empty`.
    pub fn new(empty: N) -> Self {
        Self {
            sets: vec![EMPTY; SETS].into(),
            names: vec![empty; SETS * WAYS].into(),
            samples: [0; SECONDS],
            second: 0,
        }
    }
}

impl<N> Sketch<N> {
    /// Moves on to `second` and forgets older samples than the last [`SECONDS`]. An earlier second
    /// than the current one changes nothing.
    pub fn advance(&mut self, second: u32) {
        let passed = second.saturating_sub(self.second).min(SECONDS as u32);
        for step in 0..passed {
            let slot = (second - step) as usize % SECONDS;
            self.samples[slot] = 0;
            for set in &mut self.sets {
                for way in 0..WAYS {
                    set.totals[way] -= std::mem::take(&mut set.counts[way][slot]);
                    set.inherited[way][slot] = 0;
                }
            }
        }
        self.second = self.second.max(second);
    }

    /// The second that samples are counted in.
    pub fn second(&self) -> u32 {
        self.second
    }

    /// Counts a sample of the name with this hash. Requires: all bits of the hash are well mixed.
    /// If the name enters the sketch, `write` writes it over another.
    pub fn record(&mut self, hash: u64, write: impl FnOnce(&mut N)) {
        let slot = self.second as usize % SECONDS;
        let (place, tag) = place_and_tag(hash);
        let set = &mut self.sets[place];
        self.samples[slot] += 1;
        let way = match set.tags.iter().position(|other| *other == tag) {
            Some(way) => way,
            None => {
                let way = smallest(&set.totals);
                set.tags[way] = tag;
                set.inherited[way] = set.counts[way];
                write(&mut self.names[place * WAYS + way]);
                way
            }
        };
        set.counts[way][slot] += 1;
        set.totals[way] += 1;
    }

    /// The number of samples of the last [`SECONDS`].
    pub fn samples(&self) -> u64 {
        self.samples.iter().map(|count| u64::from(*count)).sum()
    }

    /// The most samples that a name of this set can have got without being in the sketch.
    pub fn missed(&self, set: usize) -> u64 {
        let totals = &self.sets[set].totals;
        u64::from(totals[smallest(totals)])
    }

    /// All names in the sketch that were sampled in the last [`SECONDS`].
    pub fn estimates(&self) -> impl Iterator<Item = Estimate<'_, N>> {
        (0..SETS * WAYS).filter_map(|at| {
            let (set, way) = (at / WAYS, at % WAYS);
            let Set { totals, inherited, .. } = &self.sets[set];
            let inherited = inherited[way].iter().sum();
            let count = totals[way] - inherited;
            let name = &self.names[at];
            (totals[way] > 0).then_some(Estimate { name, set, count, inherited })
        })
    }
}

/// The set of a hash, and the tag that tells its names apart.
fn place_and_tag(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % SETS, hash as u32)
}

/// The way with the smallest total.
fn smallest(totals: &[u32; WAYS]) -> usize {
    let mut least = 0;
    for way in 1..WAYS {
        least = if totals[way] < totals[least] { way } else { least };
    }
    least
}

/// Chooses the accesses to sample, at random distances, so that no periodic access pattern of the
/// clients hides a name.
#[derive(Debug, Default)]
pub struct AccessSampler {
    accesses_left: u32,
    state: u32,
}

impl AccessSampler {
    /// A sampler whose choice depends on `number`, so that those of different threads differ.
    pub fn new(number: u32) -> Self {
        Self { accesses_left: 0, state: number }
    }

    /// Passes the next `count` accesses and returns true if none of them is to be sampled. If it
    /// returns false, call [`Self::choose`] for them.
    #[inline]
    pub fn skip(&mut self, count: u32) -> bool {
        let is_none = self.accesses_left >= count;
        if is_none {
            self.accesses_left -= count;
        }
        is_none
    }

    /// Passes the next `count` accesses and hands the positions of those to sample to `sample`.
    pub fn choose(&mut self, count: usize, mut sample: impl FnMut(usize)) {
        let mut at = self.accesses_left as usize;
        while at < count {
            sample(at);
            at += 1 + self.gap() as usize;
        }
        self.accesses_left = (at - count) as u32;
    }

    /// The number of accesses to leave out before the next sample.
    #[inline]
    fn gap(&mut self) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 16) % (2 * ACCESSES_PER_SAMPLE - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_op::HashSeed;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn one_access_in_sixteen_is_sampled() {
        let mut sampler = AccessSampler::new(0);
        let mut samples = 0;
        for length in (0..=100).cycle().take(10_000) {
            if !sampler.skip(length) {
                sampler.choose(length as usize, |at| {
                    assert!(at < length as usize);
                    samples += 1;
                });
            }
        }
        let expected = 10_000 * 50 / ACCESSES_PER_SAMPLE;
        assert!(expected.abs_diff(samples) < expected / 20, "{samples}, not {expected}");
    }

    #[test]
    fn random_names_and_times_keep_the_sums() {
        let mut random = SmallRng::seed_from_u64(5);
        let seed = HashSeed::new(7);
        let mut sketch = Sketch::new(0);
        for _ in 0..100_000 {
            if random.random_range(0..1000) == 0 {
                sketch.advance(random.random_range(0..sketch.second() + 3));
            }
            let name = random.random_range(0..5_000_u32);
            sketch.record(seed.hash(&name.to_ne_bytes()), |written| *written = name);
        }
        for set in &sketch.sets {
            for way in 0..WAYS {
                assert_eq!(set.totals[way], set.counts[way].iter().sum::<u32>());
                let pairs = set.inherited[way].iter().zip(&set.counts[way]);
                assert!(pairs.clone().all(|(inherited, count)| inherited <= count));
            }
        }
        let seen: u64 = sketch.estimates().map(|one| u64::from(one.count + one.inherited)).sum();
        assert_eq!(seen, sketch.samples());
    }

    #[test]
    fn what_is_rare_is_not_taken_for_hot() {
        let seed = HashSeed::new(7);
        let mut sketch = Sketch::new(u32::MAX);
        for number in 0..100_000_u32 {
            let name = if number % 10 == 0 { 0 } else { number };
            sketch.record(seed.hash(&name.to_ne_bytes()), |written| *written = name);
        }
        let hottest = sketch.estimates().max_by_key(|one| one.count).expect("a name");
        assert_eq!((*hottest.name, hottest.count), (0, 10_000));
        let others = sketch.estimates().filter(|one| *one.name != 0);
        assert!(others.map(|one| one.count).max() < Some(100));
        assert!((50..200).contains(&sketch.missed((hottest.set + 1) % SETS)));
    }
}
