//! Storage in memory that crashes as real media do: for simulation and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use amalgam_op::split_mix64;

use super::{Storage, StorageError};

/// What happens to unsynced writes in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies: no write is lost yet.
    Process,
    /// Power is lost: the first N unsynced writes survive, and the first bytes of the next.
    Power {
        /// Number of writes that survive whole.
        writes: usize,
        /// Bytes that survive of the torn write.
        bytes: usize,
    },
    /// Power is lost: in each block the first few of the unsynced writes survive.
    Scattered {
        /// Bytes that the medium writes atomically.
        block_bytes: usize,
        /// Seed that decides how many survive in each block.
        seed: u64,
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
    /// Segments written since the last sync.
    touched: BTreeSet<u32>,
    /// Capacity in bytes; none for unlimited.
    pub capacity_bytes: Option<usize>,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// How many more syncs succeed; none for all.
    pub syncs_left: Option<usize>,
}

impl MemoryStorage {
    /// Reduces the contents to what survives a crash.
    pub fn crash(&mut self, crash: Crash) {
        self.touched.clear();
        if crash == Crash::Process {
            return;
        }
        let unsynced = std::mem::take(&mut self.unsynced);
        for write in unsynced.iter().rev() {
            let place = write.offset..write.offset + write.before.len();
            self.bytes(write, place).copy_from_slice(&write.before);
        }
        match crash {
            Crash::Process => {}
            Crash::Power { writes, bytes } => {
                for (number, write) in unsynced.iter().enumerate().take(writes + 1) {
                    let kept = if number < writes { usize::MAX } else { bytes };
                    let kept = kept.min(write.after.len());
                    self.write_again(write, write.offset..write.offset + kept);
                }
            }
            Crash::Scattered { block_bytes, seed } => self.scatter(&unsynced, block_bytes, seed),
        }
    }

    fn scatter(&mut self, unsynced: &[Write], block_bytes: usize, mut seed: u64) {
        let blocks = |write: &Write| {
            let (begin, end) = (write.offset, write.offset + write.after.len());
            let numbers = begin / block_bytes..end.div_ceil(block_bytes);
            numbers.map(move |number| {
                let block = number * block_bytes;
                (block, begin.max(block)..end.min(block + block_bytes))
            })
        };
        let mut left: BTreeMap<(u32, usize), u64> = BTreeMap::new();
        for write in unsynced {
            blocks(write)
                .for_each(|(block, _)| *left.entry((write.segment, block)).or_default() += 1);
        }
        for count in left.values_mut() {
            *count = split_mix64(&mut seed) % (*count + 1);
        }
        for write in unsynced {
            for (block, place) in blocks(write) {
                let left = left.get_mut(&(write.segment, block)).expect("it was counted");
                if *left > 0 {
                    *left -= 1;
                    self.write_again(write, place);
                }
            }
        }
    }

    fn write_again(&mut self, write: &Write, place: std::ops::Range<usize>) {
        let after = &write.after[place.start - write.offset..place.end - write.offset];
        self.bytes(write, place).copy_from_slice(after);
    }

    fn bytes(&mut self, write: &Write, place: std::ops::Range<usize>) -> &mut [u8] {
        &mut self.segments.get_mut(&write.segment).expect("it was written")[place]
    }

    /// The number of unsynced writes.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Length in bytes of the last unsynced write.
    pub fn last_write_bytes(&self) -> usize {
        self.unsynced.last().map_or(0, |write| write.after.len())
    }

    /// The bytes of a segment, so that a test can damage them.
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
        self.unsynced.retain(|write| write.segment != segment);
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
        self.touched.insert(segment);
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
        if let Some(left) = &mut self.syncs_left {
            *left = left.checked_sub(1).ok_or(StorageError::Broken)?;
        }
        let touched = std::mem::take(&mut self.touched);
        self.unsynced.retain(|write| !touched.contains(&write.segment));
        Ok(())
    }
}

/// Shared storage: outlives its writer, and can be damaged meanwhile.
impl Storage for Arc<Mutex<MemoryStorage>> {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        self.lock().map_err(|_| StorageError::Broken)?.segments()
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.lock().map_err(|_| StorageError::Broken)?.create(segment, bytes)
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        self.lock().map_err(|_| StorageError::Broken)?.write(segment, offset, bytes)
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        self.lock().map_err(|_| StorageError::Broken)?.read(segment, offset, bytes)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.lock().map_err(|_| StorageError::Broken)?.sync()
    }
}
