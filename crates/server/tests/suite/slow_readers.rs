//! Clients that ask and do not read: what they may cost, and which of them are closed.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use amalgam_index::mercury::Mercury;
use amalgam_server::Settings;

use crate::support::{Client, Running, raise_file_limit, settings};

const MEMORY_BYTES: usize = 64 << 20;

/// The share of the memory for buffers; see `docs/operations.md`.
const BUFFER_BYTES: usize = MEMORY_BYTES / 4;

fn start(settings: Settings) -> Running {
    Running::start_with::<Mercury>(Settings { memory_bytes: MEMORY_BYTES, ..settings })
}

fn store(client: &mut Client<TcpStream>, key: &str, bytes: usize) {
    let value = "v".repeat(bytes);
    client.talk(format!("set {key} 0 0 {bytes}\r\n{value}\r\n"), "STORED\r\n");
}

fn number(client: &mut Client<TcpStream>, name: &str) -> usize {
    let command = if name.ends_with("kicks") { "stats engine" } else { "stats" };
    client.stat_of(command, name).parse().expect("a number")
}

/// A client that sends `requests` and reads nothing. With a small receive buffer, as few bytes as
/// possible are taken by its machine.
fn greedy(server: &Running, requests: &str) -> Client<TcpStream> {
    let client = server.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&client.0, 4 << 10).expect("an option");
    client.0.set_nonblocking(true).expect("an option");
    // What does not fit is not sent: the server has stopped reading then.
    let _ = (&client.0).write(requests.as_bytes());
    client
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_pinned_item_is_charged_once_however_many_wait_for_it() {
    let server = start(settings(2));
    let mut other = server.connect();
    for item in 0..30 {
        store(&mut other, &format!("k{item}"), 1_000_000);
    }
    let slow: Vec<_> = (0..80).map(|_| greedy(&server, &"get k0\r\n".repeat(8))).collect();
    wait_for("all wait", || number(&mut other, "get_hits") >= 80);
    let kept = number(&mut other, "read_buf_bytes");
    assert!(kept < BUFFER_BYTES / 2, "{kept} bytes of buffers");
    // The main thread and maintenance have run in between.
    for item in 0..30 {
        store(&mut other, &format!("k{item}"), 1_000_000);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((other.stat("evictions"), other.stat("curr_items")), ("0".into(), "30".into()));
    drop(slow);
    wait_for("all is given back", || other.stat("read_buf_bytes") == "0");
}

#[test]
fn unsent_answers_are_bounded_and_the_others_are_served() {
    // Both ends of each connection are in this process.
    let count = (raise_file_limit() / 2).saturating_sub(100).min(200) as usize;
    let server = start(settings(2));
    let mut other = server.connect();
    store(&mut other, "k", 15_000);
    let mut slow = Vec::new();
    let mut most = 0;
    for _ in 0..count {
        // Not pinned, so each answer is a copy; far more of them than the sockets take.
        slow.push(greedy(&server, &"get k\r\n".repeat(2000)));
        most = most.max(number(&mut other, "read_buf_bytes"));
    }
    wait_for("readers are closed", || number(&mut other, "buffers_full_kicks") > 0);
    for item in 0..100 {
        store(&mut other, &format!("k{item}"), 20_000);
        most = most.max(number(&mut other, "read_buf_bytes"));
    }
    // A batch of one worker may exceed the limit before it is noticed.
    assert!(most < BUFFER_BYTES + 2 * (8 << 20), "{most} bytes of buffers");
    assert_eq!(other.stat("curr_items"), "101");
    drop(slow);
    wait_for("all is given back", || {
        other.stat("read_buf_bytes") == "0" && other.stat("curr_connections") == "1"
    });
}

#[test]
fn versions_of_an_item_that_nobody_reads_do_not_push_out_the_others() {
    let server = start(settings(2));
    let mut other = server.connect();
    store(&mut other, "small", 1000);
    let mut slow = Vec::new();
    for version in 0..150 {
        store(&mut other, "k", 1_000_000 + version);
        slow.push(greedy(&server, &"get k\r\n".repeat(8)));
        other.talk("mg small\r\n", "HD\r\n");
    }
    wait_for("readers are closed", || number(&mut other, "buffers_full_kicks") > 0);
    drop(slow);
    wait_for("all is given back", || other.stat("read_buf_bytes") == "0");
}

#[test]
fn answers_that_stand_still_are_given_up() {
    let server = start(Settings { send_timeout_seconds: 1, ..settings(1) });
    let mut other = server.connect();
    store(&mut other, "k", 1_000_000);
    let slow = greedy(&server, &"get k\r\n".repeat(100));
    wait_for("the reader is closed", || number(&mut other, "send_timeout_kicks") == 1);
    assert_eq!(other.stat("curr_connections"), "1");
    // A client that waits for nothing is not closed.
    other.talk("mn\r\n", "MN\r\n");
    drop(slow);
}
