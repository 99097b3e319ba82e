//! Table 2: the share of accesses to the hottest items.

use super::super::plan::{Claim, Figure, Panel, Paper, Shape};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;
use super::KEYS;
use amalgam_bench::workload::share_of_top;

const PARTS: [(f64, &str); 6] =
    [(0.01, "1 %"), (0.1, "10 %"), (0.2, "20 %"), (0.3, "30 %"), (0.4, "40 %"), (0.5, "50 %")];

const PRINTED: [(f64, [f64; 6]); 6] = [
    (0.5, [9.9, 31.6, 44.7, 57.7, 63.2, 70.7]),
    (0.7, [24.9, 50.0, 61.6, 71.9, 75.9, 81.2]),
    (0.9, [57.3, 76.2, 82.2, 86.9, 89.9, 92.2]),
    (0.99, [75.1, 87.4, 91.2, 93.4, 94.9, 96.2]),
    (1.11, [91.7, 96.4, 97.6, 98.2, 98.7, 99.0]),
    (1.22, [97.8, 99.2, 99.5, 99.6, 99.7, 99.8]),
];

pub fn figure(_setting: &ScaleProfile) -> Figure {
    let mut given = Vec::new();
    let mut claims = Vec::new();
    for (theta, printed) in PRINTED {
        let series = format!("theta {theta}");
        for (index, ((part, label), printed)) in PARTS.into_iter().zip(printed).enumerate() {
            let share = 100.0 * share_of_top(KEYS, theta, part);
            given.push(Point::new(series.clone(), AxisPosition::named(index, label), share));
            let what = format!("% of accesses to the top {label}, {series}");
            claims.push(Claim::value(&what, printed, &series, label).same());
        }
    }
    Figure {
        paper: Paper::HotRing,
        name: "table-2",
        title: "share of accesses to the hottest items",
        printed_setting: "250 million keys, formula 2.",
        our_setting: "The same, by the same formula. Three printed numbers (57.7, 71.9 and 82.2) \
                      contradict it, by up to 2.9 points."
            .to_owned(),
        panels: vec![Panel {
            x: "hottest items",
            y: "% of accesses",
            shape: Shape::Bars,
            given,
            ..Panel::default()
        }],
        claims,
    }
}
