//! Figure 4: GET throughput by threads and kinds of lock.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

pub const ENGINES: [&str; 4] = ["mercury", "mercury-pthread", "mercury-nolock", "global-lock"];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(32_000_000, 280);
    let run = |threads: &usize| {
        IndexRun::new(profile, &ENGINES, "get", keys)
            .with(format!("--threads={threads}"))
            .rates_at(AxisPosition::number(*threads as f64))
    };
    let threads = profile.threads();
    let most = threads.last().map_or(String::new(), ToString::to_string);
    let mut claims =
        vec![Claim::ratio("GETs, 1 thread, times memcached", 1.16, "mercury", "global-lock", "1")];
    if threads.len() > 1 {
        let what = format!("GETs, {most} threads (printed: 12), times memcached");
        claims.push(Claim::ratio(&what, 15.0, "mercury", "global-lock", &most));
    }
    Figure {
        paper: Paper::Mercury,
        name: "figure-4",
        title: "GET throughput by locking scheme",
        printed_setting: "32 million items of 8 + 8 bytes, 1 to 12 threads on 12 cores.",
        our_setting: profile.about(keys, profile.threads_up_to(12)),
        panels: vec![Panel {
            x: "threads",
            y: "million GETs a second",
            shape: Shape::Lines,
            runs: threads.iter().map(run).collect(),
            ..Panel::default()
        }],
        claims,
    }
}
