//! One run of a cluster with backups under everything that may happen, and what was wrong with it.

use crate::disk::Reached;
use crate::keeper::SafeKeeper;
use crate::world::{Faults, Planted, World};

/// Nodes of a run, simulated time under faults and in all.
const NODES: usize = 5;
const FAULTS_MS: u64 = 50_000;
/// With what comes after the faults.
pub const TRIAL_MS: u64 = FAULTS_MS + 12_000;

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
    /// Runs a seed: 62 simulated seconds of five nodes.
    pub fn run(seed: u64, planted: Planted) -> Self {
        let mut world: World<SafeKeeper> = World::new(seed, NODES, Faults::WORST, planted);
        world.run(FAULTS_MS);
        world.calm();
        world.read_all();
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
