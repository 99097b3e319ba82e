//! The oracle that engines are tested against: a map behind a lock, slow and obviously correct.
//!
//! Thread safety: one mutex around everything. The linearization point of each operation is inside
//! its critical section.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};

use amalgam_op::{
    Decision, Expiry, HashSeed, IgnorePoison, ItemView, ItemWrite, Key, MetaFlags, Now, Op,
    Outcome, Value, Verb, decide,
};

use crate::maintenance::Signal;
use crate::mem::ItemRef;
use crate::{Configuration, Cursor, Engine, Found, OpenError, Sink, Statistics, Store, Worker};

/// The engine of the oracle. It obeys the memory limit like other engines, but evicts the items
/// that were written longest ago.
pub struct Model {
    state: Mutex<State>,
    seed: HashSeed,
    max_item_bytes: usize,
    evicts: bool,
    signal: Signal,
}

/// A worker of [`Model`].
pub struct ModelWorker<'i>(&'i Model);

#[derive(Default)]
struct State {
    /// The items in the order of hash and key, so that a cursor survives insertion and removal.
    items: BTreeMap<(u64, Vec<u8>), Item>,
    /// The hash and key of each item by its id, which orders items by age, oldest first.
    ages: BTreeMap<u64, (u64, Vec<u8>)>,
    next_id: u64,
    next_cas: u64,
    limit_bytes: usize,
    used_bytes: usize,
    /// The hash and key at which the sweep continues.
    swept: (u64, Vec<u8>),
    statistics: Statistics,
}

struct Item {
    id: u64,
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
    cas: Option<u64>,
    generation: u8,
    meta_flags: MetaFlags,
    accessed_seconds: u32,
}

impl Item {
    fn view<'g>(&'g self, key: &'g [u8]) -> ItemView<'g> {
        ItemView {
            key,
            value: Value::Bytes(&self.value),
            flags: self.flags,
            expiry: self.expiry,
            cas: self.cas,
            generation: self.generation,
            fetched: self.meta_flags.fetched,
            stale: self.meta_flags.stale,
            won: self.meta_flags.won,
            last_access_seconds: Some(self.accessed_seconds),
        }
    }

    fn new(id: u64, item_write: &ItemWrite<'_>, current: &[u8], now: &Now) -> Self {
        let mut value = vec![0; item_write.value_bytes(current.len())];
        item_write.write_value(current, &mut value);
        Self {
            id,
            value,
            flags: item_write.flags,
            expiry: item_write.expiry,
            cas: item_write.cas,
            generation: now.generation,
            accessed_seconds: now.seconds,
            meta_flags: item_write.meta_flags,
        }
    }
}

/// The number of items that a slice of the sweep visits.
const SWEEP_ITEMS: usize = 32;

/// Bytes that the model charges for an item in addition to key and value.
const OVERHEAD_BYTES: usize = 48;

fn charge(key: &[u8], value: usize) -> usize {
    key.len() + value + OVERHEAD_BYTES
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }
}

impl Store for Model {
    const NAME: &'static str = "model";
    type Worker<'i> = ModelWorker<'i>;

    fn worker(&self) -> ModelWorker<'_> {
        ModelWorker(self)
    }

    fn seed(&self) -> &HashSeed {
        &self.seed
    }

    fn statistics(&self) -> Statistics {
        let state = self.lock();
        let mut statistics = state.statistics.clone();
        statistics.items = state.items.len() as u64;
        statistics.memory.limit = state.limit_bytes as u64;
        statistics.memory.items = state.used_bytes as u64;
        statistics.memory.used = state.used_bytes as u64;
        statistics
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.lock().limit_bytes = bytes;
    }
}

impl Engine for Model {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        let next_cas = configuration.first_cas - 1;
        let limit_bytes = configuration.memory_bytes;
        let state = State { next_cas, limit_bytes, ..State::default() };
        Ok(Self {
            state: Mutex::new(state),
            seed: configuration.seed.clone(),
            max_item_bytes: configuration.max_item_bytes,
            evicts: configuration.evicts,
            signal: Signal::default(),
        })
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.signal
    }

    fn maintain(worker: &mut ModelWorker<'_>, now: &Now) -> bool {
        let mut state = worker.0.lock();
        let from = std::mem::take(&mut state.swept);
        let slice = state.items.range(from..).take(SWEEP_ITEMS + 1);
        let mut places: Vec<_> = slice
            .map(|(place, item)| (place.clone(), now.is_live(item.expiry, item.generation)))
            .collect();
        // One item more than is swept is taken: the sweep continues there.
        let rest = places.split_off(places.len().min(SWEEP_ITEMS));
        for (place, _) in places.iter().filter(|(_, is_live)| !is_live) {
            state.remove(place);
            state.statistics.reclaimed += 1;
        }
        state.swept = rest.into_iter().next().map(|(place, _)| place).unwrap_or_default();
        state.swept != Default::default()
    }

    fn compare_exchange_item(
        worker: &mut ModelWorker<'_>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        let mut state = worker.0.lock();
        let found = state
            .items
            .range((hash, vec![])..)
            .take_while(|((other, _), _)| *other == hash)
            .find(|(_, item)| item.id == old.to_bits())
            .map(|(place, _)| place.clone());
        if let (Some(place), None) = (&found, new) {
            state.remove(place);
        }
        found.is_some()
    }
}

