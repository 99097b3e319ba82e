//! How long commands take inside the server, by kind, from a sample of batches.
//!
//! All requests of a batch are answered together. So the duration of the batch, from when its
//! worker takes the requests until their answers are handed to the system, is the latency of each
//! of them. It does not include the time that a request waited in its socket or behind an earlier
//! batch.
//!
//! Invariants:
//! 1. A worker reads the clock twice in a sampled iteration of its loop, and never in another.
//! 2. A histogram is written by one worker with plain loads and stores.

use std::time::Instant;

use crate::metrics::counters::{Counter, Counters};

/// One iteration of a worker's loop in this number is timed, on average.
const ITERATIONS_PER_SAMPLE: u32 = 8;

/// Upper bounds of the buckets, inclusive, in nanoseconds. One more bucket counts what took longer.
pub const BOUNDS_NS: [u64; 17] = [
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

/// The kinds of commands that are measured separately.
pub const COMMANDS: [&str; 5] = ["get", "set", "delete", "arithmetic", "touch"];

/// The number of commands counted so far, by kind.
fn by_command(counters: &Counters) -> [u64; COMMANDS.len()] {
    let sum = |of: &[&Counter]| of.iter().map(|counter| counter.get()).sum();
    let Counters { incr_hits, incr_misses, decr_hits, decr_misses, .. } = counters;
    [
        counters.cmd_get.get(),
        counters.cmd_set.get(),
        sum(&[&counters.delete_hits, &counters.delete_misses]),
        sum(&[incr_hits, incr_misses, decr_hits, decr_misses]),
        counters.cmd_touch.get(),
    ]
}

#[derive(Default)]
struct Buckets {
    counts: [Counter; BOUNDS_NS.len() + 1],
    sum_ns: Counter,
}

/// One worker's histograms, in the order of [`COMMANDS`]. Written by that worker only.
#[derive(Default)]
#[repr(align(128))]
pub struct Latencies([Buckets; COMMANDS.len()]);

/// The histogram of one kind of commands, over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Commands by bucket, in the order of [`BOUNDS_NS`].
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// The sum of their latencies in nanoseconds; wraps.
    pub sum_ns: u64,
}

impl Latencies {
    fn record(&self, command: usize, duration_ns: u64, count: u64) {
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < duration_ns);
        self.0[command].counts[bucket].add(count);
        self.0[command].sum_ns.add(duration_ns.wrapping_mul(count));
    }

    /// Adds this worker's histograms to `sums`.
    pub fn add_to(&self, sums: &mut [Histogram; COMMANDS.len()]) {
        for (buckets, sum) in self.0.iter().zip(sums) {
            for (counter, count) in buckets.counts.iter().zip(&mut sum.counts) {
                *count += counter.get();
            }
            sum.sum_ns = sum.sum_ns.wrapping_add(buckets.sum_ns.get());
        }
    }
}

/// An iteration that is being timed.
pub struct Lap {
    start: Instant,
    before: [u64; COMMANDS.len()],
}

/// Chooses the iterations of one worker that are timed.
#[derive(Default)]
pub struct Stopwatch {
    iterations_left: u32,
    state: u32,
}

impl Stopwatch {
    /// Starts a lap at the start of an iteration, if it is to be timed.
    #[inline]
    pub fn start(&mut self, counters: &Counters) -> Option<Lap> {
        if self.iterations_left > 0 {
            self.iterations_left -= 1;
            return None;
        }
        // Pseudo-random steps, so that periodic clients do not bias the sample.
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.iterations_left = (self.state >> 16) % (2 * ITERATIONS_PER_SAMPLE - 1);
        Some(Lap { start: Instant::now(), before: by_command(counters) })
    }
}

impl Lap {
    /// Ends the lap after the answers were sent: records its duration for each command counted
    /// since the start.
    pub fn end(self, counters: &Counters, latencies: &Latencies) {
        let elapsed = self.start.elapsed().as_nanos();
        let duration_ns = u64::try_from(elapsed).unwrap_or(u64::MAX);
        for (command, count) in by_command(counters).into_iter().enumerate() {
            let count = count.wrapping_sub(self.before[command]);
            if count > 0 {
                latencies.record(command, duration_ns, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_lap_fall_into_one_bucket() {
        let latencies = Latencies::default();
        let mut stopwatch = Stopwatch::default();
        let counters = Counters::default();
        counters.cmd_get.add(5);
        let lap = stopwatch.start(&counters).expect("the first iteration is timed");
        counters.cmd_get.add(3);
        counters.delete_misses.add(2);
        lap.end(&counters, &latencies);
        let mut sums = <[Histogram; COMMANDS.len()]>::default();
        latencies.add_to(&mut sums);
        assert!(sums[0].sum_ns > 0);
        let totals = sums.map(|histogram| histogram.counts.iter().sum::<u64>());
        assert_eq!(totals, [3, 0, 2, 0, 0]);
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let latencies = Latencies::default();
        for duration_ns in [0, 5_000, 5_001, 1_000_000_000, 1_000_000_001, u64::MAX] {
            latencies.record(1, duration_ns, 1);
        }
        let mut sums = <[Histogram; COMMANDS.len()]>::default();
        latencies.add_to(&mut sums);
        let counts = &sums[1].counts;
        assert_eq!((counts[0], counts[1]), (2, 1));
        assert_eq!((counts[16], counts[17]), (1, 2));
    }

    #[test]
    fn one_iteration_in_eight_is_timed() {
        let mut stopwatch = Stopwatch::default();
        let counters = Counters::default();
        let timed = (0..80_000).filter(|_| stopwatch.start(&counters).is_some()).count();
        assert!((9_000..11_000).contains(&timed), "{timed}");
    }
}
