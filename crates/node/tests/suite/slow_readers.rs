//! Clients that ask a node and do not read: what they may cost.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_index::Mercury;
use amalgam_node::{Embedded, Membership, NodeConfiguration, start_local};
use amalgam_server::{Server, Settings};

use crate::support::{Client, PATIENCE, Running, settings};

const MEMORY_BYTES: usize = 64 << 20;
/// Longer than anything here stands still.
const LEASE_MS: u64 = 600_000;

fn store(client: &mut Client<TcpStream>, key: &str, bytes: usize) {
    let value = "v".repeat(bytes);
    client.talk(format!("set {key} 0 0 {bytes}\r\n{value}\r\n"), "STORED\r\n");
}

/// A client that sends `requests` and reads nothing. With a small receive buffer, as few bytes as
/// possible are taken by its machine.
fn greedy(server: &Running, requests: &str) -> Client<TcpStream> {
    let client = server.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&client.0, 4 << 10).expect("an option");
    client.0.set_nonblocking(true).expect("an option");
    let _ = (&client.0).write(requests.as_bytes());
    client
}

/// As a plain server's: values that wait to be sent may take half of the memory, not the place of
/// all live items.
#[test]
fn what_nobody_reads_at_a_node_does_not_push_out_the_others() {
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let token = "a secret".to_owned();
    let (threads, memory_bytes, evicts) = (2, MEMORY_BYTES, true);
    let template =
        NodeConfiguration { threads, token, memory_bytes, evicts, ..NodeConfiguration::default() };
    let nodes = start_local::<Mercury>(1, &template, &membership).expect("it starts");
    let settings = Settings { memory_bytes, ..settings(threads) };
    let server = Server::open_around(settings, nodes[0].gateway()).expect("it starts");
    let server = Running::of(server);
    let mut other = server.connect();
    let live = |item: usize| format!("live{item}");
    for item in 0..10 {
        store(&mut other, &live(item), 500_000);
    }
    let mut slow = Vec::new();
    for version in 0..150 {
        store(&mut other, "k", 1_000_000 + version);
        slow.push(greedy(&server, &"get k\r\n".repeat(8)));
        // They are in use.
        (0..10).for_each(|item| other.talk(format!("mg {}\r\n", live(item)), "HD\r\n"));
    }
    let deadline = Instant::now() + PATIENCE;
    while other.stat_of("stats engine", "buffers_full_kicks") == "0" {
        assert!(Instant::now() < deadline, "no reader is closed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(other.stat("curr_items"), "11", "live items made way");
}
