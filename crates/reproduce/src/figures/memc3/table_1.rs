//! Table 1: the bytes per item that the table and the cache take.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Reading};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(16_000_000, 300);
    let bytes = |(index, engine): (usize, &'static str)| {
        IndexRun::new(profile, &[engine], "get", keys)
            .with_all("--key-bytes=16 --value-bytes=32 --prefault=false")
            .with(if engine == "memc3" { "--fill=0.95" } else { "--theta=0" })
            .once()
            .at(AxisPosition::named(index, engine), Reading::Field("index_bytes_per_item", 1.0))
    };
    Figure {
        paper: Paper::MemC3,
        name: "table-1",
        title: "bytes of the table for each item",
        printed_setting: "By calculation: chaining 13.3 bytes an item, cuckoo hashing with two \
                          paths about 9.7; LRU lists 18 bytes more, CLOCK a bit.",
        our_setting: format!(
            "{} Measured after load; the table of `memc3` as ours is, 8 slots a bucket and 95 % \
             full.",
            profile.about(keys, 1)
        ),
        panels: vec![Panel {
            x: "",
            y: "bytes an item",
            runs: ["global-lock", "memc3"].into_iter().enumerate().map(bytes).collect(),
            ..Panel::default()
        }],
        claims: vec![
            Claim::value("table, bytes an item", 9.7, "memc3", "memc3").less(),
            // Only heads are counted: here a chain's links are part of its items.
            Claim::value("table of chains, bytes an item", 13.3, "global-lock", "global-lock")
                .same(),
        ],
    }
}
