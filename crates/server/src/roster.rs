//! Who is connected: what `stats conns` shows and watchers are told of a connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Waits for a request.
    Waits = 0,
    /// Waits for the rest of a value.
    Receives = 1,
    /// Is told what happens.
    Watches = 2,
}

/// What is known of a connection by all threads.
#[derive(Debug)]
pub struct Badge {
    /// The number of its socket.
    pub number: i32,
    /// The other end, where that has an address.
    pub peer: Option<SocketAddr>,
    /// Where it was accepted, as `stats conns` names it.
    pub local: String,
    active_seconds: AtomicU32,
    state: AtomicU8,
}

impl Badge {
    /// A badge for a connection that was just accepted.
    pub fn new(number: i32, peer: Option<SocketAddr>, local: String, seconds: u32) -> Arc<Self> {
        let (active_seconds, state) = (AtomicU32::new(seconds), AtomicU8::new(0));
        Arc::new(Self { number, peer, local, active_seconds, state })
    }

    /// Something was received.
    pub fn note_activity(&self, seconds: u32) {
        // Relaxed, as all of it: numbers for people, which order nothing.
        self.active_seconds.store(seconds, Ordering::Relaxed);
    }

    /// The second of the last receipt.
    pub fn active_seconds(&self) -> u32 {
        self.active_seconds.load(Ordering::Relaxed)
    }

    /// Notes what the connection is at.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// memcached's name for what the connection is at.
    pub fn state_name(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) {
            0 => "conn_read",
            1 => "conn_nread",
            _ => "conn_watch",
        }
    }

    /// The other end, as `stats conns` names it.
    pub fn peer_name(&self) -> String {
        self.peer.map_or_else(|| self.local.clone(), |peer| address_name("tcp", &peer))
    }
}

/// An address as memcached writes it: `tcp:1.2.3.4:5`, `tcp6:[::1]:5`.
pub fn address_name(kind: &str, address: &SocketAddr) -> String {
    let six = if address.is_ipv6() { "6" } else { "" };
    format!("{kind}{six}:{address}")
}

/// The badges of all open connections, by number.
#[derive(Default)]
pub struct Roster(Mutex<BTreeMap<i32, Arc<Badge>>>);

impl Roster {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<i32, Arc<Badge>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes in a connection.
    pub fn insert(&self, badge: &Arc<Badge>) {
        self.lock().insert(badge.number, Arc::clone(badge));
    }

    /// Forgets a connection; to be called before its socket, and so its number, is given back.
    pub fn remove(&self, badge: &Badge) {
        self.lock().remove(&badge.number);
    }

    /// How many are connected now: those as well that no worker has taken up yet.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// All that are connected now.
    pub fn all(&self) -> Vec<Arc<Badge>> {
        self.lock().values().cloned().collect()
    }
}
