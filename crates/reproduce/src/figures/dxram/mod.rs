//! DXRAM: metadata of ranges, nodes of 4 cores and gigabit Ethernet.

mod figure_3;
mod figure_4;
mod figure_5;

use super::plan::Figure;
use super::setting::Setting;

/// Whether a program is on the path.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Its figures.
pub fn figures(setting: &Setting) -> Vec<Figure> {
    vec![figure_3::figure(setting), figure_4::figure(setting), figure_5::figure(setting)]
}
