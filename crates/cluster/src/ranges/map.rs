//! The map of ranges: a tree of three levels.

use std::fmt;
use std::hint::black_box;
use std::ops;

use super::dictionary::{CODES_MAX, Dictionary};
use super::leaf::{FoundPiece, Leaf, Piece, overwrite};
use super::placement::{NOBODY, Placement, PlacementBits, from_bits, to_bits};
use super::region::{REGION_IDS, Region};
use super::tree_node::{LeafPosition, Leaves, TreeNode};
use crate::ids::{COUNTER_BITS, COUNTER_MAX, ChunkId, END, IdRange, NAMED_FIRST};

/// Named ids in the longest range: 16 ranges per partition. The ids are hashes of keys, and sparse.
pub const NAMED_RANGE_IDS: u64 = 1 << 44;

/// Ids whose memory [`RangeMap::fetch`] fetches together.
pub const FETCHED_TOGETHER: usize = 32;

/// Parameters of a [`RangeMap`]. Values out of bounds are clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Ids in the longest range: 1 to 2^48. Recovery is parallel in units of ranges.
    pub range_ids_max: u64,
    /// Entries in the fullest leaf: 4 to 4096. Larger leaves take less memory in sum, and are
    /// slower.
    pub leaf_entries_max: usize,
    /// Leaves in the fullest node: 4 to 4096.
    pub node_leaves_max: usize,
    /// Placements that have a 16-bit code, 1 to 65,536; others take 8 bytes at each use.
    pub placement_codes_max: usize,
    /// Entries from which on a region of 2^20 ids is kept in blocks of equal length, which is
    /// faster, and smaller if the entries are spread over it. Below a quarter it goes back to
    /// leaves.
    pub region_entries_min: usize,
}

impl Default for MapLimits {
    fn default() -> Self {
        Self {
            range_ids_max: 2_000_000,
            leaf_entries_max: 128,
            node_leaves_max: 128,
            placement_codes_max: CODES_MAX,
            region_entries_min: 4096,
        }
    }
}

impl MapLimits {
    fn clamped(self) -> Self {
        Self {
            range_ids_max: self.range_ids_max.clamp(1, COUNTER_MAX + 1),
            leaf_entries_max: self.leaf_entries_max.clamp(4, 4096),
            node_leaves_max: self.node_leaves_max.clamp(4, 4096),
            placement_codes_max: self.placement_codes_max.clamp(1, CODES_MAX),
            region_entries_min: self.region_entries_min.max(4),
        }
    }
}

/// Consecutive ids, and their placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The ids.
    pub ids: IdRange,
    /// Their owner and backups.
    pub placement: Placement,
}

/// An ordered map from ranges of ids to placements; see the head of [`super`].
///
/// Thread safety: lookups take `&self`, edits `&mut self`; the map has no lock of its own. A lookup
/// costs a binary search among nodes, one among the node's leaves (or a division, among blocks),
/// and a scan of some offsets; an edit costs that and moving at most a leaf's bytes.
#[derive(Debug)]
pub struct RangeMap {
    /// The first id of each node, in bits; the first of all is 0.
    pub(super) firsts: Vec<u64>,
    pub(super) nodes: Vec<TreeNode>,
    pub(super) dictionary: Dictionary,
    pub(super) limits: MapLimits,
    /// Memory of the entries of all leaves, in bytes.
    pub(super) leaf_bytes: usize,
    /// Number of entries of all nodes.
    pub(super) entries: usize,
}

impl RangeMap {
    /// Creates a map in which no id has an owner.
    pub fn new(limits: MapLimits) -> Self {
        let limits = limits.clamped();
        let node =
            TreeNode::Leaves(Leaves { firsts: vec![0], leaves: vec![Leaf::uniform(NOBODY)] });
        Self {
            firsts: vec![0],
            nodes: vec![node],
            dictionary: Dictionary::new(limits.placement_codes_max),
            limits,
            leaf_bytes: 0,
            entries: 0,
        }
    }

    /// The placement of an id; None if it has no owner.
    #[inline]
    pub fn placement(&self, id: ChunkId) -> Option<Placement> {
        let n = self.node_of(id.bits());
        from_bits(match &self.nodes[n] {
            TreeNode::Blocks(region) => region.get(id.bits() - self.firsts[n], &self.dictionary),
            TreeNode::Leaves(node) => {
                let place = (n, self.leaf_of(n, id.bits()));
                let first = self.first_of(place);
                let length = self.end_of(place) - first;
                node.leaves[place.1].get(id.bits() - first, length, &self.dictionary)
            }
        })
    }

