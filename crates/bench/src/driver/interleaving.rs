//! Runs rounds of the engines in alternation: A B A B ….

use std::time::Duration;

use amalgam_index::Configuration;
use anyhow::{Context, ensure};

use super::engines::{Entry, find};
use crate::driver::arguments::IndexArguments;
use crate::driver::config::{Limit, RunConfig};
use crate::driver::dram;
use crate::driver::requests::Position;
use crate::driver::result::{EngineFailure, IndexLine, IndexResult, Measured, Parameters};
use crate::driver::runner::{Report, Runner};
use crate::measure::{Machine, resident_bytes_of, time_null_loop};
use crate::workload::{KeySpace, Stream, generate};
use crate::{Usage, ensure_usage};

/// The largest share of available memory that the engines may take together to be kept side by
/// side.
pub const LARGEST_SHARE: f64 = 0.7;

/// Measures the engines that `arguments` name, chosen from `engines`, and passes each result to
/// `show` as soon as it is known.
///
/// An engine that cannot be built or has no room for its keys is left out of the rest of the run,
/// and the others go on.
///
/// # Errors
///
/// If an argument is invalid, `show` fails, or an engine failed; the last one only after the
/// results of all others were shown.
pub fn run(
    arguments: &IndexArguments,
    engines: &[Entry],
    show: impl FnMut(&IndexLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    arguments.check().usage()?;
    if arguments.small_pages {
        rustix::thread::disable_transparent_huge_pages(true).context("no huge pages")?;
    }
    let entry = |name: &String| find(engines, name)?.with(arguments.slots, &arguments.disable);
    let entries: Vec<Entry> =
        arguments.engine.iter().map(entry).collect::<anyhow::Result<_>>().usage()?;
    for entry in entries.iter().filter(|entry| entry.is_read_only) {
        let writes = arguments.series().iter().any(|next| next.workload.writes());
        ensure_usage!(!writes, "{} runs workloads that only read", entry.name);
    }
    if let Some(operations) = arguments.count {
        return run_to_count(arguments, &entries, operations);
    }
    let contests = entries.iter().map(|entry| Contest::new(*entry)).collect();
    let mut contests = Contests { contests, show, failures: Vec::new() };
    for (turn, arguments) in arguments.series().iter().enumerate() {
        let plan = Plan::new(arguments, &entries)?;
        let keeps = match turn {
            0 => contests.mount_all(&plan)?,
            _ => contests.go_on(&plan)?,
        };
        contests.measure(&plan, keeps)?;
    }
    let failures = &contests.failures;
    ensure!(failures.is_empty(), "not measured: {}", failures.join("; "));
    Ok(())
}

/// The engines of a run that have not failed.
struct Contests<S> {
    contests: Vec<Contest>,
    show: S,
    /// The error of each engine that failed.
    failures: Vec<String>,
}

impl<S: FnMut(&IndexLine) -> anyhow::Result<()>> Contests<S> {
    /// Calls `step` with each engine. Those for which it fails are shown as failed and removed.
    fn each(
        &mut self,
        plan: &Plan<'_>,
        mut step: impl FnMut(&mut Contest) -> anyhow::Result<Option<IndexResult>>,
    ) -> anyhow::Result<()> {
        let mut index = 0;
        while let Some(contest) = self.contests.get_mut(index) {
            match step(contest) {
                Ok(result) => {
                    index += 1;
                    if let Some(result) = result {
                        (self.show)(&IndexLine::Measured(Box::new(result)))?;
                    }
                }
                Err(error) => {
                    let contest = self.contests.remove(index);
                    self.show_failure(plan, &contest, &error)?;
                }
            }
        }
        Ok(())
    }

    fn show_failure(
        &mut self,
        plan: &Plan<'_>,
        contest: &Contest,
        error: &anyhow::Error,
    ) -> anyhow::Result<()> {
        let failure = format!("{error:#}");
        self.failures.push(failure.clone());
        let parameters = Parameters::new(plan.arguments, plan.keys, contest.is_pinned, false);
        let failed = EngineFailure::new(contest.entry.name, parameters, failure);
        (self.show)(&IndexLine::Failed(Box::new(failed)))
    }

    /// Opens and loads all engines side by side if they fit. Returns whether they are kept from
    /// round to round.
    fn mount_all(&mut self, plan: &Plan<'_>) -> anyhow::Result<bool> {
        let starts_empty = plan.arguments.workload.starts_empty();
        let others = self.contests.len() - 1;
        let mut side_by_side = !starts_empty;
        self.each(plan, |contest| {
            if side_by_side {
                let before = Machine::available_bytes();
                contest.mount(plan)?;
                let taken = before.saturating_sub(Machine::available_bytes()) as f64;
                // The first engine's memory predicts that of all: where they do not fit, each is
                // loaded anew for each round.
                side_by_side =
                    taken * others as f64 <= LARGEST_SHARE * Machine::available_bytes() as f64;
            }
            Ok(None)
        })?;
        if !side_by_side && others > 0 {
            self.contests.iter_mut().for_each(|contest| contest.mounted = None);
        }
        let keeps = side_by_side || (others == 0 && !starts_empty);
        let goes_on = !plan.arguments.then.is_empty();
        ensure_usage!(keeps || !goes_on, "--then needs memory for all engines side by side");
        Ok(keeps)
    }

    /// Prepares the loaded engines for the next workload. Returns true: they are kept.
    fn go_on(&mut self, plan: &Plan<'_>) -> anyhow::Result<bool> {
        self.each(plan, |contest| {
            let before = std::mem::take(&mut contest.measured);
            contest.measured.bytes_per_item = before.bytes_per_item;
            contest.measured.index_bytes_per_item = before.index_bytes_per_item;
            contest.positions.iter_mut().for_each(Position::begin_again);
            let runner = contest.mounted.as_ref().context("it was measured before")?;
            runner.run(&plan.config(plan.warm_up_limit(), false), &mut contest.positions);
            Ok(None)
        })?;
        Ok(true)
    }

    /// Runs all rounds of one workload and its timed passes.
    fn measure(&mut self, plan: &Plan<'_>, keeps: bool) -> anyhow::Result<()> {
        let arguments = plan.arguments;
        for round in 0..arguments.rounds {
            self.each(plan, |contest| {
                contest.round(plan, round)?;
                if !keeps {
                    contest.mounted = None;
                }
                Ok(None)
            })?;
        }
        let is_reference =
            |contest: &&Contest| Some(contest.entry.name) == arguments.ratio_to.as_deref();
        let reference = self.contests.iter().find(is_reference);
        let reference = reference.map(|contest| contest.measured.rates.clone());
        let mut counter = dram::Counter::new(arguments);
        self.each(plan, |contest| {
            contest.timed_pass(plan)?;
            if arguments.then.is_empty() {
                contest.mounted = None;
            }
            let name = contest.entry.name;
            let parameters = Parameters::new(arguments, plan.keys, contest.is_pinned, keeps);
            let reference = reference.as_deref();
            let mut result = IndexResult::new(name, parameters, &contest.measured, reference)?;
            if arguments.dram {
                let misses = counter.count(name)?;
                result.dram_accesses_per_op = Some(misses.last_level);
                result.first_level_misses_per_op = Some(misses.first_level);
                result.dram_counted_by = Some(dram::method(arguments));
            }
            Ok(Some(result))
        })
    }
}

/// Loads, warms up and runs a fixed number of operations, for a tool that counts from outside.
fn run_to_count(
    arguments: &IndexArguments,
    entries: &[Entry],
    operations: u64,
) -> anyhow::Result<()> {
    let requests = dram::WARM_UP + operations;
    let arguments = IndexArguments { threads: 1, requests, ..arguments.clone() };
    let plan = Plan::new(&arguments, entries)?;
    for entry in entries {
        let runner = (entry.open)(entry.name, &plan.configuration(entry)?)?;
        if arguments.workload.loads() {
            runner.load(plan.keys, plan.key_space, arguments.value_bytes, 1);
        }
        let config = plan.config(Limit::Operations(requests), false);
        runner.run(&config, &mut [Position::default()]);
    }
    Ok(())
}

/// What all engines of a run share: arguments, keys and requests.
struct Plan<'a> {
    arguments: &'a IndexArguments,
    key_space: KeySpace,
    streams: Vec<Stream>,
    /// The number of keys to load, or to grow to.
    keys: u64,
}

