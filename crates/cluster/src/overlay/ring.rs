//! Positions on the ring, and the segments between super peers.

use std::ops::Range;

use crate::ids::{Creator, NAMED_FIRST, NodeId};

/// Number of positions on the ring.
pub const POSITIONS: u64 = 1 << 16;

/// The ring position of a creator: a node lies at its number; the 4,095 partitions of the named ids
/// are spread, 16 positions apart.
pub fn position(creator: Creator) -> u64 {
    let number = u64::from(creator.get());
    if creator.is_named() { (number - u64::from(NAMED_FIRST)) << 4 } else { number }
}

/// The positions from `first` to `last`, both included; they wrap around if `last` is before
/// `first`. If `last` directly precedes `first`, all positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSegment {
    /// The first position.
    pub first: u16,
    /// The last position.
    pub last: u16,
}

impl RingSegment {
    /// The segment of a super peer: the positions after its predecessor up to its own (DXRAM,
    /// section 2.2). A single super peer is its own predecessor.
    pub fn between(predecessor: NodeId, own: NodeId) -> Self {
        Self { first: predecessor.get().wrapping_add(1), last: own.get() }
    }

    /// The segment as one or two intervals of positions.
    pub fn parts(self) -> impl Iterator<Item = Range<u64>> {
        let (first, end) = (u64::from(self.first), u64::from(self.last) + 1);
        let (low, high) = if first < end { (first..end, 0..0) } else { (0..end, first..POSITIONS) };
        [low, high].into_iter().filter(|part| !part.is_empty())
    }

    /// Whether a position lies in the segment.
    pub fn contains(self, position: u64) -> bool {
        self.parts().any(|part| part.contains(&position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16) -> NodeId {
        NodeId::new(number).expect("a node")
    }

    #[test]
    fn arcs_of_a_ring_cover_each_position_once() {
        for ring in [vec![7], vec![0, 0xEFFF], vec![3, 9, 0x8000], vec![0xFFFE]] {
            let mut covered = vec![0u8; POSITIONS as usize];
            for (place, own) in ring.iter().enumerate() {
                let predecessor = ring[(place + ring.len() - 1) % ring.len()];
                let segment = RingSegment::between(node(predecessor), node(*own));
                assert!(segment.contains(u64::from(*own)));
                segment.parts().flatten().for_each(|position| covered[position as usize] += 1);
            }
            assert!(covered.iter().all(|times| *times == 1), "{ring:?}");
        }
    }

    #[test]
    fn named_partitions_are_spread() {
        let of = |number| position(Creator::new(number).expect("a creator"));
        assert_eq!((of(5), of(0xF000), of(0xF001), of(0xFFFE)), (5, 0, 16, 0xFFE0));
    }
}
