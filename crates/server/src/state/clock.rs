//! The server's time and its flush count.
//!
//! `flush_all` does not scan: it increments the flush count, and items of an older count are dead.
//! An item stores the count modulo 64 as its generation, so dead items must be removed before the
//! generation wraps around to theirs.
//!
//! Thread safety: shared by all threads.
//!
//! Invariants:
//! 1. Time never goes back and is never 0.
//! 2. Between [`Clock::begin_batch`] and [`Clock::end_batch`] a worker writes only items of the
//!    flush count that it was given.
//! 3. No item in memory is more than [`MAX_OUTSTANDING`] flushes old: a flush that would violate
//!    this is refused until a sweep has run ([`Clock::flush`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use amalgam_op::Now;
use rustix::time::{ClockId, clock_gettime};

/// Flushes since an item in memory was written, at most. [`Now::is_live`] distinguishes 31.
pub const MAX_OUTSTANDING: u64 = 30;

/// Outstanding flushes from which on the main thread sweeps without being asked.
pub const OUTSTANDING_WORTH_A_SWEEP: u64 = 8;

/// The flush count of a worker that runs no batch.
const IDLE: u64 = u64::MAX;

/// The due time if no delayed flush is pending.
const NOT_DUE: u32 = u32::MAX;

/// The clock starts at this second, so that second 1 is always in the past.
const FIRST_SECOND: u32 = 2;

/// The flush count that a worker was given for its current batch, or [`IDLE`]. Written by that
/// worker; on a cache line of its own.
#[repr(align(128))]
struct WorkerFlushes(AtomicU64);

/// The time and the flush count of a server. Shared by all threads.
pub struct Clock {
    /// The monotonic time of the start of the Unix second in which the clock was created.
    started: Monotonic,
    /// The Unix time of second 0 of this clock.
    epoch_unix_seconds: i64,
    /// The flush count.
    flushes: AtomicU64,
    /// All items in memory were written under this flush count or a later one; `swept <= flushes`.
    swept: AtomicU64,
    /// The second of the pending delayed flush, or [`NOT_DUE`].
    due_seconds: AtomicU32,
    /// Seconds added by a test harness.
    skipped_seconds: AtomicU32,
    workers: Box<[WorkerFlushes]>,
    /// Held to change `flushes` or `due_seconds`.
    flushing: Mutex<()>,
}

/// The error of a flush that was refused: a sweep has to remove the items that earlier flushes
/// killed.
#[derive(Debug, PartialEq, Eq)]
pub struct NeedsSweep;

const SECOND_NS: i64 = 1_000_000_000;

/// A time of the system's monotonic clock, with a resolution of some milliseconds.
#[derive(Clone, Copy)]
struct Monotonic {
    seconds: i64,
    nanoseconds: i64,
}

impl Monotonic {
    fn now() -> Self {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Self { seconds: now.tv_sec, nanoseconds: now.tv_nsec }
    }

    fn less_ns(self, nanoseconds: i64) -> Self {
        match self.nanoseconds - nanoseconds {
            left @ 0.. => Self { nanoseconds: left, ..self },
            short => Self { seconds: self.seconds - 1, nanoseconds: short + SECOND_NS },
        }
    }

    /// Whole seconds since an earlier time.
    #[inline]
    fn seconds_since(self, earlier: Self) -> u64 {
        let is_begun = self.nanoseconds < earlier.nanoseconds;
        (self.seconds - earlier.seconds - i64::from(is_begun)).unsigned_abs()
    }
}

impl Clock {
    /// A clock for a number of workers, starting now.
    pub fn new(workers: usize) -> Self {
        // Seconds change together with those of the Unix time, so that an item expires at the same
        // moment before and after a warm restart.
        let unix = clock_gettime(ClockId::RealtimeCoarse);
        Self {
            started: Monotonic::now().less_ns(unix.tv_nsec),
            epoch_unix_seconds: unix.tv_sec - i64::from(FIRST_SECOND),
            flushes: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            due_seconds: AtomicU32::new(NOT_DUE),
            skipped_seconds: AtomicU32::new(0),
            workers: (0..workers).map(|_| WorkerFlushes(AtomicU64::new(IDLE))).collect(),
            flushing: Mutex::new(()),
        }
    }

