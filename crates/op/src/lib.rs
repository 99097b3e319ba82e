//! Plain data types that every crate shares, and [`decide`], the one place that defines what an
//! operation means.
//!
//! Invariants of this crate:
//! 1. The crate has no I/O, no clock, no unsafe code, and no allocation on the path of a request.
//!    The time is an argument ([`Now`]).
//! 2. [`decide`] is pure. Engines may call it again after a failed compare-and-swap; whatever it
//!    answered before and did not publish has had no effect.
//! 3. Nothing here knows a wire format or an engine.

#![forbid(unsafe_code)]

mod decide;
mod item;
mod key;
mod lookup3;
mod mix;
mod now;
mod operation;
mod outcome;
mod plain_set;
mod poison;

pub use decide::{Decision, ItemWrite, MetaFlags, Part, decide};
pub use item::{ItemView, Value};
pub use key::{HashSeed, Key, MAX_KEY_BYTES};
pub use lookup3::lookup3;
pub use mix::{mix64, split_mix64};
pub use now::{Expiry, Now};
pub use operation::{Arithmetic, Compare, Delete, Get, Op, Store, StoreMode, Verb};
pub use outcome::{Counted, Hit, Outcome, Written};
pub use plain_set::PlainSet;
pub use poison::IgnorePoison;
