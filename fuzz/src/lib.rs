//! What the fuzz targets share, and the properties of memcached's parsers that several check.

pub mod memory;
pub mod script;

#[path = "../../crates/protocol/tests/common/mod.rs"]
mod common;

use amalgam_protocol::{Limits, MAX_LINE_BYTES, Protocol, Step};
use common::Connection;

/// Small limits, so that inputs of a few hundred bytes reach them.
fn limits() -> Limits {
    Limits { max_item_bytes: 400, max_get_line_bytes: 3000, ..Limits::default() }
}

/// Whether the answers may depend on how the bytes arrive: a long line closes the connection only
/// if its end is not there yet.
fn has_endless_line(protocol: Protocol, input: &[u8]) -> bool {
    protocol == Protocol::Text
        && input.split(|byte| *byte == b'\n').any(|line| line.len() > MAX_LINE_BYTES)
}

/// Sends `input` at once, byte by byte, and in two pieces cut at `cut`: the answers must be the
/// same each time. Parses it in both protocols, whichever one it is meant for.
pub fn check(input: &[u8], cut: usize) {
    for protocol in [Protocol::Text, Protocol::Binary] {
        check_steps(protocol, input);
    }
    let Some(first) = input.first() else { return };
    if has_endless_line(Protocol::detect(*first), input) {
        return;
    }
    let mut whole = Connection::new(limits());
    let expected = whole.feed(input);
    let (head, tail) = input.split_at(cut % input.len());
    for pieces in [input.chunks(1).collect(), vec![head, tail]] {
        let mut connection = Connection::new(limits());
        let answer: Vec<u8> = pieces.iter().flat_map(|piece| connection.feed(piece)).collect();
        assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(connection.is_closed, whole.is_closed);
    }
}

/// Checks that every step uses at least one byte and no more than the input has.
fn check_steps(protocol: Protocol, mut input: &[u8]) {
    loop {
        match protocol.parse(input, &limits()) {
            Step::Incomplete { at_least } => {
                assert!(at_least > input.len());
                return;
            }
            Step::Request { used, .. } | Step::Refused { used, .. } => {
                assert!(used > 0 && used <= input.len());
                input = &input[used..];
            }
        }
    }
}
