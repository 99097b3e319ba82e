//! The inventory of `unsafe` in docs/unsafe.md: where it stands, how often, and why.

use std::collections::BTreeMap;
use std::fs;

use amalgam_tidy::{UnsafeCount, assert_none, root, sources, unsafe_rows};

const INVENTORY: &str = "docs/unsafe.md";

/// `unsafe` stands only where the inventory says, and as often as it says. A count that is too
/// high in the inventory is an offence too, so that what has gone cannot come back unseen.
#[test]
fn unsafe_stands_only_where_the_inventory_says() {
    let text = fs::read_to_string(root().join(INVENTORY)).expect("the inventory");
    let rows = unsafe_rows(&text);
    let mut offences = Vec::new();
    let mut found = BTreeMap::<&str, UnsafeCount>::new();
    for source in sources(&["rs"]) {
        let count = UnsafeCount::of(&source);
        if count == UnsafeCount::default() {
            continue;
        }
        match rows.iter().find(|row| source.path.starts_with(&row.path)) {
            Some(row) => *found.entry(&row.path).or_default() += count,
            None => offences.push(format!("{}: {count:?} outside of {INVENTORY}", source.path)),
        }
    }
    for row in &rows {
        let count = found.get(&*row.path).copied().unwrap_or_default();
        if count != row.count {
            let UnsafeCount { blocks, declarations } = row.count;
            let grew = count.blocks > blocks || count.declarations > declarations;
            let advice = if grew { "do without, or give the reason" } else { "lower the row" };
            offences.push(format!("{}: {count:?}, not {:?}: {advice}", row.path, row.count));
        }
        if row.reason.split(' ').count() < 3 {
            offences.push(format!("{}: give the reason", row.path));
        }
    }
    assert_none("unsafe lives in few places, each counted and explained", &offences);
}

/// Crates without `unsafe` say so to the compiler, which then refuses it without this test.
#[test]
fn crates_without_unsafe_forbid_it() {
    let files = sources(&["rs"]);
    let mut offences = Vec::new();
    for root in files.iter().filter(|source| {
        let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|end| source.path.ends_with(end));
        is_root && source.path.starts_with("crates/")
    }) {
        let (folder, _) = root.path.rsplit_once('/').expect("a folder");
        let folder = format!("{folder}/");
        let inside = files.iter().filter(|source| source.path.starts_with(&folder));
        let has_unsafe = inside.map(UnsafeCount::of).any(|count| count != UnsafeCount::default());
        let attributes = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"];
        if !has_unsafe && !attributes.iter().any(|attribute| root.text.contains(attribute)) {
            offences.push(format!("{}: #![forbid(unsafe_code)]", root.path));
        }
    }
    assert_none("what has no unsafe keeps it out", &offences);
}