impl<'a> Plan<'a> {
    fn new(arguments: &'a IndexArguments, entries: &[Entry]) -> anyhow::Result<Self> {
        let key_space = KeySpace::new(arguments.key_bytes)?;
        let mut keys = arguments.keys;
        if let (Some(fill), Some(first)) = (arguments.fill, entries.first()) {
            let slots = (first.open)(first.name, &arguments.configuration())?.statistics().slots;
            ensure!(slots > 0, "{} does not tell its slots, so --fill says nothing", first.name);
            keys = (slots as f64 * fill) as u64;
        }
        eprintln!("generating {} requests a thread", arguments.recipe(keys).requests);
        let recipe = arguments.recipe(keys);
        let streams = std::thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || generate(&recipe, thread));
            let threads: Vec<_> = (0..arguments.threads).map(spawn).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|result| result.unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
        });
        let streams: anyhow::Result<Vec<Stream>> = streams;
        Ok(Self { arguments, key_space, streams: streams?, keys })
    }

    fn config(&self, limit: Limit, is_timed: bool) -> RunConfig<'_> {
        let workload = self.arguments.workload;
        RunConfig {
            streams: &self.streams,
            loaded: if workload.starts_empty() { 0 } else { self.keys },
            key_space: self.key_space,
            value_bytes: self.arguments.value_bytes,
            batch: self.arguments.batch,
            reads_latest: workload.reads_latest(),
            fills_misses: workload.fills_misses(),
            limit,
            is_timed,
            is_watched: !is_timed && (workload.inserts() || self.streams[0].shifted.is_some()),
        }
    }

    /// The configuration to build an engine with.
    fn configuration(&self, entry: &Entry) -> anyhow::Result<Configuration> {
        let mut configuration = self.arguments.configuration();
        if self.arguments.table_apart {
            let empty = (entry.open)(entry.name, &configuration)?.statistics();
            configuration.memory_bytes += usize::try_from(empty.memory.index)?;
        }
        Ok(configuration)
    }

    /// The length of a round; a workload that grows the index ends when all keys are inserted.
    fn round_limit(&self) -> Limit {
        if self.arguments.workload.starts_empty() {
            self.growth_limit()
        } else {
            self.limit_of(self.arguments.round_time())
        }
    }

    /// A limit of `time`, or of one cycle of all requests where misses are filled.
    fn limit_of(&self, time: Duration) -> Limit {
        match self.arguments.workload.fills_misses() {
            true => Limit::Operations(self.arguments.requests),
            false => Limit::Time(time),
        }
    }

    fn growth_limit(&self) -> Limit {
        Limit::Operations(self.keys.div_ceil(self.arguments.threads as u64))
    }

    fn warm_up_limit(&self) -> Limit {
        self.limit_of(self.arguments.warm_up_time())
    }
}

