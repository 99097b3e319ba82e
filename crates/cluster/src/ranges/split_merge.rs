//! How the map is restructured by edits: nodes and leaves split when they are large and merge when
//! they are small; ids with many entries become a region, and leaves again.

use std::ops;

use super::leaf::{Leaf, Piece};
use super::map::RangeMap;
use super::placement::PlacementBits;
use super::region::{BLOCKS, REGION_IDS, Region};
use super::tree_node::{LeafPosition, Leaves, TreeNode};
use crate::ids::END;

impl RangeMap {
    /// Replaces `count` leaves of a node by leaves with these pieces.
    pub(super) fn replace(
        &mut self,
        (n, l): LeafPosition,
        count: usize,
        end: u64,
        pieces: &[Piece],
    ) {
        self.forget(n, l..l + count);
        let mut packed = Vec::with_capacity(2);
        let most = self.limits.leaf_entries_max;
        Leaf::pack(pieces, end, most, &mut self.dictionary, &mut packed);
        self.leaf_bytes += packed.iter().map(|(_, leaf)| leaf.bytes()).sum::<usize>();
        self.entries += packed.iter().map(|(_, leaf)| leaf.entries()).sum::<usize>();
        let node = self.leaves_of(n);
        node.firsts.splice(l..l + count, packed.iter().map(|(first, _)| *first));
        node.leaves.splice(l..l + count, packed.into_iter().map(|(_, leaf)| leaf));
        self.split_if_large(n);
    }

    /// Subtracts leaves that are about to be removed from the sums.
    pub(super) fn forget(&mut self, n: usize, leaves: ops::Range<usize>) {
        let TreeNode::Leaves(node) = &self.nodes[n] else { return };
        for leaf in &node.leaves[leaves] {
            self.leaf_bytes -= leaf.bytes();
            self.entries -= leaf.entries();
        }
    }

    /// Subtracts a whole node, as [`Self::forget`] does.
    pub(super) fn forget_node(&mut self, n: usize) {
        match &self.nodes[n] {
            TreeNode::Leaves(node) => self.forget(n, 0..node.leaves.len()),
            TreeNode::Blocks(region) => self.entries -= region.entries(),
        }
    }

    /// Gives ids of a region one placement; with few entries left it becomes leaves again.
    pub(super) fn assign_blocks(
        &mut self,
        n: usize,
        start: u64,
        end: u64,
        placement: PlacementBits,
    ) {
        let first = self.firsts[n];
        let TreeNode::Blocks(region) = &mut self.nodes[n] else { return };
        self.entries -= region.entries();
        if end - start == REGION_IDS {
            let leaves = vec![Leaf::uniform(placement)];
            self.nodes[n] = TreeNode::Leaves(Leaves { firsts: vec![first], leaves });
            self.merge_node_if_small(n);
            return;
        }
        let (offset, dictionary) = (start - first, &mut self.dictionary);
        if end - start > 1 || !region.try_insert_single(offset, placement, dictionary) {
            region.assign(offset, end - first, placement, dictionary);
        }
        let entries = region.entries();
        self.entries += entries;
        if entries * 4 < self.limits.region_entries_min {
            self.dissolve(n);
        }
    }

    /// Replaces a region by leaves.
    fn dissolve(&mut self, n: usize) {
        let mut pieces = Vec::new();
        (0..BLOCKS).for_each(|block| self.read((n, block), &mut pieces));
        self.forget_node(n);
        let mut packed = Vec::new();
        let (end, most) = (self.firsts[n] + REGION_IDS, self.limits.leaf_entries_max);
        Leaf::pack(&pieces, end, most, &mut self.dictionary, &mut packed);
        self.leaf_bytes += packed.iter().map(|(_, leaf)| leaf.bytes()).sum::<usize>();
        self.entries += packed.iter().map(|(_, leaf)| leaf.entries()).sum::<usize>();
        let mut nodes = Vec::new();
        while !packed.is_empty() {
            let rest = packed.split_off(packed.len().min(self.limits.node_leaves_max));
            let (firsts, leaves) = std::mem::replace(&mut packed, rest).into_iter().unzip();
            nodes.push(Leaves { firsts, leaves });
        }
        self.firsts.splice(n..=n, nodes.iter().map(|node| node.firsts[0]));
        self.nodes.splice(n..=n, nodes.into_iter().map(TreeNode::Leaves));
        self.merge_node_if_small(n);
    }

