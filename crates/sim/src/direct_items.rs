//! The thread of a node's gateway in the item workload: it executes operations on the items that
//! its node owns, around the node's thread (`amalgam_cluster::shard::Served`). Each takes several
//! ticks: it begins, the engine executes it, and it is answered, while the node goes on.

use amalgam_cluster::chunks::{Action, ChunkStore, ItemAnswer, ItemOp, ItemStore};
use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::shard::ServedThread;
use amalgam_index::model::ModelWorker;

use crate::mutants::Mutant;
use crate::random::Random;

/// Ticks from the begin to the engine, and from there to the answer, at most.
const TICKS_MAX: u64 = 3;

/// How an operation ended.
#[derive(Debug)]
pub enum DirectEnd {
    /// With this answer.
    Answered(ItemAnswer),
    /// It was executed, and cannot be answered.
    Unknown,
    /// The node's thread has to execute it.
    Refused,
}

#[derive(Debug)]
struct Running {
    id: ChunkId,
    op: Box<ItemOp>,
    began_ms: u64,
    /// On the node's clock.
    began_local_ms: u64,
    /// Ticks left before the engine executes it, and then before the answer.
    ticks: [u64; 2],
    answer: Option<ItemAnswer>,
}

/// A thread, which executes one operation at a time.
#[derive(Debug)]
pub struct DirectThread {
    served: ServedThread,
    store: ItemStore<ModelWorker<'static>>,
    running: Option<Running>,
}

impl DirectThread {
    /// A thread with access to the engines of a node.
    pub fn new(served: ServedThread, store: ItemStore<ModelWorker<'static>>) -> Self {
        Self { served, store, running: None }
    }

    /// Whether it could begin a read of this id, or a write.
    pub fn is_free_for(&mut self, id: ChunkId) -> bool {
        if self.running.is_some() {
            return false;
        }
        self.served.refresh();
        self.served.may_read(id)
    }

    /// Begins an operation; false if the node's thread has to execute it. `now_ms` is the time on
    /// the node's clock.
    pub fn begin(
        &mut self,
        (id, op): (ChunkId, Box<ItemOp>),
        mutant: Mutant,
        random: &mut Random,
        (now_ms, began_ms): (u64, u64),
    ) -> bool {
        let begins = match op.verb.writes() {
            true => self.is_free_for(id) && self.served.begin_write(id, now_ms),
            false => self.is_free_for(id),
        };
        if begins {
            if op.verb.writes() && mutant == Mutant::MovesWhileOthersWrite {
                self.served.end_write(now_ms);
            }
            let ticks = [random.below(TICKS_MAX), random.below(TICKS_MAX)];
            let (began_local_ms, answer) = (now_ms, None);
            self.running = Some(Running { id, op, began_ms, began_local_ms, ticks, answer });
        }
        begins
    }

    /// A tick of the node. Returns an operation that has ended, and when it began.
    pub fn tick(&mut self, mutant: Mutant, now_ms: u64) -> Option<(Action, u64, DirectEnd)> {
        let running = self.running.as_mut()?;
        let [before, after] = &mut running.ticks;
        if *before > 0 {
            *before -= 1;
            return None;
        }
        let answer = match running.answer.take() {
            Some(answer) => answer,
            None => self.store.item(running.id, &running.op),
        };
        if *after > 0 {
            *after -= 1;
            running.answer = Some(answer);
            return None;
        }
        let Running { id, op, began_ms, began_local_ms, .. } = self.running.take()?;
        let end = if op.verb.writes() {
            match self.served.end_write(now_ms) {
                true => DirectEnd::Answered(answer),
                false => DirectEnd::Unknown,
            }
        } else if self.may_answer(id, mutant, began_local_ms) {
            DirectEnd::Answered(answer)
        } else {
            DirectEnd::Refused
        };
        Some((Action::Item { id, op }, began_ms, end))
    }

    /// Reads an item within one tick, if this thread is free and may answer it.
    pub fn read(
        &mut self,
        id: ChunkId,
        op: &ItemOp,
        mutant: Mutant,
        now_ms: u64,
    ) -> Option<ItemAnswer> {
        let answer = self.is_free_for(id).then(|| self.store.item(id, op))?;
        self.may_answer(id, mutant, now_ms).then_some(answer)
    }

    fn may_answer(&self, id: ChunkId, mutant: Mutant, now_ms: u64) -> bool {
        mutant == Mutant::AnswersWithoutCheck || self.served.may_answer(id, now_ms)
    }
}
