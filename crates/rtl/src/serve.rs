//! Serves the simulated table on a real UDP port and a real TCP port.
//!
//! A single thread reads the sockets, simulates some cycles, and sends the answers. Memory is
//! bounded: at most [`MAX_UNDER_WAY`] requests and [`MAX_CONNECTIONS`] connections, each with at
//! most [`MAX_INPUT_BYTES`] of input; a connection with more than [`MAX_UNSENT_BYTES`] of unsent
//! answers is not read. A datagram without a whole request is dropped and counted, as the hardware
//! does with frames.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use amalgam_op::Now;
use amalgam_protocol::{Protocol, datagram};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Configuration;
use crate::host_bridge::{HostBridge, Taken};

/// Maximum number of requests in flight; beyond it, sockets are not read.
const MAX_UNDER_WAY: usize = 1024;
/// Maximum number of connections; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
/// Bytes of unsent answers beyond which a connection is not read.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// Maximum bytes of buffered input of a connection; holds the longest request.
const MAX_INPUT_BYTES: usize = 2 << 20;
/// Cycles simulated between two polls of the sockets.
const CYCLES: usize = 64;
/// Bytes read by one call.
const READ_BYTES: usize = 1 << 16;
/// How long an idle service waits before it checks whether to stop.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Datagram { peer: SocketAddr, request: u16 },
    Connection(u64),
}

struct Connection {
    stream: TcpStream,
    /// The protocol; None until the first byte arrives.
    protocol: Option<Protocol>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of input still to discard.
    swallow: usize,
    under_way: usize,
    /// Whether the connection is closing: it is not read any more.
    is_ending: bool,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            protocol: None,
            input: Vec::new(),
            output: Vec::new(),
            swallow: 0,
            under_way: 0,
            is_ending: false,
        })
    }

    fn is_over(&self) -> bool {
        self.is_ending && self.under_way == 0 && self.output.is_empty()
    }

    /// Reads available input. A broken connection is closed.
    fn receive(&mut self, buffer: &mut [u8]) {
        // A connection with no request in flight may be in the middle of a long value.
        let room = if self.under_way == 0 { MAX_INPUT_BYTES } else { READ_BYTES };
        if self.is_ending || self.output.len() > MAX_UNSENT_BYTES || self.input.len() >= room {
            return;
        }
        match self.stream.read(buffer) {
            Ok(0) => self.is_ending = true,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if is_later(&error) => {}
            Err(_) => self.is_ending = true,
        }
    }

    /// Sends complete requests to the table.
    fn take(&mut self, number: u64, bridge: &mut HostBridge<Origin>) {
        let mut used = 0;
        while bridge.under_way() < MAX_UNDER_WAY {
            let thrown = self.swallow.min(self.input.len() - used);
            self.swallow -= thrown;
            used += thrown;
            let Some(first) = self.input.get(used) else { break };
            let protocol = *self.protocol.get_or_insert_with(|| Protocol::detect(*first));
            match bridge.take(protocol, &self.input[used..], Origin::Connection(number)) {
                Taken::Incomplete => break,
                Taken::Request { used: bytes, swallow, closes } => {
                    used += bytes;
                    self.swallow = swallow;
                    self.under_way += 1;
                    if closes {
                        self.is_ending = true;
                        used = self.input.len();
                    }
                }
            }
        }
        self.input.drain(..used);
    }

    fn send(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) if count > 0 => drop(self.output.drain(..count)),
                Err(error) if is_later(&error) => return,
                _ => {
                    self.is_ending = true;
                    self.output.clear();
                }
            }
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A server: the sockets and the simulated table behind them.
pub struct Service {
    udp: UdpSocket,
    listener: TcpListener,
    connections: BTreeMap<u64, Connection>,
    bridge: HostBridge<Origin>,
    start: Instant,
    epoch_unix_seconds: i64,
    seconds: u32,
    accepted: u64,
    dropped: u64,
}

