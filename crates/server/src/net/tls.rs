//! The adapter between a socket and [`amalgam_tls`].

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;

use crate::net::output::Transmit;
use crate::net::sockets::receive;

/// A socket as [`amalgam_tls`] reads and writes it.
pub struct TlsSocket<'s>(pub &'s OwnedFd);

impl Read for TlsSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(self.0, buffer)
    }
}

impl Write for TlsSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.transmit(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.transmit(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
