//! A client's connections to nodes: how they open, and the requests in flight on them.
//!
//! Invariants of this module:
//! 1. Nothing here blocks but [`open_first`] and [`wait_for`]. Connections open concurrently, each
//!    within a time limit.
//! 2. Packets for a node are kept while the connection to it opens, and are sent in order.
//! 3. A node that owes an answer and is silent is probed, and its connection dropped soon after.
//! 4. A request that is given up is not executed later. It carries its deadline in the clock of the
//!    node: what that showed when the node last told it, and the time since this was received. The
//!    node's clock is ahead of that, by the time that the message took, so its deadline is never
//!    later than the client's.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use amalgam_cluster::chunks::Request;
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{
    Control, FrameReader, Hello, PARTIAL_REPLY, Packet, WIRE_VERSION, encode_frame,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::clock::boot_ms;
use crate::connection::dial;
use crate::handshake::{Handshake, HandshakeError, Identity};
use amalgam_tls::{MutualSession, TlsError};

/// Interval at which a client looks at the clock while it waits for anything.
pub const TICK: Duration = Duration::from_millis(20);
/// Silence after which a node that owes an answer is probed, in milliseconds.
const PROBE_MS: u64 = 200;
/// Silence after which its connection is dropped, in milliseconds.
pub const LOST_MS: u64 = 1_000;
/// Age from which on a node is asked for its clock again, in milliseconds, and the share of the
/// age by which the clocks may have drifted apart.
const CLOCK_MS: u64 = 2_000;
const DRIFT_SHARE: u64 = 1_000;
/// Bytes that are read at once while a connection opens.
const GREETING_BYTES: usize = 4 << 10;
/// The largest output buffer that an idle connection keeps.
const KEPT_BYTES: usize = 64 << 10;

/// Why a client has no connection, or no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The system or the network failed.
    System(io::Error),
    /// The two sides did not authenticate each other.
    Handshake(HandshakeError),
    /// The node does that only for an operator.
    Forbidden,
    /// The node answered something unexpected, or cannot be asked; the text says which.
    Answer(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
            Self::Forbidden => f.write_str(
                "only an operator may drain a node or move chunks: give --operator-token-file, or \
                 connect from the node's own machine if it was started without one",
            ),
            Self::Answer(why) => write!(f, "the node's answer: {why}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<TlsError> for ClientError {
    fn from(error: TlsError) -> Self {
        Self::Handshake(error.into())
    }
}

impl From<HandshakeError> for ClientError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// A socket that does not block, with what waits to be sent.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    /// None if it is not secured.
    session: Option<MutualSession>,
    /// Bytes to send.
    out: Vec<u8>,
    /// Earlier ones as they are sent, encrypted if the connection is secured; `sent` of them were.
    encrypted: Vec<u8>,
    sent: usize,
    /// The node and the events for which the socket is registered.
    watched: Option<(u64, EventFlags)>,
}

impl Link {
    /// Sends what the socket takes. Whether everything was sent.
    fn send(&mut self) -> io::Result<bool> {
        match &mut self.session {
            Some(session) => session.encrypt(&self.out, &mut self.encrypted),
            None if self.encrypted.is_empty() => {
                std::mem::swap(&mut self.encrypted, &mut self.out);
            }
            None => self.encrypted.extend_from_slice(&self.out),
        }
        self.out.clear();
        while self.sent < self.encrypted.len() {
            match self.stream.write(&self.encrypted[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if is_retryable(&error) => {
                    if self.sent > self.encrypted.len() / 2 {
                        self.encrypted.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        self.encrypted.clear();
        if self.encrypted.capacity() > KEPT_BYTES {
            self.encrypted = Vec::new();
        }
        Ok(true)
    }

    fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.sent < self.encrypted.len()
    }

    /// Has `epoll` report, with the number of the node, what the connection waits for.
    fn watch(&mut self, epoll: &OwnedFd, node: u64) -> io::Result<()> {
        let room = if self.has_unsent() { EventFlags::OUT } else { EventFlags::empty() };
        let wanted = (node, EventFlags::IN | room);
        if self.watched != Some(wanted) {
            let data = EventData::new_u64(node);
            match self.watched {
                None => epoll::add(epoll, &self.stream, data, wanted.1)?,
                Some(_) => epoll::modify(epoll, &self.stream, data, wanted.1)?,
            }
            self.watched = Some(wanted);
        }
        Ok(())
    }

    /// The events for [`poll`].
    fn poll_descriptor(&self) -> PollFd<'_> {
        let flags = if self.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.stream, flags)
    }
}

/// A connection that is being opened.
#[derive(Debug)]
pub struct PendingConnection {
    link: Link,
    handshake: Handshake,
    /// The other side's hello and the bytes after its handshake; None before that is complete.
    known: Option<(Hello, Vec<u8>)>,
    /// Packets to send once the connection is open, with the deadline of a request.
    packets: Vec<(Packet, Option<u64>)>,
    /// The node's clock, and when it was received.
    clock: Option<(u64, u64)>,
    /// When the attempt is given up, in [`boot_ms`].
    until_ms: u64,
}

impl PendingConnection {
    /// Begins to open a connection.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the address cannot be dialed.
    pub fn start(
        address: SocketAddr,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let stream = dial(address)?;
        let session = identity.session(true)?;
        let mut out = Vec::new();
        let handshake = Handshake::start(identity.clone(), true, &mut out)?;
        let link = Link { stream, session, out, encrypted: Vec::new(), sent: 0, watched: None };
        Ok(Self {
            link,
            handshake,
            known: None,
            packets: Vec::new(),
            clock: None,
            until_ms: boot_ms() + patience.as_millis() as u64,
        })
    }

    /// Whether the attempt has taken too long.
    pub fn is_late(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms
    }

    /// Has `epoll` report when [`Self::advance`] has something to do, with the node's number.
    ///
    /// # Errors
    ///
    /// If the system refuses that.
    pub fn watch(&mut self, epoll: &OwnedFd, node: u64) -> io::Result<()> {
        self.link.watch(epoll, node)
    }

    /// Keeps a packet until the connection is open, and the deadline of a request.
    pub fn push(&mut self, packet: Packet, until_ms: Option<u64>) {
        self.packets.push((packet, until_ms));
    }

    /// The requests that wait for the connection.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.packets.iter().filter_map(|(packet, _)| match packet {
            Packet::Request(request) => Some(request),
            _ => None,
        })
    }

    /// Continues as far as possible without blocking. Whether the connection is open.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; the attempt must be given up then.
    pub fn advance(&mut self) -> Result<bool, ClientError> {
        let mut buffer = [0; GREETING_BYTES];
        loop {
            if !self.link.send()? {
                return Ok(false);
            }
            if self.known.is_some() {
                return Ok(true);
            }
            match self.link.stream.read(&mut buffer) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.take(&buffer[..count])?,
                Err(error) if is_retryable(&error) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self, said: &[u8]) -> Result<(), ClientError> {
        let mut plain = Vec::new();
        let said = match &mut self.link.session {
            Some(session) => {
                if let Err(error) = session.receive(said, &mut plain) {
                    // Sends the alert, if the other side still listens.
                    let mut alert = Vec::new();
                    session.encrypt(&[], &mut alert);
                    let _ = self.link.stream.write(&alert);
                    return Err(error.into());
                }
                if let Some(binding) = session.binding() {
                    self.handshake.bind(&binding);
                }
                &plain
            }
            None => said,
        };
        self.known = self.handshake.feed(said, &mut self.link.out)?;
        if self.clock.is_none() {
            self.clock = self.handshake.clock_ms().map(|clock_ms| (clock_ms, boot_ms()));
        }
        Ok(())
    }

    /// Makes a connection of the attempt; what was pushed waits to be sent. Requires:
    /// [`Self::advance`] returned true.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the other end is not a node.
    pub fn finish(self) -> Result<ClientConnection, ClientError> {
        let nobody = || ClientError::Answer("the other side is a client, not a node".to_owned());
        let (hello, rest) = self.known.ok_or_else(nobody)?;
        let peer = hello.from.ok_or_else(nobody)?;
        let mut frames = FrameReader::default();
        frames.feed(&rest);
        let mut connection = ClientConnection {
            link: self.link,
            peer,
            cluster: hello.cluster,
            wire_version: hello.version.min(WIRE_VERSION),
            frames,
            plain: Vec::new(),
            in_flight: 0,
            has_received: true,
            is_probed: false,
            silent_since_ms: 0,
            clock: self.clock,
            is_clock_asked: false,
        };
        for (packet, until_ms) in self.packets {
            connection.push_until(packet, until_ms);
        }
        Ok(connection)
    }
}

fn is_retryable(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, NotConnected, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | NotConnected)
}

