//! Which policy of eviction suits the load: CLOCK with one bit, with a count, or with quick
//! demotion.
//!
//! A simulated cache of the present size for each policy sees the reads of a sample of the keys.
//! At first the sample is larger than that of the [curve](super), so that the best policy is soon
//! known. To watch whether it stays the best takes fewer keys: the rate falls as reads are counted,
//! and at once where there are more than [`MOST_KEYS`].
//!
//! Invariant: a key is in the sample if and only if a cache holds it, or remembers its eviction.

use super::candidate::{Candidate, MOST_KEYS};
use super::keys::Keys;
use super::policy::{POLICIES, Policy};
use super::{Access, AccessKind, HALF_LIFE_SECONDS, SampledItem, class_of};

/// At first one key in `1 << FIRST_SHIFT` is sampled.
const FIRST_SHIFT: u32 = 4;

/// After this many reads of sampled keys it is half of that, down to one in `1 << LATER_SHIFT`, and
/// further while there are more than [`ENOUGH_KEYS`].
const READS_AT_RATE: u32 = 16_384;
const LATER_SHIFT: u32 = 5;
const ENOUGH_KEYS: usize = 2000;

/// A policy is better only if the other one missed more reads by this part of its misses.
const LEAST_GAIN: f64 = 0.001;

/// And by this many standard deviations of the reads that only one of them missed. In simulations
/// of real traces, to wait for more certainty cost more misses than a change without a cause, as
/// the policies are about equal then.
const STANDARD_DEVIATIONS: f64 = 0.5;

/// From this number of misses on, all counts are halved, so that they follow the load.
const MOST_MISSES: f64 = 16_384.0;

/// A cache of the present size for each policy, which all see the same reads, and what they missed.
/// Not shared: its owner locks it.
pub struct Trial {
    keys: Keys,
    /// The present memory in bytes of items, of the whole load.
    memory_bytes: f64,
    /// In the order of [`Policy::ALL`].
    candidates: [Candidate; POLICIES],
    missed: Missed,
    /// Reads that were counted at the present rate.
    reads_at_rate: u32,
    halved_seconds: u32,
}

/// Sampled reads that a policy missed at least, by the set of policies that did not: a bit for
/// each, in the order of [`Policy::ALL`].
#[derive(Clone, Copy, Default)]
pub(super) struct Missed(pub(super) [f64; (1 << POLICIES) - 1]);

impl Trial {
    /// A comparison in a cache that can hold this many bytes of items.
    pub fn new(memory_bytes: f64) -> Self {
        let mut trial = Self {
            keys: Keys::new(FIRST_SHIFT, MOST_KEYS),
            memory_bytes,
            candidates: Policy::ALL.map(Candidate::new),
            missed: Missed::default(),
            reads_at_rate: 0,
            halved_seconds: 0,
        };
        trial.resize(memory_bytes);
        trial
    }

    /// Bytes of a trial, at most.
    pub const fn most_bytes() -> usize {
        size_of::<Self>() + Keys::most_bytes(MOST_KEYS) + POLICIES * Candidate::most_bytes()
    }

    /// Keys with hashes below this are sampled.
    pub fn threshold(&self) -> u64 {
        self.keys.threshold()
    }

    /// The policy that missed least, if it is not `policy` and a change is worth it.
    pub fn better_than(&self, policy: Policy) -> Option<Policy> {
        self.missed.better_than(policy)
    }

    /// The misses of a policy over those of CLOCK; None before there are any.
    pub fn ratio(&self, policy: Policy) -> Option<f64> {
        let [of_clock, of_policy] = [Policy::Clock, policy].map(|policy| self.missed.by(policy));
        (of_clock > 0.0).then(|| of_policy / of_clock)
    }

    /// Changes the bytes of items that the real cache can hold.
    pub fn resize(&mut self, memory_bytes: f64) {
        self.memory_bytes = memory_bytes;
        let limit = (memory_bytes * self.keys.rate()) as u64;
        self.candidates.iter_mut().for_each(|cache| cache.set_limit(limit));
        self.evict();
    }

    /// Forgets all items, as after a flush.
    pub fn forget_items(&mut self) {
        self.keys.positions().into_iter().for_each(|at| self.remove(at));
    }

    /// Moves on to `seconds`: what is expired leaves, and older counts lose weight.
    pub fn advance(&mut self, seconds: u32) {
        let halvings = seconds.saturating_sub(self.halved_seconds) / HALF_LIFE_SECONDS;
        self.halved_seconds += halvings * HALF_LIFE_SECONDS;
        self.missed.fade(0.5_f64.powi(halvings.min(1000) as i32));
        self.keys.expired(seconds).into_iter().for_each(|at| self.remove(at));
    }

