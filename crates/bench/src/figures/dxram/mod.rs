//! DXRAM: metadata of ranges, nodes of 4 cores and gigabit Ethernet.

mod figure_3;
mod figure_4;
mod figure_5;

use super::plan::Figure;
use super::setting::Setting;

/// Its figures.
pub fn figures(setting: &Setting) -> Vec<Figure> {
    vec![figure_3::figure(setting), figure_4::figure(setting), figure_5::figure(setting)]
}
