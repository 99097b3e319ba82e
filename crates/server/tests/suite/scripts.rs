//! Byte scripts over real sockets.

use crate::support::{Running, settings};
use crate::texts::SCRIPTS;

#[test]
fn one_script_after_the_other() {
    for threads in [1, 4] {
        let server = Running::start(settings(threads));
        let mut client = server.connect();
        for (sent, expected) in SCRIPTS {
            client.talk(sent, expected);
        }
    }
}

#[test]
fn all_scripts_at_once() {
    let server = Running::start(settings(1));
    let sent: String = SCRIPTS.iter().map(|(sent, _)| *sent).collect();
    let expected: String = SCRIPTS.iter().map(|(_, expected)| *expected).collect();
    for _ in 0..20 {
        server.connect().talk(&sent, &expected);
    }
}

#[test]
fn byte_by_byte() {
    let server = Running::start(settings(2));
    let mut client = server.connect();
    for (sent, expected) in SCRIPTS {
        for byte in sent.bytes() {
            client.send([byte]);
        }
        client.expect(expected);
    }
}

#[test]
fn one_request_in_a_batch() {
    let server =
        Running::start(amalgam_server::Settings { requests_per_batch: Some(1), ..settings(1) });
    let sent: String = SCRIPTS.iter().map(|(sent, _)| *sent).collect();
    let expected: String = SCRIPTS.iter().map(|(_, expected)| *expected).collect();
    let mut client = server.connect();
    client.talk(&sent, &expected);
    client.talk("mn\r\n".repeat(10), "MN\r\n".repeat(10));
    assert_ne!(client.stat("conn_yields"), "0");
}

#[test]
fn connections_of_a_batch_do_not_mix() {
    let server = Running::start(settings(1));
    let mut clients: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for round in 0..20 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!(
                "set k{number} {number} 0 3\r\n{round:03}\r\nget k{number} x\r\nget x k{number}\r\n\
                 delete k{number}\r\nget k{number}\r\n"
            ));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let value = format!("VALUE k{number} {number} 3\r\n{round:03}\r\nEND\r\n");
            client.expect(format!("STORED\r\n{value}{value}DELETED\r\nEND\r\n"));
        }
    }
}

/// Plain sets are executed together, more of them than a batch of the index holds, and stay in
/// order, also around requests of other kinds.
#[test]
fn sets_of_a_batch_stay_in_order() {
    let server = Running::start(settings(1));
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for round in 0..20 {
        for (number, client) in clients.iter_mut().enumerate() {
            let (mut sent, mut expected) = (String::new(), String::new());
            let mut values = [0; 7];
            for step in 0..100 {
                let (key, value) = (step % 7, 1000 + round * 100 + step);
                values[key] = value;
                match step % 30 {
                    11 => {
                        sent += &format!("set {number}-{key} 0 0 4 noreply\r\n{value}\r\n");
                    }
                    17 => {
                        sent += &format!("ms {number}-{key} 4 k Oabc\r\n{value}\r\n");
                        expected += &format!("HD k{number}-{key} Oabc\r\n");
                    }
                    23 => {
                        values[key] += 1;
                        sent += &format!("set {number}-{key} 0 0 4\r\n{value}\r\n");
                        sent += &format!("incr {number}-{key} 1\r\n");
                        expected += &format!("STORED\r\n{}\r\n", value + 1);
                    }
                    _ => {
                        sent += &format!("set {number}-{key} 0 0 4\r\n{value}\r\n");
                        expected += "STORED\r\n";
                    }
                }
            }
            for (key, value) in values.iter().enumerate() {
                sent += &format!("get {number}-{key}\r\n");
                expected += &format!("VALUE {number}-{key} 0 4\r\n{value}\r\nEND\r\n");
            }
            client.talk(sent, expected);
        }
    }
}

#[test]
fn cas_ids_change_with_the_item() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.talk("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\n", "STORED\r\nSTORED\r\n");
    let cas_of = |client: &mut crate::support::Client<std::net::TcpStream>| -> u64 {
        client.send("gets a nothing b\r\nmn\r\n");
        let mut text = String::new();
        let mut byte = [0];
        while !text.ends_with("MN\r\n") {
            std::io::Read::read_exact(&mut client.0, &mut byte).unwrap();
            text.push(byte[0] as char);
        }
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("VALUE a 0 1 "), "{text}");
        assert!(text.contains("VALUE b 0 1 "), "{text}");
        first.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let first = cas_of(&mut client);
    assert_eq!(cas_of(&mut client), first);
    client.talk(format!("cas a 0 0 1 {}\r\nx\r\n", first + 1000), "EXISTS\r\n");
    client.talk(format!("cas a 0 0 1 {first}\r\nx\r\n"), "STORED\r\n");
    client.talk(format!("cas a 0 0 1 {first}\r\nx\r\n"), "EXISTS\r\n");
    client.talk("cas c 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n");
    assert_ne!(cas_of(&mut client), first);
}

#[test]
fn many_flushes_in_a_row_revive_no_item() {
    let server = Running::start(settings(2));
    let mut client = server.connect();
    client.talk("set old 0 0 1\r\nx\r\n", "STORED\r\n");
    for number in 0..200 {
        client.talk(format!("set k{number} 0 0 1\r\nx\r\nflush_all\r\n"), "STORED\r\nOK\r\n");
        client.talk(format!("get old k{number}\r\n"), "END\r\n");
    }
    client.talk("set new 0 0 1\r\nx\r\nget new\r\n", "STORED\r\nVALUE new 0 1\r\nx\r\nEND\r\n");
}
