//! Random sequences of everything, applied to an engine and to `model`, compared at each step.

use std::fmt::Write;

use amalgam_index::model::Model;
use amalgam_index::{Configuration, Engine};
use amalgam_op::{
    Arithmetic, Compare, Counted, Delete, Get, HashSeed, Outcome, Store, StoreMode, Verb, Written,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::harness::{Item, Session, configuration, effort, open, weak_seed};

/// A step of a sequence.
#[derive(Clone, Debug)]
enum Step {
    Apply(usize, Act),
    /// Keys, and after how many answers the sink breaks.
    Batch(Vec<usize>, Option<usize>),
    /// Operations that are applied in one batch.
    ApplyBatch(Vec<(usize, Act)>),
    Advance(u32),
    Flush,
    Work,
}

/// A verb whose CAS ids are symbolic: engines hand out different ones.
#[derive(Clone, Debug)]
enum Act {
    Get { get: Get },
    Store { mode: StoreMode, value: RandomValue, flags: u32, expiry: i64, extra: StoreExtra },
    Arithmetic { arithmetic: Arithmetic, compare: Option<Id> },
    Delete { delete: Delete, compare: Option<Id> },
}

#[derive(Clone, Debug, Default)]
struct StoreExtra {
    compare: Option<(Id, bool)>,
    vivify: Option<i64>,
    wants_cas: bool,
    new_cas: Option<u64>,
}

/// A CAS id as a client would know it.
#[derive(Clone, Debug)]
enum Id {
    /// The CAS id that was returned for this key N results ago.
    Seen(usize),
    /// A CAS id that was never handed out.
    Unknown,
}

#[derive(Clone, Debug)]
enum RandomValue {
    Bytes(Vec<u8>),
    Number(u64),
    Long(usize, u8),
}

impl RandomValue {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Number(number) => number.to_string().into_bytes(),
            Self::Long(length, byte) => vec![*byte; *length],
        }
    }
}

/// Ids that clients choose themselves lie above all that engines draw, so that their order is the
/// same on both sides.
const CHOSEN_IDS: u64 = 1 << 40;
const UNKNOWN_ID: u64 = 1 << 50;

fn expiry() -> impl Strategy<Value = i64> {
    prop_oneof![6 => Just(0), 3 => 1..200_i64, 1 => Just(-1), 1 => 2_592_000..2_592_010_i64]
}

fn id() -> impl Strategy<Value = Id> {
    prop_oneof![5 => (0..3_usize).prop_map(Id::Seen), 1 => Just(Id::Unknown)]
}

fn chosen_id() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.1, CHOSEN_IDS..CHOSEN_IDS + 1000)
}

fn get() -> impl Strategy<Value = Act> {
    let rarely = || prop::option::weighted(0.15, expiry());
    let recache = prop::option::weighted(0.2, 0..300_i64);
    let parts = (rarely(), rarely(), recache, any::<bool>(), chosen_id(), any::<[bool; 3]>());
    parts.prop_map(|(touch, vivify, recache_below_seconds, wants_cas, new_cas, switches)| {
        let [checks_stale, touches_before_recache, is_quiet_access] = switches;
        let get = Get {
            touch,
            vivify,
            recache_below_seconds,
            wants_cas,
            new_cas,
            checks_stale,
            touches_before_recache,
            is_quiet_access,
        };
        Act::Get { get }
    })
}

fn random_value() -> impl Strategy<Value = RandomValue> {
    let long = |(length, byte)| RandomValue::Long(length, byte);
    prop_oneof![
        4 => vec(any::<u8>(), 0..20).prop_map(RandomValue::Bytes),
        4 => prop_oneof![0..1000_u64, any::<u64>(), Just(u64::MAX)].prop_map(RandomValue::Number),
        2 => (0..600_usize, any::<u8>()).prop_map(long),
        1 => (0..20_000_usize, any::<u8>()).prop_map(long),
    ]
}

fn store() -> impl Strategy<Value = Act> {
    let mode = prop_oneof![
        5 => Just(StoreMode::Set),
        2 => Just(StoreMode::Add),
        2 => Just(StoreMode::Replace),
        2 => Just(StoreMode::Append),
        2 => Just(StoreMode::Prepend),
    ];
    let compare = prop::option::weighted(0.3, (id(), any::<bool>()));
    let vivify = prop::option::weighted(0.1, expiry());
    let extra = (compare, vivify, any::<bool>(), chosen_id()).prop_map(
        |(compare, vivify, wants_cas, new_cas)| StoreExtra { compare, vivify, wants_cas, new_cas },
    );
    let extra = prop_oneof![Just(StoreExtra::default()), extra];
    let flags = prop_oneof![Just(0), any::<u32>()];
    (mode, random_value(), flags, expiry(), extra).prop_map(
        |(mode, value, flags, expiry, extra)| Act::Store { mode, value, flags, expiry, extra },
    )
}

