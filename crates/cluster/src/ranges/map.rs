//! The map of ranges: a tree of three levels.

use std::fmt;
use std::hint::black_box;
use std::ops;

use super::dictionary::{CODES_MAX, Dictionary};
use super::iter::Ranges;
use super::leaf::{Found, Leaf, Piece, push_piece};
use super::placement::{Bits, NOBODY, Placement, from_bits, to_bits};
use crate::ids::{COUNTER_BITS, COUNTER_MAX, ChunkId, END, IdRange, NAMED_FIRST};

/// Named ids in the longest range: 16 ranges a partition. They are hashes of keys, and sparse.
const NAMED_RANGE_IDS: u64 = 1 << 44;

/// Ids whose memory [`RangeMap::fetch`] waits for at once.
pub const FETCHED_TOGETHER: usize = 32;

/// Parameters of a [`RangeMap`]. Values out of their bounds are moved to the nearest bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ids in the longest range: 1 to 2^48. Recovery is parallel in units of ranges.
    pub range_ids_max: u64,
    /// Entries in the fullest leaf: 4 to 4096. Larger leaves are smaller in sum, and slower.
    pub leaf_entries_max: usize,
    /// Leaves in the fullest node: 4 to 4096.
    pub node_leaves_max: usize,
    /// Placements that have a 16-bit code, 1 to 65,536; others take 8 bytes at each place.
    pub placement_codes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            range_ids_max: 2_000_000,
            leaf_entries_max: 128,
            node_leaves_max: 128,
            placement_codes_max: CODES_MAX,
        }
    }
}

impl Limits {
    fn clamped(self) -> Self {
        Self {
            range_ids_max: self.range_ids_max.clamp(1, COUNTER_MAX + 1),
            leaf_entries_max: self.leaf_entries_max.clamp(4, 4096),
            node_leaves_max: self.node_leaves_max.clamp(4, 4096),
            placement_codes_max: self.placement_codes_max.clamp(1, CODES_MAX),
        }
    }
}

/// Ids that follow each other, and where their chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The ids.
    pub ids: IdRange,
    /// Their owner and backups.
    pub placement: Placement,
}

/// Leaves that follow each other.
#[derive(Debug)]
pub(super) struct Node {
    /// The first id of each leaf, in bits.
    pub(super) firsts: Vec<u64>,
    pub(super) leaves: Vec<Leaf>,
}

/// An ordered map from ranges of ids to placements. See the head of [`super`].
///
/// Lookups take the map shared, edits exclusively; it has no lock of its own. A lookup costs two
/// binary searches and a scan of a leaf's offsets, an edit that and moving at most a leaf's bytes.
#[derive(Debug)]
pub struct RangeMap {
    /// The first id of each node, in bits; the first of all is 0.
    pub(super) firsts: Vec<u64>,
    pub(super) nodes: Vec<Node>,
    pub(super) dictionary: Dictionary,
    pub(super) limits: Limits,
    leaf_bytes: usize,
    entries: usize,
}

/// Which leaf: its node's place and its place there.
type Place = (usize, usize);

impl RangeMap {
    /// Nobody owns any id.
    pub fn new(limits: Limits) -> Self {
        let limits = limits.clamped();
        let node = Node { firsts: vec![0], leaves: vec![Leaf::uniform(NOBODY)] };
        Self {
            firsts: vec![0],
            nodes: vec![node],
            dictionary: Dictionary::new(limits.placement_codes_max),
            limits,
            leaf_bytes: 0,
            entries: 0,
        }
    }

    /// Where a chunk is; none if nobody owns its id.
    #[inline]
    pub fn placement(&self, id: ChunkId) -> Option<Placement> {
        let place = self.locate(id.bits());
        let first = self.first_of(place);
        let length = self.end_of(place) - first;
        let leaf = &self.nodes[place.0].leaves[place.1];
        from_bits(leaf.get(id.bits() - first, length, &self.dictionary))
    }

