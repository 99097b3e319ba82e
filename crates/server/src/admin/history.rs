//! The history for the charts of the live page: the last minutes in seconds, the last day in
//! minutes, both in bounded memory (about 200 kB).

use std::collections::VecDeque;
use std::time::Instant;

use amalgam_index::Store;
use serde_json::{Value, json};

use crate::metrics::latency::{BOUNDS_NS, COMMANDS, Histogram};
use crate::report::general::cpu_seconds;
use crate::state::server_state::ServerState;

/// Points of one second that are kept: five minutes and the current second.
const SECONDS: usize = 301;

/// Points of one minute that are kept: a day and the current minute.
const MINUTES: usize = 24 * 60 + 1;

/// Calls of [`History::record`], one a second, for a point of one minute.
const SECONDS_PER_MINUTE: usize = 60;

type Buckets = [u64; BOUNDS_NS.len() + 1];

/// Cumulative counts at one moment, and how many connections were open then.
#[derive(Clone, Debug)]
struct Sums {
    at: Instant,
    commands: u64,
    gets: u64,
    sets: u64,
    get_hits: u64,
    get_misses: u64,
    evictions: u64,
    received_bytes: u64,
    sent_bytes: u64,
    cpu_seconds: f64,
    connections: u64,
    durations: Buckets,
}

/// The rates between two moments. A ratio or quantile is None if there was no request.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    commands_per_second: f64,
    gets_per_second: f64,
    sets_per_second: f64,
    /// All commands but gets and sets.
    others_per_second: f64,
    evictions_per_second: f64,
    received_bytes_per_second: f64,
    sent_bytes_per_second: f64,
    /// Cores that were busy on average.
    cpu_cores: f64,
    /// Connections that were open at the end.
    connections: f64,
    hit_ratio: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

