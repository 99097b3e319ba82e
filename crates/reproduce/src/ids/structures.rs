//! The maps that are compared, behind one trait.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;

use amalgam_cluster::ids::{ChunkId, IdRange};
use amalgam_cluster::ranges::{MapLimits, Placement, RangeMap};
use anyhow::ensure;

use crate::ids::arguments::{IdsArguments, Structure};
use crate::ids::cuckoo::Cuckoo;
use crate::ids::moves::{CREATOR, Move, Moves, id_of, ids_of};

/// The part of the cuckoo table that is filled.
const CUCKOO_FILL: f64 = 0.9;

/// A map from ids to owners. Calls take many ids, so that the cost of the virtual call is
/// negligible.
pub trait OwnerMap {
    /// The sum of the owners of ids.
    fn get(&self, counters: &[u64]) -> u64;
    /// Moves ids that exist.
    fn migrate(&mut self, moves: &[Move]);
    /// The number of ranges in the map; of entries, if it has no ranges.
    fn ranges(&self) -> u64;
    /// The bytes that the map itself counts; None if it does not count.
    fn counted_bytes(&self) -> Option<u64> {
        None
    }
}

/// Builds a structure with all ids at their first placement.
///
/// # Errors
///
/// If the cuckoo table is full too early.
pub fn build(structure: Structure, arguments: &IdsArguments) -> anyhow::Result<Box<dyn OwnerMap>> {
    let moves = Moves::new(arguments);
    Ok(match structure {
        Structure::CidTree => Box::new(Tree::new(arguments, &moves)),
        Structure::BTree if arguments.backups == 0 => {
            Box::new(ByEnd::<u16>::new(arguments, &moves))
        }
        Structure::BTree => Box::new(ByEnd::<Placement>::new(arguments, &moves)),
        Structure::Hash => Box::new(Hashed::new(arguments.ids)),
        Structure::Cuckoo => Box::new(Kicked::new(arguments.ids)?),
        Structure::Array => Box::new(Flat(vec![CREATOR; usize::try_from(arguments.ids)?])),
        Structure::Java => anyhow::bail!("Java's map lives in another process"),
    })
}

/// The approximate bytes that a structure will take, so that a run which does not fit is refused.
pub fn expected_bytes(structure: Structure, arguments: &IdsArguments) -> u64 {
    let moved = arguments.migrations();
    match structure {
        Structure::CidTree if arguments.backups == 0 => moved * 6,
        Structure::CidTree => moved * 14,
        Structure::BTree => moved * 60,
        Structure::Hash => arguments.ids * 35,
        Structure::Cuckoo => arguments.ids * 12,
        Structure::Array => arguments.ids * 2,
        Structure::Java => arguments.ids * 90,
    }
}

/// The map, and the number of ids that it prefetches together; 1 for none.
struct Tree(RangeMap, usize);

impl Tree {
    fn new(arguments: &IdsArguments, moves: &Moves) -> Self {
        let limits = MapLimits { leaf_entries_max: arguments.leaf_entries, ..MapLimits::default() };
        let mut map = RangeMap::new(limits);
        for (cell, start) in (0..arguments.ids).step_by(limits.range_ids_max as usize).enumerate() {
            let end = (start + limits.range_ids_max).min(arguments.ids);
            map.assign(ids_of(start, end), Some(moves.home(cell as u64)));
        }
        Self(map, arguments.together)
    }

    fn fetch(&self, ids: impl Iterator<Item = u64>, fetched: &mut Vec<ChunkId>) {
        if self.1 > 1 {
            fetched.clear();
            fetched.extend(ids.map(id_of));
            self.0.fetch(fetched);
        }
    }
}

impl OwnerMap for Tree {
    fn get(&self, counters: &[u64]) -> u64 {
        let owner = |counter: &u64| {
            self.0.placement(id_of(*counter)).map_or(0, |found| u64::from(found.owner().get()))
        };
        let (mut sum, mut fetched) = (0, Vec::with_capacity(self.1));
        for counters in counters.chunks(self.1) {
            self.fetch(counters.iter().copied(), &mut fetched);
            sum += counters.iter().map(owner).sum::<u64>();
        }
        sum
    }

    fn migrate(&mut self, moves: &[Move]) {
        let mut fetched = Vec::with_capacity(self.1);
        for moves in moves.chunks(self.1) {
            self.fetch(moves.iter().map(|one| one.counter), &mut fetched);
            for one in moves {
                let moved = self.0.migrate(IdRange::single(id_of(one.counter)), one.placement);
                moved.expect("all ids are owned");
            }
        }
    }

    fn ranges(&self) -> u64 {
        self.0.ranges().count() as u64
    }

    fn counted_bytes(&self) -> Option<u64> {
        Some(self.0.bytes() as u64)
    }
}

/// The part of a placement that the B-tree keeps: the owner, or all of it.
trait Kept: Copy + PartialEq {
    fn of(placement: Placement) -> Self;
    fn owner(self) -> u16;
}

