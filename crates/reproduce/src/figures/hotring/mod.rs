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
use super::point::Place;
use super::scale_profile::ScaleProfile;

/// All that are compared; `chaining` is the paper's baseline.
const ENGINES: [&str; 3] = ["hotring-s", "hotring-r", "chaining"];

/// What stands in its place: it is not among the engines, and what a reader builds of it can be
/// mounted (`--engine external:LIB.so` of `amalgam-peers`).
const FASTER: &str = "FASTER is not to be had here";

/// The paper's.
const KEYS: u64 = 250_000_000;
const THREADS: usize = 64;

/// Bytes a key, all three engines together.
const BYTES_A_KEY: u64 = 120;

/// Its figures.
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

/// Keys here for the paper's 250 million, which `bytes` take each.
fn keys(profile: &ScaleProfile, bytes: u64) -> u64 {
    profile.keys(KEYS, bytes)
}

/// The paper's defaults, but for the workload: heads get time to find the hot items.
fn run(profile: &ScaleProfile, workload: &str, theta: f64, ratio: u32) -> IndexRun {
    IndexRun::new(profile, &ENGINES, workload, keys(profile, BYTES_A_KEY))
        .with(format!("--theta={theta}"))
        .with(format!("--ratio={ratio}"))
        .with(format!("--threads={}", profile.threads_up_to(THREADS)))
        .lasting(1.0, warm_up(profile))
}

/// How many times the usual: until heads have found the hot items.
fn warm_up(profile: &ScaleProfile) -> f64 {
    profile.choose(1.0, 3.0, 4.0)
}

/// Throughput of `workload` by keys a bucket.
fn by_ratio(profile: &ScaleProfile, workload: &str, theta: f64) -> Panel {
    let rates =
        |ratio: u32| run(profile, workload, theta, ratio).rates_at(Place::number(f64::from(ratio)));
    Panel {
        x: "keys a bucket",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: [2, 4, 8, 16].map(rates).into(),
        ..Panel::default()
    }
}

/// Throughput in tenths of a second.
fn over_time(run: IndexRun) -> Panel {
    let timeline = Reading::Timeline("timeline_ops_per_second", 0.1, 1e6);
    Panel {
        x: "seconds",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: vec![run.once().at(Place::number(0.0), timeline)],
        ..Panel::default()
    }
}

/// What every figure says of its setting.
fn about(profile: &ScaleProfile) -> String {
    profile.about(keys(profile, BYTES_A_KEY), profile.threads_up_to(THREADS))
}
