//! The miss ratio with less or more memory, estimated while the server runs (`stats mrc`).
//!
//! Workers choose requests by the hashes of their keys and keep them in buffers of their own. At
//! the end of a turn, a worker whose buffer is full drives the simulation of
//! [`amalgam_sketch::miss_ratio_curve`] with it.
//!
//! Where the policy of eviction follows the load (`-o eviction=auto`), a larger sample drives one
//! more cache for each policy, once the memory is full: before that nothing is evicted. They begin
//! with the items that the index holds. The index changes to the policy that missed least.
//!
//! Invariants:
//! 1. A worker never waits: while another uses the simulation, its buffer grows, to
//!    [`MOST_ACCESSES`] at most; further requests are not recorded.
//! 2. Memory is fixed: [`MissRatioCurve::most_bytes`], [`Trial::most_bytes`] with those caches,
//!    and a buffer for each worker.

use std::ops::ControlFlow;
use std::sync::{Mutex, TryLockError};

use amalgam_index::{Cursor, Eviction, Found, Patience, Sink, Statistics, Store, Worker};
use amalgam_op::{Get, HashSeed, IgnorePoison, Key, Now, Op, Outcome, StoreMode, Verb};
use amalgam_sketch::miss_ratio_curve::{Access, AccessKind, MissRatioCurve, Policy, Trial};

use crate::metrics::counters::Counters;

pub use amalgam_sketch::miss_ratio_curve::{Curve, Estimate, QUARTERS, SampledItem};

/// Sampled requests that a worker keeps before it hands them to the simulation.
const KEPT_ACCESSES: usize = 64;

/// Sampled requests that a worker keeps, at most.
const MOST_ACCESSES: usize = 1024;

/// The memory of the items is looked at once a second, and after this many sampled requests.
const ACCESSES_PER_RESIZE: usize = 2048;

/// Memory that an item takes beyond its key and its value in bytes, about: header, link, optional
/// fields, and the rounding of a short item to its size class.
const ITEM_BYTES: u64 = 24;

/// The part of its memory that a cache fills with items, before it shows.
const USUAL_DENSITY: f64 = 0.9;

/// The density shows from this many items on.
const LEAST_ITEMS: u64 = 1000;

/// The part of the memory that is in use in a cache that evicts, at least.
const FULL: f64 = 0.95;

/// Buckets of the index that a worker tells a new trial of before it serves clients again.
const SLICE_BUCKETS: usize = 512;

/// The simulation that all workers share.
pub struct MissCurve(Mutex<Shared>);

struct Shared {
    curve: MissRatioCurve,
    /// Whether the policy is to follow the load: there is a trial once the memory is full.
    chooses_eviction: bool,
    trial: Option<Trial>,
    /// Where the part of the index begins that the trial was not told of; None if there is no such.
    untold: Option<Cursor>,
    /// The policy by which the index evicts.
    policy: Policy,
    /// The flush generation of the simulated items.
    generation: u8,
    /// When the memory of the items was looked at.
    resized_seconds: u32,
    accesses_since: usize,
}

impl MissCurve {
    /// A simulation of a cache with this memory limit that evicts by `policy`. With
    /// `chooses_eviction` it tells the index by which policy to evict from then on.
    pub fn new(memory_bytes: usize, policy: Eviction, chooses_eviction: bool) -> Self {
        let mut curve = MissRatioCurve::new(USUAL_DENSITY * memory_bytes as f64);
        curve.set_policy(simulated(policy));
        Self(Mutex::new(Shared {
            curve,
            chooses_eviction,
            trial: None,
            untold: None,
            policy: simulated(policy),
            generation: 0,
            resized_seconds: 0,
            accesses_since: 0,
        }))
    }

    /// What the simulation says. Locks it.
    pub fn estimate(&self) -> Estimate {
        self.0.lock().ignore_poison().curve.estimate()
    }

    /// The simulated misses with a policy over those of CLOCK; None before there are any, or if the
    /// policy is fixed. Locks the simulation.
    pub fn policy_ratio(&self, policy: Eviction) -> Option<f64> {
        let shared = self.0.lock().ignore_poison();
        shared.trial.as_ref().and_then(|trial| trial.ratio(simulated(policy)))
    }

    /// Forgets all reads, but no items. Locks the simulation.
    pub fn forget_reads(&self) {
        self.0.lock().ignore_poison().curve.forget_reads();
    }
}

impl Shared {
    /// Keys with hashes below this are sampled.
    fn threshold(&self) -> u64 {
        let trial = self.trial.as_ref().map_or(0, Trial::threshold);
        trial.max(self.curve.threshold())
    }

    fn forget_items(&mut self) {
        self.curve.forget_items();
        self.trial.iter_mut().for_each(Trial::forget_items);
    }

    fn advance(&mut self, seconds: u32) {
        self.curve.advance(seconds);
        self.trial.iter_mut().for_each(|trial| trial.advance(seconds));
    }

