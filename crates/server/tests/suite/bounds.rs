//! Clients that are malicious, slow or many.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use amalgam_server::Settings;

use crate::support::{Client, Running, raise_file_limit, settings};

#[test]
fn an_incomplete_command_does_no_harm() {
    let server = Running::start(settings(1));
    let mut other = server.connect();
    for half in ["g", "get", "get a", "get a\r", "set a 0 0 10\r\n01234", "set a 0 0 10", "\r", ""]
    {
        let mut client = server.connect();
        client.send(half);
        client.0.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.rest(), b"", "{half:?}");
        other.talk("get a\r\n", "END\r\n");
    }
}

#[test]
fn a_command_before_the_end_of_the_stream_is_answered() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.send("set a 0 0 1\r\nx\r\nget a\r\n");
    client.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest(), b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_slow_reader_gets_everything_and_occupies_little_memory() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    let value = vec![b'v'; 100_000];
    let stored = [&b"set big 0 0 100000\r\n"[..], &value, b"\r\n"].concat();
    client.talk(stored, "STORED\r\n");
    let answer = [&b"VALUE big 0 100000\r\n"[..], &value, b"\r\n"].concat();
    // 2,000 answers of 100 kB, to lines of 100 keys and of one key, are far more than sockets
    // buffer.
    let mut slow = server.connect();
    let written =
        |client: &mut Client<TcpStream>| client.stat("bytes_written").parse::<usize>().unwrap();
    let before = written(&mut client);
    let many = format!("get{}\r\n", " big".repeat(100));
    for _ in 0..10 {
        slow.send(&many);
        slow.send("get big\r\n".repeat(100));
    }
    for _ in 0..100 {
        client.talk("get big\r\n", [&answer[..], b"END\r\n"].concat());
    }
    let kept: usize = client.stat("read_buf_bytes").parse().unwrap();
    assert!(kept < 2 << 20, "{kept} bytes kept for a slow reader");
    let taken = written(&mut client) - before - 100 * answer.len();
    assert!(taken < 1 << 20, "the system keeps {taken} bytes for it");
    for _ in 0..10 {
        slow.expect(answer.repeat(100));
        slow.expect("END\r\n");
        slow.expect([&answer[..], b"END\r\n"].concat().repeat(100));
    }
    slow.talk("get nothing\r\n", "END\r\n");
}

#[test]
fn an_endless_line_closes_the_connection() {
    let server = Running::start(settings(1));
    for start in ["", "get ", "gets   "] {
        let mut client = server.connect();
        client.send(start);
        let chunk = "a ".repeat(32 << 10);
        let sent = (0..1000).take_while(|_| client.0.write_all(chunk.as_bytes()).is_ok()).count();
        assert!(sent < 1000, "accepted 64 MB of a line that starts with {start:?}");
    }
    let mut client = server.connect();
    let kept: usize = client.stat("read_buf_bytes").parse().unwrap();
    assert!(kept < 1 << 20, "{kept} bytes kept after all clients left");
}

#[test]
fn a_long_get_is_answered_however_it_arrives() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let line = format!("get{}\r\n", " a".repeat(50_000));
    for chunk in line.as_bytes().chunks(10_007) {
        client.send(chunk);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    client.expect("VALUE a 0 1\r\nx\r\n".repeat(50_000));
    client.expect("END\r\n");
}

#[test]
fn a_large_value_may_trickle_in() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    let value: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    client.send("set big 0 0 1000000\r\n");
    for chunk in value.chunks(77_777) {
        client.send(chunk);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    client.talk("\r\nget big\r\n", "STORED\r\nVALUE big 0 1000000\r\n");
    client.expect(&value);
    client.expect("\r\nEND\r\n");
}

#[test]
fn a_value_that_is_too_large_is_discarded() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.send("set a 0 0 5000000\r\n");
    client.send(vec![b'x'; 5_000_000]);
    client.talk("\r\nget a\r\n", "SERVER_ERROR object too large for cache\r\nEND\r\n");
}

