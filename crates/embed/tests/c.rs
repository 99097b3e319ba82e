//! The header: it says what the library exports, and a C program gets along with it.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use amalgam_embed::Code;
use amalgam_index::ENGINES;
use common::{example, folder, is_installed, library, output, own};

fn read(path: &str) -> String {
    fs::read_to_string(own(path)).expect(path)
}

/// The header without comments.
fn header() -> String {
    let text = read("include/amalgam.h");
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.filter_map(|part| part.split_once("*/")).fold(first, |code, (_, rest)| code + rest)
}

/// What `name` finds in each parameter of a list.
fn names<'t>(parameters: &'t str, name: impl Fn(&'t str) -> Option<&'t str>) -> Vec<&'t str> {
    parameters.split(',').map(str::trim).filter(|text| !text.is_empty()).filter_map(name).collect()
}

/// The name and the text of the parameters of a function at the beginning of `text`.
fn function(text: &str) -> (&str, &str) {
    let (name, rest) = text.split_once('(').expect("a bracket");
    (name, rest.split_once(')').expect("a bracket").0)
}

fn last_word(text: &str) -> Option<&str> {
    text.rsplit(|letter: char| letter.is_whitespace() || letter == '*').next()
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let (header, source) = (header(), read("src/lib.rs"));
    let mut declared = Vec::new();
    for part in header.split(';').filter(|part| part.contains('(')) {
        let (start, parameters) = function(part);
        let parameters = names(parameters, last_word);
        let parameters = if parameters == ["void"] { Vec::new() } else { parameters };
        declared.push((last_word(start).expect("a name"), parameters));
    }
    let mut exported = Vec::new();
    for part in source.split("(no_mangle)]").skip(1) {
        let (_, part) = part.split_once("extern \"C\" fn ").expect("a function");
        let (name, parameters) = function(part);
        exported.push((name, names(parameters, |parameter| parameter.split(':').next())));
    }
    assert!(exported.len() > 10, "{exported:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_header_has_the_codes_and_names_the_engines() {
    let header = header();
    let body = header.split_once("enum {").and_then(|(_, rest)| rest.split_once('}'));
    let declared = names(body.expect("the codes").0, Some);
    // AMALGAM_BAD_POINTER of BadPointer.
    let constant = |code: &Code| {
        let mut name = "AMALGAM".to_owned();
        for letter in format!("{code:?}").chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        format!("{name} = {}", *code as i32)
    };
    let codes: Vec<String> = Code::ALL.iter().map(constant).collect();
    assert_eq!(declared, codes);
    let text = read("include/amalgam.h");
    for engine in ENGINES {
        assert!(text.contains(&format!("\"{}\"", engine.name)), "{}", engine.name);
    }
}

#[test]
fn a_c_program_uses_the_library() {
    if !is_installed("cc") {
        eprintln!("skipped: there is no C compiler (cc)");
        return;
    }
    let folder = folder("c");
    // A Rust library asks for the last ones when it is linked statically.
    for (kind, libraries) in [("so", ""), ("a", "-lgcc_s -lm -ldl")] {
        let compile = |program: &Path, source: &Path| {
            let mut compile = Command::new("cc");
            compile
                .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
                .args([program, source, &library(kind)])
                .args(libraries.split_whitespace())
                .arg("-I")
                .arg(own("include"));
            output(&mut compile);
        };
        let (program, source) = (folder.join(kind), folder.join("example.c"));
        fs::write(&source, example("c")).expect("a file");
        compile(&program, &source);
        assert_eq!(output(&mut Command::new(&program)), "42\n");
        compile(&program, &own("tests/program.c"));
        for engine in ENGINES {
            let text = output(Command::new(&program).arg(engine.name));
            let expected = format!("{}: every check passes\n", env!("CARGO_PKG_VERSION"));
            assert_eq!(text, expected, "{} and {kind}", engine.name);
        }
    }
    fs::remove_dir_all(&folder).expect("the folder");
}
