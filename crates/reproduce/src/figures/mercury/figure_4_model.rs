//! Figure 4 at the paper's 12 threads, predicted by the model.

use super::super::model;
use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper};
use super::super::point::Point;
use super::super::scale_profile::ScaleProfile;
use super::figure_4::ENGINES;

/// The points of the two engines that the paper's text compares. The runs are figure 4's own, so
/// they measure more engines.
fn printed(points: &[Point]) -> Vec<Point> {
    let is_one = |point: &&Point| ["mercury", "global-lock"].contains(&point.series.as_str());
    points.iter().filter(is_one).cloned().collect()
}

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(32_000_000, 280);
    let mut claims = Vec::new();
    if profile.machine.cores > 1 {
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
        our_setting: model::about(profile, keys),
        panels: vec![Panel {
            derive: Some(printed),
            ..model::panel(profile, || IndexRun::new(profile, &ENGINES, "get", keys))
        }],
        claims,
    }
}
