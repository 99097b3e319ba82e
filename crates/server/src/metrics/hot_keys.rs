//! Hot keys: the keys with the largest shares of the accesses of the last seconds.
//!
//! Each worker samples its accesses into a sketch of its own (see [`amalgam_sketch`]). The
//! sketches are merged when a report is asked for.
//!
//! Invariants:
//! 1. A worker never waits: while a reader holds its sketch, its samples are dropped.
//! 2. Memory is bounded: one sketch for each worker, with keys of at most [`MAX_KEY_BYTES`].

use std::collections::HashMap;
use std::sync::{Mutex, TryLockError};

use amalgam_op::{IgnorePoison, Key, MAX_KEY_BYTES};
use amalgam_sketch::{AccessSampler, SETS, Sketch};

/// Keys in a report, at most.
const MAX_REPORTED: usize = 20;

/// The width of an error bound: it holds for about 19 keys in 20.
const STANDARD_DEVIATIONS: f64 = 2.0;

/// A key and its share of all accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// The key.
    pub key: Vec<u8>,
    /// Its share of the accesses of the last seconds, 0 to 1.
    pub share: f64,
    /// The bound on the distance between `share` and the true share.
    pub error: f64,
}

/// The bytes of a key that a sketch stores in place.
const START_BYTES: usize = 39;

/// A key, as a sketch stores it. Most keys are short: all space for the longest would be a quarter
/// of a MiB for each worker.
#[derive(Clone)]
struct StoredKey {
    length: u8,
    start: [u8; START_BYTES],
    /// The bytes behind the start; None before a key had any.
    rest: Option<Box<[u8; MAX_KEY_BYTES - START_BYTES]>>,
}

impl StoredKey {
    const EMPTY: Self = Self { length: 0, start: [0; _], rest: None };

    fn write(&mut self, key: &[u8]) {
        self.length = key.len() as u8;
        let (start, rest) = key.split_at(key.len().min(START_BYTES));
        self.start[..start.len()].copy_from_slice(start);
        if !rest.is_empty() {
            self.rest.get_or_insert_with(|| Box::new([0; _]))[..rest.len()].copy_from_slice(rest);
        }
    }

    fn key(&self) -> Vec<u8> {
        let length = usize::from(self.length);
        let rest = self.rest.iter().flat_map(|rest| rest.iter());
        self.start.iter().chain(rest).take(length).copied().collect()
    }
}

/// The sketches of all workers.
pub struct HotKeys(Box<[Mutex<Sketch<StoredKey>>]>);

impl HotKeys {
    /// Empty sketches for a number of workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::new(Sketch::new(StoredKey::EMPTY))).collect())
    }

    /// The sampler of a worker.
    pub fn sampler(&self, worker: usize) -> Sampler<'_> {
        Sampler { sketch: &self.0[worker], sampler: AccessSampler::new(worker as u32) }
    }

    /// The hottest keys at `second`, hottest first.
    pub fn hottest(&self, second: u32) -> Vec<HotKey> {
        let mut merged = Merged::default();
        for sketch in &self.0 {
            let mut sketch = sketch.lock().ignore_poison();
            sketch.advance(second);
            merged.add(&sketch);
        }
        merged.hottest()
    }
}

/// A key in the merged sketches.
#[derive(Default)]
struct MergedKey {
    /// The set of the key, the same in every sketch.
    set: usize,
    /// Samples, at least.
    count: u64,
    /// Samples beyond `count`, at most, in the sketches that hold the key.
    inherited: u64,
    /// The part of [`Merged::missed`] that comes from sketches that hold the key.
    not_missed: u64,
}

/// The sum of all sketches.
#[derive(Default)]
struct Merged {
    entries: HashMap<Vec<u8>, MergedKey>,
    /// By set: the samples that a key may have had in sketches that do not hold it, at most.
    missed: Vec<u64>,
    samples: u64,
}

impl Merged {
    fn add(&mut self, sketch: &Sketch<StoredKey>) {
        self.missed.resize(SETS, 0);
        self.samples += sketch.samples();
        self.missed.iter_mut().enumerate().for_each(|(set, sum)| *sum += sketch.missed(set));
        for seen in sketch.estimates() {
            let entry = self.entries.entry(seen.name.key()).or_default();
            entry.set = seen.set;
            entry.count += u64::from(seen.count);
            entry.inherited += u64::from(seen.inherited);
            entry.not_missed += sketch.missed(seen.set);
        }
    }

    fn hottest(self) -> Vec<HotKey> {
        let samples = self.samples as f64;
        let mut entries: Vec<_> =
            self.entries.into_iter().filter(|(_, entry)| entry.count > 0).collect();
        // Keys break ties, so that the order is stable.
        entries.sort_unstable_by(|(key, one), (other_key, other)| {
            other.count.cmp(&one.count).then_with(|| key.cmp(other_key))
        });
        entries.truncate(MAX_REPORTED);
        let report = |(key, entry): (Vec<u8>, MergedKey)| {
            let count = entry.count as f64;
            let unseen = entry.inherited + self.missed[entry.set] - entry.not_missed;
            let chance = STANDARD_DEVIATIONS * count.sqrt();
            HotKey { key, share: count / samples, error: (unseen as f64 + chance) / samples }
        };
        entries.into_iter().map(report).collect()
    }
}

/// Samples the accesses of one worker.
pub struct Sampler<'s> {
    sketch: &'s Mutex<Sketch<StoredKey>>,
    sampler: AccessSampler,
}

