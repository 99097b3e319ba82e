//! Reads of the log that do not wait for the medium.

use std::sync::{Arc, OnceLock};

use super::format::{self, PREFIX_BYTES};
use super::{LogError, StorageError};

/// Bytes of a segment that were asked for, with [`super::Storage::load`]. Dropping it takes that
/// back.
#[derive(Clone, Debug, Default)]
pub struct Loading(Arc<OnceLock<Result<Vec<u8>, StorageError>>>);

impl Loading {
    /// Bytes that are there already.
    pub fn done(result: Result<Vec<u8>, StorageError>) -> Self {
        Self(Arc::new(OnceLock::from(result)))
    }

    /// Delivers the bytes, or why there are none. Of several deliveries the first counts.
    pub fn deliver(&self, result: Result<Vec<u8>, StorageError>) {
        let _ = self.0.set(result);
    }

    /// Whether somebody other than the caller still waits for the bytes.
    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// What was delivered; none if nothing was yet.
    pub fn result(&self) -> Option<&Result<Vec<u8>, StorageError>> {
        self.0.get()
    }

    /// Waits until something is delivered.
    pub fn wait(&self) -> &Result<Vec<u8>, StorageError> {
        self.0.wait()
    }
}

/// A stretch of one use of a segment that is being loaded.
#[derive(Debug)]
pub struct LoadedPart {
    pub(super) segment: u32,
    pub(super) sequence: u64,
    pub(super) from: u32,
    pub(super) length: u32,
    pub(super) stored: Loading,
    /// What follows that was not written yet.
    pub(super) rest: Vec<u8>,
}

impl LoadedPart {
    /// Whether the bytes are there, or never will be.
    pub fn is_loaded(&self) -> bool {
        self.stored.result().is_some()
    }

    /// The bytes, if they are there and could be read.
    pub(super) fn bytes(&self) -> Option<Result<&[u8], LogError>> {
        Some(self.stored.result()?.as_deref().map_err(|error| LogError::Storage(*error)))
    }

    /// A record that lies in this part as a whole, if it is what was appended.
    pub(super) fn record(&self, offset: u32, length: u32) -> Option<&[u8]> {
        let stored = self.bytes()?.ok()?;
        let at = offset.checked_sub(self.from)? as usize;
        let whole = (PREFIX_BYTES + length) as usize;
        // No record lies partly in the part of a segment that is not written yet.
        let bytes = match at.checked_sub(stored.len()) {
            Some(at) => self.rest.get(at..at + whole)?,
            None => stored.get(at..at + whole)?,
        };
        format::is_record(bytes, self.sequence, offset).then_some(&bytes[PREFIX_BYTES as usize..])
    }
}
