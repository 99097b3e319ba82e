//! The rules of this project, read from the sources. The tests of this crate apply them.
//!
//! Invariants: the crate reads text, knows only as much syntax as `lexer` does, and names each
//! offender by path and line, so that a failure says what to do.

#![forbid(unsafe_code)]

mod commands;
mod lexer;
mod modules;
mod phrases;
mod promises;
mod quotes;
mod unsafe_code;

use std::fs;
use std::path::{Path, PathBuf};

pub use commands::Commands;
pub use modules::{Cycle, cycles};
pub use phrases::{Offence, offences, prose_sources};
pub use promises::promises;
pub use quotes::{Quote, quotes};
pub use unsafe_code::{UnsafeCount, UnsafeRow, unsafe_rows};

/// A text file of the repository.
pub struct Source {
    /// Path from the root, with `/` between names.
    pub path: String,
    /// The content of the file.
    pub text: String,
}

impl Source {
    /// Lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines of code with their numbers: the text before `//`. String literals are not parsed,
    /// because the rules that use this do not need it.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().map(|(number, line)| (number, line.split("//").next().unwrap_or(line)))
    }

    /// Whether the path has this extension.
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|other| other == extension)
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/tidy").to_path_buf()
}

/// All text files under the root whose extension is one of `extensions`, except build outputs.
pub fn sources(extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root(), extensions, &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(!found.is_empty(), "the sources were not found under {}", root().display());
    found
}

const OUTPUTS: [&str; 5] = ["target", "corpus", "artifacts", "build", "__pycache__"];

fn collect(directory: &Path, extensions: &[&str], found: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).expect("a readable folder").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || OUTPUTS.contains(&name.as_str()) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(&path, extensions, found);
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted))
        {
            let text = fs::read_to_string(&path).expect("a text file");
            let path = path.strip_prefix(root()).expect("a path below the root");
            found.push(Source { path: path.to_string_lossy().into_owned(), text });
        }
    }
}

/// Whether `word` stands in `line` without a letter, digit or underscore next to it.
pub fn has_word(line: &str, word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    line.match_indices(word).any(|(start, _)| {
        let end = start + word.len();
        !line[..start].bytes().next_back().is_some_and(is_part)
            && !line[end..].bytes().next().is_some_and(is_part)
    })
}

/// Reports all offences at once.
///
/// # Panics
///
/// If there is an offence.
pub fn assert_none(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}
