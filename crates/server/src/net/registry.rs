//! The registry of open connections: what `stats conns` and watchers show of each.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
    /// Its answer waits for the client to read it.
    SendsAnswer = 3,
}

/// Which connections may be closed for the sake of the others' memory. Seconds are whole ones, so
/// that those of [`PATIENCE_SECONDS`] have passed in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closable {
    /// Those that received and sent nothing for [`PATIENCE_SECONDS`].
    Idle,
    /// [`Self::Idle`] ones, and those that have held memory for more than [`PATIENCE_SECONDS`] and
    /// moved less than [`SLOW_BYTES_PER_SECOND`] since then.
    Slow,
    /// All that hold memory.
    All,
}

/// See [`Closable`].
const PATIENCE_SECONDS: u32 = 2;

/// See [`Closable`].
const SLOW_BYTES_PER_SECOND: u64 = 64 << 10;

/// What any client holds now and then, a request whose answer is awaited for example.
const SMALL_BYTES: usize = 16 << 10;

/// See [`ConnectionInfo::close_order`].
type CloseOrder = (bool, Reverse<Option<u32>>, bool, u32, Reverse<usize>);

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
    /// Bytes received, and sent of answers that did not fit the socket at once; and how many they
    /// were at `held_since`.
    moved_bytes: AtomicU64,
    moved_before: AtomicU64,
    /// The second at which a part of an answer was last sent, or became unsent.
    sent_seconds: AtomicU32,
    /// Bytes that it held when it was chosen to be closed; 0 if it was not.
    closing_bytes: AtomicUsize,
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
            moved_bytes: AtomicU64::new(0),
            moved_before: AtomicU64::new(0),
            sent_seconds: AtomicU32::new(seconds),
            closing_bytes: AtomicUsize::new(0),
        })
    }

    /// Records how many bytes the connection holds. Requires: called by the one worker that serves
    /// the connection at the time.
    pub fn note_held(&self, bytes: usize, seconds: u32) {
        if self.held_bytes.load(Ordering::Relaxed) == 0 {
            self.held_since.store(seconds, Ordering::Relaxed);
            self.moved_before.store(self.moved_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // Release pairs with the acquire in `close_slowest`: who sees that the connection holds
        // memory sees since when.
        self.held_bytes.store(bytes, Ordering::Release);
    }

    /// Records that this many bytes of an answer were sent, or with 0 that it became unsent.
    /// Requires: as [`ConnectionInfo::note_held`].
    pub fn note_sent(&self, bytes: u64, seconds: u32) {
        self.sent_seconds.store(seconds, Ordering::Relaxed);
        self.count_moved(bytes);
    }

    fn count_moved(&self, bytes: u64) {
        // No other thread writes it at the time.
        let moved = self.moved_bytes.load(Ordering::Relaxed) + bytes;
        self.moved_bytes.store(moved, Ordering::Relaxed);
    }

    /// The second at which a part of an answer was last sent, or became unsent.
    pub fn sent_seconds(&self) -> u32 {
        self.sent_seconds.load(Ordering::Relaxed)
    }

    /// Whether the connection was chosen to be closed.
    pub fn is_being_closed(&self) -> bool {
        self.closing_bytes.load(Ordering::Relaxed) > 0
    }

    /// Seconds since anything was received or sent.
    fn idle_seconds(&self, seconds: u32) -> u32 {
        seconds.saturating_sub(self.active_seconds().max(self.sent_seconds()))
    }

    /// Whether the connection may be closed for the sake of the others' memory.
    fn qualifies(&self, closable: Closable, seconds: u32) -> bool {
        let held_seconds = seconds.saturating_sub(self.held_since.load(Ordering::Relaxed));
        // The worker may increment the count between the two loads; hence saturating.
        let before = self.moved_before.load(Ordering::Relaxed);
        let moved = self.moved_bytes.load(Ordering::Relaxed).saturating_sub(before);
        let is_idle = self.idle_seconds(seconds) > PATIENCE_SECONDS;
        match closable {
            Closable::Idle => is_idle,
            Closable::Slow => {
                let is_due = moved < SLOW_BYTES_PER_SECOND * u64::from(held_seconds);
                is_idle || held_seconds > PATIENCE_SECONDS && is_due
            }
            Closable::All => true,
        }
    }

    /// The order in which connections are closed when the buffers are full, lowest first: see
    /// [`ConnectionRegistry::close_slowest`].
    fn close_order(&self, seconds: u32) -> CloseOrder {
        let activity = self.activity.load(Ordering::Relaxed);
        let held = self.held_bytes.load(Ordering::Relaxed);
        // Shorter than this it may have waited for the server as well.
        let idle = Some(self.idle_seconds(seconds)).filter(|idle| *idle > PATIENCE_SECONDS);
        (
            activity == ConnectionActivity::ReceivesValue as u8,
            Reverse(idle),
            held <= SMALL_BYTES,
            self.held_since.load(Ordering::Relaxed),
            Reverse(held),
        )
    }

    /// Records that this many bytes were received. Requires: as [`ConnectionInfo::note_held`].
    pub fn note_received(&self, bytes: u64, seconds: u32) {
        // Relaxed: no other memory is read in the belief that this store came before.
        self.active_seconds.store(seconds, Ordering::Relaxed);
        self.count_moved(bytes);
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
            2 => "conn_watch",
            _ => "conn_mwrite",
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
    closing_bytes: AtomicUsize,
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
        let closing = info.closing_bytes.load(Ordering::Relaxed);
        self.closing_bytes.fetch_sub(closing, Ordering::Relaxed);
    }

    /// Bytes held by connections that were chosen to be closed and are not closed yet.
    pub fn closing_bytes(&self) -> usize {
        self.closing_bytes.load(Ordering::Relaxed)
    }

    /// Closes connections that hold at least as many bytes together as `shortage` says, or all that
    /// are closable. `shortage` is asked under the lock, so that workers that notice one shortage
    /// at the same time close connections for it once.
    ///
    /// Connections that do not read their answers go before those that are sending a value; among
    /// either, those that have made no progress for [`PATIENCE_SECONDS`] go first, the longest of
    /// them before the others, then those that hold more than [`SMALL_BYTES`], then the one that
    /// has held memory for the longest. Their own workers notice it, and free the memory. Returns
    /// how many were chosen. Locks the registry while it looks at every connection.
    pub fn close_slowest(
        &self,
        seconds: u32,
        shortage: impl FnOnce() -> Option<(usize, Closable)>,
    ) -> usize {
        let connections = self.lock();
        let Some((bytes, closable)) = shortage() else { return 0 };
        let held = |info: &ConnectionInfo| info.held_bytes.load(Ordering::Acquire);
        let mut holders: Vec<_> = connections
            .values()
            .filter(|info| held(info) > 0 && !info.is_being_closed())
            .filter(|info| info.qualifies(closable, seconds))
            .map(|info| (info.close_order(seconds), info))
            .collect();
        holders.sort_unstable_by_key(|(place, _)| *place);
        let (mut chosen, mut freed) = (0, 0);
        for (_, info) in holders {
            if freed >= bytes {
                break;
            }
            let held = held(info).max(1);
            info.closing_bytes.store(held, Ordering::Relaxed);
            self.closing_bytes.fetch_add(held, Ordering::Relaxed);
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

    /// The first N open connections whose numbers are above `number`.
    pub fn after(&self, number: i32, count: usize) -> Vec<Arc<ConnectionInfo>> {
        let above = (Bound::Excluded(number), Bound::Unbounded);
        self.lock().range(above).take(count).map(|(_, info)| Arc::clone(info)).collect()
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
        reads_slowly.note_sent(1, 9);
        let mut line = [&sender, &reads_slowly, &stands_still];
        line.sort_by_key(|info| info.close_order(10));
        assert_eq!(line.map(|info| info.number), [3, 2, 1]);
        // More than two seconds have passed for the last alone.
        sender.note_received(200 << 10, 7);
        let closable = |kind, seconds| {
            [&sender, &reads_slowly, &stands_still].map(|info| info.qualifies(kind, seconds))
        };
        assert_eq!(closable(Closable::Idle, 8), [false, false, true]);
        // 20 KiB a second are slow too.
        assert_eq!(closable(Closable::Slow, 10), [true, true, true]);
        sender.note_received(1 << 20, 10);
        assert_eq!(closable(Closable::Slow, 10), [false, true, true]);
        assert_eq!(closable(Closable::All, 10), [true; 3]);
    }

    #[test]
    fn workers_that_notice_one_shortage_together_close_connections_for_it_once() {
        const MEBIBYTE: usize = 1 << 20;
        let registry = ConnectionRegistry::default();
        // No file descriptor of this process is as large.
        for number in i32::MAX - 40..i32::MAX {
            let info = ConnectionInfo::new(number, None, String::new(), 0);
            info.note_held(MEBIBYTE, 0);
            registry.insert(&info);
        }
        let shortage = || {
            let held = 40 * MEBIBYTE - registry.closing_bytes();
            // Time for the others to ask as well, if they could.
            std::thread::sleep(std::time::Duration::from_millis(1));
            (held > 30 * MEBIBYTE).then(|| (held - 20 * MEBIBYTE, Closable::All))
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| registry.close_slowest(0, shortage));
            }
        });
        assert_eq!(registry.closing_bytes(), 20 * MEBIBYTE);
    }

    #[test]
    fn clients_that_hold_little_are_closed_after_those_that_hold_much() {
        let connection = |number, seconds, bytes| {
            let info = ConnectionInfo::new(number, None, String::new(), seconds);
            info.note_held(bytes, seconds);
            info
        };
        // The first waits for an answer, and has held its request for longer.
        let (waits, reads) = (connection(1, 4, 500), connection(2, 5, 1 << 20));
        let mut line = [&waits, &reads];
        line.sort_by_key(|info| info.close_order(6));
        assert_eq!(line.map(|info| info.number), [2, 1]);
        line.sort_by_key(|info| info.close_order(7));
        assert_eq!(line.map(|info| info.number), [1, 2], "it has been idle for too long");
    }
}
