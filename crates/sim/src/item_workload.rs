//! The item workload: clients that `add` and `incr` a few common keys; with backups they also
//! `set`, `get` and `delete`.

use std::cell::RefCell;
use std::fmt;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use amalgam_cluster::chunks::{
    Action, ChunkError, ItemAnswer, ItemOp, ItemStore, ItemTime, ItemVerb, Response, StoreHead,
    StoreHost,
};
use amalgam_cluster::ids::{ChunkId, IdRange, NAMED_FIRST};
use amalgam_cluster::node::{NodeCommand, NodeSettings};
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::replication::{RecoveredState, ReplicaStore};
use amalgam_index::model::{Model, ModelWorker};
use amalgam_index::{Configuration, Cursor, Engine as _, NullSink, Store as _, Worker};
use amalgam_op::{Arithmetic, Delete, HashSeed, Key, Now, Op, Outcome, StoreMode, Verb};

use crate::chunk_workload::{COPIES, open_replica_store};
use crate::direct_items::{DirectEnd, DirectThread};
use crate::mutants::Mutant;
use crate::node_process::{Workload, WorkloadNode};
use crate::observations::Observations;
use crate::random::Random;

/// Number of keys of each kind: added, counted and set.
const KEYS: u64 = 60;
/// Nodes claim one partition of 63: with all 4,095, most of a run is about those without keys.
const PARTITION_STEP: u16 = 63;
/// The most bytes of an item where logs are to become full.
const LONG_VALUE_BYTES: u64 = 16 << 10;
/// Time between two ticks that is a pause.
const PAUSE_MS: u64 = 100;
/// Operations of a client in flight at most.
const IN_FLIGHT_MAX: usize = 6;

/// A node that runs the item workload without backups.
pub type ItemNode = WorkloadNode<ItemWorkload<false>>;

/// A node that runs the item workload with backups, and may crash.
pub type ReplicatedItemNode = WorkloadNode<ItemWorkload<true>>;

/// The item workload. If `REPLICATED`, nodes keep backups and clients also set, read and delete
/// keys.
#[derive(Debug)]
pub struct ItemWorkload<const REPLICATED: bool> {
    /// Number of the last value that was set.
    next_value: u64,
    /// The thread of the node's gateway; None before its first operation.
    direct: Option<DirectThread>,
    /// When the last tick was, on the node's clock.
    ticked_ms: u64,
    evicted: EvictedKeys,
    /// The engines of the node; the node and the thread are dropped before them.
    engines: Engines,
}

fn seed() -> HashSeed {
    HashSeed::new(7)
}

thread_local! {
    /// Engines of dead nodes, for reuse. A node borrows its engines, so they are leaked.
    static FREE: RefCell<Vec<&'static Model>> = const { RefCell::new(Vec::new()) };
}

/// Keys that were evicted, and of which the node has not heard.
#[derive(Clone, Debug, Default)]
pub struct EvictedKeys(Rc<RefCell<Vec<Vec<u8>>>>);

impl StoreHost for EvictedKeys {
    fn take_evicted(&self) -> Vec<Vec<u8>> {
        self.0.take()
    }
}

/// The two engines of one node; they are emptied and reused when it dies.
struct Engines([&'static Model; 2]);

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engines")
    }
}

impl Engines {
    fn take() -> Self {
        let open = || {
            let configuration =
                Configuration { evicts: false, seed: seed(), ..Configuration::default() };
            &*Box::leak(Box::new(Model::open(&configuration).expect("it opens")))
        };
        let free = || FREE.with_borrow_mut(Vec::pop);
        Self([(); 2].map(|()| free().unwrap_or_else(open)))
    }

    fn store(&self) -> ItemStore<ModelWorker<'static>> {
        let [chunks, items] = self.0;
        ItemStore::new(chunks, items, Box::new(|| ItemTime::FIRST))
    }
}

