//! One run of a cluster with backups, and its violations.

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
        let finds = |seed: &u64| !Self::execute(*seed, mutant, scenario).violations.is_empty();
        let found = (0..most).find(finds);
        println!("{mutant:?}: found by seed {found:?}");
        found
    }

    /// Runs the item workload; with fewer operations, since there are thousands of partitions.
    fn execute_items(seed: u64, mutant: Mutant, scenario: &Scenario) -> Self {
        let mut world: World<ReplicatedItemNode> =
            World::new(seed, scenario.nodes, scenario.faults(), mutant);
        world.spares_last_holder = true;
        world.observed.evicts = scenario.cache;
        world.run(scenario.seconds * 1_000);
        world.settle();
        world.read_items();
        let (violations, acknowledged) =
            (world.observed.items.violations(), world.observed.items.acknowledged());
        let mut run = Self::from(world);
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
        violations.extend(world.observed.locks.violations());
        violations.extend(std::mem::take(&mut world.observed.oracle.violations));
        violations.extend(world.unanswered());
        Self {
            violations,
            acknowledged: world.observed.history.acknowledged(),
            reads: world.observed.history.reads(),
            crashes: world.crashes,
            coverage: world.observed.coverage,
        }
    }
}
