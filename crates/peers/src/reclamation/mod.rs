//! `amalgam-peers reclamation`: our reclamation, by quiescent states of workers, and
//! crossbeam-epoch's, at the same job: readers walk a small set of items while writers replace
//! items and retire those before.
//!
//! Invariants of this module:
//! 1. All schemes carry out the same pre-generated requests, in turns, each thread on a core.
//! 2. Every read compares the item's key: a scheme that frees too early ends the measurement.
//! 3. What waits to be freed is counted in rounds of its own, whose rates do not count.

mod result;
mod schemes;

use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_bench::Usage;
use amalgam_bench::driver::joined;
use amalgam_bench::measure::{allowed_cores, pin_to};
use amalgam_op::split_mix64;
use anyhow::{Context, bail, ensure};

use result::{Parameters, Rates, ReclamationResult};
use schemes::{Crossbeam, KEY_BYTES, Ours, Scheme, SchemeThread, Unguarded};

/// Compares our memory reclamation with crossbeam-epoch's.
#[derive(Clone, Debug, clap::Args)]
pub struct ReclamationArguments {
    /// Lengths of an item in bytes, with commas.
    #[arg(long, value_delimiter = ',', default_value = "16,100")]
    pub item_bytes: Vec<usize>,
    /// Threads, pinned to a core each; several counts with commas.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    pub threads: Vec<usize>,
    /// Items in the set.
    #[arg(long, default_value_t = 1024)]
    pub items: usize,
    /// Seconds of a round.
    #[arg(long, default_value_t = 0.3)]
    pub seconds: f64,
    /// Rounds of each scheme.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    /// As results name it.
    name: &'static str,
    /// Reads under one guard; 0 for no readers.
    batch: usize,
    /// The threads that replace items.
    writers: Writers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    None,
    /// Every second thread replaces items.
    Half,
    All,
}

const LOADS: [Load; 5] = [
    Load { name: "read", batch: 1, writers: Writers::None },
    Load { name: "read 64", batch: BATCH, writers: Writers::None },
    Load { name: "replace", batch: 0, writers: Writers::All },
    Load { name: "read, replace", batch: 1, writers: Writers::Half },
    Load { name: "read 64, replace", batch: BATCH, writers: Writers::Half },
];

/// Reads under one guard where there are several, and operations between two looks at the clock
/// or at what waits, as between two quiescent states of a server's worker.
const BATCH: usize = 64;

/// Requests of a thread, repeated in a circle.
const REQUESTS: usize = 1 << 16;

impl Load {
    fn is_writer(self, thread: usize) -> bool {
        match self.writers {
            Writers::None => false,
            Writers::Half => thread % 2 == 1,
            Writers::All => true,
        }
    }

    fn is_for(self, threads: usize) -> bool {
        self.writers != Writers::Half || threads > 1
    }

    /// Whether nobody reads or replaces what somebody else replaces.
    fn needs_no_guard(self, threads: usize) -> bool {
        self.writers == Writers::None || threads == 1
    }
}

/// Measures, and prints a table or a line of JSON for each result.
///
/// # Errors
///
/// If an argument makes no sense, memory runs out, or a scheme freed what was still read.
pub fn run(arguments: &ReclamationArguments) -> anyhow::Result<()> {
    arguments.check().usage()?;
    let mut output = std::io::stdout().lock();
    if !arguments.json {
        writeln!(output, "{}", ReclamationResult::HEAD)?;
    }
    for &item_bytes in &arguments.item_bytes {
        for &threads in &arguments.threads {
            for load in LOADS.into_iter().filter(|load| load.is_for(threads)) {
                for result in results(arguments, item_bytes, threads, load)? {
                    let line =
                        if arguments.json { serde_json::to_string(&result)? } else { result.row() };
                    writeln!(output, "{line}")?;
                }
            }
        }
    }
    Ok(())
}

impl ReclamationArguments {
    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=1 << 20).contains(&self.items), "--items must be 1 to 1048576");
        ensure!((0.001..=3600.0).contains(&self.seconds), "--seconds must be 0.001 to 3600");
        ensure!((1..=1000).contains(&self.rounds), "--rounds must be 1 to 1000");
        ensure!(self.threads.iter().all(|n| (1..=256).contains(n)), "--threads must be 1 to 256");
        Ok(())
    }
}

