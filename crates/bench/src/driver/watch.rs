//! Throughput over time, and what an expansion costs of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::driver::config::{Limit, RunConfig};
use crate::driver::requests::Progress;
use crate::measure::Spread;
use crate::target::Target;

/// Time between two samples.
const SAMPLE: Duration = Duration::from_millis(5);

/// Time between two checks whether a round is over, where nothing is sampled.
const NAP: Duration = Duration::from_millis(50);

/// The width in seconds of a point of the timeline.
pub const POINT_SECONDS: f64 = 0.1;

/// The least number of samples of a stretch whose throughput counts.
const SHORTEST_STRETCH: usize = 4;

/// Throughput over the time of a round; empty for a round that was not sampled.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    operations: u64,
    is_expanding: bool,
}

/// Consecutive samples during all of which the table expanded, or during all of which it did not.
struct Stretch {
    is_expanding: bool,
    samples: usize,
    seconds: f64,
    operations: u64,
}

impl Stretch {
    fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

impl Watch {
    /// Operations a second while the table expanded (`true`) or did not (`false`). `None` if no
    /// sample was of that kind.
    pub fn rate(&self, is_expanding: bool) -> Option<f64> {
        let stretches = self.stretches();
        let chosen = stretches.iter().filter(|stretch| stretch.is_expanding == is_expanding);
        let (operations, seconds) = chosen.fold((0, 0.0), |(operations, seconds), stretch| {
            (operations + stretch.operations, seconds + stretch.seconds)
        });
        (seconds > 0.0).then(|| operations as f64 / seconds)
    }

    /// The median over expansions of throughput during one over the mean of that right before and
    /// right after it. Tables of different sizes differ in speed, so only neighbours are compared.
    pub fn expansion_ratio(&self) -> Option<f64> {
        self.median_over(|before, after| (before + after) / 2.0)
    }

    /// The median over expansions of throughput during one over that of the same table right before
    /// it.
    pub fn expansion_ratio_to_before(&self) -> Option<f64> {
        self.median_over(|before, _| before)
    }

    /// The median over expansions of throughput during one over that right after it, when the table
    /// is twice as large.
    pub fn expansion_ratio_to_after(&self) -> Option<f64> {
        self.median_over(|_, after| after)
    }

    /// The median over expansions of throughput during one over `reference(before, after)`, a
    /// function of the throughput right before and right after it.
    fn median_over(&self, reference: impl Fn(f64, f64) -> f64) -> Option<f64> {
        let stretches = self.stretches();
        let long = |stretch: &&Stretch| stretch.samples >= SHORTEST_STRETCH;
        let ratios: Vec<f64> = stretches
            .windows(3)
            .filter(|three| three[1].is_expanding && three.iter().all(|one| long(&one)))
            .map(|three| three[1].rate() / reference(three[0].rate(), three[2].rate()))
            .collect();
        Spread::of(&ratios).map(|spread| spread.median)
    }

    /// Operations a second for each tenth of a second.
    pub fn timeline(&self) -> Vec<f64> {
        let mut points = Vec::new();
        let Some(mut from) = self.samples.first().copied() else { return points };
        for sample in &self.samples {
            if sample.seconds - from.seconds >= POINT_SECONDS - 1e-6 {
                let operations = sample.operations - from.operations;
                points.push((operations as f64 / (sample.seconds - from.seconds)).round());
                from = *sample;
            }
        }
        points
    }

    fn stretches(&self) -> Vec<Stretch> {
        let mut stretches: Vec<Stretch> = Vec::new();
        for pair in self.samples.windows(2) {
            let [from, to] = pair else { continue };
            // An expansion began or ended within the sample, so it belongs to neither kind.
            if from.is_expanding != to.is_expanding {
                continue;
            }
            let is_new = stretches.last().is_none_or(|last| last.is_expanding != to.is_expanding);
            if is_new {
                let is_expanding = to.is_expanding;
                stretches.push(Stretch { is_expanding, samples: 0, seconds: 0.0, operations: 0 });
            }
            if let Some(last) = stretches.last_mut() {
                last.samples += 1;
                last.seconds += to.seconds - from.seconds;
                last.operations += to.operations - from.operations;
            }
        }
        stretches
    }
}

/// Waits until the round is over. Takes samples if the run's configuration asks for them, and sets
/// `is_shifted` when half of the time is over.
pub fn watch<S: Target>(
    target: &S,
    config: &RunConfig<'_>,
    progress: &[Progress],
    is_shifted: &AtomicBool,
    is_done: impl Fn() -> bool,
) -> Watch {
    let started = Instant::now();
    let end = match config.limit {
        Limit::Time(time) => time,
        Limit::Operations(_) => Duration::MAX,
    };
    let nap = if config.is_watched { SAMPLE } else { NAP };
    let mut watch = Watch::default();
    while started.elapsed() < end && !is_done() {
        if config.is_watched {
            let done = progress.iter().map(|one| one.operations.load(Ordering::Relaxed)).sum();
            watch.samples.push(Sample {
                seconds: started.elapsed().as_secs_f64(),
                operations: done,
                is_expanding: target.statistics().is_expanding,
            });
        }
        if started.elapsed() >= end / 2 {
            is_shifted.store(true, Ordering::Relaxed);
        }
        std::thread::sleep(nap.min(end.saturating_sub(started.elapsed())));
    }
    watch
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of 10 ms; `(count, operations a sample, expanding)`.
    fn watched(parts: &[(usize, u64, bool)]) -> Watch {
        let mut watch = Watch::default();
        let mut operations = 0;
        for (count, rate, is_expanding) in parts {
            for _ in 0..*count {
                let seconds = watch.samples.len() as f64 / 100.0;
                watch.samples.push(Sample { seconds, operations, is_expanding: *is_expanding });
                operations += rate;
            }
        }
        watch
    }

    #[test]
    fn expansions_are_compared_with_their_neighbours() {
        let watch = watched(&[(20, 1000, false), (20, 900, true), (20, 1250, false)]);
        let is_about = |ratio: Option<f64>, expected: f64| {
            let ratio = ratio.expect("one expansion");
            assert!((ratio - expected).abs() < 1e-9, "{ratio}");
        };
        is_about(watch.expansion_ratio(), 0.8);
        is_about(watch.expansion_ratio_to_before(), 0.9);
        is_about(watch.expansion_ratio_to_after(), 0.72);
        assert!((watch.rate(true).expect("some") - 90_000.0).abs() < 1.0);
        assert!((watch.rate(false).expect("some") - 112_500.0).abs() < 200.0);
    }

    #[test]
    fn nothing_is_said_of_what_was_not_seen() {
        assert_eq!(Watch::default().expansion_ratio(), None);
        assert!(Watch::default().timeline().is_empty());
        let blink = watched(&[(20, 1000, false), (2, 900, true), (20, 1000, false)]);
        assert_eq!(blink.expansion_ratio(), None);
        assert_eq!(watched(&[(20, 1000, false)]).rate(true), None);
    }

    #[test]
    fn the_timeline_has_ten_points_a_second() {
        let points = watched(&[(101, 1000, false)]).timeline();
        assert_eq!(points.len(), 10);
        assert!(points.iter().all(|point| (*point - 100_000.0).abs() < 1.0), "{points:?}");
    }
}
