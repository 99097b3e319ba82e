//! The bytes of a connection: as they are, or through TLS.
//!
//! Invariants of this room:
//! 1. A connection without TLS pays one comparison for each receipt and each sending.
//! 2. Nothing more is encrypted before what was encrypted has left: what waits is bounded by one
//!    call's worth.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use crate::output::Transmit;
use crate::sockets::receive;
use crate::tls::{ServerSession, TlsSocket};

/// A socket, and what is spoken on it.
pub struct Channel {
    /// The socket.
    pub socket: OwnedFd,
    session: Option<Box<ServerSession>>,
}

impl Channel {
    /// A channel; without a session its bytes travel as they are.
    pub fn new(socket: OwnedFd, session: Option<Box<ServerSession>>) -> Self {
        Self { socket, session }
    }

    /// Receives into `room`: how many bytes came, 0 at the end of the stream, and whether more may
    /// wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing waits, else what the socket says or that the other end broke TLS.
    #[inline]
    pub fn receive(&mut self, room: &mut [u8]) -> io::Result<(usize, bool)> {
        let Some(session) = &mut self.session else {
            let bytes = receive(&self.socket, room)?;
            return Ok((bytes, bytes == room.len()));
        };
        let mut filled = 0;
        session.receive(&mut TlsSocket(&self.socket), room.len(), |bytes| {
            room[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        })
    }

    /// Receives behind what `buffer` holds, into its spare capacity. Results as
    /// [`Channel::receive`].
    ///
    /// # Errors
    ///
    /// As [`Channel::receive`].
    pub fn receive_behind(&mut self, buffer: &mut Vec<u8>) -> io::Result<(usize, bool)> {
        let room = buffer.capacity() - buffer.len();
        if let Some(session) = &mut self.session {
            return session.receive(&mut TlsSocket(&self.socket), room, |bytes| {
                buffer.extend_from_slice(bytes)
            });
        }
        let bytes = rustix::io::read(&self.socket, rustix::buffer::spare_capacity(buffer))?;
        Ok((bytes, bytes == room))
    }

    /// Whether something that was taken to be sent has not left yet.
    #[inline]
    pub fn owes(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.wants_write())
    }

    /// Bytes that the session keeps, about.
    #[inline]
    pub fn kept_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.kept_bytes())
    }
}

impl Transmit for Channel {
    #[inline]
    fn transmit(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.session {
            None => (&self.socket).transmit(pieces),
            Some(session) => session.transmit(&mut TlsSocket(&self.socket), pieces),
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<bool> {
        match &mut self.session {
            None => Ok(true),
            Some(session) => session.flush(&mut TlsSocket(&self.socket)),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(session) = &mut self.session {
            session.close(&mut TlsSocket(&self.socket));
        }
    }
}
