//! The pipelined hash table (FPL 2013): Virtex-6 at 156.25 MHz, simulated here cycle by cycle.

mod conflicts;
mod figure_6;
mod figure_9;
mod table_1;

use super::plan::{Figure, Program, Reading, Run};
use super::point::AxisPosition;
use super::scale_profile::ScaleProfile;

/// The figures of this paper.
pub fn figures(profile: &ScaleProfile) -> Vec<Figure> {
    vec![
        table_1::figure(profile),
        figure_6::figure(profile),
        figure_9::figure(profile),
        conflicts::figure(profile),
    ]
}

/// A run that prints one of the hardware's own tables, whose points have their places.
fn table(name: &str, seconds: f64) -> Run {
    Run {
        place: AxisPosition::named(0, name),
        program: Program::Hardware,
        arguments: vec![name.to_owned(), "--json".to_owned()],
        reading: Reading::Points,
        seconds,
        repeats: false,
    }
}
