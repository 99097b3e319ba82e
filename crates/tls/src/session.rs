//! One side of one connection's TLS: ciphertext in, plaintext out, and back.
//!
//! A session is used by one thread at a time. The caller owns the transport; reads and writes that
//! report `WouldBlock` are continued by the next call.

use std::io::{self, BufRead, IoSlice, Read, Write};

use rustls::{Connection, Error};

/// Ciphertext that one [`Session::receive`] reads beyond the plaintext that it may hand out, at
/// most, about: an honest side's records are long, or few. Others may have one byte in 32 records.
pub const OVERHEAD_BYTES: usize = 16 << 10;

/// The result of [`Session::receive`].
pub struct Received {
    /// Number of plaintext bytes that were handed out.
    pub bytes: usize,
    /// Whether more may wait in the session or in the source. If it is set and `bytes` is 0, the
    /// stream has ended.
    pub may_have_more: bool,
}

/// Why [`Session::receive`] stopped early.
pub enum ReceiveError {
    /// An error of the source; `WouldBlock` if no data is available.
    Io(io::Error),
    /// The other side violated the TLS protocol. An alert with the reason waits to be sent.
    Tls {
        /// The violation.
        error: Error,
        /// Whether it happened before the handshake was complete.
        was_handshaking: bool,
    },
}

/// One side of a TLS connection, without its transport; see the module's documentation.
#[derive(Debug)]
pub struct Session {
    pub connection: Connection,
    /// Whether ciphertext waits to be sent; cached because it is read at each request.
    wants_write: bool,
    /// Plaintext bytes that were encrypted and whose ciphertext was not written yet, about.
    unsent_bytes: usize,
    /// Bytes of ciphertext that were read since plaintext was last handed out, or since the
    /// handshake: rustls keeps what belongs to a message that is not complete.
    undelivered_bytes: usize,
}

/// A source that knows how much was read, and whether the last read took everything that had
/// arrived.
struct Drained<'r, R> {
    source: &'r mut R,
    is_drained: bool,
    read_bytes: usize,
}

impl<R: Read> Read for Drained<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(buffer)?;
        self.is_drained = bytes < buffer.len();
        self.read_bytes += bytes;
        Ok(bytes)
    }
}

impl Session {
    /// Creates a session before its handshake. At most `send_bytes` bytes of plaintext are
    /// encrypted ahead of what was sent; None means no bound.
    pub fn new(mut connection: Connection, send_bytes: Option<usize>) -> Self {
        connection.set_buffer_limit(send_bytes);
        let wants_write = connection.wants_write();
        Self { connection, wants_write, unsent_bytes: 0, undelivered_bytes: 0 }
    }

    /// Reads ciphertext from `source` and passes at most `limit` bytes of plaintext to `take`, in
    /// pieces. The session may have TLS messages of its own to write afterwards.
    pub fn receive(
        &mut self,
        source: &mut impl Read,
        limit: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<Received, ReceiveError> {
        let mut source = Drained { source, is_drained: false, read_bytes: 0 };
        let mut bytes = 0;
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                // The stream has ended, with a close message or without. The next call sees it
                // again.
                Ok([]) => return Ok(Received { bytes, may_have_more: true }),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Received { bytes, may_have_more: true });
                }
                Ok(plain) => {
                    let plain = &plain[..plain.len().min(limit - bytes)];
                    let count = plain.len();
                    take(plain);
                    reader.consume(count);
                    bytes += count;
                    self.undelivered_bytes = 0;
                    if bytes == limit {
                        return Ok(Received { bytes, may_have_more: true });
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(ReceiveError::Io(error)),
            }
            if source.is_drained {
                break;
            }
            // rustls allows no more than 32 records without data in a row.
            if bytes > 0 && source.read_bytes >= limit.saturating_add(OVERHEAD_BYTES) {
                return Ok(Received { bytes, may_have_more: true });
            }
            match self.connection.read_tls(&mut source) {
                Ok(read) => {
                    self.undelivered_bytes += read;
                    self.decrypt()?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if bytes == 0 => return Err(ReceiveError::Io(error)),
                // Report the bytes that came before the error; the next call meets the error again.
                Err(_) => return Ok(Received { bytes, may_have_more: true }),
            }
        }
        match bytes {
            0 => Err(ReceiveError::Io(io::ErrorKind::WouldBlock.into())),
            _ => Ok(Received { bytes, may_have_more: false }),
        }
    }

    fn decrypt(&mut self) -> Result<(), ReceiveError> {
        let was_handshaking = self.connection.is_handshaking();
        let result = self.connection.process_new_packets();
        self.wants_write = self.connection.wants_write();
        if was_handshaking && !self.connection.is_handshaking() {
            self.undelivered_bytes = 0;
        }
        match result {
            Ok(_) => Ok(()),
            Err(error) => Err(ReceiveError::Tls { error, was_handshaking }),
        }
    }

    /// Encrypts the pieces, or the first of them, and returns the number of plaintext bytes taken.
    /// The ciphertext waits to be written.
    ///
    /// # Errors
    ///
    /// rustls documents none.
    pub fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.connection.writer().write_vectored(pieces)?;
        self.wants_write = true;
        self.unsent_bytes += taken;
        Ok(taken)
    }

    /// Writes pending ciphertext to `target` and returns whether all of it was taken.
    ///
    /// # Errors
    ///
    /// Errors of `target`, apart from `WouldBlock`.
    pub fn write_to(&mut self, target: &mut impl Write) -> io::Result<bool> {
        while self.wants_write {
            match self.connection.write_tls(target) {
                Ok(written) => {
                    self.wants_write = self.connection.wants_write();
                    self.unsent_bytes = match self.wants_write {
                        true => self.unsent_bytes.saturating_sub(written),
                        false => 0,
                    };
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether ciphertext waits to be written, whether it carries data or TLS's own messages.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.wants_write
    }

    /// Plaintext bytes that were encrypted and whose ciphertext was not written yet; at most the
    /// lengths of the records' heads and tags too few.
    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Bytes of messages that have not arrived whole, at most.
    pub fn undelivered_bytes(&self) -> usize {
        self.undelivered_bytes
    }

    /// Queues the close message, which says that no more data follows.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
        self.wants_write = true;
    }
}
