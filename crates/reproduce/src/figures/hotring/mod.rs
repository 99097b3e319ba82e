//! HotRing (FAST 2020): two sockets of 16 cores at 2.5 GHz, 256 GB; 250 million keys of 8 bytes, 64
//! threads, workload B, theta 1.22 and 8 keys a bucket unless said.

mod figure_10;
mod figure_10_model;
mod figure_11a;
mod figure_11b;
mod figure_12;
mod figure_13;
mod figure_14;
mod figure_15a;
mod figure_15b;
mod figure_16;
mod figure_17;
mod figure_3;
mod table_2;

use super::plan::{Figure, IndexRun, Panel, Reading, Shape};
use super::point::AxisPosition;
use super::scale_profile::ScaleProfile;

/// The engines that are compared; `chaining` is the paper's baseline.
const ENGINES: [&str; 3] = ["hotring-s", "hotring-r", "chaining"];

/// The text in place of numbers of FASTER, which is not among the engines. A reader who builds it
/// can measure it with `--engine external:LIB.so` of `amalgam-peers`.
const FASTER: &str = "FASTER is not available here";

/// The number of keys in the paper.
const KEYS: u64 = 250_000_000;
const THREADS: usize = 64;

/// Bytes per key that all three engines take together.
const BYTES_A_KEY: u64 = 120;

/// The figures of this paper.
pub fn figures(profile: &ScaleProfile) -> Vec<Figure> {
    vec![
        table_2::figure(profile),
        figure_3::figure(profile),
        figure_10::figure(profile),
        figure_10_model::figure(profile),
        figure_11a::figure(profile),
        figure_11b::figure(profile),
        figure_12::figure(profile),
        figure_13::figure(profile),
        figure_14::figure(profile),
        figure_15a::figure(profile),
        figure_15b::figure(profile),
        figure_16::figure(profile),
        figure_17::figure(profile),
    ]
}

/// The number of keys that replaces the paper's 250 million here, where a key takes `bytes` bytes.
fn keys(profile: &ScaleProfile, bytes: u64) -> u64 {
    profile.keys(KEYS, bytes)
}

/// A run with the paper's defaults apart from `workload`, `theta` and `ratio`. Its warm-up gives
/// heads time to find the hot items.
fn run(profile: &ScaleProfile, workload: &str, theta: f64, ratio: u32) -> IndexRun {
    IndexRun::new(profile, &ENGINES, workload, keys(profile, BYTES_A_KEY))
        .with(format!("--theta={theta}"))
        .with(format!("--ratio={ratio}"))
        .with(format!("--threads={}", profile.threads_up_to(THREADS)))
        .lasting(1.0, warm_up(profile))
}

/// The factor of the usual warm-up after which heads have found the hot items.
fn warm_up(profile: &ScaleProfile) -> f64 {
    profile.choose(1.0, 3.0, 4.0)
}

/// A panel of the throughput of `workload` by keys per bucket.
fn by_ratio(profile: &ScaleProfile, workload: &str, theta: f64) -> Panel {
    let rates = |ratio: u32| {
        run(profile, workload, theta, ratio).rates_at(AxisPosition::number(f64::from(ratio)))
    };
    Panel {
        x: "keys a bucket",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: [2, 4, 8, 16].map(rates).into(),
        ..Panel::default()
    }
}

/// A panel of throughput over time, in steps of a tenth of a second.
fn over_time(run: IndexRun) -> Panel {
    let timeline = Reading::Timeline("timeline_ops_per_second", 0.1, 1e6);
    Panel {
        x: "seconds",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: vec![run.once().at(AxisPosition::number(0.0), timeline)],
        ..Panel::default()
    }
}

/// How the setting here differs from the paper's, as all figures say.
fn about(profile: &ScaleProfile) -> String {
    profile.about(keys(profile, BYTES_A_KEY), profile.threads_up_to(THREADS))
}
