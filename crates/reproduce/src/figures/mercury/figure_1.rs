//! Figure 1: how a GET of memcached spends its time.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Reading, Shape};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;
use super::figure_4::ENGINES;

const SMALL_KEYS: u64 = 2_000;
const LARGE: &str = "all keys";
const SMALL: &str = "keys of the first-level cache";

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(32_000_000, 280);
    // The arguments of figure 4, so that both figures share their runs.
    let time = |keys: u64, place: AxisPosition| {
        let per_operation = Reading::Field("ops_per_second_per_thread", 1.0);
        IndexRun::new(profile, &ENGINES, "get", keys).with("--threads=1").at(place, per_operation)
    };
    let runs = vec![
        time(SMALL_KEYS, AxisPosition::named(0, SMALL)),
        time(keys, AxisPosition::named(1, LARGE)),
    ];
    let threads = profile.threads_up_to(12);
    let together = || {
        let per_operation = Reading::Field("ops_per_second_per_thread", 1.0);
        IndexRun::new(profile, &ENGINES, "get", keys)
            .with(format!("--threads={threads}"))
            .at(AxisPosition::number(threads as f64), per_operation)
    };
    let mut panels = vec![Panel {
        x: "",
        y: "% of a GET's time waiting for memory",
        shape: Shape::Bars,
        runs,
        derive: Some(shares),
        ..Panel::default()
    }];
    let mut claims =
        vec![Claim::value("DRAM's % of a GET, one thread", 44.0, "global-lock", "1").same()];
    if threads > 1 {
        panels.push(Panel {
            x: "threads",
            y: "% of a GET's time waiting for others",
            shape: Shape::Bars,
            runs: vec![time(keys, AxisPosition::number(1.0)), together()],
            derive: Some(waiting),
            ..Panel::default()
        });
        let what = format!("synchronization's % of a GET, {threads} threads (printed: 12)");
        let place = threads.to_string();
        claims.push(Claim::value(&what, 63.0, "global-lock", &place).of_panel(1).same());
    }
    Figure {
        paper: Paper::Mercury,
        name: "figure-1",
        title: "what a GET waits for",
        printed_setting: "memcached 1.4.13, GET; a profile by PAPI. Of one thread's time 44 % are \
                          DRAM accesses; of 12 threads' time 63 % are synchronization.",
        our_setting: format!(
            "{} The share of memory is what a GET takes less when its keys fit into the \
             first-level cache, so no profiler is needed; the share of synchronization is what \
             each of {threads} threads takes longer than one alone, with the shared cores and \
             caches of this machine in it; less than nothing is noise.",
            profile.about(keys, 1)
        ),
        panels,
        claims,
    }
}

fn shares(rates: &[Point]) -> Vec<Point> {
    let rate = |engine: &str, place: &str| {
        let is_it = |point: &&Point| point.series == engine && point.place.label == place;
        rates.iter().find(is_it).map(|point| point.value)
    };
    let share = |engine: &&str| {
        let share = 100.0 * (1.0 - rate(engine, LARGE)? / rate(engine, SMALL)?);
        Some(Point::new(*engine, AxisPosition::named(1, "1"), share))
    };
    ENGINES.iter().filter_map(share).collect()
}

/// The share of a thread's time among several threads that a single thread would not take.
fn waiting(rates: &[Point]) -> Vec<Point> {
    let alone = |point: &Point| {
        let is_it = |one: &&Point| one.series == point.series && one.place.number == 1.0;
        rates.iter().find(is_it).map(|one| one.value)
    };
    let share = |point: &Point| {
        let value = 100.0 * (1.0 - point.value / alone(point)?);
        // Noise may make the share negative. It is kept so, as 0 would look like a measured value.
        Some(Point { value, ..point.clone() })
    };
    rates.iter().filter(|point| point.place.number > 1.0).filter_map(share).collect()
}
