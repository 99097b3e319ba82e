//! Figure 15b: throughput by how often HotRing-r checks whether a head should move.

use super::super::plan::{Figure, IndexRun, Panel, Paper, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::{THREADS, keys, warm_up};

/// The engines with an R of 1, 2, 5, 10 and 50.
const ENGINES: [&str; 5] =
    ["hotring-r-1", "hotring-r-2", "hotring-r", "hotring-r-10", "hotring-r-50"];
const BYTES_A_KEY: u64 = 200;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let (keys, threads) = (keys(profile, BYTES_A_KEY), profile.threads_up_to(THREADS));
    let scenarios = [("theta 1.22", "b", 1.22), ("theta 0.99", "b", 0.99), ("theta 0.7", "b", 0.7)];
    let run = |(index, (label, workload, theta)): (usize, (&str, &str, f64))| {
        IndexRun::new(profile, &ENGINES, workload, keys)
            .with(format!("--theta={theta}"))
            .with("--ratio=8")
            .with(format!("--threads={threads}"))
            .lasting(1.0, warm_up(profile))
            .rates_at(AxisPosition::named(index, label))
    };
    Figure {
        paper: Paper::HotRing,
        name: "figure-15b",
        title: "throughput by R: requests between two looks at a head",
        printed_setting: "250 million keys, 64 threads; only the picture had numbers. R = 5 is \
                          best; a little is lost where it is very small or very large.",
        our_setting: format!("{} hotring-r is that with R = 5.", profile.about(keys, threads)),
        panels: vec![Panel {
            x: "workload B, 8 keys a bucket",
            y: "million operations a second",
            shape: Shape::Bars,
            runs: scenarios.into_iter().enumerate().map(run).collect(),
            ..Panel::default()
        }],
        claims: Vec::new(),
    }
}
