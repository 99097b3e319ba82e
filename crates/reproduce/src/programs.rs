//! Finds programs of this project that other programs run: `amalgam` for servers and clusters,
//! `amalgam-peers`, `amalgam-rtl`. Each is looked for in the folder of the running program first,
//! then in `PATH`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A program of this project, and how to build it.
pub struct Companion {
    /// The name of its file.
    pub name: &'static str,
    /// The command that builds it.
    pub build: &'static str,
}

/// The product, which serves what is measured.
pub const AMALGAM: Companion =
    Companion { name: "amalgam", build: "cargo build --release --bin amalgam" };

impl Companion {
    /// Finds the path of the program.
    ///
    /// # Errors
    ///
    /// If it is neither in the folder of the running program nor in `PATH`; the text says how to
    /// build it.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        let own = std::env::current_exe().context("finding the path of this program")?;
        let folder = own.parent().unwrap_or(Path::new("."));
        let path = std::env::var_os("PATH").unwrap_or_default();
        self.find(folder, &path).with_context(|| {
            let Self { name, build } = self;
            format!("{name} is neither in {} nor in PATH; build it: {build}", folder.display())
        })
    }

    /// The program in the folder `own`, or else in the first folder of `path` that has it.
    fn find(&self, own: &Path, path: &OsStr) -> Option<PathBuf> {
        let folders = std::iter::once(own.to_owned()).chain(std::env::split_paths(path));
        folders.map(|folder| folder.join(self.name)).find(|program| program.is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_in_the_own_folder_comes_first() {
        let name = AMALGAM.name;
        let folder = std::env::temp_dir().join(format!("{name}-programs-{}", std::process::id()));
        let (own, other) = (folder.join("own"), folder.join("other"));
        let path = std::env::join_paths([Path::new("/nonexistent"), &other]).unwrap();
        assert_eq!(AMALGAM.find(&own, &path), None);
        for place in [&other, &own] {
            std::fs::create_dir_all(place).unwrap();
            std::fs::write(place.join(name), "").unwrap();
            assert_eq!(AMALGAM.find(&own, &path), Some(place.join(name)));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
