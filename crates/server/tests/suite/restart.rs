//! Items survive a graceful restart, also into another engine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use amalgam_index::{Configuration, hotring, memc3, mercury, model, pipeline};
use amalgam_server::{Server, Settings};

use crate::support::{Running, settings};

/// The number of ordinary items.
const ITEMS: usize = 3000;

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("amalgam-warm-{name}-{}", std::process::id()))
}

fn warm(path: &Path) -> Settings {
    Settings { memory_file: Some(path.to_owned()), allows_shutdown: true, ..settings(2) }
}

/// Requests that store or read items of many lengths, and the expected answers.
fn items(is_store: bool) -> (String, String) {
    let (mut sent, mut expected) = (String::new(), String::new());
    for number in 0..ITEMS {
        let length = if number % 500 == 0 { 70_000 } else { number % 300 };
        let value = "v".repeat(length);
        if is_store {
            let _ = write!(sent, "set key{number} {number} 0 {length}\r\n{value}\r\n");
            expected.push_str("STORED\r\n");
        } else {
            let _ = write!(sent, "get key{number}\r\n");
            let _ = write!(expected, "VALUE key{number} {number} {length}\r\n{value}\r\nEND\r\n");
        }
    }
    (sent, expected)
}

#[test]
fn items_survive_from_engine_to_engine() {
    let path = file("all");
    let server = Running::start_with::<model::Model>(warm(&path));
    let mut client = server.connect();
    let (sent, expected) = items(true);
    client.talk(sent, expected);
    client.talk("set ends 0 1000 2\r\nab\r\nset old 0 0 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    client.talk("ms stale 2 E77\r\nab\r\nmd stale I E78\r\n", "HD\r\nHD\r\n");
    client.talk("ms won 2 T900\r\nab\r\nmg won R1000\r\n", "HD\r\nHD W\r\n");
    client.talk("set gone 0 0 1\r\nx\r\nflush_all 1000\r\n", "STORED\r\nOK\r\n");
    client
        .talk("delete gone\r\nset n 0 0 2\r\n41\r\nmg old s\r\n", "DELETED\r\nSTORED\r\nHD s1\r\n");
    let last_cas = cas_of(&mut client, "n");
    client.send("shutdown graceful\r\n");
    assert_eq!(client.rest(), b"");
    server.join();
    let mut last_cas = last_cas;
    last_cas = check(Running::start_with::<mercury::Mercury>(warm(&path)), &path, last_cas);
    last_cas = check(Running::start_with::<memc3::Memc3>(warm(&path)), &path, last_cas);
    last_cas = check(Running::start_with::<hotring::HotRingR>(warm(&path)), &path, last_cas);
    last_cas = check(Running::start_with::<hotring::HotRingS>(warm(&path)), &path, last_cas);
    last_cas = check(Running::start_with::<pipeline::Pipeline>(warm(&path)), &path, last_cas);
    check(Running::start_with::<model::Model>(warm(&path)), &path, last_cas);
    std::fs::remove_file(&path).expect("the last one wrote it");
}

fn cas_of(client: &mut crate::support::Client<std::net::TcpStream>, key: &str) -> u64 {
    client.send(format!("gets {key}\r\n"));
    let head = client.until("END\r\n");
    let head = head.lines().next().expect("a line");
    head.rsplit(' ').next().and_then(|cas| cas.parse().ok()).expect("a CAS id")
}

/// Checks that all items are unchanged and that a new CAS id is above the last one; saves them
/// again.
fn check(server: Running, path: &Path, last_cas: u64) -> u64 {
    assert!(!path.exists(), "a file is read once");
    let mut client = server.connect();
    let (sent, expected) = items(false);
    client.talk(sent, expected);
    client.talk("mg stale c v\r\n", "VA 2 c78 X W\r\nab\r\n");
    client.talk("md stale I E78\r\n", "HD\r\n");
    client.talk("mg won R1000\r\n", "HD Z\r\n");
    client.talk("mg old h u\r\n", "HD h1\r\n");
    client.talk("mg ends h t u\r\n", "HD h0 t");
    let left = client.until("\r\n");
    assert!((900..=1000).contains(&left.trim().parse::<u32>().expect("seconds")), "{left}");
    client.talk("get gone\r\nincr n 1\r\ndecr n 1\r\n", "END\r\n42\r\n41\r\n");
    client.talk("set fresh 0 0 1\r\nx\r\n", "STORED\r\n");
    let fresh = cas_of(&mut client, "fresh");
    assert!(fresh > last_cas, "{fresh} after {last_cas}");
    client.send("shutdown graceful\r\n");
    assert_eq!(client.rest(), b"");
    server.join();
    fresh
}

#[test]
fn a_foreign_file_is_kept_and_the_server_starts_empty() {
    let path = file("foreign");
    std::fs::write(&path, "something else entirely, and long enough to be one of ours").unwrap();
    let server = Running::start(warm(&path));
    assert_eq!(server.connect().stat("curr_items"), "0");
    // A stop that is not graceful writes nothing.
    server.connect().send("shutdown\r\n");
    server.join();
    // Where the next graceful stop does not overwrite it.
    let kept = path.with_added_extension("refused");
    assert!(std::fs::read(&kept).expect("is there").starts_with(b"something else"));
    std::fs::remove_file(&kept).expect("is there");
    assert!(!path.exists());
}

#[test]
fn an_empty_meta_file_of_memcached_makes_the_start_fail() {
    let path = file("neighbour");
    let neighbour = path.with_added_extension("meta");
    std::fs::write(&neighbour, "").unwrap();
    let open = || Server::<model::Model>::open(warm(&path), Configuration::default());
    let error = open().err().expect("an error").to_string();
    assert!(error.contains(".meta is empty"), "{error}");
    // A complete `.meta` file is ignored.
    std::fs::write(&neighbour, "K1\n").unwrap();
    assert!(open().is_ok());
    std::fs::remove_file(&neighbour).unwrap();
}

#[test]
fn a_table_that_has_grown_is_as_large_after_a_restart() {
    let path = file("table");
    let server = Running::start_with::<mercury::Mercury>(warm(&path));
    let mut client = server.connect();
    assert_eq!(client.stat("hash_power_level"), "16");
    let all = |command: &str, end: &str| -> String {
        (0..120_000).map(|number| format!("{command} k{number}{end}")).collect()
    };
    client.send(all("set", " 0 0 0 noreply\r\n\r\n"));
    client.talk("mn\r\n", "MN\r\n");
    while client.stat("hash_power_level") != "17" || client.stat("hash_is_expanding") != "0" {
        std::thread::yield_now();
    }
    client.send(all("delete", " noreply\r\n"));
    client.talk("mn\r\nshutdown graceful\r\n", "MN\r\n");
    assert_eq!(client.rest(), b"");
    server.join();
    let server = Running::start_with::<mercury::Mercury>(warm(&path));
    let mut client = server.connect();
    assert_eq!(
        (client.stat("curr_items"), client.stat("hash_power_level")),
        ("0".into(), "17".into())
    );
}
