//! The pipelined hash table (FPL 2013) in software: a fixed number of buckets with a fixed number
//! of slots each, whose keys are striped over memory lines and compared in parallel.
//! `docs/pipeline.md` describes and justifies the layout, which the hardware shares.
//!
//! Invariants, in addition to those of the files:
//! 1. A key has one bucket, and a request reads no other: its work depends on the length of its
//!    key, not on how full the table is or where the key lies.
//! 2. The table never grows and no key ever moves. A full bucket loses a key or refuses one.
//! 3. Slots hold (parts of) keys, expiry times and references to values, and change as the
//!    hardware's do. Values and whole keys are items of `mem`. Every hit is confirmed by its item's
//!    key.
//! 4. Keys are hashed by lookup3 without a secret seed, as in the hardware: see [`PipelineEngine`].

#[cfg(any(not(loom), test))]
mod compare;
#[cfg(any(not(loom), test))]
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod read;
#[cfg(not(loom))]
mod set;
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

/// The engine that servers use: buckets of 8 slots.
#[cfg(not(loom))]
pub type Pipeline = PipelineEngine<8>;

#[cfg(not(loom))]
mod engine;
