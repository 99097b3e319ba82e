//! The search for a cuckoo path: which items have to move so that a bucket gets an empty slot.
//! The search moves nothing and reads no key. A path may be outdated by the time that it is walked,
//! so a mover checks that each word is still in the slot where the search loaded it.

use super::table::Table;
use super::word::Word;
use crate::PathSearch;

/// The most random walks that one search may follow at once.
pub(super) const MAX_WALKS: usize = 4;
/// The most displacements that a path may have unless told otherwise: the paper's number.
pub const MAX_DISPLACEMENTS: usize = 128;
/// The largest bound on displacements that can be asked for.
pub(super) const DISPLACEMENTS_LIMIT: usize = 4096;
/// The most buckets that a breadth-first search visits. At a load of 97 %, three of four buckets of
/// eight slots are full, so a search nearly always meets an empty slot within a dozen buckets.
const MAX_BREADTH: usize = 1024;

/// One step of a path: the item `word` has to move from this slot to the next step's. The last step
/// is the empty slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathStep {
    pub(super) bucket: usize,
    pub(super) slot: usize,
    pub(super) word: Word,
}

/// Finds paths. Belongs to one thread; its buffers are reused from search to search.
pub(super) struct PathFinder {
    search: PathSearch,
    max_displacements: usize,
    walks: [Vec<PathStep>; MAX_WALKS],
    queue: Vec<SearchNode>,
    path: Vec<PathStep>,
    random: u64,
}

/// A bucket that a breadth-first search reached.
#[derive(Clone, Copy)]
struct SearchNode {
    bucket: usize,
    /// The queue's entry from which it was reached, and the slot there; for a start, its own entry.
    parent: usize,
    slot: usize,
    word: Word,
}

impl PathFinder {
    /// # Panics
    ///
    /// If there are no walks, or more than [`MAX_WALKS`].
    pub(super) fn new(search: PathSearch, max_displacements: usize, seed: u64) -> Self {
        if let PathSearch::Walks(walks) = search {
            assert!((1..=MAX_WALKS).contains(&walks), "a search follows 1 to {MAX_WALKS} walks");
        }
        Self {
            search,
            max_displacements,
            walks: Default::default(),
            queue: Vec::new(),
            path: Vec::new(),
            random: seed | 1,
        }
    }

    /// A path from one of the buckets `starts` to an empty slot, or None if there is none within
    /// the bounds. The path meets no bucket twice. `settle` is called before a bucket is visited;
    /// `other` returns the other bucket of a word's item.
    pub(super) fn find<const SLOTS: usize>(
        &mut self,
        table: &Table<SLOTS>,
        starts: [usize; 2],
        settle: &mut impl FnMut(usize),
        other: &impl Fn(usize, Word) -> usize,
    ) -> Option<&[PathStep]> {
        let is_found = match self.search {
            PathSearch::Walks(walks) => self.walk(table, starts, walks, settle, other),
            PathSearch::BreadthFirst => self.search_breadth(table, starts, settle, other),
        };
        if !is_found {
            return None;
        }
        self.cut_loops();
        Some(&self.path)
    }

    /// `walks` random walks, a step each in turn.
    fn walk<const SLOTS: usize>(
        &mut self,
        table: &Table<SLOTS>,
        starts: [usize; 2],
        walks: usize,
        settle: &mut impl FnMut(usize),
        other: &impl Fn(usize, Word) -> usize,
    ) -> bool {
        let mut buckets: [usize; MAX_WALKS] = std::array::from_fn(|walk| starts[walk % 2]);
        for walk in &mut self.walks {
            walk.clear();
        }
        for _ in 0..=self.max_displacements {
            for (walk, bucket) in buckets.iter_mut().enumerate().take(walks) {
                let steps = &mut self.walks[walk];
                settle(*bucket);
                if let Some(slot) = table.empty_slot(*bucket) {
                    steps.push(PathStep { bucket: *bucket, slot, word: Word::EMPTY });
                    std::mem::swap(&mut self.path, steps);
                    return true;
                }
                let slot = next_random(&mut self.random) as usize % SLOTS;
                let word = table.word(*bucket, slot);
                if !word.is_item() {
                    // Emptied or moved meanwhile: the next round sees it.
                    continue;
                }
                steps.push(PathStep { bucket: *bucket, slot, word });
                *bucket = other(*bucket, word);
                table.prefetch(*bucket);
            }
        }
        false
    }

    fn search_breadth<const SLOTS: usize>(
        &mut self,
        table: &Table<SLOTS>,
        starts: [usize; 2],
        settle: &mut impl FnMut(usize),
        other: &impl Fn(usize, Word) -> usize,
    ) -> bool {
        self.queue.clear();
        for (parent, bucket) in starts.into_iter().enumerate() {
            self.queue.push(SearchNode { bucket, parent, slot: 0, word: Word::EMPTY });
        }
        let mut next = 0;
        while next < self.queue.len() {
            let bucket = self.queue[next].bucket;
            settle(bucket);
            if let Some(slot) = table.empty_slot(bucket) {
                return self.trace_back(next, slot);
            }
            for slot in 0..SLOTS {
                let word = table.word(bucket, slot);
                if word.is_item() && self.queue.len() < MAX_BREADTH {
                    let bucket = other(bucket, word);
                    table.prefetch(bucket);
                    self.queue.push(SearchNode { bucket, parent: next, slot, word });
                }
            }
            next += 1;
        }
        false
    }

    /// Sets `path` to the one that ends at an empty slot of queue entry `last`. Returns whether it
    /// is short enough.
    fn trace_back(&mut self, last: usize, empty_slot: usize) -> bool {
        self.path.clear();
        let mut at = last;
        let (mut slot, mut word) = (empty_slot, Word::EMPTY);
        loop {
            let node = self.queue[at];
            self.path.push(PathStep { bucket: node.bucket, slot, word });
            if node.parent == at {
                break;
            }
            (slot, word) = (node.slot, node.word);
            at = node.parent;
        }
        self.path.reverse();
        self.path.len() <= self.max_displacements + 1
    }

    /// Removes the loops: where the path comes back to a bucket, it need not have left it.
    fn cut_loops(&mut self) {
        let mut kept = 0;
        let mut at = 0;
        while at < self.path.len() {
            let bucket = self.path[at].bucket;
            let last = self.path.iter().rposition(|step| step.bucket == bucket).unwrap_or(at);
            self.path[kept] = self.path[last];
            kept += 1;
            at = last + 1;
        }
        self.path.truncate(kept);
    }
}

/// xorshift64; good enough to pick victims.
pub(super) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    // The low bits of this generator are its worst.
    *state >> 32
}
