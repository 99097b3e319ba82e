//! Simulated disks, which outlive the processes that use them.

use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_cluster::log::{Crash, MemoryStorage, Storage};

use crate::random::Random;

/// One byte per this many bytes of a segment changes when it rots.
const ROT_BYTES: u64 = 512;

/// The disk of one node. A crash tears what was not synced.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    storage: Arc<Mutex<MemoryStorage>>,
    /// Power losses of its machine.
    pub power_losses: u64,
}

impl Disk {
    /// The storage that a node writes to.
    pub fn storage(&self) -> Box<dyn Storage> {
        Box::new(Arc::clone(&self.storage))
    }

    fn lock(&self) -> MutexGuard<'_, MemoryStorage> {
        self.storage.lock().expect("one thread")
    }

    /// The process dies; without power, its machine does.
    pub fn crash(&mut self, has_power: bool, random: &mut Random) {
        self.power_losses += u64::from(!has_power);
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

    /// Flips bits in one segment.
    pub fn corrupt(&mut self, random: &mut Random) {
        let mut disk = self.lock();
        let segments = disk.segments().expect("it is in memory");
        let Some((segment, length)) = random.pick(&segments).copied() else { return };
        let bytes = disk.segment(segment).expect("it is there");
        for _ in 0..=u64::from(length) / ROT_BYTES {
            bytes[random.below(u64::from(length)) as usize] ^= 1 << random.below(8);
        }
    }
}
