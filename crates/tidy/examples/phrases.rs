//! Prints the banned phrases below the paths that are named, or of the whole tree:
//! `cargo run -p amalgam-tidy --example phrases -- crates/op docs`.

use amalgam_tidy::{offences, prose_sources};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for source in prose_sources() {
        if !wanted.is_empty() && !wanted.iter().any(|path| source.path.starts_with(path)) {
            continue;
        }
        for one in offences(&source) {
            println!("{}:{}: {}", source.path, one.line, one.text);
        }
    }
}
