//! The server's time and its flush generations.
//!
//! A `flush_all` does not scan: it counts up, and items of an older count are dead. An item keeps
//! six bits of the count, so dead items must be gone before the count comes round to them.
//!
//! Invariants of this room:
//! 1. Time never goes back and is never 0.
//! 2. Between [`Clock::begin_turn`] and [`Clock::end_turn`] a worker writes items of the count that
//!    it was given, and of no other.
//! 3. No item in memory lies more than [`MOST_OUTSTANDING`] counts behind: a flush that would break
//!    this is refused until a sweep has run ([`Clock::flush`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use amalgam_op::Now;
use rustix::time::{ClockId, clock_gettime};

/// Flushes that may lie between an item in memory and the present. [`Now::is_live`] tells 31 apart.
pub const MOST_OUTSTANDING: u64 = 30;

/// Outstanding flushes from which on a sweep is worth its scan.
pub const OUTSTANDING_WORTH_A_SWEEP: u64 = 8;

/// A worker that is in no turn.
const IDLE: u64 = u64::MAX;

/// No delayed flush waits.
const NOT_DUE: u32 = u32::MAX;

/// The clock starts here, so that second 1 is always over.
const FIRST_SECOND: u32 = 2;

/// A number on a cache line of its own, written by one worker.
#[repr(align(128))]
struct Seen(AtomicU64);

/// See the head of this module. Shared by all threads.
pub struct Clock {
    /// The monotonic time at which the Unix second began in which the clock was made.
    started: Monotonic,
    epoch_unix_seconds: i64,
    flushes: AtomicU64,
    /// Items in memory were written under this count or a later one.
    swept: AtomicU64,
    due_seconds: AtomicU32,
    /// Seconds that a test harness made pass.
    leap_seconds: AtomicU32,
    /// What each worker was given for its present turn.
    seen: Box<[Seen]>,
    /// Held to change `flushes` or `due_seconds`.
    flushing: Mutex<()>,
}

/// Why a flush did not happen: a sweep has to remove the dead of earlier ones first.
#[derive(Debug, PartialEq, Eq)]
pub struct NeedsSweep;

const SECOND_NS: i64 = 1_000_000_000;

