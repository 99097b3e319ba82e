//! MemC3 (NSDI 2013): optimistic cuckoo hashing. A key's item is named by one of the slots of two
//! buckets; readers look at both without a lock, writers move items between their buckets to make
//! room. `docs/memc3.md` describes the layout and argues why no reader misses a present key.
//!
//! Invariants, beside those of the files:
//! 1. Readers store nothing that is shared but an item's recency and fetched bits.
//! 2. No item is read to move another within a table; growth alone reads keys.
//! 3. A full pair of buckets ends in a path, in growth, in the eviction of one item or in
//!    `OutOfMemory`, within named bounds.

#[cfg(not(loom))]
pub mod occupancy;

mod cuckoo;
#[cfg(not(loom))]
mod directory;
mod factors;
mod path;
mod probe;
mod scan;
mod store;
mod stripes;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;
mod worker;

use crate::shaped::shaped_engine;
use crate::{Configuration, OpenError};
#[cfg(not(loom))]
pub use directory::{Directory, Paths};
use store::Store;
use worker::StoreWorker;

/// The engine. Buckets of 8 slots unless [`crate::Tuning::slots_per_bucket`] asks for 4.
pub struct Memc3(Shape);

/// A worker of [`Memc3`].
pub struct Memc3Worker<'i>(ShapedWorker<'i>);

shaped_engine!("memc3", Memc3(Shape), Memc3Worker(ShapedWorker): Four = 4, Eight = 8);

fn open(configuration: &Configuration) -> Result<Shape, OpenError> {
    let tuning = &configuration.tuning;
    tuning.check_disabled(factors::FACTORS)?;
    if let Some(stripes) = tuning.stripes.filter(|stripes| !stripes.is_power_of_two()) {
        return Err(OpenError::Configuration(format!("{stripes} stripes are no power of two")));
    }
    let most = path::MOST_DISPLACEMENTS;
    if let Some(displacements) = tuning.max_displacements.filter(|displaced| *displaced > most) {
        return Err(OpenError::Configuration(format!(
            "an insert displaces {most} items at most, not {displacements}"
        )));
    }
    match tuning.slots_per_bucket {
        None | Some(8) => Store::open(configuration).map(Shape::Eight),
        Some(4) => Store::open(configuration).map(Shape::Four),
        Some(other) => {
            Err(OpenError::Configuration(format!("memc3 has buckets of 4 or 8 slots, not {other}")))
        }
    }
}