fn arithmetic() -> impl Strategy<Value = Act> {
    let delta = prop_oneof![0..100_u64, any::<u64>()];
    let initial = prop::option::weighted(0.3, any::<u64>());
    let touch = prop::option::weighted(0.1, expiry());
    let compare = prop::option::weighted(0.1, id());
    let cas = (any::<bool>(), chosen_id());
    (delta, any::<bool>(), initial, expiry(), touch, compare, cas).prop_map(
        |(delta, is_decrement, initial, initial_expiry, touch, compare, (wants_cas, new_cas))| {
            let arithmetic = Arithmetic {
                delta,
                is_decrement,
                initial,
                initial_expiry,
                touch,
                compare: None,
                wants_cas,
                new_cas,
            };
            Act::Arithmetic { arithmetic, compare }
        },
    )
}

/// A set without conditions, often with the length, flags and expiry of another one.
fn set() -> impl Strategy<Value = Act> {
    let value = prop_oneof![
        3 => vec(any::<u8>(), 8..=8).prop_map(RandomValue::Bytes),
        3 => vec(any::<u8>(), 40..=40).prop_map(RandomValue::Bytes),
        2 => random_value(),
    ];
    let expiry = prop_oneof![8 => Just(0), 1 => Just(100), 1 => expiry()];
    (value, prop_oneof![4 => Just(0), 1 => Just(7)], expiry).prop_map(|(value, flags, expiry)| {
        Act::Store { mode: StoreMode::Set, value, flags, expiry, extra: StoreExtra::default() }
    })
}

fn delete() -> impl Strategy<Value = Act> {
    let touch = prop::option::weighted(0.1, expiry());
    let compare = prop::option::weighted(0.2, id());
    let marks = (prop::bool::weighted(0.3), prop::bool::weighted(0.2), any::<u32>());
    (compare, marks, touch, chosen_id()).prop_map(|(compare, marks, touch, new_cas)| {
        let (marks_stale, drops_value, flags) = marks;
        let delete = Delete { compare: None, marks_stale, drops_value, flags, touch, new_cas };
        Act::Delete { delete, compare }
    })
}

fn step(keys: usize) -> impl Strategy<Value = Step> {
    let act = || prop_oneof![4 => store(), 3 => get(), 2 => arithmetic(), 2 => delete()];
    let mostly_sets = prop_oneof![3 => set(), 1 => act()];
    let batch = vec(0..keys, 0..40);
    let room = prop::option::of(1..20_usize);
    prop_oneof![
        20 => (0..keys, act()).prop_map(|(key, act)| Step::Apply(key, act)),
        3 => vec((0..keys, mostly_sets), 0..60).prop_map(Step::ApplyBatch),
        4 => (batch, room).prop_map(|(keys, room)| Step::Batch(keys, room)),
        2 => (0..120_u32).prop_map(Step::Advance),
        1 => Just(Step::Flush),
        2 => Just(Step::Work),
    ]
}

/// One side of the comparison: a session and the CAS ids that it has shown, by key.
struct Side<'i, I: Engine> {
    session: Session<'i, I>,
    seen: Vec<Vec<u64>>,
}

fn name(key: usize) -> Vec<u8> {
    // Lengths differ, short ones share their in-place words.
    let mut name = format!("{key}");
    let _ = write!(name, "{:x<1$}", "", key % 7 * 5);
    name.into_bytes()
}

impl<'i, I: Engine> Side<'i, I> {
    fn new(index: &'i I, keys: usize, generation: u8) -> Self {
        let mut session = Session::new(index);
        session.now.generation = generation;
        Self { session, seen: vec![Vec::new(); keys] }
    }

    fn id(&self, key: usize, id: &Id) -> u64 {
        let seen = &self.seen[key];
        match id {
            Id::Seen(ago) if !seen.is_empty() => seen[seen.len() - 1 - ago % seen.len()],
            _ => UNKNOWN_ID,
        }
    }

