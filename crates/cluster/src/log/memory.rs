//! A medium in memory that crashes as real ones do: for simulation and tests.

use std::collections::BTreeMap;

use super::{Storage, StorageError};

/// What becomes of writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies: nothing is lost.
    Process,
    /// Power is lost: of so many unsynced writes the first survive, and of the next so many bytes.
    Power {
        /// Writes that survive whole.
        writes: usize,
        /// Bytes of the one that is torn.
        bytes: usize,
    },
}

#[derive(Clone, Debug)]
struct Write {
    segment: u32,
    offset: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Segments in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    segments: BTreeMap<u32, Vec<u8>>,
    unsynced: Vec<Write>,
    /// How many bytes there may be in all; none for any.
    pub capacity_bytes: Option<usize>,
    /// Whether writes are refused.
    pub is_read_only: bool,
}

impl MemoryStorage {
    /// What is left after a crash.
    pub fn crash(&mut self, crash: Crash) {
        let unsynced = std::mem::take(&mut self.unsynced);
        let Crash::Power { writes, bytes } = crash else { return };
        for (number, write) in unsynced.into_iter().enumerate().skip(writes).rev() {
            let kept = if number == writes { bytes.min(write.after.len()) } else { 0 };
            let segment = self.segments.get_mut(&write.segment).expect("it was written");
            let at = write.offset + kept..write.offset + write.after.len();
            segment[at].copy_from_slice(&write.before[kept..]);
        }
    }

    /// Writes that were not synced.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Bytes of the last write that was not synced.
    pub fn last_write_bytes(&self) -> usize {
        self.unsynced.last().map_or(0, |write| write.after.len())
    }

    /// The bytes of a segment, to damage.
    pub fn segment(&mut self, segment: u32) -> Option<&mut Vec<u8>> {
        self.segments.get_mut(&segment)
    }
}

impl Storage for MemoryStorage {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        Ok(self.segments.iter().map(|(number, bytes)| (*number, bytes.len() as u32)).collect())
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        if self.is_read_only {
            return Err(StorageError::ReadOnly);
        }
        let used: usize = self.segments.values().map(Vec::len).sum();
        if self.capacity_bytes.is_some_and(|capacity| used + bytes as usize > capacity) {
            return Err(StorageError::Full);
        }
        self.segments.insert(segment, vec![0; bytes as usize]);
        Ok(())
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        if self.is_read_only {
            return Err(StorageError::ReadOnly);
        }
        let place = offset as usize..offset as usize + bytes.len();
        let all = self.segments.get_mut(&segment).ok_or(StorageError::Broken)?;
        let there = all.get_mut(place).ok_or(StorageError::Broken)?;
        let (before, after) = (there.to_vec(), bytes.to_vec());
        there.copy_from_slice(bytes);
        self.unsynced.push(Write { segment, offset: offset as usize, before, after });
        Ok(())
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        let place = offset as usize..offset as usize + bytes.len();
        let all = self.segments.get(&segment).ok_or(StorageError::Broken)?;
        bytes.copy_from_slice(all.get(place).ok_or(StorageError::Broken)?);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.unsynced.clear();
        Ok(())
    }
}
