//! The nodes of the tree: of leaves, or of the blocks of a region.

use super::leaf::Leaf;
use super::region::{BLOCKS, Region};

/// Position of a leaf or block: the node's index, and the index within the node.
pub(super) type LeafPosition = (usize, usize);

/// Consecutive ids from the node's first on.
#[derive(Debug)]
pub(super) enum TreeNode {
    Leaves(Leaves),
    /// The ids of one region, which begins at a multiple of its length.
    Blocks(Box<Region>),
}

/// Consecutive leaves.
#[derive(Debug)]
pub(super) struct Leaves {
    /// The first id of each leaf, in bits.
    pub(super) firsts: Vec<u64>,
    pub(super) leaves: Vec<Leaf>,
}

impl TreeNode {
    /// Number of leaves or blocks.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaves(node) => node.leaves.len(),
            Self::Blocks(_) => BLOCKS,
        }
    }

    /// Entries of all leaves or blocks.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        match self {
            Self::Leaves(node) => node.leaves.iter().map(Leaf::entries).sum(),
            Self::Blocks(region) => region.entries(),
        }
    }

    /// Memory without the struct itself and without what [`RangeMap::leaf_bytes`] counts.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Leaves(node) => node.leaves.capacity() * (size_of::<u64>() + size_of::<Leaf>()),
            Self::Blocks(region) => size_of::<Region>() + region.bytes(),
        }
    }
}