#[test]
fn a_refused_store_is_answered_when_its_value_has_arrived() {
    let server = Running::start(settings(1));
    let mut other = server.connect();
    let text = "set a 0 0 5000000\r\n".to_owned().into_bytes();
    let meta = "ms a 5000000\r\n".to_owned().into_bytes();
    let mut binary = vec![0x80, 1, 0, 1, 8, 0, 0, 0];
    binary.extend((5_000_000_u32 + 9).to_be_bytes());
    binary.extend([0; 20]);
    binary.push(b'a');
    for (head, end, start) in [
        (text, "\r\n", &b"SERVER_ERROR object too large for cache\r\n"[..]),
        (meta, "\r\n", b"SERVER_ERROR object too large for cache\r\n"),
        (binary, "", b"\x81\x01\0\0\0\0\0\x03"),
    ] {
        let mut client = server.connect();
        let before: usize = other.stat("bytes_read").parse().unwrap();
        client.send(&head);
        client.send(vec![b'x'; 2_000_000]);
        // One worker: what it read before it answered the other, it has dealt with.
        let read_all = |other: &mut crate::support::Client<std::net::TcpStream>| {
            other.stat("bytes_read").parse::<usize>().unwrap() > before + 2_000_000
        };
        crate::support::wait_until("the value is read", || read_all(&mut other));
        client.0.set_nonblocking(true).unwrap();
        let early = client.0.read(&mut [0; 8]);
        assert!(early.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
        client.0.set_nonblocking(false).unwrap();
        client.send(vec![b'x'; 3_000_000]);
        client.talk(end, start);
    }
}

#[test]
fn announced_values_occupy_memory_as_they_arrive() {
    let server = Running::start(Settings { memory_bytes: 32 << 20, ..settings(1) });
    let mut clients: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("set k 0 0 1000000\r\nbut little comes");
    }
    let mut other = server.connect();
    let kept: usize = other.stat("read_buf_bytes").parse().unwrap();
    assert!(kept < 200 * (80 << 10), "{kept} bytes for 200 values that have not arrived");
    // All clients may then send, but their buffers together get only a share of the memory.
    let part = vec![b'v'; 900_000];
    let mut refused = 0;
    for client in &mut clients {
        client.0.set_nonblocking(true).unwrap();
        refused += usize::from(!matches!(client.0.write(&part), Ok(count) if count > 0));
    }
    let kept: usize = other.stat("read_buf_bytes").parse().unwrap();
    assert!(kept < 16 << 20, "{kept} bytes kept, {refused} clients waiting");
    other
        .talk("set small 0 0 1\r\nx\r\nget small\r\n", "STORED\r\nVALUE small 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn unfinished_lines_that_fill_the_buffers_are_refused_and_given_back() {
    let settings = Settings { memory_bytes: 16 << 20, idle_timeout_seconds: 3, ..settings(2) };
    let server = Running::start(settings);
    let mut other = server.connect();
    let line = [b"get ".to_vec(), b"k ".repeat(450_000)].concat();
    let clients: Vec<_> = (0..24)
        .map(|_| {
            let mut client = server.connect();
            client.0.set_nonblocking(true).unwrap();
            let sent = client.0.write(&line).unwrap_or(0);
            (client, sent)
        })
        .collect();
    // A line for which there is no memory is refused at once, and stays refused.
    let mut open: Vec<_> =
        clients.into_iter().map(|(client, sent)| (client, sent, false)).collect();
    let deadline = Instant::now() + crate::support::PATIENCE;
    while !open.iter().any(|(_, _, refused)| *refused) {
        assert!(Instant::now() < deadline, "no client was refused");
        for (client, sent, refused) in &mut open {
            *sent += client.0.write(&line[*sent..]).unwrap_or(0);
            let mut answer = [0; 64];
            let count = client.0.read(&mut answer).unwrap_or(0);
            *refused |= answer[..count].starts_with(b"SERVER_ERROR out of memory reading");
        }
    }
    // The buffers of clients are released when the clients leave.
    drop(open);
    while other.stat("read_buf_bytes") != "0" || other.stat("curr_connections") != "1" {
        assert!(Instant::now() < deadline, "{} bytes kept", other.stat("read_buf_bytes"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let value = "v".repeat(20_000);
    other.talk(format!("set k 0 0 20000\r\n{value}\r\n"), "STORED\r\n");
}

#[test]
fn a_larger_cache_does_not_raise_the_share_of_buffers() {
    // The buffers' limit is the least there is: 8 MiB.
    let server = Running::start(Settings { memory_bytes: 32 << 20, ..settings(2) });
    let mut other = server.connect();
    other.talk("cache_memlimit 1024\r\n", "OK\r\n");
    assert_eq!(other.stat("limit_maxbytes"), (1024 << 20).to_string());
    let value = [&b"set k 0 0 1000000\r\n"[..], &[b'v'; 900_000]].concat();
    let mut clients: Vec<_> = (0..40).map(|_| (server.connect(), 0)).collect();
    clients.iter().for_each(|(client, _)| client.0.set_nonblocking(true).unwrap());
    let (deadline, mut most) = (Instant::now() + crate::support::PATIENCE, 0);
    // The server takes all of it, as values for which there is no memory are refused and skipped.
    while clients.iter().any(|(_, sent)| *sent < value.len()) {
        assert!(Instant::now() < deadline, "it stopped reading");
        for (client, sent) in &mut clients {
            match client.0.write(&value[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // It was closed, as it held memory.
                Err(_) => *sent = value.len(),
            }
        }
        most = most.max(other.stat("read_buf_bytes").parse::<usize>().unwrap());
    }
    assert!(most < 12 << 20, "{most} bytes of buffers");
}

/// Lists of which there is more than the buffers may take are made as they are read.
#[test]
fn lists_occupy_memory_as_they_are_read() {
    const PREFIXES: usize = 8_000;
    const CLIENTS: usize = 30;
    // The buffers' limit is the least there is: 8 MiB.
    let server = Running::start(Settings { memory_bytes: 32 << 20, ..settings(2) });
    let mut other = server.connect();
    other.talk("stats detail on\r\n", "OK\r\n");
    let prefix = |number: usize| format!("{}{number:06}", "p".repeat(200));
    let sets = (0..PREFIXES).map(|number| format!("ms {}:k 1 q\r\nv\r\n", prefix(number)));
    other.talk(sets.collect::<String>() + "mn\r\n", "MN\r\n");
    other.talk("stats detail off\r\n", "OK\r\n");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send("stats detail dump\r\n"));
    let mut expected = (0..PREFIXES)
        .map(|number| format!("PREFIX {} get 0 hit 0 set 1 del 0\r\n", prefix(number)))
        .collect::<String>();
    expected.push_str("END\r\n");
    let kept = |other: &mut Client<TcpStream>| {
        let kept: usize = other.stat("read_buf_bytes").parse().unwrap();
        assert!(kept < CLIENTS * (160 << 10), "{kept} bytes kept");
    };
    for client in &mut clients {
        kept(&mut other);
        client.expect(&expected);
    }
}

/// Sends all of `garbage`, over a new connection whenever the server closes one.
fn pour(server: &Running, mut garbage: &[u8]) {
    while !garbage.is_empty() {
        let mut client = server.connect();
        let mut reader = crate::support::Client(client.0.try_clone().unwrap());
        let read = std::thread::spawn(move || reader.rest());
        while let Ok(count @ 1..) = client.0.write(garbage) {
            garbage = &garbage[count..];
        }
        let _ = client.0.shutdown(Shutdown::Both);
        read.join().unwrap();
    }
}

#[test]
fn garbage_leaves_the_server_alive_and_small() {
    let server = Running::start(settings(2));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut garbage: Vec<u8> = (0..1 << 20).flat_map(|_| random().to_ne_bytes()).collect();
            // Short lines, so that most of it is parsed as commands.
            for place in 0..garbage.len() / 200 {
                garbage[place * 200] = b'\n';
            }
            let server = &server;
            scope.spawn(move || (0..crate::support::effort()).for_each(|_| pour(server, &garbage)));
        }
    });
    let mut client = server.connect();
    client.talk("version\r\n", "VERSION 1.6.45\r\n");
    let read: usize = client.stat("bytes_read").parse().unwrap();
    // A lower bound: bytes that the server had not read when it closed a connection are lost.
    assert!(read > crate::support::effort() << 20, "only {read} bytes read");
    let kept: usize = client.stat("read_buf_bytes").parse().unwrap();
    assert!(kept < 1 << 20, "{kept} bytes kept");
}

#[test]
fn thousands_of_connections_are_served() {
    // Both ends of each connection are in this process.
    let files = raise_file_limit();
    let count = usize::try_from((files / 2).saturating_sub(100)).unwrap_or(10_000).min(10_000);
    let server = Running::start(Settings { max_connections: 11_000, ..settings(2) });
    let mut clients: Vec<_> = (0..count).map(|_| server.connect()).collect();
    for round in 0..2 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("set {number} {round} 0 1\r\nx\r\nget {number}\r\n"));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            client.expect(format!("STORED\r\nVALUE {number} {round} 1\r\nx\r\nEND\r\n"));
        }
    }
    let mut client = clients.pop().expect("a connection");
    assert_eq!(client.stat("curr_connections"), count.to_string());
    assert_eq!(client.stat("read_buf_bytes"), "0");
}