impl Engines {
    /// Removes an item, as an engine does that needs its memory. Whether there was one.
    fn evict(&self, key: &[u8]) -> bool {
        let [_, items] = self.0;
        let op = Op { key: Key::new(key, items.seed()), verb: Verb::Delete(Delete::default()) };
        items.worker().apply(&op, &Now::at(1), &mut NullSink) == Outcome::Deleted
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        for model in self.0 {
            let (mut worker, mut keys) = (model.worker(), Vec::new());
            let mut from = Some(Cursor::START);
            while let Some(cursor) = from {
                from = worker.scan(cursor, usize::MAX, &mut |item| {
                    keys.push(item.key.to_vec());
                    ControlFlow::Continue(())
                });
            }
            for key in keys {
                let verb = Verb::Delete(Delete::default());
                let op = Op { key: Key::new(&key, model.seed()), verb };
                worker.apply(&op, &Now::at(1), &mut NullSink);
            }
            FREE.with_borrow_mut(|free| free.push(model));
        }
    }
}

fn place(key: &[u8]) -> ChunkId {
    ChunkId::named(seed().hash(key))
}

/// The key that begins with a name and is of a partition that nodes claim.
fn key(name: &str) -> String {
    let is_claimed = |key: &String| {
        let partition = place(key.as_bytes()).creator().get() - NAMED_FIRST;
        partition.is_multiple_of(PARTITION_STEP)
    };
    (0..u32::MAX).map(|number| format!("{name}-{number}")).find(is_claimed).expect("one of many")
}

fn action(key: String, verb: ItemVerb) -> Action {
    let key = key.into_bytes();
    Action::Item { id: place(&key), op: Box::new(ItemOp { key, verb }) }
}

fn head(mode: StoreMode) -> StoreHead {
    let (flags, expiry) = (0, 0);
    let (compare, vivify, wants_cas, new_cas) = (None, None, false, None);
    StoreHead { mode, flags, expiry, compare, vivify, wants_cas, new_cas }
}

fn number_in(answer: &ItemAnswer) -> u64 {
    answer.item.as_ref().map_or(u64::MAX, |item| number_of(&item.value))
}

/// The number that a value begins with.
fn number_of(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).trim().parse().unwrap_or(u64::MAX)
}

/// The value that stands for a deletion that began at this time; nobody reads it.
fn deletion_of(began_ms: u64) -> u64 {
    began_ms | 1 << 63
}

impl<const REPLICATED: bool> WorkloadNode<ItemWorkload<REPLICATED>> {
    /// The keys with a number, one of each kind.
    pub fn keys(number: u64, observed: &Observations) -> Vec<String> {
        let set = REPLICATED.then(|| register(number, observed));
        let keys = [key(&format!("counter{number}")), key(&format!("once{number}"))];
        keys.into_iter().chain(set).collect()
    }

    /// Reads keys.
    pub fn read_items(&mut self, keys: Vec<String>, now_ms: u64, out: &mut Vec<NodeCommand>) {
        for key in keys {
            self.submit(action(key, ItemVerb::Read), now_ms, out);
        }
    }

    fn direct(&mut self) -> &mut DirectThread {
        let served = self.node.chunks().served();
        let engines = &self.workload.engines;
        self.workload
            .direct
            .get_or_insert_with(|| DirectThread::new(Arc::clone(served).thread(), engines.store()))
    }

    /// Starts an operation, around the node's thread if possible and if `is_direct`.
    fn start(
        &mut self,
        action: Action,
        is_direct: bool,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        observed.recorder.begins(self.peer, &action, observed.true_ms);
        let times = (now_ms, observed.true_ms);
        if is_direct
            && let Action::Item { id, op } = &action
            && self.direct().begin((*id, op.clone()), observed.mutant, random, times)
        {
            return;
        }
        self.submit(action, now_ms, out);
    }

