//! Section 5.2: how often requests wait for an older write of their bucket.

use super::super::plan::{Figure, Panel, Paper, Shape};
use super::super::scale_profile::ScaleProfile;
use super::table;

pub fn figure(_setting: &ScaleProfile) -> Figure {
    Figure {
        paper: Paper::Fpl13,
        name: "conflicts",
        title: "requests that wait for an older write",
        printed_setting: "1 − (1 − S/N)^M, with N addresses, a share S of writes and M requests \
                          in the critical section: under 5 % from 500 addresses on.",
        our_setting: "20,000 requests of 12-byte keys, back to back; M as measured.".to_owned(),
        panels: vec![Panel {
            x: "% writes, 500 addresses",
            y: "% of requests that wait",
            shape: Shape::Lines,
            runs: vec![table("conflicts", 5.0)],
            ..Panel::default()
        }],
        claims: Vec::new(),
    }
}
