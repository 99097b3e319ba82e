//! The history of the last minutes, one point a second, for the charts of the live page.

use std::collections::VecDeque;
use std::time::Instant;

use amalgam_index::Store;
use serde_json::{Value, json};

use crate::metrics::latency::{BOUNDS_NS, COMMANDS, Histogram};
use crate::state::server_state::ServerState;

/// Points kept: five minutes and the current second.
const CAPACITY: usize = 301;

type Buckets = [u64; BOUNDS_NS.len() + 1];

/// Cumulative counts at one moment.
#[derive(Clone, Debug)]
struct Sums {
    at: Instant,
    commands: u64,
    get_hits: u64,
    get_misses: u64,
    received_bytes: u64,
    sent_bytes: u64,
    durations: Buckets,
}

/// The rates between two moments. A ratio or quantile is None if there was no request.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    commands_per_second: f64,
    received_bytes_per_second: f64,
    sent_bytes_per_second: f64,
    hit_ratio: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

/// The last minutes, one point a second, in bounded memory.
#[derive(Default)]
pub struct History {
    before: Option<Sums>,
    points: VecDeque<Point>,
}

impl History {
    /// Adds a point for the time since the last call.
    pub fn record<S: Store>(&mut self, state: &ServerState<S>) {
        let sums = Sums::take(state);
        if let Some(before) = &self.before {
            if self.points.len() == CAPACITY {
                self.points.pop_front();
            }
            self.points.push_back(sums.since(before));
        }
        self.before = Some(sums);
    }

    /// The points as JSON, one array for each column, oldest first.
    pub fn to_json(&self) -> Value {
        let column = |of: fn(&Point) -> Option<f64>| -> Value {
            self.points.iter().map(|point| of(point).map(rounded)).collect()
        };
        json!({
            "capacity": CAPACITY,
            "commands_per_second": column(|point| Some(point.commands_per_second)),
            "received_bytes_per_second": column(|point| Some(point.received_bytes_per_second)),
            "sent_bytes_per_second": column(|point| Some(point.sent_bytes_per_second)),
            "hit_ratio": column(|point| point.hit_ratio),
            "p50_us": column(|point| point.p50_us),
            "p99_us": column(|point| point.p99_us),
        })
    }
}

/// Rounds to four decimals, which is exact enough for a chart and short in JSON.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

impl Sums {
    fn take<S: Store>(state: &ServerState<S>) -> Self {
        let counts = state.counters.totals();
        let mut histograms = <[Histogram; COMMANDS.len()]>::default();
        state.latencies.iter().for_each(|worker| worker.add_to(&mut histograms));
        let mut durations = Buckets::default();
        for histogram in &histograms {
            for (sum, count) in durations.iter_mut().zip(&histogram.counts) {
                *sum += count;
            }
        }
        Self {
            at: Instant::now(),
            commands: counts.commands(),
            get_hits: counts.get_hits,
            get_misses: counts.get_misses,
            received_bytes: counts.bytes_read,
            sent_bytes: counts.bytes_written,
            durations,
        }
    }

    fn since(&self, before: &Self) -> Point {
        // At least a millisecond, so that two calls at one instant do not divide by zero.
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let hits = self.get_hits.saturating_sub(before.get_hits);
        let gets = hits + self.get_misses.saturating_sub(before.get_misses);
        let mut durations = self.durations;
        for (count, then) in durations.iter_mut().zip(&before.durations) {
            *count = count.saturating_sub(*then);
        }
        let quantile_us = |part| quantile_ns(&durations, part).map(|duration| duration / 1e3);
        Point {
            commands_per_second: per_second(self.commands, before.commands),
            received_bytes_per_second: per_second(self.received_bytes, before.received_bytes),
            sent_bytes_per_second: per_second(self.sent_bytes, before.sent_bytes),
            hit_ratio: (gets > 0).then(|| hits as f64 / gets as f64),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
        }
    }
}

/// The quantile `part` in nanoseconds, interpolated within its bucket; None if all counts are 0. A
/// quantile above the last bound is reported as the last bound.
fn quantile_ns(counts: &Buckets, part: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = all as f64 * part;
    let (mut below, mut lower) = (0.0, 0.0);
    for (count, bound) in counts.iter().zip(BOUNDS_NS) {
        let (count, bound) = (*count as f64, bound as f64);
        if count > 0.0 && below + count >= wanted {
            return Some(lower + (bound - lower) * (wanted - below) / count);
        }
        below += count;
        lower = bound;
    }
    Some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sums(at: Instant) -> Sums {
        Sums {
            at,
            commands: 0,
            get_hits: 0,
            get_misses: 0,
            received_bytes: 0,
            sent_bytes: 0,
            durations: Buckets::default(),
        }
    }

    #[test]
    fn a_point_holds_rates_between_two_moments() {
        let before = sums(Instant::now());
        let mut after = sums(before.at + Duration::from_secs(2));
        after.commands = 100;
        (after.get_hits, after.get_misses) = (30, 10);
        after.durations[1] = 10;
        let point = after.since(&before);
        assert_eq!(point.commands_per_second, 50.0);
        assert_eq!(point.hit_ratio, Some(0.75));
        assert_eq!(point.p50_us, Some(7.5));
        let nothing = after.since(&after);
        assert_eq!((nothing.hit_ratio, nothing.p99_us), (None, None));
    }

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let mut counts = Buckets::default();
        (counts[0], counts[2], counts[17]) = (50, 49, 1);
        assert_eq!(quantile_ns(&counts, 0.5), Some(5_000.0));
        assert_eq!(quantile_ns(&counts, 0.99), Some(20_000.0));
        assert_eq!(quantile_ns(&counts, 1.0), Some(1e9));
    }

    #[test]
    fn missing_values_are_null() {
        let point = sums(Instant::now()).since(&sums(Instant::now()));
        let mut history = History::default();
        history.points.extend(std::iter::repeat_n(point, 3));
        let json = history.to_json();
        assert_eq!(json["hit_ratio"], json!([null, null, null]));
        assert_eq!(json["commands_per_second"], json!([0.0, 0.0, 0.0]));
    }
}