    /// Reads all registers after a pause.
    fn read_after_pause(&mut self, observed: &mut Observations, now_ms: u64) {
        let paused_ms = now_ms.saturating_sub(self.workload.ticked_ms);
        self.workload.ticked_ms = now_ms;
        if !REPLICATED || paused_ms < PAUSE_MS {
            return;
        }
        for number in 0..KEYS {
            let Action::Item { id, op } = action(register(number, observed), ItemVerb::Read) else {
                continue;
            };
            let true_ms = observed.true_ms;
            if let Some(answer) = self.direct().read(id, &op, observed.mutant, now_ms) {
                observed
                    .coverage
                    .record("an item read after a pause, before the node's thread ran");
                let (begun, answer) = ((Action::Item { id, op }, true_ms), Box::new(answer));
                let result = Ok(Response::Item(answer));
                self.ends(observed, begun, &result, true_ms);
            }
        }
    }

    /// The number of a key; one that the node owns, if there is one and `is_direct`.
    fn choose(
        &mut self,
        is_direct: bool,
        random: &mut Random,
        name: impl Fn(u64) -> String,
    ) -> u64 {
        let first = random.below(KEYS);
        let mut numbers = (first..KEYS).chain(0..first);
        let direct = self.direct();
        let mut is_owned = |number: &u64| direct.is_free_for(place(name(*number).as_bytes()));
        numbers.find(|number| is_direct && is_owned(number)).unwrap_or(first)
    }

    /// Moves the id of one of the keys, or the partition around it, to a random node.
    fn move_random(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let Some(target) = random.pick(&observed.peers).copied() else { return };
        let id = place(key(&format!("counter{}", random.below(KEYS))).as_bytes());
        let ids = if random.percent(30) { IdRange::single(id) } else { id.creator().ids() };
        let moves = self.node.migrate(ids, target, now_ms, out);
        observed.items.moves += u64::from(moves);
    }

    /// Sets, reads or deletes a key.
    fn use_register(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let is_direct = random.percent(50);
        let number = self.choose(is_direct, random, |number| register(number, observed));
        let (key, began_ms) = (register(number, observed), observed.true_ms);
        let id = place(key.as_bytes());
        let verb = match random.below(10) {
            0..5 => ItemVerb::Read,
            5 if random.percent(20) || observed.evicts => {
                if !observed.evicts {
                    *observed.items.deleted.entry(number).or_default() += 1;
                }
                observed.history.removal_begins(id, deletion_of(began_ms), began_ms);
                ItemVerb::Delete(Delete::default())
            }
            _ => {
                self.workload.next_value += 1;
                let incarnation = u64::from(self.peer.incarnation) & 0xFFF;
                let node = u64::from(self.peer.node.get());
                let value = node << 48 | incarnation << 36 | self.workload.next_value;
                observed.history.write_begins(id, value, began_ms);
                let mut text = value.to_string().into_bytes();
                if observed.has_full_logs {
                    text.resize(text.len() + random.below(LONG_VALUE_BYTES) as usize, b' ');
                }
                ItemVerb::Store(head(StoreMode::Set), text)
            }
        };
        self.start(action(key, verb), is_direct, observed, random, now_ms, out);
    }

    /// Evicts a key. The node hears of most evictions.
    fn evict_random(&mut self, observed: &mut Observations, random: &mut Random) {
        let key = register(random.below(KEYS), observed).into_bytes();
        if self.workload.engines.evict(&key) {
            observed.coverage.record("an item evicted");
            if random.percent(70) {
                self.workload.evicted.0.borrow_mut().push(key);
            }
        }
    }

    /// The node starts to leave, and its client does nothing more.
    pub fn leave(&mut self) {
        self.node.leave();
    }

    /// Whether others own all it had, and its client has no operation in flight.
    pub fn has_left(&self) -> bool {
        self.in_flight.is_empty() && self.node.has_left()
    }

    /// Number of keys of each kind.
    pub fn keys_of_each_kind() -> u64 {
        KEYS
    }
}

fn register(number: u64, observed: &Observations) -> String {
    let deleted = observed.items.deleted.get(&number).copied().unwrap_or(0);
    key(&format!("set{number}.{deleted}"))
}

