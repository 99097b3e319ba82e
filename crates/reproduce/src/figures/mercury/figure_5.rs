//! Figure 5: YCSB's mixes by threads.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

const ENGINES: [&str; 2] = ["mercury", "global-lock"];
const MIXES: [(&str, &str); 3] = [("a", "50 % writes"), ("b", "5 % writes"), ("c", "reads")];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(24_000_000, 220);
    let threads = profile.threads();
    let panel = |(workload, title): &(&str, &str)| {
        let run = |threads: &usize| {
            IndexRun::new(profile, &ENGINES, workload, keys)
                .with_all("--key-bytes=24 --value-bytes=10 --theta=0.99")
                .with(format!("--threads={threads}"))
                .rates_at(AxisPosition::number(*threads as f64))
        };
        Panel {
            title: (*title).to_owned(),
            x: "threads",
            y: "million operations a second",
            shape: Shape::Lines,
            runs: threads.iter().map(run).collect(),
            ..Panel::default()
        }
    };
    let most = threads.last().map_or(String::new(), ToString::to_string);
    let claim = |(number, (_, title)): (usize, &(&str, &str))| {
        let what = format!("{title}, {most} threads, times memcached (printed: 12; 9.2 to 14)");
        let printed = if number == 0 { 9.2 } else { 14.0 };
        Claim::ratio(&what, printed, "mercury", "global-lock", &most).of_panel(number)
    };
    Figure {
        paper: Paper::Mercury,
        name: "figure-5",
        title: "YCSB by threads",
        printed_setting: "24 million items of 24 + 10 bytes, 100 million zipfian requests, 1 to \
                          12 threads on 12 cores. 9.2 to 14 times memcached on 12; which mix had \
                          which only the picture showed.",
        our_setting: profile.about(keys, profile.threads_up_to(12)),
        panels: MIXES.iter().map(panel).collect(),
        claims: MIXES.iter().enumerate().map(claim).collect(),
    }
}
