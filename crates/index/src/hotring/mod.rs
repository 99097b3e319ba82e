//! HotRing (Chen et al., FAST 2020): a lock-free hash table of ordered rings whose heads move to
//! hot items. `docs/hotring.md` is its specification: words, invariants, linearization points, and
//! the races between operations by number.
//!
//! Thread safety: all shared state is head words, link words and immutable items; each step of a
//! protocol is one compare and exchange of one word.
//!
//! Invariants:
//! 1. A head leads to a ring of items in ascending order, with one wrap from the last item to the
//!    first.
//! 2. An item whose link is not occupied is in its ring; an occupied link is frozen.
//! 3. The thread that occupied an item retires it, once no head and no reachable link leads to it.
//! 4. The protocols (`walk`, `change`, `sample`, `split`) do not depend on memory or tables: they
//!    are written against the trait of `space`, and the loom tests run them on a few words.

mod change;
#[cfg(not(loom))]
mod cost;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod growth;
#[cfg(not(loom))]
mod items;
#[cfg(all(test, loom))]
mod loom_tests;
mod movement;
#[cfg(not(loom))]
mod read;
#[cfg(not(loom))]
mod rehash;
#[cfg(not(loom))]
mod ring_sampling;
mod sample;
#[cfg(not(loom))]
mod scan;
mod space;
mod split;
#[cfg(not(loom))]
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod walk;
mod word;
#[cfg(not(loom))]
mod write;

#[cfg(not(loom))]
pub use engine::{
    HotRing, HotRingWorker, RandomMovement, RandomMovementEvery, StatisticalSampling, Strategy,
    WithoutMovement, WithoutPredecessor,
};

/// HotRing that moves a head to the item of every R-th request (random movement).
#[cfg(not(loom))]
pub type HotRingR = HotRing<RandomMovement>;
/// HotRing that moves heads by access counts (statistical sampling).
#[cfg(not(loom))]
pub type HotRingS = HotRing<StatisticalSampling>;
