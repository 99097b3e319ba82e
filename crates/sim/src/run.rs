//! One run of a cluster with backups under everything that may happen, and what was wrong with it.

use crate::chunk_workload::ReplicatedChunkNode;
use crate::coverage::Coverage;
use crate::item_workload::ReplicatedItemNode;
use crate::mutants::Mutant;
use crate::node_process::{Workload, WorkloadNode};
use crate::scenario::Scenario;
use crate::world::World;

/// Writes that a run acknowledges at least, and seconds that it is longer for it at most.
const WRITES_MIN: usize = 1_000;
const LONGER_MAX: u64 = 100;

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// Reads and lost writes that no register explains, operations that never end, and answers that
    /// nobody should have been given.
    pub wrong: Vec<String>,
    /// Writes that were acknowledged.
    pub acknowledged: usize,
    /// Reads that were answered.
    pub reads: usize,
    /// Lives that ended before the run.
    pub crashes: u64,
    /// Faults and races that it came across.
    pub coverage: Coverage,
}

impl Run {
    /// Runs a seed under the worst: 50 simulated seconds of five nodes, or as many as it takes for
    /// a thousand writes, and 12 after the faults.
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
        world.run(scenario.seconds * 1_000);
        // Where little got through, a run lasts longer: each is to count that many.
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

    /// The same of named items: fewer operations, since there are thousands of partitions.
    fn execute_items(seed: u64, mutant: Mutant, scenario: &Scenario) -> Self {
        let mut world: World<ReplicatedItemNode> =
            World::new(seed, scenario.nodes, scenario.faults(), mutant);
        world.spares_last_holder = true;
        world.run(scenario.seconds * 1_000);
        world.settle();
        world.read_items();
        let (wrong, acknowledged) =
            (world.observed.items.violations(), world.observed.items.acknowledged());
        let mut run = Self::from(world);
        run.wrong.extend(wrong);
        run.acknowledged += acknowledged;
        run
    }
}

impl<W: Workload> From<World<WorkloadNode<W>>> for Run {
    fn from(mut world: World<WorkloadNode<W>>) -> Self {
        let early = world.observed.history.early_reads();
        let read_early = "a read of a write that is not answered yet";
        world.observed.coverage.record_times(read_early, early);
        let mut wrong = std::mem::take(&mut world.observed.wrong);
        wrong.extend(world.observed.history.violations());
        wrong.extend(std::mem::take(&mut world.observed.oracle.violations));
        wrong.extend(world.unanswered());
        Self {
            wrong,
            acknowledged: world.observed.history.acknowledged(),
            reads: world.observed.history.reads(),
            crashes: world.crashes,
            coverage: world.observed.coverage,
        }
    }
}
