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
    /// Since when and until when it hangs, in true milliseconds; None while it does not.
    pub hangs_ms: Option<(u64, u64)>,
}

impl Disk {
    /// The storage that a node writes to. Once it is open, what it asks for is read later.
    pub fn storage(&self) -> Box<dyn Storage> {
        self.lock().reads_late = true;
        Box::new(Arc::clone(&self.storage))
    }

    /// Reads what was asked for, unless it hangs.
    pub fn deliver(&self) {
        self.lock().deliver();
    }

    fn lock(&self) -> MutexGuard<'_, MemoryStorage> {
        self.storage.lock().expect("one thread")
    }

    /// The process dies; without power, its machine does.
    pub fn crash(&mut self, has_power: bool, random: &mut Random) {
        self.power_losses += u64::from(!has_power);
        let mut disk = self.lock();
        if self.hangs_ms.is_some() {
            // The first of the calls that waited may be carried out just before.
            let calls = random.below(disk.queued() as u64 + 1) as usize;
            disk.release(calls);
        }
        let crash = if has_power {
            Crash::Process
        } else if random.percent(50) {
            Crash::Scattered { block_bytes: 512, seed: random.below(u64::MAX) }
        } else {
            let writes = random.below(disk.unsynced() as u64 + 1) as usize;
            Crash::Power { writes, bytes: random.below(600) as usize }
        };
        disk.crash(crash);
        drop(disk);
        self.hangs_ms = None;
    }

    /// Has it hang until [`Self::release`]; `is_hidden` if it is to seem idle meanwhile.
    pub fn hang(&mut self, since_ms: u64, until_ms: u64, is_hidden: bool) {
        self.hangs_ms = Some((since_ms, until_ms));
        let mut disk = self.lock();
        disk.hides_queue = is_hidden;
        disk.hang();
    }

    /// Carries out what waited.
    pub fn release(&mut self) {
        self.hangs_ms = None;
        self.lock().release(usize::MAX);
    }

    /// The number of calls that wait.
    pub fn queued(&self) -> usize {
        self.lock().queued()
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
