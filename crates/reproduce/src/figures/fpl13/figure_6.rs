//! Figure 6: keys that find no slot.

use super::super::plan::{Claim, Figure, Panel, Paper, Shape};
use super::super::scale_profile::ScaleProfile;
use super::table;

pub fn figure(_setting: &ScaleProfile) -> Figure {
    Figure {
        paper: Paper::Fpl13,
        name: "figure-6",
        title: "keys that find no slot, by fill",
        printed_setting: "lookup3, keys of common use; percent of keys stored by slots that are \
                          searched at once. Well under 1 % are lost at half fill with 8.",
        our_setting: "262,144 slots, lookup3.".to_owned(),
        panels: vec![Panel {
            x: "% of the slots offered a key",
            y: "% of keys lost",
            shape: Shape::Lines,
            runs: vec![table("loss", 10.0)],
            ..Panel::default()
        }],
        claims: vec![Claim::value("% lost at half fill, 8 slots", 1.0, "8 slots", "50").less()],
    }
}