/// Records a set, read or delete of a set key in the register's history.
fn observe_register(
    observed: &mut Observations,
    (id, op): (ChunkId, &ItemOp),
    began_ms: u64,
    result: &Result<Response, ChunkError>,
    now_ms: u64,
) {
    let (history, known_ms) = (&mut observed.history, &mut observed.items.known_ms);
    let outcome = match result {
        Ok(Response::Item(answer)) => Some((answer.outcome, number_in(answer))),
        // The partition has no owner, so there is no item.
        Err(ChunkError::NoChunk) => None,
        Err(ChunkError::Unavailable) => {
            if let ItemVerb::Store(_, value) = &op.verb {
                history.write_refused(number_of(value));
            }
            return;
        }
        Err(ChunkError::Unknown) => return,
        other => return observed.wrong_answers.push(format!("{now_ms}: {op:?} got {other:?}")),
    };
    match (&op.verb, outcome) {
        (ItemVerb::Read, Some((Outcome::Hit(_), value))) => {
            history.read(id, value, began_ms, now_ms);
            known_ms.entry(op.key.clone()).or_insert(now_ms);
        }
        (ItemVerb::Store(_, value), Some((Outcome::Stored(_), _))) => {
            history.write_ends(id, number_of(value), now_ms);
            known_ms.entry(op.key.clone()).or_insert(now_ms);
        }
        (ItemVerb::Delete(_), Some((Outcome::Deleted, _))) => {
            history.write_ends(id, deletion_of(began_ms), now_ms);
        }
        (ItemVerb::Delete(_), Some((Outcome::NotFound, _))) if observed.evicts => {
            history.write_ends(id, deletion_of(began_ms), now_ms);
        }
        (_, None | Some((Outcome::NotFound, _))) if observed.evicts => {}
        (_, None | Some((Outcome::NotFound, _))) => {
            // Before its first value the item does not exist either.
            if known_ms.get(&op.key).is_some_and(|known_ms| *known_ms < began_ms) {
                history.missing(id, now_ms);
            }
        }
        (_, Some(other)) => observed.wrong_answers.push(format!("{now_ms}: {op:?} got {other:?}")),
    }
}

impl<const REPLICATED: bool> Workload for ItemWorkload<REPLICATED> {
    type Store = ItemStore<ModelWorker<'static>, EvictedKeys>;

    fn open(settings: &mut NodeSettings, observed: &Observations) -> (Self, Self::Store) {
        settings.partition_step = PARTITION_STEP;
        settings.chunks.evicts =
            observed.evicts && observed.mutant != Mutant::DeletesOnlyWhatIsThere;
        settings.overlay.begins_empty = observed.evicts;
        if REPLICATED {
            settings.chunks.replication = COPIES;
        }
        let engines = Engines::take();
        let evicted = EvictedKeys::default();
        let store = engines.store().with_host(evicted.clone());
        (Self { next_value: 0, direct: None, ticked_ms: 0, evicted, engines }, store)
    }

    fn replica_store(
        peer: Peer,
        observed: &mut Observations,
    ) -> Option<(ReplicaStore, RecoveredState)> {
        REPLICATED.then(|| open_replica_store(peer, 32 << 10, observed))
    }

