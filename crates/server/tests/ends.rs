//! How servers end.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use amalgam_server::Settings;
use support::{Client, Running, settings};

#[test]
fn what_has_arrived_is_answered_before_the_end() {
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
fn shutdown_ends_the_server_where_it_is_allowed() {
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
