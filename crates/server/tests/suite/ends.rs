//! How servers shut down.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use amalgam_index::model::ModelWorker;
use amalgam_index::{Configuration, Sink, Worker};
use amalgam_op::{Key, Now};
use amalgam_server::{Server, Settings};

use crate::altered::{Alteration, Altered};
use crate::support::{Client, PATIENCE, Running, settings};

#[test]
fn requests_that_have_arrived_are_answered_before_the_end() {
    let server = Running::start(settings(2));
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    }
    for client in &mut clients {
        client.send("get a\r\n");
    }
    server.stopper.stop();
    for client in &mut clients {
        assert_eq!(client.rest(), b"VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    server.join();
}

#[test]
fn shutdown_stops_the_server_if_it_is_allowed() {
    let server = Running::start(Settings { allows_shutdown: true, ..settings(2) });
    let mut other = server.connect();
    other.talk("mn\r\n", "MN\r\n");
    let mut client = server.connect();
    client.talk("shutdown nonsense\r\n", "CLIENT_ERROR invalid shutdown mode\r\n");
    client.send("shutdown\r\n");
    assert_eq!(client.rest(), b"");
    assert_eq!(other.rest(), b"");
    server.join();
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let path = std::env::temp_dir().join(format!("amalgam-socket-{}", std::process::id()));
    let server = Running::start(Settings {
        unix_socket: Some(path.clone()),
        unix_mode: 0o600,
        ..settings(1)
    });
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = Client(UnixStream::connect(&path).unwrap());
    client.talk("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    server.stopper.stop();
    server.join();
    assert!(!path.exists());
}

/// A worker panics when it reads a certain key.
struct Fragile;

impl Alteration for Fragile {
    const NAME: &'static str = "fragile";

    fn get_batch(
        model: &mut ModelWorker<'_>,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        assert!(keys.iter().all(|key| key.bytes() != b"boom"), "a panic on purpose");
        model.get_batch(keys, now, sink)
    }
}

#[test]
fn a_worker_that_panics_ends_the_server_with_an_error() {
    let configuration = Configuration::default();
    let server = Server::<Altered<Fragile>>::open(settings(3), configuration).unwrap();
    let port = server.tcp_port().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(server.run()));
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"get boom\r\n").unwrap();
    let result = receiver.recv_timeout(PATIENCE).expect("the server ends");
    let error = result.expect_err("a panic is an error").to_string();
    assert!(error.starts_with("thread 'worker ") && error.ends_with("' panicked"), "{error}");
    thread.join().unwrap().unwrap();
}