/// A time of the system's monotonic clock, to a tick of some milliseconds.
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
    /// A clock for so many workers, starting now.
    pub fn new(workers: usize) -> Self {
        // Seconds change when those of the Unix time do: one server's end of an item is the same
        // moment to the next one, which reads it after a restart.
        let unix = clock_gettime(ClockId::RealtimeCoarse);
        Self {
            started: Monotonic::now().less_ns(unix.tv_nsec),
            epoch_unix_seconds: unix.tv_sec - i64::from(FIRST_SECOND),
            flushes: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            due_seconds: AtomicU32::new(NOT_DUE),
            leap_seconds: AtomicU32::new(0),
            seen: (0..workers).map(|_| Seen(AtomicU64::new(IDLE))).collect(),
            flushing: Mutex::new(()),
        }
    }

    /// Seconds since [`Now::epoch_unix_seconds`].
    pub fn seconds(&self) -> u32 {
        let passed = Monotonic::now().seconds_since(self.started);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX - FIRST_SECOND) + FIRST_SECOND;
        passed.saturating_add(self.leap_seconds.load(Ordering::Relaxed))
    }

    /// Lets seconds pass at once, for a test harness.
    pub fn leap(&self, seconds: u32) {
        let add = |leap: u32| Some(leap.saturating_add(seconds));
        // Fails never: the closure always has an answer.
        let _ = self.leap_seconds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Seconds since the server started, counted from the beginning of the second in which it did.
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

    /// The present, for a thread that writes no items.
    pub fn now(&self) -> Now {
        self.flush_if_due();
        self.now_at(self.flushes.load(Ordering::Acquire))
    }

    /// The present, for a batch of `worker`, which then may write items until it calls
    /// [`Clock::end_turn`]. To be called after the requests of the batch were received.
    pub fn begin_turn(&self, worker: usize) -> Now {
        self.flush_if_due();
        let seen = &self.seen[worker].0;
        let mut flushes = self.flushes.load(Ordering::Acquire);
        loop {
            seen.store(flushes, Ordering::Relaxed);
            // Pairs with the fence in `wait_for_older_turns`: either that thread sees what we
            // stored, or we see its count and store that.
            fence(Ordering::SeqCst);
            let again = self.flushes.load(Ordering::Acquire);
            if again == flushes {
                return self.now_at(flushes);
            }
            flushes = again;
        }
    }

    /// The worker writes no more under what [`Clock::begin_turn`] gave it.
    pub fn end_turn(&self, worker: usize) {
        // Release: the items it wrote are visible to a sweep that sees it idle.
        self.seen[worker].0.store(IDLE, Ordering::Release);
    }

    fn flush_if_due(&self) {
        let due = self.due_seconds.load(Ordering::Relaxed);
        if due != NOT_DUE && self.seconds() >= due {
            let _guard = self.flushing.lock();
            if self.due_seconds.load(Ordering::Relaxed) == due && self.count_up().is_ok() {
                self.due_seconds.store(NOT_DUE, Ordering::Relaxed);
            }
        }
    }

    fn count_up(&self) -> Result<(), NeedsSweep> {
        if self.outstanding() >= MOST_OUTSTANDING {
            return Err(NeedsSweep);
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Kills every item written so far. A delayed flush that waits is forgotten, as in memcached.
    ///
    /// # Errors
    ///
    /// If the dead of earlier flushes must be swept first; see [`Clock::begin_sweep`].
    pub fn flush(&self) -> Result<(), NeedsSweep> {
        let _guard = self.flushing.lock();
        self.count_up()?;
        self.due_seconds.store(NOT_DUE, Ordering::Relaxed);
        Ok(())
    }

    /// Flushes once the time has come; replaces a delayed flush that waits.
    pub fn flush_at(&self, seconds: u32) {
        let _guard = self.flushing.lock();
        self.due_seconds.store(seconds.min(NOT_DUE - 1), Ordering::Relaxed);
    }

    /// How many flushes the oldest item in memory may lie behind.
    pub fn outstanding(&self) -> u64 {
        self.flushes.load(Ordering::Acquire) - self.swept.load(Ordering::Acquire)
    }

    /// Waits (a turn at most) until no worker can write items of an older count than the present
    /// one, which it returns. If every item that is dead then is removed afterwards, tell so with
    /// [`Clock::end_sweep`].
    pub fn begin_sweep(&self) -> u64 {
        let target = self.flushes.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        for seen in &self.seen {
            // Acquire pairs with the release in `end_turn`, and with later turns' stores.
            while seen.0.load(Ordering::Acquire) < target {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
        target
    }

    /// All items of counts before `target` are gone.
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
        let before = clock.begin_turn(0);
        clock.end_turn(0);
        clock.flush().unwrap();
        let after = clock.begin_turn(0);
        assert!(!after.is_live(Expiry::NEVER, before.generation));
        assert!(after.is_live(Expiry::NEVER, after.generation));
    }

    #[test]
    fn no_number_of_flushes_brings_an_item_back() {
        let clock = Clock::new(1);
        let written = clock.begin_turn(0).generation;
        clock.end_turn(0);
        let mut flushed = 0;
        while clock.flush().is_ok() {
            flushed += 1;
            assert!(!clock.now().is_live(Expiry::NEVER, written), "after {flushed} flushes");
        }
        assert_eq!(flushed, MOST_OUTSTANDING);
        let target = clock.begin_sweep();
        clock.end_sweep(target);
        assert_eq!(clock.flush(), Ok(()));
    }

    #[test]
    fn a_sweep_waits_for_a_turn_under_an_older_count() {
        let clock = Clock::new(2);
        clock.begin_turn(1);
        clock.flush().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sweep = scope.spawn(|| {
                let target = clock.begin_sweep();
                assert!(is_over.load(Ordering::SeqCst), "the turn was still writing");
                target
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_over.store(true, Ordering::SeqCst);
            clock.end_turn(1);
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