impl Kept for u16 {
    fn of(placement: Placement) -> Self {
        placement.owner().get()
    }

    fn owner(self) -> u16 {
        self
    }
}

impl Kept for Placement {
    fn of(placement: Placement) -> Self {
        placement
    }

    fn owner(self) -> u16 {
        Placement::owner(self).get()
    }
}

/// The paper's modified B-tree: the ends of ranges are the keys, the nodes the leaves; a range
/// begins where the one before it ends. A migration is lookups, inserts and removals of a B-tree,
/// here the standard library's.
struct ByEnd<K>(BTreeMap<u64, K>);

impl<K: Kept> ByEnd<K> {
    fn new(arguments: &IdsArguments, moves: &Moves) -> Self {
        let cell = MapLimits::default().range_ids_max;
        let starts = (0..arguments.ids).step_by(cell as usize).enumerate();
        Self(
            starts
                .map(|(number, start)| {
                    let last = (start + cell).min(arguments.ids) - 1;
                    (last, K::of(moves.home(number as u64)))
                })
                .collect(),
        )
    }

    fn migrate_one(&mut self, counter: u64, to: K) {
        let Some((&last, &from)) = self.0.range(counter..).next() else { return };
        if from == to {
            return;
        }
        let before = self.0.range(..counter).next_back().map(|(last, kept)| (*last, *kept));
        let begins = before.map_or(0, |(last, _)| last + 1) == counter;
        // The range to the left grows by this id, or the split range ends before it.
        if begins {
            if let Some((before, _)) = before.filter(|(_, kept)| *kept == to) {
                self.0.remove(&before);
            }
        } else {
            self.0.insert(counter - 1, from);
        }
        if counter < last {
            self.0.insert(counter, to);
            return;
        }
        // The id was the last of its range: it may become part of the range to the right.
        let after = self.0.range(counter + 1..).next().map(|(_, kept)| *kept);
        if after == Some(to) {
            self.0.remove(&counter);
        } else {
            self.0.insert(counter, to);
        }
    }
}

impl<K: Kept> OwnerMap for ByEnd<K> {
    fn get(&self, counters: &[u64]) -> u64 {
        let owner = |counter: &u64| {
            self.0.range(*counter..).next().map_or(0, |(_, kept)| u64::from(kept.owner()))
        };
        counters.iter().map(owner).sum()
    }

    fn migrate(&mut self, moves: &[Move]) {
        moves.iter().for_each(|one| self.migrate_one(one.counter, K::of(one.placement)));
    }

    fn ranges(&self) -> u64 {
        self.0.len() as u64
    }
}

struct Hashed(HashMap<u64, u16>);

impl Hashed {
    fn new(ids: u64) -> Self {
        let mut map = HashMap::with_capacity(ids as usize);
        map.extend((0..ids).map(|counter| (id_of(counter).bits(), CREATOR)));
        Self(map)
    }
}

impl OwnerMap for Hashed {
    fn get(&self, counters: &[u64]) -> u64 {
        let owner = |counter: &u64| {
            self.0.get(&id_of(*counter).bits()).map_or(0, |owner| u64::from(*owner))
        };
        counters.iter().map(owner).sum()
    }

    fn migrate(&mut self, moves: &[Move]) {
        for one in moves {
            if let Some(owner) = self.0.get_mut(&id_of(one.counter).bits()) {
                *owner = one.placement.owner().get();
            }
        }
    }

    fn ranges(&self) -> u64 {
        self.0.len() as u64
    }
}

struct Kicked(Cuckoo, u64);

impl Kicked {
    fn new(ids: u64) -> anyhow::Result<Self> {
        let mut map = Cuckoo::new(ids, CUCKOO_FILL);
        let is_in = (0..ids).all(|counter| map.insert(id_of(counter).bits(), CREATOR));
        ensure!(is_in, "the cuckoo table is full before all {ids} ids are in");
        Ok(Self(map, ids))
    }
}

impl OwnerMap for Kicked {
    fn get(&self, counters: &[u64]) -> u64 {
        let owner = |counter: &u64| self.0.get(id_of(*counter).bits()).map_or(0, u64::from);
        counters.iter().map(owner).sum()
    }

    fn migrate(&mut self, moves: &[Move]) {
        for one in moves {
            black_box(self.0.update(id_of(one.counter).bits(), one.placement.owner().get()));
        }
    }

    fn ranges(&self) -> u64 {
        self.1
    }
}

struct Flat(Vec<u16>);

impl OwnerMap for Flat {
    fn get(&self, counters: &[u64]) -> u64 {
        counters.iter().map(|counter| u64::from(self.0[*counter as usize])).sum()
    }

    fn migrate(&mut self, moves: &[Move]) {
        moves.iter().for_each(|one| self.0[one.counter as usize] = one.placement.owner().get());
    }

    fn ranges(&self) -> u64 {
        self.0.len() as u64
    }
}
