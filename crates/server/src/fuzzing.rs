//! Entry points for fuzz targets and tests into what programs reach only through sockets and
//! files.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use amalgam_index::{Configuration, Engine, OpenError};
use rustix::event::epoll::Event;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use crate::admin::http::{Request, Response, is_local_host, parse as parse_http};
pub use crate::auth::sasl::{Exchange, SaslStep, step as sasl_step};
pub use crate::auth::users::Users;
use crate::connections::connection::Connection;
use crate::connections::reactor::MAX_EVENTS;
use crate::net::registry::ConnectionInfo;
use crate::net::transport::Transport;
use crate::server::Server;
use crate::settings::Settings;
use crate::state::clock::Clock;
pub use crate::state::warm_restart::checksum as saved_checksum;
use crate::state::warm_restart::{SavedItems, save};
use crate::worker::Worker;

/// Turns of a worker after which connections that nobody uses must have come to rest.
const TURNS_TO_REST: usize = 1_000;

/// Bytes that a client's or the server's socket buffers, about: little, so that answers stall.
const SOCKET_BYTES: usize = 4 << 10;

/// Opens an index with the items of a memory file (`-e`), as a start does, and saves it again to
/// the same path. Returns how many items the index has.
///
/// # Errors
///
/// If the file is refused.
pub fn reload_items<E: Engine>(path: &Path, configuration: &Configuration) -> io::Result<u64> {
    let clock = Clock::new(2);
    let Some(saved) = SavedItems::find(path)? else { return Ok(0) };
    let prepared = saved.prepare::<E>(configuration.clone());
    let index = E::open(&prepared).or_else(|_| E::open(configuration));
    let index = index.map_err(|error: OpenError| io::Error::other(error.to_string()))?;
    let loaded = saved.load(&index, &clock, 1)?;
    let saved = save(&index, &clock, configuration.memory_bytes, path)?;
    assert!(saved.items <= loaded.items, "{saved:?} {loaded:?}");
    Ok(saved.items)
}

/// A server with one worker on the calling thread, whose clients are socket pairs.
pub struct Playground<E: Engine>(Server<E>);

impl<E: Engine> Playground<E> {
    /// Opens a server whose connections' buffers may take `buffer_bytes` together, however few.
    pub fn open(settings: Settings, buffer_bytes: usize) -> Self {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let settings = Settings { listen, threads: 1, ..settings };
        let opened = Server::open(settings, Configuration::default());
        let server = opened.unwrap_or_else(|error| panic!("it does not open: {error}"));
        server.state().buffers.set_limit(buffer_bytes);
        Self(server)
    }

    /// The clients of this server, none yet.
    pub fn clients(&self) -> Clients<'_, E> {
        let worker = Worker::new(self.0.state(), 0).expect("it starts");
        Clients { server: &self.0, worker, events: Vec::with_capacity(MAX_EVENTS) }
    }
}

/// The worker of a [`Playground`], with what its connections are charged.
pub struct Clients<'p, E: Engine> {
    server: &'p Server<E>,
    worker: Worker<'p, E>,
    events: Vec<Event>,
}

