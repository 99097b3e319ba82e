//! Mercury (Gandhi et al., SYSTOR 2013): a chained hash table whose buckets are one word each: item
//! reference, lock bit and moved bit. `docs/mercury.md` gives the reasons for the design.
//!
//! A lookup costs the bucket's line and the item's line. An operation takes its worker's *thread
//! lock* (which keeps the tables from being replaced), then the *bucket lock*. Under the bucket
//! lock it only follows and changes links: items are immutable, so they are built before and copied
//! out after, under a guard of the memory module.
//!
//! Invariants:
//! 1. A bucket's chain, and the words of its items, change only under the bucket's lock.
//! 2. Lock order: the expansion's state, thread locks, one bucket lock (the expand thread: one or a
//!    pair of neighbours of the old table, then one of the new). No allocation, eviction or
//!    callback happens under a bucket lock or a thread lock.
//! 3. Each item is in the chain of exactly one bucket: that of its hash, in the table that holds
//!    the hash now (see `tables`).

mod buckets;
#[cfg(not(loom))]
mod chain;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod expand;
mod links;
mod locking;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod read;
#[cfg(not(loom))]
mod scan;
#[cfg(not(loom))]
mod set;
mod tables;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread_lock;
mod word;
#[cfg(not(loom))]
mod write;

#[cfg(not(loom))]
pub use engine::{MercuryEngine, MercuryWorker};
pub use locking::{Locking, NoLock, Pthread, TestAndSet};

/// Mercury as in the paper.
#[cfg(not(loom))]
pub type Mercury = MercuryEngine<TestAndSet>;
/// Mercury with a mutex of the system's thread library for each bucket.
#[cfg(not(loom))]
pub type MercuryPthread = MercuryEngine<Pthread>;
/// Mercury whose reads take no locks: for read-only workloads.
#[cfg(not(loom))]
pub type MercuryNoLock = MercuryEngine<NoLock>;
