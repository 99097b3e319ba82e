//! What the tests of this crate share: sessions that check the traits' contracts on every call.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_index::{Configuration, Engine, Found, Sink, Worker, maintenance};
use amalgam_op::{
    Arithmetic, Delete, Expiry, Get, HashSeed, ItemView, Key, Now, Op, Outcome, Store, StoreMode,
    Verb, Written, split_mix64,
};

/// How much work random and racing tests do: 1 in `make test`, `AMALGAM_EFFORT` otherwise.
pub fn effort() -> usize {
    std::env::var("AMALGAM_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

/// Small, so that tables grow during the tests.
pub fn configuration() -> Configuration {
    Configuration { expected_items: 64, workers: 8, ..Configuration::default() }
}

/// Opens an engine, or ends the test with its reason.
pub fn open<I: Engine>(configuration: &Configuration) -> I {
    I::open(configuration).unwrap_or_else(|error| panic!("{} does not open: {error}", I::NAME))
}

/// Runs `body` while another thread does the index's background work.
pub fn with_maintenance<I: Engine, R>(index: &I, now: Now, body: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| maintenance::run(index, || now, &stop));
        // Stops the helper also when the body panics, or the scope would wait forever.
        let guard = Stop(&stop);
        let result = body();
        drop(guard);
        index.maintenance_signal().raise();
        helper.join().expect("maintenance does not panic");
        result
    })
}

/// Raises its flag when dropped, so that helpers end when a test panics.
pub struct Stop<'s>(pub &'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a read showed, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key; see [`ItemView::key`].
    pub key: Vec<u8>,
    /// The value; see [`ItemView::value`].
    pub value: Vec<u8>,
    /// The client's flags; see [`ItemView::flags`].
    pub flags: u32,
    /// The time when the item expires; see [`ItemView::expiry`].
    pub expiry: Expiry,
    /// The CAS id, if the item has one; see [`ItemView::cas`].
    pub cas: Option<u64>,
    /// Whether a client has read the item; see [`ItemView::fetched`].
    pub fetched: bool,
    /// Whether the item was invalidated; see [`ItemView::stale`].
    pub stale: bool,
    /// Whether a client holds the recache token; see [`ItemView::won`].
    pub won: bool,
}

impl Item {
    /// Copies what an engine shows.
    pub fn of(view: &ItemView<'_>) -> Self {
        Self {
            key: view.key.to_vec(),
            value: view.value.as_bytes().to_vec(),
            flags: view.flags,
            expiry: view.expiry,
            cas: view.cas,
            fetched: view.fetched,
            stale: view.stale,
            won: view.won,
        }
    }
}

/// A sink that keeps all it is given.
#[derive(Default)]
pub struct Recorder {
    /// Positions and what was there.
    pub seen: Vec<(usize, Option<Item>)>,
    /// Positions whose items were dead, and whether a flush killed them; `seen` has them too.
    pub dead: Vec<(usize, bool)>,
    /// Break after this many answers.
    pub room: Option<usize>,
}

impl Recorder {
    fn push(&mut self, position: usize, item: Option<Item>) -> ControlFlow<()> {
        self.seen.push((position, item));
        match self.room {
            Some(room) if self.seen.len() >= room => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Sink for Recorder {
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        if let Some(pinned) = found.pin() {
            assert_eq!(pinned.as_bytes(), found.item.value.as_bytes(), "a pin shows the value");
        }
        self.push(position, Some(Item::of(&found.item)))
    }

    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        self.push(position, None)
    }

    fn dead(&mut self, position: usize, is_flushed: bool) -> ControlFlow<()> {
        self.dead.push((position, is_flushed));
        self.miss(position)
    }
}

/// One worker, its time, and the contracts of the traits checked around every call.
pub struct Session<'i, I: Engine + 'i> {
    /// The engine under test.
    pub index: &'i I,
    /// The worker through which the session's calls go.
    pub worker: I::Worker<'i>,
    /// The time that calls run at.
    pub now: Now,
}

impl<'i, I: Engine> Session<'i, I> {
    /// Registers the calling thread at second 1000 of generation 0.
    pub fn new(index: &'i I) -> Self {
        Self { index, worker: index.worker(), now: Now::at(1000) }
    }

    /// Applies `verb` to `key`.
    pub fn apply(&mut self, key: &[u8], verb: Verb<'_>) -> (Outcome, Option<Item>) {
        let key = Key::new(key, self.index.seed());
        let mut sink = Recorder::default();
        let outcome = self.worker.apply(&Op { key, verb }, &self.now, &mut sink);
        let item = match (outcome, sink.seen.as_slice()) {
            (Outcome::Hit(_), [(0, Some(item))]) => Some(item.clone()),
            (Outcome::Hit(_), seen) => panic!("a hit shows one item, not {seen:?}"),
            (_, []) => None,
            (outcome, seen) => panic!("{outcome:?} shows nothing, not {seen:?}"),
        };
        if let Some(item) = &item {
            assert_eq!(item.key, key.bytes(), "the item has the key that was asked for");
        }
        assert!(
            !matches!(outcome, Outcome::Hit(_)) || matches!(verb, Verb::Get(_)),
            "only reads hit: {outcome:?} of {verb:?}"
        );
        (outcome, item)
    }

