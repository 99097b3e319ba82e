//! Figure 13: the time that a read spends on items other than the head's.

use super::super::plan::{Claim, Figure, Panel, Paper, Reading, Shape};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;
use super::{about, run};

/// The items that a read passes in a chain of eight whose order does not depend on heat: half.
const PASSED_IN_CHAINS: f64 = 4.0;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let thetas = [(0, 1.22), (1, 0.99)];
    let passed = |(index, theta)| {
        let place = AxisPosition::named(index, format!("theta {theta}"));
        run(profile, "c", theta, 8).once().at(place, Reading::Field("items_passed_per_op", 1.0))
    };
    let chains = |(index, theta)| {
        let place = AxisPosition::named(index, format!("theta {theta}"));
        Point::new("chaining", place, PASSED_IN_CHAINS)
    };
    let share =
        |what, printed, place| Claim::ratio(what, printed, "hotring-s", "chaining", place).less();
    Figure {
        paper: Paper::HotRing,
        name: "figure-13",
        title: "items passed on the way to a read's own",
        printed_setting: "8 keys a bucket, 64 threads: time on items other than the head's, 193 \
                          and 660 ns for chaining, 10 and 136 ns for HotRing-s (theta 1.22 and \
                          0.99).",
        our_setting: format!(
            "{} Items are counted instead of timed: whoever passes none finds its own first. \
             Of chaining stands what is expected: half of the others. The printed ratios are \
             those of the times.",
            about(profile)
        ),
        panels: vec![Panel {
            x: "",
            y: "items passed a read",
            shape: Shape::Bars,
            runs: thetas.map(passed).into(),
            given: thetas.map(chains).into(),
            ..Panel::default()
        }],
        claims: vec![
            share("non-head cost of chaining's, theta 1.22", 10.0 / 193.0, "theta 1.22"),
            share("non-head cost of chaining's, theta 0.99", 136.0 / 660.0, "theta 0.99"),
        ],
    }
}
