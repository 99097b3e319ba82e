//! Comments, texts and documents keep to plain English.
//!
//! `amalgam_tidy::offences` states the rules.
//! `cargo run -p amalgam-tidy --example phrases crates/op docs` prints the offences below the
//! folders that are named, or of the whole tree.

use amalgam_tidy::{assert_none, offences, prose_sources};

#[test]
fn prose_has_no_banned_phrases() {
    let mut found = Vec::new();
    for source in prose_sources() {
        let own = offences(&source);
        found.extend(own.iter().map(|one| format!("{}:{}: {}", source.path, one.line, one.text)));
    }
    assert_none("plain English", &found);
}
