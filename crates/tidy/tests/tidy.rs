//! The rules of this project. Each test is one rule and lists every offender.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use amalgam_tidy::{Source, assert_none, has_word, root, sources};

const MAX_COLUMNS: usize = 100;
const MAX_LINES: usize = 800;

/// What a folder's code must not name, and why.
const ABSENT: [(&str, &[&str], &str); 8] = [
    ("crates/op/src/", &["amalgam_index", "amalgam_protocol", "std::net", "std::io"], "plain data"),
    ("crates/op/src/", &["SystemTime", "Instant"], "the time is an argument"),
    (
        "crates/protocol/src/",
        &["amalgam_index", "amalgam_server", "std::net", "std::fs", "TcpStream", "UdpSocket"],
        "bytes to operations and back, no I/O and no engine",
    ),
    ("crates/protocol/src/", &["SystemTime", "Instant", "unsafe"], "no clock, no unsafe"),
    (
        "crates/index/src/",
        &["amalgam_protocol", "amalgam_server", "std::net", "std::fs", "TcpStream", "UdpSocket"],
        "engines see no wire bytes and no sockets",
    ),
    ("crates/index/src/", &["SystemTime"], "the time is an argument"),
    (
        "crates/cluster/src/",
        &["std::net", "std::fs", "std::time", "SystemTime", "Instant", "rand", "unsafe"],
        "inputs to decisions: no I/O, no clock, no chance",
    ),
    ("crates/", &["todo!", "unimplemented!", "dbg!"], "nothing is left open"),
];

fn rust_sources() -> Vec<Source> {
    let tests_of_this_crate = "crates/tidy/";
    let mut found = sources(&["rs"]);
    found.retain(|source| !source.path.starts_with(tests_of_this_crate));
    found
}

fn offence(source: &Source, number: usize, text: &str) -> String {
    format!("{}:{number}: {text}", source.path)
}

#[test]
fn lines_are_at_most_100_columns_wide() {
    let mut offences = Vec::new();
    for source in sources(&["rs", "py", "sh", "md", "sv", "v", "toml"]) {
        if source.has_extension("toml") && source.path.ends_with("Cargo.toml") {
            continue;
        }
        for (number, line) in source.lines() {
            // Rows of a table cannot be wrapped.
            let is_table = source.has_extension("md") && line.trim_start().starts_with('|');
            let columns = line.chars().count();
            if columns > MAX_COLUMNS && !is_table {
                offences.push(offence(&source, number, &format!("{columns} columns")));
            }
        }
    }
    assert_none("lines of at most 100 columns", &offences);
}

#[test]
fn no_conflict_marks_are_left() {
    // The marks are put together here, so that these lines are not conflict marks themselves.
    let marks = ["<", ">"].map(|sign| format!("{} ", sign.repeat(7)));
    let mut offences = Vec::new();
    for source in sources(&["rs", "py", "sh", "md", "sv", "v", "toml", "yml", "yaml"]) {
        for (number, line) in source.lines() {
            if marks.iter().any(|mark| line.contains(mark)) {
                offences.push(offence(&source, number, "resolve this conflict"));
            }
        }
    }
    assert_none("conflicts resolved", &offences);
}

#[test]
fn files_have_at_most_800_lines() {
    let mut offences = Vec::new();
    for source in sources(&["rs", "py", "sh", "sv", "v"]) {
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            offences.push(offence(&source, lines, "split this file"));
        }
    }
    assert_none("files of at most 800 lines", &offences);
}

#[test]
fn every_source_file_opens_with_its_purpose() {
    let offences: Vec<_> = rust_sources()
        .iter()
        .filter(|source| !source.text.starts_with("//!") && !source.text.starts_with("#!["))
        .map(|source| offence(source, 1, "open with //! and say what lives here"))
        .collect();
    assert_none("each file's head says what it is", &offences);
}

/// The folders of the engines, from the table of engines: `$crate::mercury::Mercury`.
fn engine_folders(sources: &[Source]) -> Vec<String> {
    let is_table = |source: &&Source| source.path == "crates/index/src/engines.rs";
    let table = sources.iter().find(is_table).expect("the table of engines");
    let paths = table.text.split("$crate::").skip(1);
    let mut folders: Vec<_> = paths
        .filter_map(|path| path.split_once("::"))
        .map(|(folder, _)| folder.to_owned())
        .collect();
    folders.sort();
    folders.dedup();
    folders
}

#[test]
fn no_engine_imports_another() {
    let mut offences = Vec::new();
    let sources = rust_sources();
    let engines = engine_folders(&sources);
    assert!(engines.len() > 2, "the table of engines lists folders: {engines:?}");
    for source in sources {
        let Some(inner) = source.path.strip_prefix("crates/index/src/") else { continue };
        let Some(own) = engines.iter().find(|engine| inner.starts_with(&format!("{engine}/")))
        else {
            continue;
        };
        for (number, line) in source.code() {
            for other in engines.iter().filter(|other| *other != own) {
                let names = [format!("crate::{other}"), format!("super::{other}")];
                if names.iter().any(|name| has_word(line, name)) {
                    offences.push(offence(&source, number, line.trim()));
                }
            }
        }
    }
    assert_none("what engines share lives in `mem`", &offences);
}

