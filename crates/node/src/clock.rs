//! Time: milliseconds for leases and retries, seconds and flushes for items.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use amalgam_cluster::chunks::ItemTime;
use amalgam_op::Now;
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, those it slept included: a lease does not wait.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Seconds begin here, so that second 1 is always over.
const FIRST_SECOND: u64 = 2;

/// Flushes that an item in memory may lie behind; [`Now::is_live`] tells 31 apart.
const OUTSTANDING_MAX: u64 = 30;

/// The time of a node's items.
///
/// Invariant: no item in memory lies more than [`OUTSTANDING_MAX`] flushes behind: a flush beyond
/// waits until a sweep has run.
#[derive(Debug)]
pub struct ItemClock {
    started_ms: u64,
    epoch_unix_seconds: i64,
    /// Flushes that were carried out here.
    flushes: AtomicU64,
    /// Items in memory were written after so many.
    swept: AtomicU64,
}

impl Default for ItemClock {
    fn default() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |past| past.as_secs());
        Self {
            started_ms: boot_ms(),
            epoch_unix_seconds: unix.cast_signed() - FIRST_SECOND.cast_signed(),
            flushes: AtomicU64::new(0),
            swept: AtomicU64::new(0),
        }
    }
}

impl ItemClock {
    /// The present.
    pub fn now(&self) -> Now {
        self.moment().now
    }

    /// The same, with all flushes that were carried out here.
    pub fn moment(&self) -> ItemTime {
        let seconds = boot_ms().saturating_sub(self.started_ms) / 1_000 + FIRST_SECOND;
        let flushes = self.flushes();
        let now = Now {
            seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            epoch_unix_seconds: self.epoch_unix_seconds,
            generation: (flushes % 64) as u8,
        };
        ItemTime { now, flushes }
    }

    /// How many flushes were carried out here.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// The cluster decided on so many flushes: carries out as many as it may. All but the last can
    /// be left out, since what one drops the next would.
    pub fn flush_up_to(&self, decided: u64) {
        let most = self.swept.load(Ordering::Acquire) + OUTSTANDING_MAX;
        self.flushes.fetch_max(decided.min(most), Ordering::AcqRel);
    }

    /// The first node of a cluster, or one that joins, has nothing to drop.
    pub fn begin_at(&self, flushes: u64) {
        self.swept.fetch_max(flushes, Ordering::AcqRel);
        self.flushes.fetch_max(flushes, Ordering::AcqRel);
    }

    /// What a sweep that begins now makes true when it has ended; none if it is not worth it.
    pub fn begin_sweep(&self) -> Option<u64> {
        let flushes = self.flushes();
        (flushes >= self.swept.load(Ordering::Acquire) + OUTSTANDING_MAX / 2).then_some(flushes)
    }

    /// It has ended.
    pub fn end_sweep(&self, target: u64) {
        self.swept.fetch_max(target, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_wait_for_a_sweep() {
        let clock = ItemClock::default();
        clock.begin_at(100);
        assert_eq!((clock.now().generation, clock.begin_sweep()), (36, None));
        clock.flush_up_to(1_000);
        assert_eq!(clock.flushes(), 130, "30 at most");
        let target = clock.begin_sweep().expect("it is worth it");
        clock.end_sweep(target);
        clock.flush_up_to(140);
        assert_eq!((clock.flushes(), clock.begin_sweep()), (140, None));
        assert!(clock.now().seconds >= 2);
    }
}