    fn access(&mut self, access: Access) {
        self.curve.access(access);
        self.trial.iter_mut().for_each(|trial| trial.access(access));
    }

    /// Makes the simulated caches as large as the real one.
    fn resize(&mut self, index: &Statistics) {
        let Some(bytes) = item_capacity(index) else { return };
        self.curve.resize(bytes);
        self.trial.iter_mut().for_each(|trial| trial.resize(bytes));
        if self.trial.is_none() && self.chooses_eviction && is_full(index) {
            self.trial = Some(Trial::new(bytes));
            self.untold = Some(Cursor::START);
        }
    }

    /// Tells a new trial of some more items of the index.
    fn tell_trial(&mut self, seed: &HashSeed, worker: &mut impl Worker, now: &Now) {
        let (Some(trial), Some(from)) = (&mut self.trial, self.untold) else { return };
        self.untold = worker.scan(from, SLICE_BUCKETS, &mut |item| {
            if now.is_live(item.expiry, item.generation) {
                let sampled = sampled_item(item.key.len() + item.value.len(), item.expiry);
                trial.add_held(seed.hash(item.key), sampled, item.fetched);
            }
            ControlFlow::Continue(())
        });
    }
}

/// The simulated policy that stands for one of the index.
fn simulated(policy: Eviction) -> Policy {
    match policy {
        Eviction::Clock => Policy::Clock,
        Eviction::GClock => Policy::GClock,
        Eviction::Probation => Policy::Probation,
    }
}

/// Whether the memory is full, so that the index evicts if it may.
fn is_full(index: &Statistics) -> bool {
    index.memory.used as f64 > FULL * index.memory.limit as f64
}

/// The bytes of items, as sampled items are measured, that fit an index's memory limit; None while
/// it has few items.
fn item_capacity(index: &Statistics) -> Option<f64> {
    let memory = &index.memory;
    let limit = memory.limit as f64;
    if index.items < LEAST_ITEMS {
        return None;
    }
    // The engine counts a header of 8 bytes as part of an item.
    let items = memory.items + index.items * (ITEM_BYTES - 8);
    // Free slots are to be filled, unless the index evicts: it then always has some.
    let unused = if is_full(index) { 0 } else { memory.losses.free_slots };
    Some(items as f64 / memory.used.saturating_sub(unused).max(1) as f64 * limit)
}

/// One worker's part: its choice of requests, and those that the simulation has not seen yet.
pub struct AccessRecorder<'s> {
    /// None if nothing is simulated.
    curve: Option<&'s MissCurve>,
    /// Keys with hashes below this are sampled; 0 if nothing is simulated.
    threshold: u64,
    accesses: Vec<Access>,
    /// The worker's hits and misses when it last handed them over.
    hits: u64,
    misses: u64,
}

impl<'s> AccessRecorder<'s> {
    /// The recorder of a worker.
    pub fn new(curve: Option<&'s MissCurve>) -> Self {
        let threshold = curve.map_or(0, |curve| curve.0.lock().ignore_poison().threshold());
        Self { curve, threshold, accesses: Vec::new(), hits: 0, misses: 0 }
    }

    /// Whether requests for the key with this hash are to be recorded.
    #[inline]
    pub fn is_sampled(&self, hash: u64) -> bool {
        hash < self.threshold
    }

    /// Records a read of a sampled key. Asks the index again: its first answer went to the client,
    /// and to look at all answers would cost more than to repeat few.
    #[cold]
    pub fn read(&mut self, key: &Key<'_>, index: &mut impl Worker, now: &Now) {
        let kind = find(key, index, now).map_or(AccessKind::Miss, AccessKind::Hit);
        self.push(key.hash(), kind);
    }

    fn push(&mut self, hash: u64, kind: AccessKind) {
        if self.accesses.len() < MOST_ACCESSES {
            self.accesses.push(Access { hash, kind });
        }
    }

    /// Records an operation on a sampled key.
    #[cold]
    pub fn operation(
        &mut self,
        op: &Op<'_>,
        outcome: &Outcome,
        index: &mut impl Worker,
        now: &Now,
    ) {
        let hash = op.key.hash();
        match (op.verb, outcome) {
            (Verb::Get(_), Outcome::Hit(hit)) if hit.created => {
                self.push(hash, AccessKind::Miss);
                let item = find(&op.key, index, now).unwrap_or_default();
                self.push(hash, AccessKind::Store(item));
            }
            (Verb::Get(_), Outcome::Hit(_)) => self.read(&op.key, index, now),
            (Verb::Get(_), Outcome::NotFound) => self.push(hash, AccessKind::Miss),
            // An append does not say which expiry the item keeps; its next read does.
            (Verb::Store(store), Outcome::Stored(written))
                if !matches!(store.mode, StoreMode::Append | StoreMode::Prepend) =>
            {
                let expiry = amalgam_op::Expiry::from_client(store.expiry, now);
                let bytes = op.key.bytes().len() + written.value_bytes;
                self.push(hash, AccessKind::Store(sampled_item(bytes, expiry)));
            }
            (Verb::Delete(_), Outcome::Deleted) => self.push(hash, AccessKind::Delete),
            // The server removes what a set without memory meant to replace.
            (Verb::Store(store), Outcome::OutOfMemory | Outcome::TooLarge)
                if store.mode == StoreMode::Set && store.compare.is_none() =>
            {
                self.push(hash, AccessKind::Delete);
            }
            _ => {}
        }
    }

