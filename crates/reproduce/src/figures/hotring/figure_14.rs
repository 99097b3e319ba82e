//! Figure 14: how fast heads follow when other items become hot.

use super::super::plan::{Figure, Paper};
use super::super::setting::Setting;
use super::{about, over_time, run};

pub fn figure(setting: &Setting) -> Figure {
    let run = run(setting, "shift", 1.22, 8).lasting(setting.choose(40.0, 30.0, 10.0), 1.0);
    Figure {
        paper: Paper::HotRing,
        name: "figure-14",
        title: "throughput over time, hotspots shift half way",
        printed_setting: "Workload C, 64 threads. HotRing-r is stable within 2 seconds, with a \
                          lower peak than HotRing-s.",
        our_setting: about(setting),
        panels: vec![over_time(run)],
        claims: Vec::new(),
    }
}
