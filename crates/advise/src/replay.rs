//! Replays a trace on an engine.

use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use amalgam_index::{
    Configuration, Engine, Found, Sink, Statistics, Worker, for_each_engine, maintenance,
};
use amalgam_op::{Delete, HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use crate::trace::{Request, RequestKind, Requests, Trace};
use amalgam_bench::driver::{beside_maintenance, joined};
use amalgam_bench::measure::{Timing, allowed_cores, pin_to};
use amalgam_bench::target::{ReadSink, ReadSinkOfWrites};

/// An engine's name, and the function that opens it.
pub type Entry = (&'static str, fn(&Configuration) -> anyhow::Result<Box<dyn Replay>>);

macro_rules! entries {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        &[$((<$engine as amalgam_index::Store>::NAME, open::<$engine>)),+]
    };
}

/// The engines that can be recommended.
pub const ENGINES: &[Entry] = for_each_engine!(entries);

fn open<I: Engine>(configuration: &Configuration) -> anyhow::Result<Box<dyn Replay>> {
    Ok(Box::new(Replayed { index: I::open(configuration)?, positions: Vec::new() }))
}

/// Batches between two checks of the stop flag.
const TURN: usize = 16;

/// The time at which a replay begins, in seconds: engines have no time before 1.
const FIRST_SECOND: u32 = 1;

/// The time at which a replay starts over at [`FIRST_SECOND`], after sixty years of trace.
const LAST_SECOND: u32 = 1 << 31;

/// What a round replays, and how.
pub struct Plan<'o> {
    /// One trace for each thread.
    pub dealt: &'o [Trace],
    /// Requests in a batch.
    pub batch: usize,
    /// Seconds of the trace's time after which it starts over.
    pub period_seconds: u32,
    /// Length of the longest value, in bytes.
    pub largest_value_bytes: usize,
}

/// The condition that ends a round.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The round ends when every thread has reached the end of its trace.
    OnePass,
    /// The round ends after this duration.
    Time(Duration),
    /// The round ends when each thread has sent this number of requests.
    Requests(u64),
}

/// The result of a round, summed over threads.
#[derive(Default)]
pub struct Round {
    /// Throughput in requests a second.
    pub requests_per_second: f64,
    /// The number of reads.
    pub reads: u64,
    /// The number of reads that hit.
    pub hits: u64,
    /// The number of stores.
    pub stores: u64,
    /// The number of stores that were refused for lack of memory.
    pub refused: u64,
    /// The times of batches; None unless the round was to be timed.
    pub timing: Option<Timing>,
}

/// An open engine of any type. The virtual call happens once a round.
pub trait Replay {
    /// Replays the trace from where the last round ended.
    fn run(&mut self, plan: &Plan<'_>, limit: Limit, is_timed: bool) -> Round;

    /// The engine's own statistics.
    fn statistics(&self) -> Statistics;
}

/// An engine, and each thread's position in its trace.
struct Replayed<I> {
    index: I,
    positions: Vec<Position>,
}

#[derive(Clone, Copy, Default)]
struct Position {
    /// The requests of the present pass that are done.
    done: u64,
    passes: u32,
}

impl<I: Engine> Replay for Replayed<I> {
    fn run(&mut self, plan: &Plan<'_>, limit: Limit, is_timed: bool) -> Round {
        let Self { index, positions } = self;
        let index = &*index;
        positions.resize(plan.dealt.len(), Position::default());
        let shared = Shared {
            plan,
            limit,
            is_timed,
            stop: AtomicBool::new(false),
            second: AtomicU32::new(FIRST_SECOND),
            barrier: Barrier::new(plan.dealt.len() + 1),
        };
        let shared = &shared;
        let now = || Now::at(shared.second.load(Ordering::Relaxed));
        let threads = plan.dealt.len();
        let maintain = |stop: &AtomicBool| maintenance::run(index, now, stop);
        let wake = || index.maintenance_signal().raise();
        beside_maintenance(threads, maintain, wake, || {
            std::thread::scope(|scope| {
                let spawn = |(number, (trace, position))| {
                    scope.spawn(move || Player::new(index, shared, trace, position).play(number))
                };
                let each = plan.dealt.iter().zip(positions.iter_mut()).enumerate();
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

/// The state that the threads of a round share.
struct Shared<'o> {
    plan: &'o Plan<'o>,
    limit: Limit,
    is_timed: bool,
    stop: AtomicBool,
    /// The latest second that any thread has reached.
    second: AtomicU32,
    barrier: Barrier,
}

/// A thread that replays its trace.
struct Player<'t, I: Engine + 't> {
    worker: I::Worker<'t>,
    seed: &'t HashSeed,
    shared: &'t Shared<'t>,
    trace: &'t Trace,
    position: &'t mut Position,
    requests: Requests<'t>,
    now: Now,
    sink: MissSink,
    keys: Vec<Key<'t>>,
    /// The reads of a batch, in the order of `keys`.
    reads: Vec<Request<'t>>,
    /// The other requests of the batch.
    writes: Vec<Request<'t>>,
    value: Vec<u8>,
    round: Round,
}

impl<'t, I: Engine> Player<'t, I> {
    fn new(
        index: &'t I,
        shared: &'t Shared<'t>,
        trace: &'t Trace,
        position: &'t mut Position,
    ) -> Self {
        let mut requests = trace.iter();
        if position.done > 0 {
            requests.nth(position.done as usize - 1);
        }
        let longest = shared.plan.largest_value_bytes;
        Self {
            worker: index.worker(),
            seed: index.seed(),
            shared,
            trace,
            position,
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

    /// The time of the next request, which goes on growing when the trace starts over.
    fn time(&mut self) -> Now {
        if self.position.done == self.trace.requests() {
            self.requests = self.trace.iter();
            *self.position = Position { done: 0, passes: self.position.passes.wrapping_add(1) };
        }
        let next = self.requests.clone().next().map_or(0, |request| request.second);
        let begin = u64::from(self.position.passes) * u64::from(self.shared.plan.period_seconds);
        let second = (begin + u64::from(next)) % u64::from(LAST_SECOND - FIRST_SECOND);
        let second = second as u32 + FIRST_SECOND;
        if second != self.now.seconds {
            self.shared.second.fetch_max(second, Ordering::Relaxed);
        }
        Now::at(second)
    }

    /// Executes the reads of a batch in one call, then its writes, as if they came from different
    /// connections. Returns the number of requests.
    fn batch(&mut self) -> u64 {
        self.keys.clear();
        self.reads.clear();
        self.writes.clear();
        for request in self.requests.by_ref().take(self.shared.plan.batch) {
            let key = Key::new(request.key, self.seed);
            match request.kind {
                RequestKind::Read { .. } => {
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
        // A client that misses stores the item.
        while let Some(position) = self.sink.misses.pop() {
            let request = self.reads[position];
            if request.kind == (RequestKind::Read { fills: true }) {
                self.write(&request);
            }
        }
        let count = (self.reads.len() + self.writes.len()) as u64;
        self.round.reads += self.reads.len() as u64;
        self.position.done += count;
        count
    }

    fn write(&mut self, request: &Request<'t>) {
        let key = Key::new(request.key, self.seed);
        let verb = if request.kind == RequestKind::Delete {
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

/// Counts the reads that hit, and notes those that miss.
struct MissSink {
    reads: ReadSink,
    /// The positions in the batch of the reads that missed.
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