impl<E: Engine> Clients<'_, E> {
    /// Opens a connection and returns the client's end, which does not block.
    pub fn connect(&mut self) -> OwnedFd {
        self.connect_with(SOCKET_BYTES)
    }

    /// As [`Clients::connect`], where a socket buffers about this many bytes of answers.
    fn connect_with(&mut self, socket_bytes: usize) -> OwnedFd {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (client, server) = pair.expect("a pair of sockets");
        rustix::net::sockopt::set_socket_send_buffer_size(&server, socket_bytes).expect("it is");
        let state = self.server.state();
        let seconds = state.clock.seconds();
        let info = ConnectionInfo::new(server.as_raw_fd(), None, String::new(), seconds);
        state.registry.insert(&info);
        let connection = Connection::new(Transport::new(server, None), info);
        state.reactors[0].hand_over(connection);
        client
    }

    /// One turn of the worker, after which everything is charged as it should be. Returns whether
    /// the worker would go on at once.
    pub fn turn(&mut self) -> bool {
        let has_more = self.worker.turn(&mut self.events, Duration::ZERO).expect("it waits");
        self.check(false);
        has_more
    }

    /// Bytes that the connections are charged.
    pub fn charged_bytes(&self) -> usize {
        self.server.state().buffers.used_bytes()
    }

    /// Bytes that the worker keeps for itself to reuse.
    pub fn spare_bytes(&self) -> usize {
        self.worker.spare_bytes()
    }

    /// The number of open connections.
    pub fn count(&self) -> usize {
        self.server.state().reactors[0].lock().slab.len()
    }

    /// `is_resting`: no event is pending, not even the first of a new connection.
    fn check(&self, is_resting: bool) {
        let state = self.server.state();
        let guard = state.reactors[0].lock();
        let (mut charged, mut stalled) = (0, 0);
        for connection in guard.slab.values() {
            let awaits_memory = connection.is_waiting && connection.memory_deadline > 0;
            let bytes = match awaits_memory {
                true => connection.waiting_charge(),
                false => connection.buffer_bytes(),
            };
            let pinned = connection.output.pinned_bytes();
            assert_eq!(connection.charged_bytes, bytes, "a connection's charge is its buffers");
            assert_eq!(connection.held_bytes, bytes + pinned, "and what it holds is told");
            charged += connection.charged_bytes;
            stalled += usize::from(connection.is_stalled);
            let is_served = connection.is_queued || !connection.is_readable;
            let waits = connection.has_unsent() || connection.paused_until > 0 || awaits_memory;
            assert!(
                is_served || waits || !is_resting,
                "a connection that can be read is forgotten"
            );
            let is_expected = connection.is_stalled || connection.paused_until > 0;
            assert!(
                connection.is_queued || is_expected || !connection.has_unsent(),
                "a connection that can be sent to is forgotten"
            );
        }
        assert_eq!(charged, state.buffers.used_bytes(), "the sum is that of the connections");
        assert_eq!(stalled, guard.stalled, "stalled connections are counted");
        let queued = guard.slab.values().filter(|connection| connection.is_queued).count();
        let ready = guard.ready.iter().filter(|id| guard.slab.contains_key(**id)).count();
        assert_eq!(queued, ready, "each that is queued is in the list once");
    }

    /// Takes turns until the worker would wait for events.
    ///
    /// # Panics
    ///
    /// If it goes on although nobody sends or receives anything.
    pub fn rest(&mut self) {
        let comes_to_rest = (0..TURNS_TO_REST).any(|_| !self.turn() && self.events.is_empty());
        assert!(comes_to_rest, "the worker spins");
        self.check(true);
    }

    /// Checks that nothing is left. Requires: the other ends of all connections are closed.
    pub fn end(mut self) {
        self.rest();
        let state = self.server.state();
        assert_eq!(self.count(), 0, "connections stay open");
        assert_eq!(state.registry.count(), 0, "connections stay registered");
        assert_eq!(state.buffers.total_bytes(), 0, "bytes stay charged");
        assert_eq!(state.registry.closing_bytes(), 0, "bytes stay counted as closing");
        assert_eq!(state.index.pinned_bytes(), 0, "items stay pinned");
    }
}

#[cfg(test)]
mod tests {
    use amalgam_index::mercury::Mercury;

    use super::*;
    use crate::connections::budget::{MEMORY_WAIT_SECONDS, TEND_INTERVAL};

    /// On each of several connections a line of a megabyte waits for its end; the ends arrive
    /// together.
    #[test]
    fn a_batch_parses_a_bounded_part_of_what_waits() {
        const CONNECTIONS: usize = 8;
        let playground = Playground::<Mercury>::open(Settings::default(), 64 << 20);
        let mut clients = playground.clients();
        let ends: Vec<OwnedFd> = (0..CONNECTIONS).map(|_| clients.connect()).collect();
        let line = [b"get".to_vec(), b" k".repeat(500_000)].concat();
        for end in &ends {
            let mut rest = &line[..];
            while !rest.is_empty() {
                let sent = rustix::io::write(end, rest).unwrap_or(0);
                rest = &rest[sent..];
                clients.turn();
            }
        }
        clients.rest();
        assert!(clients.charged_bytes() > CONNECTIONS * line.len(), "all of it waits");
        for end in &ends {
            assert_eq!(rustix::io::write(end, b"\r\n"), Ok(2));
        }
        for turn in 1..=CONNECTIONS {
            clients.turn();
            let gets = playground.0.state().counters.of_worker(0).get_misses.get();
            assert_eq!(gets, 500_000 * turn as u64, "one line in each turn");
        }
        clients.rest();
        let most = clients.worker.most_batch_bytes();
        assert!(most < 2 * line.len(), "{most} bytes were parsed at once");
        for end in &ends {
            assert_eq!(rustix::io::read(end, &mut [0; 16]), Ok(5), "nothing was found");
        }
        drop(ends);
        clients.end();
    }

