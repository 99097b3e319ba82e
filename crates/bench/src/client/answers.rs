//! A parser of replies that counts the requests they complete and the keys they contain.

use memchr::memchr;

use crate::client::arguments::Protocol;
use crate::client::script::{FRAME_BYTES, opcode};

/// Counts over a sequence of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Requests that were answered.
    pub requests: u64,
    /// Keys that these requests found.
    pub hits: u64,
    /// Requests that were answered by an error.
    pub errors: u64,
    /// Keys found so far by the request whose reply is not complete yet.
    pub begun_hits: u64,
}

impl Answers {
    /// Counts a complete reply.
    #[inline]
    fn end(&mut self) {
        self.requests += 1;
        self.hits += std::mem::take(&mut self.begun_hits);
    }
}

/// The reply parser of one protocol.
#[derive(Clone, Debug)]
pub struct Reader {
    protocol: Protocol,
    is_multi: bool,
    key_bytes: usize,
    value_bytes: usize,
    /// The bytes between key and value in a hit on an item as it was stored (` 0 LENGTH\r\n`): the
    /// first eight as a little-endian number, and the mask of the bits that are used.
    middle: u64,
    middle_mask: u64,
    middle_bytes: usize,
    verifies: bool,
}

/// The first eight of `bytes` as a little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// The longest line that is accepted outside of a value. Error texts are the longest.
const LONGEST_LINE_BYTES: usize = 4096;

/// The largest value that a reply may announce: a bound on memory against a faulty server.
const LONGEST_VALUE_BYTES: usize = 1 << 30;

/// The length of a header of the binary protocol.
const HEADER_BYTES: usize = 24;

/// One reply, or a part of one. The numbers are lengths in bytes.
enum Piece {
    /// The piece is incomplete: more bytes must be read.
    Cut,
    /// A key's value with its header line.
    Hit(usize),
    /// The end of a request's reply.
    End(usize),
    /// A key's value that is a whole reply.
    HitAndEnd(usize),
    /// An error in place of a reply.
    Error(usize),
}

impl Reader {
    /// A parser of the replies to gets of `multi` keys. With `verifies` it compares every value
    /// with the one that was stored.
    pub fn new(
        protocol: Protocol,
        multi: usize,
        key_bytes: usize,
        value_bytes: usize,
        verifies: bool,
    ) -> Self {
        let middle = format!(" 0 {value_bytes}\r\n");
        Self {
            protocol,
            is_multi: multi > 1,
            key_bytes,
            value_bytes,
            middle: number(middle.as_bytes()),
            middle_mask: number(&vec![0xff; middle.len()]),
            middle_bytes: middle.len(),
            verifies,
        }
    }

    /// Parses all whole pieces at the start of `bytes`, adds them to `answers` and returns their
    /// length. The rest must be passed again, with more bytes and the same `begun_hits`.
    ///
    /// # Errors
    ///
    /// If the bytes are not a reply in the protocol, or a value is not the one that was stored.
    #[inline]
    pub fn read(&self, bytes: &[u8], answers: &mut Answers) -> anyhow::Result<usize> {
        let mut at = 0;
        loop {
            if self.protocol == Protocol::Text && !self.verifies {
                let (hits, length) = self.text_hits(&bytes[at..]);
                answers.begun_hits += hits;
                at += length;
            }
            let rest = &bytes[at..];
            let piece = match self.protocol {
                Protocol::Text => self.text(rest)?,
                Protocol::Meta => self.meta(rest)?,
                Protocol::Binary => self.binary(rest)?,
                Protocol::Udp => return self.datagram(bytes, answers),
            };
            at += match piece {
                Piece::Cut => return Ok(at),
                Piece::Hit(length) => {
                    answers.begun_hits += 1;
                    length
                }
                Piece::End(length) => {
                    answers.end();
                    length
                }
                Piece::HitAndEnd(length) => {
                    answers.begun_hits += 1;
                    answers.end();
                    length
                }
                Piece::Error(length) => {
                    answers.errors += 1;
                    answers.end();
                    length
                }
            };
        }
    }

