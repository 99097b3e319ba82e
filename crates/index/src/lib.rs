//! Concurrent hash indexes behind one small trait.
//!
//! An [`Index`] is shared by threads; each thread works through a [`Worker`] of its own, which
//! carries the thread's memory pool, its place in the reclamation scheme and its samples. What an
//! operation *means* is not decided here but in [`amalgam_op::decide`]; an engine finds the item
//! under its own concurrency protocol, calls it, and carries the answer out.
//!
//! Invariants of this room:
//! 1. No engine imports another; what they share lives in `mem`, `simd` and `shaped`.
//! 2. No sockets, no wire bytes, no clock: [`amalgam_op::Now`] is an argument.
//! 3. An item never changes after publication, but for its in-place word and the mutable bits of
//!    its header; its memory is reused only after a grace period.
//! 4. No bucket or stripe lock is held across allocation or eviction.

mod configuration;
mod engine;
pub mod hotring;
pub mod maintenance;
pub mod mem;
pub mod memc3;
pub mod mercury;
pub mod model;
pub mod pipeline;
mod shaped;
mod simd;
mod statistics;
mod sync;

pub use configuration::{Configuration, OpenError, PathSearch, Tuning};
pub use engine::{Cursor, Found, Index, Sink, Worker};
pub use statistics::{ClassStatistics, MemoryStatistics, Statistics};

pub use amalgam_op as op;
