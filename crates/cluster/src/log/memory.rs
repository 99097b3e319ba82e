//! Storage in memory that crashes as real media do: for simulation and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use amalgam_op::split_mix64;

use super::{Loading, Storage, StorageError};

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

/// What was handed over to a medium that hangs.
#[derive(Clone, Debug)]
enum Queued {
    Create { segment: u32, before: Option<Vec<u8>> },
    Write(Write),
    Sync,
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
    /// What was handed over since the medium began to hang. Reads see it already; a crash may not
    /// have carried it out.
    queued: Vec<Queued>,
    hangs: bool,
    /// What was asked for while it hangs, or while it reads late.
    loads: Vec<(u32, u32, u32, Loading)>,
    /// Whether what is asked for is delivered by [`Self::deliver`] only.
    pub reads_late: bool,
    /// The error of what was carried out late.
    failed: Option<StorageError>,
    /// Whether it says that it is idle while it hangs: a planted defect.
    pub hides_queue: bool,
}

impl MemoryStorage {
    /// Has the medium hang: it carries out nothing until [`Self::release`].
    pub fn hang(&mut self) {
        self.hangs = true;
    }

    /// Carries out the first N of the calls that were handed over while the medium hung, and undoes
    /// the rest, which never happened. Then it hangs no more.
    pub fn release(&mut self, calls: usize) {
        self.hangs = false;
        self.deliver();
        let mut queued = std::mem::take(&mut self.queued);
        let undone = queued.split_off(calls.min(queued.len()));
        for call in undone.into_iter().rev() {
            match call {
                Queued::Create { segment, before: Some(bytes) } => {
                    self.segments.insert(segment, bytes);
                }
                Queued::Create { segment, before: None } => drop(self.segments.remove(&segment)),
                Queued::Write(write) => {
                    let place = write.offset..write.offset + write.before.len();
                    self.bytes(&write, place).copy_from_slice(&write.before);
                }
                Queued::Sync => {}
            }
        }
        for call in queued {
            match call {
                Queued::Create { segment, .. } => {
                    self.unsynced.retain(|write| write.segment != segment)
                }
                Queued::Write(write) => {
                    self.touched.insert(write.segment);
                    self.unsynced.push(write);
                }
                Queued::Sync => self.failed = self.failed.or(self.sync_now().err()),
            }
        }
    }

    /// Delivers what was asked for, unless the medium hangs.
    pub fn deliver(&mut self) {
        if !self.hangs {
            for (segment, offset, bytes, into) in std::mem::take(&mut self.loads) {
                let mut read = vec![0; bytes as usize];
                into.deliver(self.read(segment, offset, &mut read).map(|()| read));
            }
        }
    }

    /// The number of calls that were handed over since the medium began to hang.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    fn sync_now(&mut self) -> Result<(), StorageError> {
        if let Some(left) = &mut self.syncs_left {
            *left = left.checked_sub(1).ok_or(StorageError::Broken)?;
        }
        let touched = std::mem::take(&mut self.touched);
        self.unsynced.retain(|write| !touched.contains(&write.segment));
        Ok(())
    }

    /// Reduces the contents to what survives a crash. Nothing that is queued does.
    pub fn crash(&mut self, crash: Crash) {
        self.loads.clear();
        self.release(0);
        self.failed = None;
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
        let before = self.segments.insert(segment, vec![0; bytes as usize]);
        match self.hangs {
            true => self.queued.push(Queued::Create { segment, before }),
            false => self.unsynced.retain(|write| write.segment != segment),
        }
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
        let write = Write { segment, offset: offset as usize, before, after };
        if self.hangs {
            self.queued.push(Queued::Write(write));
            return Ok(());
        }
        self.touched.insert(segment);
        self.unsynced.push(write);
        Ok(())
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        let place = offset as usize..offset as usize + bytes.len();
        let all = self.segments.get(&segment).ok_or(StorageError::Broken)?;
        bytes.copy_from_slice(all.get(place).ok_or(StorageError::Broken)?);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        if self.hangs {
            self.queued.push(Queued::Sync);
            return Ok(());
        }
        self.sync_now()
    }

    fn is_idle(&mut self) -> Result<bool, StorageError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.queued.is_empty() || self.hides_queue),
        }
    }

    fn unwritten_bytes(&self) -> usize {
        let writes = self.queued.iter().map(|call| match call {
            Queued::Write(write) => write.after.len(),
            Queued::Create { .. } | Queued::Sync => 0,
        });
        writes.sum()
    }

    fn load(&mut self, segment: u32, offset: u32, bytes: u32) -> Loading {
        if !(self.hangs || self.reads_late) {
            let mut read = vec![0; bytes as usize];
            return Loading::done(self.read(segment, offset, &mut read).map(|()| read));
        }
        let into = Loading::default();
        self.loads.push((segment, offset, bytes, into.clone()));
        into
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

    fn is_idle(&mut self) -> Result<bool, StorageError> {
        self.lock().map_err(|_| StorageError::Broken)?.is_idle()
    }

    fn unwritten_bytes(&self) -> usize {
        self.lock().map_or(0, |storage| storage.unwritten_bytes())
    }

    fn load(&mut self, segment: u32, offset: u32, bytes: u32) -> Loading {
        let broken = |_| Loading::done(Err(StorageError::Broken));
        self.lock().map_or_else(broken, |mut storage| storage.load(segment, offset, bytes))
    }
}