    /// A fast path for hits on items as they were stored: counts those at the start of `bytes` and
    /// returns their number and length in all. Every other form is left to [`Reader::text`].
    #[inline]
    fn text_hits(&self, bytes: &[u8]) -> (u64, usize) {
        const HEAD: &[u8; 6] = b"VALUE ";
        let middle = HEAD.len() + self.key_bytes;
        let whole = middle + self.middle_bytes + self.value_bytes + 2;
        let mut hits = 0;
        for hit in bytes.chunks_exact(whole) {
            // At least 9 bytes follow: the middle has at least six, a value with its end at least
            // three.
            let seen = hit[middle..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let is_stored_form = hit.starts_with(HEAD)
                && seen & self.middle_mask == self.middle
                && hit[whole - 2..] == *b"\r\n";
            if !is_stored_form {
                break;
            }
            hits += 1;
        }
        (hits, hits as usize * whole)
    }

    #[inline]
    fn text(&self, rest: &[u8]) -> anyhow::Result<Piece> {
        if rest.starts_with(b"VALUE ") {
            return self.text_value(rest);
        }
        let Some(end) = line_end(rest)? else { return Ok(Piece::Cut) };
        Ok(match &rest[..end] {
            b"END\r\n" | b"STORED\r\n" => Piece::End(end),
            _ => Piece::Error(end),
        })
    }

    #[cold]
    fn text_value(&self, rest: &[u8]) -> anyhow::Result<Piece> {
        let Some(end) = line_end(rest)? else { return Ok(Piece::Cut) };
        let line = std::str::from_utf8(&rest[..end])?.trim_end();
        let mut words = line.split(' ').skip(1);
        let key = words.next().unwrap_or_default();
        let length = words.nth(1).unwrap_or_default();
        let length: usize =
            length.parse().map_err(|_| anyhow::anyhow!("'{line}' has no length"))?;
        check_length(length)?;
        let whole = end + length + 2;
        if rest.len() < whole {
            return Ok(Piece::Cut);
        }
        if self.verifies {
            let expected = key.bytes().cycle().take(self.value_bytes);
            let value = &rest[end..end + length];
            anyhow::ensure!(value.iter().copied().eq(expected), "{key} has another key's value");
        }
        Ok(Piece::Hit(whole))
    }

    #[inline]
    fn meta(&self, rest: &[u8]) -> anyhow::Result<Piece> {
        let Some(end) = line_end(rest)? else { return Ok(Piece::Cut) };
        let line = &rest[..end];
        if line.starts_with(b"VA ") {
            let digits = line[3..].iter().take_while(|byte| byte.is_ascii_digit());
            let length = digits.fold(0_usize, |sum, digit| {
                sum.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
            });
            check_length(length)?;
            let whole = end + length + 2;
            return Ok(if rest.len() < whole {
                Piece::Cut
            } else if self.is_multi {
                Piece::Hit(whole)
            } else {
                Piece::HitAndEnd(whole)
            });
        }
        Ok(match line {
            b"EN\r\n" | b"HD\r\n" | b"MN\r\n" => Piece::End(end),
            _ => Piece::Error(end),
        })
    }

    #[inline]
    fn binary(&self, rest: &[u8]) -> anyhow::Result<Piece> {
        const NOT_FOUND: u16 = 1;
        let Some(header) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(Piece::Cut) };
        anyhow::ensure!(header[0] == 0x81, "{:#x} begins no binary answer", header[0]);
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        check_length(body)?;
        let whole = HEADER_BYTES + body;
        if rest.len() < whole {
            return Ok(Piece::Cut);
        }
        let status = u16::from_be_bytes([header[6], header[7]]);
        Ok(match (header[1], status) {
            (opcode::GET, 0) => Piece::HitAndEnd(whole),
            (opcode::GET_QUIETLY, 0) => Piece::Hit(whole),
            (opcode::NOOP | opcode::SET, 0) | (opcode::GET, NOT_FOUND) => Piece::End(whole),
            _ => Piece::Error(whole),
        })
    }

    /// Parses a datagram, which holds one whole reply.
    fn datagram(&self, bytes: &[u8], answers: &mut Answers) -> anyhow::Result<usize> {
        let piece = self.binary(bytes.get(FRAME_BYTES..).unwrap_or_default())?;
        match piece {
            Piece::HitAndEnd(_) => answers.hits += 1,
            Piece::End(_) => {}
            _ => answers.errors += 1,
        }
        answers.requests += 1;
        Ok(bytes.len())
    }
}

fn check_length(bytes: usize) -> anyhow::Result<()> {
    anyhow::ensure!(bytes <= LONGEST_VALUE_BYTES, "an answer of {bytes} bytes");
    Ok(())
}

