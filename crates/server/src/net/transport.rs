//! The byte stream of a connection: plain, or through TLS.
//!
//! Invariants:
//! 1. A connection without TLS pays one comparison for each receive and each send.
//! 2. Nothing is encrypted while earlier ciphertext waits to be sent, so what waits is bounded by
//!    the ciphertext of one call.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use amalgam_tls::ServerSession;

use crate::net::output::Transmit;
use crate::net::sockets::receive;
use crate::net::tls::TlsSocket;

/// A socket, with its TLS session if it has one.
pub struct Transport {
    /// The socket.
    pub socket: OwnedFd,
    session: Option<Box<ServerSession>>,
}

impl Transport {
    /// A transport over `socket`; without a session its bytes travel unencrypted.
    pub fn new(socket: OwnedFd, session: Option<Box<ServerSession>>) -> Self {
        Self { socket, session }
    }

    /// Receives into `buffer`. Returns the number of bytes, 0 at the end of the stream, and whether
    /// more may wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing waits; otherwise the error of the socket or of the TLS session.
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let Some(session) = &mut self.session else {
            let bytes = receive(&self.socket, buffer)?;
            return Ok((bytes, bytes == buffer.len()));
        };
        let mut filled = 0;
        session.receive(&mut TlsSocket(&self.socket), buffer.len(), |bytes| {
            buffer[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        })
    }

    /// Receives into the spare capacity of `buffer`, behind what it holds. Results and errors are
    /// those of [`Transport::receive`].
    ///
    /// # Errors
    ///
    /// As [`Transport::receive`].
    pub fn append_received(&mut self, buffer: &mut Vec<u8>) -> io::Result<(usize, bool)> {
        let room = buffer.capacity() - buffer.len();
        if let Some(session) = &mut self.session {
            return session.receive(&mut TlsSocket(&self.socket), room, |bytes| {
                buffer.extend_from_slice(bytes)
            });
        }
        let bytes = rustix::io::read(&self.socket, rustix::buffer::spare_capacity(buffer))?;
        Ok((bytes, bytes == room))
    }

    /// Whether the handshake of its TLS session is not complete.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.is_handshaking())
    }

    /// Whether ciphertext waits to be sent.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.wants_write())
    }

    /// Bytes that were taken to be sent and wait as ciphertext; 0 without TLS.
    #[inline]
    pub fn unsent_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.unsent_bytes())
    }

    /// Bytes that wait in the TLS session, to be sent or for the rest of their message; 0 without
    /// TLS.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.waiting_bytes())
    }

    /// Bytes of memory that the TLS session keeps, roughly, without what waits in it; 0
    /// without a session.
    #[inline]
    pub fn kept_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.kept_bytes())
    }
}

impl Transmit for Transport {
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

impl Drop for Transport {
    fn drop(&mut self) {
        if let Some(session) = &mut self.session {
            session.close(&mut TlsSocket(&self.socket));
        }
    }
}
