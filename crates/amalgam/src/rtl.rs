//! `amalgam rtl`: hands over to `amalgam-rtl`, the simulated hardware.
//!
//! It is a program of its own because it holds what Verilator makes of the hardware: so nothing
//! else here needs Verilator or a C++ compiler to be built.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

const PROGRAM: &str = "amalgam-rtl";
const HOW_TO_BUILD: &str = "cargo build --release -p amalgam-rtl --features verilated";

/// The arguments, which are the other program's.
#[derive(clap::Args)]
pub struct Rtl {
    /// What it is to do: `serve [HOST:PORT]`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<OsString>,
}

/// Becomes the other program; returns only if that cannot be.
///
/// # Errors
///
/// If it was not built, or does not start.
pub fn run(rtl: &Rtl) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("finding this program")?;
    let folder = own.parent().unwrap_or(Path::new("."));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(program) = find(folder, &path) else {
        bail!(
            "{PROGRAM} is neither in {} nor in PATH; it needs Verilator and is built by \
             `{HOW_TO_BUILD}`",
            folder.display()
        );
    };
    let error = Command::new(&program).args(&rtl.arguments).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}

/// The program beside this one, or the first of `path`.
fn find(beside: &Path, path: &OsStr) -> Option<PathBuf> {
    let folders = std::iter::once(beside.to_owned()).chain(std::env::split_paths(path));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_beside_this_one_comes_first() {
        let folder = std::env::temp_dir().join(format!("{PROGRAM}-{}", std::process::id()));
        let (beside, other) = (folder.join("beside"), folder.join("other"));
        let path = std::env::join_paths([Path::new("/nonexistent"), &other]).unwrap();
        assert_eq!(find(&beside, &path), None);
        for place in [&other, &beside] {
            std::fs::create_dir_all(place).unwrap();
            std::fs::write(place.join(PROGRAM), "").unwrap();
            assert_eq!(find(&beside, &path), Some(place.join(PROGRAM)));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
