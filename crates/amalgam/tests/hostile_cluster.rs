//! Hostile clients against a node of a cluster: at the port for other nodes, and at the one for
//! memcached's clients. As `hostile.rs`, with the bounds of a node.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use support::hostile::{Address, MEBIBYTE, Victim, attack_streams, endure, garbage};
use support::{PATIENCE, Running, expect};

/// `--memory` and `--chunk-memory` of a node, together.
const MEMORY_BYTES: usize = 2 * 64 * MEBIBYTE;
const THREADS: usize = 2;
/// Buffers of all clients at the nodes' port, and one packet that is decoded.
const CLIENTS_BYTES: usize = (128 + 64) * MEBIBYTE;
/// What each thread of a gateway takes for values of a megabyte.
const READ_AHEAD_BYTES: usize = (4 + 128) * MEBIBYTE;
/// The longest frame of a node; a client's may be half as long.
const FRAME_BYTES: usize = 16 * MEBIBYTE;

/// A cluster of one node.
struct Target {
    cluster: Running,
    /// For memcached's clients.
    address: Address,
    /// Whether clients of the nodes' port are admitted in the attack.
    admits: bool,
    /// Whether memcached's clients ask for values of a megabyte.
    reads_large: bool,
    connections_max: usize,
}

impl Victim for Target {
    const MAY_REFUSE: bool = true;

    fn process(&self) -> u32 {
        self.cluster.child.id()
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connections_max(&self) -> usize {
        self.connections_max
    }

    fn bound_bytes(&self, connections: usize) -> usize {
        let of_server = 64 * MEBIBYTE + THREADS * 16 * MEBIBYTE + connections * (16 << 10);
        let of_clients = if self.admits { CLIENTS_BYTES } else { 0 };
        let of_values = if self.reads_large { THREADS * READ_AHEAD_BYTES } else { 0 };
        self.cluster.nodes.len() * (MEMORY_BYTES + of_server + of_clients + of_values)
    }
}

impl Target {
    fn start() -> Self {
        Self::start_nodes("1")
    }

    fn start_nodes(nodes: &str) -> Self {
        let threads = THREADS.to_string();
        let arguments = ["cluster", "dev", "--nodes", nodes, "--port", "0", "--threads", &threads];
        let cluster = Running::start(&[&arguments[..], &["--log-level", "error"]].concat());
        let address = Address::Tcp(cluster.nodes[0].1.clone());
        Self { cluster, address, admits: false, reads_large: false, connections_max: 10_000 }
    }

    /// A connection to the nodes' port that does not wait.
    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.cluster.nodes[0].0).expect("the port takes it");
        stream.set_nonblocking(true).expect("an option");
        stream
    }

    fn strangers(&self, count: usize) -> Vec<TcpStream> {
        (0..count).map(|_| self.stranger()).collect()
    }

    /// A connection to the nodes' port that is admitted as a client's: one that a client opened
    /// through a relay, and left.
    fn admitted(&self) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = listener.local_addr().expect("an address").to_string();
        std::thread::scope(|scope| {
            let relayed = scope.spawn(|| {
                let (client, _) = listener.accept().expect("it connects");
                client.set_nonblocking(true).expect("an option");
                let node = self.stranger();
                relay_until_closed(&client, &node);
                node
            });
            drop(ClusterClient::connect(&[relay], "", 0).expect("it is admitted"));
            relayed.join().expect("a connection")
        })
    }
}

/// Passes on what a client and a node say until the client closes.
fn relay_until_closed(mut client: &TcpStream, mut node: &TcpStream) {
    let (deadline, mut buffer) = (Instant::now() + PATIENCE, [0; 4096]);
    let waits = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::WouldBlock);
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return,
            // What is said is short: it fits a socket's buffer.
            Ok(count) => node.write_all(&buffer[..count]).expect("it fits"),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => waits(error),
        }
        match node.read(&mut buffer) {
            Ok(0) => panic!("the node closed"),
            // The client may have gone.
            Ok(count) => drop(client.write_all(&buffer[..count])),
            Err(error) => waits(error),
        }
        assert!(Instant::now() < deadline, "the client stays");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn store(address: &str, key: &str, bytes: usize) {
    let value = "v".repeat(bytes);
    expect(address, &format!("set {key} 0 0 {bytes}\r\n{value}\r\n"), "STORED\r\n");
}

