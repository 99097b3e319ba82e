//! How named items move. They are found by looking through the engine, a slice at a time, since
//! their ids are sparse; one pass serves all moves that began before it. From then on a move of
//! items is as one of chunks, with keys where those have ids.
//!
//! Invariants of this room:
//! 1. A pass begins after the moves that it serves began to note writes: what it does not see was
//!    written since, and was noted.
//! 2. Items of ids that were given away are removed by a pass; until it ended those ids are neither
//!    taken back nor claimed.

use std::collections::BTreeSet;

use amalgam_index::Cursor;

use super::service::{ChunkService, Wish};
use super::store::ChunkStore;
use crate::ids::{ChunkId, IdRange};
use crate::spans::Spans;

/// Buckets that are looked at in one go.
const SLICE_BUCKETS: usize = 8_192;

/// Chunks by their ids and items by their keys.
#[derive(Debug, Default)]
pub(super) struct Marks {
    ids: BTreeSet<ChunkId>,
    keys: BTreeSet<(ChunkId, Vec<u8>)>,
}

impl Marks {
    pub fn len(&self) -> usize {
        self.ids.len() + self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty key stands for a chunk.
    pub fn insert(&mut self, id: ChunkId, key: &[u8]) {
        if id.creator().is_named() {
            self.keys.insert((id, key.to_vec()));
        } else {
            self.ids.insert(id);
        }
    }

    pub fn pop(&mut self) -> Option<(ChunkId, Vec<u8>)> {
        let chunk = self.ids.pop_first().map(|id| (id, Vec::new()));
        chunk.or_else(|| self.keys.pop_first())
    }
}

/// A pass over all items, for moves that wait for it and for ids that were given away.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Where it stands; none between passes.
    at: Option<Cursor>,
    /// The moves that it serves.
    moves: BTreeSet<u64>,
    /// What it removes.
    removes: Spans<()>,
    /// What the next one is to remove.
    given: Spans<()>,
}

impl Pass {
    /// Items of those ids are to be removed.
    pub fn remove_later(&mut self, ids: IdRange) {
        self.given.assign(ids.start()..ids.end(), Some(()));
    }

    fn removes(&self, ids: IdRange) -> bool {
        let over = |spans: &Spans<()>| spans.over(ids.start()..ids.end()).next().is_some();
        over(&self.given) || over(&self.removes)
    }
}

impl<S: ChunkStore> ChunkService<S> {
    /// Whether items of ids that were given away may be here yet.
    pub(super) fn is_removing(&self, ids: IdRange) -> bool {
        self.pass.removes(ids)
    }

    /// Goes on with the pass, or begins one if something waits for it.
    pub(super) fn tick_pass(&mut self, now_ms: u64, out: &mut Vec<Wish>) {
        if self.pass.at.is_none() && !self.begin_pass() {
            return;
        }
        if !self.look_on() {
            return;
        }
        for number in std::mem::take(&mut self.pass.moves) {
            self.collected(number, now_ms, out);
        }
    }

    /// Removes what is to be removed before `ids` are served again. Rare: a whole pass at once.
    pub(super) fn remove_now(&mut self, ids: IdRange) {
        while self.is_removing(ids) {
            if self.pass.at.is_none() {
                self.begin_pass();
            }
            // Moves that waited for this pass wait for the next.
            if self.look_on() {
                self.pass.moves.clear();
            }
        }
    }

    fn begin_pass(&mut self) -> bool {
        let moves = self.uncollected();
        if moves.is_empty() && self.pass.given.is_empty() {
            return false;
        }
        let removes = std::mem::take(&mut self.pass.given);
        self.pass = Pass { at: Some(Cursor::START), moves, removes, given: Spans::default() };
        true
    }

    /// Looks at a slice; whether the pass has ended.
    fn look_on(&mut self) -> bool {
        let Some(from) = self.pass.at else { return true };
        let mut gone = Vec::new();
        let (pass, outgoing) = (&self.pass, &mut self.outgoing);
        let next = self.store.look_at_items(from, SLICE_BUCKETS, &mut |id, key| {
            if pass.removes.get(id.bits()).is_some() {
                gone.push(key.to_vec());
            }
            for number in &pass.moves {
                if let Some(outgoing) = outgoing.get_mut(number) {
                    outgoing.mark(id, key);
                }
            }
        });
        gone.iter().for_each(|key| self.store.drop_item(key));
        self.pass.at = next;
        if next.is_none() {
            self.pass.removes = Spans::default();
        }
        next.is_none()
    }
}