    /// Remembers an id; answers which sighting it was, the same on both sides.
    fn symbol(&mut self, key: usize, id: u64) -> u64 {
        let seen = &mut self.seen[key];
        match seen.iter().position(|other| *other == id) {
            Some(place) => place as u64,
            None => {
                seen.push(id);
                seen.len() as u64 - 1
            }
        }
    }

    fn normal_item(&mut self, key: usize, item: Item) -> Item {
        Item { cas: item.cas.map(|id| self.symbol(key, id)), ..item }
    }

    fn normal_outcome(&mut self, key: usize, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Stored(Written { cas: Some(id), value_bytes }) => {
                let cas = Some(self.symbol(key, id));
                Outcome::Stored(Written { cas, value_bytes })
            }
            Outcome::Number(Counted { cas: Some(id), .. }) => {
                let Outcome::Number(counted) = outcome else { unreachable!("matched above") };
                Outcome::Number(Counted { cas: Some(self.symbol(key, id)), ..counted })
            }
            outcome => outcome,
        }
    }

    /// The verb of an act. `value` is what a store stores.
    fn verb<'v>(&self, key: usize, act: &Act, value: &'v [u8]) -> Verb<'v> {
        match act {
            Act::Get { get } => Verb::Get(*get),
            Act::Store { mode, flags, expiry, extra, .. } => {
                let compare = extra.compare.as_ref().map(|(id, accepts_older_as_stale)| Compare {
                    cas: self.id(key, id),
                    accepts_older_as_stale: *accepts_older_as_stale,
                });
                let StoreExtra { vivify, wants_cas, new_cas, .. } = *extra;
                let store = Store::new(*mode, value, *flags, *expiry);
                Verb::Store(Store { compare, vivify, wants_cas, new_cas, ..store })
            }
            Act::Arithmetic { arithmetic, compare } => {
                let compare = compare.as_ref().map(|id| self.id(key, id));
                Verb::Arithmetic(Arithmetic { compare, ..*arithmetic })
            }
            Act::Delete { delete, compare } => {
                let compare = compare.as_ref().map(|id| self.id(key, id));
                Verb::Delete(Delete { compare, ..*delete })
            }
        }
    }

    fn apply(&mut self, key: usize, act: &Act) -> (Outcome, Option<Item>) {
        let value = match act {
            Act::Store { value, .. } => value.bytes(),
            _ => Vec::new(),
        };
        let verb = self.verb(key, act, &value);
        let (outcome, item) = self.session.apply(&name(key), verb);
        let item = item.map(|item| self.normal_item(key, item));
        (self.normal_outcome(key, outcome), item)
    }

    /// Applies operations in one batch. Ids that an operation compares were seen before it.
    fn apply_batch(&mut self, acts: &[(usize, Act)]) -> Vec<(Outcome, Option<Item>)> {
        let names: Vec<_> = acts.iter().map(|(key, _)| name(*key)).collect();
        let values = acts.iter().map(|(_, act)| match act {
            Act::Store { value, .. } => value.bytes(),
            _ => Vec::new(),
        });
        let values: Vec<_> = values.collect();
        let verb = |(value, (key, act)): (_, &(usize, Act))| self.verb(*key, act, value);
        let verbs = values.iter().map(Vec::as_slice).zip(acts).map(verb);
        let ops: Vec<_> = names.iter().map(Vec::as_slice).zip(verbs).collect();
        let answers = self.session.apply_batch(&ops);
        let answers = acts.iter().zip(answers).map(|((key, _), (outcome, item))| {
            let item = item.map(|item| self.normal_item(*key, item));
            (self.normal_outcome(*key, outcome), item)
        });
        answers.collect()
    }

    fn batch(&mut self, keys: &[usize], room: Option<usize>) -> Vec<Option<Item>> {
        let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
        let slices: Vec<_> = names.iter().map(Vec::as_slice).collect();
        let (_, items) = self.session.get_some(&slices, room);
        let pairs = keys.iter().zip(items);
        pairs.map(|(key, item)| item.map(|item| self.normal_item(*key, item))).collect()
    }
}

/// How many flushes a sequence may have: generations come around after 64, so an item must not
/// lie dead for half of that.
const MAX_FLUSHES: usize = 20;

