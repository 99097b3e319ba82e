//! Figure 16: latencies of 100,000 accesses.

use super::super::plan::{Claim, Figure, Panel, Paper, Reading, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::{about, run};

/// The latencies that are shown for an engine, in microseconds: label and field.
const FIELDS: [(&str, &str); 4] = [
    ("median", "p50_ns"),
    ("99 %", "p99_ns"),
    ("longest, by the thread's clock", "longest_pause_ns"),
    ("longest of a null loop", "longest_null_ns"),
];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let theta = |(index, theta): (usize, f64)| {
        let fields = FIELDS.map(|(name, field)| (name.to_owned(), field, 1e3));
        let run = run(profile, "b", theta, 8).with("--timed=100000");
        run.only("hotring-s").at(
            AxisPosition::named(index, format!("theta {theta}")),
            Reading::Fields(fields.to_vec()),
        )
    };
    let claim = |what, printed, series, place| Claim::value(what, printed, series, place).less();
    Figure {
        paper: Paper::HotRing,
        name: "figure-16",
        title: "latencies of hotring-s",
        printed_setting: "100,000 accesses, 64 threads; the longest are those that choose a \
                          ring's head.",
        our_setting: format!(
            "{} The longest of a loop that does nothing but read the clocks is shown for \
             comparison: what a virtual machine's interruptions add.",
            about(profile)
        ),
        panels: vec![Panel {
            x: "",
            y: "microseconds",
            shape: Shape::Bars,
            runs: [1.22, 0.99].into_iter().enumerate().map(theta).collect(),
            ..Panel::default()
        }],
        claims: vec![
            claim("99 %, microseconds, theta 1.22", 2.0, "99 %", "theta 1.22"),
            claim("99 %, microseconds, theta 0.99", 3.0, "99 %", "theta 0.99"),
            claim("longest, microseconds, theta 1.22", 8.8, FIELDS[2].0, "theta 1.22"),
            claim("longest, microseconds, theta 0.99", 9.6, FIELDS[2].0, "theta 0.99"),
        ],
    }
}
