//! The server: sockets, worker threads and statistics around a store.
//!
//! The path of a request: a `worker` waits on its `connections`' reactor and receives what its
//! connections sent (`net`); `request` parses, executes and answers the requests of all of them as
//! one batch; the answers leave through `net::output`. `state` is what all threads share, `report`
//! writes the texts of `stats`, `watch` sends log lines to clients, `admin` serves operators over
//! HTTP. Everything is generic over the store, which is chosen once at start.
//!
//! Modules depend only on those above them in this list, in each folder as between folders:
//! `settings`, `compat`, `uri`; `net`, `auth`, `metrics`; `watch`; `connections`; `state`;
//! `report`; `request`; `worker`, `admin`, `acceptor`; `server`. `fuzzing`, in builds of tests and
//! fuzz targets only, has doors to what is otherwise reached through sockets and files.
//!
//! Invariants:
//! 1. On the path of a request, threads share the store, counters and the buffer budget; a worker
//!    that runs may lock the reactor of one that waits for a core (`WorkStealer`).
//! 2. The memory that clients can make the server keep is bounded and counted
//!    (`connections::budget`).
//! 3. Only `net::sys` has unsafe code.

#![deny(unsafe_code)]

mod acceptor;
mod admin;
mod affinity;
mod auth;
mod compat;
mod connections;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod in_process;
mod metrics;
mod net;
mod report;
mod request;
mod server;
mod settings;
mod state;
mod threads;
mod uri;
mod watch;
mod worker;
mod yielding;

pub use amalgam_protocol::append_base64;
pub use amalgam_tls::{Security, TlsSettings, Verify};
pub use compat::MEMCACHED_VERSION;
pub use connections::freed_memory::ResidentMemory;
pub use error::ServerError;
pub use in_process::InProcessServer;
pub use net::sockets::bind_listener;
pub use server::{Server, Stopper, port_file};
pub use settings::{ALL_ADDRESSES, ListenAddress, Settings, WireProtocol};
