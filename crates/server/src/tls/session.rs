//! One connection's TLS.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::{ServerConfig, ServerConnection};

use crate::output::Transmit;
use crate::sockets::receive;

/// What a session keeps while its client is silent: keys, the state of both directions and a buffer
/// for the beginning of a record.
const IDLE_BYTES: usize = 8 << 10;

/// What `stats` shows.
#[derive(Debug, Default)]
pub struct Counts {
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
    /// Connections that broke TLS after the handshake.
    pub protocol_errors: AtomicU64,
    /// Sessions that clients may resume.
    pub new_sessions: AtomicU64,
}

/// See the head of this module.
pub struct Session {
    connection: ServerConnection,
    counts: Arc<Counts>,
    wants_write: bool,
}

/// The socket as TLS reads and writes it.
struct Wire<'s> {
    socket: &'s OwnedFd,
    /// Whether the last read took all that had come: the next would find nothing.
    is_drained: bool,
}

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = receive(self.socket, buffer)?;
        self.is_drained = bytes < buffer.len();
        Ok(bytes)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut socket = self.socket;
        socket.transmit(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut socket = self.socket;
        socket.transmit(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    /// A session in which nothing was said.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be used at all.
    pub fn new(
        config: Arc<ServerConfig>,
        counts: Arc<Counts>,
        send_bytes: usize,
    ) -> Result<Self, rustls::Error> {
        let mut connection = ServerConnection::new(config)?;
        connection.set_buffer_limit(Some(send_bytes));
        Ok(Self { connection, counts, wants_write: false })
    }

    /// Gives `take` at most `most` bytes of what the client says, in pieces. Returns how many, 0 at
    /// the end of the stream, and whether more may wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing waits, else what the socket says or how the client broke TLS.
    pub fn receive(
        &mut self,
        socket: &OwnedFd,
        most: usize,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<(usize, bool)> {
        let mut wire = Wire { socket, is_drained: false };
        let mut taken = 0;
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                // The end of the stream, proper or not: the next call finds it again.
                Ok([]) => return Ok((taken, true)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok((taken, true));
                }
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(most - taken)];
                    let count = bytes.len();
                    take(bytes);
                    reader.consume(count);
                    taken += count;
                    if taken == most {
                        return Ok((taken, true));
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if wire.is_drained {
                break;
            }
            match self.connection.read_tls(&mut wire) {
                Ok(_) => self.take_in(socket)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if taken == 0 => return Err(error),
                // What came before the error counts; the next call meets it again.
                Err(_) => return Ok((taken, true)),
            }
        }
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok((taken, false)) }
    }

    /// Decrypts what was received, and answers what TLS itself has to answer.
    fn take_in(&mut self, socket: &OwnedFd) -> io::Result<()> {
        let was_handshaking = self.connection.is_handshaking();
        let result = self.connection.process_new_packets();
        self.wants_write = self.connection.wants_write();
        if let Err(error) = result {
            // The alert that says why; the connection ends in any case.
            let _ = self.flush(socket);
            let count = match was_handshaking {
                true => &self.counts.handshake_errors,
                false => &self.counts.protocol_errors,
            };
            count.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        self.flush(socket)?;
        Ok(())
    }

    /// Encrypts and sends the pieces, or the first of them. What the socket does not take waits.
    ///
    /// # Errors
    ///
    /// `WouldBlock` while what was encrypted before has not left, else what the socket says.
    pub fn transmit(&mut self, socket: &OwnedFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.connection.writer().write_vectored(pieces)?;
        self.wants_write = true;
        self.flush(socket)?;
        Ok(taken)
    }

    /// Sends what was encrypted. Whether all of it left.
    ///
    /// # Errors
    ///
    /// What the socket says, a full one excepted.
    pub fn flush(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        let mut wire = Wire { socket, is_drained: false };
        while self.wants_write {
            match self.connection.write_tls(&mut wire) {
                Ok(_) => self.wants_write = self.connection.wants_write(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether something encrypted waits to leave.
    #[inline]
    pub fn owes(&self) -> bool {
        self.wants_write
    }

    /// Bytes that the session keeps, about.
    pub fn kept_bytes(&self) -> usize {
        IDLE_BYTES
    }

    /// Tells the client that nothing follows, if the socket takes it.
    pub fn take_leave(&mut self, socket: &OwnedFd) {
        self.connection.send_close_notify();
        self.wants_write = true;
        let _ = self.flush(socket);
    }
}