    /// Plays a request of a key; one that is not sampled changes nothing.
    pub fn access(&mut self, access: Access) {
        let Access { hash, kind } = access;
        if hash >= self.threshold() {
            return;
        }
        let found = self.keys.find(hash);
        if matches!(kind, AccessKind::Hit(_) | AccessKind::Miss) {
            let is_in = |cache: &mut Candidate| found.is_some_and(|at| cache.read(at));
            let is_held = self.candidates.each_mut().map(is_in);
            // What is hit and not known the trial was not told of yet; before they evict, the
            // caches are alike.
            let tells = found.is_some() || matches!(kind, AccessKind::Miss);
            if tells && self.candidates[0].has_evicted() {
                self.missed.count(is_held);
                self.reads_at_rate += 1;
            }
        }
        match (kind, found) {
            (AccessKind::Miss, found) => {
                found.into_iter().for_each(|at| _ = self.keys.set_missed(at, true));
            }
            (AccessKind::Hit(item), Some(at)) => {
                self.keys.set_missed(at, false);
                self.put(at, item, false);
            }
            (AccessKind::Store(item), Some(at)) => {
                let is_fill = self.keys.set_missed(at, false);
                self.put(at, item, !is_fill);
            }
            (AccessKind::Hit(item) | AccessKind::Store(item), None) => self.insert(hash, item),
            (AccessKind::Delete, found) => found.into_iter().for_each(|at| self.remove(at)),
        }
        if self.reads_at_rate >= READS_AT_RATE {
            self.reads_at_rate = 0;
            if self.keys.shift() < LATER_SHIFT || self.keys.count() > ENOUGH_KEYS {
                self.halve_rate();
            }
        }
    }

    /// Takes an item that the real cache held before the trial began; one whose key is known
    /// already changes nothing. Policies spare one that `was_read`.
    pub fn add_held(&mut self, hash: u64, item: SampledItem, was_read: bool) {
        if hash >= self.threshold() || self.keys.find(hash).is_some() {
            return;
        }
        self.insert(hash, item);
        if was_read && let Some(at) = self.keys.find(hash) {
            self.candidates.iter_mut().for_each(|cache| _ = cache.read(at));
        }
    }

    fn insert(&mut self, hash: u64, item: SampledItem) {
        while self.keys.is_full() {
            self.halve_rate();
        }
        if hash < self.threshold() {
            let at = self.keys.insert(hash);
            self.put(at, item, true);
        }
    }

    fn halve_rate(&mut self) {
        self.keys.halve_rate().into_iter().for_each(|at| self.remove(at));
        self.resize(self.memory_bytes);
    }

    /// Stores an item in all caches if it `is_new`, else where it is not held, and evicts what is
    /// too much. The item may be among that.
    fn put(&mut self, at: u16, item: SampledItem, is_new: bool) {
        self.keys.set_expiry(at, item.expiry_seconds);
        for cache in &mut self.candidates {
            if is_new || !cache.holds(at) {
                cache.store(at, class_of(item.bytes), item.bytes);
            }
        }
        self.evict();
    }

    fn evict(&mut self) {
        while let Some(at) = self.candidates.iter_mut().find_map(Candidate::evict) {
            if !self.is_known(at) {
                self.keys.release(at);
            }
        }
    }

    /// Whether a cache knows a key.
    fn is_known(&self, at: u16) -> bool {
        self.candidates.iter().any(|cache| cache.knows(at))
    }

    /// Takes a key out of all caches and of the sample.
    fn remove(&mut self, at: u16) {
        self.candidates.iter_mut().for_each(|cache| cache.forget(at));
        self.keys.release(at);
    }

    /// Panics if the trial contradicts itself.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.candidates.iter().for_each(Candidate::check);
        let held = (0..MOST_KEYS as u16).filter(|at| self.is_known(*at));
        assert!(held.eq(self.keys.positions()));
    }

    /// Whether the CLOCK cache holds the item of a key.
    #[cfg(test)]
    pub(super) fn holds(&self, hash: u64) -> bool {
        self.keys.find(hash).is_some_and(|at| self.candidates[0].holds(at))
    }

    /// The number of sampled keys.
    #[cfg(test)]
    pub(super) fn sampled_keys(&self) -> usize {
        self.keys.count()
    }
}

impl Missed {
    pub(super) fn better_than(&self, policy: Policy) -> Option<Policy> {
        let misses = |policy: &Policy| self.by(*policy);
        let least = |one: &Policy, other: &Policy| misses(one).total_cmp(&misses(other));
        let best = Policy::ALL.into_iter().min_by(least).filter(|best| *best != policy)?;
        let gain = self.by(policy) - self.by(best);
        // Reads that only one of the two missed.
        let sets = self.0.iter().enumerate();
        let differ = sets.filter(|(set, _)| set >> policy as u32 & 1 != set >> best as u32 & 1);
        let chance = STANDARD_DEVIATIONS * differ.map(|(_, reads)| reads).sum::<f64>().sqrt();
        (gain > LEAST_GAIN * self.by(policy) && gain > chance).then_some(best)
    }

    /// The reads that a policy missed.
    fn by(&self, policy: Policy) -> f64 {
        let sets = self.0.iter().enumerate();
        sets.filter(|(set, _)| set >> policy as u32 & 1 == 0).map(|(_, reads)| reads).sum()
    }

    /// Counts a read, with the caches that held its item.
    fn count(&mut self, is_held: [bool; POLICIES]) {
        let bits = is_held.into_iter().enumerate();
        let set: usize = bits.map(|(policy, is_held)| usize::from(is_held) << policy).sum();
        // Nobody missed what all held.
        let Some(reads) = self.0.get_mut(set) else { return };
        *reads += 1.0;
        if self.0.iter().sum::<f64>() >= MOST_MISSES {
            self.fade(0.5);
        }
    }

    fn fade(&mut self, left: f64) {
        self.0.iter_mut().for_each(|reads| *reads *= left);
    }
}