    /// Replaces the leaves around the middle of node `n` by a region, if they have enough entries.
    /// False if not.
    fn gather(&mut self, n: usize) -> bool {
        let node = self.leaves_of(n);
        let middle = node.firsts[node.firsts.len() / 2];
        let first = middle - middle % REGION_IDS;
        let end = first + REGION_IDS;
        let Some(region) = self.region_of(first) else { return false };
        self.cut(first);
        self.cut(end);
        let from = self.node_of(first);
        let to = from + self.firsts[from..].partition_point(|first| *first < end);
        (from..to).for_each(|n| self.forget_node(n));
        self.entries += region.entries();
        self.nodes.splice(from..to, [TreeNode::Blocks(Box::new(region))]);
        self.firsts.splice(from..to, [first]);
        true
    }

    /// Builds the region that begins at `first` from the leaves, if it has enough entries.
    fn region_of(&mut self, first: u64) -> Option<Region> {
        let end = first + REGION_IDS;
        let mut entries = 0;
        let mut place = self.locate(first);
        while place.0 < self.nodes.len() && self.first_of(place) < end {
            let TreeNode::Leaves(node) = &self.nodes[place.0] else { return None };
            entries += node.leaves[place.1].entries();
            place = self.after(place);
        }
        if entries < self.limits.region_entries_min {
            return None;
        }
        // Leaf by leaf: all pieces at once would be larger than the region.
        let (mut region, mut place) = (Region::empty(), self.locate(first));
        let (mut pieces, mut within) = (Vec::new(), Vec::new());
        for block in 0..BLOCKS {
            let start = first + Region::start_of(block);
            let end = first + Region::start_of(block + 1);
            while place.0 < self.nodes.len() && self.first_of(place) < end {
                self.read(place, &mut pieces);
                place = self.after(place);
            }
            let next = pieces.partition_point(|piece| piece.start < end);
            let begin = pieces[..next].partition_point(|piece| piece.start <= start) - 1;
            within.clear();
            within.push(Piece { start, ..pieces[begin] });
            within.extend_from_slice(&pieces[begin + 1..next]);
            region.write(block, &within, start, &mut self.dictionary);
            // The last piece may continue in the next block.
            pieces.drain(..next - 1);
        }
        // Leaves at its ends have entries outside of it.
        (region.entries() * 2 >= self.limits.region_entries_min).then_some(region)
    }

    /// Makes a node begin at an id. Requires: no region contains the id except as its first.
    fn cut(&mut self, at: u64) {
        if at == END {
            return;
        }
        let (n, mut l) = self.locate(at);
        let TreeNode::Leaves(_) = &self.nodes[n] else { return };
        if self.first_of((n, l)) < at {
            let end = self.end_of((n, l));
            let mut left = Vec::new();
            self.read((n, l), &mut left);
            let mut right = left.split_off(left.partition_point(|piece| piece.start < at));
            let last = left[left.len() - 1].placement;
            if right.first().is_none_or(|piece| piece.start > at) {
                right.insert(0, Piece { start: at, placement: last });
            }
            self.forget(n, l..l + 1);
            let (most, mut packed) = (self.limits.leaf_entries_max, Vec::with_capacity(2));
            Leaf::pack(&left, at, most, &mut self.dictionary, &mut packed);
            let before = packed.len();
            Leaf::pack(&right, end, most, &mut self.dictionary, &mut packed);
            self.leaf_bytes += packed.iter().map(|(_, leaf)| leaf.bytes()).sum::<usize>();
            self.entries += packed.iter().map(|(_, leaf)| leaf.entries()).sum::<usize>();
            let node = self.leaves_of(n);
            node.firsts.splice(l..=l, packed.iter().map(|(first, _)| *first));
            node.leaves.splice(l..=l, packed.into_iter().map(|(_, leaf)| leaf));
            l += before;
        }
        if l > 0 {
            self.split(n, l);
        }
    }

