//! Figure 9: rate and latency by key length.

use super::super::plan::{Claim, Figure, Panel, Paper, Shape};
use super::super::scale_profile::ScaleProfile;
use super::table;

pub fn figure(_setting: &ScaleProfile) -> Figure {
    let panel = |name, y| Panel {
        x: "key bytes",
        y,
        shape: Shape::Lines,
        runs: vec![table(name, 5.0)],
        ..Panel::default()
    };
    Figure {
        paper: Paper::Fpl13,
        name: "figure-9",
        title: "rate and latency by key length",
        printed_setting: "156.25 MHz, keys of 6 to 168 bytes: over 31 million requests a second, \
                          90 cycles and 6 for each 12 bytes of key (0.58 microseconds and more).",
        our_setting: "The same table in front of a memory of 60 cycles that takes a line in 5; \
                      cycles are counted, so these numbers are the same on every machine."
            .to_owned(),
        panels: vec![
            panel("rate", "million requests a second"),
            panel("latency", "microseconds, unloaded GET"),
        ],
        claims: vec![
            Claim::value("million GETs a second, 6-byte keys", 31.0, "GET", "6"),
            Claim::value("microseconds, 6-byte keys", 0.61, "GET", "6").of_panel(1).less(),
        ],
    }
}
