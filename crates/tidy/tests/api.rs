//! The public interface of `amalgam-index` stays compatible, or its version changes.
//!
//! `crates/index/api.txt` lists the interface and the version that the list was written for. After
//! a change, `AMALGAM_WRITE_API=1 cargo test -p amalgam-tidy --test api` writes it anew. Additions
//! are allowed at any time. Removing or changing a line needs a new minor version in `Cargo.toml`
//! first (a major one from 1.0 on), and a line in the changelog.

use std::collections::BTreeSet;
use std::fs;

use amalgam_tidy::{Source, assert_none, has_word, promises, root};

/// Files whose public items are promised, and the one name of the file if it is not all of them.
const FILES: [(&str, Option<&str>); 9] = [
    ("map/mod.rs", None),
    ("map/builder.rs", None),
    ("map/handle.rs", None),
    ("map/compute.rs", None),
    ("map/removal.rs", None),
    ("map/task.rs", None),
    ("map/typed.rs", None),
    ("statistics.rs", None),
    ("configuration.rs", Some("OpenError")),
];

/// How implementations for types end that are private to these files.
const PRIVATE: [&str; 3] = ["for Reads<F>", "for Shown<F>", "for Listener"];

fn present() -> BTreeSet<String> {
    let read = |path: &str| {
        let path = root().join("crates/index/src").join(path);
        let text = fs::read_to_string(&path).expect("a source of the library");
        Source { path: path.display().to_string(), text }
    };
    let mut lines = BTreeSet::new();
    for (path, name) in FILES {
        let own = promises(&read(path));
        let is_wanted = |line: &String| {
            name.is_none_or(|name| has_word(line, name) && !has_word(line, "pub fn"))
                // Interfaces between the files of the library.
                && !line.starts_with("pub use ")
                && !PRIVATE.iter().any(|end| line.ends_with(end))
        };
        lines.extend(own.into_iter().filter(is_wanted));
    }
    let roots = promises(&read("lib.rs"));
    lines.extend(roots.into_iter().filter(|line| {
        let engine = [
            "engine::Engine",
            "hotring::",
            "memc3::",
            "mercury::",
            "pipeline::",
            "map::",
            "statistics::",
        ];
        engine.iter().any(|module| line.starts_with(&format!("pub use {module}")))
    }));
    lines
}

/// The version up to the number that a breaking change raises.
fn version() -> String {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace");
    let line = text.lines().find(|line| line.starts_with("version = ")).expect("a version");
    let number = line.split('"').nth(1).expect("a number");
    let kept = if number.starts_with("0.") { 2 } else { 1 };
    number.split('.').take(kept).collect::<Vec<_>>().join(".")
}

#[test]
fn what_embedders_use_stays_or_the_version_says_so() {
    let path = root().join("crates/index/api.txt");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let (head, committed) = text.split_once('\n').unwrap_or_default();
    let committed: BTreeSet<String> = committed.lines().map(str::to_owned).collect();
    let present = present();
    let gone: Vec<_> = committed.difference(&present).collect();
    let new: Vec<_> = present.difference(&committed).collect();
    let own = format!("amalgam-index {}", version());
    assert!(
        gone.is_empty() || head != own,
        "programs that use {head} break: raise the version, then write the list.\n{gone:#?}"
    );
    if std::env::var_os("AMALGAM_WRITE_API").is_some() {
        let lines: Vec<_> = present.iter().map(String::as_str).collect();
        fs::write(&path, format!("{own}\n{}\n", lines.join("\n"))).expect("writes the list");
        return;
    }
    assert!(
        head == own && gone.is_empty() && new.is_empty(),
        "write crates/index/api.txt anew (the head of this test says how): {new:#?} {gone:#?}"
    );
}

#[test]
fn a_signature_over_lines_is_one_promise() {
    let text = [
        "/// Doc.",
        "#[derive(Clone)]",
        "pub struct Pair<T> {",
        "    /// Left.",
        "    pub left: T,",
        "    right: T,",
        "}",
        "",
        "impl<T> Pair<T> {",
        "    /// Swaps.",
        "    pub fn swap(",
        "        self,",
        "        times: usize,",
        "    ) -> Self {",
        "        self",
        "    }",
        "",
        "    fn inner(&self) {}",
        "}",
        "",
        "pub enum Way {",
        "    There(u8),",
        "    Back,",
        "}",
        "",
        "impl Drop for Pair<u8> {",
        "}",
        "impl Way for u8 {}",
        "pub use pair::{Pair, Way};",
    ]
    .join("\n");
    let source = Source { path: "pair.rs".to_owned(), text };
    let wanted = [
        "#[derive(Clone)] pub struct Pair<T>",
        "struct Pair<T>: pub left: T",
        "impl<T> Pair<T>: pub fn swap(self, times: usize) -> Self",
        "pub enum Way",
        "enum Way: There(u8)",
        "enum Way: Back",
        "impl Drop for Pair<u8>",
        "impl Way for u8",
        "pub use pair::{Pair, Way}",
    ];
    assert_eq!(promises(&source), wanted);
}

/// A program that embeds the index gets no server and no unneeded crates.
#[test]
fn the_library_depends_on_two_crates() {
    let text = fs::read_to_string(root().join("crates/index/Cargo.toml")).expect("its manifest");
    let (_, section) = text.split_once("[dependencies]\n").expect("dependencies");
    let names: Vec<_> = section.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(names, ["amalgam-op.workspace = true", "libc.workspace = true"]);
}

/// Whether a line declares something that has a page, or a place on one, in the documentation.
fn declares(line: &str) -> bool {
    let kinds = ["pub fn ", "pub async fn ", "pub struct ", "pub enum ", "pub trait ", "pub type "];
    kinds.iter().any(|kind| line.trim_start().starts_with(kind))
}

#[test]
fn each_item_for_embedders_has_an_example() {
    let mut offences = Vec::new();
    let mut items = 0;
    for (path, _) in FILES.iter().filter(|(_, name)| name.is_none()) {
        let text = fs::read_to_string(root().join("crates/index/src").join(path)).expect("a file");
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| declares(line)) {
            items += 1;
            let above = lines[..number].iter().rev().map(|line| line.trim_start());
            let mut head =
                above.take_while(|line| line.starts_with("///") || line.starts_with('#'));
            if !head.any(|line| line == "/// ```") {
                offences.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(items > 50, "the files have more items than {items}");
    assert_none("items with an example", &offences);
}
