//! Time: milliseconds for leases and retries, seconds and flushes for items.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use amalgam_cluster::chunks::ItemTime;
use amalgam_op::Now;
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, including suspension, since leases go on meanwhile.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Milliseconds since 1970, by the machine's calendar.
pub fn unix_ms() -> u64 {
    let past = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(past.as_millis()).unwrap_or(u64::MAX)
}

/// The first second of a node's clock, so that second 1 has always passed.
const FIRST_SECOND: u64 = 2;

/// Flushes by which an item in memory may be behind; [`Now::is_live`] tells 31 apart.
const OUTSTANDING_MAX: u64 = 30;

/// The time of a node's items.
///
/// Invariant: no item in memory is more than [`OUTSTANDING_MAX`] flushes behind; a further flush
/// waits until a sweep has run.
#[derive(Debug)]
pub struct ItemClock {
    started_ms: u64,
    epoch_unix_seconds: i64,
    /// Flushes that were executed on this node.
    flushes: AtomicU64,
    /// Every item in memory was written after at least this many flushes.
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

    /// The time when [`boot_ms`] was `at_ms`.
    pub fn at(&self, at_ms: u64) -> Now {
        self.moment_at(at_ms).now
    }

    /// The present, with the number of flushes that were executed on this node.
    pub fn moment(&self) -> ItemTime {
        self.moment_at(boot_ms())
    }

    fn moment_at(&self, at_ms: u64) -> ItemTime {
        let seconds = at_ms.saturating_sub(self.started_ms) / 1_000 + FIRST_SECOND;
        let flushes = self.flushes();
        let now = Now {
            seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            epoch_unix_seconds: self.epoch_unix_seconds,
            generation: (flushes % 64) as u8,
        };
        ItemTime { now, flushes }
    }

    /// The number of flushes that were executed on this node.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Executes the flushes up to number `decided`, as far as the invariant permits. They are one
    /// step, since the last drops everything that those before it drop.
    pub fn flush_up_to(&self, decided: u64) {
        let most = self.swept.load(Ordering::Acquire) + OUTSTANDING_MAX;
        self.flushes.fetch_max(decided.min(most), Ordering::AcqRel);
    }

    /// Starts the count at `flushes`, for a node that holds no items yet.
    pub fn begin_at(&self, flushes: u64) {
        self.swept.fetch_max(flushes, Ordering::AcqRel);
        self.flushes.fetch_max(flushes, Ordering::AcqRel);
    }

    /// The number to pass to [`Self::end_sweep`] after a sweep that begins now; None if a sweep is
    /// not worth it.
    pub fn begin_sweep(&self) -> Option<u64> {
        let flushes = self.flushes();
        (flushes >= self.swept.load(Ordering::Acquire) + OUTSTANDING_MAX / 2).then_some(flushes)
    }

    /// Records that a sweep has ended that began with `target`.
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
