//! Tests of `amalgam-lab reproduce` at toy size: the figures are written, none is empty, and a run
//! that was measured is not measured again. `make soak` tests every figure that needs no other
//! program.

mod browser;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Figures of each paper and of each kind: engines, the machine, the hardware's model, a cluster.
const FIGURES: [&str; 6] = [
    "mercury/figure-1",
    "hotring/table-2",
    "hotring/figure-16",
    "memc3/table-1",
    "fpl13/table-1",
    "dxram/figure-3",
];

/// The figures of the long form: all except the count of DRAM accesses, which takes a minute of
/// simulated caches, those of the hardware, which needs Verilator, and Mercury's expansion, because
/// a test cannot rely on an expansion within a fraction of a second.
const ALL_FIGURES: [&str; 7] = [
    "mercury/figure-1",
    "mercury/figure-4",
    "mercury/figure-5",
    "hotring",
    "memc3",
    "fpl13/table-1",
    "dxram",
];

/// Builds the product's binary into the laboratory's folder, because the figures of servers and
/// clusters start it. For this test, Cargo builds only this package's own binary; from the root it
/// uses the libraries that all tests share.
fn build_the_product() {
    let own = Path::new(env!("CARGO_BIN_EXE_amalgam-lab"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    cargo.args(["build", "-q", "--bin", "amalgam"]);
    if own.parent().is_some_and(|folder| folder.ends_with("release")) {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo starts").success());
}

fn reproduce(folder: &Path, what: &[&str]) -> Output {
    let command = ["reproduce", "--scale", "toy", "--out"];
    let output = Command::new(env!("CARGO_BIN_EXE_amalgam-lab"))
        .args(command)
        .arg(folder)
        .args(what)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn every_figure_is_measured_once() {
    build_the_product();
    let folder = std::env::temp_dir().join(format!("amalgam-reproduce-{}", std::process::id()));
    let is_long = std::env::var_os("AMALGAM_EFFORT").is_some();
    let (chosen, least): (&[&str], _) =
        if is_long { (&ALL_FIGURES, 25) } else { (&FIGURES, FIGURES.len()) };
    let first = reproduce(&folder, chosen);
    let table = String::from_utf8_lossy(&first.stdout);
    let mut figures = 0;
    for entry in fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = fs::read(&path).expect("the figure's JSON");
        let figure: Value = serde_json::from_slice(&text).expect("JSON");
        let panels = figure["panels"].as_array().expect("panels");
        let is_empty = |panel: &Value| panel["points"].as_array().is_none_or(Vec::is_empty);
        assert!(!panels.iter().any(is_empty), "{}: {figure:#}", path.display());
        let compared = figure["compared"].as_array().expect("printed numbers");
        for one in compared {
            // A printed number that has no measured counterpart says why.
            assert_ne!(
                one["ours"].is_number(),
                one["absent"].is_string(),
                "{}: {one}",
                path.display()
            );
            assert!(table.contains(one["what"].as_str().expect("a name")));
        }
        let picture = fs::read_to_string(path.with_extension("svg")).expect("the picture");
        assert!(picture.starts_with("<svg") && !picture.contains("not measured"));
        figures += 1;
    }
    assert!(figures >= least, "{figures} figures");
    let page = fs::read_to_string(folder.join("report.html")).expect("the page");
    assert_eq!(page.matches("<section").count(), figures);
    browser::look_at(&page);

    let again = reproduce(&folder, chosen);
    let progress = String::from_utf8_lossy(&again.stderr);
    assert!(progress.contains("figures") && !progress.contains(" left"), "{progress}");
    documents_and_comparisons(&folder, figures);
    fs::remove_dir_all(&folder).expect("the folder goes");
}

/// Checks what is made from a folder of figures without measuring anything.
fn documents_and_comparisons(folder: &Path, figures: usize) {
    let amalgam = |arguments: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_amalgam-lab"))
            .arg("reproduce")
            .args(arguments)
            .output()
            .expect("the program starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let docs = folder.join("docs");
    let (is_written, _) = amalgam(&["--out".as_ref(), folder, "--docs".as_ref(), &docs]);
    assert!(is_written);
    let text = fs::read_to_string(docs.join("reproduce.md")).expect("the document");
    assert!(text.contains("## What falls short") && text.contains("amalgam-lab bench index"));
    let pictures = text.matches("](reproduce/").count();
    assert_eq!(pictures, figures, "a picture for each figure");
    let kept = fs::read_dir(docs.join("reproduce")).expect("pictures and JSON").count();
    assert_eq!(kept, 2 * figures);
    // The kept JSON makes the same document again.
    let (is_written, _) =
        amalgam(&["--out".as_ref(), &docs.join("reproduce"), "--docs".as_ref(), &docs]);
    assert!(is_written);
    assert_eq!(fs::read_to_string(docs.join("reproduce.md")).expect("the document"), text);

    let (agrees, told) = amalgam(&["--compare".as_ref(), folder, folder]);
    assert!(agrees && told.contains("differ by 0 % in the median"), "{told}");
    let other = folder.join("other");
    fs::create_dir_all(&other).expect("a folder");
    for entry in fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("one").path()) {
        if entry.extension().is_some_and(|extension| extension == "json") {
            fs::copy(&entry, other.join(entry.file_name().expect("a name"))).expect("a copy");
        }
    }
    // With a changed number, the folders no longer agree.
    let table = other.join("hotring-table-2.json");
    let text = fs::read_to_string(&table).expect("a figure");
    fs::write(&table, text.replace("\"ours\": 9", "\"ours\": 1")).expect("it is written");
    let (agrees, _) = amalgam(&["--compare".as_ref(), folder, &other]);
    assert!(!agrees, "a number was changed");
}

#[test]
fn an_unknown_figure_is_answered_with_those_there_are() {
    let output = Command::new(env!("CARGO_BIN_EXE_amalgam-lab"))
        .args(["reproduce", "hotring/figure-99"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("hotring/figure-16"), "{text}");
}
