//! MemC3 (NSDI 2013): optimistic cuckoo hashing. A key's item is named by one of the slots of two
//! buckets. Readers search both without a lock; writers move items between their buckets to make
//! room. `docs/memc3.md` describes the layout and argues why no reader misses a present key.
//!
//! Invariants, apart from those of the modules:
//! 1. Readers store nothing to shared memory but in an item's header, that it was read.
//! 2. No item is read to move another within a table; only growth reads keys.
//! 3. An insert into a full pair of buckets ends in a path, in growth, in the eviction of one item
//!    or in `OutOfMemory`, within named bounds.

#[cfg(not(loom))]
pub mod occupancy;

mod ablation;
mod cuckoo;
#[cfg(not(loom))]
mod directory;
mod engine;
mod item_table;
mod path;
mod probe;
mod read;
mod scan;
mod scan_log;
mod set;
mod stripes;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;
mod worker;
mod write;

pub use ablation::{Only, Standard, Variant};
#[cfg(not(loom))]
pub use directory::{Directory, Paths};
pub use engine::Memc3Engine;
pub use worker::Memc3Worker;

/// The engine as it is served: buckets of 8 slots and all parts.
pub type Memc3 = Memc3Engine<8, Standard>;