#[test]
fn what_is_absent_stays_absent() {
    let mut offences = Vec::new();
    for source in rust_sources() {
        for (folder, words, reason) in ABSENT {
            if !source.path.starts_with(folder) {
                continue;
            }
            for (number, line) in source.code() {
                if let Some(word) = words.iter().find(|word| has_word(line, word)) {
                    offences.push(offence(&source, number, &format!("`{word}`: {reason}")));
                }
            }
        }
    }
    assert_none("crates know only what they must", &offences);
}

#[test]
fn no_test_is_ignored() {
    let mut offences = Vec::new();
    for source in rust_sources() {
        for (number, line) in source.code() {
            let attribute = line.trim_start();
            if attribute.starts_with("#[ignore") {
                offences.push(offence(&source, number, attribute));
            }
        }
    }
    assert_none("a test runs or goes", &offences);
}

/// `(name, line)` of each of our crates that a manifest's section names.
fn our_crates(manifest: &str, section: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line.trim() == format!("[{section}]");
        } else if is_inside && line.starts_with("amalgam-") {
            let end = line.find(['.', ' ', '=']).unwrap_or(line.len());
            names.push(line[..end].to_owned());
        }
    }
    names
}

#[test]
fn dependencies_point_one_way() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace");
    let order = our_crates(&workspace, "workspace.dependencies");
    assert!(order.len() >= 5, "our crates are listed in the workspace's dependencies: {order:?}");
    let place: BTreeMap<_, _> = order.iter().zip(0..).collect();
    let mut offences = Vec::new();
    for source in sources(&["toml"]) {
        if !source.path.starts_with("crates/") || !source.path.ends_with("/Cargo.toml") {
            continue;
        }
        let name_line = source.text.lines().find(|line| line.starts_with("name = "));
        let name = name_line.and_then(|line| line.split('"').nth(1)).expect("a name").to_owned();
        // A crate that nobody depends on, such as the binary, may use all of them.
        let own = place.get(&name).copied().unwrap_or(i32::MAX);
        for other in our_crates(&source.text, "dependencies") {
            match place.get(&other) {
                Some(place) if *place < own => {}
                _ => offences.push(format!("{name} must not depend on {other}")),
            }
        }
    }
    assert_none("a crate depends on crates above it in the list only", &offences);
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = |letter: char| match letter {
        ' ' | '-' => Some('-'),
        letter if letter.is_alphanumeric() || letter == '_' => Some(letter.to_ascii_lowercase()),
        _ => None,
    };
    heading.trim_start_matches('#').trim().chars().filter_map(kept).collect()
}

fn has_anchor(path: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().any(|line| line.starts_with('#') && anchor(line) == wanted)
}

#[test]
fn every_link_in_the_documents_resolves() {
    let mut offences = Vec::new();
    for source in sources(&["md"]) {
        let file = root().join(&source.path);
        for (number, line) in source.lines() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
                let there = match path {
                    "" => file.clone(),
                    path => file.parent().expect("a folder").join(path),
                };
                if !there.exists() || (!fragment.is_empty() && !has_anchor(&there, fragment)) {
                    offences.push(offence(&source, number, target));
                }
            }
        }
    }
    assert_none("links lead somewhere", &offences);
}

/// The link of an alert leads to a section about this alert.
#[test]
fn every_alert_links_to_its_runbook() {
    const PAGE: &str = "https://github.com/amalgam-kv/amalgam/blob/main/";
    let alerts = fs::read_to_string(root().join("packaging/prometheus/alerts.yml"));
    let alerts = alerts.expect("the alerts");
    let mut names = Vec::new();
    for alert in alerts.split("- alert: ").skip(1) {
        let name = alert.lines().next().expect("a name").trim();
        let (_, link) = alert.split_once("runbook_url: \"").unwrap_or_else(|| panic!("{name}"));
        let link = link.split('"').next().expect("a link");
        let (path, heading) = link
            .strip_prefix(PAGE)
            .and_then(|link| link.split_once('#'))
            .unwrap_or_else(|| panic!("{name}: {link}"));
        assert_eq!(heading, name.to_ascii_lowercase(), "{name}");
        assert!(has_anchor(&root().join(path), heading), "{name}: {link}");
        names.push(name);
    }
    assert!(names.len() >= 8 && names.iter().any(|name| name.contains("Evictions")), "{names:?}");
}

#[test]
fn the_root_has_its_documents() {
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
    ] {
        let text = fs::read_to_string(root().join(name)).unwrap_or_default();
        assert!(text.len() > 200, "{name} is missing or empty");
    }
}
