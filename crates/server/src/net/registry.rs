//! The registry of open connections: what `stats conns` and watchers show of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use amalgam_op::IgnorePoison;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionActivity {
    /// Waits for a request.
    AwaitsRequest = 0,
    /// Waits for the rest of a value.
    ReceivesValue = 1,
    /// Is a watcher.
    Watches = 2,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The socket failed, or the client violated the protocol.
    Error,
    /// The client closed it.
    Normal,
    /// The client was silent for longer than the idle timeout.
    IdleTimeout,
    /// The server shuts down.
    Shutdown,
}

/// What all threads may know of a connection.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// The file descriptor of its socket.
    pub number: i32,
    /// The address of the client; None on a unix socket.
    pub peer: Option<SocketAddr>,
    /// The address that accepted it, as `stats conns` shows it.
    pub local: String,
    active_seconds: AtomicU32,
    activity: AtomicU8,
}

impl ConnectionInfo {
    /// The entry for a connection that was just accepted.
    pub fn new(number: i32, peer: Option<SocketAddr>, local: String, seconds: u32) -> Arc<Self> {
        let (active_seconds, activity) = (AtomicU32::new(seconds), AtomicU8::new(0));
        Arc::new(Self { number, peer, local, active_seconds, activity })
    }

    /// Records the second at which something was received.
    pub fn note_received(&self, seconds: u32) {
        // Relaxed, as everywhere in this module: numbers for people, which order nothing.
        self.active_seconds.store(seconds, Ordering::Relaxed);
    }

    /// The second at which something was last received.
    pub fn active_seconds(&self) -> u32 {
        self.active_seconds.load(Ordering::Relaxed)
    }

    /// Records what the connection is doing.
    pub fn set_activity(&self, activity: ConnectionActivity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    /// memcached's name for what the connection is doing.
    pub fn state_name(&self) -> &'static str {
        match self.activity.load(Ordering::Relaxed) {
            0 => "conn_read",
            1 => "conn_nread",
            _ => "conn_watch",
        }
    }

    /// The client's address, as `stats conns` shows it.
    pub fn peer_name(&self) -> String {
        self.peer.map_or_else(|| self.local.clone(), |peer| address_name("tcp", &peer))
    }
}

/// An address as memcached writes it: `tcp:1.2.3.4:5`, `tcp6:[::1]:5`.
pub fn address_name(kind: &str, address: &SocketAddr) -> String {
    let six = if address.is_ipv6() { "6" } else { "" };
    format!("{kind}{six}:{address}")
}

/// The badges of all open connections, by file descriptor. Shared by all threads.
#[derive(Default)]
pub struct ConnectionRegistry(Mutex<BTreeMap<i32, Arc<ConnectionInfo>>>);

impl ConnectionRegistry {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<i32, Arc<ConnectionInfo>>> {
        self.0.lock().ignore_poison()
    }

    /// Adds a connection.
    pub fn insert(&self, info: &Arc<ConnectionInfo>) {
        self.lock().insert(info.number, Arc::clone(info));
    }

    /// Removes a connection. Requires: its socket is still open, so that its file descriptor cannot
    /// have been reused.
    pub fn remove(&self, info: &ConnectionInfo) {
        self.lock().remove(&info.number);
    }

    /// The number of open connections, including those that no worker has taken over yet.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// All open connections.
    pub fn all(&self) -> Vec<Arc<ConnectionInfo>> {
        self.lock().values().cloned().collect()
    }
}
