//! Figure 1: where a GET of memcached spends its time.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Place, Point, Reading, Shape};
use super::super::setting::Setting;

const ENGINES: [&str; 3] = ["global-lock", "mercury", "mercury-nolock"];
const SMALL_KEYS: u64 = 2_000;
const LARGE: &str = "all keys";
const SMALL: &str = "keys of the first-level cache";

pub fn figure(setting: &Setting) -> Figure {
    let keys = setting.keys(32_000_000, 250);
    let time = |keys: u64, place: Place| {
        let per_operation = Reading::Field("ops_per_second_per_thread", 1.0);
        IndexRun::new(setting, &ENGINES, "get", keys).at(place, per_operation)
    };
    let runs = vec![time(SMALL_KEYS, Place::named(0, SMALL)), time(keys, Place::named(1, LARGE))];
    Figure {
        paper: Paper::Mercury,
        name: "figure-1",
        title: "what a GET waits for",
        printed_setting: "memcached 1.4.13, GET; a profile by PAPI. Of one thread's time 44 % are \
                          DRAM accesses.",
        our_setting: format!(
            "{} The share of memory is what a GET takes less when its keys fit into the \
             first-level cache, so no profiler is needed; the share of synchronization needs \
             the paper's many cores.",
            setting.about(keys, 1)
        ),
        panels: vec![Panel {
            x: "",
            y: "% of a GET's time waiting for memory",
            shape: Shape::Bars,
            runs,
            derive: Some(shares),
            ..Panel::default()
        }],
        claims: vec![Claim::value("DRAM's % of a GET, one thread", 44.0, "global-lock", "1")],
    }
}

fn shares(rates: &[Point]) -> Vec<Point> {
    let rate = |engine: &str, place: &str| {
        let is_it = |point: &&Point| point.series == engine && point.place.label == place;
        rates.iter().find(is_it).map(|point| point.value)
    };
    let share = |engine: &&str| {
        let share = 100.0 * (1.0 - rate(engine, LARGE)? / rate(engine, SMALL)?);
        Some(Point::new(*engine, Place::named(1, "1"), share))
    };
    ENGINES.iter().filter_map(share).collect()
}
