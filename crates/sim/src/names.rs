//! Nodes whose clients work on named items: `add` and `incr` of few keys, by all at once.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Action, ChunkError, Done, ItemOp, ItemStore, ItemVerb, StoreHead};
use amalgam_cluster::ids::{ChunkId, IdRange};
use amalgam_cluster::node::{Effect, NodeSettings};
use amalgam_index::model::{Model, ModelWorker};
use amalgam_index::{Configuration, Index};
use amalgam_op::{Arithmetic, HashSeed, Now, Outcome, StoreMode};

use crate::actor::{Common, Host, Pursuit};
use crate::random::Random;

/// Keys that are added, and keys that are counted up.
const KEYS: u64 = 60;
/// Operations of a client at once.
const DOING_MAX: usize = 6;

/// What clients were answered about names.
#[derive(Debug, Default)]
pub struct Names {
    /// How often each key was stored by an `add`.
    pub stored: BTreeMap<Vec<u8>, u64>,
    /// How often each key was counted up, as far as that was answered.
    pub counted: BTreeMap<Vec<u8>, u64>,
    /// What counters showed in the end.
    pub read: BTreeMap<Vec<u8>, u64>,
    /// Operations that were answered.
    pub answered: u64,
    /// Moves that began.
    pub moves: u64,
}

/// A node whose client adds and counts.
pub type Namer = Host<Naming>;

/// See [`Namer`].
#[derive(Debug)]
pub struct Naming;

fn seed() -> HashSeed {
    HashSeed::new(7)
}

fn model() -> &'static Model {
    let configuration = Configuration { evicts: false, seed: seed(), ..Configuration::default() };
    // It lives as long as the test: a node borrows its engine.
    Box::leak(Box::new(Model::open(&configuration).expect("it opens")))
}

fn action(key: String, verb: ItemVerb) -> Action {
    let key = key.into_bytes();
    let id = ChunkId::named(seed().hash(&key));
    Action::Item { id, op: Box::new(ItemOp { key, verb }) }
}

impl Host<Naming> {
    /// Reads a counter.
    pub fn read_counter(&mut self, number: u64, now_ms: u64, out: &mut Vec<Effect>) {
        self.submit(action(format!("counter{number}"), ItemVerb::Read), now_ms, out);
    }

    /// Moves the place of one of the keys, or the partition around it, to some node.
    fn move_some(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(target) = random.pick(&common.peers).copied() else { return };
        let key = format!("counter{}", random.below(KEYS)).into_bytes();
        let id = ChunkId::named(seed().hash(&key));
        let ids = if random.percent(30) { IdRange::single(id) } else { id.creator().ids() };
        let moves = self.node.migrate(ids, target, now_ms, out);
        common.names.moves += u64::from(moves);
    }

    /// The node is about to leave, and its client does nothing more.
    pub fn leave(&mut self) {
        self.node.leave();
    }

    /// Whether others have all it had, and its client was answered.
    pub fn has_left(&self) -> bool {
        self.doing.is_empty() && self.node.has_left()
    }

    /// How many counters there are.
    pub fn counters() -> u64 {
        KEYS
    }
}

impl Pursuit for Naming {
    type Store = ItemStore<ModelWorker<'static>>;

    fn open(settings: &mut NodeSettings) -> (Self, Self::Store) {
        settings.holds_items = true;
        (Self, ItemStore::new(model(), model(), Box::new(|| Now::at(1))))
    }

    fn observe(
        &mut self,
        common: &mut Common,
        action: Action,
        _: u64,
        result: &Result<Done, ChunkError>,
        now_ms: u64,
    ) {
        let Action::Item { op, .. } = &action else { return };
        let names = &mut common.names;
        names.answered += 1;
        let answer = match result {
            Ok(Done::Item(answer)) => answer,
            // No partition has an owner at first.
            Err(ChunkError::NoChunk) => return,
            other => return common.wrong.push(format!("{now_ms}: {op:?} came to {other:?}")),
        };
        match (&op.verb, answer.outcome) {
            (ItemVerb::Store(..), Outcome::Stored(_)) => {
                *names.stored.entry(op.key.clone()).or_default() += 1;
            }
            (ItemVerb::Store(..), Outcome::NotStored) => {
                names.stored.entry(op.key.clone()).or_default();
            }
            (ItemVerb::Arithmetic(_), Outcome::Number(_)) => {
                *names.counted.entry(op.key.clone()).or_default() += 1;
            }
            (ItemVerb::Read, Outcome::Hit(_)) => {
                let value = answer.item.as_ref().map(|item| item.value.clone());
                let text = String::from_utf8(value.unwrap_or_default()).unwrap_or_default();
                names.read.insert(op.key.clone(), text.trim().parse().unwrap_or(u64::MAX));
            }
            (ItemVerb::Read, Outcome::NotFound) => {}
            (_, outcome) => common.wrong.push(format!("{now_ms}: {op:?} came to {outcome:?}")),
        }
    }

    fn work(
        host: &mut Namer,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        if host.node.chunks().is_leaving() {
            return;
        }
        if random.percent(5) {
            host.move_some(common, random, now_ms, out);
        }
        if host.doing.len() >= DOING_MAX || random.percent(50) {
            return;
        }
        let number = random.below(KEYS);
        let action = if random.percent(50) {
            let head = StoreHead {
                mode: StoreMode::Add,
                flags: 0,
                expiry: 0,
                compare: None,
                vivify: None,
                wants_cas: false,
                new_cas: None,
            };
            let verb = ItemVerb::Store(head, host.peer.node.get().to_string().into_bytes());
            action(format!("once{number}"), verb)
        } else {
            let arithmetic = Arithmetic { delta: 1, initial: Some(1), ..Arithmetic::default() };
            action(format!("counter{number}"), ItemVerb::Arithmetic(arithmetic))
        };
        host.submit(action, now_ms, out);
    }
}
