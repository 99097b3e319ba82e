//! Figure 11b: requests of different skew.

use super::super::plan::{Figure, Panel, Paper, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::{about, run};

const THETAS: [f64; 6] = [0.5, 0.7, 0.9, 0.99, 1.11, 1.22];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let rates = |theta: &f64| run(profile, "b", *theta, 8).rates_at(AxisPosition::number(*theta));
    Figure {
        paper: Paper::HotRing,
        name: "figure-11b",
        title: "throughput by skew",
        printed_setting: "250 million keys, workload B, 8 keys a bucket, 64 threads; only the \
                          picture had numbers. HotRing-s leads from theta 0.5 on.",
        our_setting: about(profile),
        panels: vec![Panel {
            x: "theta",
            y: "million operations a second",
            shape: Shape::Lines,
            runs: THETAS.iter().map(rates).collect(),
            ..Panel::default()
        }],
        claims: Vec::new(),
    }
}
