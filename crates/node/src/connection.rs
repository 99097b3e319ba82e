//! A connection of the event loop: its handshake, its frames, and the bytes that wait to be sent.

use std::borrow::Cow;
use std::io;
use std::net::{SocketAddr, TcpStream};

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{
    FrameReader, Packet, WIRE_SINCE, WIRE_VERSION, WireError, encode_frame,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::handshake::Handshake;
use amalgam_tls::{MutualSession, TlsError};

/// Bytes that may wait for a slow reader. Beyond this, packets to a node are dropped (its protocols
/// ask again); a client is not read from before it has taken its answers.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Bytes of plaintext that are encrypted at once; the bound above does not cover ciphertext.
const ENCRYPTED_BYTES: usize = 256 << 10;
/// How long a node that this one dialed may leave sent bytes without an acknowledgement before the
/// connection ends, in milliseconds. The system alone tries for many minutes, with longer and
/// longer pauses: after a cut of 8 s it would send again 5 s late.
const UNACKNOWLEDGED_MS: u32 = 2_000;
/// Bytes that are read at once.
pub const READ_BYTES: usize = 256 << 10;

/// What the other end is.
#[derive(Debug)]
pub enum Role {
    /// Not known yet: the handshake is not complete.
    Unauthenticated(Box<Handshake>),
    /// A node that dialed this one, or was dialed by it.
    Peer(Peer),
    /// A client.
    Client {
        /// Whether it has proved the operator token.
        is_operator: bool,
    },
}

/// A connection to a node or from one, owned by the event loop.
#[derive(Debug)]
pub struct Connection {
    /// The socket, which does not block.
    pub socket: TcpStream,
    /// What the other end is.
    pub role: Role,
    /// The node that this one dialed; None if the other end dialed.
    pub dialed: Option<Peer>,
    /// Assembles frames from the bytes that arrive.
    pub frames: FrameReader,
    /// None if the connection is not secured.
    session: Option<MutualSession>,
    /// Ciphertext of the beginning of `out`, of which `encrypted_sent` bytes were sent.
    encrypted: Vec<u8>,
    encrypted_sent: usize,
    out: Vec<u8>,
    sent: usize,
    /// Frames that wait for the end of the handshake.
    after_handshake: Vec<u8>,
    /// The wire version that both ends speak.
    wire_version: u16,
    /// Whether a connection that this node dialed is established.
    pub is_open: bool,
    /// Whether an event is requested for when the socket takes more.
    pub awaits_room: bool,
    /// Bytes that are charged to the budget of clients.
    pub charged_bytes: usize,
    /// Whether the other end sends nothing more.
    pub is_hung_up: bool,
    /// When something came from the other end last, in [`crate::clock::boot_ms`]; 0 if nothing did.
    pub heard_ms: u64,
}

impl Connection {
    /// A connection whose handshake begins with the bytes in `out`.
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
            charged_bytes: 0,
            is_hung_up: false,
            heard_ms: 0,
        }
    }

    /// Queues a packet in the form that the other end's wire version knows, or drops it if that has
    /// nothing like it.
    ///
    /// # Errors
    ///
    /// [`WireError::TooLarge`] if the packet is too large, or the connection backlogged.
    pub fn push(&mut self, number: u64, packet: &Packet) -> Result<(), WireError> {
        if self.waiting() > WAITING_BYTES_MAX {
            return Err(WireError::TooLarge);
        }
        let is_unauthenticated = matches!(self.role, Role::Unauthenticated(_));
        let packet = match self.wire_version < WIRE_VERSION {
            true => packet.for_version(self.wire_version),
            false => Some(Cow::Borrowed(packet)),
        };
        let packet = match packet {
            None => return Ok(()),
            // The version is known after the handshake only, and may be one that needs no change.
            Some(Cow::Owned(_)) if is_unauthenticated => return Ok(()),
            Some(packet) => packet,
        };
        encode_frame(
            number,
            &packet,
            if is_unauthenticated { &mut self.after_handshake } else { &mut self.out },
        )
    }

    /// Whether what arrives must be decrypted.
    pub fn is_secured(&self) -> bool {
        self.session.is_some()
    }

    /// Decrypts bytes that arrived and appends the plaintext to `plain`.
    ///
    /// # Errors
    ///
    /// [`TlsError`]; the alert waits to be sent, after which the connection must be closed.
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

    /// Checks that the other end's certificate, if the connection is secured, is one of a node.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if it is not.
    pub fn check_node(&self) -> Result<(), TlsError> {
        self.session.as_ref().map_or(Ok(()), MutualSession::check_node)
    }

    /// Queues bytes of the handshake.
    pub fn push_handshake(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Completes the handshake; packets that waited for it follow.
    pub fn authenticate(&mut self, role: Role, wire_version: u16) {
        (self.role, self.wire_version) = (role, wire_version);
        let after_handshake = std::mem::take(&mut self.after_handshake);
        self.out.extend_from_slice(&after_handshake);
    }

    /// Bytes that wait to be sent.
    pub fn waiting(&self) -> usize {
        let encrypted = self.encrypted.len() - self.encrypted_sent;
        self.out.len() - self.sent + self.after_handshake.len() + encrypted
    }

    /// Bytes that a client occupies, or a node that is no member; 0 for a member.
    pub fn client_bytes(&mut self, is_member: impl Fn(Peer) -> bool) -> usize {
        match self.role {
            Role::Unauthenticated(_) => 0,
            Role::Peer(peer) if self.dialed.is_some() || is_member(peer) => 0,
            Role::Client { .. } | Role::Peer(_) => {
                self.frames.memory_bytes() + self.out.capacity() + self.encrypted.capacity()
            }
        }
    }

    /// Whether nothing more should be read before something was sent.
    pub fn is_backlogged(&self) -> bool {
        self.waiting() > WAITING_BYTES_MAX / 2
    }

    /// Sends what the socket takes. Whether everything was sent.
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

    /// [`Self::send`] for a secured connection.
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
                // The session keeps it until its handshake is complete.
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

/// [`dial`] for a connection to a node that lasts: it ends where sent bytes are not acknowledged,
/// so that the node is dialed again as soon as it can be reached.
///
/// # Errors
///
/// As [`dial`], and if the system refuses that.
pub fn dial_node(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = dial(address)?;
    rustix::net::sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS)?;
    Ok(socket)
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

/// Sends `bytes` from `sent` on, as far as the socket takes them. Whether all were sent.
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
