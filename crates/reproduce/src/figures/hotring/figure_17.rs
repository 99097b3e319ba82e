//! Figure 17: throughput while the table grows twice.

use super::super::plan::{Figure, IndexRun, Paper};
use super::super::scale_profile::ScaleProfile;
use super::over_time;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(1_000_000, 400).min(profile.choose(4_000, 250_000, 1_000_000));
    let run = IndexRun::new(profile, &["hotring-s", "hotring-r"], "insert50", keys)
        .with("--theta=1.22")
        .lasting(profile.choose(60.0, 24.0, 4.5), 0.0);
    Figure {
        paper: Paper::HotRing,
        name: "figure-17",
        title: "throughput over time, 50 % inserts, through rehashes",
        printed_setting: "From 250 million keys at 8 a bucket, 64 threads: two rehashes hold the \
                          throughput.",
        our_setting: format!(
            "{} From fewer keys, so that two rehashes come within seconds on one thread; the \
             rehash itself runs in the background.",
            profile.about(keys, 1)
        ),
        panels: vec![over_time(run)],
        claims: Vec::new(),
    }
}
