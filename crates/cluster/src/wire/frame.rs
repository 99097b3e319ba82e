//! Frames on a connection, and its opening handshake.

use std::fmt;

use super::layout::{
    CONTROL, CONTROL_QUESTIONS, LOOK_UP, OVERLAY, Packet, REQUEST, TIMED, WIRE_SINCE, WIRE_VERSION,
};
use crate::chunks::OPERATIONS_MAX;
use crate::codec::{Wire, WireError, WireReader, wire_struct};
use crate::overlay::Peer;

/// The longest frame in bytes, not counting its length field.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The longest frame of a client, whose requests are cut at half of this. Longer than the longest
/// chunk by far.
pub const CLIENT_FRAME_BYTES_MAX: usize = 8 << 20;
/// Where a request has the number of its operations, counted from the code of the packet; and where
/// one with a deadline has it.
const REQUEST_COUNT_AT: usize = 1 + 8 + 4 + 8;
const TIMED_COUNT_AT: usize = REQUEST_COUNT_AT + 8;
/// The largest buffer that is kept for the next frames.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// Bytes of the length field, and of the request number.
const LENGTH_BYTES: usize = 4;
const NUMBER_BYTES: usize = 8;
/// The number of a reply with which its request is not answered completely.
pub const PARTIAL_REPLY: u64 = u64::MAX;
/// The first bytes of a connection: unlike those of any text protocol.
const MAGIC: u32 = u32::from_le_bytes(*b"\xa3agm");

/// Identifies the sender; the first message in each direction. All versions have these fields;
/// later ones add fields behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    magic: u32,
    /// The latest format version that the sender speaks.
    pub version: u16,
    /// The cluster's number, drawn when the cluster was created.
    pub cluster: u64,
    /// The node and its incarnation; none for a client.
    pub from: Option<Peer>,
    /// The oldest format version that the sender speaks.
    pub since: u16,
}

wire_struct!(Hello { magic: u32, version: u16, cluster: u64, from: Option<Peer>, since: u16 });

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The other side speaks another protocol.
    Foreign,
    /// The sides have no format version in common; this is the other's latest.
    Version(u16),
    /// The other side belongs to this other cluster.
    Cluster(u64),
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("the other side does not speak this protocol"),
            Self::Version(version) => {
                write!(
                    f,
                    "the other side speaks version {version} at the latest, this one \
                     {WIRE_SINCE} to {WIRE_VERSION}"
                )
            }
            Self::Cluster(cluster) => write!(f, "the other side belongs to cluster {cluster:x}"),
        }
    }
}

impl std::error::Error for HelloError {}

impl Hello {
    /// The greeting of a node, or of a client (`from` is none).
    pub fn new(cluster: u64, from: Option<Peer>) -> Self {
        Self { magic: MAGIC, version: WIRE_VERSION, cluster, from, since: WIRE_SINCE }
    }

    /// The format version to use: the latest that both sides know.
    ///
    /// # Errors
    ///
    /// [`HelloError`].
    pub fn check(&self, other: &Self) -> Result<u16, HelloError> {
        if other.magic != MAGIC {
            return Err(HelloError::Foreign);
        }
        let spoken = self.version.min(other.version);
        // A version without `since` sends something else there; it is not used, since that version
        // is too old anyway.
        if spoken < self.since || spoken < other.since {
            return Err(HelloError::Version(other.version));
        }
        if other.cluster != self.cluster {
            return Err(HelloError::Cluster(other.cluster));
        }
        Ok(spoken)
    }
}

