//! Answers of the binary protocol.

use amalgam_op::{ItemView, Outcome};

use crate::reply::RESERVED_VALUE_BYTES;
use crate::{Problem, opcode, status};

/// The first byte of an answer.
const RESPONSE_MAGIC: u8 = 0x81;
/// The length of a header in bytes.
pub(crate) const HEADER_BYTES: usize = 24;
/// How to answer a request of the binary protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinaryReply<'a> {
    /// The opcode as it was sent, quiet or not; answers repeat it.
    pub code: u8,
    /// The client's opaque value, which answers repeat.
    pub opaque: [u8; 4],
    pub key: &'a [u8],
}

/// The parts of an answer that come before its value.
struct Head<'k> {
    status: u16,
    cas: u64,
    flags: Option<u32>,
    key: &'k [u8],
    value_bytes: usize,
}

impl BinaryReply<'_> {
    #[inline]
    fn head(&self, out: &mut Vec<u8>, head: Head<'_>) {
        let extras_bytes = if head.flags.is_some() { 4 } else { 0 };
        // Keys have at most 250 bytes, names of statistics fewer than 65,536; values fit by `-I`.
        let key_bytes = u16::try_from(head.key.len()).unwrap_or(u16::MAX);
        let body_bytes = extras_bytes + usize::from(key_bytes) + head.value_bytes;
        let body_bytes = u32::try_from(body_bytes).unwrap_or(u32::MAX);
        let mut header = [0; HEADER_BYTES];
        header[0] = RESPONSE_MAGIC;
        header[1] = self.code;
        header[2..4].copy_from_slice(&key_bytes.to_be_bytes());
        header[4] = extras_bytes as u8;
        header[6..8].copy_from_slice(&head.status.to_be_bytes());
        header[8..12].copy_from_slice(&body_bytes.to_be_bytes());
        header[12..16].copy_from_slice(&self.opaque);
        header[16..24].copy_from_slice(&head.cas.to_be_bytes());
        out.extend_from_slice(&header);
        if let Some(flags) = head.flags {
            out.extend_from_slice(&flags.to_be_bytes());
        }
        out.extend_from_slice(&head.key[..usize::from(key_bytes)]);
    }

    fn is_quiet(&self) -> bool {
        opcode::fold(self.code).1
    }

    /// An answer that is a status, an id and a body.
    fn packet(&self, out: &mut Vec<u8>, status: u16, cas: u64, body: &[u8]) {
        let head = Head { status, cas, flags: None, key: &[], value_bytes: body.len() };
        self.head(out, head);
        out.extend_from_slice(body);
    }

    fn shows_key(&self) -> bool {
        matches!(opcode::fold(self.code).0, opcode::GET_WITH_KEY | opcode::GET_AND_TOUCH_WITH_KEY)
    }

    /// Implements [`crate::Reply::hit_head`].
    #[inline]
    pub fn hit_head(&self, out: &mut Vec<u8>, item: &ItemView<'_>) -> bool {
        let shows_value = self.code != opcode::TOUCH;
        let value_bytes = if shows_value { item.value.len() } else { 0 };
        out.reserve(HEADER_BYTES + 4 + self.key.len() + value_bytes.min(RESERVED_VALUE_BYTES));
        let key = if self.shows_key() { self.key } else { &[] };
        let cas = item.cas.unwrap_or(0);
        let head = Head { status: status::OK, cas, flags: Some(item.flags), key, value_bytes };
        self.head(out, head);
        shows_value
    }

    fn error(&self, out: &mut Vec<u8>, status: u16) {
        self.packet(out, status, 0, status::text(status).as_bytes());
    }

    /// Implements [`crate::Reply::outcome`].
    pub fn outcome(&self, out: &mut Vec<u8>, outcome: &Outcome) {
        let (code, is_quiet) = opcode::fold(self.code);
        let is_read = matches!(
            code,
            opcode::GET
                | opcode::GET_WITH_KEY
                | opcode::TOUCH
                | opcode::GET_AND_TOUCH
                | opcode::GET_AND_TOUCH_WITH_KEY
        );
        let succeeds = |cas: Option<u64>, body: &[u8], out: &mut Vec<u8>| {
            if !is_quiet {
                self.packet(out, status::OK, cas.unwrap_or(0), body);
            }
        };
        match outcome {
            Outcome::Hit(_) => {}
            Outcome::NotFound if is_read => self.miss(out),
            Outcome::NotFound => self.error(out, status::NOT_FOUND),
            Outcome::Stored(written) => succeeds(written.cas, &[], out),
            Outcome::NotStored => self.error(
                out,
                match code {
                    opcode::ADD => status::EXISTS,
                    opcode::REPLACE => status::NOT_FOUND,
                    _ => status::NOT_STORED,
                },
            ),
            Outcome::Exists => self.error(out, status::EXISTS),
            Outcome::Deleted | Outcome::Invalidated => succeeds(None, &[], out),
            Outcome::Number(counted) => {
                succeeds(counted.cas, &counted.number.to_be_bytes(), out);
            }
            Outcome::NotANumber => self.error(out, status::NOT_A_NUMBER),
            Outcome::TooLarge if matches!(code, opcode::APPEND | opcode::PREPEND) => {
                self.error(out, status::NOT_STORED);
            }
            Outcome::TooLarge => self.error(out, status::TOO_LARGE),
            Outcome::OutOfMemory => {
                let text: &[u8] = match code {
                    opcode::INCREMENT | opcode::DECREMENT => b"Out of memory incrementing value",
                    _ => b"Out of memory allocating item",
                };
                self.packet(out, status::OUT_OF_MEMORY, 0, text);
            }
            Outcome::Unavailable => self.problem(out, Problem::UNAVAILABLE),
            Outcome::Unknown => self.problem(out, Problem::OUTCOME_UNKNOWN),
        }
    }

    fn miss(&self, out: &mut Vec<u8>) {
        if self.is_quiet() {
            return;
        }
        if !self.shows_key() {
            return self.error(out, status::NOT_FOUND);
        }
        let head =
            Head { status: status::NOT_FOUND, cas: 0, flags: None, key: self.key, value_bytes: 0 };
        self.head(out, head);
    }

    /// Implements [`crate::Reply::end`]: only statistics have an end.
    pub fn end(&self, out: &mut Vec<u8>) {
        if self.code == opcode::STAT {
            self.packet(out, status::OK, 0, &[]);
        }
    }

    /// Implements [`crate::Reply::stat`].
    pub fn stat(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let value_bytes = value.len();
        self.head(out, Head { status: status::OK, cas: 0, flags: None, key: name, value_bytes });
        out.extend_from_slice(value);
    }

    /// Implements [`crate::Reply::ok`].
    pub fn ok(&self, out: &mut Vec<u8>) {
        if !self.is_quiet() {
            self.packet(out, status::OK, 0, &[]);
        }
    }

    /// Implements [`crate::Reply::body`].
    pub fn body(&self, out: &mut Vec<u8>, body: &[u8]) {
        self.packet(out, status::OK, 0, body);
    }

    /// Implements [`crate::Reply::challenge`].
    pub fn challenge(&self, out: &mut Vec<u8>, challenge: &[u8]) {
        self.packet(out, status::AUTHENTICATION_GOES_ON, 0, challenge);
    }

    /// Implements [`crate::Reply::problem`].
    pub fn problem(&self, out: &mut Vec<u8>, problem: Problem) {
        self.error(out, problem.status);
    }
}