impl State {
    fn remove(&mut self, place: &(u64, Vec<u8>)) {
        if let Some(item) = self.items.remove(place) {
            self.used_bytes -= charge(&place.1, item.value.len());
            self.ages.remove(&item.id);
        }
    }

    /// Evicts the oldest items other than `except` until `bytes` more fit. Returns whether they
    /// fit.
    fn make_room(&mut self, bytes: usize, except: &(u64, Vec<u8>)) -> bool {
        while self.used_bytes + bytes > self.limit_bytes {
            let Some(victim) = self.ages.values().find(|place| *place != except).cloned() else {
                return false;
            };
            self.remove(&victim);
            self.statistics.evictions += 1;
        }
        true
    }
}

impl Worker for ModelWorker<'_> {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        let mut state = self.0.lock();
        for (position, key) in keys.iter().enumerate() {
            let found = state.items.get_mut(&(key.hash(), key.bytes().to_vec()));
            let flow = match found {
                Some(item) if !now.is_live(item.expiry, item.generation) => {
                    sink.dead(position, now.generations_behind(item.generation) > 0)
                }
                Some(item) => {
                    let flow = sink.hit(position, &Found::new(item.view(key.bytes())));
                    item.meta_flags.fetched = true;
                    item.accessed_seconds = now.seconds;
                    flow
                }
                None => sink.miss(position),
            };
            if flow.is_break() {
                return position + 1;
            }
        }
        keys.len()
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        let mut state = self.0.lock();
        let state = &mut *state;
        let place = (op.key.hash(), op.key.bytes().to_vec());
        state.next_cas += 1;
        let current = state.items.get(&place).map(|item| item.view(op.key.bytes()));
        let outcome = match decide(current.as_ref(), op, now, state.next_cas) {
            Decision::Keep(outcome) => outcome,
            Decision::Remove(outcome) => {
                if outcome != Outcome::Deleted {
                    state.statistics.reclaimed += 1;
                }
                state.remove(&place);
                outcome
            }
            Decision::Replace(item_write, outcome) => {
                let old = current.as_ref().map_or(&[][..], |item| item.value.as_bytes());
                state.next_id += 1;
                let item = Item::new(state.next_id, &item_write, old, now);
                let old_charge = current.map_or(0, |item| charge(op.key.bytes(), item.value.len()));
                let bytes = charge(op.key.bytes(), item.value.len());
                if bytes > self.0.max_item_bytes {
                    return Outcome::TooLarge;
                }
                if state.used_bytes - old_charge + bytes > state.limit_bytes
                    && !(self.0.evicts && state.make_room(bytes, &place))
                {
                    state.statistics.out_of_memory += 1;
                    return Outcome::OutOfMemory;
                }
                state.remove(&place);
                state.used_bytes += bytes;
                state.statistics.items_total += 1;
                state.ages.insert(item.id, place.clone());
                state.items.insert(place.clone(), item);
                outcome
            }
        };
        if let (Outcome::Hit(hit), Some(item)) = (outcome, state.items.get_mut(&place)) {
            let _ = sink.hit(0, &Found::new(item.view(op.key.bytes())).with_hit(hit));
            if let Verb::Get(get) = op.verb
                && !get.is_quiet_access
            {
                item.meta_flags.fetched = true;
                item.accessed_seconds = now.seconds;
            }
        }
        outcome
    }

    fn prefetch(&self, _key: &Key<'_>) {}

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let state = self.0.lock();
        let mut last = from.0;
        for (visited, ((hash, key), item)) in state.items.range((from.0, vec![])..).enumerate() {
            // A slice ends only between different hashes, because a cursor is a hash.
            if visited >= budget && *hash != last {
                return Some(Cursor(*hash));
            }
            last = *hash;
            if visit(&item.view(key)).is_break() {
                return Some(Cursor(*hash));
            }
        }
        None
    }

    fn quiesce(&mut self) {}
}
