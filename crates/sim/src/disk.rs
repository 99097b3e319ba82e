//! Disks that outlive the nodes on them.

use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_cluster::log::{Crash, MemoryStorage, Storage, StorageError};

use crate::random::Random;

/// One node's disk. A crash tears what was not synced.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    storage: Arc<Mutex<MemoryStorage>>,
    /// How often its machine lost its power.
    pub losses: u64,
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, MemoryStorage> {
        self.storage.lock().expect("one thread")
    }

    /// The process dies; or the machine does, if it has no power any more.
    pub fn crash(&mut self, has_power: bool, random: &mut Random) {
        self.losses += u64::from(!has_power);
        let mut disk = self.lock();
        let crash = if has_power {
            Crash::Process
        } else if random.percent(50) {
            Crash::Scattered { block_bytes: 512, seed: random.below(u64::MAX) }
        } else {
            let writes = random.below(disk.unsynced() as u64 + 1) as usize;
            Crash::Power { writes, bytes: random.below(600) as usize }
        };
        disk.crash(crash);
    }
}

impl Storage for Disk {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        self.lock().segments()
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.lock().create(segment, bytes)
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        self.lock().write(segment, offset, bytes)
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        self.lock().read(segment, offset, bytes)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.lock().sync()
    }
}
