//! Figure 3: the memory accesses that a look-up needs at best, by formulas 1 to 3.

use super::super::plan::{Figure, Panel, Paper, Shape};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;
use super::KEYS;
use amalgam_bench::workload::share_of_top;

const THETAS: [f64; 2] = [0.99, 1.22];
const LENGTHS: [u32; 8] = [1, 2, 4, 6, 8, 10, 12, 16];

pub fn figure(_setting: &ScaleProfile) -> Figure {
    let place = |length: u32| AxisPosition::number(f64::from(length));
    let usual = |length: &u32| {
        Point::new("conventional", place(*length), 1.0 + f64::from(*length + 1) / 2.0)
    };
    let mut given: Vec<Point> = LENGTHS.iter().map(usual).collect();
    for theta in THETAS {
        let series = format!("ideal, theta {theta}");
        let ideal =
            |length: &u32| Point::new(series.clone(), place(*length), ideal(theta, *length));
        given.extend(LENGTHS.iter().map(ideal));
    }
    Figure {
        paper: Paper::HotRing,
        name: "figure-3",
        title: "expected memory accesses of a look-up",
        printed_setting: "A model: 250 million items, chains of equal length, in order of their \
                          hotness (formulas 1 to 3).",
        our_setting: "The same model.".to_owned(),
        panels: vec![Panel {
            x: "items a chain",
            y: "memory accesses",
            shape: Shape::Lines,
            given,
            ..Panel::default()
        }],
        claims: Vec::new(),
    }
}

/// The expected accesses if chains are ordered by heat: one for the bucket, and `k` where the item
/// is the `k`th hottest of its chain.
fn ideal(theta: f64, length: u32) -> f64 {
    let length = f64::from(length);
    let up_to = |k: f64| share_of_top(KEYS, theta, k / length);
    1.0 + (1..=length as u32).map(f64::from).map(|k| k * (up_to(k) - up_to(k - 1.0))).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hotter_keys_lie_nearer() {
        assert!((ideal(1.22, 1) - 2.0).abs() < 1e-9);
        assert!(ideal(1.22, 8) < ideal(0.99, 8) && ideal(0.99, 8) < 5.5);
    }
}
