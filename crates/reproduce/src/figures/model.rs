//! Predicts throughput at thread counts that a machine lacks, from those with one and two threads.
//!
//! The model is a closed network of queues: each of `n` threads alternates between working by
//! itself for a time and using a shared resource that only one thread can have at a time (a lock,
//! or a cache line that another thread writes). Mean value analysis gives its throughput exactly if
//! service times are memoryless. Both times follow from two measurements, the throughput of one and
//! of two threads. The number of resources follows from the engine: one for a global lock, and
//! practically infinitely many for locks in buckets, so that at most two threads ever meet.
//!
//! The model leaves out memory bandwidth, a second socket, and threads that share a core. Where
//! these matter, it is an upper bound. It takes noise in the throughput of two threads for
//! contention, which many threads multiply. So each prediction has a band, which follows from the
//! errors of the two measurements.

use super::plan::{AT_LEAST, AT_MOST, IndexRun, PREDICTED, Panel, Shape};
use super::point::{AxisPosition, Point};
use super::rounds::{Estimate, Rounds, middle};
use super::scale_profile::ScaleProfile;

/// The thread counts that are predicted: those of the papers' machines, and some between.
const THREADS: [usize; 6] = [4, 8, 12, 16, 32, 64];

/// Engines whose threads all take one lock.
const ONE_LOCK: [&str; 2] = ["global-lock", "lru-cuckoo"];

/// The number of shared resources.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    One,
    /// An unlimited number of resources, so that two pairs of threads never compete for the same
    /// one.
    Spread,
}

/// The throughput of `threads` threads over that of one, where two threads have `of_two` times the
/// throughput of one.
fn speed_up(shared: Shared, of_two: f64, threads: usize) -> f64 {
    // With two threads, each operation takes longer by this part of its time.
    let lost = (2.0 / of_two - 1.0).max(0.0);
    match shared {
        Shared::Spread => threads as f64 / (1.0 + lost * (threads - 1) as f64),
        // The time lost exceeds the whole operation: contention makes the resource itself slower,
        // and threads have no work left that they could do meanwhile.
        Shared::One if lost >= 1.0 => {
            if threads == 1 {
                1.0
            } else {
                of_two
            }
        }
        Shared::One => {
            let service = lost.sqrt();
            let (mut queue, mut rate) = (0.0, 0.0);
            for present in 1..=threads {
                let response = service * (1.0 + queue);
                rate = present as f64 / (1.0 - service + response);
                queue = rate * response;
            }
            rate
        }
    }
}

fn find(points: &[Point], series: &str, threads: f64) -> Option<f64> {
    let is_it = |point: &&Point| point.series == series && point.place.number == threads;
    points.iter().find(is_it).map(|point| point.value)
}

/// The measured points, followed by the model's predictions for more threads. The model's inputs
/// are an engine's throughput on one thread, and the ratio of two threads to one, computed round by
/// round, so that a machine that is slow for a whole round affects only the first. The ends of a
/// band are the model's predictions for the ends of both inputs.
fn predict(rounds: &Rounds<Vec<Point>>) -> Vec<Point> {
    let mut shown = middle(rounds);
    let mut engines: Vec<String> = Vec::new();
    for point in &shown {
        if !engines.contains(&point.series) {
            engines.push(point.series.clone());
        }
    }
    let of_one = |engine: &String| rounds.map(|points| find(points, engine, 1.0));
    let of_two = |engine: &String| {
        rounds.map(|points| Some(find(points, engine, 2.0)? / find(points, engine, 1.0)?))
    };
    let of_one = Estimate::together(engines.iter().map(of_one).collect());
    let of_two = Estimate::together(engines.iter().map(of_two).collect());
    for (engine, (one, two)) in engines.iter().zip(of_one.into_iter().zip(of_two)) {
        let Some((one, two)) = one.zip(two) else { continue };
        let shared = if ONE_LOCK.contains(&engine.as_str()) { Shared::One } else { Shared::Spread };
        let rate =
            |one: f64, two: f64, threads| one.max(0.0) * speed_up(shared, two.max(0.0), threads);
        let ([least, most], [least_of_two, most_of_two]) = (one.ends(), two.ends());
        // Predictions begin at two threads, so that their lines begin where the measured ones end.
        for threads in [2].into_iter().chain(THREADS) {
            let value = rate(one.value, two.value, threads);
            let ends = [rate(least, least_of_two, threads), rate(most, most_of_two, threads)];
            // The band need not be symmetric: its farther end counts.
            let farther = (value - ends[0]).max(ends[1] - value) / value;
            let spread = Some(farther).filter(|part| part.is_finite() && one.error.is_some());
            let point = |name: &str, value, spread| {
                let place = AxisPosition::number(threads as f64);
                Point { spread, ..Point::new(format!("{engine}{name}"), place, value) }
            };
            shown.push(point(PREDICTED, value, spread));
            shown.push(point(AT_LEAST, ends[0], None));
            shown.push(point(AT_MOST, ends[1], None));
        }
    }
    // The points of a series must be adjacent.
    shown.sort_by_key(|point| engines_order(&engines, &point.series));
    shown
}

