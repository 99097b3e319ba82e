//! Mercury (SYSTOR 2013): 12 cores at 2.67 GHz, memcached 1.4.13 embedded; `global-lock` stands for
//! the latter.

mod expansion;
mod figure_1;
mod figure_3;
mod figure_4;
mod figure_5;

pub use figure_4::ENGINES as FIGURE_4;

use super::model;
use super::plan::Figure;
use super::setting::Setting;

/// Its figures.
pub fn figures(setting: &Setting) -> Vec<Figure> {
    vec![
        figure_1::figure(setting),
        figure_3::figure(setting),
        figure_4::figure(setting),
        model::mercury(setting),
        figure_5::figure(setting),
        expansion::figure(setting),
    ]
}
