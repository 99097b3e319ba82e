//! Where messages begin and end on a connection, and how it opens.

use std::fmt;

use super::codec::WireReader;
use super::codec::{Wire, WireError, wire_struct};
use super::layout::Packet;
use crate::overlay::Peer;

/// The latest format that this code speaks.
pub const WIRE_VERSION: u16 = 6;
/// The oldest: nodes of two releases speak the later format that both know.
pub const WIRE_SINCE: u16 = 4;
/// The longest frame in bytes, without its length.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of the length, and of the request's number.
const LENGTH_BYTES: usize = 4;
const NUMBER_BYTES: usize = 8;
/// What a connection begins with: not a text protocol's first bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"\xa3agm");

/// Who speaks; the first thing that either side says. All versions have these fields: what later
/// ones add stands behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    magic: u32,
    /// The latest format that it speaks.
    pub version: u16,
    /// The cluster's number, drawn when it was set up.
    pub cluster: u64,
    /// Which node, in which life; none for a client.
    pub from: Option<Peer>,
    /// The oldest format that it speaks.
    pub since: u16,
}

wire_struct!(Hello { magic: u32, version: u16, cluster: u64, from: Option<Peer>, since: u16 });

/// Why two do not speak to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// That is another protocol.
    Foreign,
    /// The other speaks no format that this one does, this at the latest.
    Version(u16),
    /// The other belongs to this cluster.
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
    /// Of a node, or of a client.
    pub fn new(cluster: u64, from: Option<Peer>) -> Self {
        Self { magic: MAGIC, version: WIRE_VERSION, cluster, from, since: WIRE_SINCE }
    }

    /// In which format the two speak to each other: the latest that both know.
    ///
    /// # Errors
    ///
    /// [`HelloError`].
    pub fn check(&self, other: &Self) -> Result<u16, HelloError> {
        if other.magic != MAGIC {
            return Err(HelloError::Foreign);
        }
        let spoken = self.version.min(other.version);
        // What a version without `since` sends there is not looked at: its version is too old.
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

/// Puts frames together from bytes as they arrive. After an error the connection is to be closed.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Bytes before it were decoded.
    done: usize,
}

impl FrameReader {
    /// Adds what arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if all of it arrived.
    ///
    /// # Errors
    ///
    /// [`WireError`] if it is none.
    pub fn next_frame(&mut self) -> Result<Option<(u64, Packet)>, WireError> {
        let left = &self.bytes[self.done..];
        let Some((length, rest)) = left.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(WireError::TooLarge);
        }
        if length < NUMBER_BYTES {
            return Err(WireError::Short);
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let (number, packet) = frame.split_at(NUMBER_BYTES);
        let frame = (u64::decode_all(number)?, Packet::decode_all(packet)?);
        self.done += LENGTH_BYTES + length;
        Ok(Some(frame))
    }

    /// Bytes that wait for the rest of their frame.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.done
    }
}
