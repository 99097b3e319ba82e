//! Loads a target with its threads and runs rounds of requests.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amalgam_index::{Configuration, Statistics};
use amalgam_op::HashSeed;

use crate::driver::config::{Limit, RunConfig};
use crate::driver::requests::{KeyBuffer, Position, Round, Tally, run_thread};
use crate::driver::watch::{Watch, watch};
use crate::measure::{Timing, allowed_cores, pin_to};
use crate::target::{ReadSink, Target, TargetWorker};
use crate::workload::{KeySpace, Stream};

/// The result of a round.
#[derive(Default)]
pub struct Report {
    /// The counts, summed over threads.
    pub tally: Tally,
    /// The sum of the threads' rates, in operations per second.
    pub operations_per_second: f64,
    /// The timing of all threads.
    pub timing: Option<Timing>,
    /// Throughput over time.
    pub watch: Watch,
    /// Whether all threads could be pinned.
    pub is_pinned: bool,
}

/// The driver's interface to any target. There is one virtual call per round.
pub trait Runner: Send + Sync {
    /// Writes the keys with ids below `keys` from `threads` threads. Returns how many of them
    /// were stored.
    fn load(&self, keys: u64, key_space: KeySpace, value_bytes: usize, threads: usize) -> u64;

    /// Reads the same keys once: an item's first read marks it as used, which no later one does.
    fn read_once(&self, keys: u64, key_space: KeySpace, value_bytes: usize, threads: usize);

    /// Runs a round that starts at `positions`, and advances them.
    fn run(&self, config: &RunConfig<'_>, positions: &mut [Position]) -> Report;

    /// See [`Target::statistics`].
    fn statistics(&self) -> Statistics;
}

/// A target that is open.
pub struct EngineUnderTest<S> {
    target: S,
    seed: HashSeed,
}

impl<S: Target> EngineUnderTest<S> {
    /// Builds an empty target.
    ///
    /// # Errors
    ///
    /// As [`Target::open`].
    pub fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        Ok(Self::new(S::open(configuration)?, configuration))
    }

    /// A runner of a target that was built from `configuration`.
    pub fn new(target: S, configuration: &Configuration) -> Self {
        let seed = target.seed(configuration);
        Self { target, seed }
    }

    fn beside_maintenance<R>(&self, threads: usize, work: impl FnOnce() -> R) -> R {
        let (maintain, wake) = (|stop: &_| self.target.maintain(stop), || self.target.wake());
        beside_maintenance(threads, maintain, wake, work)
    }
}

/// Runs `work` concurrently with `maintain`, which ends soon after its flag is set and `wake` is
/// called. Maintenance takes the core after those of the `threads` workers, if there is one.
pub fn beside_maintenance<R>(
    threads: usize,
    maintain: impl FnOnce(&AtomicBool) + Send,
    wake: impl Fn(),
    work: impl FnOnce() -> R,
) -> R {
    let stop = AtomicBool::new(false);
    let cores = allowed_cores();
    std::thread::scope(|scope| {
        let _ender = Ender(&stop, wake);
        let stop = &stop;
        scope.spawn(move || {
            if cores.len() > threads {
                pin_to(&cores, threads);
            }
            maintain(stop);
        });
        work()
    })
}

/// Ends the background thread on drop, also when a worker panics.
struct Ender<'e, W: Fn()>(&'e AtomicBool, W);

impl<W: Fn()> Drop for Ender<'_, W> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        (self.1)();
    }
}

impl<S: Target> Runner for EngineUnderTest<S> {
    fn load(&self, keys: u64, key_space: KeySpace, value_bytes: usize, threads: usize) -> u64 {
        let cores = allowed_cores();
        let load_share = |thread: usize| {
            pin_to(&cores, thread);
            let mut worker = self.target.worker();
            let mut buffer = KeyBuffer::with_slots(key_space, 1);
            let mut value = vec![0x5a; value_bytes];
            let front = value_bytes.min(4);
            let mut stored = 0;
            for id in (thread as u64..keys).step_by(threads) {
                let id = id as u32;
                buffer.fill(0, id);
                value[..front].copy_from_slice(&id.to_le_bytes()[..front]);
                stored += u64::from(worker.set(buffer.key(0, &self.seed), &value));
                if id.is_multiple_of(64) {
                    worker.quiesce();
                }
            }
            worker.quiesce();
            stored
        };
        self.beside_maintenance(threads, || {
            std::thread::scope(|scope| {
                let spawn = |thread| scope.spawn(move || load_share(thread));
                let threads: Vec<_> = (0..threads).map(spawn).collect();
                threads.into_iter().map(|thread| joined(thread.join())).sum()
            })
        })
    }

