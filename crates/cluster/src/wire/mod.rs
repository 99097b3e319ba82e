//! The wire format: messages as bytes.
//!
//! A connection begins with a [`Hello`] in each direction; then frames follow: a length, the number
//! of the request that is asked or answered, and a [`Packet`]. Many requests share a connection.
//! Numbers are little endian; a list is its length and its elements.
//!
//! Invariants:
//! 1. Bad input gives a [`WireError`]: nothing panics.
//! 2. Memory for a message is proportional to the bytes that arrived: a length that exceeds them is
//!    refused before anything is reserved, no frame is longer than the bound of its
//!    [`FrameSource`], and no list takes more than 64 MiB.
//! 3. Decoding inverts encoding and consumes all bytes.

mod frame;
mod layout;
mod older_versions;
#[cfg(test)]
mod tests;

pub use frame::{
    CLIENT_FRAME_BYTES_MAX, FRAME_BYTES_MAX, FrameReader, FrameSource, Hello, HelloError,
    PARTIAL_REPLY, encode_frame,
};
pub use layout::{
    Control, MemoryUse, NodeMemory, NodeStatus, OwnedRange, Packet, WIRE_SINCE, WIRE_VERSION,
};

pub use crate::codec::{Wire, WireError, WireReader};
