//! `watch`: log lines for clients that ask for them.
//!
//! Workers append lines to one bounded queue (`log`); the thread in `sender` takes them from there
//! and sends each to the watchers that asked for its kind (`events`). `lines` writes them in
//! memcached's words. Without a watcher no line is written.
//!
//! Invariants:
//! 1. No request waits for a watcher: a full queue drops lines (`log_worker_dropped`), a watcher
//!    that does not read skips lines (`log_watcher_skipped`) and is told how many.
//! 2. Lines are numbered, and sent to each watcher, in the order in which they entered the queue.
//! 3. There are at most [`log::MAX_WATCHERS`] watchers.

pub mod events;
pub mod lines;
pub mod log;
pub mod sender;
