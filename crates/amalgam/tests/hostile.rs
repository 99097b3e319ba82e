//! Hostile clients against the server as a process, on every port that clients can reach.
//!
//! While each attack runs, other clients are answered and the process stays within its memory
//! bound (`docs/operations.md`); afterwards everything is given back. `AMALGAM_EFFORT` multiplies
//! the time and the connections of the attacks; `make hostile` sets it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{PATIENCE, command, temporary};

const MEBIBYTE: usize = 1 << 20;

/// `-m` of the servers.
const MEMORY_BYTES: usize = 64 * MEBIBYTE;

const THREADS: usize = 2;

/// How long an attack goes on once all its clients are there, at effort 1.
const ATTACK_TIME: Duration = Duration::from_millis(500);

fn effort() -> usize {
    std::env::var("AMALGAM_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The limit of open files, raised as far as the system allows.
fn file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, most).expect("up to the maximum is always allowed");
    limit.maximum.map_or(usize::MAX, |most| most as usize)
}

/// A server with every kind of port.
struct Target {
    child: Child,
    /// Plain TCP.
    address: String,
    tls: Option<String>,
    admin: Option<String>,
    udp: Option<String>,
    unix: Option<std::path::PathBuf>,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection over TCP or a unix socket.
trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

impl Target {
    fn over_tcp(name: &str) -> Self {
        let ports = temporary(&format!("hostile-{name}"));
        let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/certificates");
        let chain = format!("ssl_chain_cert={certificates}/server.pem");
        let mut command = command(&["serve", "-u", "root", "-m", "64", "-c", "20000", "-Z"]);
        command.args(["-l", "127.0.0.1:0,notls:127.0.0.1:0", "-U", "-1", "-o", &chain]);
        command.args(["-t", &THREADS.to_string(), "--admin", "127.0.0.1:0"]);
        command.env("MEMCACHED_PORT_FILENAME", &ports);
        let (child, lines) = start(command, 3);
        let udp = std::fs::read_to_string(&ports).expect("the ports");
        let udp = udp.lines().find_map(|line| line.strip_prefix("UDP INET: ")).expect("a port");
        let udp = format!("127.0.0.1:{udp}");
        std::fs::remove_file(&ports).expect("it was written");
        let [tls, address, admin]: [String; 3] = lines.try_into().expect("three lines");
        Self { child, address, tls: Some(tls), admin: Some(admin), udp: Some(udp), unix: None }
    }

    fn over_unix(name: &str) -> Self {
        let path = temporary(&format!("hostile-{name}"));
        let mut command = command(&["serve", "-u", "root", "-m", "64", "-c", "20000", "-s"]);
        command.arg(&path).args(["-t", &THREADS.to_string()]);
        let (child, _) = start(command, 1);
        Self { child, address: String::new(), tls: None, admin: None, udp: None, unix: Some(path) }
    }

    fn connect(&self) -> Box<dyn Stream> {
        if let Some(path) = &self.unix {
            let stream = UnixStream::connect(path).expect("accepts");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            return Box::new(stream);
        }
        let stream = TcpStream::connect(&self.address).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Box::new(stream)
    }

    /// A connection whose reads and writes do not wait, which sends as much of `bytes` as fits.
    fn push(&self, bytes: &[u8]) -> Option<Box<dyn Stream>> {
        if let Some(path) = &self.unix {
            let mut stream = UnixStream::connect(path).ok()?;
            stream.set_nonblocking(true).ok()?;
            let _ = stream.write(bytes);
            return Some(Box::new(stream));
        }
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_nonblocking(true).ok()?;
        let _ = stream.write(bytes);
        Some(Box::new(stream))
    }

