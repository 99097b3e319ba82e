//! Figure 11a: chains of different length.

use super::super::plan::{Claim, Figure, Paper};
use super::super::scale_profile::ScaleProfile;
use super::{FASTER, about, by_ratio};

pub fn figure(profile: &ScaleProfile) -> Figure {
    let times = |what, printed, place| Claim::ratio(what, printed, "hotring-s", "chaining", place);
    Figure {
        paper: Paper::HotRing,
        name: "figure-11a",
        title: "throughput by keys a bucket",
        printed_setting: "250 million keys, workload B, theta 1.22, 64 threads.",
        our_setting: about(profile),
        panels: vec![by_ratio(profile, "b", 1.22)],
        claims: vec![
            times("2 keys a bucket, times chaining", 1.93, "2"),
            times("16 keys a bucket, times chaining", 4.02, "16"),
            Claim::absent("2 keys a bucket, times FASTER", 1.31, FASTER),
            Claim::absent("16 keys a bucket, times FASTER", 3.91, FASTER),
        ],
    }
}
