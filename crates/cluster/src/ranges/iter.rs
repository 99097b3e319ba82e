//! Iteration over all ranges in order.

use super::leaf::Piece;
use super::map::{Range, RangeMap};
use super::placement::{NOBODY, from_bits};
use crate::ids::{ChunkId, END, IdRange};

impl RangeMap {
    /// All ranges in ascending order.
    pub fn ranges(&self) -> Ranges<'_> {
        Ranges::new(self, 0)
    }

    /// The ranges from an id on; the first is cut at that id.
    pub fn ranges_from(&self, id: ChunkId) -> Ranges<'_> {
        Ranges::new(self, id.bits())
    }
}

/// The ranges of a map, ascending. See [`RangeMap::ranges_from`].
#[derive(Debug)]
pub struct Ranges<'m> {
    map: &'m RangeMap,
    /// Index of the next leaf to read.
    node: usize,
    leaf: usize,
    pieces: Vec<Piece>,
    /// Index of the next piece.
    next: usize,
    /// The rest of a run that was cut at a cell's end.
    rest: Option<Run>,
    /// Ids before this one are skipped.
    from: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    placement: u64,
}

impl<'m> Ranges<'m> {
    pub(super) fn new(map: &'m RangeMap, from: u64) -> Self {
        let (node, leaf) = map.locate(from);
        Self { map, node, leaf, pieces: Vec::new(), next: 0, rest: None, from }
    }

    /// The next piece, across leaves.
    fn peek(&mut self) -> Option<Piece> {
        while self.next == self.pieces.len() {
            let node = self.map.nodes.get(self.node)?;
            self.pieces.clear();
            self.next = 0;
            self.map.read((self.node, self.leaf), &mut self.pieces);
            self.leaf += 1;
            if self.leaf == node.len() {
                (self.node, self.leaf) = (self.node + 1, 0);
            }
        }
        self.pieces.get(self.next).copied()
    }

    /// The next run of ids with one placement, across leaves and cells.
    fn next_run(&mut self) -> Option<Run> {
        loop {
            let Piece { start, placement } = self.peek()?;
            let mut end = END;
            while let Some(piece) = self.peek() {
                if piece.placement != placement {
                    end = piece.start;
                    break;
                }
                self.next += 1;
            }
            if placement != NOBODY && end > self.from {
                return Some(Run { start: start.max(self.from), end, placement });
            }
        }
    }
}

impl Iterator for Ranges<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        let run = match self.rest.take() {
            Some(run) => run,
            None => self.next_run()?,
        };
        let end = run.end.min(self.map.cell(run.start).end);
        if end < run.end {
            self.rest = Some(Run { start: end, ..run });
        }
        let placement = from_bits(run.placement)?;
        Some(Range { ids: IdRange::from_bits(run.start, end), placement })
    }
}
