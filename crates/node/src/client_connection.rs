//! A client's connections to nodes: how one opens, and what is under way on it.
//!
//! Invariants of this room:
//! 1. Opening waits for nobody: several connections open side by side, each within a bounded time.
//! 2. What is meant for a node is kept while the connection to it opens, and sent in its order.
//! 3. Who owes an answer and says nothing is asked whether it lives, and given up soon after.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{Control, FrameReader, Hello, Packet, encode_frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::clock::boot_ms;
use crate::connection::dial;
use crate::handshake::{Handshake, HandshakeError, Identity};
use amalgam_tls::{MutualSession, TlsError};

/// How long reading waits.
pub const TICK: Duration = Duration::from_millis(20);
/// Who owes an answer and was silent for so long is asked whether it lives, in milliseconds.
const PROBE_MS: u64 = 300;
/// And is given up after so long.
pub const LOST_MS: u64 = 1_000;
/// How long sending may wait for room.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Read at once while a connection opens.
const GREETING_BYTES: usize = 4 << 10;

/// Why a client has no connection, or no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The system or the network failed.
    System(io::Error),
    /// The two sides did not authenticate each other.
    Handshake(HandshakeError),
    /// The node answered something unexpected, or cannot be asked; the text says which.
    Answer(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
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

/// A connection that is being opened.
#[derive(Debug)]
pub struct PendingConnection {
    stream: TcpStream,
    /// None if it is not secured.
    session: Option<MutualSession>,
    handshake: Handshake,
    /// What the handshake has to say.
    out: Vec<u8>,
    /// The same as it travels, and how much of it was sent.
    encrypted: Vec<u8>,
    sent: usize,
    /// Who is there, once that is known, and what it said after.
    known: Option<(Hello, Vec<u8>)>,
    /// Frames for when it is open.
    frames: Vec<u8>,
    in_flight: u64,
    /// When it is given up.
    until_ms: u64,
}

impl PendingConnection {
    /// Begins to open a connection.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if nobody can be there.
    pub fn start(
        address: SocketAddr,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let stream = dial(address)?;
        let session = identity.session(true)?;
        let mut out = Vec::new();
        let handshake = Handshake::start(identity.clone(), true, &mut out)?;
        Ok(Self {
            stream,
            session,
            handshake,
            out,
            encrypted: Vec::new(),
            sent: 0,
            known: None,
            frames: Vec::new(),
            in_flight: 0,
            until_ms: boot_ms() + patience.as_millis() as u64,
        })
    }

    /// Whether it takes too long.
    pub fn is_late(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms
    }

    /// What to wait for before [`Self::advance`].
    pub fn poll_descriptor(&self) -> PollFd<'_> {
        let has_more = !self.out.is_empty() || self.sent < self.encrypted.len();
        let flags = if has_more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.stream, flags)
    }

    /// Keeps a packet until the connection is open.
    pub fn push(&mut self, packet: &Packet) {
        // Requests are cut far below the bound.
        if encode_frame(0, packet, &mut self.frames).is_ok() {
            self.in_flight += 1;
        }
    }

    /// Does what can be done without waiting; whether the connection is open.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; it is to be given up then.
    pub fn advance(&mut self) -> Result<bool, ClientError> {
        let mut buffer = [0; GREETING_BYTES];
        loop {
            if !self.send()? {
                return Ok(false);
            }
            if self.known.is_some() {
                return Ok(true);
            }
            match self.stream.read(&mut buffer) {
                // It does not say why: most likely the token.
                Ok(0) => return Err(HandshakeError::Token.into()),
                Ok(count) => self.take(&buffer[..count])?,
                Err(error) if is_retryable(&error) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether all is sent.
    fn send(&mut self) -> io::Result<bool> {
        match &mut self.session {
            Some(session) => session.encrypt(&self.out, &mut self.encrypted),
            None => self.encrypted.extend_from_slice(&self.out),
        }
        self.out.clear();
        while self.sent < self.encrypted.len() {
            match self.stream.write(&self.encrypted[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if is_retryable(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        (self.sent, self.encrypted) = (0, Vec::new());
        Ok(true)
    }

    fn take(&mut self, said: &[u8]) -> Result<(), ClientError> {
        let mut plain = Vec::new();
        let said = match &mut self.session {
            Some(session) => {
                if let Err(error) = session.receive(said, &mut plain) {
                    // It is told why, if it still listens.
                    let mut alert = Vec::new();
                    session.encrypt(&[], &mut alert);
                    let _ = self.stream.write(&alert);
                    return Err(error.into());
                }
                if let Some(binding) = session.binding() {
                    self.handshake.bind(&binding);
                }
                &plain
            }
            None => said,
        };
        self.known = self.handshake.feed(said, &mut self.out)?;
        Ok(())
    }

    /// The connection, when it is open; what was pushed waits to be sent.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the other end is no node.
    pub fn finish(self) -> Result<ClientConnection, ClientError> {
        let nobody = || ClientError::Answer("it is no node".to_owned());
        let (hello, rest) = self.known.ok_or_else(nobody)?;
        let peer = hello.from.ok_or_else(nobody)?;
        let stream = self.stream;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(SEND_PATIENCE))?;
        let mut frames = FrameReader::default();
        frames.feed(&rest);
        Ok(ClientConnection {
            stream,
            session: self.session,
            peer,
            cluster: hello.cluster,
            frames,
            out: self.frames,
            plain: Vec::new(),
            in_flight: self.in_flight,
            has_received: true,
            is_probed: false,
            silent_since_ms: 0,
        })
    }
}

fn is_retryable(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, NotConnected, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | NotConnected)
}

/// Opens a connection to the first of some nodes that answers: the next one is dialed, too, when
/// the one before is gone or says nothing for a second.
///
/// # Errors
///
/// [`ClientError`] of the last that failed.
pub fn open_first(
    addresses: &[String],
    identity: &Identity,
    patience: Duration,
) -> Result<ClientConnection, ClientError> {
    let mut last = ClientError::Answer("no node is named".to_owned());
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
        wait(&mut pending.iter().map(PendingConnection::poll_descriptor).collect::<Vec<_>>());
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

/// Waits for some, for a tick at most; which of them are ready.
pub fn wait(descriptors: &mut [PollFd<'_>]) -> Vec<bool> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    // An interrupted wait finds nothing ready.
    if poll(descriptors, Some(&timeout)).is_err() {
        return vec![false; descriptors.len()];
    }
    descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect()
}

/// A connection that blocks.
#[derive(Debug)]
pub struct ClientConnection {
    stream: TcpStream,
    /// None if it is not secured.
    session: Option<MutualSession>,
    /// Who is there.
    pub peer: Peer,
    /// The number of its cluster.
    pub cluster: u64,
    frames: FrameReader,
    out: Vec<u8>,
    /// What was opened last.
    plain: Vec<u8>,
    /// Requests without an answer.
    pub in_flight: u64,
    /// Whether something came since it was looked at.
    has_received: bool,
    is_probed: bool,
    silent_since_ms: u64,
}

impl ClientConnection {
    /// Queues a packet; its answer has the same number.
    pub fn push(&mut self, number: u64, packet: &Packet) {
        // Requests are cut far below the bound.
        if encode_frame(number, packet, &mut self.out).is_ok() {
            self.has_received |= self.in_flight == 0;
            self.in_flight += 1;
        }
    }

    /// Sends what is queued.
    ///
    /// # Errors
    ///
    /// If the connection is broken, or takes nothing for a second.
    pub fn send(&mut self) -> io::Result<()> {
        let result = match &mut self.session {
            Some(session) => {
                let mut encrypted = Vec::new();
                session.encrypt(&self.out, &mut encrypted);
                self.stream.write_all(&encrypted)
            }
            None => self.stream.write_all(&self.out),
        };
        self.out.clear();
        result
    }

    /// Sends a packet that nobody waits for, if there is room for it at once: the connection is
    /// closed next.
    pub fn send_last(&mut self, packet: &Packet) {
        self.push(0, packet);
        // Nobody is left to be told of an error.
        let _ = self.stream.set_nonblocking(true).and_then(|()| self.send());
    }

    /// Whether it lives, as far as can be told. Who owes an answer and is silent is asked.
    pub fn is_alive(&mut self, now_ms: u64) -> bool {
        if std::mem::take(&mut self.has_received) || self.in_flight == 0 {
            (self.silent_since_ms, self.is_probed) = (now_ms, false);
        }
        let silent_ms = now_ms.saturating_sub(self.silent_since_ms);
        if silent_ms >= PROBE_MS && !self.is_probed {
            self.is_probed = true;
            // Whoever lives answers that at once, whatever else it waits for.
            self.push(0, &Packet::Control(Control::GetStatus));
            return self.send().is_ok();
        }
        silent_ms < LOST_MS
    }

    /// Its silence counts from now on.
    pub fn restart_silence(&mut self) {
        self.has_received = true;
    }

    /// To wait for what comes.
    pub fn poll_descriptor(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, PollFlags::IN)
    }

    /// Reads what is there, or what comes within a tick; whether the connection lives.
    pub fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => false,
            Ok(count) => self.take(&buffer[..count]),
            Err(error) => matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
            ),
        }
    }

    /// Takes what was read; whether the connection lives.
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.has_received = true;
        let Some(session) = &mut self.session else {
            self.frames.feed(bytes);
            return true;
        };
        self.plain.clear();
        if session.receive(bytes, &mut self.plain).is_err() {
            return false;
        }
        self.frames.feed(&self.plain);
        // TLS may have to answer, as when keys are renewed.
        !session.wants_write() || self.send().is_ok()
    }

    /// The next packet and its number, if all of it is here.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if what came is none.
    pub fn next(&mut self) -> Result<Option<(u64, Packet)>, ClientError> {
        let frame = self.frames.next_frame();
        let frame = frame.map_err(|error| ClientError::Answer(error.to_string()))?;
        self.in_flight = self.in_flight.saturating_sub(u64::from(frame.is_some()));
        Ok(frame)
    }
}
