//! memcached clients in front of the simulated table.

#![cfg(feature = "verilated")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amalgam_op::Now;
use amalgam_protocol::Protocol;
use amalgam_rtl::host_bridge::{HostBridge, Taken};
use amalgam_rtl::serve::Service;
use amalgam_rtl::{PAPER, Request, opcode};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Sends all of `input`, waits for the answers, and returns them.
fn talk(bridge: &mut HostBridge<()>, mut input: &[u8]) -> Vec<u8> {
    let protocol = Protocol::detect(input[0]);
    while let Taken::Request { used, swallow, closes } = bridge.take(protocol, input, ()) {
        input = input.get(used + swallow..).unwrap_or_default();
        if closes || input.is_empty() {
            break;
        }
    }
    let mut answers = Vec::new();
    for _ in 0..10_000 {
        bridge.run(64);
        while bridge.next_answer(&mut answers).is_some() {}
        if bridge.under_way() == 0 {
            return answers;
        }
    }
    panic!("{} requests are not answered", bridge.under_way());
}

#[test]
fn lines_cross_the_table() {
    let mut bridge = HostBridge::new(PAPER, Now::at(100));
    let talks = [
        ("get a\r\n", "END\r\n"),
        ("set a 7 0 5\r\nvalue\r\n", "STORED\r\n"),
        ("get b a\r\n", "VALUE a 7 5\r\nvalue\r\nEND\r\n"),
        ("set b 0 0 0 noreply\r\n\r\nget b\r\n", "VALUE b 0 0\r\n\r\nEND\r\n"),
        ("set c 0 -1 1\r\nx\r\nget c\r\n", "STORED\r\nEND\r\n"),
        ("delete a\r\ndelete a\r\nget a\r\n", "DELETED\r\nNOT_FOUND\r\nEND\r\n"),
        // A command that the table does not support is not emulated by the bridge.
        ("incr b 1\r\nmg b v\r\nflush_all\r\n", "ERROR\r\nERROR\r\nERROR\r\n"),
        ("nonsense\r\nget b\r\n", "ERROR\r\nVALUE b 0 0\r\n\r\nEND\r\n"),
    ];
    for (said, expected) in talks {
        let answer = talk(&mut bridge, said.as_bytes());
        assert_eq!(String::from_utf8_lossy(&answer), expected, "{said:?}");
    }
}