/// Opens a connection to the first of several nodes that answers. The next one is dialed as well
/// when the one before it failed or was silent for a second.
///
/// # Errors
///
/// [`ClientError`] of the last that failed.
pub fn open_first(
    addresses: &[String],
    identity: &Identity,
    patience: Duration,
) -> Result<ClientConnection, ClientError> {
    let mut last = ClientError::Answer("no address of a node was given".to_owned());
    let mut targets = Vec::new();
    for address in addresses {
        match address.to_socket_addrs() {
            Ok(resolved) => targets.extend(resolved),
            Err(error) => last = error.into(),
        }
    }
    let mut targets = targets.into_iter();
    let (mut pending, mut next_ms): (Vec<PendingConnection>, u64) = (Vec::new(), 0);
    loop {
        if pending.is_empty() || boot_ms() >= next_ms {
            next_ms = boot_ms() + LOST_MS;
            match targets.next().map(|target| PendingConnection::start(target, identity, patience))
            {
                Some(Ok(dial)) => pending.push(dial),
                Some(Err(error)) => {
                    (last, next_ms) = (error, 0);
                    continue;
                }
                None if pending.is_empty() => return Err(last),
                None => {}
            }
        }
        let links = pending.iter().map(|dial| dial.link.poll_descriptor());
        wait_for(&mut links.collect::<Vec<_>>(), TICK);
        let mut place = 0;
        while place < pending.len() {
            match pending[place].advance() {
                Ok(true) => return pending.swap_remove(place).finish(),
                Ok(false) if !pending[place].is_late(boot_ms()) => {
                    place += 1;
                    continue;
                }
                Ok(false) => last = io::Error::from(ErrorKind::TimedOut).into(),
                Err(error) => last = error,
            }
            pending.remove(place);
        }
    }
}

