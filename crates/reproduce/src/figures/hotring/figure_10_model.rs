//! Figure 10 at 64 threads, predicted by the model.

use super::super::model;
use super::super::plan::{Claim, Figure, IndexRun, Paper};
use super::super::scale_profile::ScaleProfile;
use super::warm_up;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(250_000_000, 120);
    let engines = ["hotring-s", "hotring-r", "chaining"];
    let run = || {
        IndexRun::new(profile, &engines, "b", keys)
            .with_all("--theta=1.22 --ratio=8")
            .lasting(1.0, warm_up(profile))
    };
    let mut claims = vec![Claim::value("1 thread, M/s", 12.90, "hotring-s", "1")];
    if profile.machine.cores > 1 {
        let ours = "hotring-s, predicted";
        claims.push(Claim::value("64 threads, M/s, predicted", 565.36, ours, "64"));
    }
    Figure {
        paper: Paper::HotRing,
        name: "figure-10-model",
        title: "throughput at thread counts that this machine lacks",
        printed_setting: "Workload B, theta 1.22, 8 keys a bucket, 32 cores: 12.90 million \
                          operations a second on one thread, 565.36 on 64.",
        our_setting: model::about(profile, keys),
        panels: vec![model::panel(profile, run)],
        claims,
    }
}
