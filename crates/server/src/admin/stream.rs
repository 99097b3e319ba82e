//! A connection to the admin address: plaintext, or TLS if the address has certificates.
//!
//! Invariants:
//! 1. A stream with a session neither reads nor writes plaintext on its socket.
//! 2. A read or write of the socket waits for [`POLL_INTERVAL`] at most and then reports
//!    `WouldBlock`, so that the caller can stop. Steps of the handshake happen in reads, and report
//!    the same.
//! 3. Past the deadline the socket is neither read nor written. One read or write of TLS is many of
//!    the socket, and ends in time too.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use amalgam_tls::{Security, ServerSession, ServerTls};

/// How long a read or write waits, so that its caller can check whether the server shuts down.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A socket with a deadline.
struct TimedSocket {
    socket: TcpStream,
    deadline: Instant,
}

impl TimedSocket {
    fn in_time(&mut self) -> io::Result<&mut TcpStream> {
        match Instant::now() > self.deadline {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(&mut self.socket),
        }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.in_time()?.read(buffer)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time()?.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.in_time()?.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// The server's end of a connection.
pub struct Stream {
    socket: TimedSocket,
    /// None if the address has no certificates.
    session: Option<Box<ServerSession>>,
}

impl Stream {
    /// A stream over an accepted socket; a session of `tls` has yet to do its handshake. Nothing
    /// is read or written before [`Stream::set_deadline`].
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
        let socket = TimedSocket { socket, deadline: Instant::now() };
        Ok(Self { socket, session: session.map_err(io::Error::other)?.flatten() })
    }

    /// Sets the time after which reads and writes report `TimedOut`.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.socket.deadline = deadline;
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
        self.socket.socket.shutdown(Shutdown::Write)
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn nothing_is_read_or_written_past_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut client = TcpStream::connect(address).expect("it listens");
        let (socket, _) = listener.accept().expect("it has connected");
        client.write_all(b"GET").expect("it is there");
        let mut stream = Stream::open(socket, None).expect("no handshake");
        let mut buffer = [0; 8];
        let kind = |result: io::Result<usize>| result.map_err(|error| error.kind());
        let late = Err(io::ErrorKind::TimedOut);
        assert_eq!((kind(stream.read(&mut buffer)), kind(stream.write(b"1"))), (late, late));
        assert_eq!(kind(stream.discard(&mut buffer)), late);
        stream.set_deadline(Instant::now() + Duration::from_secs(600));
        assert_eq!((kind(stream.read(&mut buffer)), kind(stream.write(b"1"))), (Ok(3), Ok(1)));
        assert_eq!(kind(stream.read(&mut buffer)), Err(io::ErrorKind::WouldBlock));
    }
}
