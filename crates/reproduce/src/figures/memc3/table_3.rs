//! Table 3: the items that a cache holds, and its hit ratio.

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

/// The numbers in the paper by size: millions of items and % of hits of the three caches.
const PRINTED: [(u64, [f64; 3], [f64; 3]); 6] = [
    (64, [0.60, 0.65, 0.84], [63.66, 64.13, 63.54]),
    (128, [1.20, 1.29, 1.68], [68.09, 68.58, 68.14]),
    (256, [2.40, 2.58, 3.35], [72.73, 73.24, 73.08]),
    (512, [4.79, 5.16, 6.71], [77.70, 78.26, 78.62]),
    (1024, [9.59, 10.32, 13.42], [83.20, 83.84, 85.32]),
    (2048, [19.17, 20.65, 26.84], [89.56, 90.20, 92.11]),
];
const ENGINES: [&str; 3] = ["global-lock", "lru-cuckoo", "memc3"];

/// The expected operations per second of a cache with many misses.
const OPERATIONS_PER_SECOND: f64 = 1e6;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let sizes = &PRINTED[..profile.choose(1, 1, 6)];
    let keys = profile.choose(1_000_000u64, 100_000_000, 100_000_000);
    // More keys than the largest cache can hold: requests repeat in a cycle, and a cache that holds
    // all of a cycle always hits.
    let requests =
        |mebibytes: u64| profile.choose(400_000, 100_000 * mebibytes, 500_000 * mebibytes);
    let panel = |y, field, unit| {
        let run = |(mebibytes, ..): &(u64, [f64; 3], [f64; 3])| {
            let requests = requests(*mebibytes);
            let size = profile.choose(4, *mebibytes, *mebibytes);
            let arguments =
                format!("bench caches --sizes={size}Mi --keys={keys} --requests={requests} --json");
            Run {
                place: AxisPosition::number(*mebibytes as f64),
                program: Program::Own,
                arguments: arguments.split(' ').map(str::to_owned).collect(),
                reading: Reading::Field(field, unit),
                seconds: requests as f64 * 3.0 / OPERATIONS_PER_SECOND,
                repeats: false,
            }
        };
        let runs = sizes.iter().map(run).collect();
        // A line needs more than one size.
        let shape = if sizes.len() == 1 { Shape::Bars } else { Shape::LogLines };
        Panel { x: "MiB for items", y, shape, runs, ..Panel::default() }
    };
    let mut hits = panel("% of reads that hit", "hit_ratio", 0.01);
    if hits.shape == Shape::LogLines {
        hits.shape = Shape::Lines;
    }
    let mut claims = Vec::new();
    for (mebibytes, items, hits) in sizes {
        let place = mebibytes.to_string();
        for (engine, (items, hits)) in ENGINES.iter().zip(items.iter().zip(hits)) {
            // The other two engines represent the systems that the paper compares with.
            let own = |claim: Claim| if *engine == "memc3" { claim } else { claim.same() };
            let what = format!("million items, {engine}, {place} MiB");
            claims.push(own(Claim::value(&what, *items, engine, &place)));
            let what = format!("% of hits, {engine}, {place} MiB");
            claims.push(own(Claim::value(&what, *hits, engine, &place).of_panel(1)));
        }
    }
    Figure {
        paper: Paper::MemC3,
        name: "table-3",
        title: "what a cache holds and hits",
        printed_setting: "16-byte keys, 32-byte values, 95 % reads of 100 million zipfian \
                          requests, table not counted.",
        our_setting: format!(
            "The same items; {keys} keys (the paper does not say how many), requests in step \
             with the size. Our items are smaller than the paper's, so CLOCK has more of them \
             and hits more."
        ),
        panels: vec![panel("million items", "items", 1e6), hits],
        claims,
    }
}
