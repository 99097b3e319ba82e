//! DXRAM: metadata of ranges, nodes of 4 cores and gigabit Ethernet.

mod figure_3;
mod figure_4;
mod figure_5;

use super::plan::Figure;
use super::scale_profile::ScaleProfile;

/// Whether a program is on the path.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The figures of this paper.
pub fn figures(profile: &ScaleProfile) -> Vec<Figure> {
    vec![figure_3::figure(profile), figure_4::figure(profile), figure_5::figure(profile)]
}
