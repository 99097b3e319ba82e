//! `amalgam load` between two servers.

mod support;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use support::{ANY_PORT, Process, command, temporary};

/// A server.
fn server(more: &[&str]) -> Process {
    Process::start(command(ANY_PORT).args(["-m", "64", "-t", "2"]).args(more))
}

/// Runs `amalgam load`; whether it succeeded, and what it said.
fn load(from: &Process, to: &Process, more: &[&str]) -> (bool, String) {
    let address = |server: &Process| format!("127.0.0.1:{}", server.port);
    let output = command(&["load", "--quiet", "--from", &address(from), "--to", &address(to)])
        .args(more)
        .output()
        .expect("runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

/// A name for a key file that is not there.
fn key_file(name: &str) -> (PathBuf, String) {
    let path = temporary(name);
    let _ = std::fs::remove_file(&path);
    let text = path.to_str().expect("text").to_owned();
    (path, text)
}

#[test]
fn items_arrive_as_they_were() {
    let (source, target) = (server(&[]), server(&["--engine", "memc3"]));
    for number in 0..1000 {
        source.talk(&format!("set key{number} {number} 0 3\r\nabc\r\n"), "STORED\r\n");
    }
    source.talk("ms YSBi 2 b F7 T4999\r\nxy\r\n", "HD\r\n");
    // More than a month: as a Unix time.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("later than 1970").as_secs();
    source.talk(&format!("ms long 1 T{}\r\nz\r\n", now + 4_995_000), "HD\r\n");
    source.talk("ms lines 6\r\n\r\nEN\r\n\r\n", "HD\r\n");
    target.talk("set key1 9 0 4\r\nmine\r\n", "STORED\r\n");
    let (is_done, text) = load(&source, &target, &[]);
    assert!(is_done, "{text}");
    let all = "1003 keys: 1002 copied (0 MiB), 1 were there, 0 gone, 0 refused";
    assert!(text.contains(all), "{text}");
    target.talk("mg key1 f v\r\n", "VA 4 f9\r\nmine\r\n");
    target.talk("mg key999 f t v\r\n", "VA 3 f999 t-1\r\nabc\r\n");
    target.talk("mg lines v\r\n", "VA 6\r\n\r\nEN\r\n\r\n");
    for (key, left) in [("YSBi b", "f7 t49"), ("long", "f0 t49")] {
        target.talk(&format!("mg {key} f t\r\n"), &format!("HD {left}"));
    }
    let (is_done, text) = load(&source, &target, &["--overwrite"]);
    assert!(is_done && text.contains("1003 copied"), "{text}");
    target.talk("mg key1 f v\r\n", "VA 3 f1\r\nabc\r\n");
}

#[test]
fn a_load_goes_on_where_it_broke_off() {
    let (source, target) = (server(&[]), server(&[]));
    for key in ["a", "b", "c", "d"] {
        source.talk(&format!("set {key} 0 0 1\r\n{key}\r\n"), "STORED\r\n");
    }
    let (path, text) = key_file("load-keys");
    let done = PathBuf::from(format!("{text}.done"));
    std::fs::write(&path, "OK\nmg a\nkey=b exp=-1 la=1 flags=0 \nmg Yw== b\r\nmg d\nEN\n").unwrap();
    std::fs::write(&done, "2\n").unwrap();
    let (is_done, said) = load(&source, &target, &["--keys", &text, "--rate", "1000"]);
    assert!(is_done && said.contains("2 keys: 2 copied"), "{said}");
    assert!(!done.exists(), "the next one begins anew");
    target.talk("get a b c d\r\n", "VALUE c 0 1\r\nc\r\nVALUE d 0 1\r\nd\r\nEND\r\n");
    // A list that was cut off is told of, and what was done of it is known.
    std::fs::write(&path, "mg a\nmg gone\n").unwrap();
    let (is_done, said) = load(&source, &target, &["--keys", &text]);
    assert!(!is_done && said.contains("no EN or END"), "{said}");
    // One that is not there is written, whole.
    std::fs::remove_file(&path).unwrap();
    let (is_done, said) = load(&source, &target, &["--keys", &text]);
    assert!(is_done && said.contains("4 keys: 2 copied (0 MiB), 2 were there"), "{said}");
    let list = std::fs::read_to_string(&path).unwrap();
    assert!(list.lines().count() == 5 && list.ends_with("EN\n"), "{list}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_source_that_lists_nothing_and_a_target_that_is_too_small_are_told_of() {
    let (silent, small, source) = (server(&["-X"]), server(&["-I", "1k"]), server(&[]));
    let (is_done, text) = load(&silent, &small, &[]);
    assert!(!is_done && text.contains("does not list its keys"), "{text}");
    let value = "x".repeat(5000);
    source.talk(&format!("set big 0 0 5000\r\n{value}\r\n"), "STORED\r\n");
    let (is_done, text) = load(&source, &small, &[]);
    assert!(!is_done && text.contains("refused 1 items"), "{text}");
}
