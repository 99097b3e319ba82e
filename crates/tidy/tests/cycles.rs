//! No crate has modules that depend on each other in a circle.
//!
//! [`amalgam_tidy::cycles`] states the rule. `cargo run -p amalgam-tidy --example cycles` prints
//! the cycles of all crates, or of those whose folders are named behind `--`.

use std::fs;

use amalgam_tidy::{assert_none, cycles, root, sources};

#[test]
fn modules_depend_on_each_other_one_way() {
    let sources = sources(&["rs"]);
    let mut offences = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("the crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        for cycle in cycles(&format!("crates/{name}/src/"), &sources) {
            offences.push(format!("{name}: {}", cycle.modules.join(", ")));
            offences.extend(cycle.edges.iter().map(|edge| format!("  {edge}")));
        }
    }
    assert_none("modules without cycles", &offences);
}
