//! Figure 6: displacements of an insert, by how full the table is.

use super::super::plan::{Claim, Figure, Panel, Paper, Reading, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::table_2::{fill, slots};

pub fn figure(profile: &ScaleProfile) -> Figure {
    let curve = |paths: &&str| {
        let place = AxisPosition::named(0, format!("{paths} paths"));
        fill(profile, paths, place, Reading::Points)
    };
    Figure {
        paper: Paper::MemC3,
        name: "figure-6",
        title: "displacements of an insert by fill",
        printed_setting: "2^27 slots, 4 a bucket: under 0.1 below 80 % full, under 0.4 at full.",
        our_setting: format!(
            "{} slots. A point is the mean of all inserts until then, as the printed numbers must \
             be: the last ones alone displace far more.",
            slots(profile)
        ),
        panels: vec![Panel {
            x: "% full",
            y: "displacements an insert",
            shape: Shape::Lines,
            runs: ["1", "2", "3", "4", "bfs"].iter().map(curve).collect(),
            ..Panel::default()
        }],
        claims: vec![
            Claim::value("displacements until 80 %, 2 paths", 0.1, "2 paths", "80").less(),
            Claim::value("displacements until 92 %, 2 paths", 0.4, "2 paths", "92").less(),
        ],
    }
}
