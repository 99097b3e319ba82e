//! Figure 7: the cache's throughput by threads.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

const ENGINES: [&str; 3] = ["global-lock", "lru-cuckoo", "memc3"];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(4_000_000, 400);
    // The memory holds a tenth of the items that are asked for.
    let mebibytes = profile.choose(4, 16, 1024);
    let asked = mebibytes * (10 << 20) / 80;
    let threads = profile.threads();
    let panel = |title: &str, run: &dyn Fn(usize) -> IndexRun| Panel {
        title: title.to_owned(),
        x: "threads",
        y: "million operations a second",
        shape: Shape::Lines,
        runs: threads
            .iter()
            .map(|threads| {
                run(*threads)
                    .with_all("--key-bytes=16 --value-bytes=32")
                    .with(format!("--threads={threads}"))
                    .rates_at(AxisPosition::number(*threads as f64))
            })
            .collect(),
        ..Panel::default()
    };
    let large = |_| IndexRun::new(profile, &ENGINES, "c", keys).with("--theta=0.99");
    let small = |_| {
        IndexRun::new(profile, &ENGINES, "cache", asked)
            .with(format!("--memory={mebibytes}Mi"))
            .with(format!("--expected={}", mebibytes * (1 << 20) / 48))
            .with_all("--table-apart --theta=0.99")
    };
    let most = profile.threads().last().copied().unwrap_or(1);
    let rate = |part: &str, printed, number| {
        let what = format!("million a second, {part}, {most} threads (printed: 16)");
        Claim::value(&what, printed, "memc3", &most.to_string()).of_panel(number)
    };
    Figure {
        paper: Paper::MemC3,
        name: "figure-7",
        title: "throughput of the cache by threads",
        printed_setting: "16-byte keys, 32-byte values. (a) 10 GB, all reads hit: 30 million a \
                          second on 16 threads. (b) 1 GB, a tenth of what is asked for, 95/5: 4.5 \
                          at most.",
        our_setting: format!(
            "{} (b): {mebibytes} MiB.",
            profile.about(keys, profile.threads_up_to(16))
        ),
        panels: vec![
            panel("reads, everything fits", &large),
            panel("95 % reads, a tenth fits", &small),
        ],
        claims: vec![
            rate("reads, everything fits", 30.0, 0),
            rate("95 % reads, a tenth fits", 4.5, 1),
        ],
    }
}
