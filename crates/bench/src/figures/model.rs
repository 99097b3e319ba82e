//! Throughput at thread counts that a machine lacks, predicted from those with one and two threads.
//!
//! The model is a closed network of queues: each of `n` threads goes round, working by itself for a
//! time and waiting for things that only one thread can have at a time (a lock, or a cache line
//! that somebody else writes). Mean value analysis gives its throughput exactly for service times
//! without memory. Both times follow from two measurements, the throughput of one and of two
//! threads; how many such things there are follows from the engine: one for a global lock, and more
//! than anybody can count for locks in buckets, so that only pairs of threads ever meet.
//!
//! What it leaves out: bandwidth of memory, a second socket, threads that share a core. They make
//! it an upper bound where they set in. What two threads differ by noise it takes for contention;
//! so each prediction stands between that of the unluckiest and of the luckiest rounds.

use super::plan::{
    Claim, Figure, IndexRun, LEAST, MOST, Panel, Paper, Place, Point, Reading, Shape,
};
use super::setting::Setting;

/// The thread counts of the papers' machines, and what lies between.
const THREADS: [usize; 6] = [4, 8, 12, 16, 32, 64];

/// Engines whose threads all take one lock.
const ONE_LOCK: [&str; 2] = ["global-lock", "lru-cuckoo"];

/// How many things threads wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    One,
    /// So many that no two queues of them are ever one.
    Spread,
}