/// The columns of a history, by their names in JSON.
type Column = (&'static str, fn(&Point) -> Option<f64>);
const COLUMNS: [Column; 12] = [
    ("commands_per_second", |point| Some(point.commands_per_second)),
    ("gets_per_second", |point| Some(point.gets_per_second)),
    ("sets_per_second", |point| Some(point.sets_per_second)),
    ("others_per_second", |point| Some(point.others_per_second)),
    ("evictions_per_second", |point| Some(point.evictions_per_second)),
    ("received_bytes_per_second", |point| Some(point.received_bytes_per_second)),
    ("sent_bytes_per_second", |point| Some(point.sent_bytes_per_second)),
    ("cpu_cores", |point| Some(point.cpu_cores)),
    ("connections", |point| Some(point.connections)),
    ("hit_ratio", |point| point.hit_ratio),
    ("p50_us", |point| point.p50_us),
    ("p99_us", |point| point.p99_us),
];

/// The last points of one length.
struct Points {
    capacity: usize,
    /// Calls of [`Points::record`] for one point, and so its seconds.
    calls_per_point: usize,
    /// Calls since `before`.
    calls: usize,
    before: Option<Sums>,
    points: VecDeque<Point>,
}

impl Points {
    const fn new(capacity: usize, calls_per_point: usize) -> Self {
        Self { capacity, calls_per_point, calls: 0, before: None, points: VecDeque::new() }
    }

    fn record(&mut self, sums: &Sums) {
        self.calls += 1;
        if self.calls < self.calls_per_point && self.before.is_some() {
            return;
        }
        self.calls = 0;
        if let Some(before) = &self.before {
            if self.points.len() == self.capacity {
                self.points.pop_front();
            }
            self.points.push_back(sums.since(before));
        }
        self.before = Some(sums.clone());
    }

    fn to_json(&self) -> Value {
        let mut json = json!({
            "capacity": self.capacity,
            "seconds_per_point": self.calls_per_point,
        });
        for (name, of) in COLUMNS {
            json[name] = self.points.iter().map(|point| of(point).map(rounded)).collect();
        }
        json
    }
}

/// The last minutes, one point a second, and the last day, one point a minute.
pub struct History {
    minutes: Points,
    day: Points,
}

impl Default for History {
    fn default() -> Self {
        Self { minutes: Points::new(SECONDS, 1), day: Points::new(MINUTES, SECONDS_PER_MINUTE) }
    }
}

impl History {
    /// Adds a point for the time since the last call, which was a second ago, and one for the last
    /// minute if it is over.
    pub fn record<S: Store>(&mut self, state: &ServerState<S>) {
        let sums = Sums::take(state);
        self.minutes.record(&sums);
        self.day.record(&sums);
    }

    /// The requests a second over the seconds for which hot keys are counted; None before the first
    /// is over.
    pub fn recent_rate(&self) -> Option<f64> {
        let recent = self.minutes.points.iter().rev().take(amalgam_sketch::SECONDS);
        let count = recent.len();
        let sum: f64 = recent.map(|point| point.commands_per_second).sum();
        (count > 0).then(|| sum / count as f64)
    }

    /// The last minutes as JSON, one array for each column, oldest first.
    pub fn minutes(&self) -> Value {
        self.minutes.to_json()
    }

    /// The last day as JSON, one array for each column, oldest first.
    pub fn day(&self) -> Value {
        self.day.to_json()
    }
}

/// Rounds to four decimals, which is exact enough for a chart and short in JSON.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

impl Sums {
    fn take<S: Store>(state: &ServerState<S>) -> Self {
        let counts = state.counters.totals();
        let (user, system) = cpu_seconds();
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
            gets: counts.cmd_get,
            sets: counts.cmd_set,
            get_hits: counts.get_hits,
            get_misses: counts.get_misses,
            evictions: state.index.statistics().evictions,
            received_bytes: counts.bytes_read,
            sent_bytes: counts.bytes_written,
            cpu_seconds: user + system,
            connections: state.counters.connections(),
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
        let others = |sums: &Self| sums.commands.saturating_sub(sums.gets + sums.sets);
        Point {
            commands_per_second: per_second(self.commands, before.commands),
            gets_per_second: per_second(self.gets, before.gets),
            sets_per_second: per_second(self.sets, before.sets),
            others_per_second: per_second(others(self), others(before)),
            evictions_per_second: per_second(self.evictions, before.evictions),
            cpu_cores: (self.cpu_seconds - before.cpu_seconds).max(0.0) / seconds,
            connections: self.connections as f64,
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
            gets: 0,
            sets: 0,
            get_hits: 0,
            get_misses: 0,
            evictions: 0,
            received_bytes: 0,
            sent_bytes: 0,
            cpu_seconds: 0.0,
            connections: 0,
            durations: Buckets::default(),
        }
    }

    #[test]
    fn a_point_holds_rates_between_two_moments() {
        let before = sums(Instant::now());
        let mut after = sums(before.at + Duration::from_secs(2));
        (after.commands, after.gets, after.sets) = (100, 40, 20);
        (after.evictions, after.connections, after.cpu_seconds) = (6, 9, 3.0);
        (after.get_hits, after.get_misses) = (30, 10);
        after.durations[1] = 10;
        let point = after.since(&before);
        assert_eq!(point.commands_per_second, 50.0);
        assert_eq!([point.gets_per_second, point.sets_per_second], [20.0, 10.0]);
        assert_eq!(point.others_per_second, 20.0);
        assert_eq!([point.evictions_per_second, point.cpu_cores], [3.0, 1.5]);
        assert_eq!(point.connections, 9.0);
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
        let mut history = History::default();
        (0..4).for_each(|_| history.minutes.record(&sums(Instant::now())));
        let json = history.minutes();
        assert_eq!(json["hit_ratio"], json!([null, null, null]));
        assert_eq!(json["commands_per_second"], json!([0.0, 0.0, 0.0]));
        assert_eq!(json["seconds_per_point"], json!(1));
    }

    #[test]
    fn a_point_of_the_day_covers_its_minute_and_the_oldest_go() {
        let mut day = Points::new(3, SECONDS_PER_MINUTE);
        let mut now = sums(Instant::now());
        for second in 0..=5 * SECONDS_PER_MINUTE {
            day.record(&now);
            now.at += Duration::from_secs(1);
            // A command a second in the first minute, two in the second, and so on.
            now.commands += 1 + (second / SECONDS_PER_MINUTE) as u64;
        }
        let rates: Vec<f64> = day.points.iter().map(|point| point.commands_per_second).collect();
        assert_eq!(rates, [3.0, 4.0, 5.0]);
    }
}
