//! The owners of named ids in an array: each request for an item looks an owner up once or twice,
//! which takes several searches in a map of ranges.

use crate::ids::{COUNTER_BITS, ChunkId, IdRange, NAMED_FIRST, NodeId, PARTITIONS};
use crate::ranges::NAMED_RANGE_IDS;

/// Bytes of the array.
pub const BYTES: usize = size_of::<u16>() * CELLS;
/// Each cell is a range that named ids never exceed.
const CELLS: usize = (PARTITIONS as usize) << (COUNTER_BITS - NAMED_RANGE_IDS.trailing_zeros());
const FIRST: u64 = (NAMED_FIRST as u64) << COUNTER_BITS;
/// Marks a cell whose owner is not known, or that has several. No node has this number.
const UNKNOWN: u16 = u16::MAX;

/// The owner of each cell of named ids that has one owner. What is known here is a part of what
/// the map of ranges knows, and may be forgotten at any time.
#[derive(Debug, Default)]
pub struct NamedOwners {
    /// Empty before the first owner is noted.
    owners: Vec<u16>,
}

impl NamedOwners {
    /// The owner of an id, if it is known here.
    #[inline]
    pub fn get(&self, id: ChunkId) -> Option<NodeId> {
        let owner = *self.owners.get(cell_of(id.bits())?)?;
        NodeId::new(owner).ok()
    }

    /// Notes the owner of a range, if it is a whole cell.
    pub fn note(&mut self, ids: IdRange, owner: NodeId) {
        let Some(cell) = cell_of(ids.start()) else { return };
        if ids.len() != NAMED_RANGE_IDS {
            return;
        }
        if self.owners.is_empty() {
            self.owners = vec![UNKNOWN; CELLS];
        }
        self.owners[cell] = owner.get();
    }

    /// Forgets the owners of the cells that ids lie in.
    pub fn forget(&mut self, ids: IdRange) {
        let (first, last) = (cell_of(ids.first().bits()), cell_of(ids.last().bits()));
        if let (Some(first), Some(last)) = (first, last)
            && let Some(owners) = self.owners.get_mut(first..=last)
        {
            owners.fill(UNKNOWN);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.owners.fill(UNKNOWN);
    }
}

/// The cell of an id with these bits; None if it is not a named one.
#[inline]
fn cell_of(bits: u64) -> Option<usize> {
    Some((bits.checked_sub(FIRST)? / NAMED_RANGE_IDS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Creator;

    #[test]
    fn a_cell_has_the_owner_that_was_noted_last_until_any_id_of_it_is_forgotten() {
        let node = |number| NodeId::new(number).expect("a node");
        let id = |bits| ChunkId::from_bits(bits).expect("an id");
        let mut owners = NamedOwners::default();
        for creator in Creator::partitions() {
            assert_eq!(owners.get(creator.ids().last()), None);
        }
        let cells = Creator::partitions().flat_map(|creator| {
            let ids = creator.ids();
            (ids.start()..ids.end()).step_by(NAMED_RANGE_IDS as usize)
        });
        let cells: Vec<IdRange> =
            cells.map(|start| IdRange::from_bits(start, start + NAMED_RANGE_IDS)).collect();
        assert_eq!(cells.len(), CELLS);
        for (number, ids) in cells.iter().enumerate() {
            owners.note(*ids, node((number % 60_000) as u16));
        }
        for (number, ids) in cells.iter().enumerate() {
            let owner = Some(node((number % 60_000) as u16));
            assert_eq!([owners.get(ids.first()), owners.get(ids.last())], [owner; 2]);
        }
        owners.note(IdRange::single(cells[5].first()), node(1));
        assert_eq!(owners.get(cells[5].first()), Some(node(5)), "a part of a cell is not noted");
        owners.forget(IdRange::single(id(cells[5].first().bits() + 9)));
        let known = [4, 5, 6].map(|cell: usize| owners.get(cells[cell].last()));
        assert_eq!(known, [Some(node(4)), None, Some(node(6))]);
        owners.forget(Creator::new(NAMED_FIRST).expect("a partition").ids());
        assert_eq!(
            (owners.get(cells[15].first()), owners.get(cells[16].first())),
            (None, Some(node(16)))
        );
        let chunks = IdRange::starting_at(id(7), NAMED_RANGE_IDS).expect("a range");
        owners.note(chunks, node(3));
        assert_eq!(owners.get(id(7)), None, "chunks are not named");
        owners.clear();
        assert!(cells.iter().all(|ids| owners.get(ids.first()).is_none()));
    }
}