    fn talk(stream: &mut dyn Stream, sent: &[u8], end: &str) -> String {
        stream.write_all(sent).expect("sends");
        let mut text = Vec::new();
        let mut buffer = [0; 1 << 16];
        while !text.ends_with(end.as_bytes()) {
            let count = stream.read(&mut buffer).expect("an answer in time");
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// A statistic of the server.
    fn stat(&self, name: &str) -> usize {
        let text = Self::talk(&mut *self.connect(), b"stats\r\n", "END\r\n");
        let start = format!("STAT {name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start)).expect("a statistic");
        value.parse().expect("a number")
    }

    /// Bytes of the process in memory.
    fn resident_bytes(&self) -> usize {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("a process");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
        let kibibytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kibibytes << 10
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

/// Sets and gets, over one connection and over new ones, until told to stop. Returns how long each
/// exchange took.
fn witness(target: &Target, stops: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut stream = target.connect();
    let value = "v".repeat(500);
    while !stops.load(Ordering::Relaxed) || times.is_empty() {
        for key in 0..20 {
            let begin = Instant::now();
            let store = format!("set w{key} 0 0 500\r\n{value}\r\n");
            assert_eq!(Target::talk(&mut *stream, store.as_bytes(), "\r\n"), "STORED\r\n");
            let get = format!("get w{key}\r\n");
            let answer = Target::talk(&mut *stream, get.as_bytes(), "END\r\n");
            assert!(answer == "END\r\n" || answer.contains(&value), "{answer}");
            times.push(begin.elapsed());
        }
        assert_eq!(Target::talk(&mut *target.connect(), b"mn\r\n", "\r\n"), "MN\r\n");
        std::thread::sleep(Duration::from_millis(1));
    }
    times
}

/// Sets the flag when dropped, so that a panic ends the threads that look at it.
struct StopOnDrop<'f>(&'f AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs an attack next to a client that behaves. `attack` gets the target and the number of
/// connections to make, and returns what must stay open while the attack lasts.
fn endure<T>(
    name: &str,
    target: &Target,
    connections: usize,
    attack: impl FnOnce(&Target, usize) -> T,
) {
    let connections = (connections * effort()).min(10_000).min(file_limit() / 2 - 100);
    let before = target.resident_bytes();
    let bound = MEMORY_BYTES + 64 * MEBIBYTE + THREADS * 16 * MEBIBYTE + connections * (16 << 10);
    let (stops, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut times = std::thread::scope(|scope| {
        let stop = StopOnDrop(&stops);
        let observe = || {
            while !stops.load(Ordering::Relaxed) {
                most.fetch_max(target.resident_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        scope.spawn(observe);
        let witness = scope.spawn(|| witness(target, &stops));
        let held = attack(target, connections);
        std::thread::sleep(ATTACK_TIME * effort() as u32);
        drop(held);
        drop(stop);
        witness.join().expect("others are answered")
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = (target.stat("curr_connections"), target.stat("read_buf_bytes"));
        // The connection that asks; its TLS session, if it had one, would be counted in bytes.
        if left == (1, 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{name}: {left:?} connections and bytes are left");
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort_unstable();
    let (most, p99) = (most.into_inner(), times[times.len() * 99 / 100]);
    let mebibytes = |bytes: usize| bytes as f64 / MEBIBYTE as f64;
    println!(
        "{name}: {connections} connections, {} exchanges of others, 99 % within {p99:.1?}; \
         resident {:.0} MiB before, {:.0} at most, {:.0} afterwards, bound {:.0}",
        times.len(),
        mebibytes(before),
        mebibytes(most),
        mebibytes(target.resident_bytes()),
        mebibytes(bound)
    );
    assert!(most <= bound, "{name}: {most} bytes resident, {bound} allowed");
}

/// Stores the values that slow readers ask for.
fn fill(target: &Target) {
    let mut stream = target.connect();
    for (key, bytes) in [("large", 1_000_000), ("middle", 15_000)] {
        let mut store = format!("set {key} 0 0 {bytes}\r\n").into_bytes();
        store.resize(store.len() + bytes, b'v');
        store.extend(b"\r\n");
        assert_eq!(Target::talk(&mut *stream, &store, "\r\n"), "STORED\r\n");
    }
}

fn repeat(target: &Target, connections: usize, bytes: &[u8]) -> Vec<Option<Box<dyn Stream>>> {
    (0..connections).map(|_| target.push(bytes)).collect()
}

/// Garbage that is the same in each run.
fn garbage(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Many lines, and few that last.
        if state.is_multiple_of(40) { b'\n' } else { (state >> 32) as u8 }
    };
    (0..bytes).map(|_| next()).collect()
}

/// What clients may do to any port that speaks memcached's protocols.
fn attack_streams(target: &Target) {
    fill(target);
    let line = b"get k k k k k k ".repeat(60_000);
    endure("endless lines", target, 40, |target, count| repeat(target, count, &line));
    let mut value = b"set k 0 0 1000000\r\n".to_vec();
    value.resize(900_000, b'v');
    endure("values that never end", target, 80, |target, count| repeat(target, count, &value));
    endure("beginnings of requests", target, 1000, |target, count| {
        repeat(target, count, &value[..8000])
    });
    for (name, key) in [("large", "get large\r\n"), ("middle", "get middle\r\n")] {
        let requests = key.repeat(2000).into_bytes();
        let name = format!("readers that stop, {name} values");
        endure(&name, target, 100, |target, count| repeat(target, count, &requests));
    }
    let noise = garbage(200_000);
    endure("garbage", target, 50, |target, count| repeat(target, count, &noise));
    endure("churn", target, 2000, |target, count| {
        (0..count).for_each(|number| drop(target.push(&noise[..number % 100])));
    });
    endure("idle", target, 2000, |target, count| repeat(target, count, b""));
}

#[test]
fn streams_over_tcp() {
    attack_streams(&Target::over_tcp("tcp"));
}

#[test]
fn streams_over_unix_sockets() {
    let target = Target::over_unix("unix");
    attack_streams(&target);
    std::fs::remove_file(target.unix.as_ref().expect("a path")).expect("it is there");
}

#[test]
fn other_ports() {
    let target = Target::over_tcp("others");
    fill(&target);
    let half_open = |target: &Target, count| -> Vec<TcpStream> {
        let half = |_| {
            let mut stream = TcpStream::connect(&target.address).expect("accepts");
            let _ = stream.write_all(b"set k 0 0 100\r\nhalf");
            let _ = stream.shutdown(Shutdown::Write);
            stream
        };
        (0..count).map(half).collect()
    };
    endure("half-open", &target, 300, half_open);
    endure("TLS handshakes that trickle", &target, 300, |target, count| {
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
    endure("garbage instead of TLS", &target, 100, |target, count| {
        let address = target.tls.as_ref().expect("an address");
        for _ in 0..count {
            let mut stream = TcpStream::connect(address).expect("accepts");
            let _ = stream.write(&noise);
        }
    });
    endure("datagrams", &target, 1000, |target, count| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.connect(target.udp.as_ref().expect("an address")).expect("an address");
        for number in 0..count {
            let _ = socket.send(&noise[number % 1000..][..number % 1400]);
            let _ = socket.send(b"\0\0\0\0\0\x01\0\0get large middle\r\n");
        }
    });
    endure("trickles to the admin address", &target, 100, |target, count| {
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
