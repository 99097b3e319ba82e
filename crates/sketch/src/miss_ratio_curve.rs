//! Estimates the miss ratio that a cache would have with less or more memory, while it runs.
//!
//! Miniature simulation (Waldspurger et al., ATC 2017): the keys whose hashes lie below a threshold
//! are a sample of the load. Their requests drive one small cache for each of [`SIZES`] memory
//! sizes, with the sampled share of that memory. As a key is sampled always or never, the small
//! caches see every reuse of their keys. A simulated cache evicts as the engines do: by CLOCK with
//! one bit or a count among items of similar length, and memory moves between lengths until the
//! hands pass equally many items for the bytes of each.
//!
//! Misses are counted per read of the whole load, so that a hot key does no harm by its presence in
//! the sample, or absence (SHARDS-adj, FAST 2015), and scaled so that the present size has the
//! misses that were measured.
//!
//! Invariants:
//! 1. Memory is fixed: at most [`MOST_KEYS`] keys. If there are more, the threshold falls to one
//!    half, and so do all that was counted and the simulated sizes.
//! 2. A key is in the table if and only if a simulated cache holds it.
//! 3. A simulated cache holds no more bytes than its size.
//!
//! [`Trial`] compares two policies of eviction at the present size.

mod candidate;
mod keys;
mod policy;
mod trial;

use keys::{Keys, NONE};
use policy::Reads;

pub use policy::Policy;
pub use trial::Trial;

/// The number of simulated memory sizes.
pub const SIZES: usize = 8;

/// The simulated sizes, in quarters of the present one.
pub const QUARTERS: [u32; SIZES] = [1, 2, 3, 4, 6, 8, 12, 16];

/// The position of the present size in [`QUARTERS`].
pub const PRESENT: usize = 3;

/// The most keys in the sample.
pub const MOST_KEYS: usize = 15_000;

/// At first one key in `1 << FIRST_SHIFT` is sampled: requests of sampled keys cost several times
/// as much as others, so that more would slow a server down.
const FIRST_SHIFT: u32 = 7;

/// Fewer sampled reads than this say nothing.
const LEAST_READS: f64 = 2000.0;

/// After this many seconds counts are halved, so that the curve follows the load.
const HALF_LIFE_SECONDS: u32 = 600;

/// A simulation at the present size whose hits or misses differ from those that were measured by
/// more than this factor says nothing about other sizes.
const MOST_CORRECTION: f64 = 1.2;

/// Smaller differences than this between two ratios do not matter.
const LEAST_DIFFERENCE: f64 = 0.005;

/// Lengths are grouped into two classes for each power of two.
const CLASSES: usize = 32;

/// Lengths below `1 << SHORTEST_BITS` share a class.
const SHORTEST_BITS: u32 = 5;

/// Evictions from a class before another is chosen: to choose one is half of the work.
const TURNS: u32 = 8;

/// A request of a sampled key.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The hash of the key, well mixed.
    pub hash: u64,
    /// What was done.
    pub kind: AccessKind,
}

/// What a request did to its key.
#[derive(Clone, Copy, Debug)]
pub enum AccessKind {
    /// A read found this item.
    Hit(SampledItem),
    /// A read found nothing.
    Miss,
    /// This item was stored.
    Store(SampledItem),
    /// The item is gone.
    Delete,
}

/// What the simulation needs to know of an item.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledItem {
    /// Its length, as the memory's size is measured.
    pub bytes: u32,
    /// The second at which it expires; 0 for never.
    pub expiry_seconds: u32,
}

/// The miss ratio at each of [`QUARTERS`] of the memory, or why there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Curve {
    /// Too few reads were sampled so far.
    #[default]
    TooFew,
    /// At the present size the simulation has other hits or misses than were measured.
    Unfit,
    /// The miss ratios, 0 to 1.
    Known([f64; SIZES]),
}

/// What is known of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    /// The curve.
    pub curve: Curve,
    /// Keys in the sample.
    pub sampled_keys: usize,
    /// Sampled reads; older ones count less.
    pub sampled_reads: f64,
    /// The share of all keys that is sampled.
    pub rate: f64,
}

/// A key's neighbours in the queue of a simulated cache.
#[derive(Clone, Copy)]
struct Links {
    previous: u16,
    next: u16,
}

/// What the simulated caches know of a key's item.
#[derive(Clone, Copy)]
struct Entry {
    bytes: u32,
    class: u8,
    /// A bit for each simulated cache that holds the item.
    held: u8,
    /// What each simulated cache knows of the item's reads.
    reads: [Reads; SIZES],
    links: [Links; SIZES],
}