/// A packet of the binary protocol.
fn packet(code: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut packet = vec![0x80, code, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    packet.extend((body as u32).to_be_bytes());
    packet.extend(*b"opaq");
    packet.extend([0; 8]);
    [&packet[..], extras, key, value].concat()
}

/// Opcode, status and body of each packet of an answer.
fn packets(mut answer: &[u8]) -> Vec<(u8, u16, Vec<u8>)> {
    let mut found = Vec::new();
    while let [0x81, code, _, _, extras, _, high, low, a, b, c, d, ..] = *answer {
        let body = u32::from_be_bytes([a, b, c, d]) as usize;
        assert_eq!(&answer[12..16], b"opaq");
        let content = answer[24 + usize::from(extras)..24 + body].to_vec();
        found.push((code, u16::from_be_bytes([high, low]), content));
        answer = &answer[24 + body..];
    }
    assert!(answer.is_empty());
    found
}

#[test]
fn packets_cross_the_table() {
    let mut bridge = HostBridge::new(PAPER, Now::at(100));
    let said = [
        packet(0x00, &[], b"key", &[]),
        packet(0x01, &[0, 0, 0, 9, 0, 0, 0, 0], b"key", b"of many bytes"),
        packet(0x00, &[], b"key", &[]),
        packet(0x0c, &[], b"key", &[]),
        packet(0x09, &[], b"none", &[]),
        packet(0x04, &[], b"key", &[]),
        packet(0x05, &[0; 20], b"key", &[]),
        packet(0x0a, &[], &[], &[]),
    ];
    let answers = packets(&talk(&mut bridge, &said.concat()));
    let expected: [(u8, u16, &[u8]); 7] = [
        (0x00, 1, b"Not found"),
        (0x01, 0, b""),
        (0x00, 0, b"of many bytes"),
        (0x0c, 0, b"keyof many bytes"),
        (0x04, 0, b""),
        (0x05, 0x81, b"Unknown command"),
        (0x0a, 0, b""),
    ];
    assert_eq!(answers, expected.map(|(code, status, body)| (code, status, body.to_vec())));
}

/// A service in a thread of its own, until it is dropped.
struct Running {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Running {
    fn start() -> Self {
        let (say, hear) = std::sync::mpsc::channel();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stop = is_stopping.clone();
        let thread = std::thread::spawn(move || {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut service = Service::bind(any, PAPER).expect("a free port");
            say.send(service.address().expect("bound")).expect("somebody listens");
            service.run(&stop).expect("it runs")
        });
        let address = hear.recv().expect("it starts");
        Self { address, is_stopping, thread: Some(thread) }
    }

    /// Ends it and returns how many datagrams it dropped.
    fn stop(mut self) -> u64 {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.thread.take().expect("it was started").join().expect("it ends")
    }
}

fn datagram(request: u8, content: &[u8]) -> Vec<u8> {
    [&[0, request, 0, 0, 0, 1, 0, 0], content].concat()
}

#[test]
fn real_sockets_reach_the_table_and_garbage_does_not_stop_it() {
    let service = Running::start();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(service.address).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let mut buffer = [0; 2000];
    let mut random = SmallRng::seed_from_u64(7);
    let mut ask = |request: u8, content: &[u8]| {
        socket.send(&datagram(request, content)).expect("sent");
        let count = socket.recv(&mut buffer).expect("an answer");
        assert_eq!(buffer[..8], [0, request, 0, 0, 0, 1, 0, 0]);
        buffer[8..count].to_vec()
    };
    assert_eq!(ask(1, b"set udp 1 0 3\r\nabc\r\n"), b"STORED\r\n");
    // Cut short, of several datagrams, empty, or lying: dropped whole.
    let whole = packet(0x01, &[0; 8], b"key", b"value");
    for dropped in [&[][..], &[0; 7], &[0, 1, 0, 0, 0, 2, 0, 0, b'x'], &datagram(1, &[])] {
        socket.send(dropped).expect("sent");
    }
    (1..whole.len()).for_each(|end| drop(socket.send(&datagram(2, &whole[..end]))));
    assert_eq!(packets(&ask(3, &packet(0x0a, &[], &[], &[]))), [(0x0a, 0, vec![])]);

    let mut stream = TcpStream::connect(service.address).expect("a connection");
    for _ in 0..50 {
        let mut noise = vec![0; random.random_range(1..300)];
        noise.iter_mut().for_each(|byte| *byte = random.random());
        let mut broken = TcpStream::connect(service.address).expect("a connection");
        broken.write_all(&noise).expect("sent");
    }
    stream.write_all(b"get udp\r\nquit\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the end of the connection");
    assert_eq!(answer, "VALUE udp 1 3\r\nabc\r\nEND\r\n");
    assert_eq!(service.stop(), 4 + whole.len() as u64 - 1);
}

/// The installed memcached, or the one that `AMALGAM_MEMCACHED` names, without CAS, which the table
/// does not have; killed when dropped.
struct Memcached {
    child: std::process::Child,
    address: SocketAddr,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn memcached() -> Memcached {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let port = address.port().to_string();
    let program = std::env::var_os("AMALGAM_MEMCACHED").unwrap_or("memcached".into());
    let child = std::process::Command::new(program)
        .args(["-u", "root", "-C", "-t", "1", "-l", "127.0.0.1", "-p", &port, "-U", &port])
        .spawn()
        .expect("memcached is not installed; `make setup` installs it");
    let memcached = Memcached { child, address };
    for _ in 0..500 {
        if TcpStream::connect(address).is_ok() {
            return memcached;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("memcached does not answer");
}

/// Well-formed requests that the table carries out, of few keys.
fn random_request(random: &mut SmallRng, opcodes: &[u8]) -> Request {
    let number = random.random_range(0..60_usize);
    let mut key = format!("key-{number}").into_bytes();
    key.resize(key.len().max(number * 168 / 59), b'k');
    let opcode = opcodes[random.random_range(0..opcodes.len())];
    if matches!(opcode, opcode::SET | opcode::SETQ) {
        let longest = [0, 20, 200, 1024][random.random_range(0..4)];
        let mut value = vec![0; random.random_range(0..=longest)];
        value.iter_mut().for_each(|byte| *byte = random.random());
        let expiry = [0, 0, 2_592_000, 1, 1000][random.random_range(0..5)];
        // Seconds that end while the test runs have no certain answer; these ended long ago.
        let expiry = if expiry == 1 { 2_592_001 } else { expiry };
        Request { opcode, flags: random.random(), expiry, ..Request::set(&key, &value) }
    } else if opcode == opcode::NOOP {
        Request::new(opcode, b"", b"")
    } else {
        Request::new(opcode, &key, b"")
    }
}

fn as_text(request: &Request, is_quiet: bool) -> Vec<u8> {
    let key = String::from_utf8_lossy(&request.key);
    let noreply = if is_quiet { " noreply" } else { "" };
    match request.opcode {
        opcode::SET => {
            let Request { flags, expiry, value, .. } = request;
            let line = format!("set {key} {flags} {expiry} {}{noreply}\r\n", value.len());
            [line.as_bytes(), value, b"\r\n"].concat()
        }
        opcode::DELETE => format!("delete {key}{noreply}\r\n").into_bytes(),
        _ => format!("get {key} key-1 absent\r\n").into_bytes(),
    }
}

/// What a server answers to `said`, until it closes the connection.
fn answers_of(address: SocketAddr, said: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let mut reader = stream.try_clone().expect("a second handle");
    let thread = std::thread::spawn(move || {
        let mut answers = Vec::new();
        reader.read_to_end(&mut answers).expect("the end of the connection");
        answers
    });
    stream.write_all(said).expect("sent");
    thread.join().expect("it reads")
}

#[test]
fn memcached_answers_the_same() {
    const LOUD: [u8; 5] = [opcode::GET, opcode::GETK, opcode::SET, opcode::DELETE, opcode::NOOP];
    const QUIET: [u8; 4] = [opcode::GETQ, opcode::GETKQ, opcode::SETQ, opcode::DELETEQ];
    let (service, memcached) = (Running::start(), memcached());
    let both = [service.address, memcached.address];
    let mut random = SmallRng::seed_from_u64(11);

    let mut lines = Vec::new();
    for _ in 0..3000 {
        let request = random_request(&mut random, &[opcode::GET, opcode::SET, opcode::DELETE]);
        lines.extend(as_text(&request, random.random_bool(0.2)));
    }
    lines.extend(b"quit\r\n");
    let [ours, theirs] = both.map(|address| answers_of(address, &lines));
    assert!(ours == theirs && ours.len() > 100_000, "{} {} bytes", ours.len(), theirs.len());

    let mut packets = Vec::new();
    for number in 0..3000 {
        packets.extend(
            random_request(&mut random, &[LOUD.as_slice(), &QUIET].concat()).packet(number),
        );
    }
    packets.extend(packet(0x07, &[], &[], &[]));
    let [ours, theirs] = both.map(|address| answers_of(address, &packets));
    let first = ours.iter().zip(&theirs).position(|(a, b)| a != b);
    assert!(ours == theirs && ours.len() > 100_000, "differ at {first:?} of {}", theirs.len());

    let sockets = both.map(|address| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(address).expect("an address");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        socket
    });
    for number in 0..1500 {
        let said = datagram(number as u8, &random_request(&mut random, &LOUD).packet(number));
        let [ours, theirs] = [&sockets[0], &sockets[1]].map(|socket| {
            let mut answer = vec![0; 2000];
            socket.send(&said).expect("sent");
            let count = socket.recv(&mut answer).expect("an answer");
            answer.truncate(count);
            answer
        });
        assert_eq!(ours, theirs, "{said:?}");
    }
    assert_eq!(service.stop(), 0);
}
