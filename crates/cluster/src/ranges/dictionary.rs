//! A dictionary of placements: 16-bit codes for 64-bit placements.

use super::placement::{NOBODY, PlacementBits};
use crate::hash::IntHashMap;

/// Number of 16-bit codes.
pub const CODES_MAX: usize = 1 << 16;
/// A code costs some 50 bytes. So beyond this many codes there is one per [`ENTRIES_PER_CODE`]
/// entries at most: where each chunk has a replica set of its own, few codes would be used twice.
const CODES_FREE: usize = 1024;
const ENTRIES_PER_CODE: usize = 64;
/// Bytes of the hash map for an entry: key, value and control byte, at half load.
const MAP_ENTRY_BYTES: usize = 2 * (16 + 1);

/// The placements that have a code. [`NOBODY`] always has code 0.
///
/// Uses of codes are not counted: when all are taken, the map sweeps its leaves and keeps those in
/// use. So an edit costs no bookkeeping, and a cluster whose nodes come and go does not run out.
#[derive(Debug)]
pub struct Dictionary {
    codes: IntHashMap<PlacementBits, u16>,
    placements: Vec<PlacementBits>,
    free: Vec<u16>,
    limit: usize,
    /// Codes that pay for their memory at present; at most `limit`.
    allowed: usize,
    /// Placements that got no code since the last sweep.
    refused: usize,
}

impl Dictionary {
    /// Creates a dictionary of at most `limit` placements, [`NOBODY`] included.
    pub fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, CODES_MAX);
        let mut dictionary = Self {
            codes: IntHashMap::default(),
            placements: Vec::new(),
            free: Vec::new(),
            limit,
            allowed: limit.min(CODES_FREE),
            refused: 0,
        };
        dictionary.intern(NOBODY);
        dictionary
    }

    /// The placement of a code from [`Self::intern`].
    #[inline]
    pub fn placement(&self, code: u16) -> PlacementBits {
        self.placements[usize::from(code)]
    }

    /// The code of `placement`, a new one if needed; None if no code is left.
    pub fn intern(&mut self, placement: PlacementBits) -> Option<u16> {
        if let Some(code) = self.codes.get(&placement) {
            return Some(*code);
        }
        let code = match self.free.pop() {
            Some(code) => {
                self.placements[usize::from(code)] = placement;
                code
            }
            None if self.placements.len() < self.allowed => {
                self.placements.push(placement);
                (self.placements.len() - 1) as u16
            }
            None => {
                self.refused += 1;
                return None;
            }
        };
        self.codes.insert(placement, code);
        Some(code)
    }

    /// Allows as many codes as pay for themselves in a map of this many entries.
    pub fn allow(&mut self, entries: usize) {
        self.allowed = self.limit.min(CODES_FREE + entries / ENTRIES_PER_CODE);
    }

    /// Placements that got no code since the last sweep.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// Number of codes that a sweep has to mark.
    pub fn codes(&self) -> usize {
        self.placements.len()
    }

    /// Frees the codes that are not in use.
    pub fn keep(&mut self, is_used: &[bool]) {
        self.refused = 0;
        self.free.clear();
        for code in (1..self.placements.len()).filter(|code| !is_used[*code]) {
            // A code that was free before is not in the map, or the map has another code for its
            // placement.
            let placement = self.placements[code];
            if self.codes.get(&placement) == Some(&(code as u16)) {
                self.codes.remove(&placement);
            }
            self.free.push(code as u16);
        }
    }

    /// Memory without the struct itself, in bytes.
    pub fn bytes(&self) -> usize {
        self.codes.capacity() * MAP_ENTRY_BYTES
            + self.placements.capacity() * size_of::<PlacementBits>()
            + self.free.capacity() * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_bounded_and_come_back() {
        let mut dictionary = Dictionary::new(3);
        assert_eq!(dictionary.intern(NOBODY), Some(0));
        assert_eq!((dictionary.intern(10), dictionary.intern(20)), (Some(1), Some(2)));
        assert_eq!((dictionary.intern(30), dictionary.intern(10)), (None, Some(1)));
        assert_eq!(dictionary.refused(), 1);
        dictionary.keep(&[false, false, true]);
        assert_eq!((dictionary.intern(30), dictionary.intern(10)), (Some(1), None));
        assert_eq!((dictionary.placement(1), dictionary.placement(2)), (30, 20));
        dictionary.keep(&[false, true, false]);
        dictionary.keep(&[false, true, false]);
        assert_eq!((dictionary.intern(40), dictionary.intern(50)), (Some(2), None));
        assert_eq!(dictionary.intern(NOBODY), Some(0));
    }
}