/// The items of one class in one simulated cache, in the order in which CLOCK's hand meets them.
#[derive(Clone, Copy)]
struct Queue {
    first: u16,
    last: u16,
    bytes: u64,
    /// Items that the hand met lately.
    passed: f32,
}

/// One simulated cache.
struct Cache {
    queues: [Queue; CLASSES],
    /// A bit for each class that has items.
    classes: u32,
    bytes: u64,
    limit: u64,
    /// The bytes of items met since the counts of them were halved.
    passed_bytes: u64,
    /// The class to evict from, and how often before it is chosen anew.
    donor: usize,
    turns_left: u32,
}

/// The simulated caches, and what they missed. Not shared: its owner locks it.
pub struct MissRatioCurve {
    keys: Keys,
    /// By the positions of the keys.
    entries: Vec<Entry>,
    caches: Box<[Cache; SIZES]>,
    policy: Policy,
    /// The present memory in bytes of items, of the whole load.
    memory_bytes: f64,
    /// Sampled reads by the set of caches that held the item, as in [`Entry::held`].
    reads: Box<[f64; 1 << SIZES]>,
    /// All reads and misses of the real cache.
    requests: f64,
    misses: f64,
    seconds: u32,
    halved_seconds: u32,
}

impl MissRatioCurve {
    /// Simulates around a cache that can hold this many bytes of items.
    pub fn new(memory_bytes: f64) -> Self {
        let mut curve = Self {
            keys: Keys::new(FIRST_SHIFT, MOST_KEYS),
            entries: Vec::with_capacity(MOST_KEYS),
            caches: Box::new([Cache::EMPTY; SIZES]),
            policy: Policy::GClock,
            memory_bytes,
            reads: Box::new([0.0; 1 << SIZES]),
            requests: 0.0,
            misses: 0.0,
            seconds: 0,
            halved_seconds: 0,
        };
        curve.resize(memory_bytes);
        curve
    }

    /// Keys with hashes below this are sampled.
    pub fn threshold(&self) -> u64 {
        self.keys.threshold()
    }

    /// Bytes of the simulation, at most.
    pub const fn most_bytes() -> usize {
        size_of::<Self>()
            + Keys::most_bytes(MOST_KEYS)
            + MOST_KEYS * size_of::<Entry>()
            + SIZES * size_of::<Cache>()
            + (size_of::<f64>() << SIZES)
    }

    /// Changes the bytes of items that the real cache can hold.
    pub fn resize(&mut self, memory_bytes: f64) {
        self.memory_bytes = memory_bytes;
        for (cache, quarters) in self.caches.iter_mut().zip(QUARTERS) {
            let share = f64::from(quarters) / 4.0 * self.keys.rate();
            cache.limit = (memory_bytes * share) as u64;
        }
        (0..SIZES).for_each(|size| self.evict(size));
    }

    /// Changes the policy of eviction. Probation is simulated by [`Policy::GClock`].
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Forgets all items, as after a flush.
    pub fn forget_items(&mut self) {
        self.keys.positions().into_iter().for_each(|at| self.remove(at));
    }

    /// Forgets all reads.
    pub fn forget_reads(&mut self) {
        self.fade(0.0);
        (self.requests, self.misses) = (0.0, 0.0);
    }

    /// Moves on to `seconds`; an earlier second than the current one changes nothing.
    pub fn advance(&mut self, seconds: u32) {
        if seconds <= self.seconds {
            return;
        }
        self.seconds = seconds;
        let halvings = seconds.saturating_sub(self.halved_seconds) / HALF_LIFE_SECONDS;
        if halvings > 0 {
            self.halved_seconds += halvings * HALF_LIFE_SECONDS;
            let left = 0.5f64.powi(halvings.min(1000) as i32);
            self.fade(left);
            self.requests *= left;
            self.misses *= left;
        }
        self.keys.expired(seconds).into_iter().for_each(|at| self.remove(at));
    }

    /// Counts reads of the real cache, sampled or not.
    pub fn count(&mut self, requests: u64, misses: u64) {
        self.requests += requests as f64;
        self.misses += misses as f64;
    }

