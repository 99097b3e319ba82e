//! Latencies of single operations, and the pauses among them.

use std::hint::black_box;
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::measure::thread_cpu_ns;

/// Longer latencies count as this one.
const LONGEST_NS: u64 = 100_000_000_000;

/// Times operations one by one, on the wall and by the thread's CPU clock.
///
/// Reading both clocks costs some 300 ns and keeps operations from overlapping, so this belongs
/// into a pass of its own; [`time_null_loop`] tells what the same readings give for no operation.
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
    /// Before the first operation, and wherever the caller did something else in between.
    #[inline]
    pub fn start(&mut self) {
        self.cpu_before = thread_cpu_ns();
        self.started = Instant::now();
    }

    /// The next operation should have begun at `due`, and counts from there.
    #[inline]
    pub fn start_at(&mut self, due: Instant) {
        self.cpu_before = thread_cpu_ns();
        self.started = due;
    }

    /// After a call that carried out `operations`, each of which took as long as the call. Starts
    /// the next one.
    #[inline]
    pub fn lap(&mut self, operations: u64) {
        let wall = self.started.elapsed().as_nanos() as u64;
        let cpu = thread_cpu_ns();
        self.longest_cpu_ns = self.longest_cpu_ns.max(cpu.saturating_sub(self.cpu_before));
        self.wall.saturating_record(wall.max(1));
        if operations > 1 {
            // Cannot fail: what saturating_record took is in range.
            let _ = self.wall.record_n(wall.clamp(1, LONGEST_NS), operations - 1);
        }
        self.cpu_before = cpu;
        self.started = Instant::now();
    }

    /// Adds what another thread timed.
    pub fn merge(&mut self, other: &Self) {
        // Cannot fail: the bounds are the same.
        let _ = self.wall.add(&other.wall);
        self.longest_cpu_ns = self.longest_cpu_ns.max(other.longest_cpu_ns);
    }

    /// The latency on the wall that a share of operations stays below, in nanoseconds.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.wall.value_at_quantile(share)
    }

    /// The longest operation on the wall, in nanoseconds.
    pub fn longest_wall_ns(&self) -> u64 {
        self.wall.max()
    }

    /// How many operations were timed.
    pub fn operations(&self) -> u64 {
        self.wall.len()
    }
}

/// Times `laps` operations that do nothing: what the machine and the clocks add by themselves.
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
