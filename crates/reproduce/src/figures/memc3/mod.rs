//! MemC3 (NSDI 2013): two sockets of 6 cores at 2.27 GHz, 32 GB. `global-lock` stands for
//! memcached's `LRU+chaining`, `lru-cuckoo` for its middle step.

mod figure_4;
mod figure_5;
mod figure_6;
mod figure_7;
mod figure_8;
mod table_1;
mod table_2;
mod table_3;

use super::model;
use super::plan::Figure;
use super::setting::Setting;

/// Its figures.
pub fn figures(setting: &Setting) -> Vec<Figure> {
    vec![
        table_1::figure(setting),
        table_2::figure(setting),
        table_3::figure(setting),
        figure_4::figure(setting),
        figure_5::figure(setting),
        model::memc3(setting),
        figure_6::figure(setting),
        figure_7::figure(setting),
        figure_8::figure(setting),
    ]
}