/// The position after the end of the first line; `None` if it is not complete.
#[inline]
fn line_end(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    match memchr(b'\n', &bytes[..bytes.len().min(LONGEST_LINE_BYTES)]) {
        Some(place) => Ok(Some(place + 1)),
        None if bytes.len() >= LONGEST_LINE_BYTES => anyhow::bail!("a line without an end"),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `bytes` whole, and cut at every position; both must give the same counts.
    fn answers(reader: &Reader, bytes: &[u8]) -> Answers {
        let mut whole = Answers::default();
        assert_eq!(reader.read(bytes, &mut whole).expect("valid"), bytes.len());
        for cut in 0..bytes.len() {
            let mut parts = Answers::default();
            let first = reader.read(&bytes[..cut], &mut parts).expect("valid");
            assert!(first <= cut);
            let second = reader.read(&bytes[first..], &mut parts).expect("valid");
            assert_eq!((first + second, parts), (bytes.len(), whole), "cut at {cut}");
        }
        whole
    }

    #[test]
    fn text() {
        let reader = Reader::new(Protocol::Text, 2, 2, 4, false);
        let bytes = b"VALUE aa 0 4\r\naaaa\r\nVALUE bb 7 10\r\nEND\r\nEND\r\n\r\nEND\r\nSTORED\r\n\
                      END\r\nSERVER_ERROR out of memory\r\n";
        let expected = Answers { requests: 4, hits: 2, errors: 1, begun_hits: 0 };
        assert_eq!(answers(&reader, bytes), expected);
    }

    #[test]
    fn hits_count_with_their_request() {
        let reader = Reader::new(Protocol::Text, 2, 2, 1, false);
        let mut seen = Answers::default();
        let first = b"VALUE aa 0 1\r\na\r\n";
        assert_eq!(reader.read(first, &mut seen).expect("valid"), first.len());
        assert_eq!(seen, Answers { begun_hits: 1, ..Answers::default() });
        reader.read(b"VALUE bb 0 1\r\nb\r\nEND\r\n", &mut seen).expect("valid");
        assert_eq!(seen, Answers { requests: 1, hits: 2, ..Answers::default() });
    }

    #[test]
    fn values_are_compared_on_request() {
        let reader = Reader::new(Protocol::Text, 1, 2, 5, true);
        assert!(reader.read(b"VALUE ab 0 5\r\nababa\r\nEND\r\n", &mut Answers::default()).is_ok());
        assert!(reader.read(b"VALUE ab 0 5\r\nababb\r\nEND\r\n", &mut Answers::default()).is_err());
    }

    #[test]
    fn meta() {
        let single = Reader::new(Protocol::Meta, 1, 2, 4, false);
        let bytes = b"VA 4\r\nEN\r\n\r\nEN\r\nHD\r\nCLIENT_ERROR bad\r\n";
        assert_eq!(
            answers(&single, bytes),
            Answers { requests: 4, hits: 1, errors: 1, begun_hits: 0 }
        );
        let multi = Reader::new(Protocol::Meta, 3, 2, 4, false);
        let bytes = b"VA 4\r\naaaa\r\nVA 0\r\n\r\nMN\r\nMN\r\nHD\r\n";
        assert_eq!(
            answers(&multi, bytes),
            Answers { requests: 3, hits: 2, errors: 0, begun_hits: 0 }
        );
    }

    fn binary_answer(code: u8, status: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x81, code, 0, 0, 0, 0];
        bytes.extend_from_slice(&status.to_be_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn binary_and_datagrams() {
        let pieces = [
            binary_answer(opcode::GET, 0, b"\0\0\0\0abcd"),
            binary_answer(opcode::GET, 1, b"Not found"),
            binary_answer(opcode::GET_QUIETLY, 0, b"\0\0\0\0"),
            binary_answer(opcode::NOOP, 0, b""),
            binary_answer(opcode::SET, 0, b""),
            binary_answer(opcode::SET, 0x82, b"Out of memory"),
        ];
        let reader = Reader::new(Protocol::Binary, 1, 2, 4, false);
        let expected = Answers { requests: 5, hits: 2, errors: 1, begun_hits: 0 };
        assert_eq!(answers(&reader, &pieces.concat()), expected);
        let udp = Reader::new(Protocol::Udp, 1, 2, 4, false);
        let mut seen = Answers::default();
        for piece in &pieces[..2] {
            let datagram = [&[0, 1, 0, 0, 0, 1, 0, 0], piece.as_slice()].concat();
            assert_eq!(udp.read(&datagram, &mut seen).expect("valid"), datagram.len());
        }
        assert_eq!(seen, Answers { requests: 2, hits: 1, errors: 0, begun_hits: 0 });
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let mut seen = Answers::default();
        let text = Reader::new(Protocol::Text, 1, 2, 4, false);
        assert!(text.read(&[b'x'; 5000], &mut seen).is_err());
        assert!(text.read(b"VALUE aa 0 x\r\n", &mut seen).is_err());
        assert!(text.read(b"VALUE aa 0 18446744073709551615\r\n", &mut seen).is_err());
        let meta = Reader::new(Protocol::Meta, 1, 2, 4, false);
        assert!(meta.read(b"VA 99999999999999999999999\r\n", &mut seen).is_err());
        let binary = Reader::new(Protocol::Binary, 1, 2, 4, false);
        assert!(binary.read(&[b'x'; 24], &mut seen).is_err());
    }
}