#[test]
fn connections_above_the_limit_are_refused() {
    let server = Running::start(Settings { max_connections: 3, ..settings(2) });
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.talk("get a\r\n", "END\r\n");
    }
    assert_eq!(server.connect().rest(), b"ERROR Too many open connections\r\n");
    assert_eq!(clients[0].stat("rejected_connections"), "1");
    drop(clients);
    // The workers notice the closed connections after a while.
    let served = (0..1000).any(|_| {
        let mut client = server.connect();
        client.0.write_all(b"mn\r\nquit\r\n").is_ok() && client.rest() == b"MN\r\n"
    });
    assert!(served, "no connection is accepted after all clients left");
}

#[test]
fn connections_that_no_worker_has_taken_over_count() {
    let server = Running::start(Settings { max_connections: 50, ..settings(2) });
    let mut first = server.connect();
    first.talk("mn\r\n", "MN\r\n");
    let others: Vec<_> = (0..99).map(|_| server.connect()).collect();
    let has_refused = (0..1000).any(|_| first.stat("rejected_connections") == "50");
    assert!(has_refused, "refused {} of 50", first.stat("rejected_connections"));
    drop(others);
}

#[test]
fn connections_above_the_limit_wait_if_configured() {
    let server =
        Running::start(Settings { max_connections: 1, refuses_fast: false, ..settings(1) });
    let mut first = server.connect();
    first.talk("mn\r\n", "MN\r\n");
    let mut second = server.connect();
    second.send("mn\r\n");
    first.talk("mn\r\n", "MN\r\n");
    drop(first);
    second.expect("MN\r\n");
}

