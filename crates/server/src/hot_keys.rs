//! Hot keys: which keys got the largest shares of the accesses of the last seconds.
//!
//! Each worker samples one access in [`ACCESSES_PER_SAMPLE`] on its own thread and counts it in a
//! sketch of its own: Space-Saving (Metwally et al., ICDT 2005) in sets of eight ways, with a count
//! for each of the last seconds, so that what was hot before is forgotten to the second. Sketches
//! are merged when somebody asks.
//!
//! Invariants of this room:
//! 1. A worker never waits: while a reader holds its sketch, its samples are dropped.
//! 2. A way's total is the sum of its counts, and each inherited count is at most the count.
//! 3. A key that is not in a full set was sampled at most as often as the set's smallest total.
//! 4. Memory is fixed: [`SETS`] × [`WAYS`] keys of at most [`MAX_KEY_BYTES`] for each worker.

use std::collections::HashMap;
use std::sync::{Mutex, TryLockError};

use amalgam_op::{Key, MAX_KEY_BYTES};

/// One access in so many is sampled, on average.
const ACCESSES_PER_SAMPLE: u32 = 16;

/// Seconds that shares are of, the present one included.
const SECONDS: usize = 5;

const SETS: usize = 128;
const WAYS: usize = 8;

/// The most keys that are reported.
const REPORTED: usize = 20;

/// An error bound holds for all but one key in twenty.
const STANDARD_DEVIATIONS: f64 = 2.0;

/// A key and its part of all accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// The key.
    pub key: Vec<u8>,
    /// Its share of the accesses of the last seconds, 0 to 1.
    pub share: f64,
    /// How far the true share may lie from that.
    pub error: f64,
}

/// Keys whose hashes fall into one set.
#[derive(Clone, Copy)]
struct Set {
    /// Bits of the hashes that the set does not tell. Two keys with the same are taken for one:
    /// a sketch is wrong about a key in some hundred million anyway.
    tags: [u32; WAYS],
    totals: [u32; WAYS],
    /// Samples by second.
    counts: [[u32; SECONDS]; WAYS],
    /// What of the counts was another key's, which this one replaced.
    inherited: [[u32; SECONDS]; WAYS],
}

const EMPTY: Set = Set {
    tags: [0; WAYS],
    totals: [0; WAYS],
    counts: [[0; SECONDS]; WAYS],
    inherited: [[0; SECONDS]; WAYS],
};

/// A key's bytes, apart from the counts: they are written only when a key enters.
#[derive(Clone, Copy)]
struct Name {
    length: u8,
    bytes: [u8; MAX_KEY_BYTES],
}

/// One worker's samples.
pub struct Sketch {
    sets: Box<[Set]>,
    names: Box<[Name]>,
    /// Samples by second.
    samples: [u32; SECONDS],
    second: u32,
}

impl Default for Sketch {
    fn default() -> Self {
        let name = Name { length: 0, bytes: [0; _] };
        Self {
            sets: vec![EMPTY; SETS].into(),
            names: vec![name; SETS * WAYS].into(),
            samples: [0; SECONDS],
            second: 0,
        }
    }
}

impl Sketch {
    /// Forgets what is too old at `second`.
    fn advance(&mut self, second: u32) {
        // A worker's idea of the time may be older than that of the reader who was here last.
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

    fn record(&mut self, key: &Key<'_>) {
        let slot = self.second as usize % SECONDS;
        let (place, tag) = place_and_tag(key.hash());
        let set = &mut self.sets[place];
        self.samples[slot] += 1;
        let way = match set.tags.iter().position(|other| *other == tag) {
            Some(way) => way,
            None => {
                let way = smallest(&set.totals);
                set.tags[way] = tag;
                set.inherited[way] = set.counts[way];
                let name = &mut self.names[place * WAYS + way];
                name.length = key.bytes().len() as u8;
                name.bytes[..key.bytes().len()].copy_from_slice(key.bytes());
                way
            }
        };
        set.counts[way][slot] += 1;
        set.totals[way] += 1;
    }
}

/// The set of a hash, and what tells its keys apart there.
fn place_and_tag(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % SETS, hash as u32)
}

