//! One run of a cluster with backups under everything that may happen, and what was wrong with it.

use crate::actor::{Host, Pursuit};
use crate::keeper::SafeKeeper;
use crate::names::SafeNamer;
use crate::planted::Planted;
use crate::races::Reached;
use crate::scenario::Scenario;
use crate::world::World;

/// Writes that a run acknowledges at least, and seconds that it is longer for it at most.
const ACKNOWLEDGED_MIN: usize = 1_000;
const LONGER_MAX: u64 = 100;

/// What came of a run.
#[derive(Debug)]
pub struct Trial {
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
    pub reached: Reached,
}

impl Trial {
    /// Runs a seed under the worst: 50 simulated seconds of five nodes, or as many as it takes for
    /// a thousand writes, and 12 after the faults.
    pub fn run(seed: u64, planted: Planted) -> Self {
        Self::of(seed, planted, &Scenario::default())
    }

    /// Runs a seed of a scenario.
    pub fn of(seed: u64, planted: Planted, scenario: &Scenario) -> Self {
        if scenario.items {
            return Self::of_items(seed, planted, scenario);
        }
        let mut world: World<SafeKeeper> =
            World::new(seed, scenario.nodes, scenario.faults(), planted);
        world.spares_holders = true;
        world.run(scenario.seconds * 1_000);
        // Where little got through, a run lasts longer: each is to count that many.
        let is_whole = scenario.seconds >= Scenario::default().seconds;
        for _ in 0..if is_whole { LONGER_MAX } else { 0 } {
            if world.common.history.acknowledged() < ACKNOWLEDGED_MIN {
                world.run(1_000);
            }
        }
        world.calm();
        world.read_all();
        Self::from(world)
    }

    /// The same of named items: fewer operations, since there are thousands of partitions.
    fn of_items(seed: u64, planted: Planted, scenario: &Scenario) -> Self {
        let mut world: World<SafeNamer> =
            World::new(seed, scenario.nodes, scenario.faults(), planted);
        world.spares_holders = true;
        world.run(scenario.seconds * 1_000);
        world.calm();
        world.read_names();
        let (wrong, acknowledged) =
            (world.common.names.violations(), world.common.names.acknowledged());
        let mut trial = Self::from(world);
        trial.wrong.extend(wrong);
        trial.acknowledged += acknowledged;
        trial
    }
}

impl<P: Pursuit> From<World<Host<P>>> for Trial {
    fn from(mut world: World<Host<P>>) -> Self {
        let early = world.common.history.early_reads();
        let read_early = "a read of a write that is not answered yet";
        world.common.reached.note_times(read_early, early);
        let mut wrong = std::mem::take(&mut world.common.wrong);
        wrong.extend(world.common.history.violations());
        wrong.extend(std::mem::take(&mut world.common.ledger.violations));
        wrong.extend(world.unanswered());
        Self {
            wrong,
            acknowledged: world.common.history.acknowledged(),
            reads: world.common.history.reads(),
            crashes: world.crashes,
            reached: world.common.reached,
        }
    }
}
