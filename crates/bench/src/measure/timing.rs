//! Latencies of single operations, and the pauses among them.

use std::hint::black_box;
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::measure::thread_cpu_ns;

/// The upper end of the histogram in nanoseconds; longer latencies count as this one.
const LONGEST_NS: u64 = 100_000_000_000;

/// A timer of single operations, by the wall clock and by the thread's CPU clock.
///
/// Reading both clocks costs about 300 ns and keeps operations from overlapping, so operations are
/// timed in a pass of their own; [`time_null_loop`] measures what the readings alone give.
pub struct Timing {
    wall: Histogram<u64>,
    /// The longest operation by the thread's CPU clock, in nanoseconds.
    pub longest_cpu_ns: u64,
    started: Instant,
    cpu_before: u64,
}

impl Default for Timing {
    fn default() -> Self {
        let wall = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds");
        Self { wall, longest_cpu_ns: 0, started: Instant::now(), cpu_before: thread_cpu_ns() }
    }
}

impl Timing {
    /// Starts the first operation; also called when the caller has done something else in between.
    #[inline]
    pub fn start(&mut self) {
        self.cpu_before = thread_cpu_ns();
        self.started = Instant::now();
    }

    /// Starts an operation that was due at `due`: its latency counts from then, so that a late
    /// start is included.
    #[inline]
    pub fn start_at(&mut self, due: Instant) {
        self.cpu_before = thread_cpu_ns();
        self.started = due;
    }

    /// Ends a call that executed `operations`, each of which is recorded with the time of the whole
    /// call, and starts the next one.
    #[inline]
    pub fn lap(&mut self, operations: u64) {
        let wall = self.started.elapsed().as_nanos() as u64;
        let cpu = thread_cpu_ns();
        self.longest_cpu_ns = self.longest_cpu_ns.max(cpu.saturating_sub(self.cpu_before));
        self.wall.saturating_record(wall.max(1));
        if operations > 1 {
            // Cannot fail: the latency is clamped to the histogram's bounds.
            let _ = self.wall.record_n(wall.clamp(1, LONGEST_NS), operations - 1);
        }
        self.cpu_before = cpu;
        self.started = Instant::now();
    }

    /// Adds the operations that another thread timed.
    pub fn merge(&mut self, other: &Self) {
        // Cannot fail: the bounds are the same.
        let _ = self.wall.add(&other.wall);
        self.longest_cpu_ns = self.longest_cpu_ns.max(other.longest_cpu_ns);
    }

    /// The latency by the wall clock, in nanoseconds, that a `share` (0 to 1) of operations stays
    /// below.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.wall.value_at_quantile(share)
    }

    /// The longest operation by the wall clock, in nanoseconds.
    pub fn longest_wall_ns(&self) -> u64 {
        self.wall.max()
    }

    /// The number of operations that were timed.
    pub fn operations(&self) -> u64 {
        self.wall.len()
    }
}

/// Times `laps` empty operations, which shows the share of the machine and the clocks in a latency.
pub fn time_null_loop(laps: u64) -> Timing {
    let mut timing = Timing::default();
    timing.start();
    for lap in 0..laps {
        black_box(lap);
        timing.lap(1);
    }
    timing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_counted_and_merged() {
        let mut timing = time_null_loop(1000);
        assert_eq!(timing.operations(), 1000);
        let mut other = Timing::default();
        other.start();
        std::thread::sleep(std::time::Duration::from_millis(5));
        other.lap(64);
        timing.merge(&other);
        assert_eq!(timing.operations(), 1064);
        assert!(timing.longest_wall_ns() >= 5_000_000);
        assert!(timing.quantile_ns(0.5) < 5_000_000);
        assert!(timing.quantile_ns(0.99) >= 4_900_000, "the slow call counts for all its keys");
    }
}
