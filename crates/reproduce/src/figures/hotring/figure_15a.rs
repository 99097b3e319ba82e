//! Figure 15a: reads of keys that are not there.

use super::super::plan::{Claim, Figure, Paper};
use super::super::scale_profile::ScaleProfile;
use super::{about, by_ratio};

pub fn figure(profile: &ScaleProfile) -> Figure {
    let times = |what, printed, place| Claim::ratio(what, printed, "hotring-s", "chaining", place);
    Figure {
        paper: Paper::HotRing,
        name: "figure-15a",
        title: "misses by keys a bucket",
        printed_setting: "250 million keys, 64 threads.",
        our_setting: about(profile),
        panels: vec![by_ratio(profile, "miss", 0.0)],
        claims: vec![
            times("misses, 2 keys a bucket, times chaining", 1.17, "2"),
            times("misses, 16 keys a bucket, times chaining", 1.80, "16"),
        ],
    }
}
