//! TLS over [`rustls`], for the ports that this project secures.
//!
//! [`ServerTls`] is for a server's port for clients, and for its admin address: memcached's `ssl_*`
//! options, client certificates on request. [`ClientTls`] is for programs that ask an admin
//! address. [`MutualTls`] is for the nodes' port of a cluster: both sides show a certificate, and
//! the session has a name that a proof of the join token is bound to. All read their files through
//! [`pem`]; the two of servers build their configurations and exchange bytes by the same code
//! (`config`, `session`).
//!
//! Invariants of this crate:
//! 1. Certificates are read completely and checked before they replace the previous ones;
//!    connections keep the configuration that they began with.
//! 2. No plaintext is handed out before the handshake is complete, which includes the verification
//!    of a certificate that is required of the other side.
//! 3. No socket is opened or polled here: sessions read from and write to what their callers pass.

#![forbid(unsafe_code)]

mod client;
mod config;
mod mutual;
pub mod pem;
mod server;
mod session;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use client::ClientTls;
pub use mutual::{MutualSession, MutualTls, TlsError, TlsFiles};
pub use server::{Security, ServerSession, ServerTls, TlsCounters, TlsSettings, Verify};

/// The cryptography of all TLS here, for other libraries that use rustls.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
