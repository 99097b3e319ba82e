//! Concurrent in-memory maps from byte strings to byte strings, with a choice of index engine.
//!
//! A [`Map`] holds items within a bound of memory, lets them expire, and evicts when it is full.
//! Threads share it; each works through a [`Handle`], which carries a memory pool and a place in
//! the reclamation scheme: one of its own ([`Map::handle`], or [`Map::owned_handle`], which borrows
//! nothing and may move to another thread), or one from the map's pool ([`Map::with`]), which suits
//! tasks and thread pools. The engine is chosen by type:
//!
//! | engine | what it is | choose it for |
//! | --- | --- | --- |
//! | [`Mercury`] | chains, a lock in each bucket's word; grows in small steps | the default |
//! | [`Memc3`] | optimistic cuckoo hashing with tags | many small items, mostly read |
//! | [`HotRingR`], [`HotRingS`] | lock-free rings whose heads move to hot items | skew |
//! | [`Pipeline`] | fixed buckets compared at once; never grows | work that is always the same |
//!
//! ```
//! use std::time::Duration;
//! use amalgam_index::{Map, MapBuilder};
//!
//! let map: Map = MapBuilder::new().memory_bytes(64 << 20).open()?;
//! let mut handle = map.handle();
//! handle.insert(b"language", b"Rust")?;
//! handle.insert_for(b"session", b"42", Duration::from_secs(600))?;
//! assert_eq!(handle.get(b"language").as_deref(), Some(&b"Rust"[..]));
//! let found = handle.get_many(&[b"language", b"nothing", b"session"], |position, value| {
//!     println!("{position}: {} bytes", value.len());
//! });
//! assert_eq!(found, 2);
//! assert!(handle.remove(b"session"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The examples `concurrent_map`, `bounded_cache` and `batched_read` show a whole program each.
//!
//! It runs on Linux with 64-bit processors. It compiles for macOS, where nobody has run it, and not
//! for Windows: memory comes from `mmap`, and is given back page by page at its place, which has no
//! counterpart there. 32-bit processors lack the atomic words of 64 bits and the addresses that the
//! engines are made of. Keys have 1 to 250 bytes. Dropping a [`Map`] ends its background thread.
//!
//! # What is promised
//!
//! The names above and those of their methods, listed in the crate's `api.txt`: a release that
//! takes one away or changes its type has another minor version (major, from 1.0 on). All other
//! public names are for the crates of this repository and may change at any time.
//!
//! # Inside
//!
//! An [`Engine`] is shared by threads; each thread works through a [`Worker`]. What an operation
//! *means* is decided in [`amalgam_op::decide`]: an engine finds the item under its own concurrency
//! protocol, calls `decide`, and executes the decision.
//!
//! Invariants of this crate:
//! 1. No engine imports another; what they share lives in `mem`, `software_pipeline` and `simd`.
//! 2. No sockets, no wire bytes, and no clock except in `map`: [`amalgam_op::Now`] is an argument.
//! 3. An item never changes after publication, except for its in-place word and the mutable bits
//!    of its header; its memory is reused only after a grace period.
//! 4. No bucket or stripe lock is held across allocation or eviction.
//! 5. It depends on `amalgam-op` and `libc` only.

// Under loom most engines are left out, and what only they use.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!("amalgam-index needs mmap and 64-bit pointers: Linux or macOS on 64-bit processors");

mod answer;
mod configuration;
mod engine;
#[cfg(not(loom))]
mod engines;
pub mod hotring;
mod late;
pub mod maintenance;
#[cfg(not(loom))]
mod map;
pub mod mem;
pub mod memc3;
pub mod mercury;
pub mod model;
pub mod pipeline;
mod signal;
mod simd;
mod software_pipeline;
mod statistics;
mod sync;

#[cfg(not(loom))]
pub use hotring::{HotRingR, HotRingS};
#[cfg(not(loom))]
pub use map::IncrementError;
#[cfg(not(loom))]
pub use map::OwnedHandle;
#[cfg(not(loom))]
pub use map::RemovalCause;
#[cfg(not(loom))]
pub use map::{Codec, Plain, TypedError, TypedMap};
#[cfg(not(loom))]
pub use map::{Handle, InsertError, Map, MapBuilder};
pub use memc3::Memc3;
#[cfg(not(loom))]
pub use mercury::Mercury;
#[cfg(not(loom))]
pub use pipeline::Pipeline;

pub use answer::show_outcome;
pub use configuration::{Configuration, Eviction, OpenError, PathSearch, Tuning};
pub use engine::Engine;
pub use engine::{Cursor, Flush, Found, Metric, NullSink, Sink, Store, Worker};
#[cfg(not(loom))]
pub use engines::{DEFAULT_ENGINE, ENGINES, EngineInfo, EngineVisitor, with_engine};
pub use late::{Begun, LateAnswers, Patience, Ticket};
pub use statistics::MemoryLosses;
pub use statistics::{ClassStatistics, MemoryStatistics, Statistics};

pub use amalgam_op as op;