    /// Whether the buffer is full enough to be handed over.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.accesses.len() >= KEPT_ACCESSES
    }

    /// Hands what was recorded to the simulation, with the hits and misses that the worker counted
    /// since the last time, unless another thread uses it. Tells the index by which policy to
    /// evict, if that is to follow the load.
    #[cold]
    pub fn hand_over(
        &mut self,
        counters: &Counters,
        now: &Now,
        index: &impl Store,
        worker: &mut impl Worker,
    ) {
        let Some(curve) = self.curve else { return };
        let mut shared = match curve.0.try_lock() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if now.generations_behind(shared.generation) > 0 {
            shared.generation = now.generation;
            shared.forget_items();
        }
        shared.advance(now.seconds);
        shared.accesses_since += self.accesses.len();
        self.accesses.drain(..).for_each(|access| shared.access(access));
        shared.tell_trial(index.seed(), worker, now);
        let (hits, misses) = (counters.get_hits.get(), counters.get_misses.get());
        let missed = misses.wrapping_sub(self.misses);
        shared.curve.count(hits.wrapping_sub(self.hits).wrapping_add(missed), missed);
        (self.hits, self.misses) = (hits, misses);
        let is_due = shared.resized_seconds != now.seconds;
        if is_due || shared.accesses_since >= ACCESSES_PER_RESIZE {
            shared.resized_seconds = now.seconds;
            shared.accesses_since = 0;
            shared.resize(&index.statistics());
        }
        self.threshold = shared.threshold();
        let better = shared.trial.as_ref().and_then(|trial| trial.better_than(shared.policy));
        if let Some(better) = better {
            // Under the lock, so that a worker with an earlier result does not come last.
            shared.policy = better;
            shared.curve.set_policy(better);
            index.set_eviction(match better {
                Policy::Clock => Eviction::Clock,
                Policy::GClock => Eviction::GClock,
                Policy::Probation => Eviction::Probation,
            });
        }
    }
}

/// What a key holds. The item's own record of accesses is left alone: to be sampled is no access.
fn find(key: &Key<'_>, index: &mut impl Worker, now: &Now) -> Option<SampledItem> {
    let mut found = FoundItem(None);
    let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
    index.apply(&Op { key: *key, verb }, now, &mut found);
    found.0
}

/// Takes the length and the expiry of an item.
struct FoundItem(Option<SampledItem>);

impl Sink for FoundItem {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        let item = &found.item;
        self.0 = Some(sampled_item(item.key.len() + item.value.len(), item.expiry));
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn patience(&self, _: usize) -> Patience {
        Patience::Never
    }
}

/// The word for a state of the curve in reports.
pub fn state_name(curve: &Curve) -> &'static str {
    match curve {
        Curve::TooFew => "too_few_requests",
        Curve::Unfit => "unfit",
        Curve::Known(_) => "ready",
    }
}

/// An item with this many bytes of key and value, as the simulation sees it.
fn sampled_item(bytes: usize, expiry: amalgam_op::Expiry) -> SampledItem {
    let bytes = bytes as u64 + ITEM_BYTES;
    SampledItem { bytes: bytes.min(u64::from(u32::MAX)) as u32, expiry_seconds: expiry.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_index::{Configuration, Cursor, Engine, Mercury, NullSink, Store as _};
    use amalgam_op::Store;

    /// Meta `h` and eviction judge an item by what clients read of it.
    #[test]
    fn sampling_does_not_mark_an_item_as_read() {
        let index = Mercury::open(&Configuration::default()).unwrap();
        let (mut worker, now) = (index.worker(), Now::at(100));
        let mut recorder = AccessRecorder::new(None);
        let key = Key::new(b"key", index.seed());
        let verb = Verb::Store(Store::new(StoreMode::Set, b"value", 0, 0));
        worker.apply(&Op { key, verb }, &now, &mut NullSink);
        recorder.read(&key, &mut worker, &now);
        let found = recorder.accesses.pop().expect("one access");
        assert!(matches!(found.kind, AccessKind::Hit(item) if item.bytes > 8), "{found:?}");
        let mut is_fetched = true;
        worker.scan(Cursor::START, usize::MAX, &mut |item| {
            is_fetched = item.fetched;
            ControlFlow::Continue(())
        });
        assert!(!is_fetched);
    }
}