/// One engine in the comparison.
struct Contest {
    entry: Entry,
    mounted: Option<Box<dyn Runner>>,
    positions: Vec<Position>,
    measured: Measured,
    is_pinned: bool,
}

impl Contest {
    fn new(entry: Entry) -> Self {
        let measured = Measured::default();
        Self { entry, mounted: None, positions: Vec::new(), measured, is_pinned: true }
    }

    /// Opens, loads and warms up the engine, unless it is mounted.
    fn mount(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        if self.mounted.is_some() {
            return Ok(());
        }
        let arguments = plan.arguments;
        let name = self.entry.name;
        let configuration = plan.configuration(&self.entry)?;
        let before = resident_bytes_of(std::process::id())?;
        let runner = (self.entry.open)(name, &configuration)
            .with_context(|| format!("{name} could not be opened"))?;
        self.positions = vec![Position::default(); arguments.threads];
        if arguments.workload.starts_empty() {
            self.mounted = Some(runner);
            return Ok(());
        }
        if arguments.workload.loads() {
            self.load(plan, runner.as_ref(), &configuration, before)?;
        }
        runner.run(&plan.config(plan.warm_up_limit(), false), &mut self.positions);
        self.mounted = Some(runner);
        Ok(())
    }

    /// Writes all keys and measures the memory they take; `before` is the resident memory in bytes
    /// before the engine was opened.
    fn load(
        &mut self,
        plan: &Plan<'_>,
        runner: &dyn Runner,
        configuration: &Configuration,
        before: u64,
    ) -> anyhow::Result<()> {
        let (arguments, name) = (plan.arguments, self.entry.name);
        eprintln!("{name}: loading {} keys", plan.keys);
        let loaders = arguments.load_threads.unwrap_or(arguments.threads);
        let threads = if self.entry.is_read_only { 1 } else { loaders };
        let stored = runner.load(plan.keys, plan.key_space, arguments.value_bytes, threads);
        let refused = plan.keys - stored;
        ensure!(
            refused == 0 || configuration.evicts || arguments.fill.is_some(),
            "{name} had no room for {refused} of {} keys",
            plan.keys
        );
        self.measured.refused_at_load = refused;
        let statistics = runner.statistics();
        let items = if statistics.items > 0 { statistics.items } else { stored } as f64;
        let resident = resident_bytes_of(std::process::id())?.saturating_sub(before) as f64;
        self.measured.bytes_per_item = (!configuration.prefault).then_some(resident / items);
        let index = statistics.memory.index;
        self.measured.index_bytes_per_item = (index > 0).then_some(index as f64 / items);
        if !configuration.evicts {
            runner.read_once(plan.keys, plan.key_space, arguments.value_bytes, threads);
        }
        Ok(())
    }

