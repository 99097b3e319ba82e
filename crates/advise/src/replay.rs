//! An engine that is asked what a trace asks.

use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use amalgam_index::model::Model;
use amalgam_index::{
    Configuration, Engine, Found, Sink, Statistics, Worker, for_each_engine, maintenance,
};
use amalgam_op::{Delete, HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use crate::trace::{Deed, Request, Requests, Trace};
use amalgam_bench::driver::{beside_maintenance, joined};
use amalgam_bench::measure::{Timing, allowed_cores, pin_to};
use amalgam_bench::target::{ReadSink, ReadSinkOfWrites};

/// An engine's name, and what opens it.
pub type Entry = (&'static str, fn(&Configuration) -> anyhow::Result<Box<dyn Replay>>);

macro_rules! entries {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        &[$((<$engine as amalgam_index::Store>::NAME, open::<$engine>)),+]
    };
}

/// The engines, the oracle included.
const ENGINES: &[Entry] = for_each_engine!(entries);

/// The engines that can be advised: all but the oracle.
pub fn candidates() -> impl Iterator<Item = &'static Entry> {
    ENGINES.iter().filter(|(name, _)| *name != <Model as amalgam_index::Store>::NAME)
}

fn open<I: Engine>(configuration: &Configuration) -> anyhow::Result<Box<dyn Replay>> {
    Ok(Box::new(Replayed { index: I::open(configuration)?, places: Vec::new() }))
}

/// Batches between two looks at the stop flag.
const TURN: usize = 16;

/// Time begins here: engines know no time before 1.
const FIRST_SECOND: u32 = 1;

/// Time begins again here, after sixty years of trace.
const LAST_SECOND: u32 = 1 << 31;

/// What a round asks for.
pub struct Orders<'o> {
    /// A trace for each thread.
    pub dealt: &'o [Trace],
    /// Requests at once.
    pub batch: usize,
    /// Seconds after which the trace begins again.
    pub period_seconds: u32,
    /// Length of the longest value in bytes.
    pub largest_value_bytes: usize,
}

/// When a round ends.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// When every thread has come to the end of its trace.
    OnePass,
    /// After this time.
    Time(Duration),
    /// After so many requests of each thread.
    Requests(u64),
}

/// What a round gave, summed over threads.
#[derive(Default)]
pub struct Round {
    /// Requests a second.
    pub requests_per_second: f64,
    /// Reads.
    pub reads: u64,
    /// Reads that hit.
    pub hits: u64,
    /// Stores.
    pub stores: u64,
    /// Stores that found no memory.
    pub refused: u64,
    /// Of each batch, where it was asked for.
    pub timing: Option<Timing>,
}

/// An open engine, whichever it is. One virtual call a round.
pub trait Replay {
    /// Asks what the trace asks, from where the last round ended.
    fn run(&mut self, orders: &Orders<'_>, limit: Limit, is_timed: bool) -> Round;

    /// What the engine tells of itself.
    fn statistics(&self) -> Statistics;
}

/// An engine, and where each thread stands in its trace.
struct Replayed<I> {
    index: I,
    places: Vec<Place>,
}

#[derive(Clone, Copy, Default)]
struct Place {
    /// Requests of the pass that are done.
    done: u64,
    passes: u32,
}

impl<I: Engine> Replay for Replayed<I> {
    fn run(&mut self, orders: &Orders<'_>, limit: Limit, is_timed: bool) -> Round {
        let Self { index, places } = self;
        let index = &*index;
        places.resize(orders.dealt.len(), Place::default());
        let shared = Shared {
            orders,
            limit,
            is_timed,
            stop: AtomicBool::new(false),
            second: AtomicU32::new(FIRST_SECOND),
            barrier: Barrier::new(orders.dealt.len() + 1),
        };
        let shared = &shared;
        let now = || Now::at(shared.second.load(Ordering::Relaxed));
        let threads = orders.dealt.len();
        let maintain = |stop: &AtomicBool| maintenance::run(index, now, stop);
        let wake = || index.maintenance_signal().raise();
        beside_maintenance(threads, maintain, wake, || {
            std::thread::scope(|scope| {
                let spawn = |(number, (trace, place))| {
                    scope.spawn(move || Player::new(index, shared, trace, place).play(number))
                };
                let each = orders.dealt.iter().zip(places.iter_mut()).enumerate();
                let threads: Vec<_> = each.map(spawn).collect();
                shared.barrier.wait();
                if let Limit::Time(time) = limit {
                    std::thread::sleep(time);
                    shared.stop.store(true, Ordering::Relaxed);
                }
                let rounds = threads.into_iter().map(|thread| joined(thread.join()));
                rounds.fold(Round::default(), Round::and)
            })
        })
    }

    fn statistics(&self) -> Statistics {
        self.index.statistics()
    }
}

impl Round {
    fn and(mut self, other: Self) -> Self {
        self.requests_per_second += other.requests_per_second;
        self.reads += other.reads;
        self.hits += other.hits;
        self.stores += other.stores;
        self.refused += other.refused;
        match (&mut self.timing, other.timing) {
            (Some(all), Some(timing)) => all.merge(&timing),
            (all, timing) => *all = all.take().or(timing),
        }
        self
    }
}

/// What the threads of a round share.
struct Shared<'o> {
    orders: &'o Orders<'o>,
    limit: Limit,
    is_timed: bool,
    stop: AtomicBool,
    /// The latest second that a thread has come to.
    second: AtomicU32,
    barrier: Barrier,
}

