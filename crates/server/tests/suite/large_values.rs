//! Values that are sent from where they lie, while other clients replace them.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_index::mercury::Mercury;
use amalgam_server::Settings;

use crate::support::{Client, Running, settings};

/// Little memory, so that the memory of a replaced value is soon reused.
const MEMORY_BYTES: usize = 64 << 20;

/// From 64 KiB to nearly 1 MiB; each version has a length of its own.
fn length(version: u8) -> usize {
    (64 << 10) + usize::from(version) * 3_800
}

/// Stores and deletes the value until the reader is done; counts the changes.
fn replace(client: &mut Client<TcpStream>, changes: &AtomicU64, done: &AtomicBool) {
    for version in (0..=u8::MAX).cycle() {
        if done.load(Ordering::Relaxed) {
            return;
        }
        client.send(format!("set big 0 0 {}\r\n", length(version)));
        client.send(vec![version; length(version)]);
        client.talk("\r\n", "STORED\r\n");
        if version % 4 == 3 {
            client.talk("delete big noreply\r\nmn\r\n", "MN\r\n");
        }
        changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads one answer to `get big` and returns the version of the value; None for a miss.
fn answer(reader: &mut impl BufRead) -> Option<u8> {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    if line == "END\r\n" {
        return None;
    }
    let bytes = line.strip_prefix("VALUE big 0 ").expect("a value").trim_end();
    let mut value = vec![0; bytes.parse().expect("a length")];
    reader.read_exact(&mut value).expect("a value");
    let version = value[0];
    assert_eq!(value.len(), length(version), "the length of another version than {version}");
    let foreign = value.iter().position(|byte| *byte != version);
    assert_eq!(foreign, None, "where version {version} has a byte of another");
    let mut end = [0; 7];
    reader.read_exact(&mut end).expect("an end");
    assert_eq!(&end, b"\r\nEND\r\n");
    Some(version)
}

/// Sets a flag when it is dropped, also by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_value_being_sent_stays_what_it_was() {
    let server =
        Running::start_with::<Mercury>(Settings { memory_bytes: MEMORY_BYTES, ..settings(2) });
    let (changes, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut writer = server.connect();
    let mut slow = server.connect();
    let mut reader = BufReader::new(slow.0.try_clone().expect("a descriptor"));
    let mut hits = 0;
    std::thread::scope(|scope| {
        // A failure on either side ends the other.
        let _ended = Ended(&done);
        scope.spawn(|| {
            let _ended = Ended(&done);
            replace(&mut writer, &changes, &done);
        });
        for _ in 0..10 {
            // More than sockets buffer: the server has to wait in the middle of a value.
            slow.send("get big\r\n".repeat(30));
            let begin = changes.load(Ordering::Relaxed);
            // Not a multiple of four, or every round would begin right after a delete.
            while changes.load(Ordering::Relaxed) < begin + 21 && !done.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            hits += (0..30).filter_map(|_| answer(&mut reader)).count();
        }
    });
    assert!(hits > 0, "every get missed");
}

#[test]
fn slow_readers_do_not_delay_others() {
    // One worker, so that a client that blocks it would block all others.
    let server =
        Running::start_with::<Mercury>(Settings { memory_bytes: MEMORY_BYTES, ..settings(1) });
    let mut other = server.connect();
    let value = vec![b'v'; 1_000_000];
    other.talk([b"set big 0 0 1000000\r\n", &value[..], b"\r\n"].concat(), "STORED\r\n");
    let answer = [b"VALUE big 0 1000000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    // Each asks for far more than sockets buffer, and does not read it.
    let mut slow: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for client in &mut slow {
        client.send("get big\r\n".repeat(30));
    }
    for _ in 0..2_000 {
        other.talk("get small\r\n", "END\r\n");
    }
    for _ in 0..20 {
        other.talk("get big\r\n", &answer);
    }
    for client in &mut slow {
        for _ in 0..30 {
            client.expect(&answer);
        }
        client.talk("get nothing\r\n", "END\r\n");
    }
}

/// Each append of a byte copies the value, and two workers do so for many clients. What they
/// replaced waits until neither can read it, and may take no memory of items meanwhile.
#[test]
fn appends_to_a_long_value_push_nothing_out() {
    const CLIENTS: usize = 30;
    const APPENDS: usize = 100;
    const BYTES: usize = 900_000;
    let server =
        Running::start_with::<Mercury>(Settings { memory_bytes: MEMORY_BYTES, ..settings(2) });
    let mut client = server.connect();
    client.send(format!("set long 0 0 {BYTES}\r\n{}\r\nset k 0 0 1\r\nv\r\n", "v".repeat(BYTES)));
    client.expect("STORED\r\nSTORED\r\n");
    let requests = "append long 0 0 1 noreply\r\nx\r\n".repeat(APPENDS) + "mn\r\n";
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(&requests));
    clients.iter_mut().for_each(|client| client.expect("MN\r\n"));
    client.talk("mg long s\r\n", format!("HD s{}\r\n", BYTES + CLIENTS * APPENDS));
    assert_eq!(client.stat("evictions"), "0");
}
