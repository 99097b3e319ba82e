//! One run of a cluster with backups, and its violations.

use std::hash::{DefaultHasher, Hash, Hasher};

use amalgam_conformance::recording;

use crate::chunk_workload::ReplicatedChunkNode;
use crate::coverage::Coverage;
use crate::item_workload::ReplicatedItemNode;
use crate::mutants::Mutant;
use crate::node_process::{Workload, WorkloadNode};
use crate::random::from_environment;
use crate::scenario::Scenario;
use crate::world::World;

/// `WRITES_MIN`: acknowledged writes that a run should reach. `LONGER_MAX`: seconds that it is
/// prolonged for them at most.
const WRITES_MIN: usize = 1_000;
const LONGER_MAX: u64 = 100;

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// Violations: histories that no register explains, operations that never end, answers that no
    /// client should have got, and what the metadata oracle found.
    pub violations: Vec<String>,
    /// Acknowledged writes.
    pub acknowledged: usize,
    /// Answered reads.
    pub reads: usize,
    /// Incarnations of nodes that crashed.
    pub crashes: u64,
    /// Faults and races that it went through.
    pub coverage: Coverage,
    /// What clients asked and were told, and what the checks of that found.
    pub history: recording::History,
}

impl Run {
    /// Runs a seed under the worst faults: 50 simulated seconds of five nodes, longer if there are
    /// fewer than a thousand writes, and 12 seconds without faults.
    pub fn worst(seed: u64, mutant: Mutant) -> Self {
        Self::execute(seed, mutant, &Scenario::default())
    }

    /// Runs a seed of a scenario.
    pub fn execute(seed: u64, mutant: Mutant, scenario: &Scenario) -> Self {
        if scenario.items {
            return Self::execute_items(seed, mutant, scenario);
        }
        let mut world: World<ReplicatedChunkNode> =
            World::new(seed, scenario.nodes, scenario.faults(), mutant);
        world.spares_last_holder = true;
        world.observed.has_contended_locks = scenario.locks;
        world.run(scenario.seconds * 1_000);
        // A run in which few writes got through is prolonged.
        let is_whole = scenario.seconds >= Scenario::default().seconds;
        for _ in 0..if is_whole { LONGER_MAX } else { 0 } {
            if world.observed.history.acknowledged() < WRITES_MIN {
                world.run(1_000);
            }
        }
        world.settle();
        world.read_all();
        Self::from(world)
    }

    /// The first seed of a scenario that finds a mutant, of as many as `AMALGAM_MUTANT_SEEDS` says
    /// (100 by default).
    pub fn seed_that_finds(scenario: &Scenario, mutant: Mutant) -> Option<u64> {
        let most = from_environment("AMALGAM_MUTANT_SEEDS", 100);
        let runs = (0..most).map(|seed| (seed, Self::execute(seed, mutant, scenario)));
        let mut finding = runs.filter(|(_, run)| !run.violations.is_empty());
        let found = finding.next().map(|(seed, run)| {
            run.write_history(seed, mutant, scenario);
            seed
        });
        println!("{mutant:?}: found by seed {found:?}");
        found
    }

    /// Writes the history, if anybody asked for it.
    pub(crate) fn write_history(mut self, seed: u64, mutant: Mutant, scenario: &Scenario) {
        if recording::folder().is_none() {
            return;
        }
        let settings = scenario.to_string().replace('\n', ", ");
        let mut hasher = DefaultHasher::new();
        settings.hash(&mut hasher);
        let name = format!("sim-{mutant:?}-{seed}-{:08x}", hasher.finish() as u32);
        self.history.source = format!("simulation: seed {seed}, {mutant:?}, {settings}");
        self.history.nanoseconds_per_unit = 1_000_000;
        self.history.write(&name).expect("the folder can be written");
    }

    /// Runs the item workload; with fewer operations, since there are thousands of partitions.
    fn execute_items(seed: u64, mutant: Mutant, scenario: &Scenario) -> Self {
        let mut world: World<ReplicatedItemNode> =
            World::new(seed, scenario.nodes, scenario.faults(), mutant);
        world.spares_last_holder = true;
        world.observed.evicts = scenario.cache;
        world.observed.has_full_logs = scenario.full_logs;
        world.run(scenario.seconds * 1_000);
        world.settle();
        world.read_items();
        let (violations, acknowledged) =
            (world.observed.items.violations(), world.observed.items.acknowledged());
        let mut run = Self::from(world);
        run.history.forgets = scenario.cache;
        run.history.violations.get_or_insert_default().extend(violations.iter().cloned());
        run.violations.extend(violations);
        run.acknowledged += acknowledged;
        run
    }
}

impl<W: Workload> From<World<WorkloadNode<W>>> for Run {
    fn from(mut world: World<WorkloadNode<W>>) -> Self {
        let early = world.observed.history.early_reads();
        let read_early = "a read of an unacknowledged write";
        world.observed.coverage.record_times(read_early, early);
        let mut violations = std::mem::take(&mut world.observed.wrong_answers);
        violations.extend(world.observed.history.violations());
        let history = recording::History {
            violations: Some(violations.clone()),
            operations: std::mem::take(&mut world.observed.recorder).into_operations(),
            ..recording::History::default()
        };
        violations.extend(world.observed.locks.violations());
        violations.extend(std::mem::take(&mut world.observed.oracle.violations));
        violations.extend(world.unanswered());
        Self {
            violations,
            acknowledged: world.observed.history.acknowledged(),
            reads: world.observed.history.reads(),
            crashes: world.crashes,
            coverage: world.observed.coverage,
            history,
        }
    }
}