    /// Seconds since [`Now::epoch_unix_seconds`].
    pub fn seconds(&self) -> u32 {
        let passed = Monotonic::now().seconds_since(self.started);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX - FIRST_SECOND) + FIRST_SECOND;
        passed.saturating_add(self.skipped_seconds.load(Ordering::Relaxed))
    }

    /// Moves the clock forward at once, for a test harness.
    pub fn skip_ahead(&self, seconds: u32) {
        let add = |skipped: u32| Some(skipped.saturating_add(seconds));
        // Never fails: the closure always returns Some.
        let _ = self.skipped_seconds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Seconds since the start of the second in which the server started.
    pub fn uptime_seconds(&self) -> u32 {
        self.seconds() - FIRST_SECOND
    }

    /// The Unix time.
    pub fn unix_seconds(&self) -> i64 {
        self.epoch_unix_seconds + i64::from(self.seconds())
    }

    fn now_at(&self, flushes: u64) -> Now {
        Now {
            seconds: self.seconds(),
            epoch_unix_seconds: self.epoch_unix_seconds,
            generation: (flushes % 64) as u8,
        }
    }

    /// The current time and generation, for a thread that writes no items.
    pub fn now(&self) -> Now {
        self.flush_if_due();
        self.now_at(self.flushes.load(Ordering::Acquire))
    }

    /// The current time and generation for a batch of `worker`, which may write items until it
    /// calls [`Clock::end_batch`]. Requires: the requests of the batch were received before.
    pub fn begin_batch(&self, worker: usize) -> Now {
        self.flush_if_due();
        let own = &self.workers[worker].0;
        let mut flushes = self.flushes.load(Ordering::Acquire);
        loop {
            own.store(flushes, Ordering::Relaxed);
            // Pairs with the fence in `begin_sweep`: either the sweeping thread sees this store, or
            // this thread sees its flush count below and stores that.
            fence(Ordering::SeqCst);
            let again = self.flushes.load(Ordering::Acquire);
            if again == flushes {
                return self.now_at(flushes);
            }
            flushes = again;
        }
    }

    /// Ends the batch of `worker`, which writes no more items under its flush count.
    pub fn end_batch(&self, worker: usize) {
        // Release: the items that it wrote are visible to a sweep that sees it idle.
        self.workers[worker].0.store(IDLE, Ordering::Release);
    }

    fn flush_if_due(&self) {
        let due = self.due_seconds.load(Ordering::Relaxed);
        if due != NOT_DUE && self.seconds() >= due {
            let _guard = self.flushing.lock();
            if self.due_seconds.load(Ordering::Relaxed) == due && self.increment_flushes().is_ok() {
                self.due_seconds.store(NOT_DUE, Ordering::Relaxed);
            }
        }
    }

    fn increment_flushes(&self) -> Result<(), NeedsSweep> {
        if self.outstanding() >= MAX_OUTSTANDING {
            return Err(NeedsSweep);
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Kills all items written so far, and cancels a pending delayed flush, as in memcached.
    ///
    /// # Errors
    ///
    /// If a sweep must remove the items that earlier flushes killed; see [`Clock::begin_sweep`].
    pub fn flush(&self) -> Result<(), NeedsSweep> {
        let _guard = self.flushing.lock();
        self.increment_flushes()?;
        self.due_seconds.store(NOT_DUE, Ordering::Relaxed);
        Ok(())
    }

    /// Schedules a flush for a second of this clock, in place of a pending one.
    pub fn flush_at(&self, seconds: u32) {
        let _guard = self.flushing.lock();
        self.due_seconds.store(seconds.min(NOT_DUE - 1), Ordering::Relaxed);
    }

    /// Flushes since the oldest item in memory was written, at most.
    pub fn outstanding(&self) -> u64 {
        // In this order: a flush that comes between the two is swept at most afterwards.
        let swept = self.swept.load(Ordering::Acquire);
        self.flushes.load(Ordering::Acquire) - swept
    }

    /// Waits, at most for the duration of a batch, until no worker can write items of an older
    /// flush count than the current one, and returns that. The caller then removes every dead item
    /// and calls [`Clock::end_sweep`].
    pub fn begin_sweep(&self) -> u64 {
        let target = self.flushes.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        for worker in &self.workers {
            // Acquire pairs with the release in `end_batch`, and with the stores of later batches.
            while worker.0.load(Ordering::Acquire) < target {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
        target
    }

    /// Records that all items of flush counts before `target` are removed.
    pub fn end_sweep(&self, target: u64) {
        self.swept.fetch_max(target, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_op::Expiry;

    #[test]
    fn seconds_change_with_those_of_the_unix_time() {
        let time = |seconds, nanoseconds| Monotonic { seconds, nanoseconds };
        // The Unix second was 0.7 s old, so it ends 0.3 s from here.
        for (then, started) in
            [(time(5, 900_000_000), (5, 200_000_000)), (time(5, 100_000_000), (4, 400_000_000))]
        {
            let begun = then.less_ns(700_000_000);
            assert_eq!((begun.seconds, begun.nanoseconds), started);
            assert_eq!(then.seconds_since(begun), 0);
            let almost = time(begun.seconds + 1, begun.nanoseconds - 1);
            assert_eq!(almost.seconds_since(begun), 0);
            assert_eq!(time(begun.seconds + 1, begun.nanoseconds).seconds_since(begun), 1);
            assert_eq!(time(begun.seconds + 2, 999_999_999).seconds_since(begun), 2);
        }
    }

    #[test]
    fn an_older_item_dies_and_a_newer_one_lives() {
        let clock = Clock::new(1);
        let before = clock.begin_batch(0);
        clock.end_batch(0);
        clock.flush().unwrap();
        let after = clock.begin_batch(0);
        assert!(!after.is_live(Expiry::NEVER, before.generation));
        assert!(after.is_live(Expiry::NEVER, after.generation));
    }

    #[test]
    fn no_number_of_flushes_brings_an_item_back() {
        let clock = Clock::new(1);
        let written = clock.begin_batch(0).generation;
        clock.end_batch(0);
        let mut flushed = 0;
        while clock.flush().is_ok() {
            flushed += 1;
            assert!(!clock.now().is_live(Expiry::NEVER, written), "after {flushed} flushes");
        }
        assert_eq!(flushed, MAX_OUTSTANDING);
        let target = clock.begin_sweep();
        clock.end_sweep(target);
        assert_eq!(clock.flush(), Ok(()));
    }

    #[test]
    fn a_sweep_waits_for_a_batch_under_an_older_count() {
        let clock = Clock::new(2);
        clock.begin_batch(1);
        clock.flush().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sweep = scope.spawn(|| {
                let target = clock.begin_sweep();
                assert!(is_over.load(Ordering::SeqCst), "the batch was still running");
                target
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_over.store(true, Ordering::SeqCst);
            clock.end_batch(1);
            assert_eq!(sweep.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_delayed_flush_happens_when_due_and_is_replaced_by_a_later_one() {
        let clock = Clock::new(1);
        let generation = clock.now().generation;
        clock.flush_at(u32::MAX);
        assert_eq!(clock.now().generation, generation);
        clock.flush_at(clock.seconds());
        assert_ne!(clock.now().generation, generation);
        clock.flush_at(clock.seconds() + 100);
        clock.flush().unwrap();
        assert_eq!(clock.due_seconds.load(Ordering::Relaxed), NOT_DUE);
    }
}