impl Sampler<'_> {
    /// Records that these keys were accessed.
    #[inline]
    pub fn record(&mut self, keys: &[Key<'_>], second: u32) {
        if !self.sampler.skip(keys.len() as u32) {
            self.sample(keys, second);
        }
    }

    #[inline(never)]
    fn sample(&mut self, keys: &[Key<'_>], second: u32) {
        let mut sketch = match self.sketch.try_lock() {
            Ok(sketch) => Some(sketch),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // A reader holds it.
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(sketch) = &mut sketch
            && sketch.second() != second
        {
            // The worker's time may be older than that of the last reader.
            sketch.advance(second);
        }
        self.sampler.choose(keys.len(), |at| {
            if let Some(sketch) = &mut sketch {
                sketch.record(keys[at].hash(), |name| name.write(keys[at].bytes()));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_op::HashSeed;
    use amalgam_sketch::ACCESSES_PER_SAMPLE;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::{Distribution, Zipf};

    const KEYS: u64 = 1_000_000;
    const REQUESTS_PER_SECOND: usize = 200_000;

    /// Zipfian requests to two workers; `shift` determines which keys are hot.
    struct Load {
        hot_keys: HotKeys,
        seed: HashSeed,
        zipf: Zipf<f64>,
        random: SmallRng,
    }

    fn key(rank: u64, shift: u64) -> String {
        format!("key:{}", (rank + shift) % KEYS)
    }

    impl Load {
        fn new(theta: f64, seed: u64) -> Self {
            Self {
                hot_keys: HotKeys::new(2),
                seed: HashSeed::new(seed),
                zipf: Zipf::new(KEYS as f64, theta).unwrap(),
                random: SmallRng::seed_from_u64(seed),
            }
        }

        fn run(&mut self, seconds: std::ops::Range<u32>, shift: u64) {
            let mut samplers = [self.hot_keys.sampler(0), self.hot_keys.sampler(1)];
            for second in seconds {
                for _ in 0..REQUESTS_PER_SECOND {
                    let rank = self.zipf.sample(&mut self.random) as u64;
                    let text = key(rank, shift);
                    let worker = self.random.random_range(0..2_usize);
                    samplers[worker].record(&[Key::new(text.as_bytes(), &self.seed)], second);
                }
            }
        }
    }

    fn shares(theta: f64) -> Vec<f64> {
        let weights: Vec<_> = (1..=KEYS).map(|rank| (rank as f64).powf(-theta)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().take(10).map(|weight| weight / sum).collect()
    }

    #[test]
    fn five_seconds_after_a_shift_the_top_ten_are_new() {
        for theta in [0.99, 1.22] {
            for seed in 1..=2 {
                let mut load = Load::new(theta, seed);
                load.run(10..13, 0);
                load.run(13..18, 500_000);
                let reported = load.hot_keys.hottest(18);
                let truth: Vec<_> = (1..=10).map(|rank| key(rank, 500_000).into_bytes()).collect();
                let is_true = |hot: &&HotKey| truth.contains(&hot.key);
                let found = reported.iter().take(10).filter(is_true).count();
                assert!(found >= 9, "{found} of 10 at {theta}, seed {seed}: {reported:?}");
                assert_eq!(reported[0].key, truth[0]);
                let shares = shares(theta);
                let is_within = |place: &usize| {
                    let hot = reported.iter().find(|hot| hot.key == truth[*place]);
                    hot.is_some_and(|hot| (hot.share - shares[*place]).abs() <= hot.error)
                };
                let within = (0..10).filter(is_within).count();
                assert!(within >= 8, "{within} of 10 within their error bounds: {reported:?}");
            }
        }
    }

    #[test]
    fn keys_of_all_lengths_are_stored() {
        let mut stored = StoredKey::EMPTY;
        for length in (0..=MAX_KEY_BYTES).chain((0..=MAX_KEY_BYTES).rev()) {
            let key: Vec<_> = (0..length).map(|at| (at + length) as u8).collect();
            stored.write(&key);
            assert_eq!(stored.key(), key);
        }
        assert!(size_of::<StoredKey>() <= 48);
    }

    #[test]
    fn keys_without_accesses_are_forgotten() {
        let hot_keys = HotKeys::new(1);
        let seed = HashSeed::new(7);
        let mut sampler = hot_keys.sampler(0);
        let keys = vec![Key::new(b"a", &seed); 1600];
        sampler.record(&keys, 4);
        let is_known = |second| !hot_keys.hottest(second).is_empty();
        assert!(is_known(4) && is_known(8));
        assert!(!is_known(9));
        // A worker whose time is behind causes no harm.
        sampler.record(&keys, 6);
        assert_eq!(hot_keys.hottest(9).len(), 1);
        assert!(!is_known(u32::MAX));
    }

    #[test]
    fn batches_of_all_lengths_are_sampled_equally() {
        let hot_keys = HotKeys::new(1);
        let seed = HashSeed::new(7);
        let mut sampler = hot_keys.sampler(0);
        let keys = [Key::new(b"a", &seed); 100];
        for length in (0..=100).cycle().take(10_000) {
            sampler.record(&keys[..length], 0);
        }
        let samples = hot_keys.0[0].lock().unwrap().samples();
        let expected = 10_000 * 50 / u64::from(ACCESSES_PER_SAMPLE);
        assert!(samples.abs_diff(expected) < expected / 20, "{samples}, not {expected}");
    }

    #[test]
    fn a_reader_does_not_block_a_worker() {
        let hot_keys = HotKeys::new(1);
        let seed = HashSeed::new(7);
        let held = hot_keys.0[0].lock().unwrap();
        hot_keys.sampler(0).record(&[Key::new(b"a", &seed); 64], 0);
        drop(held);
        assert!(hot_keys.hottest(0).is_empty());
    }
}
