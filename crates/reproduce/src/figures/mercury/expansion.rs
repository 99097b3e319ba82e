//! Section 4.1: throughput while the table expands.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Reading, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

const ENGINE: &str = "mercury";

pub fn figure(profile: &ScaleProfile) -> Figure {
    // Just below the size at which three items to four buckets make the table expand, so that
    // exactly one expansion happens.
    let buckets = 1u64 << profile.choose(18, 19, 24);
    let keys = buckets * 3 / 4 - buckets / profile.choose(16, 64, 64);
    let run = |reading| {
        IndexRun::new(profile, &[ENGINE], "d", keys)
            .with("--theta=0")
            .with(format!("--expected={}", buckets * 3 / 4))
            .with(format!("--memory={}Gi", profile.choose(3, 1, 3)))
            .lasting(profile.choose(160.0, 30.0, 3.0), 0.25)
            .once()
            .at(AxisPosition::named(0, "1"), reading)
    };
    let during = [
        ("to before it", "expansion_ratio_to_before"),
        ("to after it", "expansion_ratio_to_after"),
    ];
    let during = during.map(|(name, field)| (name.to_owned(), field, 1.0));
    Figure {
        paper: Paper::Mercury,
        name: "expansion",
        title: "throughput while the table expands",
        printed_setting: "8 threads: 9 % less than without expansion (text of 4.1).",
        our_setting: format!(
            "{} 95 % reads and 5 % inserts, so that one expansion comes in the midst of the run.",
            profile.about(keys, 1)
        ),
        panels: vec![
            Panel {
                x: "",
                y: "throughput while expanding, ratio",
                runs: vec![run(Reading::Fields(during.to_vec()))],
                ..Panel::default()
            },
            Panel {
                title: "tenths of a second".to_owned(),
                x: "seconds",
                y: "million operations a second",
                shape: Shape::Lines,
                runs: vec![run(Reading::Timeline("timeline_ops_per_second", 0.1, 1e6))],
                ..Panel::default()
            },
        ],
        claims: vec![Claim::value("expanding, of before (8 threads)", 0.91, "to before it", "1")],
    }
}
