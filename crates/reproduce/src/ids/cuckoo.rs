//! A cuckoo hash table of primitive ids: what the paper compares the CID-tree with.

use amalgam_bench::workload::mix64;

const SLOTS: usize = 4;
/// The value of an empty slot: no id has so large a creator.
const EMPTY: u64 = u64::MAX;
/// The number of moves after which a table counts as full. At 90 % of four slots per bucket, an
/// insert needs at most a few dozen.
const KICKS_MAX: usize = 2000;

/// Four slots, each with 8 bytes of id and 2 of owner.
#[derive(Clone, Debug)]
struct Bucket {
    ids: [u64; SLOTS],
    owners: [u16; SLOTS],
}

/// A table of ids and their owners. An id is in one of two buckets of four slots each.
#[derive(Debug)]
pub struct Cuckoo {
    buckets: Vec<Bucket>,
    /// The random state that draws the slot which an insert displaces.
    drawn: u64,
}

impl Cuckoo {
    /// An empty table that is filled to the part `fill` by `ids` ids.
    pub fn new(ids: u64, fill: f64) -> Self {
        let buckets = (ids as f64 / fill / SLOTS as f64).ceil().max(1.0) as usize;
        let empty = Bucket { ids: [EMPTY; SLOTS], owners: [0; SLOTS] };
        Self { buckets: vec![empty; buckets], drawn: 0 }
    }

    #[inline]
    fn places(&self, id: u64) -> [usize; 2] {
        let hash = mix64(id);
        let second = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(32);
        [hash, second].map(|hash| ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize)
    }

    /// The owner of an id; None if the id is not in the table.
    #[inline]
    pub fn get(&self, id: u64) -> Option<u16> {
        for place in self.places(id) {
            let bucket = &self.buckets[place];
            for slot in 0..SLOTS {
                if bucket.ids[slot] == id {
                    return Some(bucket.owners[slot]);
                }
            }
        }
        None
    }

    /// Changes the owner of an id. Returns whether the id is in the table.
    #[inline]
    pub fn update(&mut self, id: u64, owner: u16) -> bool {
        for place in self.places(id) {
            let bucket = &mut self.buckets[place];
            for slot in 0..SLOTS {
                if bucket.ids[slot] == id {
                    bucket.owners[slot] = owner;
                    return true;
                }
            }
        }
        false
    }

    /// Adds an id. Requires: the id is not in the table. Returns whether there was room.
    pub fn insert(&mut self, mut id: u64, mut owner: u16) -> bool {
        let mut from = usize::MAX;
        for _ in 0..KICKS_MAX {
            let places = self.places(id);
            for place in places {
                let bucket = &mut self.buckets[place];
                if let Some(slot) = bucket.ids.iter().position(|held| *held == EMPTY) {
                    (bucket.ids[slot], bucket.owners[slot]) = (id, owner);
                    return true;
                }
            }
            let place = if places[0] == from { places[1] } else { places[0] };
            self.drawn = mix64(self.drawn);
            let slot = self.drawn as usize % SLOTS;
            let bucket = &mut self.buckets[place];
            std::mem::swap(&mut bucket.ids[slot], &mut id);
            std::mem::swap(&mut bucket.owners[slot], &mut owner);
            from = place;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ninety_percent_fit_and_are_found() {
        let mut cuckoo = Cuckoo::new(100_000, 0.9);
        for id in 0..100_000 {
            assert!(cuckoo.insert(id, id as u16), "{id}");
        }
        assert!(cuckoo.update(77, 5) && !cuckoo.update(100_000, 5));
        for id in 0..100_000 {
            let expected = if id == 77 { 5 } else { id as u16 };
            assert_eq!(cuckoo.get(id), Some(expected));
        }
        assert_eq!(cuckoo.get(100_000), None);
    }

    #[test]
    fn a_full_table_says_so() {
        let mut cuckoo = Cuckoo::new(8, 1.0);
        assert!((0..100).any(|id| !cuckoo.insert(id, 0)));
    }
}