    /// Brings near what lookups or migrations of these ids will read. They wait for memory four
    /// times each, one after the other: for their node's firsts, the leaf's head, its offsets and
    /// its value. Here [`FETCHED_TOGETHER`] ids wait for each at once. It changes no result; it
    /// pays for about as many ids as that before they are asked for.
    pub fn fetch(&self, ids: &[ChunkId]) {
        for ids in ids.chunks(FETCHED_TOGETHER) {
            let mut places = [(0, 0); FETCHED_TOGETHER];
            let places = &mut places[..ids.len()];
            for (place, id) in places.iter_mut().zip(ids) {
                place.0 = self.node_of(id.bits());
            }
            for (place, id) in places.iter_mut().zip(ids) {
                place.1 = self.leaf_of(place.0, id.bits());
            }
            let leaf = |place: &Place| &self.nodes[place.0].leaves[place.1];
            let heads = places.iter().map(|place| leaf(place).entries()).sum::<usize>();
            let lines = places.iter().zip(ids).map(|(place, id)| {
                let first = self.first_of(*place);
                leaf(place).touch(id.bits() - first, self.end_of(*place) - first)
            });
            // What is read is not used; it must not be left out for that.
            black_box((heads, lines.fold(0, u8::wrapping_add)));
        }
    }

    /// The range that an id lies in; none if nobody owns it.
    pub fn find(&self, id: ChunkId) -> Option<Range> {
        let (ids, placement) = self.around(id);
        placement.map(|placement| Range { ids, placement })
    }

    /// The ids around one that share its placement, or are nobody's as it is; within its cell.
    pub fn around(&self, id: ChunkId) -> (IdRange, Option<Placement>) {
        let place = self.locate(id.bits());
        let Found { mut start, mut end, placement } = self.piece_at(place, id.bits());
        let cell = self.cell(id.bits());
        let mut left = place;
        while start == self.first_of(left) && start > cell.start {
            left = self.before(left);
            let piece = self.piece_at(left, start - 1);
            if piece.placement != placement {
                break;
            }
            start = piece.start;
        }
        let mut right = place;
        while end == self.end_of(right) && end < cell.end {
            right = self.after(right);
            let piece = self.piece_at(right, end);
            if piece.placement != placement {
                break;
            }
            end = piece.end;
        }
        let ids = IdRange::from_bits(start.max(cell.start), end.min(cell.end));
        (ids, from_bits(placement))
    }