    /// Applies operations in one batch.
    pub fn apply_batch(&mut self, ops: &[(&[u8], Verb<'_>)]) -> Vec<(Outcome, Option<Item>)> {
        let seed = self.index.seed();
        let hashed = ops.iter().map(|(key, verb)| Op { key: Key::new(key, seed), verb: *verb });
        let hashed: Vec<_> = hashed.collect();
        let mut outcomes = vec![Outcome::Unknown; ops.len()];
        let mut sink = Recorder::default();
        self.worker.apply_batch(&hashed, &self.now, &mut sink, &mut outcomes);
        let mut shown = sink.seen.into_iter().peekable();
        let answers = outcomes.into_iter().enumerate().map(|(position, outcome)| {
            let item = shown.next_if(|(at, _)| *at == position).map(|(_, item)| item);
            assert_eq!(item.is_some(), matches!(outcome, Outcome::Hit(_)), "{outcome:?}");
            (outcome, item.map(|item| item.expect("a hit shows an item")))
        });
        let answers = answers.collect();
        assert!(shown.next().is_none(), "items are shown in order, under their positions");
        answers
    }

    /// Stores `value` under `mode`, without flags, forever.
    pub fn store(&mut self, mode: StoreMode, key: &[u8], value: &[u8]) -> Outcome {
        self.apply(key, Verb::Store(Store::new(mode, value, 0, 0))).0
    }

    /// Stores `value`; it must not fail.
    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        let outcome = self.store(StoreMode::Set, key, value);
        assert_eq!(outcome, stored(value.len()), "set {}", String::from_utf8_lossy(key));
    }

    /// Reads `key` with a plain get.
    pub fn get(&mut self, key: &[u8]) -> Option<Item> {
        self.get_batch(&[key]).pop().expect("one answer")
    }

    /// The value of a plain get.
    pub fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.get(key).map(|item| item.value)
    }

    /// Plain gets in one batch.
    pub fn get_batch(&mut self, keys: &[&[u8]]) -> Vec<Option<Item>> {
        let (answered, items) = self.get_some(keys, None);
        assert_eq!(answered, keys.len(), "nothing broke the batch");
        items
    }

    /// Plain gets until the sink has `room` answers.
    pub fn get_some(&mut self, keys: &[&[u8]], room: Option<usize>) -> (usize, Vec<Option<Item>>) {
        let hashed: Vec<_> = keys.iter().map(|key| Key::new(key, self.index.seed())).collect();
        let mut sink = Recorder { room, ..Recorder::default() };
        let answered = self.worker.get_batch(&hashed, &self.now, &mut sink);
        assert_eq!(answered, sink.seen.len(), "the count is that of the answers");
        if let Some(room) = room {
            assert_eq!(answered, room.min(keys.len()), "a break ends the batch at once");
        }
        let mut items = Vec::with_capacity(answered);
        for (turn, (position, item)) in sink.seen.into_iter().enumerate() {
            assert_eq!(turn, position, "answers come in order");
            if let Some(item) = &item {
                assert_eq!(item.key, keys[position], "the item has the key that was asked for");
            }
            items.push(item);
        }
        (answered, items)
    }

    /// A get that asks for the CAS id.
    pub fn gets(&mut self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        let (_, item) = self.apply(key, Verb::Get(Get { wants_cas: true, ..Get::default() }));
        item.map(|item| (item.value, item.cas.expect("gets gives the item an id")))
    }

    /// Applies `incr`, or `decr` for a negative `delta`.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Outcome {
        let arithmetic = Arithmetic {
            delta: delta.unsigned_abs(),
            is_decrement: delta < 0,
            ..Arithmetic::default()
        };
        self.apply(key, Verb::Arithmetic(arithmetic)).0
    }

    /// Applies `delete` to `key`.
    pub fn delete(&mut self, key: &[u8]) -> Outcome {
        self.apply(key, Verb::Delete(Delete::default())).0
    }

    /// Flushes all items, as `flush_all` does: raises the generation of the session's time.
    pub fn flush(&mut self) {
        self.now.generation = Now::next_generation(self.now.generation);
    }

    /// What a server does once a turn of its loop, with one slice of background work.
    pub fn worker_turn(&mut self) {
        self.worker.quiesce();
        I::maintain(&mut self.worker, &self.now);
    }

    /// Does background work until the dead are swept and `items` are left, within a bound.
    pub fn sweep_to(&mut self, items: u64) {
        const MAX_STEPS: usize = 1_000_000;
        for _ in 0..MAX_STEPS {
            if self.index.statistics().items == items {
                return;
            }
            self.worker_turn();
        }
        panic!("{} items instead of {items} are left", self.index.statistics().items);
    }

    /// Does background work until none is left, within a bound.
    pub fn settle(&mut self) {
        const MAX_STEPS: usize = 1_000_000;
        for _ in 0..MAX_STEPS {
            self.worker.quiesce();
            if !I::maintain(&mut self.worker, &self.now) {
                return;
            }
        }
        panic!("background work does not end");
    }
}

/// The outcome of a store that leaves a value of this length and was not asked for a CAS id.
pub fn stored(value_bytes: usize) -> Outcome {
    Outcome::Stored(Written { cas: None, value_bytes })
}

/// The number in an outcome.
pub fn number(outcome: Outcome) -> Option<u64> {
    match outcome {
        Outcome::Number(counted) => Some(counted.number),
        _ => None,
    }
}

/// A seed whose hashes keep only the bits of `mask`: collisions wherever an engine looks.
pub fn weak_seed(mask: u64) -> HashSeed {
    HashSeed::new(7).weakened(mask)
}

/// A small generator for test data (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// Draws the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        split_mix64(&mut self.0)
    }

    /// Draws a random number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }
}