/// Throughput of `threads`, in units of that of one, where two have `of_two`.
fn speed_up(shared: Shared, of_two: f64, threads: usize) -> f64 {
    // Two threads take this part of an operation longer than one, each.
    let lost = (2.0 / of_two - 1.0).max(0.0);
    match shared {
        Shared::Spread => threads as f64 / (1.0 + lost * (threads - 1) as f64),
        // More than all of the time: contention makes the thing itself slower, and there is nothing
        // left that threads could do meanwhile.
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

/// What was measured, and behind it what the model says of more threads.
fn predict(points: &[Point]) -> Vec<Point> {
    let is_end = |series: &str| series.ends_with(LEAST) || series.ends_with(MOST);
    let mut shown: Vec<Point> =
        points.iter().filter(|point| !is_end(&point.series)).cloned().collect();
    let mut engines: Vec<String> = Vec::new();
    for point in &shown {
        if !engines.contains(&point.series) {
            engines.push(point.series.clone());
        }
    }
    for engine in engines {
        let of = |end: &str, threads| find(points, &format!("{engine}{end}"), threads);
        let both = |first, second| Some((of(first, 1.0)?, of(second, 2.0)?));
        // The unluckiest: one thread at its best and two at their worst.
        let cases = [("", "", PREDICTED), (MOST, LEAST, ", at least"), (LEAST, MOST, ", at most")];
        let shared = if ONE_LOCK.contains(&engine.as_str()) { Shared::One } else { Shared::Spread };
        let rate = |(first, second), threads: usize| {
            let (one, two) = both(first, second)?;
            Some(one * speed_up(shared, two / one, threads))
        };
        for (first, second, name) in cases {
            let at = |threads: usize| {
                let value = rate((first, second), threads)?;
                let place = Place::number(threads as f64);
                let spread = match name == PREDICTED {
                    true => {
                        error(value, rate((MOST, LEAST), threads), rate((LEAST, MOST), threads))
                    }
                    false => None,
                };
                Some(Point { spread, ..Point::new(format!("{engine}{name}"), place, value) })
            };
            // From two on, so that the lines begin where what was measured ends.
            shown.extend([2].into_iter().chain(THREADS).filter_map(at));
        }
    }
    shown
}

/// What ends the names of series that are predicted.
const PREDICTED: &str = ", predicted";

/// How far a prediction may be off for the noise of what it was fitted to: half of its band, over
/// it. That the model itself may be wrong is not in it.
fn error(value: f64, at_least: Option<f64>, at_most: Option<f64>) -> Option<f64> {
    // Where few threads share little, the faster single thread of the unluckiest counts for more.
    let half = (at_most? - at_least?).abs() / 2.0;
    Some(half / value).filter(|part| part.is_finite())
}

/// One panel: `engines` by threads, each in turns at a count.
fn panel(setting: &Setting, runs: impl Fn() -> IndexRun) -> Panel {
    let threads = setting.threads().into_iter();
    let run = |threads: usize| {
        runs()
            .with(format!("--threads={threads}"))
            .at(Place::number(threads as f64), Reading::Spread(1e6))
    };
    Panel {
        x: "threads",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: threads.map(run).collect(),
        derive: Some(predict),
        ..Panel::default()
    }
}

/// What our settings say of all of these.
fn about(setting: &Setting, keys: u64) -> String {
    format!(
        "{} Beyond two threads the lines are a model's, fitted at one and two: threads that meet \
         at one lock, or in pairs at locks of buckets; without limits of memory or sockets. At \
         least and at most are its answers to the unluckiest and the luckiest rounds, and half \
         of what lies between them stands beside a predicted number as its error. \
         scripts/large-machine measures instead, where there are cores.",
        setting.about(keys, setting.threads_up_to(2))
    )
}

/// Mercury's figure 4 at the paper's 12 threads.
pub fn mercury(setting: &Setting) -> Figure {
    let keys = setting.keys(32_000_000, 200);
    let engines = ["mercury", "global-lock"];
    let mut claims = Vec::new();
    if setting.machine.cores > 1 {
        claims.push(Claim::ratio(
            "12 threads, times memcached, predicted",
            15.0,
            "mercury, predicted",
            "global-lock, predicted",
            "12",
        ));
    }
    Figure {
        paper: Paper::Mercury,
        name: "figure-4-model",
        title: "GET throughput at thread counts that this machine lacks",
        printed_setting: "32 million items of 8 + 8 bytes, 12 cores.",
        our_setting: about(setting, keys),
        panels: vec![panel(setting, || IndexRun::new(setting, &engines, "get", keys))],
        claims,
    }
}

/// MemC3's figure 5 at 12 threads.
pub fn memc3(setting: &Setting) -> Figure {
    let keys = setting.keys(6_290_000, 300).min(setting.choose(2_000, 780_000, 6_290_000));
    let run = || {
        IndexRun::new(setting, &["memc3", "global-lock"], "get", keys)
            .with_all("--key-bytes=16 --value-bytes=8")
    };
    let mut claims = Vec::new();
    if setting.machine.cores > 1 {
        claims.push(Claim::value(
            "million look-ups a second, 12 threads, predicted",
            35.0,
            "memc3, predicted",
            "12",
        ));
    }
    Figure {
        paper: Paper::MemC3,
        name: "figure-5-model",
        title: "look-ups at thread counts that this machine lacks",
        printed_setting: "16-byte keys, 12 cores: 35 million a second on 12 threads, 5 on one.",
        our_setting: about(setting, keys),
        panels: vec![panel(setting, run)],
        claims,
    }
}

/// HotRing's figure 10 at 64 threads.
pub fn hotring(setting: &Setting) -> Figure {
    let keys = setting.keys(250_000_000, 120);
    let engines = ["hotring-s", "hotring-r", "chaining"];
    let run = || {
        IndexRun::new(setting, &engines, "b", keys)
            .with_all("--theta=1.22 --ratio=8")
            .lasting(1.0, setting.choose(1.0, 3.0, 4.0))
    };
    let mut claims = vec![Claim::value("1 thread, M/s", 12.90, "hotring-s", "1")];
    if setting.machine.cores > 1 {
        let ours = "hotring-s, predicted";
        claims.push(Claim::value("64 threads, M/s, predicted", 565.36, ours, "64"));
    }
    Figure {
        paper: Paper::HotRing,
        name: "figure-10-model",
        title: "throughput at thread counts that this machine lacks",
        printed_setting: "Workload B, theta 1.22, 8 keys a bucket, 32 cores: 12.90 million \
                          operations a second on one thread, 565.36 on 64.",
        our_setting: about(setting, keys),
        panels: vec![panel(setting, run)],
        claims,
    }
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

    #[test]
    fn what_is_predicted_stands_between_its_ends() {
        let point =
            |series: &str, threads, value| Point::new(series, Place::number(threads), value);
        let measured = [
            point("mercury", 1.0, 10.0),
            point("mercury, least", 1.0, 9.5),
            point("mercury, most", 1.0, 10.5),
            point("mercury", 2.0, 19.0),
            point("mercury, least", 2.0, 18.0),
            point("mercury, most", 2.0, 19.5),
        ];
        let shown = predict(&measured);
        let at = |series: &str| find(&shown, series, 12.0).expect("predicted");
        assert!(at("mercury, at least") < at("mercury, predicted"));
        assert!(at("mercury, predicted") < at("mercury, at most"));
        assert_eq!(find(&shown, "mercury", 2.0), Some(19.0));
        // Twelve threads: 1 + 11 lost of an operation, lost 2 * 10 / 19 - 1, and so at the ends.
        let predicted = 120.0 / (1.0 + 11.0 / 19.0);
        let (least, most) = (126.0 / (1.0 + 11.0 / 6.0), 114.0);
        let point = |series: &str| {
            let is_it = |point: &&Point| point.series == series && point.place.number == 12.0;
            shown.iter().find(is_it).expect("it is shown")
        };
        let error = point("mercury, predicted").spread.expect("its band");
        assert!((error - (most - least) / 2.0 / predicted).abs() < 1e-9, "{error}");
        assert_eq!(point("mercury, at least").spread, None);
        assert!(shown.iter().all(|point| !point.series.ends_with(MOST)));
        // One core: nothing to fit, so nothing is said.
        assert_eq!(predict(&measured[..3]).len(), 1);
    }
}