impl Service {
    /// Opens the UDP port and the TCP port of `address`; with port 0, any that is free for both.
    ///
    /// # Errors
    ///
    /// Returns the system's error if a port cannot be opened.
    pub fn bind(address: SocketAddr, configuration: Configuration) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let udp = UdpSocket::bind(listener.local_addr()?)?;
        listener.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The clock starts after second 1, so that an item stored as already expired is expired.
        let (epoch_unix_seconds, seconds) = (unix.as_secs().cast_signed() - 2, 2);
        let now = Now { seconds, epoch_unix_seconds, generation: 0 };
        Ok(Self {
            udp,
            listener,
            connections: BTreeMap::new(),
            bridge: HostBridge::new(configuration, now),
            start: Instant::now(),
            epoch_unix_seconds,
            seconds,
            accepted: 0,
            dropped: 0,
        })
    }

    /// The address of both sockets.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it cannot report the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `is_stopping` is set; returns the number of dropped datagrams.
    ///
    /// # Errors
    ///
    /// Returns the system's error if polling the sockets fails.
    pub fn run(&mut self, is_stopping: &AtomicBool) -> io::Result<u64> {
        let mut buffer = vec![0; READ_BYTES];
        while !is_stopping.load(Ordering::Relaxed) {
            if self.bridge.under_way() == 0 {
                self.wait()?;
            }
            self.tick();
            self.accept();
            self.receive_datagrams(&mut buffer);
            for (number, connection) in &mut self.connections {
                connection.receive(&mut buffer);
                connection.take(*number, &mut self.bridge);
            }
            if self.bridge.under_way() > 0 {
                self.bridge.run(CYCLES);
            }
            self.answer();
            self.connections.retain(|_, connection| !connection.is_over());
        }
        Ok(self.dropped)
    }

    /// Waits until a socket is ready.
    fn wait(&self) -> io::Result<()> {
        let mut descriptors =
            vec![PollFd::new(&self.udp, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        for connection in self.connections.values() {
            let wanted = match connection.output.is_empty() {
                true => PollFlags::IN,
                false => PollFlags::IN | PollFlags::OUT,
            };
            descriptors.push(PollFd::new(&connection.stream, wanted));
        }
        match poll(&mut descriptors, Some(&NAP)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Advances the table's clock.
    fn tick(&mut self) {
        let seconds = u32::try_from(self.start.elapsed().as_secs() + 2).unwrap_or(u32::MAX);
        if seconds > self.seconds {
            self.seconds = seconds;
            let epoch_unix_seconds = self.epoch_unix_seconds;
            self.bridge.set_now(Now { seconds, epoch_unix_seconds, generation: 0 });
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < MAX_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else { return };
            if let Ok(connection) = Connection::new(stream) {
                self.accepted += 1;
                self.connections.insert(self.accepted, connection);
            }
        }
    }

    fn receive_datagrams(&mut self, buffer: &mut [u8]) {
        while self.bridge.under_way() < MAX_UNDER_WAY {
            let Ok((bytes, peer)) = self.udp.recv_from(buffer) else { return };
            match datagram::decode_request(&buffer[..bytes]) {
                Some((request, rest)) => self.take_datagram(peer, request, rest),
                None => self.dropped += 1,
            }
        }
    }

    /// Sends the requests of a datagram to the table. Each is answered in its own datagram.
    fn take_datagram(&mut self, peer: SocketAddr, request: u16, mut rest: &[u8]) {
        let origin = Origin::Datagram { peer, request };
        let protocol = Protocol::detect(rest[0]);
        while !rest.is_empty() {
            match self.bridge.take(protocol, rest, origin) {
                Taken::Request { used, swallow, closes: false } => {
                    rest = rest.get(used.saturating_add(swallow)..).unwrap_or_default();
                }
                Taken::Request { .. } => return,
                Taken::Incomplete => {
                    self.dropped += 1;
                    return;
                }
            }
        }
    }

    /// Passes the table's answers to their connections and senders.
    fn answer(&mut self) {
        let mut answer = Vec::new();
        while let Some(origin) = self.bridge.next_answer(&mut answer) {
            match origin {
                Origin::Connection(number) => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.under_way -= 1;
                        connection.output.extend_from_slice(&answer);
                    }
                }
                Origin::Datagram { peer, request } => {
                    for (header, part) in datagram::split_answer(request, &answer) {
                        // A datagram that cannot be sent is dropped; UDP gives no guarantee.
                        let _ = self.udp.send_to(&[&header, part].concat(), peer);
                    }
                }
            }
            answer.clear();
        }
        self.connections.values_mut().for_each(Connection::send);
    }
}
