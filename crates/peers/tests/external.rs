//! Maps behind `include/amalgam_map.h`: the example is measured, and what cannot be used is refused
//! with what is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own, which ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("amalgam-external-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Builds the example, each of `changes` made to its text.
    fn library(&self, name: &str, changes: &[(&str, &str)]) -> PathBuf {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut text = std::fs::read_to_string(here.join("tests/external/striped_map.cc"))
            .expect("the example");
        for (from, to) in changes {
            assert!(text.contains(from), "the example has no '{from}' any more");
            text = text.replace(from, to);
        }
        let source = self.0.join(format!("{name}.cc"));
        std::fs::write(&source, text).expect("a source");
        let library = self.0.join(format!("lib{name}.so"));
        let built = Command::new("g++")
            .args(["-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
            .arg(here.join("include"))
            .arg(&source)
            .arg("-o")
            .arg(&library)
            .output()
            .expect("g++, which this crate is built with");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        library
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(engines: &str, more: &str) -> Output {
    let short =
        "bench index --keys 3000 --seconds 0.02 --rounds 2 --requests 20k --timed 2k --json";
    Command::new(env!("CARGO_BIN_EXE_amalgam-peers"))
        .args(short.split(' '))
        .arg(format!("--engine={engines}"))
        .args(more.split_whitespace())
        .output()
        .expect("it starts")
}

fn external(library: &Path) -> String {
    format!("external:{}", library.display())
}

fn lines(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// What is said of a library that is refused; nothing is measured.
fn refusal(library: &Path) -> String {
    let output = bench(&external(library), "");
    assert_eq!(output.status.code(), Some(1), "an error, and no crash: {output:?}");
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    assert!(line.get("ops_per_second").is_none());
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.contains(line["failure"].as_str().expect("a reason")));
    said
}

#[test]
fn the_example_is_measured_beside_the_engines() {
    let folder = Folder::new("measured");
    let name = external(&folder.library("striped", &[]));
    for more in [
        "--workload c",
        "--workload a --threads 2 --theta 0.99",
        "--workload get --batch 64",
        "--workload get --batch 64 --value-bytes 100 --key-bytes 24",
        "--workload set --value-bytes 0",
        "--workload miss",
        "--workload insert50",
    ] {
        let lines = lines(&bench(&format!("{name},memc3"), more));
        assert_eq!(lines.len(), 2, "{more}");
        let (own, other) = (&lines[0], &lines[1]);
        assert_eq!(own["engine"], name);
        assert!(own["ops_per_second"].as_f64() > Some(0.0), "{more}");
        // Under debug assertions every value that a read finds is compared with the one written.
        assert_eq!(own["hit_ratio"], other["hit_ratio"], "{more}: {own} {other}");
        if !more.contains("insert50") {
            assert_eq!(own["items"], other["items"], "{more}");
        }
    }
}

#[test]
fn what_is_optional_may_be_left_out() {
    let folder = Folder::new("optional");
    let library = folder.library("plain", &[("amalgam_map_get_batch(", "unused_get_batch(")]);
    let lines = lines(&bench(&external(&library), "--workload get --batch 64"));
    assert_eq!(lines[0]["hit_ratio"], 1.0);
}

#[test]
fn libraries_that_lack_something_are_refused() {
    let folder = Folder::new("lacking");
    let lacks = folder.library(
        "lacks",
        &[("amalgam_map_delete(", "other_delete("), ("amalgam_map_items(", "other_items(")],
    );
    let said = refusal(&lacks);
    assert!(said.contains("it does not define amalgam_map_delete, amalgam_map_items"), "{said}");

    let version = [("{ return AMALGAM_MAP_ABI; }", "{ return 7; }")];
    let said = refusal(&folder.library("newer", &version));
    assert!(said.contains("version 7") && said.contains("version 1"), "{said}");

    let other = folder.library("other", &[("amalgam_map_abi(", "somebody_elses_abi(")]);
    let said = refusal(&other);
    assert!(said.contains("amalgam_map_abi") && said.contains("extern"), "{said}");
}

#[test]
fn what_is_no_library_is_refused() {
    let folder = Folder::new("none");
    let said = refusal(&folder.0.join("libabsent.so"));
    assert!(said.contains("libabsent.so") && said.contains("No such file"), "{said}");
    let text = folder.0.join("libtext.so");
    std::fs::write(&text, "not a library").expect("a file");
    let said = refusal(&text);
    assert!(said.contains("libtext.so is no library"), "{said}");
    assert!(refusal(&folder.0).contains("no library"), "a folder");
}

#[test]
fn maps_that_do_not_work_are_refused() {
    let folder = Folder::new("broken");
    let refuses = |name: &str, change: (&str, &str), expected: &str| {
        let said = refusal(&folder.library(name, &[change]));
        assert!(said.contains(expected), "{name}: {said}");
    };
    refuses(
        "creates_not",
        (
            "        auto *map = new amalgam_map;",
            "        throw std::runtime_error(\"no room\");
        auto *map = new amalgam_map;",
        ),
        "amalgam_map_create: no room",
    );
    refuses(
        "enters_not",
        (
            "    return new (std::nothrow) amalgam_map_thread{map};",
            "    (void)map; return nullptr;",
        ),
        "amalgam_map_enter took 0 of",
    );
    refuses(
        "replaces_not",
        ("        place->second = std::move(copy);", "        if (is_new) place->second = copy;"),
        "amalgam_map_put did not replace",
    );
    refuses(
        "deletes_not",
        ("        stripe.items.erase(found);", ""),
        "amalgam_map_get found what was deleted",
    );
    refuses(
        "batches_wrong",
        (
            "amalgam_map_get(thread, &keys[index], &answers[index]);",
            "(void)thread; (void)keys;
        answers[index].length = 1;",
        ),
        "amalgam_map_get_batch answered otherwise",
    );
    refuses(
        "finds_all",
        (
            "        if (found == stripe.items.end()) {
            return 0;
        }
        answer->length",
            "        if (found == stripe.items.end()) {
            answer->length = 1;
            return 1;
        }
        answer->length",
        ),
        "amalgam_map_get found a key in an empty map",
    );
}

#[test]
fn memory_limits_are_refused() {
    let folder = Folder::new("limited");
    let output = bench(&external(&folder.library("limited", &[])), "--memory 64M");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success() && said.contains("no memory limit"), "{said}");
}