/// The key that orders series: the measured ones first, then those predicted for each engine.
fn engines_order(engines: &[String], series: &str) -> (usize, usize) {
    let kinds = ["", PREDICTED, AT_LEAST, AT_MOST];
    for (kind, end) in kinds.iter().enumerate().rev() {
        let engine = series.strip_suffix(end).unwrap_or_default();
        if let Some(engine) = engines.iter().position(|one| one == engine) {
            return if kind == 0 { (0, engine) } else { (1 + engine, kind) };
        }
    }
    (usize::MAX, 0)
}

/// A panel of throughput by threads: what `runs` measures at each thread count of this machine, and
/// the model's prediction for more threads.
pub fn panel(profile: &ScaleProfile, runs: impl Fn() -> IndexRun) -> Panel {
    let threads = profile.threads().into_iter();
    let run = |threads: usize| {
        runs().with(format!("--threads={threads}")).rates_at(AxisPosition::number(threads as f64))
    };
    Panel {
        x: "threads",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: threads.map(run).collect(),
        predict: Some(predict),
        ..Panel::default()
    }
}

/// How the setting of a predicted figure differs from the paper's.
pub fn about(profile: &ScaleProfile, keys: u64) -> String {
    format!(
        "{} Beyond two threads the lines are a model's, fitted at one and two: threads that meet \
         at one lock, or in pairs at locks of buckets; without limits of memory or sockets. At \
         least and at most are its answers to the least and the most that one thread's \
         throughput, and how many times that two have, may be by their rounds. Where they lie \
         far apart, one and two threads do not determine what many do: then the line between \
         them says nothing, and a printed number within the band is neither reached nor missed. \
         scripts/large-machine measures instead, where there are cores.",
        profile.about(keys, profile.threads_up_to(2))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_two_threads_are_met() {
        for of_two in [0.7, 1.0, 1.3, 1.7, 1.99, 2.0] {
            for shared in [Shared::One, Shared::Spread] {
                assert!((speed_up(shared, of_two, 1) - 1.0).abs() < 1e-9, "{shared:?} {of_two}");
                let two = speed_up(shared, of_two, 2);
                assert!((two - of_two).abs() < 1e-9, "{shared:?}: {two} of {of_two}");
            }
        }
    }

    /// A network simulated event by event says what the analysis says.
    #[test]
    fn one_lock_saturates_as_in_a_simulation() {
        let of_two = 1.6;
        let service = (2.0f64 / of_two - 1.0).sqrt();
        for threads in [4, 12, 64] {
            let simulated = simulate(1.0 - service, service, threads);
            let predicted = speed_up(Shared::One, of_two, threads);
            let error = (predicted / simulated - 1.0).abs();
            assert!(error < 0.02, "{threads}: {predicted} and {simulated}");
        }
        assert!(speed_up(Shared::One, of_two, 64) <= 1.0 / service + 1e-9);
    }

    /// Throughput of threads that think and then queue for one server, both times exponential.
    fn simulate(think: f64, service: f64, threads: usize) -> f64 {
        let mut state = 1u64;
        let mut exponential = |mean: f64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let uniform = ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            -mean * uniform.ln()
        };
        // When each thread comes to the server; it serves in the order of arrival.
        let mut arrivals: Vec<f64> = (0..threads).map(|_| exponential(think)).collect();
        let mut free_at = 0.0f64;
        let operations = 300_000;
        for _ in 0..operations {
            let first = (0..threads).min_by(|a, b| arrivals[*a].total_cmp(&arrivals[*b]));
            let thread = first.expect("a thread");
            free_at = free_at.max(arrivals[thread]) + exponential(service);
            arrivals[thread] = free_at + exponential(think);
        }
        f64::from(operations) / free_at
    }

    /// Rounds of one and of two threads, two to a pass.
    fn rounds(one: [f64; 4], two: [f64; 4]) -> Rounds<Vec<Point>> {
        let point = |threads, value| Point::new("mercury", AxisPosition::number(threads), value);
        let round = |at: usize| vec![point(1.0, one[at]), point(2.0, two[at])];
        Rounds(vec![vec![round(0), round(1)], vec![round(2), round(3)]])
    }

    fn at<'a>(shown: &'a [Point], series: &str, threads: f64) -> &'a Point {
        let is_it = |point: &&Point| point.series == series && point.place.number == threads;
        shown.iter().find(is_it).expect("it is shown")
    }

    #[test]
    fn what_is_predicted_stands_in_the_band_of_what_it_is_fitted_to() {
        let shown = predict(&rounds([9.8, 10.2, 10.1, 9.9], [18.8, 19.2, 19.1, 18.9]));
        // Four rounds: half of 0.4 and of what lies between 18.8 / 9.8 and 19.2 / 10.2, 1.43 times.
        let (off, ratio) = (0.2 * 1.43, f64::midpoint(19.1 / 10.1, 18.9 / 9.9));
        let ratio_off = (18.8 / 9.8 - 19.2 / 10.2) / 2.0 * 1.43;
        let rate = |one: f64, two: f64| one * 12.0 / (1.0 + 11.0 * (2.0 / two - 1.0).max(0.0));
        let ends = [rate(10.0 - off, ratio - ratio_off), rate(10.0 + off, ratio + ratio_off)];
        let value = |series| at(&shown, series, 12.0).value;
        assert!((value("mercury, predicted") - rate(10.0, ratio)).abs() < 1e-9);
        assert!((value("mercury, at least") - ends[0]).abs() < 1e-9, "{shown:?}");
        assert!((value("mercury, at most") - ends[1]).abs() < 1e-9, "{shown:?}");
        // All of the band is within its error.
        let spread = at(&shown, "mercury, predicted", 12.0).spread.expect("a band");
        let farther = (ends[1] - value("mercury, predicted")) / value("mercury, predicted");
        assert!(spread >= farther && spread < 1.0, "{spread} and {farther}");
        assert_eq!(at(&shown, "mercury, at least", 12.0).spread, None);
        assert_eq!(at(&shown, "mercury", 2.0).value, 19.0);
    }

    #[test]
    fn noise_of_two_threads_makes_the_band_of_many_wide() {
        // The machine had half of its pace for a whole pass: one and two threads both did.
        let slow = predict(&rounds([10.0, 10.1, 5.0, 5.1], [19.0, 19.1, 9.5, 9.6]));
        let width = |shown: &[Point], threads| {
            at(shown, "mercury, at most", threads).value
                / at(shown, "mercury, at least", threads).value
        };
        // Two threads got a part of a core in a pass, and all of two in the other.
        let torn = predict(&rounds([10.0, 10.0, 10.0, 10.0], [14.0, 14.2, 20.0, 19.8]));
        assert!(width(&torn, 64.0) > 10.0 && width(&torn, 64.0) > 4.0 * width(&torn, 2.0));
        let of_two = |shown: &[Point]| width(shown, 64.0) / width(shown, 2.0);
        assert!(of_two(&slow) < of_two(&torn), "{} and {}", of_two(&slow), of_two(&torn));
        // Either pass by itself would have said another thing: both are in the band.
        for two in [14.0, 20.0] {
            let alone = 10.0 * speed_up(Shared::Spread, two / 10.0, 64);
            let ends = ["mercury, at least", "mercury, at most"].map(|end| at(&torn, end, 64.0));
            assert!(ends[0].value <= alone && alone <= ends[1].value, "{alone}");
        }
        // One core: nothing to fit, so nothing is said.
        let one = vec![Point::new("mercury", AxisPosition::number(1.0), 10.0)];
        assert_eq!(predict(&Rounds(vec![vec![one]])).len(), 1);
    }
}
