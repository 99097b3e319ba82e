//! A connection to the admin address: plaintext, or TLS if the address has certificates.
//!
//! Invariants:
//! 1. A stream with a session neither reads nor writes plaintext on its socket.
//! 2. A read or write waits for [`POLL_INTERVAL`] at most and then reports `WouldBlock`, so that
//!    its caller can keep a deadline. Steps of the handshake happen in reads, and report the same.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use amalgam_tls::{Security, ServerSession, ServerTls};

/// How long a read or write waits, so that its caller can check whether the server shuts down.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The server's end of a connection.
pub struct Stream {
    socket: TcpStream,
    /// None if the address has no certificates.
    session: Option<Box<ServerSession>>,
}

impl Stream {
    /// A stream over an accepted socket; a session of `tls` has yet to do its handshake.
    ///
    /// # Errors
    ///
    /// If the socket has failed, or there can be no session: then the connection must be closed, as
    /// it may not be served in plaintext.
    pub fn open(socket: TcpStream, tls: Option<&ServerTls>) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        socket.set_write_timeout(Some(POLL_INTERVAL))?;
        let session = tls.map(|tls| tls.session(Security::ServerOnly)).transpose();
        Ok(Self { socket, session: session.map_err(io::Error::other)?.flatten() })
    }

    /// Queues TLS's close message, which tells the client that its answer is complete. `flush`
    /// sends it.
    pub fn close(&mut self) {
        if let Some(session) = &mut self.session {
            session.close(&mut self.socket);
        }
    }

    /// Ends the sending direction.
    ///
    /// # Errors
    ///
    /// If the client has gone.
    pub fn shutdown(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Reads bytes of the socket to be discarded, without decrypting them.
    ///
    /// # Errors
    ///
    /// As a read of the socket.
    pub fn discard(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buffer)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.socket.read(buffer) };
        let mut filled = 0;
        let (bytes, _) = session.receive(&mut self.socket, buffer.len(), |piece| {
            buffer[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        })?;
        Ok(bytes)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.write(bytes),
            Some(session) => session.transmit(&mut self.socket, &[IoSlice::new(bytes)]),
        }
    }

    /// Reports `WouldBlock` while the socket has not taken all ciphertext.
    fn flush(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        match session.flush(&mut self.socket)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}