    /// Plays a request of a key; one that is not sampled changes nothing.
    pub fn access(&mut self, access: Access) {
        let Access { hash, kind } = access;
        if hash >= self.threshold() {
            return;
        }
        let found = self.keys.find(hash);
        match kind {
            AccessKind::Miss => {
                let held = found.map_or(0, |at| {
                    self.keys.set_missed(at, true);
                    self.entries[usize::from(at)].read()
                });
                self.reads[usize::from(held)] += 1.0;
            }
            AccessKind::Hit(item) => match found {
                Some(at) => {
                    let entry = &mut self.entries[usize::from(at)];
                    let held = entry.read();
                    self.reads[usize::from(held)] += 1.0;
                    let is_same = held == u8::MAX && entry.bytes == item.bytes;
                    self.keys.set_missed(at, false);
                    self.keys.set_expiry(at, item.expiry_seconds);
                    if !is_same {
                        self.put(at, item, !held);
                    }
                }
                // Stored before the simulation began: a hit at all sizes.
                None => self.insert(hash, item),
            },
            AccessKind::Store(item) => match found {
                Some(at) => {
                    if !self.keys.set_missed(at, false) {
                        self.entries[usize::from(at)].reads = [Reads::NONE; SIZES];
                        let older = self.with_later_items(at);
                        self.unlink(at, older);
                    }
                    let lacking = !self.entries[usize::from(at)].held;
                    self.keys.set_expiry(at, item.expiry_seconds);
                    self.put(at, item, lacking);
                }
                None => self.insert(hash, item),
            },
            AccessKind::Delete => found.into_iter().for_each(|at| self.remove(at)),
        }
    }

    /// What is known.
    pub fn estimate(&self) -> Estimate {
        let sampled_reads: f64 = self.reads.iter().sum();
        let rate = self.keys.rate();
        let has_enough = sampled_reads >= LEAST_READS && self.requests > 0.0;
        let curve = if has_enough { self.curve(rate) } else { Curve::TooFew };
        Estimate { curve, sampled_keys: self.keys.count(), sampled_reads, rate }
    }

    /// The curve from what was counted at this rate. Requires: there were requests.
    fn curve(&self, rate: f64) -> Curve {
        let simulated: [f64; SIZES] = std::array::from_fn(|size| {
            let reads = self.reads.iter().enumerate();
            let missed = reads.filter(|(held, _)| held >> size & 1 == 0);
            let misses: f64 = missed.map(|(_, reads)| reads).sum();
            misses / rate / self.requests
        });
        let (present, measured) = (simulated[PRESENT], self.misses / self.requests);
        let fits = |one: f64, other: f64| {
            (one - other).abs() < LEAST_DIFFERENCE
                || one < MOST_CORRECTION * other && other < MOST_CORRECTION * one
        };
        if !fits(present, measured) || !fits(1.0 - present, 1.0 - measured) {
            return Curve::Unfit;
        }
        let factor = if present > 0.0 { measured / present } else { 1.0 };
        Curve::Known(simulated.map(|ratio| (ratio * factor).min(1.0)))
    }

    /// Multiplies all counts of sampled reads.
    fn fade(&mut self, left: f64) {
        self.reads.iter_mut().for_each(|reads| *reads *= left);
    }

    /// Stores a key that is not in the sample, in all caches.
    fn insert(&mut self, hash: u64, item: SampledItem) {
        while self.keys.is_full() {
            self.keys.halve_rate().into_iter().for_each(|at| self.remove(at));
            self.fade(0.5);
            self.resize(self.memory_bytes);
        }
        if hash >= self.threshold() {
            return;
        }
        let at = self.keys.insert(hash);
        self.keys.set_expiry(at, item.expiry_seconds);
        let links = [Links { previous: NONE, next: NONE }; SIZES];
        let class = class_of(item.bytes);
        let entry = Entry { bytes: item.bytes, class, held: 0, reads: [Reads::NONE; SIZES], links };
        if self.entries.len() <= usize::from(at) {
            self.entries.push(entry);
        } else {
            self.entries[usize::from(at)] = entry;
        }
        self.put(at, item, u8::MAX);
    }

    /// Gives an entry the length of `item` where it is held, puts it into the caches in `added`
    /// too, and evicts what is too much. The entry may be among that.
    fn put(&mut self, at: u16, item: SampledItem, added: u8) {
        let entry = &self.entries[usize::from(at)];
        let held = if entry.bytes == item.bytes { 0 } else { entry.held };
        self.unlink(at, held);
        let entry = &mut self.entries[usize::from(at)];
        (entry.bytes, entry.class) = (item.bytes, class_of(item.bytes));
        self.link(at, added | held);
        for size in 0..SIZES {
            if self.caches[size].bytes > self.caches[size].limit {
                self.evict(size);
            }
        }
    }

    /// The caches that hold an entry and have put others behind it since.
    fn with_later_items(&self, at: u16) -> u8 {
        let entry = &self.entries[usize::from(at)];
        let later = bits(entry.held).filter(|size| entry.links[*size].next != NONE);
        later.fold(0, |sizes, size| sizes | 1 << size)
    }

