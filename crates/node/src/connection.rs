//! A connection of the node's loop: bytes that arrived, and bytes that wait to be sent.

use std::io;
use std::net::{SocketAddr, TcpStream};

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{FrameReader, Packet, WIRE_SINCE, WireError, encode_frame};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::handshake::Handshake;
use amalgam_tls::{MutualSession, TlsError};

/// Bytes that may wait for a slow reader. What a peer does not take is dropped beyond (the
/// protocols ask again); a client is not read from before it has taken its answers.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Encrypted at once: what is encrypted cannot be counted to whom it was for.
const ENCRYPTED_BYTES: usize = 256 << 10;
/// Read at once.
pub const READ_BYTES: usize = 256 << 10;

/// Who is at the other end.
#[derive(Debug)]
pub enum Role {
    /// Not known yet.
    Unauthenticated(Box<Handshake>),
    /// A node that sends.
    Peer(Peer),
    /// A client.
    Client,
}

/// See the head of this module.
#[derive(Debug)]
pub struct Connection {
    /// The socket, which does not block.
    pub socket: TcpStream,
    /// Who is there.
    pub role: Role,
    /// Whom this node dialed.
    pub dialed: Option<Peer>,
    /// Puts frames together.
    pub frames: FrameReader,
    /// None if the connection is not secured.
    session: Option<MutualSession>,
    /// What of `out` was encrypted, and not sent.
    encrypted: Vec<u8>,
    encrypted_sent: usize,
    out: Vec<u8>,
    sent: usize,
    /// Frames that wait for the end of the handshake.
    after_handshake: Vec<u8>,
    /// The format that both ends speak.
    wire_version: u16,
    /// Whether a connection that is being opened is open.
    pub is_open: bool,
    /// Whether the loop is to be told when more can be sent.
    pub awaits_room: bool,
}

impl Connection {
    /// A connection that begins with what `start` has put into `out`.
    pub fn new(
        socket: TcpStream,
        session: Option<MutualSession>,
        handshake: Handshake,
        out: Vec<u8>,
        dialed: Option<Peer>,
    ) -> Self {
        Self {
            socket,
            session,
            encrypted: Vec::new(),
            encrypted_sent: 0,
            role: Role::Unauthenticated(Box::new(handshake)),
            dialed,
            frames: FrameReader::default(),
            out,
            sent: 0,
            after_handshake: Vec::new(),
            wire_version: WIRE_SINCE,
            is_open: dialed.is_none(),
            awaits_room: false,
        }
    }

    /// Queues a packet; one that the other end would not know is dropped.
    ///
    /// # Errors
    ///
    /// [`WireError::TooLarge`] if it is, or if too much waits already.
    pub fn push(&mut self, number: u64, packet: &Packet) -> Result<(), WireError> {
        if self.waiting() > WAITING_BYTES_MAX {
            return Err(WireError::TooLarge);
        }
        if packet.since() > self.wire_version {
            return Ok(());
        }
        let is_unauthenticated = matches!(self.role, Role::Unauthenticated(_));
        encode_frame(
            number,
            packet,
            if is_unauthenticated { &mut self.after_handshake } else { &mut self.out },
        )
    }

    /// Whether what arrives has to be opened.
    pub fn is_secured(&self) -> bool {
        self.session.is_some()
    }

    /// Opens bytes that arrived on a secured connection: appends what they say to `plain`.
    ///
    /// # Errors
    ///
    /// [`TlsError`]; what says so to the other side waits to be sent, and then the connection is to
    /// be closed.
    pub fn decrypt(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), TlsError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.receive(bytes, plain)?;
        if let (Role::Unauthenticated(handshake), Some(binding)) =
            (&mut self.role, session.binding())
        {
            handshake.bind(&binding);
        }
        Ok(())
    }

    /// Whether the other end may be a node.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if its certificate says no.
    pub fn check_node(&self) -> Result<(), TlsError> {
        self.session.as_ref().map_or(Ok(()), MutualSession::check_node)
    }

    /// Queues bytes of the handshake.
    pub fn push_handshake(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// The other end is known, and which format both speak.
    pub fn authenticate(&mut self, role: Role, wire_version: u16) {
        (self.role, self.wire_version) = (role, wire_version);
        let after_handshake = std::mem::take(&mut self.after_handshake);
        self.out.extend_from_slice(&after_handshake);
    }

    /// Bytes that are not sent.
    pub fn waiting(&self) -> usize {
        let encrypted = self.encrypted.len() - self.encrypted_sent;
        self.out.len() - self.sent + self.after_handshake.len() + encrypted
    }

    /// Whether no more should be read before something is sent.
    pub fn is_backlogged(&self) -> bool {
        self.waiting() > WAITING_BYTES_MAX / 2
    }

    /// Sends what can be sent; whether all is.
    ///
    /// # Errors
    ///
    /// If the connection is broken.
    pub fn send(&mut self) -> io::Result<bool> {
        if self.session.is_some() {
            return self.send_encrypted();
        }
        if !write_from(&self.socket, &self.out, &mut self.sent)? {
            return Ok(false);
        }
        self.clear_out();
        Ok(true)
    }

    /// The same where it has to be encrypted first.
    fn send_encrypted(&mut self) -> io::Result<bool> {
        while let Some(session) = &mut self.session {
            if !write_from(&self.socket, &self.encrypted, &mut self.encrypted_sent)? {
                return Ok(false);
            }
            self.encrypted_sent = 0;
            self.encrypted.clear();
            let end = self.out.len().min(self.sent + ENCRYPTED_BYTES);
            if self.sent == end && !session.wants_write() {
                break;
            }
            session.encrypt(&self.out[self.sent..end], &mut self.encrypted);
            self.sent = end;
            if self.encrypted.is_empty() {
                // It waits in the session until that is open.
                break;
            }
        }
        if self.sent == self.out.len() {
            self.clear_out();
        }
        Ok(true)
    }

    fn clear_out(&mut self) {
        self.out.clear();
        self.sent = 0;
        if self.out.capacity() > READ_BYTES {
            self.out = Vec::new();
        }
    }
}

/// Begins to open a connection; the socket does not block, and is writable once it is open.
///
/// # Errors
///
/// If the system refuses a socket, or the address cannot be reached from here.
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Sends bytes from where it stopped before; whether all are sent.
fn write_from(socket: &TcpStream, bytes: &[u8], sent: &mut usize) -> io::Result<bool> {
    while *sent < bytes.len() {
        match rustix::io::write(socket, &bytes[*sent..]) {
            Ok(count) => *sent += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