    /// A client that sends a long value slowly enough keeps others' values out.
    #[test]
    fn a_value_that_has_waited_for_long_enough_is_refused() {
        let settings = Settings { max_item_bytes: 4 << 20, ..Settings::default() };
        let playground = Playground::<Mercury>::open(settings, 8 << 20);
        let mut clients = playground.clients();
        let begin = |clients: &mut Clients<'_, Mercury>, bytes: usize| {
            let end = clients.connect();
            let head = format!("set k 0 0 {bytes}\r\n{}", "v".repeat(20_000));
            assert_eq!(rustix::io::write(&end, head.as_bytes()), Ok(head.len()));
            end
        };
        let send = |clients: &mut Clients<'_, Mercury>, end: &OwnedFd, mut bytes: usize| {
            while bytes > 0 {
                bytes -= rustix::io::write(end, &vec![b'v'; bytes]).unwrap_or(0);
                clients.turn();
            }
        };
        let holders = [(); 2].map(|()| begin(&mut clients, 3_000_000));
        holders.iter().for_each(|end| send(&mut clients, end, 500_000));
        let waiter = begin(&mut clients, 1_000_000);
        clients.rest();
        assert!(playground.0.state().buffers.has_waiters());
        // What has come of these is more than a client moves that is closed for being slow.
        playground.0.state().clock.skip_ahead(MEMORY_WAIT_SECONDS);
        std::thread::sleep(TEND_INTERVAL);
        for end in &holders {
            assert_eq!(rustix::io::write(end, &[b'v'; 20_000]), Ok(20_000));
        }
        clients.turn();
        assert!(!playground.0.state().buffers.has_waiters());
        let counters = playground.0.state().counters.of_worker(0);
        while counters.read_buf_oom.get() == 0 {
            clients.turn();
        }
        // The rest is skipped, and then answered.
        send(&mut clients, &waiter, 1_000_000 - 20_000);
        clients.rest();
        assert_eq!(rustix::io::write(&waiter, b"\r\n"), Ok(2));
        clients.rest();
        let mut answer = [0; 64];
        let count = rustix::io::read(&waiter, &mut answer).expect("an answer");
        assert_eq!(&answer[..count], b"SERVER_ERROR out of memory storing object\r\n");
        drop((holders, waiter));
        clients.end();
    }

    /// Many clients have long answers to come, and their sockets take them at once.
    #[test]
    fn long_answers_make_other_clients_wait_for_a_bounded_part_of_them() {
        const VALUE_BYTES: usize = 100_000;
        const READERS: usize = 100;
        let playground = Playground::<Mercury>::open(Settings::default(), 64 << 20);
        let mut clients = playground.clients();
        let other = clients.connect();
        let ask = |clients: &mut Clients<'_, Mercury>, request: &[u8]| {
            assert_eq!(rustix::io::write(&other, request), Ok(request.len()));
            clients.turn();
            let mut answer = [0; 16];
            let count = rustix::io::read(&other, &mut answer).expect("an answer in this turn");
            answer[..count].to_vec()
        };
        let store = format!("set k 0 0 {VALUE_BYTES}\r\n{}\r\n", "v".repeat(VALUE_BYTES));
        let mut rest = store.as_bytes();
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&other, rest).unwrap_or(0)..];
            clients.turn();
        }
        clients.rest();
        assert_eq!(rustix::io::read(&other, &mut [0; 16]), Ok(8), "it is stored");
        let readers: Vec<_> = (0..READERS).map(|_| clients.connect_with(128 << 10)).collect();
        for reader in &readers {
            assert_eq!(rustix::io::write(reader, b"get k\r\n"), Ok(7));
        }
        let written = || playground.0.state().counters.of_worker(0).bytes_written.get();
        let (mut before, mut turns) = (written(), 0);
        while before < (READERS * VALUE_BYTES) as u64 {
            assert_eq!(ask(&mut clients, b"mn\r\n"), b"MN\r\n");
            let sent = written() - before;
            assert!(sent <= (2 << 20), "{sent} bytes were sent at once");
            before += sent;
            turns += 1;
            assert!(turns < READERS, "answers are sent");
        }
        assert!(turns > 4, "all was sent in {turns} turns");
        for reader in &readers {
            let mut answer = vec![0; VALUE_BYTES + 64];
            let mut filled = 0;
            while let Ok(count @ 1..) = rustix::io::read(reader, &mut answer[filled..]) {
                filled += count;
            }
            assert!(filled > VALUE_BYTES && answer[..filled].ends_with(b"\r\nEND\r\n"));
        }
        drop((other, readers));
        clients.end();
    }

    /// Else a worker that once served a long pipeline would keep megabytes for good.
    #[test]
    fn what_is_kept_for_the_next_batch_is_freed_within_a_second() {
        let playground = Playground::<Mercury>::open(Settings::default(), 64 << 20);
        let mut clients = playground.clients();
        let end = clients.connect();
        let requests = b"get k\r\n".repeat(2_000);
        assert_eq!(rustix::io::write(&end, &requests), Ok(requests.len()));
        clients.rest();
        assert!(clients.spare_bytes() > 100_000, "{} bytes", clients.spare_bytes());
        playground.0.state().clock.skip_ahead(2);
        clients.turn();
        assert_eq!(clients.spare_bytes(), 0);
        drop(end);
        clients.end();
    }

    /// More clients than a batch has room for send many keys at once, and more after them.
    #[test]
    fn long_requests_make_other_clients_wait_for_a_bounded_part_of_them() {
        const CLIENTS: usize = 200;
        let playground = Playground::<Mercury>::open(Settings::default(), 64 << 20);
        let mut clients = playground.clients();
        let other = clients.connect();
        let ends: Vec<_> = (0..CLIENTS).map(|_| clients.connect()).collect();
        clients.rest();
        let requests = [b"get".to_vec(), b" k".repeat(7_000), b"\r\n".to_vec()].concat().repeat(3);
        for end in &ends {
            assert_eq!(rustix::io::write(end, &requests), Ok(requests.len()));
        }
        let read = || playground.0.state().counters.of_worker(0).bytes_read.get();
        let (mut before, mut turns, mut answered) = (read(), 0, vec![0; CLIENTS]);
        while answered.iter().any(|bytes| *bytes < 15) {
            assert_eq!(rustix::io::write(&other, b"mn\r\n"), Ok(4));
            clients.turn();
            assert_eq!(rustix::io::read(&other, &mut [0; 16]), Ok(4), "in this turn");
            let received = read() - before;
            assert!(received < 512 << 10, "{received} bytes were received at once");
            before += received;
            for (end, bytes) in ends.iter().zip(&mut answered) {
                *bytes += rustix::io::read(end, &mut [0; 64]).unwrap_or(0);
            }
            let is_unfair = answered.contains(&0) && answered.contains(&15);
            assert!(!is_unfair, "the first are always served before the last: {answered:?}");
            turns += 1;
            assert!(turns < 4 * CLIENTS, "clients are answered");
        }
        assert!(turns > 16, "all was answered in {turns} turns");
        drop((other, ends));
        clients.end();
    }

    /// Many clients ask for statistics and lists, which take long to make.
    #[test]
    fn long_reports_make_other_clients_wait_for_a_bounded_part_of_them() {
        const CLIENTS: usize = 100;
        const ITEMS: usize = 20_000;
        let playground = Playground::<Mercury>::open(Settings::default(), 64 << 20);
        let mut clients = playground.clients();
        let other = clients.connect();
        let sets = (0..ITEMS).map(|number| format!("ms {number} 1 q\r\nv\r\n")).collect::<String>();
        let mut rest = sets.as_bytes();
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&other, rest).unwrap_or(0)..];
            clients.turn();
        }
        clients.rest();
        let written = || playground.0.state().counters.of_worker(0).bytes_written.get();
        for request in ["stats\r\n", "stats conns\r\n", "lru_crawler metadump all\r\n"] {
            let ends: Vec<_> = (0..CLIENTS).map(|_| clients.connect_with(128 << 10)).collect();
            clients.rest();
            for end in &ends {
                assert_eq!(rustix::io::write(end, request.as_bytes()), Ok(request.len()));
            }
            let is_dump = request.starts_with("lru_crawler");
            let (mut waiting, mut turns) = (ends.iter().collect::<Vec<_>>(), 0);
            let mut answer = vec![0; 64 << 10];
            while !waiting.is_empty() && (!is_dump || turns < CLIENTS) {
                let before = written();
                assert_eq!(rustix::io::write(&other, b"mn\r\n"), Ok(4));
                clients.turn();
                assert_eq!(rustix::io::read(&other, &mut [0; 16]), Ok(4), "in this turn");
                let sent = written() - before;
                assert!(sent < 1 << 20, "{request}: {sent} bytes were made at once");
                // A dump begins with a line that says so.
                let is_answered = |count| count > b"OK\r\n".len();
                waiting.retain(|end| !rustix::io::read(end, &mut answer).is_ok_and(is_answered));
                turns += 1;
                assert!(turns < 10 * CLIENTS, "{request}: {} get nothing", waiting.len());
            }
            assert!(turns > 4, "{request}: all was answered in {turns} turns");
            assert!(waiting.len() < CLIENTS, "{request}: nothing was answered");
            drop(ends);
            clients.rest();
        }
        drop(other);
        clients.end();
    }
}
