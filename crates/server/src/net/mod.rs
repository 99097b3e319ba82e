//! Sockets, the bytes that travel over them, and the registry of connections.

pub mod output;
pub mod registry;
pub mod sockets;
#[allow(unsafe_code, reason = "system calls that no crate wraps")]
pub mod sys;
pub mod tls;
pub mod transport;