    fn read_once(&self, keys: u64, key_space: KeySpace, value_bytes: usize, threads: usize) {
        const AT_ONCE: usize = 64;
        let read_share = |thread: u64| {
            let mut worker = self.target.worker();
            let mut buffer = KeyBuffer::with_slots(key_space, AT_ONCE);
            let mut sink = ReadSink::new(value_bytes);
            let mut ids = (thread..keys).step_by(threads).peekable();
            while ids.peek().is_some() {
                let mut count = 0;
                for id in ids.by_ref().take(AT_ONCE) {
                    buffer.fill(count, id as u32);
                    count += 1;
                }
                buffer.with_keys(count, &self.seed, |keys| worker.get_batch(keys, &mut sink));
                worker.quiesce();
            }
            sink.finish();
        };
        std::thread::scope(|scope| {
            let read_share = &read_share;
            (0..threads as u64).for_each(|thread| drop(scope.spawn(move || read_share(thread))));
        });
    }

    fn run(&self, config: &RunConfig<'_>, positions: &mut [Position]) -> Report {
        self.beside_maintenance(positions.len(), || self.run_workers(config, positions))
    }

    fn statistics(&self) -> Statistics {
        self.target.statistics()
    }
}

impl<S: Target> EngineUnderTest<S> {
    fn run_workers(&self, config: &RunConfig<'_>, positions: &mut [Position]) -> Report {
        let stop = AtomicBool::new(false);
        let is_shifted = AtomicBool::new(false);
        let progress: Vec<_> = positions.iter().map(Position::progress).collect();
        let most_operations = match config.limit {
            Limit::Time(_) => u64::MAX,
            Limit::Operations(operations) => operations,
        };
        let round = Round {
            loaded: config.loaded,
            key_space: config.key_space,
            value_bytes: config.value_bytes,
            batch: config.batch,
            reads_latest: config.reads_latest,
            fills_misses: config.fills_misses,
            most_operations,
            stop: &stop,
            is_shifted: &is_shifted,
            progress: &progress,
            seed: &self.seed,
        };
        let cores = allowed_cores();
        let barrier = Barrier::new(positions.len() + 1);
        let run_one = |thread: usize, stream: &Stream, position: &mut Position| {
            let is_pinned = pin_to(&cores, thread);
            let mut worker = self.target.worker();
            let mut timing = config.is_timed.then(Timing::default);
            barrier.wait();
            let started = Instant::now();
            let tally = run_thread(&mut worker, &round, thread, stream, position, timing.as_mut());
            Done { tally, seconds: started.elapsed().as_secs_f64(), timing, is_pinned }
        };
        let mut report = Report { is_pinned: true, ..Report::default() };
        std::thread::scope(|scope| {
            let run_one = &run_one;
            let spawn = |(thread, (stream, position))| {
                scope.spawn(move || run_one(thread, stream, position))
            };
            let streams = config.streams.iter().zip(positions.iter_mut());
            let threads: Vec<_> = streams.enumerate().map(spawn).collect();
            let _stopper = Stopper(&stop);
            barrier.wait();
            let is_done = || threads.iter().all(|thread| thread.is_finished());
            report.watch = watch(&self.target, config, &progress, &is_shifted, is_done);
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                report.add(joined(thread.join()));
            }
        });
        report
    }
}

/// Ends the workers on drop, also when the watching thread panics.
struct Stopper<'s>(&'s AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The result of one thread.
struct Done {
    tally: Tally,
    seconds: f64,
    timing: Option<Timing>,
    is_pinned: bool,
}

impl Report {
    fn add(&mut self, done: Done) {
        self.tally.operations += done.tally.operations;
        self.tally.reads += done.tally.reads;
        self.tally.hits += done.tally.hits;
        self.tally.refused += done.tally.refused;
        if done.seconds > 0.0 {
            self.operations_per_second += done.tally.operations as f64 / done.seconds;
        }
        self.is_pinned &= done.is_pinned;
        match (&mut self.timing, done.timing) {
            (Some(all), Some(timing)) => all.merge(&timing),
            (all, Some(timing)) => *all = Some(timing),
            (_, None) => {}
        }
    }
}

/// Joins a thread and returns its result; resumes its panic in the caller.
pub fn joined<T>(result: std::thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