    fn split_if_large(&mut self, n: usize) {
        let count = self.nodes[n].len();
        if count <= self.limits.node_leaves_max {
            return;
        }
        if !self.gather(n) {
            self.split(n, count / 2);
            return;
        }
        // The rest of the node may still be too large, and so may the node behind the region.
        for n in n.saturating_sub(1)..n + 3 {
            if let Some(TreeNode::Leaves(_)) = self.nodes.get(n) {
                self.split_if_large(n);
            }
        }
    }

    /// Splits a node of leaves before index `at`.
    fn split(&mut self, n: usize, at: usize) {
        let node = self.leaves_of(n);
        let right = Leaves { firsts: node.firsts.split_off(at), leaves: node.leaves.split_off(at) };
        // Half of the capacity would stay empty until it has grown again.
        node.firsts.shrink_to_fit();
        node.leaves.shrink_to_fit();
        self.firsts.insert(n + 1, right.firsts[0]);
        self.nodes.insert(n + 1, TreeNode::Leaves(right));
    }

    /// Merges the leaf of an id with a neighbour if both are small, then likewise its node.
    pub(super) fn merge_if_small(&mut self, bits: u64) {
        let small = self.limits.leaf_entries_max / 4;
        let (n, l) = self.locate(bits);
        let TreeNode::Leaves(node) = &self.nodes[n] else { return };
        let is_small = |l: usize| node.leaves.get(l).is_some_and(|leaf| leaf.entries() <= small);
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
        let end = self.end_of((n, left + 1));
        let mut pieces = Vec::new();
        self.read((n, left), &mut pieces);
        self.read((n, left + 1), &mut pieces);
        self.replace((n, left), 2, end, &pieces);
    }

    fn merge_node_if_small(&mut self, n: usize) {
        let small = self.limits.node_leaves_max / 4;
        let is_small = |n: usize| match self.nodes.get(n) {
            Some(TreeNode::Leaves(node)) => node.leaves.len() <= small,
            _ => false,
        };
        if !is_small(n) {
            return;
        }
        let left =
            if is_small(n + 1) { Some(n) } else { n.checked_sub(1).filter(|n| is_small(*n)) };
        if let Some(left) = left {
            let right = self.nodes.remove(left + 1);
            self.firsts.remove(left + 1);
            if let TreeNode::Leaves(mut right) = right {
                let left = self.leaves_of(left);
                left.firsts.append(&mut right.firsts);
                left.leaves.append(&mut right.leaves);
            }
            self.shrink_top();
        }
    }

    /// Frees capacity for removed nodes.
    fn shrink_top(&mut self) {
        if self.nodes.capacity() > 4 * self.nodes.len() + 16 {
            self.nodes.shrink_to(2 * self.nodes.len());
            self.firsts.shrink_to(2 * self.firsts.len());
        }
    }

    /// Removes the leaves behind this one that end at or before `end`.
    pub(super) fn remove_covered(&mut self, (n, l): LeafPosition, end: u64) {
        if self.end_of((n, l)) >= end {
            return;
        }
        self.remove_leaves(n, l + 1, end);
        let mut last = n + 1;
        while last < self.nodes.len() && self.firsts.get(last + 1).copied().unwrap_or(END) <= end {
            self.forget_node(last);
            last += 1;
        }
        self.nodes.drain(n + 1..last);
        self.firsts.drain(n + 1..last);
        self.shrink_top();
        if let Some(TreeNode::Leaves(_)) = self.nodes.get(n + 1) {
            // It ends behind `end`, so at least its last leaf stays.
            self.remove_leaves(n + 1, 0, end);
            self.firsts[n + 1] = self.first_of((n + 1, 0));
        }
    }

    /// Removes the leaves of a node from index `from` on that end at or before `end`.
    fn remove_leaves(&mut self, n: usize, from: usize, end: u64) {
        let begin_before = self.leaves_of(n).firsts.partition_point(|first| *first < end);
        let is_last_cut = begin_before > from && self.end_of((n, begin_before - 1)) > end;
        let to = begin_before - usize::from(is_last_cut);
        if to > from {
            self.forget(n, from..to);
            let node = self.leaves_of(n);
            node.firsts.drain(from..to);
            node.leaves.drain(from..to);
        }
    }
}