    fn report(&mut self, plan: &Plan<'_>, limit: Limit, timed: bool) -> anyhow::Result<Report> {
        self.mount(plan)?;
        let runner = self.mounted.as_ref().context("it was just mounted")?;
        let report = runner.run(&plan.config(limit, timed), &mut self.positions);
        self.measured.statistics = runner.statistics();
        self.measured.tally.reads += report.tally.reads;
        self.measured.tally.hits += report.tally.hits;
        self.measured.tally.refused += report.tally.refused;
        self.is_pinned &= report.is_pinned;
        Ok(report)
    }

    fn round(&mut self, plan: &Plan<'_>, round: usize) -> anyhow::Result<()> {
        let limit = plan.round_limit();
        let report = self.report(plan, limit, false)?;
        let rate = report.operations_per_second;
        eprintln!("round {}: {:<16} {:>8.3} M/s", round + 1, self.entry.name, rate / 1e6);
        self.measured.rates.push(rate);
        self.measured.expansion_ratios.extend(report.watch.expansion_ratio());
        self.measured.watch = report.watch;
        Ok(())
    }

    fn timed_pass(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        let limit = if plan.arguments.workload.starts_empty() {
            plan.growth_limit()
        } else {
            Limit::Operations(plan.arguments.timed.max(1))
        };
        eprintln!("{}: timing operations one by one", self.entry.name);
        let report = self.report(plan, limit, true)?;
        self.measured.timing = report.timing.context("the pass was timed")?;
        let calls = report.tally.operations / plan.arguments.batch as u64;
        self.measured.null = time_null_loop(calls / plan.arguments.threads as u64);
        if !plan.arguments.workload.loads() {
            let statistics = &self.measured.statistics;
            let (index, items) = (statistics.memory.index, statistics.items.max(1));
            self.measured.index_bytes_per_item = (index > 0).then_some(index as f64 / items as f64);
        }
        Ok(())
    }
}
