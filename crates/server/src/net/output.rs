//! The unsent answers of a connection: bytes, with large values pinned where they lie.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use amalgam_index::mem::Pinned;

/// Pieces passed to one vectored write, at most.
const MAX_PIECES: usize = 64;

/// A target that bytes are written to, with the semantics of `writev`.
pub trait Transmit {
    /// Sends the pieces, or as much of them as fits, and returns the number of bytes sent.
    ///
    /// # Errors
    ///
    /// The error of the socket; `WouldBlock` when it is full.
    fn transmit(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends what an earlier call accepted and buffered. Returns whether nothing is left.
    ///
    /// # Errors
    ///
    /// The error of the socket, except that it is full.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

/// Answers being built and sent. An empty output owns no memory once its buffer was taken.
#[derive(Default)]
pub struct Output {
    /// Everything but the pinned values.
    pub bytes: Vec<u8>,
    /// How many of `bytes` were sent already.
    sent_bytes: usize,
    /// Pinned values, each to be sent before the byte of `bytes` at its position.
    pinned: VecDeque<(usize, Pinned)>,
    /// How many bytes of the first pinned value were sent already.
    sent_pinned: usize,
    pinned_bytes: usize,
}

impl Output {
    /// Bytes not sent yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent_bytes + self.pinned_bytes - self.sent_pinned
    }

    /// Whether everything was sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the pinned values not completely sent yet.
    #[inline]
    pub fn pinned_bytes(&self) -> usize {
        self.pinned_bytes
    }

    /// Bytes of the output's own memory: its buffer. Pinned values are the store's memory.
    pub fn buffer_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes the buffer out for reuse. Requires: everything was sent.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        debug_assert!(self.is_empty());
        std::mem::take(&mut self.bytes)
    }

    /// Appends a value without copying it.
    pub fn push_pinned(&mut self, value: Pinned) {
        self.pinned_bytes += value.as_bytes().len();
        self.pinned.push_back((self.bytes.len(), value));
    }

    /// Sends as much as the target accepts. Returns whether everything was sent.
    ///
    /// # Errors
    ///
    /// The error of the socket, except that it is full.
    pub fn send(&mut self, target: &mut impl Transmit) -> io::Result<bool> {
        while !self.is_empty() {
            let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
            let count = self.pieces(&mut pieces);
            match target.transmit(&pieces[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent_bytes = 0;
        target.flush()
    }

    fn pieces<'o>(&'o self, pieces: &mut [IoSlice<'o>; MAX_PIECES]) -> usize {
        let mut count = 0;
        let mut from = self.sent_bytes;
        let mut skip = self.sent_pinned;
        for (position, value) in &self.pinned {
            if count + 2 > pieces.len() {
                return count;
            }
            if *position > from {
                pieces[count] = IoSlice::new(&self.bytes[from..*position]);
                count += 1;
                from = *position;
            }
            pieces[count] = IoSlice::new(&value.as_bytes()[skip..]);
            count += 1;
            skip = 0;
        }
        if from < self.bytes.len() && count < pieces.len() {
            pieces[count] = IoSlice::new(&self.bytes[from..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut sent: usize) {
        while sent > 0 {
            let until = self.pinned.front().map_or(self.bytes.len(), |(position, _)| *position);
            let plain = sent.min(until - self.sent_bytes);
            self.sent_bytes += plain;
            sent -= plain;
            if self.sent_bytes < until || self.pinned.is_empty() {
                debug_assert_eq!(sent, 0, "sent more than there was");
                return;
            }
            let length = self.pinned[0].1.as_bytes().len();
            let of_value = sent.min(length - self.sent_pinned);
            self.sent_pinned += of_value;
            sent -= of_value;
            if self.sent_pinned == length {
                self.pinned.pop_front();
                self.pinned_bytes -= length;
                self.sent_pinned = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that accepts at most `max_bytes` in a call.
    struct SlowTarget {
        taken: Vec<u8>,
        max_bytes: usize,
    }

    impl Transmit for SlowTarget {
        fn transmit(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
            let mut left = self.max_bytes;
            for piece in pieces {
                let part = piece.len().min(left);
                self.taken.extend_from_slice(&piece[..part]);
                left -= part;
            }
            Ok(self.max_bytes - left)
        }
    }

    #[test]
    fn bytes_are_sent_in_order_in_calls_of_any_size() {
        for max_bytes in 1..12 {
            let mut output = Output::default();
            output.bytes.extend_from_slice(b"hello, world");
            let mut target = SlowTarget { taken: Vec::new(), max_bytes };
            assert!(output.send(&mut target).unwrap());
            assert_eq!(target.taken, b"hello, world");
            assert!(output.is_empty());
        }
    }
}