/// One thread.
struct Player<'t, I: Engine + 't> {
    worker: I::Worker<'t>,
    seed: &'t HashSeed,
    shared: &'t Shared<'t>,
    trace: &'t Trace,
    place: &'t mut Place,
    requests: Requests<'t>,
    now: Now,
    sink: MissSink,
    keys: Vec<Key<'t>>,
    /// The reads of a batch, in the order of `keys`.
    reads: Vec<Request<'t>>,
    /// The rest of it.
    writes: Vec<Request<'t>>,
    value: Vec<u8>,
    round: Round,
}

impl<'t, I: Engine> Player<'t, I> {
    fn new(index: &'t I, shared: &'t Shared<'t>, trace: &'t Trace, place: &'t mut Place) -> Self {
        let mut requests = trace.iter();
        if place.done > 0 {
            requests.nth(place.done as usize - 1);
        }
        let longest = shared.orders.largest_value_bytes;
        Self {
            worker: index.worker(),
            seed: index.seed(),
            shared,
            trace,
            place,
            requests,
            now: Now::at(FIRST_SECOND),
            sink: MissSink { reads: ReadSink::new(longest), misses: Vec::new() },
            keys: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            value: vec![0x5a; longest],
            round: Round::default(),
        }
    }

    fn play(mut self, number: usize) -> Round {
        pin_to(&allowed_cores(), number);
        let mut timing = self.shared.is_timed.then(Timing::default);
        self.shared.barrier.wait();
        let started = Instant::now();
        let mut done = 0;
        while !self.is_over(done) {
            if let Some(timing) = &mut timing {
                timing.start();
            }
            for _ in 0..TURN {
                self.now = self.time();
                let count = self.batch();
                done += count;
                if let Some(timing) = &mut timing
                    && count > 0
                {
                    timing.lap(count);
                }
            }
            self.worker.quiesce();
        }
        self.round.requests_per_second = done as f64 / started.elapsed().as_secs_f64().max(1e-9);
        self.round.hits = self.sink.reads.hits;
        self.sink.reads.finish();
        self.round.timing = timing;
        self.round
    }

    fn is_over(&self, done: u64) -> bool {
        match self.shared.limit {
            Limit::OnePass => done >= self.trace.requests(),
            Limit::Requests(most) => done >= most,
            Limit::Time(_) => self.shared.stop.load(Ordering::Relaxed),
        }
    }

    /// The trace's time, which goes on when the trace begins again.
    fn time(&mut self) -> Now {
        if self.place.done == self.trace.requests() {
            self.requests = self.trace.iter();
            *self.place = Place { done: 0, passes: self.place.passes.wrapping_add(1) };
        }
        let next = self.requests.clone().next().map_or(0, |request| request.second);
        let begin = u64::from(self.place.passes) * u64::from(self.shared.orders.period_seconds);
        let second = (begin + u64::from(next)) % u64::from(LAST_SECOND - FIRST_SECOND);
        let second = second as u32 + FIRST_SECOND;
        if second != self.now.seconds {
            self.shared.second.fetch_max(second, Ordering::Relaxed);
        }
        Now::at(second)
    }

    /// Reads of a batch in one call, then its writes: as if they came from different connections.
    /// Returns how many requests there were.
    fn batch(&mut self) -> u64 {
        self.keys.clear();
        self.reads.clear();
        self.writes.clear();
        for request in self.requests.by_ref().take(self.shared.orders.batch) {
            let key = Key::new(request.key, self.seed);
            match request.deed {
                Deed::Read { .. } => {
                    self.keys.push(key);
                    self.reads.push(request);
                }
                _ => {
                    self.worker.prefetch(&key);
                    self.writes.push(request);
                }
            }
        }
        if !self.keys.is_empty() {
            self.worker.get_batch(&self.keys, &self.now, &mut self.sink);
        }
        for number in 0..self.writes.len() {
            let request = self.writes[number];
            self.write(&request);
        }
        // What a client does that misses.
        while let Some(position) = self.sink.misses.pop() {
            let request = self.reads[position];
            if request.deed == (Deed::Read { fills: true }) {
                self.write(&request);
            }
        }
        let count = (self.reads.len() + self.writes.len()) as u64;
        self.round.reads += self.reads.len() as u64;
        self.place.done += count;
        count
    }

    fn write(&mut self, request: &Request<'t>) {
        let key = Key::new(request.key, self.seed);
        let verb = if request.deed == Deed::Delete {
            Verb::Delete(Delete::default())
        } else {
            let value = &self.value[..request.value_bytes as usize];
            let seconds = i64::from(request.ttl_seconds);
            self.round.stores += 1;
            Verb::Store(Store::new(StoreMode::Set, value, 0, seconds))
        };
        let op = Op { key, verb };
        let outcome = self.worker.apply(&op, &self.now, &mut ReadSinkOfWrites);
        let is_refused = matches!(outcome, Outcome::OutOfMemory | Outcome::TooLarge);
        self.round.refused += u64::from(is_refused);
    }
}

/// Takes what reads find, and notes what they miss.
struct MissSink {
    reads: ReadSink,
    /// Positions in the batch.
    misses: Vec<usize>,
}

impl Sink for MissSink {
    #[inline]
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.reads.hit_value(position, found.item.value);
        ControlFlow::Continue(())
    }

    #[inline]
    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        self.misses.push(position);
        ControlFlow::Continue(())
    }
}