fn results(
    arguments: &ReclamationArguments,
    item_bytes: usize,
    threads: usize,
    load: Load,
) -> anyhow::Result<Vec<ReclamationResult>> {
    match item_bytes {
        8 => of_length::<8>(arguments, threads, load),
        16 => of_length::<16>(arguments, threads, load),
        32 => of_length::<32>(arguments, threads, load),
        64 => of_length::<64>(arguments, threads, load),
        100 => of_length::<100>(arguments, threads, load),
        256 => of_length::<256>(arguments, threads, load),
        1024 => of_length::<1024>(arguments, threads, load),
        _ => bail!("--item-bytes must be of 8, 16, 32, 64, 100, 256, 1024: {item_bytes} is not"),
    }
}

/// One load on all schemes that can bear it, in turns.
fn of_length<const N: usize>(
    arguments: &ReclamationArguments,
    threads: usize,
    load: Load,
) -> anyhow::Result<Vec<ReclamationResult>> {
    const { assert!(N >= KEY_BYTES) };
    let job = Job::new(arguments, threads, load);
    let (mut ours, mut other, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        ours.push(job.round::<N, Ours>(false)?);
        other.push(job.round::<N, Crossbeam<N>>(false)?);
        if load.needs_no_guard(threads) {
            floor.push(job.round::<N, Unguarded<N>>(false)?);
        }
    }
    let parameters = Parameters {
        load: load.name,
        item_bytes: N,
        threads,
        items: arguments.items,
        batch: load.batch.max(1),
        seconds: arguments.seconds,
        rounds: arguments.rounds,
    };
    let result = |name, rates: &[Rates], waiting| {
        ReclamationResult::new(name, &parameters, rates, &other, waiting)
    };
    let (ours_waiting, other_waiting) =
        (job.round::<N, Ours>(true)?.waiting, job.round::<N, Crossbeam<N>>(true)?.waiting);
    let mut results = vec![
        result(<Ours as Scheme<N>>::NAME, &ours, ours_waiting)?,
        result(<Crossbeam<N> as Scheme<N>>::NAME, &other, other_waiting)?,
    ];
    if !floor.is_empty() {
        results.push(result(<Unguarded<N> as Scheme<N>>::NAME, &floor, 0)?);
    }
    Ok(results)
}

/// What each scheme is asked to do.
struct Job {
    load: Load,
    items: usize,
    time: Duration,
    /// Places, by thread.
    requests: Vec<Vec<u32>>,
}

impl Job {
    fn new(arguments: &ReclamationArguments, threads: usize, load: Load) -> Self {
        let items = arguments.items as u64;
        let places = |thread: u64| {
            // Any spread over the places will do, the same for all schemes.
            let mut state = thread << 32;
            let next = |_| ((u128::from(split_mix64(&mut state)) * u128::from(items)) >> 64) as u32;
            (0..REQUESTS).map(next).collect()
        };
        Self {
            load,
            items: arguments.items,
            time: Duration::from_secs_f64(arguments.seconds),
            requests: (0..threads as u64).map(places).collect(),
        }
    }

    /// A round on a fresh set of items.
    fn round<const N: usize, S: Scheme<N>>(&self, counts: bool) -> anyhow::Result<Rates> {
        let scheme = S::open(self.items, self.requests.len(), counts)?;
        let stop = AtomicBool::new(false);
        let barrier = Barrier::new(self.requests.len() + 1);
        let cores = allowed_cores();
        let work = |thread: usize| {
            pin_to(&cores, thread);
            let mut worker = scheme.thread();
            barrier.wait();
            let waiting = || if counts { scheme.waiting() } else { 0 };
            self.work::<S::Thread<'_>>(&mut worker, thread, &stop, waiting)
        };
        let done: Vec<anyhow::Result<Done>> = std::thread::scope(|scope| {
            let work = &work;
            let spawn = |thread| scope.spawn(move || work(thread));
            let threads: Vec<_> = (0..self.requests.len()).map(spawn).collect();
            barrier.wait();
            std::thread::sleep(self.time);
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| joined(thread.join())).collect()
        });
        let mut rates = Rates::default();
        for (thread, done) in done.into_iter().enumerate() {
            let done = done.with_context(|| format!("{}, {}", S::NAME, self.load.name))?;
            ensure!(
                done.wrong == 0,
                "{} gave memory away that was still read: {} reads found another item",
                S::NAME,
                done.wrong
            );
            let rate = done.operations as f64 / done.seconds;
            if self.load.is_writer(thread) {
                rates.replaces_per_second += rate;
            } else {
                rates.reads_per_second += rate;
            }
            rates.waiting = rates.waiting.max(done.waiting);
        }
        Ok(rates)
    }

    /// A thread's part of a round.
    fn work<T: SchemeThread>(
        &self,
        worker: &mut T,
        thread: usize,
        stop: &AtomicBool,
        waiting: impl Fn() -> u64,
    ) -> anyhow::Result<Done> {
        let is_writer = self.load.is_writer(thread);
        let started = Instant::now();
        let mut done = Done::default();
        for group in self.requests[thread].chunks_exact(BATCH).cycle() {
            if is_writer {
                for place in group {
                    worker.replace(*place)?;
                }
                done.waiting = done.waiting.max(waiting());
            } else {
                for places in group.chunks(self.load.batch) {
                    done.wrong += worker.read(places);
                }
            }
            done.operations += BATCH as u64;
            worker.quiesce();
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        done.seconds = started.elapsed().as_secs_f64();
        Ok(done)
    }
}

