//! Figure 14: how fast heads follow when other items become hot.

use super::super::plan::{Figure, Panel, Paper, Place, Reading, Shape};
use super::super::setting::Setting;
use super::{about, run};

pub fn figure(setting: &Setting) -> Figure {
    let timeline = Reading::Timeline("timeline_ops_per_second", 0.1, 1e6);
    let run = run(setting, "shift", 1.22, 8)
        .lasting(setting.choose(40.0, 20.0, 10.0), 1.0)
        .once()
        .at(Place::number(0.0), timeline);
    Figure {
        paper: Paper::HotRing,
        name: "figure-14",
        title: "throughput over time, hotspots shift half way",
        printed_setting: "Workload C, 64 threads. HotRing-r is stable within 2 seconds, with a \
                          lower peak than HotRing-s.",
        our_setting: about(setting),
        panels: vec![Panel {
            x: "seconds",
            y: "million operations a second",
            shape: Shape::Lines,
            runs: vec![run],
            ..Panel::default()
        }],
        claims: Vec::new(),
    }
}