    /// Appends an entry to its queue in each of these caches, which do not hold it.
    fn link(&mut self, at: u16, sizes: u8) {
        let entry = &mut self.entries[usize::from(at)];
        entry.held |= sizes;
        let (class, bytes) = (usize::from(entry.class), u64::from(entry.bytes));
        for size in bits(sizes) {
            let cache = &mut self.caches[size];
            cache.bytes += bytes;
            cache.classes |= 1 << class;
            let queue = &mut cache.queues[class];
            queue.bytes += bytes;
            let previous = std::mem::replace(&mut queue.last, at);
            self.entries[usize::from(at)].links[size] = Links { previous, next: NONE };
            match previous {
                NONE => queue.first = at,
                previous => self.entries[usize::from(previous)].links[size].next = at,
            }
        }
    }

    /// Takes an entry out of its queue in each of these caches, which hold it.
    fn unlink(&mut self, at: u16, sizes: u8) {
        let entry = &mut self.entries[usize::from(at)];
        entry.held &= !sizes;
        let (class, bytes) = (usize::from(entry.class), u64::from(entry.bytes));
        for size in bits(sizes) {
            let Links { previous, next } = self.entries[usize::from(at)].links[size];
            let cache = &mut self.caches[size];
            cache.bytes -= bytes;
            let queue = &mut cache.queues[class];
            queue.bytes -= bytes;
            match previous {
                NONE => queue.first = next,
                previous => self.entries[usize::from(previous)].links[size].next = next,
            }
            match next {
                NONE => queue.last = previous,
                next => self.entries[usize::from(next)].links[size].previous = previous,
            }
            if queue.first == NONE {
                cache.classes &= !(1 << class);
            }
        }
    }

    /// Takes a key out of all caches and of the sample.
    fn remove(&mut self, at: u16) {
        self.unlink(at, self.entries[usize::from(at)].held);
        self.keys.release(at);
    }

    /// Evicts until a cache is within its limit.
    fn evict(&mut self, size: usize) {
        while self.caches[size].bytes > self.caches[size].limit {
            let class = self.caches[size].next_donor();
            let at = self.caches[size].queues[class].first;
            let entry = &mut self.entries[usize::from(at)];
            let is_spared = entry.reads[size].spare(self.policy);
            let bytes = u64::from(entry.bytes);
            self.caches[size].count_passed(class, bytes);
            self.unlink(at, 1 << size);
            if is_spared {
                self.link(at, 1 << size);
                self.caches[size].turns_left += 1;
                continue;
            }
            self.entries[usize::from(at)].reads[size] = Reads::NONE;
            if self.entries[usize::from(at)].held == 0 {
                self.keys.release(at);
            }
        }
    }
}

impl Entry {
    /// Records a read in each cache that holds the item, and returns these.
    fn read(&mut self) -> u8 {
        bits(self.held).for_each(|size| self.reads[size].add());
        self.held
    }
}

impl Queue {
    const EMPTY: Self = Self { first: NONE, last: NONE, bytes: 0, passed: 0.0 };
}

impl Cache {
    const EMPTY: Self = Self {
        queues: [Queue::EMPTY; CLASSES],
        classes: 0,
        bytes: 0,
        limit: 0,
        passed_bytes: 0,
        donor: 0,
        turns_left: 0,
    };

    /// The class to evict from. Requires: the cache holds an item.
    fn next_donor(&mut self) -> usize {
        if self.turns_left == 0 || self.classes >> self.donor & 1 == 0 {
            (self.donor, self.turns_left) = (self.donor(), TURNS);
        }
        self.turns_left -= 1;
        self.donor
    }

    /// The class whose hand passed the fewest items for its bytes. Requires: the cache holds an
    /// item.
    fn donor(&self) -> usize {
        let (mut best, mut least) = (0, f32::INFINITY);
        let mut classes = self.classes;
        while classes != 0 {
            let class = classes.trailing_zeros() as usize;
            classes &= classes - 1;
            let queue = &self.queues[class];
            let pressure = (queue.passed + 1.0) / queue.bytes as f32;
            if pressure < least {
                (best, least) = (class, pressure);
            }
        }
        best
    }

    /// Counts an item that the hand of a class has met.
    fn count_passed(&mut self, class: usize, bytes: u64) {
        self.queues[class].passed += 1.0;
        self.passed_bytes += bytes;
        // Items count until about half of the memory was passed after them, as in the engines.
        if self.passed_bytes > self.limit / 2 {
            self.passed_bytes = 0;
            self.queues.iter_mut().for_each(|queue| queue.passed *= 0.5);
        }
    }
}

/// The positions of the bits that are set.
fn bits(mut set: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (bit < SIZES).then_some(bit)
    })
}

/// The class of a length.
fn class_of(bytes: u32) -> u8 {
    let bytes = bytes.max(1 << SHORTEST_BITS);
    let bits = bytes.ilog2();
    let half = bytes >> (bits - 1) & 1;
    (2 * (bits - SHORTEST_BITS) + half).min(CLASSES as u32 - 1) as u8
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trial_tests;
