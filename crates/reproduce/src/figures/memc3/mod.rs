//! MemC3 (NSDI 2013): two sockets of 6 cores at 2.27 GHz, 32 GB. `global-lock` stands for
//! memcached's `LRU+chaining`, `lru-cuckoo` for its middle step.

mod figure_4;
mod figure_5;
mod figure_5_model;
mod figure_6;
mod figure_7;
mod figure_8;
mod table_1;
mod table_2;
mod table_3;

use super::plan::Figure;
use super::scale_profile::ScaleProfile;

/// The figures of this paper.
pub fn figures(profile: &ScaleProfile) -> Vec<Figure> {
    vec![
        table_1::figure(profile),
        table_2::figure(profile),
        table_3::figure(profile),
        figure_4::figure(profile),
        figure_5::figure(profile),
        figure_5_model::figure(profile),
        figure_6::figure(profile),
        figure_7::figure(profile),
        figure_8::figure(profile),
    ]
}