#[test]
fn silent_connections_are_closed_after_the_timeout() {
    let server = Running::start(Settings { idle_timeout_seconds: 1, ..settings(1) });
    let mut silent = server.connect();
    silent.talk("mn\r\n", "MN\r\n");
    assert_eq!(silent.rest(), b"");
    assert_eq!(server.connect().stat("idle_kicks"), "1");
}

#[test]
fn answers_of_a_batch_are_bounded_if_configured() {
    // 64 KiB are 32 answers for each of the two threads.
    let server = Running::start(Settings { buffer_bytes: Some(64 << 10), ..settings(2) });
    let mut client = server.connect();
    let get = |keys: usize| format!("get{}\r\n", " a".repeat(keys));
    client.talk(get(32), "END\r\n");
    let refused = "SERVER_ERROR out of memory writing get response\r\n";
    client.talk(get(33), refused);
    client.talk(format!("mn\r\ngat 0{}\r\nmn\r\n", " a".repeat(32)), "MN\r\n");
    client.expect(refused);
    client.expect("MN\r\n");
    assert_eq!(client.stat("response_obj_oom"), "2");
    // Many requests in one write: the connection is closed, and none of them is executed.
    let mut other = server.connect();
    other.send("set a 0 0 1\r\nx\r\n".repeat(33));
    assert_eq!(other.rest(), b"");
    client.talk("get a\r\n", "END\r\n");
    assert_eq!(client.stat("response_obj_oom"), "3");
}
