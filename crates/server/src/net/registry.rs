//! The registry of open connections: what `stats conns` and watchers show of each.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use amalgam_op::IgnorePoison;

use crate::net::sys::shut_down;

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
    /// The client took no byte of its answers for longer than the send timeout.
    SendTimeout,
    /// The buffers were full, and this connection made no progress for the longest.
    BuffersFull,
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
    /// Bytes of buffers and pinned values that the connection keeps while it waits.
    held_bytes: AtomicUsize,
    /// The second since which it has always held some. No meaning while it holds none.
    held_since: AtomicU32,
    /// The second at which a part of an answer was last sent, or became unsent.
    sent_seconds: AtomicU32,
    /// Bytes that it held when it was chosen to be closed; 0 if it was not.
    condemned_bytes: AtomicUsize,
}

impl ConnectionInfo {
    /// The entry for a connection that was just accepted.
    pub fn new(number: i32, peer: Option<SocketAddr>, local: String, seconds: u32) -> Arc<Self> {
        Arc::new(Self {
            number,
            peer,
            local,
            active_seconds: AtomicU32::new(seconds),
            activity: AtomicU8::new(0),
            held_bytes: AtomicUsize::new(0),
            held_since: AtomicU32::new(seconds),
            sent_seconds: AtomicU32::new(seconds),
            condemned_bytes: AtomicUsize::new(0),
        })
    }

    /// Records how many bytes the connection holds. Requires: called by the one worker that serves
    /// the connection at the time.
    pub fn note_held(&self, bytes: usize, seconds: u32) {
        if self.held_bytes.swap(bytes, Ordering::Relaxed) == 0 {
            self.held_since.store(seconds, Ordering::Relaxed);
        }
    }

    /// Records the second at which a part of an answer was sent, or became unsent.
    pub fn note_sent(&self, seconds: u32) {
        self.sent_seconds.store(seconds, Ordering::Relaxed);
    }

    /// The second at which a part of an answer was last sent, or became unsent.
    pub fn sent_seconds(&self) -> u32 {
        self.sent_seconds.load(Ordering::Relaxed)
    }

    /// Whether the connection was chosen to be closed.
    pub fn is_condemned(&self) -> bool {
        self.condemned_bytes.load(Ordering::Relaxed) > 0
    }

    /// Seconds since anything was received or sent.
    fn still_seconds(&self, seconds: u32) -> u32 {
        seconds.saturating_sub(self.active_seconds().max(self.sent_seconds()))
    }

    /// The order in which connections are closed when the buffers are full, lowest first: see
    /// [`ConnectionRegistry::condemn`].
    fn place_in_line(&self, seconds: u32) -> (bool, Reverse<u32>, u32, Reverse<usize>) {
        let activity = self.activity.load(Ordering::Relaxed);
        (
            activity == ConnectionActivity::ReceivesValue as u8,
            Reverse(self.still_seconds(seconds)),
            self.held_since.load(Ordering::Relaxed),
            Reverse(self.held_bytes.load(Ordering::Relaxed)),
        )
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

/// All open connections, by file descriptor. Shared by all threads.
#[derive(Default)]
pub struct ConnectionRegistry {
    connections: Mutex<BTreeMap<i32, Arc<ConnectionInfo>>>,
    /// Bytes held by connections that were chosen to be closed and are not closed yet.
    condemned_bytes: AtomicUsize,
}

impl ConnectionRegistry {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<i32, Arc<ConnectionInfo>>> {
        self.connections.lock().ignore_poison()
    }

    /// Adds a connection.
    pub fn insert(&self, info: &Arc<ConnectionInfo>) {
        self.lock().insert(info.number, Arc::clone(info));
    }

    /// Removes a connection. Requires: its socket is still open, so that its file descriptor cannot
    /// have been reused.
    pub fn remove(&self, info: &ConnectionInfo) {
        self.lock().remove(&info.number);
        let condemned = info.condemned_bytes.load(Ordering::Relaxed);
        self.condemned_bytes.fetch_sub(condemned, Ordering::Relaxed);
    }

    /// Bytes held by connections that were chosen to be closed and are not closed yet.
    pub fn condemned_bytes(&self) -> usize {
        self.condemned_bytes.load(Ordering::Relaxed)
    }

    /// Closes connections that hold at least `bytes` together, or all that qualify: those that
    /// neither received nor sent anything for `still_seconds`. Connections that do not read their
    /// answers go before those that are sending a value; among either, the one that has made no
    /// progress for the longest goes first, then the one that has held memory for the longest.
    /// Their own workers notice it, and free the memory. Returns how many were chosen. Locks the
    /// registry while it looks at every connection.
    pub fn condemn(&self, bytes: usize, still_seconds: u32, seconds: u32) -> usize {
        let connections = self.lock();
        let held = |info: &ConnectionInfo| info.held_bytes.load(Ordering::Relaxed);
        let mut holders: Vec<_> = connections
            .values()
            .filter(|info| held(info) > 0 && !info.is_condemned())
            .filter(|info| info.still_seconds(seconds) >= still_seconds)
            .map(|info| (info.place_in_line(seconds), info))
            .collect();
        holders.sort_unstable_by_key(|(place, _)| *place);
        let (mut chosen, mut freed) = (0, 0);
        for (_, info) in holders {
            if freed >= bytes {
                break;
            }
            let held = held(info).max(1);
            info.condemned_bytes.store(held, Ordering::Relaxed);
            self.condemned_bytes.fetch_add(held, Ordering::Relaxed);
            // Connections are removed from the registry before their socket is closed, and the
            // registry is locked, so the number is that of this connection's open socket.
            shut_down(info.number);
            (chosen, freed) = (chosen + 1, freed + held);
        }
        chosen
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readers_are_closed_before_clients_that_send() {
        let connection = |number, seconds| {
            let info = ConnectionInfo::new(number, None, String::new(), seconds);
            info.note_held(1 << 20, seconds);
            info
        };
        let (sender, reads_slowly, stands_still) =
            (connection(1, 0), connection(2, 0), connection(3, 5));
        sender.set_activity(ConnectionActivity::ReceivesValue);
        reads_slowly.note_sent(9);
        let mut line = [&sender, &reads_slowly, &stands_still];
        line.sort_by_key(|info| info.place_in_line(10));
        assert_eq!(line.map(|info| info.number), [3, 2, 1]);
    }
}