fn compare<I: Engine>(
    settings: &Configuration,
    keys: usize,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let engine: I = open(settings);
    let model: Model = open(settings);
    // Close to where generations wrap.
    let mut ours = Side::new(&engine, keys, 55);
    let mut theirs = Side::new(&model, keys, 55);
    let mut flushes = 0;
    for step in steps {
        match step {
            Step::Apply(key, act) => {
                prop_assert_eq!(ours.apply(*key, act), theirs.apply(*key, act), "{:?}", step);
            }
            Step::Batch(keys, room) => {
                prop_assert_eq!(ours.batch(keys, *room), theirs.batch(keys, *room), "{:?}", step);
            }
            Step::ApplyBatch(acts) => {
                prop_assert_eq!(ours.apply_batch(acts), theirs.apply_batch(acts), "{:?}", step);
            }
            Step::Advance(seconds) => {
                ours.session.now.seconds += seconds;
                theirs.session.now.seconds += seconds;
            }
            Step::Flush if flushes < MAX_FLUSHES => {
                flushes += 1;
                ours.session.flush();
                theirs.session.flush();
            }
            Step::Flush => {}
            Step::Work => ours.session.worker_turn(),
        }
    }
    let all: Vec<_> = (0..keys).collect();
    prop_assert_eq!(ours.batch(&all, None), theirs.batch(&all, None), "at the end");
    Ok(())
}

fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("AMALGAM_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(0))
}

fn run<I: Engine>(hash: HashSeed, keys: usize, cases: usize) {
    let seed = seed();
    println!("{}: AMALGAM_SEED={seed} repeats this run", I::NAME);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: (cases * effort()) as u32,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let settings = Configuration { seed: hash, ..configuration() };
    let result =
        runner.run(&vec(step(keys), 1..400), |steps| compare::<I>(&settings, keys, &steps));
    if let Err(failure) = result {
        panic!("{} differs from model (AMALGAM_SEED={seed}): {failure}", I::NAME);
    }
}

/// Bytes that choose a step of [`Sequence::from_bytes`].
const STEP_BYTES: usize = 4;

/// How many keys with colliding hashes there may be: at most as many as every engine has room for.
const COLLIDING_KEYS: [usize; 4] = [2, 3, 5, MAX_COLLIDING_KEYS];
const MAX_COLLIDING_KEYS: usize = 6;

/// A sequence whose steps, keys and hashes bytes choose instead of chance: for a fuzzer, which
/// learns what they lead to. Every few bytes are the seed of one step, so that a change of some
/// bytes leaves the other steps alone.
pub struct Sequence {
    settings: Configuration,
    keys: usize,
    steps: Vec<Step>,
}

impl Sequence {
    /// The sequence that `bytes` choose; None without any.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (shape, bytes) = bytes.split_first()?;
        // Keys whose hashes collide share a bucket, which evicts when it is full.
        let (seed, keys) = match shape / 4 % 4 {
            0 => (HashSeed::new(3), [2, 5, 40, 300]),
            1 => (weak_seed(0), COLLIDING_KEYS),
            2 => (weak_seed(0xff), COLLIDING_KEYS),
            _ => (weak_seed(0xff << 56), COLLIDING_KEYS),
        };
        let keys = keys[usize::from(shape % 4)];
        let settings = Configuration { seed, ..configuration() };
        let strategy = step(keys);
        let steps = bytes.chunks(STEP_BYTES).map(|chunk| {
            let mut seed = [0; 32];
            seed[..chunk.len()].copy_from_slice(chunk);
            let source = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
            let mut runner = TestRunner::new_with_rng(Config::default(), source);
            strategy.new_tree(&mut runner).expect("nothing is filtered out").current()
        });
        let steps = steps.collect();
        Some(Self { settings, keys, steps })
    }

    /// Panics where the engine differs from the model.
    pub fn check<I: Engine>(&self) {
        if let Err(failure) = compare::<I>(&self.settings, self.keys, &self.steps) {
            panic!("{} differs from model: {failure} in {:#?}", I::NAME, self.steps);
        }
    }
}

/// Few keys: long lives, many collisions of operations.
pub fn few_keys<I: Engine>() {
    run::<I>(HashSeed::new(3), 5, 60);
}

/// More keys than the table starts with room for.
pub fn many_keys<I: Engine>() {
    run::<I>(HashSeed::new(4), 300, 40);
}

/// Keys whose hashes agree in all bits, or in all that a bucket or a tag is made of.
pub fn colliding_keys<I: Engine>() {
    for mask in [0, 0xff, 0xff << 56] {
        run::<I>(weak_seed(mask), MAX_COLLIDING_KEYS, 20);
    }
}
