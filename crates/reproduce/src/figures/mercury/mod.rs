//! Mercury (SYSTOR 2013): 12 cores at 2.67 GHz, memcached 1.4.13 embedded; `global-lock` stands for
//! the latter.

mod expansion;
mod figure_1;
mod figure_3;
mod figure_4;
mod figure_4_model;
mod figure_5;

use super::plan::Figure;
use super::scale_profile::ScaleProfile;

/// The figures of this paper.
pub fn figures(profile: &ScaleProfile) -> Vec<Figure> {
    vec![
        figure_1::figure(profile),
        figure_3::figure(profile),
        figure_4::figure(profile),
        figure_4_model::figure(profile),
        figure_5::figure(profile),
        expansion::figure(profile),
    ]
}
