//! Prints the cycles among modules of the crates whose folders are named, or of all:
//! `cargo run -p amalgam-tidy --example cycles -- cluster node`.

use std::fs;

use amalgam_tidy::{cycles, root, sources};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let sources = sources(&["rs"]);
    for entry in fs::read_dir(root().join("crates")).expect("the crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let found = cycles(&format!("crates/{name}/src/"), &sources);
        println!("{name}: {} cycles", found.len());
        for cycle in found {
            println!("  {}", cycle.modules.join(", "));
            for edge in cycle.edges {
                println!("    {edge}");
            }
        }
    }
}