/// What one thread hands back.
#[derive(Default)]
struct Done {
    operations: u64,
    seconds: f64,
    wrong: u64,
    /// The most items that waited, as far as this thread saw.
    waiting: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> ReclamationArguments {
        ReclamationArguments {
            item_bytes: vec![16],
            threads: vec![2],
            items: 8,
            seconds: 0.02,
            rounds: 2,
            json: true,
        }
    }

    #[test]
    fn every_load_has_a_result_of_each_scheme_that_can_bear_it() {
        for threads in [1, 2] {
            for load in LOADS.into_iter().filter(|load| load.is_for(threads)) {
                let results = results(&arguments(), 16, threads, load).expect("it can be measured");
                assert_eq!(results.len(), if load.needs_no_guard(threads) { 3 } else { 2 });
                for result in results {
                    let line = serde_json::to_value(&result).expect("JSON");
                    let has = |field: &str| line[field].as_f64().is_some_and(|rate| rate > 0.0);
                    assert_eq!(has("reads_per_second"), load.batch > 0, "{line}");
                    assert_eq!(has("replaces_per_second"), load.writers != Writers::None);
                    let waits = load.writers != Writers::None && line["scheme"] != "unguarded";
                    assert_eq!(line["most_waiting_items"].as_u64() > Some(0), waits, "{line}");
                    assert_eq!(result.row().matches("M/s").count(), 0);
                }
            }
        }
    }

    #[test]
    fn what_waits_is_what_was_retired_until_it_is_freed() {
        fn check<S: Scheme<16>>() {
            let scheme = S::open(4, 2, true).expect("memory");
            let reader = scheme.thread();
            let mut writer = scheme.thread();
            assert_eq!(scheme.waiting(), 0);
            for place in [0, 1, 2, 3, 3] {
                writer.replace(place).expect("memory");
            }
            assert_eq!(scheme.waiting(), 5, "{}", S::NAME);
            for _ in 0..100_000 {
                writer.replace(1).expect("memory");
                writer.quiesce();
            }
            assert!(scheme.waiting() < 10_000, "{}: {}", S::NAME, scheme.waiting());
            assert_eq!(writer.read(&[0, 1, 2, 3]), 0);
            drop(reader);
        }
        check::<Ours>();
        check::<Crossbeam<16>>();
    }

    /// Reads the item at place 0 as if it were that of place 1.
    #[test]
    fn an_item_of_another_place_is_noticed() {
        fn check<S: Scheme<16>>(confuse: impl Fn(&S)) {
            let scheme = S::open(2, 1, false).expect("memory");
            confuse(&scheme);
            assert_eq!(scheme.thread().read(&[0, 1]), 2, "{}", S::NAME);
        }
        check::<Ours>(Ours::confuse);
        check::<Crossbeam<16>>(Crossbeam::confuse);
        check::<Unguarded<16>>(Unguarded::confuse);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut ReclamationArguments)| {
            let mut arguments = arguments();
            change(&mut arguments);
            run(&arguments).expect_err("refused").to_string()
        };
        assert!(refused(|a| a.item_bytes = vec![17]).contains("17"));
        assert!(refused(|a| a.threads = vec![0]).contains("--threads"));
        assert!(refused(|a| a.items = 0).contains("--items"));
        assert!(refused(|a| a.seconds = f64::NAN).contains("--seconds"));
        assert!(refused(|a| a.rounds = 0).contains("--rounds"));
    }
}
