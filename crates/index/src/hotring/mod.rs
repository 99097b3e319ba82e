//! HotRing (Chen et al., FAST 2020): a hash table of ordered rings whose heads move to hot items,
//! lock-free throughout. `docs/hotring.md` is its specification: words, invariants, the points
//! where operations take effect, and the races between them by number.
//!
//! Thread safety: everything shared is a head word, a link word, or an immutable item; each step of
//! a protocol is one exchange of one word.
//!
//! Invariants:
//! 1. A head leads to a ring of items in ascending order, except for one wrap.
//! 2. An item whose link is not occupied is in its ring; an occupied link is frozen.
//! 3. The thread that occupied an item retires it, once no head and no reachable link leads to it.
//! 4. The protocols (`walk`, `change`, `sample`, `split`) do not depend on memory or tables; they
//!    are written against `space`, and run on model words under loom.

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

/// HotRing that moves a head to whatever the R-th request touched.
#[cfg(not(loom))]
pub type HotRingR = HotRing<RandomMovement>;
/// HotRing that moves heads by what it samples.
#[cfg(not(loom))]
pub type HotRingS = HotRing<StatisticalSampling>;
