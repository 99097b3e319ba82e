//! Draws the migrations: which id moves to which node.

use amalgam_cluster::ids::{ChunkId, Creator, IdRange, NodeId};
use amalgam_cluster::ranges::Placement;

use crate::ids::arguments::IdsArguments;
use amalgam_bench::workload::{Permutation, mix64};

/// The node that created all ids, and owns those that have not migrated.
pub const CREATOR: u16 = 1;
/// The first node that ids migrate to.
const FIRST_NODE: u16 = 2;

/// A migration of one chunk. The counter is the chunk's id without its creator.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub counter: u64,
    pub placement: Placement,
}

/// Draws migrations at random, each of another id.
#[derive(Clone, Debug)]
pub struct Moves {
    order: Permutation,
    seed: u64,
    nodes: u16,
    backups: u8,
    copy_sets: u64,
}

pub fn node(number: u16) -> NodeId {
    NodeId::new(number).expect("small numbers are nodes")
}

/// The id with a counter below 2^48.
pub fn id_of(counter: u64) -> ChunkId {
    let creator = Creator::new(CREATOR).expect("a creator");
    ChunkId::new(creator, counter).expect("a counter of 48 bits")
}

/// Ids from `start` to before `end`.
pub fn ids_of(start: u64, end: u64) -> IdRange {
    IdRange::new(id_of(start), id_of(end - 1)).expect("not empty")
}

impl Moves {
    pub fn new(arguments: &IdsArguments) -> Self {
        Self {
            order: Permutation::new(arguments.ids, arguments.seed),
            seed: mix64(arguments.seed),
            nodes: arguments.nodes,
            backups: arguments.backups,
            copy_sets: arguments.copy_sets,
        }
    }

    /// The `number`-th migration; below the number of ids.
    pub fn get(&self, number: u64) -> Move {
        let counter = self.order.apply(number);
        let drawn = mix64(number ^ self.seed);
        let owner = FIRST_NODE + (drawn % u64::from(self.nodes)) as u16;
        Move { counter, placement: self.placement(owner, drawn >> 32) }
    }

    /// The placement of ids that have not migrated: each cell of them has its own backups.
    pub fn home(&self, cell: u64) -> Placement {
        self.placement(CREATOR, cell)
    }

    /// The owner with the backups that `choice` falls on.
    fn placement(&self, owner: u16, choice: u64) -> Placement {
        let choice = if self.copy_sets == 0 { choice } else { choice % self.copy_sets };
        let mut backups = Vec::with_capacity(3);
        let mut drawn = mix64(choice << 16 | u64::from(owner));
        while backups.len() < usize::from(self.backups) {
            let backup = node(FIRST_NODE + (drawn % u64::from(self.nodes)) as u16);
            if backup != node(owner) && !backups.contains(&backup) {
                backups.push(backup);
            }
            drawn = mix64(drawn);
        }
        Placement::new(node(owner), &backups).expect("different nodes")
    }
}
