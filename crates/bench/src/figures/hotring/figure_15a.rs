//! Figure 15a: reads of keys that are not there.

use super::super::plan::{Claim, Figure, Panel, Paper, Place, Shape};
use super::super::setting::Setting;
use super::{about, run};

pub fn figure(setting: &Setting) -> Figure {
    let rates =
        |ratio: &u32| run(setting, "miss", 0.0, *ratio).rates_at(Place::number(f64::from(*ratio)));
    let times = |what, printed, place| Claim::ratio(what, printed, "hotring-s", "chaining", place);
    Figure {
        paper: Paper::HotRing,
        name: "figure-15a",
        title: "misses by keys a bucket",
        printed_setting: "250 million keys, 64 threads.",
        our_setting: about(setting),
        panels: vec![Panel {
            x: "keys a bucket",
            y: "million operations a second",
            shape: Shape::Lines,
            runs: [2, 4, 8, 16].iter().map(rates).collect(),
            ..Panel::default()
        }],
        claims: vec![
            times("misses, 2 keys a bucket, times chaining", 1.17, "2"),
            times("misses, 16 keys a bucket, times chaining", 1.80, "16"),
        ],
    }
}
