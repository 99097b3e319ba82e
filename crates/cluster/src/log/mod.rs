//! The log in which a backup keeps other nodes' chunks (DXRAM, section 2: backups lie in flash).
//!
//! Records are appended to segments of one size, which are made once and used again: pages that are
//! touched for the first time are written many times slower. A record carries a checksum over its
//! bytes, its place, and the use of its segment, so what an earlier use left behind is not taken
//! for a record. Where bytes lie is [`Storage`]'s matter.
//!
//! Invariants of this room:
//! 1. What [`Log::commit`] returned `Ok` for is replayed after a crash that the mode covers:
//!    `Buffered` a crash of the process, `Synced` one of the machine.
//! 2. A record is replayed whole or not at all. What is broken is reported, and the rest is
//!    replayed; only in the newest segment, where nothing behind it vouches for it, it is what is
//!    left of a write that was torn, and the end.
//! 3. A segment is used again only when all that is live in it was appended again and committed.
//! 4. After a write failed nothing is appended any more: the log says so rather than lie.
//! 5. The log of another cluster, or of a later format, is refused and not touched. Those of the
//!    formats before are read; records of the first count for nothing: they do not say whose they
//!    are.
//! 6. What vouches was appended after all before it in its segment had been committed. No two uses
//!    of segments have the same number, whatever a loss of power takes back: so the newest is never
//!    freed.

mod format;
mod memory;
mod range_checksums;
mod records;

use std::fmt;

pub use memory::{Crash, MemoryStorage};
pub use records::{Damage, Log, LogPosition, LogSettings, Relocation, Replay, SEGMENT_BEGIN};

/// Where segments lie: places of fixed size that are written at any offset.
///
/// A write may reach the medium late, in part and out of order until [`Self::sync`] returned.
pub trait Storage: fmt::Debug + Send {
    /// The segments that there are, and their lengths in bytes.
    ///
    /// # Errors
    ///
    /// [`StorageError`].
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError>;

    /// Makes a segment of so many zeros, all of which have their room from now on.
    ///
    /// # Errors
    ///
    /// [`StorageError::Full`] if there is no room.
    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError>;

    /// Writes into a segment.
    ///
    /// # Errors
    ///
    /// [`StorageError`]; any part may be written then.
    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError>;

    /// Reads from a segment, until `bytes` are full.
    ///
    /// # Errors
    ///
    /// [`StorageError`].
    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError>;

    /// What was written into segments that this process wrote to survives a loss of power.
    ///
    /// # Errors
    ///
    /// [`StorageError`]; nobody knows then what does.
    fn sync(&mut self) -> Result<(), StorageError>;
}

/// Why a medium did not do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// There is no room.
    Full,
    /// It may not be written.
    ReadOnly,
    /// Anything else.
    Broken,
}

/// What survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A crash of the process: what is committed was handed to the operating system.
    #[default]
    Buffered,
    /// A loss of power: what is committed was synced, many records at once.
    Synced,
}

/// Why the log does not do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// It was written by another cluster, whose number this is.
    Foreign(u64),
    /// It was written by a later version, whose format this is.
    Later(u16),
    /// It was written by another node of the cluster, whose number this is.
    Node(u16),
    /// A record longer than a segment takes, or empty.
    Length,
    /// All segments are in use.
    Full,
    /// What lies there is not what was written.
    Damaged,
    /// The medium failed, now or earlier.
    Storage(StorageError),
}

impl From<StorageError> for LogError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the disk is full",
            Self::ReadOnly => "the disk may not be written",
            Self::Broken => "the disk does not answer as it should",
        })
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(cluster) => write!(f, "the log belongs to cluster {cluster:#x}"),
            Self::Later(version) => write!(f, "the log has format {version}, of a later version"),
            Self::Node(node) => write!(f, "the log is that of node {node}"),
            Self::Length => f.write_str("the record is empty or too long for a segment"),
            Self::Full => f.write_str("all segments of the log are in use"),
            Self::Damaged => f.write_str("the log is damaged there"),
            Self::Storage(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StorageError {}
impl std::error::Error for LogError {}

impl Storage for Box<dyn Storage> {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        (**self).segments()
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        (**self).create(segment, bytes)
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        (**self).write(segment, offset, bytes)
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        (**self).read(segment, offset, bytes)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        (**self).sync()
    }
}

#[cfg(test)]
mod tests;
