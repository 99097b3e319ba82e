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

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything was sent.
    All,
    /// The target takes no more for now.
    Full,
    /// The most that the caller allowed was sent; the target may take more.
    Most,
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

    /// Sends as much as the target accepts, but at most `most_bytes`.
    ///
    /// # Errors
    ///
    /// The error of the socket, except that it is full.
    pub fn send(&mut self, target: &mut impl Transmit, most_bytes: usize) -> io::Result<Sent> {
        let mut left = most_bytes;
        while !self.is_empty() {
            if left == 0 {
                return Ok(Sent::Most);
            }
            let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
            let count = self.pieces(&mut pieces, left);
            match target.transmit(&pieces[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.advance(sent);
                    left -= sent;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Full),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent_bytes = 0;
        Ok(if target.flush()? { Sent::All } else { Sent::Full })
    }

    /// What to send next: at most `most_bytes`.
    fn pieces<'o>(&'o self, pieces: &mut [IoSlice<'o>; MAX_PIECES], most_bytes: usize) -> usize {
        let (mut count, mut left) = (0, most_bytes);
        let mut push = |piece: &'o [u8]| {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            pieces[count] = IoSlice::new(piece);
            count += 1;
            left > 0 && count < MAX_PIECES
        };
        let mut from = self.sent_bytes;
        let mut skip = self.sent_pinned;
        let mut has_room = true;
        for (position, value) in &self.pinned {
            if *position > from {
                has_room = push(&self.bytes[from..*position]);
                from = *position;
            }
            has_room = has_room && push(&value.as_bytes()[skip..]);
            skip = 0;
            if !has_room {
                break;
            }
        }
        if has_room && from < self.bytes.len() {
            push(&self.bytes[from..]);
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
            assert_eq!(output.send(&mut target, usize::MAX).unwrap(), Sent::All);
            assert_eq!(target.taken, b"hello, world");
            assert!(output.is_empty());
        }
    }

    #[test]
    fn no_more_is_sent_at_once_than_allowed() {
        for most_bytes in 1..12 {
            let mut output = Output::default();
            output.bytes.extend_from_slice(b"hello, world");
            let mut target = SlowTarget { taken: Vec::new(), max_bytes: 5 };
            while output.send(&mut target, most_bytes).unwrap() == Sent::Most {
                assert!(target.taken.len().is_multiple_of(most_bytes));
            }
            assert_eq!(target.taken, b"hello, world");
        }
    }
}
