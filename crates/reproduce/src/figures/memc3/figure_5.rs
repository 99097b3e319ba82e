//! Figure 5: the table's throughput by threads.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Reading, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(6_290_000, 300).min(profile.choose(2_000, 780_000, 6_290_000));
    let panel = |(workload, title): (&str, &str)| {
        let runs = profile.threads().into_iter().flat_map(|threads| {
            let place = AxisPosition::number(threads as f64);
            let run = |engines: &[&'static str]| {
                IndexRun::new(profile, engines, workload, keys)
                    .with_all("--key-bytes=16 --value-bytes=8 --prefault=false")
                    .with(format!("--threads={threads}"))
            };
            let printed = Reading::Named("memc3, as printed".to_owned(), "ops_per_second", 1e6);
            let switches = "--slots=4 --writers=1 --paths=2";
            [
                run(&["global-lock", "memc3"]).rates_at(place.clone()),
                run(&["memc3"]).with_all(switches).at(place, printed),
            ]
        });
        Panel {
            title: title.to_owned(),
            x: "threads",
            y: "million operations a second",
            shape: Shape::Lines,
            runs: runs.collect(),
            ..Panel::default()
        }
    };
    let most = profile.threads().last().copied().unwrap_or(1);
    let rate = |what: &str, printed, threads: usize| {
        Claim::value(what, printed, "memc3", &threads.to_string())
    };
    let mut claims = vec![rate("million look-ups a second, 1 thread", 5.0, 1)];
    if most > 1 {
        let what = format!("million look-ups a second, {most} threads (printed: 12)");
        claims.push(rate(&what, 35.0, most));
        let what = format!("million a second, 10 % inserts, {most} threads (printed: 10)");
        claims.push(rate(&what, 20.0, most).of_panel(1));
    }
    Figure {
        paper: Paper::MemC3,
        name: "figure-5",
        title: "throughput of the table by threads",
        printed_setting: "16-byte keys, 1 to 16 threads on 12 cores: 5 million look-ups a second \
                          on one thread, 35 on 12; with 10 % inserts 20 at most, on 10.",
        our_setting: profile.about(keys, profile.threads_up_to(12)),
        panels: [("get", "look-ups"), ("insert10", "10 % inserts")].map(panel).into(),
        claims,
    }
}
