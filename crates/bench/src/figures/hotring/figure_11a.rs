//! Figure 11a: chains of different length.

use super::super::plan::{Claim, Figure, Panel, Paper, Place, Shape};
use super::super::setting::Setting;
use super::{about, run};

const RATIOS: [u32; 4] = [2, 4, 8, 16];

pub fn figure(setting: &Setting) -> Figure {
    let rates =
        |ratio: &u32| run(setting, "b", 1.22, *ratio).rates_at(Place::number(f64::from(*ratio)));
    let times = |what, printed, place| Claim::ratio(what, printed, "hotring-s", "chaining", place);
    Figure {
        paper: Paper::HotRing,
        name: "figure-11a",
        title: "throughput by keys a bucket",
        printed_setting: "250 million keys, workload B, theta 1.22, 64 threads.",
        our_setting: about(setting),
        panels: vec![Panel {
            x: "keys a bucket",
            y: "million operations a second",
            shape: Shape::Lines,
            runs: RATIOS.iter().map(rates).collect(),
            ..Panel::default()
        }],
        claims: vec![
            times("2 keys a bucket, times chaining", 1.93, "2"),
            times("16 keys a bucket, times chaining", 4.02, "16"),
        ],
    }
}
