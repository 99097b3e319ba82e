//! Figure 14: how fast heads move when other items become hot.

use super::super::plan::{Figure, Paper};
use super::super::scale_profile::ScaleProfile;
use super::{about, over_time, run};

pub fn figure(profile: &ScaleProfile) -> Figure {
    let run = run(profile, "shift", 1.22, 8).lasting(profile.choose(40.0, 30.0, 10.0), 1.0);
    Figure {
        paper: Paper::HotRing,
        name: "figure-14",
        title: "throughput over time, hotspots shift half way",
        printed_setting: "Workload C, 64 threads. HotRing-r is stable within 2 seconds, with a \
                          lower peak than HotRing-s.",
        our_setting: about(profile),
        panels: vec![over_time(run)],
        claims: Vec::new(),
    }
}