    fn observe(
        &mut self,
        observed: &mut Observations,
        _: Peer,
        (action, began_ms): (Action, u64),
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    ) {
        let Action::Item { id, op } = &action else { return };
        observed.items.answered += 1;
        if op.key.starts_with(b"set") {
            return observe_register(observed, (*id, op), began_ms, result, now_ms);
        }
        let names = &mut observed.items;
        if op.verb != ItemVerb::Read
            && !matches!(result, Err(ChunkError::Unavailable | ChunkError::Unknown))
            && let Some(unknown) = names.unknown.get_mut(&op.key)
        {
            *unknown -= 1;
        }
        let answer = match result {
            Ok(Response::Item(answer)) => answer,
            // No partition has an owner at first. A lost item would be missed at the end.
            Err(ChunkError::NoChunk) => return,
            Err(ChunkError::Unavailable | ChunkError::Unknown) if REPLICATED => return,
            other => return observed.wrong_answers.push(format!("{now_ms}: {op:?} got {other:?}")),
        };
        match (&op.verb, answer.outcome) {
            (ItemVerb::Store(..), Outcome::Stored(_)) => {
                *names.stored.entry(op.key.clone()).or_default() += 1;
            }
            (ItemVerb::Store(..), Outcome::NotStored) => {
                names.stored.entry(op.key.clone()).or_default();
            }
            (ItemVerb::Arithmetic(_), Outcome::Number(counted)) => {
                let known = names.counted_ms.entry(op.key.clone()).or_default();
                let before = known.iter().filter(|known_ms| **known_ms < began_ms).count() as u64;
                if counted.number <= before {
                    let number = counted.number;
                    observed
                        .wrong_answers
                        .push(format!("{now_ms}: {op:?} is {number} after {before}"));
                }
                known.push(now_ms);
            }
            (ItemVerb::Read, Outcome::Hit(_)) if op.key.starts_with(b"once") => {
                names.present.insert(op.key.clone());
            }
            (ItemVerb::Read, Outcome::Hit(_)) => {
                names.read.insert(op.key.clone(), number_in(answer));
            }
            (ItemVerb::Read, Outcome::NotFound) => {}
            (_, outcome) => {
                observed.wrong_answers.push(format!("{now_ms}: {op:?} got {outcome:?}"))
            }
        }
    }

    fn run_threads(
        host: &mut WorkloadNode<Self>,
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        host.read_after_pause(observed, now_ms);
        let direct = host.workload.direct.as_mut();
        let ended = direct.and_then(|direct| direct.tick(observed.mutant, now_ms));
        let Some((action, began_ms, end)) = ended else { return };
        let Action::Item { op, .. } = &action else { return };
        observed.coverage.record(match (op.verb.writes(), &end) {
            (_, DirectEnd::Refused) => "an item read around the node's thread, and not answered",
            (true, _) => "an item written around the node's thread",
            (false, _) => "an item read around the node's thread",
        });
        let result = match end {
            DirectEnd::Answered(answer) => Ok(Response::Item(Box::new(answer))),
            DirectEnd::Unknown => return,
            DirectEnd::Refused => return host.submit(action, now_ms, out),
        };
        let true_ms = observed.true_ms;
        host.ends(observed, (action, began_ms), &result, true_ms);
    }

    fn work(
        host: &mut WorkloadNode<Self>,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        if host.node.chunks().is_leaving() {
            return;
        }
        if random.percent(5) {
            host.move_random(observed, random, now_ms, out);
        }
        if observed.evicts && random.percent(50) {
            host.evict_random(observed, random);
        }
        if host.in_flight.len() >= IN_FLIGHT_MAX || random.percent(50) {
            return;
        }
        if REPLICATED && (observed.evicts || random.percent(60)) {
            return host.use_register(observed, random, now_ms, out);
        }
        let (is_direct, is_added) = (random.percent(50), random.percent(50));
        let kind = if is_added { "once" } else { "counter" };
        let number = host.choose(is_direct, random, |number| key(&format!("{kind}{number}")));
        let action = if is_added {
            let value = host.peer.node.get().to_string().into_bytes();
            action(key(&format!("once{number}")), ItemVerb::Store(head(StoreMode::Add), value))
        } else {
            let arithmetic = Arithmetic { delta: 1, initial: Some(1), ..Arithmetic::default() };
            action(key(&format!("counter{number}")), ItemVerb::Arithmetic(arithmetic))
        };
        if let Action::Item { op, .. } = &action {
            *observed.items.unknown.entry(op.key.clone()).or_default() += 1;
        }
        host.start(action, is_direct, observed, random, now_ms, out);
    }
}