/// Sends as much of `bytes` as each connection takes, several times.
fn pour(streams: &mut [TcpStream], bytes: &[u8]) {
    let mut sent = vec![0; streams.len()];
    for _ in 0..50 {
        for (stream, sent) in streams.iter_mut().zip(&mut sent) {
            // The node may have closed it, or may not read.
            *sent += stream.write(&bytes[*sent..]).unwrap_or(0);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn streams_to_a_gateway() {
    let [target, control] = [(); 2].map(|()| Target::start());
    // A gateway takes 1,024 connections, and those of other clients are among them.
    // Its readers are few: it reads whole batches of values before it answers (docs/operations.md).
    let target = Target { connections_max: 900, ..target };
    attack_streams(&target, &control.address, &[(2, "middle", 50)]);
}

/// The gateway's own values, and those that other nodes send it.
#[test]
fn readers_of_large_values_at_a_gateway() {
    for nodes in ["1", "2"] {
        let [target, control] = [(); 2].map(|()| Target::start_nodes(nodes));
        let target = Target { reads_large: true, connections_max: 900, ..target };
        let Address::Tcp(address) = &target.address else { unreachable!("it listens for TCP") };
        let keys: Vec<_> = (0..8).map(|key| format!("large{key}")).collect();
        keys.iter().for_each(|key| store(address, key, 1_000_000));
        let requests: String = keys.iter().map(|key| format!("get {key}\r\n")).collect();
        for readers in [90, 100, 110] {
            let name = format!("{nodes} nodes, readers of 8 large values that stop");
            endure(&name, &target, &control.address, readers, |target, count| {
                target.address.push_all(count, requests.as_bytes())
            });
        }
    }
}

#[test]
fn strangers_at_the_nodes_port() {
    let [target, control] = [(); 2].map(|()| Target::start());
    let control = &control.address;
    // 100 to 10,000 in the long form: a thousand once ended a node.
    for count in [10, 100, 1000] {
        endure("idle", &target, control, count, Target::strangers);
    }
    endure("half-open", &target, control, 300, |target, count| {
        let streams = target.strangers(count);
        for mut stream in &streams {
            let _ = stream.write(&[200, 0, 0xa3]);
            let _ = stream.shutdown(Shutdown::Write);
        }
        streams
    });
    endure("hellos that trickle", &target, control, 300, |target, count| {
        let mut streams = target.strangers(count);
        // A length, the protocol's first bytes, and others.
        for byte in b"\xc8\0\xa3agm\x08\0".iter().chain(&[0; 30]) {
            streams.iter_mut().for_each(|stream| drop(stream.write(&[*byte])));
        }
        streams
    });
    let noise = garbage(FRAME_BYTES / 16);
    endure("garbage", &target, control, 50, |target, count| {
        let mut streams = target.strangers(count);
        pour(&mut streams, &noise);
        streams
    });
    endure("churn", &target, control, 2000, |target, count| {
        (0..count).for_each(|number| {
            let _ = target.stranger().write(&noise[..number % 100]);
        });
    });
}

#[test]
fn clients_at_the_nodes_port() {
    let [target, control] = [(); 2].map(|()| Target::start());
    let (target, control) = (Target { admits: true, ..target }, &control.address);
    let clients = |target: &Target, count: usize| -> Vec<TcpStream> {
        (0..count).map(|_| target.admitted()).collect()
    };
    // Requests, as far as their first bytes tell, of which the end does not come.
    for bytes in [FRAME_BYTES, FRAME_BYTES / 2, FRAME_BYTES / 20] {
        let mut frame = [&(bytes as u32).to_le_bytes()[..], &[7; 8], &[3]].concat();
        frame.resize(bytes, 0);
        let name = format!("frames of {bytes} bytes");
        endure(&name, &target, control, 20, |target, count| {
            let mut streams = clients(target, count);
            pour(&mut streams, &frame);
            streams
        });
    }
    let noise = garbage(FRAME_BYTES / 16);
    endure("garbage of clients", &target, control, 20, |target, count| {
        let mut streams = clients(target, count);
        pour(&mut streams, &noise);
        streams
    });
    endure("churn of clients", &target, control, 100, |target, count| {
        drop(clients(target, count));
    });
}
