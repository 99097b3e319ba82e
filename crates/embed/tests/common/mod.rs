//! What the tests of both languages share.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The shared library (`so`) or the static one (`a`), next to the test that it was built for.
pub fn library(kind: &str) -> PathBuf {
    let test = env::current_exe().expect("a path");
    let path = test.with_file_name(format!("libamalgam_embed.{kind}"));
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

/// A path in this crate's folder.
pub fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The example in this language in the crate's page.
pub fn example(language: &str) -> String {
    let page = fs::read_to_string(own("README.md")).expect("the page");
    let (_, rest) = page.split_once(&format!("```{language}\n")).expect("an example");
    rest.split("```").next().expect("its end").to_owned()
}

/// An empty folder of this test.
pub fn folder(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("amalgam-embed-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Whether a program is installed: one that prints its version.
pub fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The output of a command that must succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().expect("a program that starts");
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text
}
