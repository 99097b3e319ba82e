//! Draws the results of `bench index`: a panel for each workload, a line for each engine.

use amalgam_bench::driver::IndexResult;

use crate::figures::picture;
use crate::figures::plan::{Panel, Shape};
use crate::figures::point::{AxisPosition, Point};

/// Draws throughput over time where it was sampled, otherwise by round.
///
/// # Errors
///
/// If the picture cannot be built.
pub fn draw(results: &[IndexResult]) -> anyhow::Result<String> {
    let mut panels: Vec<(Panel, Vec<Point>)> = Vec::new();
    for result in results {
        let title = result.parameters.heading();
        let index = panels.iter().position(|(panel, _)| panel.title == title);
        let index = index.unwrap_or_else(|| {
            let is_sampled = !result.timeline_ops_per_second.is_empty();
            let x = if is_sampled { "seconds of the last round" } else { "round" };
            let y = "million operations a second";
            panels.push((Panel { title, x, y, shape: Shape::Lines, ..Panel::default() }, vec![]));
            panels.len() - 1
        });
        panels[index].1.extend(points(result));
    }
    let panels: Vec<_> = panels.iter().map(|(panel, points)| (panel, &points[..])).collect();
    picture::draw(&panels)
}

fn points(result: &IndexResult) -> Vec<Point> {
    let (rates, step) = match &result.timeline_ops_per_second[..] {
        [] => (&result.rounds_ops_per_second[..], 1.0),
        timeline => (timeline, IndexResult::TIMELINE_SECONDS),
    };
    let point = |(index, rate): (usize, &f64)| {
        let place = AxisPosition::number((index + 1) as f64 * step);
        Point::new(&result.engine, place, rate / 1e6)
    };
    rates.iter().enumerate().map(point).collect()
}
