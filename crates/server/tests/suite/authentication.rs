//! Connections that have to authenticate.

use amalgam_server::{Settings, WireProtocol};

use crate::support::{Running, settings, wait_until};

fn with_users(name: &str, protocol: WireProtocol) -> Running {
    let path = std::env::temp_dir().join(format!("amalgam-{name}-{}", std::process::id()));
    std::fs::write(&path, "ann:secret\n").unwrap();
    let users_file = Some(path.clone());
    let server = Running::start(Settings { users_file, protocol, ..settings(1) });
    std::fs::remove_file(path).unwrap();
    server
}

#[test]
fn text_clients_log_in_by_a_set() {
    let server = with_users("text-users", WireProtocol::Text);
    let mut client = server.connect();
    client.talk("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
    client.talk("set a 0 0 9\r\nann wrong\r\n", "CLIENT_ERROR authentication failure\r\n");
    // Requests behind the right password in the same write are served.
    client.talk(
        "set a 0 0 10\r\nann secret\r\nset a 0 0 1\r\nx\r\nget a\r\n",
        "STORED\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
    let mut other = server.connect();
    other.talk("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(client.stat("auth_cmds"), "2");
    assert_eq!(client.stat("auth_errors"), "1");
}

#[test]
fn a_failed_login_waits_and_delays_nobody_else() {
    let server = with_users("slow-users", WireProtocol::Text);
    let mut other = server.connect();
    other.talk("set a 0 0 10\r\nann secret\r\n", "STORED\r\n");
    let mut guessing = server.connect();
    // What is behind the guess waits too.
    guessing.send("set a 0 0 9\r\nann wrong\r\nset a 0 0 10\r\nann secret\r\nget b\r\n");
    wait_until("the guess is refused", || other.stat("auth_errors") == "1");
    guessing.0.set_nonblocking(true).unwrap();
    let early = std::io::Read::read(&mut guessing.0, &mut [0; 8]);
    assert!(early.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    guessing.0.set_nonblocking(false).unwrap();
    guessing.expect("CLIENT_ERROR authentication failure\r\nSTORED\r\nEND\r\n");
    // A client that gives up during the pause is forgotten.
    server.connect().send("set a 0 0 9\r\nann wrong\r\n");
    wait_until("who gave up is forgotten", || other.stat("curr_connections") == "2");
}

fn packet(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = (key.len() + value.len()) as u32;
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(body.to_be_bytes());
    packet.extend([0; 12]);
    packet.extend(key);
    packet.extend(value);
    packet
}

#[test]
fn binary_clients_log_in_by_sasl() {
    let server = with_users("binary-users", WireProtocol::Binary);
    let mut client = server.connect();
    let mut status = |sent: &[u8]| {
        use std::io::Read;
        client.send(sent);
        let mut header = [0; 24];
        client.0.read_exact(&mut header).unwrap();
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let mut rest = vec![0; body as usize];
        client.0.read_exact(&mut rest).unwrap();
        (u16::from_be_bytes([header[6], header[7]]), rest)
    };
    assert_eq!(status(&packet(0x20, b"", b"")), (0, b"CRAM-MD5 PLAIN".to_vec()));
    assert_eq!(status(&packet(0x21, b"PLAIN", b"\0ann\0wrong")).0, 0x20);
    assert_eq!(status(&packet(0x21, b"CRAM-MD5", b"\0ann\0secret")).0, 0x20);
    assert_eq!(status(&packet(0x22, b"PLAIN", b"\0ann\0secret")).0, 0x20);
    assert_eq!(status(&packet(0x21, b"PLAIN", b"")).0, 0x21);
    assert_eq!(status(&packet(0x22, b"PLAIN", b"\0ann\0secret")).0, 0);
    assert_eq!(status(&packet(0x00, b"missing", b"")).0, 1);
    let (asked, challenge) = status(&packet(0x21, b"CRAM-MD5", b""));
    assert!(asked == 0x21 && challenge.starts_with(b"<"), "{asked:#x}");
    let digest = b"ann 00000000000000000000000000000000";
    assert_eq!(status(&packet(0x22, b"CRAM-MD5", digest)).0, 0x20);
    let (first, _) = status(&packet(0x21, b"PLAIN", b"\0ann\0secret"));
    assert_eq!(first, 0);
    let mut other = server.connect();
    other.send(packet(0x00, b"missing", b""));
    let answer = other.rest();
    assert_eq!(answer[6..8], [0, 0x20], "refused and closed");
}
