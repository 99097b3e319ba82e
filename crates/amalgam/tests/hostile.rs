//! Hostile clients against the server as a process, on every port that clients can reach.
//!
//! While each attack runs, other clients are answered and the process stays within its memory
//! bound (`docs/operations.md`); afterwards everything is given back. `AMALGAM_EFFORT` multiplies
//! the time and the connections of the attacks; `make hostile` sets it. Above 1, the time that
//! others wait is bounded too.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use support::hostile::{
    Address, MEBIBYTE, Victim, attack_streams, endure, endure_readers, garbage, resident_bytes,
    talk,
};
use support::{PATIENCE, command, temporary};

/// `-m` of the servers.
const MEMORY_BYTES: usize = 64 * MEBIBYTE;

const THREADS: usize = 2;

/// Connections, the value that each asks for, and how many times.
const READERS: &[(usize, &str, usize)] = &[(100, "large", 2000), (100, "middle", 2000)];

/// A server with every kind of port.
struct Target {
    child: Child,
    /// Plain TCP or a unix socket.
    address: Address,
    tls: Option<String>,
    admin: Option<String>,
    udp: Option<String>,
    /// What items, and buffers of clients, may take.
    memory_bytes: usize,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Victim for Target {
    const MAY_REFUSE: bool = false;

    fn process(&self) -> u32 {
        self.child.id()
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connections_max(&self) -> usize {
        10_000
    }

    fn bound_bytes(&self, connections: usize) -> usize {
        let more =
            self.memory_bytes / 10_000 * 54 + THREADS * 16 * MEBIBYTE + connections * (16 << 10);
        self.memory_bytes + 64 * MEBIBYTE + more
    }
}

impl Target {
    fn over_tcp(name: &str) -> Self {
        Self::with_memory(name, MEMORY_BYTES)
    }

    fn with_memory(name: &str, memory_bytes: usize) -> Self {
        let memory = (memory_bytes / MEBIBYTE).to_string();
        let ports = temporary(&format!("hostile-{name}"));
        let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/certificates");
        let chain = format!("ssl_chain_cert={certificates}/server.pem");
        let mut command = command(&["serve", "-u", "root", "-m", &memory, "-c", "20000", "-Z"]);
        command.args(["-l", "127.0.0.1:0,notls:127.0.0.1:0", "-U", "-1", "-o", &chain]);
        command.args(["-t", &THREADS.to_string(), "--admin", "127.0.0.1:0"]);
        command.env("MEMCACHED_PORT_FILENAME", &ports);
        let (child, lines) = start(command, 3);
        let udp = std::fs::read_to_string(&ports).expect("the ports");
        let udp = udp.lines().find_map(|line| line.strip_prefix("UDP INET: ")).expect("a port");
        let udp = format!("127.0.0.1:{udp}");
        std::fs::remove_file(&ports).expect("it was written");
        let [tls, address, admin]: [String; 3] = lines.try_into().expect("three lines");
        let address = Address::Tcp(address);
        let (tls, admin, udp) = (Some(tls), Some(admin), Some(udp));
        Self { child, address, tls, admin, udp, memory_bytes }
    }

    fn over_unix(name: &str) -> Self {
        let path = temporary(&format!("hostile-{name}"));
        let mut command = command(&["serve", "-u", "root", "-m", "64", "-c", "20000", "-s"]);
        command.arg(&path).args(["-t", &THREADS.to_string()]);
        let (child, _) = start(command, 1);
        let (tls, admin, udp) = (None, None, None);
        Self { child, address: Address::Unix(path), tls, admin, udp, memory_bytes: MEMORY_BYTES }
    }
}

/// Starts a server, and returns the addresses in the first lines that it prints.
fn start(mut command: std::process::Command, lines: usize) -> (Child, Vec<String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let output = BufReader::new(child.stdout.take().expect("is piped"));
    let address = |line: std::io::Result<String>| {
        let line = line.expect("a line");
        let line = line.trim_end_matches('/').rsplit([' ', '/']).next().map(str::to_owned);
        line.expect("an address")
    };
    let addresses: Vec<_> = output.lines().take(lines).map(address).collect();
    assert_eq!(addresses.len(), lines, "the server did not start");
    (child, addresses)
}

#[test]
fn streams_over_tcp() {
    let control = Target::over_tcp("tcp-control");
    attack_streams(&Target::over_tcp("tcp"), &control.address, READERS);
}

#[test]
fn streams_over_unix_sockets() {
    let [target, control] = ["unix", "unix-control"].map(Target::over_unix);
    attack_streams(&target, &control.address, READERS);
    for server in [target, control] {
        if let Address::Unix(path) = &server.address {
            std::fs::remove_file(path).expect("it is there");
        }
    }
}

/// Attacks that once took a server away, a tenth and ten times as large.
#[test]
fn attacks_that_once_succeeded() {
    let control = Target::over_tcp("once-control");
    let target = Target::over_tcp("once");
    for bytes in [9_000, 90_000, 900_000] {
        let line = [b"get".as_slice(), &b" k".repeat(bytes / 2)].concat();
        for count in [2, 24, 240] {
            let name = format!("lines of {bytes} bytes that do not end");
            endure(&name, &target, &control.address, count, |target, count| {
                target.address.push_all(count, &line)
            });
        }
    }
    for (connections, times) in [(8, 8), (80, 8), (800, 8), (80, 80), (80, 1)] {
        endure_readers(&target, &control.address, (connections, "large", times));
    }
}

/// Lines that take all buffers of a server with a gibibyte, which once were never given back.
#[test]
fn lines_without_an_end_for_a_gibibyte() {
    let control = Target::over_tcp("gibibyte-control");
    let mut target = Target::with_memory("gibibyte", 1024 * MEBIBYTE);
    // Nothing is stored: what the bound leaves is the share of buffers.
    target.memory_bytes /= 4;
    for (round, (count, keys)) in
        [(320, 450_000), (330, 450_000), (340, 450_000), (3_200, 45_000)].into_iter().enumerate()
    {
        let line = [b"get".as_slice(), &b" k".repeat(keys)].concat();
        endure("lines that take all buffers", &target, &control.address, count, |target, count| {
            target.address.pour(count, &line)
        });
        // Of many short ones some are closed instead, as they stand still.
        let refused = target.address.stat("read_buf_oom");
        let is_exhausted = refused > round || keys < 450_000;
        assert!(is_exhausted, "buffers were not exhausted: {refused} lines refused");
    }
    let deadline = Instant::now() + PATIENCE;
    while resident_bytes(target.child.id()) > 64 * MEBIBYTE {
        assert!(Instant::now() < deadline, "the process keeps the memory of freed buffers");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Answers about the server that are long, or take long to make.
#[test]
fn statistics_and_lists() {
    const PREFIXES: usize = 20_000;
    let control = Target::over_tcp("lists-control");
    let target = Target::over_tcp("lists");
    let mut stream = target.address.connect();
    let prefix = "p".repeat(220);
    let sets = (0..PREFIXES).map(|number| format!("ms {prefix}{number}:k 1 q\r\nv\r\n"));
    let sets: String = sets.collect();
    talk(&mut *stream, format!("stats detail on\r\n{sets}mn\r\n").as_bytes(), "MN\r\n");
    talk(&mut *stream, b"stats detail off\r\n", "OK\r\n");
    drop(stream);
    for request in
        ["stats", "stats conns", "stats detail dump", "stats sizes", "lru_crawler metadump all"]
    {
        let requests = format!("{request}\r\n").repeat(300).into_bytes();
        endure(request, &target, &control.address, 100, |target, count| {
            target.address.push_all(count, &requests)
        });
    }
}

/// The attacks that need no request of the port's protocol.
#[test]
fn what_is_not_said_on_any_port() {
    let control = Target::over_tcp("silence-control");
    let control = &control.address;
    let target = Target::over_tcp("silence");
    let Address::Tcp(plain) = &target.address else { unreachable!("it listens for TCP") };
    let [tls, admin] = [&target.tls, &target.admin].map(|one| one.as_ref().expect("an address"));
    let noise = garbage(60_000);
    let line = b"get k k k k k k ".repeat(60_000);
    for (port, address) in [("clients", plain), ("TLS", tls), ("admin", admin)] {
        let attack = |what: &str, count: usize, attack: &dyn Fn(usize) -> Vec<TcpStream>| {
            endure(&format!("{port}: {what}"), &target, control, count, |_, count| attack(count));
        };
        // The port may refuse connections, and close them.
        let connect = |bytes: &[u8]| {
            let mut stream = TcpStream::connect(address).ok()?;
            stream.set_nonblocking(true).ok()?;
            let _ = stream.write(bytes);
            Some(stream)
        };
        attack("idle", 300, &|count| (0..count).filter_map(|_| connect(b"")).collect());
        attack("endless lines", 40, &|count| (0..count).filter_map(|_| connect(&line)).collect());
        attack("garbage", 100, &|count| (0..count).filter_map(|_| connect(&noise)).collect());
        attack("half-open", 300, &|count| {
            let half = |_| {
                let stream = connect(b"set k 0 0 100\r\nhalf")?;
                let _ = stream.shutdown(Shutdown::Write);
                Some(stream)
            };
            (0..count).filter_map(half).collect()
        });
        attack("churn", 1000, &|count| {
            (0..count).for_each(|number| drop(connect(&noise[..number % 100])));
            Vec::new()
        });
    }
}

#[test]
fn other_ports() {
    let control = Target::over_tcp("others-control");
    let control = &control.address;
    let target = Target::over_tcp("others");
    endure("TLS handshakes that trickle", &target, control, 300, |target, count| {
        let address = target.tls.as_ref().expect("an address");
        let mut streams: Vec<_> =
            (0..count).map(|_| TcpStream::connect(address).expect("accepts")).collect();
        // The head of a record that announces 16 KiB of a handshake, and a part of it.
        for byte in [0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3].iter().chain(&[0; 50]) {
            streams.iter_mut().for_each(|stream| drop(stream.write(&[*byte])));
        }
        streams
    });
    let noise = garbage(60_000);
    endure("datagrams", &target, control, 1000, |target, count| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.connect(target.udp.as_ref().expect("an address")).expect("an address");
        for number in 0..count {
            let _ = socket.send(&noise[number % 1000..][..number % 1400]);
            let _ = socket.send(b"\0\0\0\0\0\x01\0\0get large middle\r\n");
        }
    });
    endure("trickles to the admin address", &target, control, 100, |target, count| {
        let address = target.admin.as_ref().expect("an address");
        let mut streams: Vec<_> =
            (0..count).map(|_| TcpStream::connect(address).expect("accepts")).collect();
        for byte in b"GET /metrics HTTP/1.1\r\nHost: loc" {
            streams.iter_mut().for_each(|stream| drop(stream.write(&[*byte])));
        }
        let mut stream = TcpStream::connect(address).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        streams
    });
}
