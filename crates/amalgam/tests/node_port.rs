//! What strangers can do to a node through the port on which it listens for other nodes.

mod support;

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{PATIENCE, Running, command, expect, temporary};

/// Descriptors of the node in this test, which it cannot raise.
const FILES: u64 = 256;

/// A command that may not open more, whatever it asks for.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {FILES}; exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args());
    limited
}

/// Connections to the node that say nothing, as many as `count`.
fn idle(address: &str, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).expect("the port takes it")).collect()
}

/// How many of them the node has not closed. Each is read without waiting.
fn open(connections: &[TcpStream]) -> usize {
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("an option");
        loop {
            match stream.read(&mut [0; 256]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    };
    connections.iter().filter(|stream| is_open(stream)).count()
}

/// Clients of a cluster without a token are strangers too.
#[test]
fn clients_that_say_nothing_make_room() {
    let arguments = ["cluster", "dev", "--nodes", "1", "--port", "0", "--threads", "1"];
    let (log, begin) = (temporary("node-port.log"), Instant::now());
    let complaints = File::create(&log).expect("a file");
    let cluster = Running::start_with(limited(&command(&arguments)).stderr(complaints));
    let node = std::slice::from_ref(&cluster.nodes[0].0);
    let connect = |_| ClusterClient::connect(node, "", 0).expect("it is admitted");
    // More than it may keep open.
    let idle: Vec<ClusterClient> = (0..FILES - 32).map(connect).collect();
    let mut client = connect(0);
    let chunk = client.create(b"a value").expect("it serves");
    assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
    drop(idle);
    // What they can do again and again fills no log.
    let complaints = std::fs::read_to_string(&log).expect("it is there");
    let shortages = complaints.matches("no connection is accepted").count() as u64;
    assert!((1..=1 + begin.elapsed().as_secs() / 5).contains(&shortages), "{complaints}");
    std::fs::remove_file(&log).expect("it is there");
}

#[test]
fn connections_that_prove_nothing_are_few() {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("the maximum");
    let arguments = ["cluster", "dev", "--nodes", "1", "--port", "0", "--threads", "1"];
    for mut command in [command(&arguments), limited(&command(&arguments))] {
        let cluster = Running::start_with(&mut command);
        let (node, clients) = &cluster.nodes[0];
        // More than it may open, and more than it admits of one address.
        let strangers = idle(node, 1_000);
        let begin = Instant::now();
        while open(&strangers) > 200 {
            assert!(begin.elapsed() < Duration::from_secs(4), "{} are open", open(&strangers));
            std::thread::sleep(Duration::from_millis(10));
        }
        expect(clients, "set k 0 0 1\r\n1\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
        let mut client =
            ClusterClient::connect(std::slice::from_ref(node), "", 0).expect("it is admitted");
        let chunk = client.create(b"a value").expect("it serves");
        assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
        let begin = Instant::now();
        while open(&strangers) > 0 {
            assert!(begin.elapsed() < PATIENCE, "a handshake has no deadline");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