    /// Prefetches what lookups or migrations of these ids will read. Each of them waits for memory
    /// four times in a row: for the firsts of its node, the leaf's head, its offsets and its value.
    /// Here [`FETCHED_TOGETHER`] ids wait for each of these at once. It changes no result, and pays
    /// if about that many ids are prefetched before they are used.
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
            let heads = places.iter().zip(ids).map(|(place, id)| match &self.nodes[place.0] {
                TreeNode::Leaves(node) => node.leaves[place.1].entries(),
                TreeNode::Blocks(region) => region.entries_near(id.bits() - self.firsts[place.0]),
            });
            let heads = heads.sum::<usize>();
            let lines = places.iter().zip(ids).map(|(place, id)| match &self.nodes[place.0] {
                TreeNode::Leaves(node) => {
                    let first = self.first_of(*place);
                    node.leaves[place.1].touch(id.bits() - first, self.end_of(*place) - first)
                }
                TreeNode::Blocks(region) => region.touch(id.bits() - self.firsts[place.0]),
            });
            // The results are not used; `black_box` keeps the reads.
            black_box((heads, lines.fold(0, u8::wrapping_add)));
        }
    }

    /// The range that an id lies in; None if it has no owner.
    pub fn find(&self, id: ChunkId) -> Option<Range> {
        let (ids, placement) = self.around(id);
        placement.map(|placement| Range { ids, placement })
    }

    /// The ids around one, within its cell, that share its placement or its lack of one.
    pub fn around(&self, id: ChunkId) -> (IdRange, Option<Placement>) {
        let place = self.locate(id.bits());
        let FoundPiece { mut start, mut end, placement } = self.piece_at(place, id.bits());
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

    /// Assigns a placement to ids without an owner.
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

    /// Assigns a placement to ids with owners, possibly several.
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

    /// Removes the placement of ids.
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

    /// Assigns a placement, or none, to ids whatever they had: for caches, replicas and failover.
    pub fn assign(&mut self, ids: IdRange, placement: Option<Placement>) {
        let bits = to_bits(placement);
        let there = self.piece_at(self.locate(ids.start()), ids.start());
        if there.placement == bits && there.end >= ids.end() {
            return;
        }
        self.sweep_if_it_pays();
        self.dictionary.allow(self.entries);
        let mut at = ids.start();
        while at < ids.end() {
            let n = self.node_of(at);
            if matches!(self.nodes[n], TreeNode::Blocks(_)) {
                let end = ids.end().min(self.firsts[n] + REGION_IDS);
                self.assign_blocks(n, at, end, bits);
                at = end;
                continue;
            }
            // The first leaf grows over the leaves that are covered whole, so at most two are left
            // to edit, unless merging and packing cut them anew.
            let place = (n, self.leaf_of(n, at));
            self.remove_covered(place, ids.end());
            let end = self.end_of(place).min(ids.end());
            self.assign_within(place, at, end, bits);
            at = end;
        }
    }

    /// As [`Self::assign`] for each of many ranges, which are disjoint and ascending; a leaf is
    /// packed once for all that it contains.
    pub fn assign_all(&mut self, edits: &[(IdRange, Option<Placement>)]) {
        let mut rest = edits;
        while let [(ids, placement), others @ ..] = rest {
            let place = self.locate(ids.start());
            let leaf_end = self.end_of(place);
            // Few enough that the leaf becomes two at most, as its node is split in two at most.
            let within = rest.iter().take(self.limits.leaf_entries_max / 4);
            let count = within.take_while(|(ids, _)| ids.end() <= leaf_end).count();
            if count < 2 || matches!(self.nodes[place.0], TreeNode::Blocks(_)) {
                self.assign(*ids, *placement);
                rest = others;
                continue;
            }
            self.sweep_if_it_pays();
            self.dictionary.allow(self.entries);
            let bits =
                |(ids, to): &(IdRange, Option<Placement>)| (ids.start()..ids.end(), to_bits(*to));
            let within: Vec<_> = rest[..count].iter().map(bits).collect();
            self.overwrite(place, &within);
            rest = &rest[count..];
        }
    }

    /// Memory of the map and everything in it, in bytes, without the allocator's overhead.
    pub fn bytes(&self) -> usize {
        let in_nodes: usize = self.nodes.iter().map(TreeNode::bytes).sum();
        let per_node = size_of::<u64>() + size_of::<TreeNode>();
        size_of::<Self>()
            + self.nodes.capacity() * per_node
            + in_nodes
            + self.leaf_bytes
            + self.dictionary.bytes()
    }

    /// Number of leaves and blocks, which determines [`Self::bytes`] per range.
    pub fn leaves(&self) -> usize {
        self.nodes.iter().map(TreeNode::len).sum()
    }

    /// The parameters after clamping.
    pub fn limits(&self) -> MapLimits {
        self.limits
    }

    /// The first of `ids` whose placement satisfies `is_wanted`.
    fn first_that(
        &self,
        ids: IdRange,
        is_wanted: impl Fn(PlacementBits) -> bool,
    ) -> Option<ChunkId> {
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
    pub(super) fn locate(&self, bits: u64) -> LeafPosition {
        let n = self.node_of(bits);
        (n, self.leaf_of(n, bits))
    }

    #[inline]
    pub(super) fn node_of(&self, bits: u64) -> usize {
        self.firsts.partition_point(|first| *first <= bits) - 1
    }

    #[inline]
    pub(super) fn leaf_of(&self, n: usize, bits: u64) -> usize {
        match &self.nodes[n] {
            TreeNode::Leaves(node) => node.firsts.partition_point(|first| *first <= bits) - 1,
            TreeNode::Blocks(_) => Region::block_of(bits - self.firsts[n]),
        }
    }

    #[inline]
    pub(super) fn first_of(&self, (n, l): LeafPosition) -> u64 {
        match &self.nodes[n] {
            TreeNode::Leaves(node) => node.firsts[l],
            TreeNode::Blocks(_) => self.firsts[n] + Region::start_of(l),
        }
    }

    /// One past the last id of a leaf.
    #[inline]
    pub(super) fn end_of(&self, (n, l): LeafPosition) -> u64 {
        match &self.nodes[n] {
            TreeNode::Leaves(node) => {
                let next = node.firsts.get(l + 1).or_else(|| self.firsts.get(n + 1));
                next.copied().unwrap_or(END)
            }
            TreeNode::Blocks(_) => self.firsts[n] + Region::start_of(l + 1),
        }
    }

    pub(super) fn before(&self, (n, l): LeafPosition) -> LeafPosition {
        if l > 0 { (n, l - 1) } else { (n - 1, self.nodes[n - 1].len() - 1) }
    }

    pub(super) fn after(&self, (n, l): LeafPosition) -> LeafPosition {
        if l + 1 < self.nodes[n].len() { (n, l + 1) } else { (n + 1, 0) }
    }

    /// The piece of a leaf that an id lies in.
    pub(super) fn piece_at(&self, (n, l): LeafPosition, bits: u64) -> FoundPiece {
        let (first, found) = match &self.nodes[n] {
            TreeNode::Leaves(node) => {
                let first = node.firsts[l];
                let length = self.end_of((n, l)) - first;
                (first, node.leaves[l].find(bits - first, length, &self.dictionary))
            }
            TreeNode::Blocks(region) => {
                (self.firsts[n], region.find(bits - self.firsts[n], &self.dictionary))
            }
        };
        FoundPiece { start: first + found.start, end: first + found.end, ..found }
    }

    /// Appends the pieces of a leaf.
    pub(super) fn read(&self, (n, l): LeafPosition, pieces: &mut Vec<Piece>) {
        let first = self.first_of((n, l));
        match &self.nodes[n] {
            TreeNode::Leaves(node) => {
                node.leaves[l].read(first, self.end_of((n, l)), &self.dictionary, pieces);
            }
            TreeNode::Blocks(region) => region.read(l, first, &self.dictionary, pieces),
        }
    }

    /// The leaves of a node that has leaves.
    pub(super) fn leaves_of(&mut self, n: usize) -> &mut Leaves {
        match &mut self.nodes[n] {
            TreeNode::Leaves(node) => node,
            TreeNode::Blocks(_) => unreachable!("callers know that it has leaves"),
        }
    }

    /// The cell that an id's range cannot exceed.
    pub(super) fn cell(&self, bits: u64) -> ops::Range<u64> {
        let creator = bits & !COUNTER_MAX;
        let counter = bits & COUNTER_MAX;
        let is_named = bits >> COUNTER_BITS >= u64::from(NAMED_FIRST);
        let most = if is_named { NAMED_RANGE_IDS } else { self.limits.range_ids_max };
        let start = counter - counter % most;
        let end = (start + most).min(COUNTER_MAX + 1);
        creator + start..creator + end
    }

    /// Migrates one id that has an owner and its leaf's default placement: a chunk that migrates
    /// for the first time. False if that is not the case; nothing has changed then.
    fn migrate_first(&mut self, bits: u64, placement: Placement) -> bool {
        let (n, l) = self.locate(bits);
        let default = match &self.nodes[n] {
            TreeNode::Leaves(node) => node.leaves[l].default(),
            TreeNode::Blocks(region) => region.default(l, &self.dictionary),
        };
        default != NOBODY && self.try_insert_single((n, l), bits, to_bits(Some(placement)))
    }

    /// See [`Leaf::try_insert_single`] and [`Region::try_insert_single`].
    fn try_insert_single(
        &mut self,
        place: LeafPosition,
        bits: u64,
        placement: PlacementBits,
    ) -> bool {
        let (first, end, most) =
            (self.first_of(place), self.end_of(place), self.limits.leaf_entries_max);
        let leaf = match &mut self.nodes[place.0] {
            TreeNode::Leaves(node) => &mut node.leaves[place.1],
            TreeNode::Blocks(region) => {
                let offset = bits - self.firsts[place.0];
                let does = region.try_insert_single(offset, placement, &mut self.dictionary);
                self.entries += usize::from(does);
                return does;
            }
        };
        let (before, offset, length) = (leaf.bytes(), bits - first, end - first);
        let does = leaf.try_insert_single(offset, length, placement, most, &mut self.dictionary);
        if does {
            self.leaf_bytes += leaf.bytes() - before;
            self.entries += 1;
        }
        does
    }

    fn assign_within(
        &mut self,
        (n, l): LeafPosition,
        start: u64,
        end: u64,
        placement: PlacementBits,
    ) {
        if end - start == 1 && self.try_insert_single((n, l), start, placement) {
            return;
        }
        self.overwrite((n, l), &[(start..end, placement)]);
    }

    /// Edits ids of one leaf: spans, disjoint and ascending.
    fn overwrite(&mut self, (n, l): LeafPosition, edits: &[(ops::Range<u64>, PlacementBits)]) {
        let leaf_end = self.end_of((n, l));
        let mut pieces = Vec::with_capacity(2 * self.leaves_of(n).leaves[l].entries() + 1);
        self.read((n, l), &mut pieces);
        let pieces = overwrite(&pieces, leaf_end, edits);
        self.replace((n, l), 1, leaf_end, &pieces);
        self.merge_if_small(edits[0].0.start);
    }

    /// Number of regions.
    #[cfg(test)]
    pub(super) fn regions(&self) -> usize {
        self.nodes.iter().filter(|node| matches!(node, TreeNode::Blocks(_))).count()
    }

    /// Checks invariants 3 and 4 of the module, for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!((self.firsts.len(), self.firsts[0]), (self.nodes.len(), 0));
        let (mut last, mut bytes, mut entries) = (None, 0, 0);
        for (n, node) in self.nodes.iter().enumerate() {
            assert!(last.is_none_or(|last| last < self.firsts[n]), "nodes ascend");
            last = Some(self.firsts[n]);
            entries += node.entries();
            let node = match node {
                TreeNode::Leaves(node) => node,
                TreeNode::Blocks(region) => {
                    assert_eq!(self.firsts[n] % REGION_IDS, 0);
                    let end = self.firsts.get(n + 1).copied().unwrap_or(END);
                    assert_eq!(end - self.firsts[n], REGION_IDS, "a region is whole");
                    assert!(region.entries() * 4 >= self.limits.region_entries_min);
                    region.check(&self.dictionary);
                    continue;
                }
            };
            assert!((1..=self.limits.node_leaves_max).contains(&node.leaves.len()));
            assert_eq!((node.firsts[0], node.firsts.len()), (self.firsts[n], node.leaves.len()));
            for (l, leaf) in node.leaves.iter().enumerate() {
                assert!(l == 0 || node.firsts[l - 1] < node.firsts[l], "leaves ascend");
                assert!(leaf.entries() <= self.limits.leaf_entries_max);
                leaf.check(self.end_of((n, l)) - node.firsts[l], &self.dictionary);
                bytes += leaf.bytes();
            }
        }
        assert_eq!((bytes, entries), (self.leaf_bytes, self.entries));
    }

    /// Frees unused codes once there were as many placements without a code as a quarter of the
    /// entries, so that a sweep costs a constant per edit.
    fn sweep_if_it_pays(&mut self) {
        if self.dictionary.refused() <= self.entries / 4 + 64 {
            return;
        }
        let mut is_used = vec![false; self.dictionary.codes()];
        for node in &self.nodes {
            match node {
                TreeNode::Leaves(node) => {
                    node.leaves.iter().for_each(|leaf| leaf.mark_codes(&mut is_used));
                }
                TreeNode::Blocks(region) => region.mark_codes(&mut is_used),
            }
        }
        self.dictionary.keep(&is_used);
    }
}

/// The reason for which ranges were not changed.
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