    /// All ranges in the order of their ids.
    pub fn ranges(&self) -> Ranges<'_> {
        Ranges::new(self, 0)
    }

    /// The ranges from an id on; the first one without the ids before it.
    pub fn ranges_from(&self, id: ChunkId) -> Ranges<'_> {
        Ranges::new(self, id.bits())
    }

    /// Gives ids that nobody owns to somebody.
    ///
    /// # Errors
    ///
    /// [`RangeError::Owned`] with the first of the ids that has an owner.
    pub fn insert(&mut self, ids: IdRange, placement: Placement) -> Result<(), RangeError> {
        match self.first_that(ids, |bits| bits != NOBODY) {
            Some(id) => Err(RangeError::Owned(id)),
            None => {
                self.assign(ids, Some(placement));
                Ok(())
            }
        }
    }

    /// Gives ids that somebody owns to somebody else; they may have had several placements.
    ///
    /// # Errors
    ///
    /// [`RangeError::Unowned`] with the first of the ids that has no owner.
    pub fn migrate(&mut self, ids: IdRange, placement: Placement) -> Result<(), RangeError> {
        if ids.len() == 1 && self.migrate_first(ids.start(), placement) {
            return Ok(());
        }
        match self.first_that(ids, |bits| bits == NOBODY) {
            Some(id) => Err(RangeError::Unowned(id)),
            None => {
                self.assign(ids, Some(placement));
                Ok(())
            }
        }
    }

    /// Leaves ids without an owner.
    ///
    /// # Errors
    ///
    /// As [`Self::migrate`].
    pub fn delete(&mut self, ids: IdRange) -> Result<(), RangeError> {
        match self.first_that(ids, |bits| bits == NOBODY) {
            Some(id) => Err(RangeError::Unowned(id)),
            None => {
                self.assign(ids, None);
                Ok(())
            }
        }
    }

    /// Gives ids to somebody or nobody, whoever had them: what a cache learns, what a replica is
    /// told, what recovery decides.
    pub fn assign(&mut self, ids: IdRange, placement: Option<Placement>) {
        let bits = to_bits(placement);
        let there = self.piece_at(self.locate(ids.start()), ids.start());
        if there.placement == bits && there.end >= ids.end() {
            return;
        }
        self.sweep_if_it_pays();
        // The first leaf grows over those that are covered whole, so at most two are left to edit,
        // unless merging and packing cut anew.
        self.remove_covered(self.locate(ids.start()), ids.end());
        let mut at = ids.start();
        while at < ids.end() {
            let place = self.locate(at);
            let end = self.end_of(place).min(ids.end());
            self.assign_within(place, at, end, bits);
            at = end;
        }
    }

    /// Memory of the map and everything in it, in bytes, without what the allocator adds.
    pub fn bytes(&self) -> usize {
        let per_leaf = size_of::<u64>() + size_of::<Leaf>();
        let in_nodes: usize = self.nodes.iter().map(|node| node.leaves.capacity() * per_leaf).sum();
        let per_node = size_of::<u64>() + size_of::<Node>();
        size_of::<Self>()
            + self.nodes.capacity() * per_node
            + in_nodes
            + self.leaf_bytes
            + self.dictionary.bytes()
    }

    /// How many leaves there are: what [`Self::bytes`] over the ranges depends on.
    pub fn leaves(&self) -> usize {
        self.nodes.iter().map(|node| node.leaves.len()).sum()
    }

    /// The parameters it has, in their bounds.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The first of `ids` whose placement is as wanted.
    fn first_that(&self, ids: IdRange, is_wanted: impl Fn(Bits) -> bool) -> Option<ChunkId> {
        let mut at = ids.start();
        while at < ids.end() {
            let piece = self.piece_at(self.locate(at), at);
            if is_wanted(piece.placement) {
                return ChunkId::from_bits(at).ok();
            }
            at = piece.end;
        }
        None
    }

    #[inline]
    pub(super) fn locate(&self, bits: u64) -> Place {
        let n = self.node_of(bits);
        (n, self.leaf_of(n, bits))
    }

    #[inline]
    fn node_of(&self, bits: u64) -> usize {
        self.firsts.partition_point(|first| *first <= bits) - 1
    }

    #[inline]
    fn leaf_of(&self, n: usize, bits: u64) -> usize {
        self.nodes[n].firsts.partition_point(|first| *first <= bits) - 1
    }

    #[inline]
    fn first_of(&self, (n, l): Place) -> u64 {
        self.nodes[n].firsts[l]
    }

    /// One past the last id of a leaf.
    #[inline]
    pub(super) fn end_of(&self, (n, l): Place) -> u64 {
        let next = self.nodes[n].firsts.get(l + 1).or_else(|| self.firsts.get(n + 1));
        next.copied().unwrap_or(END)
    }

    fn before(&self, (n, l): Place) -> Place {
        if l > 0 { (n, l - 1) } else { (n - 1, self.nodes[n - 1].leaves.len() - 1) }
    }

    fn after(&self, (n, l): Place) -> Place {
        if l + 1 < self.nodes[n].leaves.len() { (n, l + 1) } else { (n + 1, 0) }
    }

    /// The piece of a leaf at an id, in bits of ids.
    fn piece_at(&self, (n, l): Place, bits: u64) -> Found {
        let first = self.first_of((n, l));
        let length = self.end_of((n, l)) - first;
        let found = self.nodes[n].leaves[l].find(bits - first, length, &self.dictionary);
        Found { start: first + found.start, end: first + found.end, ..found }
    }

    /// The ids among which an id's range lies.
    pub(super) fn cell(&self, bits: u64) -> ops::Range<u64> {
        let creator = bits & !COUNTER_MAX;
        let counter = bits & COUNTER_MAX;
        let is_named = bits >> COUNTER_BITS >= u64::from(NAMED_FIRST);
        let most = if is_named { NAMED_RANGE_IDS } else { self.limits.range_ids_max };
        let start = counter - counter % most;
        let end = (start + most).min(COUNTER_MAX + 1);
        creator + start..creator + end
    }

    /// Moves one id that somebody owns and that has its leaf's default: a chunk that migrates for
    /// the first time. Otherwise nothing has changed.
    fn migrate_first(&mut self, bits: u64, placement: Placement) -> bool {
        let place = self.locate(bits);
        self.nodes[place.0].leaves[place.1].default() != NOBODY
            && self.try_insert_single(place, bits, to_bits(Some(placement)))
    }

    /// See [`Leaf::try_insert_single`].
    fn try_insert_single(&mut self, place: Place, bits: u64, placement: Bits) -> bool {
        let (first, end, most) =
            (self.first_of(place), self.end_of(place), self.limits.leaf_entries_max);
        let leaf = &mut self.nodes[place.0].leaves[place.1];
        let (before, offset, length) = (leaf.bytes(), bits - first, end - first);
        let does = leaf.try_insert_single(offset, length, placement, most, &mut self.dictionary);
        if does {
            self.leaf_bytes += leaf.bytes() - before;
            self.entries += 1;
        }
        does
    }

    fn assign_within(&mut self, (n, l): Place, start: u64, end: u64, placement: Bits) {
        if end - start == 1 && self.try_insert_single((n, l), start, placement) {
            return;
        }
        let first = self.first_of((n, l));
        let leaf_end = self.end_of((n, l));
        let mut pieces = Vec::with_capacity(2 * self.nodes[n].leaves[l].entries() + 1);
        self.nodes[n].leaves[l].read(first, leaf_end, &self.dictionary, &mut pieces);
        let pieces = overwrite(&pieces, leaf_end, start, end, placement);
        self.replace((n, l), 1, leaf_end, &pieces);
        self.merge_if_small(n, start);
    }

    /// Checks what the map relies on (invariants 3 and 4 of the room), for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!((self.firsts.len(), self.firsts[0]), (self.nodes.len(), 0));
        let (mut last, mut bytes, mut entries) = (None, 0, 0);
        for (n, node) in self.nodes.iter().enumerate() {
            assert!((1..=self.limits.node_leaves_max).contains(&node.leaves.len()));
            assert_eq!((node.firsts[0], node.firsts.len()), (self.firsts[n], node.leaves.len()));
            for (l, (first, leaf)) in node.firsts.iter().zip(&node.leaves).enumerate() {
                assert!(last.is_none_or(|last| last < *first), "leaves ascend");
                last = Some(*first);
                assert!(leaf.entries() <= self.limits.leaf_entries_max);
                leaf.check(self.end_of((n, l)) - first, &self.dictionary);
                bytes += leaf.bytes();
                entries += leaf.entries();
            }
        }
        assert_eq!((bytes, entries), (self.leaf_bytes, self.entries));
    }

    /// Puts leaves with these pieces in the place of `count` leaves of a node.
    fn replace(&mut self, (n, l): Place, count: usize, end: u64, pieces: &[Piece]) {
        self.forget(n, l..l + count);
        let mut packed = Vec::with_capacity(2);
        let most = self.limits.leaf_entries_max;
        Leaf::pack(pieces, end, most, &mut self.dictionary, &mut packed);
        self.leaf_bytes += packed.iter().map(|(_, leaf)| leaf.bytes()).sum::<usize>();
        self.entries += packed.iter().map(|(_, leaf)| leaf.entries()).sum::<usize>();
        let node = &mut self.nodes[n];
        node.firsts.splice(l..l + count, packed.iter().map(|(first, _)| *first));
        node.leaves.splice(l..l + count, packed.into_iter().map(|(_, leaf)| leaf));
        self.split_if_large(n);
    }

    /// Takes leaves that are about to go out of the sums.
    fn forget(&mut self, n: usize, leaves: ops::Range<usize>) {
        for leaf in &self.nodes[n].leaves[leaves] {
            self.leaf_bytes -= leaf.bytes();
            self.entries -= leaf.entries();
        }
    }

    fn split_if_large(&mut self, n: usize) {
        let count = self.nodes[n].leaves.len();
        if count <= self.limits.node_leaves_max {
            return;
        }
        let node = &mut self.nodes[n];
        let right = Node {
            firsts: node.firsts.split_off(count / 2),
            leaves: node.leaves.split_off(count / 2),
        };
        // Half of its room would stay empty until it has grown again.
        node.firsts.shrink_to_fit();
        node.leaves.shrink_to_fit();
        self.firsts.insert(n + 1, right.firsts[0]);
        self.nodes.insert(n + 1, right);
    }

    /// Merges the leaf of an id in node `n` or the next with a neighbour, if both are small, and
    /// likewise the node.
    fn merge_if_small(&mut self, n: usize, bits: u64) {
        let small = self.limits.leaf_entries_max / 4;
        let (n, l) = match self.nodes.get(n + 1) {
            Some(next) if next.firsts[0] <= bits => self.locate(bits),
            _ => (n, self.nodes[n].firsts.partition_point(|first| *first <= bits) - 1),
        };
        let leaves = &self.nodes[n].leaves;
        let is_small = |l: usize| leaves.get(l).is_some_and(|leaf| leaf.entries() <= small);
        if is_small(l) {
            let left =
                if is_small(l + 1) { Some(l) } else { l.checked_sub(1).filter(|l| is_small(*l)) };
            if let Some(left) = left {
                self.merge_leaves(n, left);
            }
        }
        self.merge_node_if_small(n);
    }

    fn merge_leaves(&mut self, n: usize, left: usize) {
        let node = &self.nodes[n];
        let (first, border) = (node.firsts[left], node.firsts[left + 1]);
        let end = self.end_of((n, left + 1));
        let mut pieces = Vec::new();
        node.leaves[left].read(first, border, &self.dictionary, &mut pieces);
        node.leaves[left + 1].read(border, end, &self.dictionary, &mut pieces);
        self.replace((n, left), 2, end, &pieces);
    }

    fn merge_node_if_small(&mut self, n: usize) {
        let small = self.limits.node_leaves_max / 4;
        let is_small = |n: usize| self.nodes.get(n).is_some_and(|node| node.leaves.len() <= small);
        if !is_small(n) {
            return;
        }
        let left =
            if is_small(n + 1) { Some(n) } else { n.checked_sub(1).filter(|n| is_small(*n)) };
        if let Some(left) = left {
            let mut right = self.nodes.remove(left + 1);
            self.firsts.remove(left + 1);
            self.nodes[left].firsts.append(&mut right.firsts);
            self.nodes[left].leaves.append(&mut right.leaves);
            self.shrink_top();
        }
    }

    /// Gives back room for nodes that are gone.
    fn shrink_top(&mut self) {
        if self.nodes.capacity() > 4 * self.nodes.len() + 16 {
            self.nodes.shrink_to(2 * self.nodes.len());
            self.firsts.shrink_to(2 * self.firsts.len());
        }
    }

    /// Removes the leaves behind one that end at or before `end`.
    fn remove_covered(&mut self, (n, l): Place, end: u64) {
        if self.end_of((n, l)) >= end {
            return;
        }
        self.remove_leaves(n, l + 1, end);
        let mut last = n + 1;
        while last < self.nodes.len() && self.firsts.get(last + 1).copied().unwrap_or(END) <= end {
            self.forget(last, 0..self.nodes[last].leaves.len());
            last += 1;
        }
        self.nodes.drain(n + 1..last);
        self.firsts.drain(n + 1..last);
        self.shrink_top();
        if n + 1 < self.nodes.len() {
            // It ends behind `end`, so at least its last leaf stays.
            self.remove_leaves(n + 1, 0, end);
            self.firsts[n + 1] = self.nodes[n + 1].firsts[0];
        }
    }

    /// Removes the leaves of a node from the `from`-th on that end at or before `end`.
    fn remove_leaves(&mut self, n: usize, from: usize, end: u64) {
        let begin_before = self.nodes[n].firsts.partition_point(|first| *first < end);
        let is_last_cut = begin_before > from && self.end_of((n, begin_before - 1)) > end;
        let to = begin_before - usize::from(is_last_cut);
        if to > from {
            self.forget(n, from..to);
            self.nodes[n].firsts.drain(from..to);
            self.nodes[n].leaves.drain(from..to);
        }
    }

    /// Takes unused codes back once as many placements found none as there are entries, so that the
    /// sweep costs a constant an edit.
    fn sweep_if_it_pays(&mut self) {
        if self.dictionary.refused() <= self.entries / 4 + 64 {
            return;
        }
        let mut is_used = vec![false; self.dictionary.codes()];
        for leaf in self.nodes.iter().flat_map(|node| &node.leaves) {
            leaf.mark_codes(&mut is_used);
        }
        self.dictionary.keep(&is_used);
    }
}

/// The pieces of a leaf that ends before `leaf_end`, with one placement from `start` to before
/// `end`.
fn overwrite(pieces: &[Piece], leaf_end: u64, start: u64, end: u64, placement: Bits) -> Vec<Piece> {
    let mut result = Vec::with_capacity(pieces.len() + 2);
    let (before, behind) = (
        pieces.partition_point(|piece| piece.start < start),
        pieces.partition_point(|piece| piece.start <= end),
    );
    result.extend_from_slice(&pieces[..before]);
    push_piece(&mut result, start, placement);
    if end < leaf_end {
        // The piece that holds `end` goes on there.
        push_piece(&mut result, end, pieces[behind - 1].placement);
        pieces[behind..]
            .iter()
            .for_each(|piece| push_piece(&mut result, piece.start, piece.placement));
    }
    result
}

/// Why ranges were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// This id has an owner already.
    Owned(ChunkId),
    /// This id has no owner.
    Unowned(ChunkId),
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owned(id) => write!(f, "chunk {id} has an owner already"),
            Self::Unowned(id) => write!(f, "chunk {id} has no owner"),
        }
    }
}

impl std::error::Error for RangeError {}