/// Appends a frame.
///
/// # Errors
///
/// [`WireError::TooLarge`]; nothing is appended then.
pub fn encode_frame(number: u64, packet: &Packet, to: &mut Vec<u8>) -> Result<(), WireError> {
    let start = to.len();
    to.extend_from_slice(&[0; LENGTH_BYTES]);
    number.encode(to);
    packet.encode(to);
    let length = to.len() - start - LENGTH_BYTES;
    if length > FRAME_BYTES_MAX {
        to.truncate(start);
        return Err(WireError::TooLarge);
    }
    to[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// The sender of frames, on which depends what they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSource {
    /// A node of the cluster: anything except what clients ask.
    Node,
    /// A client: requests, lookups and questions.
    Client,
}

impl FrameSource {
    /// Checks a packet before it is decoded, by its first bytes; `packet` may end early.
    fn check(self, packet: &[u8]) -> Result<(), WireError> {
        let is_control = packet.first() == Some(&CONTROL);
        let may_send = match (self, packet) {
            (Self::Node, _) => !is_control,
            (Self::Client, [] | [REQUEST | TIMED, ..] | [OVERLAY | CONTROL]) => true,
            (Self::Client, [OVERLAY, message, ..]) => *message == LOOK_UP,
            (Self::Client, [CONTROL, question, ..]) => CONTROL_QUESTIONS.contains(question),
            (Self::Client, _) => false,
        };
        if !may_send {
            return Err(WireError::WrongSender);
        }
        let count_at = match packet.first() {
            Some(&REQUEST) => REQUEST_COUNT_AT,
            Some(&TIMED) => TIMED_COUNT_AT,
            _ => return Ok(()),
        };
        let count = packet.get(count_at..).and_then(<[u8]>::first_chunk);
        let count = count.map_or(0, |count| u32::from_le_bytes(*count));
        match count as usize > OPERATIONS_MAX {
            true => Err(WireError::TooLarge),
            false => Ok(()),
        }
    }

    /// The longest frame in bytes.
    fn frame_bytes_max(self) -> usize {
        match self {
            Self::Node => FRAME_BYTES_MAX,
            Self::Client => CLIENT_FRAME_BYTES_MAX,
        }
    }
}

/// Assembles frames from bytes as they arrive. After an error the connection must be closed.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Number of leading bytes that were decoded.
    done: usize,
}

impl FrameReader {
    /// Adds bytes that arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame from a node that answers; none until all of it has arrived.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the frame is malformed.
    pub fn next_frame(&mut self) -> Result<Option<(u64, Packet)>, WireError> {
        self.next_checked(FRAME_BYTES_MAX, |_| Ok(()))
    }

    /// The next frame of this sender; none until all of it has arrived.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the frame is malformed or too long, or this sender may not send the packet:
    /// as soon as its first bytes show that, and before it is decoded.
    pub fn next_frame_of(
        &mut self,
        sender: FrameSource,
    ) -> Result<Option<(u64, Packet)>, WireError> {
        self.next_checked(sender.frame_bytes_max(), |packet| sender.check(packet))
    }

    fn next_checked(
        &mut self,
        bytes_max: usize,
        check: impl Fn(&[u8]) -> Result<(), WireError>,
    ) -> Result<Option<(u64, Packet)>, WireError> {
        let left = &self.bytes[self.done..];
        let Some((length, rest)) = left.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > bytes_max {
            return Err(WireError::TooLarge);
        }
        if length < NUMBER_BYTES {
            return Err(WireError::Short);
        }
        let arrived = &rest[..length.min(rest.len())];
        check(arrived.get(NUMBER_BYTES..).unwrap_or_default())?;
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let (number, packet) = frame.split_at(NUMBER_BYTES);
        let frame = (u64::decode_all(number)?, Packet::decode_all(packet)?);
        self.done += LENGTH_BYTES + length;
        Ok(Some(frame))
    }

    /// Number of bytes of an incomplete frame.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.done
    }

    /// Bytes of memory that the reader occupies. Gives back what was needed for long frames, if all
    /// were decoded.
    pub fn memory_bytes(&mut self) -> usize {
        if self.waiting() == 0 && self.bytes.capacity() > KEPT_BYTES_MAX {
            (self.bytes, self.done) = (Vec::new(), 0);
        }
        self.bytes.capacity()
    }
}
