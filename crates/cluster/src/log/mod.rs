//! The segmented log in which a backup keeps other nodes' records (DXRAM, section 2: backups lie on
//! flash).
//!
//! Records are appended to segments of one size, which are created once and reused, because writing
//! to pages for the first time is many times slower. A record's checksum covers its bytes, its
//! position and the number of its segment's use (the sequence), so a record of an earlier use is
//! not taken for a present one. [`Storage`] decides where the bytes lie.
//!
//! Invariants:
//! 1. Everything for which [`Log::commit`] returned `Ok` is replayed, once [`Log::is_written`] has
//!    returned true, after a crash that the mode covers: `Buffered` a crash of the process,
//!    `Synced` one of the machine.
//! 2. A record is replayed whole or not at all. Damage is reported and the rest is replayed. Only
//!    in the newest segment, where no later record vouches for it, damage counts as a torn write
//!    and ends the log.
//! 3. A segment is reused only when everything live in it was appended again and committed.
//! 4. After a failed write nothing is appended any more: every later call returns the error.
//! 5. The log of another cluster, or of a later format, is refused and not changed. Earlier formats
//!    are read; records of format 1 are ignored because they do not name their writer.
//! 6. A record or mark that vouches was appended after everything before it in its segment had been
//!    committed. No two uses of segments have the same sequence, whatever a power loss undoes; so
//!    the newest segment is never freed.

mod format;
mod loading;
mod memory;
mod range_checksums;
mod records;

use std::fmt;

pub use loading::{LoadedPart, Loading};
pub use memory::{Crash, MemoryStorage};
pub use records::{
    CleanedPart, Damage, Log, LogPosition, LogSettings, RecordLoads, Relocation, Replay,
    SEGMENT_BEGIN,
};

/// Holds segments: areas of fixed size that can be written at any offset.
///
/// A write may reach the medium late, in part and out of order until a [`Self::sync`] is carried
/// out. A storage may carry out creations, writes and syncs after the call has returned, in the
/// order of the calls; [`Self::is_idle`] tells when, and reports their errors. Reads see every
/// write that was handed over.
pub trait Storage: fmt::Debug + Send {
    /// Lists the segments and their lengths in bytes.
    ///
    /// # Errors
    ///
    /// [`StorageError`].
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError>;

    /// Creates a segment of N zero bytes, with all its space allocated.
    ///
    /// # Errors
    ///
    /// [`StorageError::Full`] if there is no space.
    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError>;

    /// Writes `bytes` into a segment.
    ///
    /// # Errors
    ///
    /// [`StorageError`]; any part may have been written.
    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError>;

    /// Fills `bytes` from a segment, and waits for the medium: for those who open the log.
    ///
    /// # Errors
    ///
    /// [`StorageError`].
    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError>;

    /// Makes everything that this process wrote survive a power loss.
    ///
    /// # Errors
    ///
    /// [`StorageError`]; then it is unknown what survives.
    fn sync(&mut self) -> Result<(), StorageError>;

    /// Whether everything that was handed over is carried out.
    ///
    /// # Errors
    ///
    /// The first error of what was carried out late; then nothing after it was carried out.
    fn is_idle(&mut self) -> Result<bool, StorageError> {
        Ok(true)
    }

    /// Bytes of writes that were handed over and are not carried out yet.
    fn unwritten_bytes(&self) -> usize {
        0
    }

    /// Asks for a part of a segment without waiting for the medium: what it holds is delivered
    /// later, with every write that was handed over before.
    fn load(&mut self, segment: u32, offset: u32, bytes: u32) -> Loading {
        let mut read = vec![0; bytes as usize];
        Loading::done(self.read(segment, offset, &mut read).map(|()| read))
    }
}

/// Why the storage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// There is no space.
    Full,
    /// It is read-only.
    ReadOnly,
    /// It has not carried out anything for so long that too much waits for it.
    Stalled,
    /// Any other error.
    Broken,
}

/// Which crashes committed records survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A crash of the process: committed records were handed to the operating system.
    #[default]
    Buffered,
    /// A power loss: committed records were synced, many at once.
    Synced,
}

/// Why an operation of the log failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// Another cluster wrote it; this is that cluster's number.
    Foreign(u64),
    /// A later version wrote it; this is its format.
    Later(u16),
    /// Another node of the cluster wrote it; this is that node's number.
    Node(u16),
    /// A record is empty, or longer than fits into a segment.
    Length,
    /// All segments are in use.
    Full,
    /// The bytes read are not those that were written.
    Damaged,
    /// The storage failed, now or earlier.
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
            Self::ReadOnly => "the disk is read-only",
            Self::Stalled => "the disk does not answer",
            Self::Broken => "the disk reported an error",
        })
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(cluster) => write!(f, "the log belongs to cluster {cluster:#x}"),
            Self::Later(version) => {
                write!(f, "the log has format {version}, which a later version wrote")
            }
            Self::Node(node) => write!(f, "the log belongs to node {node}"),
            Self::Length => f.write_str("the record is empty or too long for a segment"),
            Self::Full => f.write_str("all segments of the log are in use"),
            Self::Damaged => f.write_str("the log is damaged at this record"),
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

    fn is_idle(&mut self) -> Result<bool, StorageError> {
        (**self).is_idle()
    }

    fn unwritten_bytes(&self) -> usize {
        (**self).unwritten_bytes()
    }

    fn load(&mut self, segment: u32, offset: u32, bytes: u32) -> Loading {
        (**self).load(segment, offset, bytes)
    }
}

#[cfg(test)]
mod tests;