/// Where the smallest number is.
fn smallest(totals: &[u32; WAYS]) -> usize {
    let mut least = 0;
    for way in 1..WAYS {
        least = if totals[way] < totals[least] { way } else { least };
    }
    least
}

/// The sketches of all workers.
pub struct HotKeys(Box<[Mutex<Sketch>]>);

impl HotKeys {
    /// Sketches for so many workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    /// What `worker` samples through.
    pub fn sampler(&self, worker: usize) -> Sampler<'_> {
        Sampler { sketch: &self.0[worker], accesses_left: 0, state: worker as u32 }
    }

    /// The hottest keys at `second`, hottest first.
    pub fn hottest(&self, second: u32) -> Vec<HotKey> {
        let mut merged = Merged::default();
        for sketch in &self.0 {
            let mut sketch = sketch.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            sketch.advance(second);
            merged.add(&sketch);
        }
        merged.hottest()
    }
}

/// A key in one or more sketches.
#[derive(Default)]
struct Entry {
    place: usize,
    count: u64,
    inherited: u64,
    /// What sketches that hold the key would have missed if they did not.
    not_missed: u64,
}

#[derive(Default)]
struct Merged {
    entries: HashMap<Vec<u8>, Entry>,
    /// The sum over sketches of the samples that a key may have had unseen, by set.
    missed: Vec<u64>,
    samples: u64,
}

impl Merged {
    fn add(&mut self, sketch: &Sketch) {
        self.missed.resize(SETS, 0);
        self.samples += sketch.samples.iter().map(|count| u64::from(*count)).sum::<u64>();
        for (place, set) in sketch.sets.iter().enumerate() {
            let least = u64::from(set.totals[smallest(&set.totals)]);
            self.missed[place] += least;
            for way in (0..WAYS).filter(|way| set.totals[*way] > 0) {
                let name = &sketch.names[place * WAYS + way];
                let key = &name.bytes[..usize::from(name.length)];
                let inherited: u32 = set.inherited[way].iter().sum();
                let entry = self.entries.entry(key.to_vec()).or_default();
                entry.place = place;
                entry.count += u64::from(set.totals[way] - inherited);
                entry.inherited += u64::from(inherited);
                entry.not_missed += least;
            }
        }
    }

    fn hottest(self) -> Vec<HotKey> {
        let samples = self.samples as f64;
        let mut entries: Vec<_> =
            self.entries.into_iter().filter(|(_, entry)| entry.count > 0).collect();
        // Keys break ties, so that the list does not jump about.
        entries.sort_unstable_by(|(key, one), (other_key, other)| {
            other.count.cmp(&one.count).then_with(|| key.cmp(other_key))
        });
        entries.truncate(REPORTED);
        let report = |(key, entry): (Vec<u8>, Entry)| {
            let count = entry.count as f64;
            let unseen = entry.inherited + self.missed[entry.place] - entry.not_missed;
            let chance = STANDARD_DEVIATIONS * count.sqrt();
            HotKey { key, share: count / samples, error: (unseen as f64 + chance) / samples }
        };
        entries.into_iter().map(report).collect()
    }
}

/// Chooses the accesses that are sampled; belongs to one worker.
pub struct Sampler<'s> {
    sketch: &'s Mutex<Sketch>,
    accesses_left: u32,
    state: u32,
}

impl Sampler<'_> {
    /// These keys were accessed.
    #[inline]
    pub fn see(&mut self, keys: &[Key<'_>], second: u32) {
        let count = keys.len() as u32;
        if self.accesses_left >= count {
            self.accesses_left -= count;
        } else {
            self.sample(keys, second);
        }
    }

    #[inline(never)]
    fn sample(&mut self, keys: &[Key<'_>], second: u32) {
        let mut sketch = match self.sketch.try_lock() {
            Ok(sketch) => Some(sketch),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // Somebody reads it.
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(sketch) = &mut sketch
            && sketch.second != second
        {
            sketch.advance(second);
        }
        let mut at = self.accesses_left as usize;
        while let Some(key) = keys.get(at) {
            if let Some(sketch) = &mut sketch {
                sketch.record(key);
            }
            at += 1 + self.gap() as usize;
        }
        self.accesses_left = (at - keys.len()) as u32;
    }

    /// How many accesses to leave out: uneven, so that no rhythm of the clients hides a key.
    #[inline]
    fn gap(&mut self) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 16) % (2 * ACCESSES_PER_SAMPLE - 1)
    }
}

