//! The pipelined hash table (FPL 2013) in software: a fixed number of buckets of a fixed number of
//! slots, whose keys are striped over memory lines and compared all at once. `docs/pipeline.md`
//! describes the layout, which the hardware shares, and argues why it is as it is.
//!
//! Invariants, in addition to those of the files:
//! 1. A key has one bucket, and nothing else is looked at for it: the work of a request depends on
//!    the length of its key, not on how full the table is or where the key lies.
//! 2. The table never grows and no key ever moves. A full bucket loses a key or refuses one.
//! 3. Slots hold keys, expiry and where values are, and change as the hardware's do; values, and
//!    keys as clients sent them, are items of `mem`. Every hit is confirmed by its item's key.
//! 4. Keys are hashed by lookup3 without a secret, because the hardware is: see [`Pipeline`].

#[cfg(any(not(loom), test))]
mod compare;
#[cfg(any(not(loom), test))]
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod read;
#[cfg(any(not(loom), test))]
mod slots;
#[cfg(not(loom))]
mod store;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
pub mod twin;
#[cfg(not(loom))]
mod worker;
#[cfg(not(loom))]
mod write;

#[cfg(not(loom))]
pub use engine::PipelineEngine;
#[cfg(not(loom))]
pub use worker::PipelineWorker;

/// The engine as it is served: buckets of 8 slots.
#[cfg(not(loom))]
pub type Pipeline = PipelineEngine<8>;

#[cfg(not(loom))]
mod engine;
