//! A connection of the node's loop: bytes that arrived, and bytes that wait to be sent.

use std::io;
use std::net::TcpStream;

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{FrameReader, Packet, WireError, encode_frame};
use rustix::io::Errno;

use crate::handshake::Handshake;

/// Bytes that may wait for a slow reader. What a peer does not take is dropped beyond (the
/// protocols ask again); a client is not read from before it has taken its answers.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Read at once.
pub const READ_BYTES: usize = 256 << 10;

/// Who is at the other end.
#[derive(Debug)]
pub enum Role {
    /// Not known yet.
    Stranger(Box<Handshake>),
    /// A node that sends.
    Peer(Peer),
    /// A client.
    Client,
}

/// See the head of this module.
#[derive(Debug)]
pub struct Link {
    /// The socket, which does not block.
    pub socket: TcpStream,
    /// Who is there.
    pub role: Role,
    /// Whom this node dialed.
    pub dialed: Option<Peer>,
    /// Puts frames together.
    pub frames: FrameReader,
    out: Vec<u8>,
    sent: usize,
    /// Frames that wait for the end of the handshake.
    held: Vec<u8>,
    /// Whether a connection that is being opened is open.
    pub is_open: bool,
    /// Whether the loop is to be told when more can be sent.
    pub is_waiting_for_room: bool,
}

impl Link {
    /// A connection that begins with what `start` has put into `out`.
    pub fn new(
        socket: TcpStream,
        handshake: Handshake,
        out: Vec<u8>,
        dialed: Option<Peer>,
    ) -> Self {
        Self {
            socket,
            role: Role::Stranger(Box::new(handshake)),
            dialed,
            frames: FrameReader::default(),
            out,
            sent: 0,
            held: Vec::new(),
            is_open: dialed.is_none(),
            is_waiting_for_room: false,
        }
    }

    /// Queues a packet.
    ///
    /// # Errors
    ///
    /// [`WireError::TooLarge`] if it is, or if too much waits already.
    pub fn push(&mut self, number: u64, packet: &Packet) -> Result<(), WireError> {
        if self.waiting() > WAITING_BYTES_MAX {
            return Err(WireError::TooLarge);
        }
        let is_stranger = matches!(self.role, Role::Stranger(_));
        encode_frame(number, packet, if is_stranger { &mut self.held } else { &mut self.out })
    }

    /// Queues bytes of the handshake.
    pub fn push_raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// The other end is known.
    pub fn introduce(&mut self, role: Role) {
        self.role = role;
        let held = std::mem::take(&mut self.held);
        self.out.extend_from_slice(&held);
    }

    /// Bytes that are not sent.
    pub fn waiting(&self) -> usize {
        self.out.len() - self.sent + self.held.len()
    }

    /// Whether no more should be read before something is sent.
    pub fn is_clogged(&self) -> bool {
        self.waiting() > WAITING_BYTES_MAX / 2
    }

    /// Sends what can be sent; whether all is.
    ///
    /// # Errors
    ///
    /// If the connection is broken.
    pub fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match rustix::io::write(&self.socket, &self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.sent = 0;
        if self.out.capacity() > READ_BYTES {
            self.out = Vec::new();
        }
        Ok(true)
    }
}
