//! The server: sockets, worker threads and statistics around an index.
//!
//! A request takes this way: `sockets` receive it, `worker` gathers what all its connections
//! received, `batch` parses, resolves and answers, `output` leaves. `commands` are requests about
//! the server itself; `admin` answers its operator. Everything is generic over the engine, which is
//! chosen once at start.
//!
//! Invariants of this room:
//! 1. Threads share nothing on the way of a request but the index.
//! 2. What a client can make the server keep is bounded, and counted (`budget`).
//! 3. No unsafe code but in `sys`.

#![deny(unsafe_code)]

mod admin;
mod answers_left;
mod batch;
mod budget;
mod channel;
mod clock;
mod commands;
mod connection;
mod connections;
mod counters;
mod datagrams;
mod desk;
mod dump;
mod engine_controls;
mod hot_keys;
mod knobs;
mod latency;
mod observer;
mod output;
mod pin;
mod rehearsal;
mod restart;
mod roster;
mod sasl;
mod server;
mod settings;
mod sockets;
mod statistics;
mod sweep;
#[allow(unsafe_code, reason = "system calls that no crate wraps")]
mod sys;
mod tally;
mod tls;
mod tuning;
mod users;
mod watch;
mod worker;

pub use amalgam_protocol::append_base64;
pub use rehearsal::Rehearsal;
pub use server::{Server, ServerError, Stopper, port_file};
pub use settings::{Listening, Settings, WireProtocol};
pub use tls::{Security, TlsSettings, Verify};

/// The version of memcached whose behaviour this server has, and which it answers to `version`:
/// clients parse it to learn what they may send.
pub const MEMCACHED_VERSION: &str = "1.6.45";
