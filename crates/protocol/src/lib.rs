//! memcached's protocols as pure functions: bytes to requests, outcomes and items to bytes.
//!
//! A server hands the bytes it has to [`Protocol::parse`] and gets one [`Step`]: more bytes needed,
//! a request, or a refusal. It executes the request and lets the request's [`Reply`] append the
//! answer to the send buffer. The reply is small and `Copy`, so requests of many connections can be
//! parsed first, resolved as one batch, and answered in order.
//!
//! Invariants of this crate:
//! 1. The crate has no I/O, no clock and no unsafe code, and allocates only to grow the caller's
//!    output buffer.
//! 2. No input panics. A step uses at most the bytes it was given, and a step that is not
//!    [`Step::Incomplete`] uses at least one, so parsing ends.
//! 3. A step depends only on the bytes up to its end: any split of the same bytes into reads gives
//!    the same steps. (One exception, memcached's own: a line that is longer than
//!    [`MAX_LINE_BYTES`] closes the connection only if its end was not yet received.)
//! 4. Answers are memcached 1.6.45's, byte for byte; differences are listed where they arise.
//! 5. The crate does not depend on an engine, a socket or a statistic.

#![forbid(unsafe_code)]

mod base64;
mod binary;
pub mod datagram;
mod keys;
mod limits;
mod line;
mod meta;
mod number;
mod opcode;
mod problem;
mod reply;
mod request;
mod scan;
mod status;
mod text;

pub use base64::{append as append_base64, decode as decode_base64};
pub use keys::{Arguments, KeyScratch, Keys, WireKey};
pub use limits::{Authentication, Limits, MAX_LINE_BYTES, item_bytes};
pub use number::append_decimal;
pub use problem::Problem;
pub use reply::Reply;
pub use request::{Apply, Command, Each, Read, ReadAnswer, Refusal, Request, ShutdownMode, Step};

/// The wire format of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Lines: the classic commands and the meta commands.
    Text,
    /// Packets with a header of 24 bytes.
    Binary,
}

impl Protocol {
    /// The protocol of a connection whose first byte is `first`.
    pub fn detect(first: u8) -> Self {
        if first == binary::REQUEST_MAGIC { Self::Binary } else { Self::Text }
    }

    /// Reads the first request of `input`, the bytes received and not yet used.
    #[inline]
    pub fn parse<'a>(self, input: &'a [u8], limits: &Limits) -> Step<'a> {
        match self {
            Self::Text => text::parse(input, limits),
            Self::Binary => binary::parse(input, limits),
        }
    }
}