/// Waits for at least one descriptor.
pub fn wait_for(descriptors: &mut [PollFd<'_>], patience: Duration) {
    let seconds = i64::try_from(patience.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: patience.subsec_nanos().into() };
    // An interrupted wait finds nothing ready, and is repeated.
    let _ = poll(descriptors, Some(&timeout));
}

/// An open connection of a client to a node.
#[derive(Debug)]
pub struct ClientConnection {
    link: Link,
    /// The node at the other end.
    pub peer: Peer,
    /// The number of the node's cluster.
    pub cluster: u64,
    /// The wire version that both ends speak.
    wire_version: u16,
    frames: FrameReader,
    /// Buffer for what was decrypted last.
    plain: Vec<u8>,
    /// Number of requests without an answer.
    pub in_flight: u64,
    /// Whether anything arrived since [`Self::is_alive`] was last called.
    has_received: bool,
    is_probed: bool,
    silent_since_ms: u64,
    /// The node's clock when it last told it, and this process's when that was received; None if
    /// the node's version does not tell.
    clock: Option<(u64, u64)>,
    is_clock_asked: bool,
}

impl ClientConnection {
    /// Queues a packet. A request is to be executed before `until_ms`, in [`boot_ms`], or never, if
    /// the node's version knows of that.
    pub fn push_until(&mut self, packet: Packet, until_ms: Option<u64>) {
        let (request, until_ms, (told_ms, at_ms)) = match (packet, until_ms, self.clock) {
            (Packet::Request(request), Some(until_ms), Some(clock)) => (request, until_ms, clock),
            (packet, ..) => return self.push(0, &packet),
        };
        let (age_ms, left_ms) = (boot_ms().saturating_sub(at_ms), until_ms.saturating_sub(at_ms));
        if age_ms >= CLOCK_MS && !self.is_clock_asked {
            self.is_clock_asked = true;
            self.push(0, &Packet::Control(Control::GetClock));
        }
        let until_ms = told_ms.saturating_add(left_ms.saturating_sub(age_ms / DRIFT_SHARE));
        self.push(0, &Packet::Timed(until_ms, request));
    }

    /// Takes the node's clock, which has just arrived.
    pub fn set_clock(&mut self, clock_ms: u64) {
        (self.clock, self.is_clock_asked) = (Some((clock_ms, boot_ms())), false);
    }

    /// How long the node has owed an answer and sent nothing, in milliseconds, as of the last call
    /// of [`Self::is_alive`].
    pub fn silent_ms(&self, now_ms: u64) -> u64 {
        let owes = self.in_flight > 0 && !self.has_received;
        if owes { now_ms.saturating_sub(self.silent_since_ms) } else { 0 }
    }

    /// Queues a packet, or drops it if the node's wire version does not know it; its answer has the
    /// same number.
    pub fn push(&mut self, number: u64, packet: &Packet) {
        if packet.since() > self.wire_version {
            return;
        }
        // Requests are cut far below the bound.
        if encode_frame(number, packet, &mut self.link.out).is_ok() {
            self.has_received |= self.in_flight == 0;
            self.in_flight += 1;
        }
    }

    /// Sends what is queued, as far as the socket takes it.
    ///
    /// # Errors
    ///
    /// If the connection is broken.
    pub fn send(&mut self) -> io::Result<()> {
        self.link.send().map(drop)
    }

    /// Sends a packet without an answer just before the connection is closed, if the socket takes
    /// it at once.
    pub fn send_last(&mut self, packet: &Packet) {
        self.push(0, packet);
        // The connection is closed whether this fails or not.
        let _ = self.send();
    }

    /// As [`PendingConnection::watch`], for what arrives and for room to send the rest.
    ///
    /// # Errors
    ///
    /// If the system refuses that.
    pub fn watch(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        self.link.watch(epoll, self.peer.node.get().into())
    }

    /// Whether the node still answers, as far as is known. Probes a node that owes an answer and is
    /// silent.
    pub fn is_alive(&mut self, now_ms: u64) -> bool {
        if std::mem::take(&mut self.has_received) || self.in_flight == 0 {
            (self.silent_since_ms, self.is_probed) = (now_ms, false);
        }
        let silent_ms = now_ms.saturating_sub(self.silent_since_ms);
        if silent_ms >= PROBE_MS && !self.is_probed {
            self.is_probed = true;
            // A live node answers this at once, whatever else it waits for.
            self.push(0, &Packet::Control(Control::GetStatus));
            return self.send().is_ok();
        }
        silent_ms < LOST_MS
    }

    /// Counts the node's silence from now on.
    pub fn restart_silence(&mut self) {
        self.has_received = true;
    }

    /// Waits until there is something to read, or room to send the rest; at most for a tick.
    pub fn wait(&self) {
        wait_for(&mut [self.link.poll_descriptor()], TICK);
    }

    /// Sends the rest, and reads what has arrived. Whether the connection is still open.
    pub fn receive(&mut self, buffer: &mut [u8]) -> bool {
        if self.send().is_err() {
            return false;
        }
        match self.link.stream.read(buffer) {
            Ok(0) => false,
            Ok(count) => self.take(&buffer[..count]),
            Err(error) => is_retryable(&error),
        }
    }

    /// Handles what was read. Whether the connection is still good.
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.has_received = true;
        let Some(session) = &mut self.link.session else {
            self.frames.feed(bytes);
            return true;
        };
        self.plain.clear();
        if session.receive(bytes, &mut self.plain).is_err() {
            return false;
        }
        self.frames.feed(&self.plain);
        // TLS may have to answer, for example to a key update.
        !session.wants_write() || self.send().is_ok()
    }

    /// The next packet and its number; None if it has not arrived completely.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the frame is malformed.
    pub fn next(&mut self) -> Result<Option<(u64, Packet)>, ClientError> {
        let frame = self.frames.next_frame();
        let frame = frame.map_err(|error| ClientError::Answer(error.to_string()))?;
        let is_answer = frame.as_ref().is_some_and(|(number, _)| *number != PARTIAL_REPLY);
        self.in_flight = self.in_flight.saturating_sub(u64::from(is_answer));
        Ok(frame)
    }
}