/// A key as a URI writes it: one word of plain ASCII, whatever bytes it has.
pub fn uri_encoded(key: &[u8]) -> String {
    let mut text = Vec::with_capacity(key.len());
    append_uri_encoded(&mut text, key);
    String::from_utf8(text).expect("an encoded key is ASCII")
}

/// Appends [`uri_encoded`] to a line.
pub fn append_uri_encoded(out: &mut Vec<u8>, key: &[u8]) {
    for byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(*byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_op::HashSeed;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::{Distribution, Zipf};

    const KEYS: u64 = 1_000_000;
    const REQUESTS_PER_SECOND: usize = 200_000;

    /// Two workers that get zipfian requests for some seconds; what is hot depends on `shift`.
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
                    samplers[worker].see(&[Key::new(text.as_bytes(), &self.seed)], second);
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
    fn five_seconds_after_a_shift_the_top_ten_are_the_new_ones() {
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
    fn what_is_not_asked_for_any_more_is_forgotten() {
        let hot_keys = HotKeys::new(1);
        let seed = HashSeed::new(7);
        let mut sampler = hot_keys.sampler(0);
        let keys = vec![Key::new(b"a", &seed); 1600];
        sampler.see(&keys, 4);
        let is_known = |second| !hot_keys.hottest(second).is_empty();
        assert!(is_known(4) && is_known(8));
        assert!(!is_known(9));
        // A worker that is late with the time breaks nothing.
        sampler.see(&keys, 6);
        assert_eq!(hot_keys.hottest(9).len(), 1);
        assert!(!is_known(u32::MAX));
    }

    #[test]
    fn one_access_in_sixteen_is_sampled() {
        let hot_keys = HotKeys::new(1);
        let seed = HashSeed::new(7);
        let mut sampler = hot_keys.sampler(0);
        let keys = [Key::new(b"a", &seed); 100];
        for length in (0..=100).cycle().take(10_000) {
            sampler.see(&keys[..length], 0);
        }
        let samples = hot_keys.0[0].lock().unwrap().samples[0];
        let expected = 10_000 * 50 / ACCESSES_PER_SAMPLE;
        assert!(samples.abs_diff(expected) < expected / 20, "{samples}, not {expected}");
    }

    #[test]
    fn a_reader_does_not_hold_up_a_worker() {
        let hot_keys = HotKeys::new(1);
        let seed = HashSeed::new(7);
        let held = hot_keys.0[0].lock().unwrap();
        hot_keys.sampler(0).see(&[Key::new(b"a", &seed); 64], 0);
        drop(held);
        assert!(hot_keys.hottest(0).is_empty());
    }

    #[test]
    fn random_keys_and_times_keep_the_sums() {
        let mut random = SmallRng::seed_from_u64(5);
        let seed = HashSeed::new(7);
        let mut sketch = Sketch::default();
        for _ in 0..100_000 {
            if random.random_range(0..1000) == 0 {
                sketch.advance(random.random_range(0..sketch.second + 3));
            }
            let bytes = random.random_range(0..5_000_u32).to_ne_bytes();
            sketch.record(&Key::new(&bytes, &seed));
        }
        for set in &sketch.sets {
            for way in 0..WAYS {
                assert_eq!(set.totals[way], set.counts[way].iter().sum::<u32>());
                let pairs = set.inherited[way].iter().zip(&set.counts[way]);
                assert!(pairs.clone().all(|(inherited, count)| inherited <= count));
            }
        }
    }

    #[test]
    fn keys_become_one_word() {
        assert_eq!(uri_encoded(b"user:7/a b"), "user%3A7%2Fa%20b");
        assert_eq!(uri_encoded(b"<\x00\xff\r\n%>"), "%3C%00%FF%0D%0A%25%3E");
    }
}
