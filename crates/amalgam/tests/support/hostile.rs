//! Attacks on a process, and what other clients see meanwhile.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::PATIENCE;

pub const MEBIBYTE: usize = 1 << 20;

/// How long an attack goes on once all its clients are there, at effort 1.
const ATTACK_TIME: Duration = Duration::from_millis(500);

/// How long clients are observed before an attack, at effort 1, and at any.
const CALM_TIME: Duration = Duration::from_millis(250);
const CALM_TIME_MAX: Duration = Duration::from_secs(1);

/// How often an attack is made before a gateway that refuses much is a failure, and in the long
/// form for a median.
const ATTEMPTS: usize = 3;

/// How many times as long as before the attack 99 % of the exchanges may take: in the long form,
/// which runs alone on its machine. The short form is a part of the tests that every machine runs,
/// and reports it only.
const SLOWER: f64 = 3.0;

/// Times of exchanges below this count as this: an exchange takes a tenth of it, and waits longer
/// whenever the attacker or an observer has the core.
const TIME_FLOOR: Duration = Duration::from_millis(1);

/// A key, and the length of its value, to which connections append [`APPENDS`] bytes each: two
/// hundred of them do not make it as long as it can be.
const APPENDED: (&str, usize) = ("appended", 800_000);
const APPENDS: usize = 1000;

/// What a gateway answers for keys whose owner is too busy.
const REFUSALS: [&str; 2] = [
    "SERVER_ERROR the key's owner is unavailable; nothing was done\r\n",
    "SERVER_ERROR unknown outcome: the key's owner did not answer in time\r\n",
];

pub fn effort() -> usize {
    std::env::var("AMALGAM_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The limit of open files, raised as far as the system allows.
fn file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, most).expect("up to the maximum is always allowed");
    limit.maximum.map_or(usize::MAX, |most| most as usize)
}

/// A connection over TCP or a unix socket.
pub trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// Where memcached's clients connect to.
pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    pub fn connect(&self) -> Box<dyn Stream> {
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).expect("accepts");
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                Box::new(stream)
            }
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("accepts");
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                Box::new(stream)
            }
        }
    }

    /// A connection whose reads and writes do not wait, which sends as much of `bytes` as fits.
    pub fn push(&self, bytes: &[u8]) -> Option<Box<dyn Stream>> {
        match self {
            Self::Unix(path) => {
                let mut stream = UnixStream::connect(path).ok()?;
                stream.set_nonblocking(true).ok()?;
                let _ = stream.write(bytes);
                Some(Box::new(stream))
            }
            Self::Tcp(address) => {
                let mut stream = TcpStream::connect(address).ok()?;
                stream.set_nonblocking(true).ok()?;
                let _ = stream.write(bytes);
                Some(Box::new(stream))
            }
        }
    }

    /// Connections that each send as much of `bytes` as fits.
    pub fn push_all(&self, count: usize, bytes: &[u8]) -> Vec<Option<Box<dyn Stream>>> {
        (0..count).map(|_| self.push(bytes)).collect()
    }

    /// Connections that each send all of `bytes`, or as much as the server takes.
    pub fn pour(&self, count: usize, bytes: &[u8]) -> Vec<Option<Box<dyn Stream>>> {
        let mut streams = self.push_all(count, b"");
        let (mut sent, deadline) = (vec![0; count], Instant::now() + PATIENCE * effort() as u32);
        // How often nothing was sent, one after the other.
        let mut silent = 0;
        while silent < 20 {
            assert!(Instant::now() < deadline, "the server neither takes all nor stops");
            let before: usize = sent.iter().sum();
            for (stream, sent) in streams.iter_mut().zip(&mut sent) {
                let stream = stream.as_mut().expect("accepts");
                *sent += stream.write(&bytes[*sent..]).unwrap_or(0);
            }
            silent = if sent.iter().sum::<usize>() == before { silent + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(2));
        }
        streams
    }

    /// A statistic of the server.
    pub fn stat(&self, name: &str) -> usize {
        let text = talk(&mut *self.connect(), b"stats\r\n", "END\r\n");
        let start = format!("STAT {name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start)).expect("a statistic");
        value.parse().expect("a number")
    }

    /// The length of a value; 0 if it is not there.
    fn length(&self, key: &str) -> usize {
        let answer = talk(&mut *self.connect(), format!("mg {key} s\r\n").as_bytes(), "\r\n");
        answer.trim_end().strip_prefix("HD s").map_or(0, |length| length.parse().expect("a number"))
    }

    /// Stores a value of this length, and returns the answer.
    fn store(&self, key: &str, bytes: usize) -> String {
        let mut store = format!("set {key} 0 0 {bytes}\r\n").into_bytes();
        store.resize(store.len() + bytes, b'v');
        store.extend(b"\r\n");
        talk(&mut *self.connect(), &store, "\r\n")
    }
}

/// Sends, and reads an answer that ends so.
pub fn talk(stream: &mut dyn Stream, sent: &[u8], end: &str) -> String {
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

/// A process that is attacked.
pub trait Victim: Sync {
    /// Whether it may answer a tenth of the requests with an error because the owner of the key did
    /// not answer in time, as a gateway does on a busy machine.
    const MAY_REFUSE: bool;

    /// The number of the process.
    fn process(&self) -> u32;

    /// Where its other clients connect to.
    fn address(&self) -> &Address;

    /// Connections that an attack makes at most.
    fn connections_max(&self) -> usize;

    /// Bytes that the process may have in memory with this many hostile connections.
    fn bound_bytes(&self, connections: usize) -> usize;
}

/// Bytes of a process in memory.
pub fn resident_bytes(process: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    let kibibytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kibibytes << 10
}

/// Descriptors that a process has open.
fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).expect("a process").count()
}

/// What a client that behaves has seen.
struct Observed {
    /// How long each exchange took, sorted.
    times: Vec<Duration>,
    /// How many of them were answered that the key is unavailable.
    refused: usize,
}

impl Observed {
    /// The time within which 99 % of the exchanges ended.
    fn p99(&self) -> Duration {
        self.times[self.times.len() * 99 / 100]
    }
}

/// Sets and gets, over one connection and over new ones, until told to stop.
fn witness(address: &Address, may_refuse: bool, stops: &AtomicBool) -> Observed {
    let (mut times, mut refused) = (Vec::new(), 0);
    let mut stream = address.connect();
    let value = "v".repeat(500);
    while !stops.load(Ordering::Relaxed) || times.is_empty() {
        for key in 0..20 {
            let begin = Instant::now();
            let store = format!("set w{key} 0 0 500\r\n{value}\r\n");
            let stored = talk(&mut *stream, store.as_bytes(), "\r\n");
            // What follows tells the end, whatever the answer is.
            let get = format!("get w{key}\r\nmn\r\n");
            let answer = talk(&mut *stream, get.as_bytes(), "MN\r\n");
            let got = answer.trim_end_matches("MN\r\n");
            if may_refuse && [stored.as_str(), got].iter().any(|answer| REFUSALS.contains(answer)) {
                refused += 1;
            } else {
                assert_eq!(stored, "STORED\r\n");
                assert!(got == "END\r\n" || got.contains(&value), "{got}");
            }
            times.push(begin.elapsed());
        }
        assert_eq!(talk(&mut *address.connect(), b"mn\r\n", "\r\n"), "MN\r\n");
        std::thread::sleep(Duration::from_millis(1));
    }
    times.sort_unstable();
    Observed { times, refused }
}

/// Sets the flag when dropped, so that a panic ends the threads that look at it.
struct StopOnDrop<'f>(&'f AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What was seen during an attack, or before it.
struct Observation {
    /// With the victim, and with a server that nobody attacked.
    clients: [Observed; 2],
    most_bytes: usize,
}

/// Observes a client that behaves, and one of a server that is not attacked, while `attack` runs
/// and for `time` after it: both have the same machine and the same load.
fn observe<V: Victim, T>(
    victim: &V,
    control: &Address,
    attack: impl FnOnce(&V) -> T,
    time: Duration,
) -> Observation {
    let (stops, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let clients = std::thread::scope(|scope| {
        let stop = StopOnDrop(&stops);
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes(victim.process()), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let witnesses = [victim.address(), control]
            .map(|address| scope.spawn(|| witness(address, V::MAY_REFUSE, &stops)));
        let held = attack(victim);
        std::thread::sleep(time);
        drop(held);
        drop(stop);
        witnesses.map(|witness| witness.join().expect("others are answered"))
    });
    Observation { clients, most_bytes: most.into_inner() }
}

/// Runs an attack: others are answered, the process stays within its bound of memory, and
/// afterwards everything is given back. `attack` gets the victim and the number of connections to
/// make, and returns what must stay open while the attack lasts.
///
/// In the long form, the slowest of a hundred exchanges may take [`SLOWER`] times as long as
/// before, in the median of several attempts: the system may take the processor away from one
/// server alone. Attackers, both servers and the observers share the machine's cores, so what the
/// control's client waits for longer during the attack is not the victim's doing: that is the
/// measure where it is longer than the calm time.
pub fn endure<V: Victim, T>(
    name: &str,
    victim: &V,
    control: &Address,
    connections: usize,
    attack: impl Fn(&V, usize) -> T,
) {
    let connections = connections * effort();
    endure_exactly(name, victim, control, connections, attack);
}

/// As [`endure`], with this number of connections whatever the effort is.
fn endure_exactly<V: Victim, T>(
    name: &str,
    victim: &V,
    control: &Address,
    connections: usize,
    attack: impl Fn(&V, usize) -> T,
) {
    let connections = connections.min(victim.connections_max()).min(file_limit() / 2 - 100);
    let (process, is_bounded) = (victim.process(), effort() > 1);
    let (bytes_before, files_before) = (resident_bytes(process), open_files(process));
    let bound = victim.bound_bytes(connections);
    let (mut ratios, mut refusals) = (Vec::new(), 0);
    while !is_decided(&mut ratios, is_bounded) {
        let calm_time = (CALM_TIME * effort() as u32).min(CALM_TIME_MAX);
        let before = observe(victim, control, |_| (), calm_time);
        fill(name, victim);
        let attack = |victim: &V| attack(victim, connections);
        let seen = observe(victim, control, attack, ATTACK_TIME * effort() as u32);
        wait_until_given_back(name, victim, files_before);
        let [others, of_control] = &seen.clients;
        let [calm, control_calm] = before.clients.map(|client| client.p99());
        let (slowest, control_slowest) = (others.p99(), of_control.p99());
        let ratio = times(slowest, calm.max(control_slowest));
        let mebibytes = |bytes: usize| bytes as f64 / MEBIBYTE as f64;
        println!(
            "{name}: {connections} connections; {} exchanges of others, {} refused, 99 % within \
             {slowest:.1?}, before {calm:.1?}: {:.1} times; with a server that is not attacked \
             {control_slowest:.1?}, before {control_calm:.1?}: {:.1} times; resident {:.0} MiB \
             before, {:.0} at most, {:.0} afterwards, bound {:.0}",
            others.times.len(),
            others.refused,
            times(slowest, calm),
            times(control_slowest, control_calm),
            mebibytes(bytes_before),
            mebibytes(seen.most_bytes),
            mebibytes(resident_bytes(process)),
            mebibytes(bound)
        );
        assert!(seen.most_bytes <= bound, "{name}: {} bytes resident", seen.most_bytes);
        if others.refused > others.times.len() / 10 {
            refusals += 1;
            let (refused, all) = (others.refused, others.times.len());
            assert!(refusals < ATTEMPTS, "{name}: {refused} of {all} were refused");
            continue;
        }
        ratios.push(ratio);
    }
    let median = ratios[ratios.len() / 2];
    assert!(!is_bounded || median <= SLOWER, "{name}: others wait {ratios:.1?} times as long");
}

/// How many times as long one time is as the other, where both are at least [`TIME_FLOOR`].
fn times(time: Duration, other: Duration) -> f64 {
    time.max(TIME_FLOOR).as_secs_f64() / other.max(TIME_FLOOR).as_secs_f64()
}

/// Whether enough attempts were made: one, or where the median of [`ATTEMPTS`] is bounded as many
/// as tell on which side of the bound it is. Sorts the ratios.
fn is_decided(ratios: &mut [f64], is_bounded: bool) -> bool {
    ratios.sort_by(f64::total_cmp);
    let attempts = if is_bounded { ATTEMPTS } else { 1 };
    let within = ratios.iter().filter(|ratio| **ratio <= SLOWER).count();
    within > attempts / 2 || ratios.len() >= attempts
}

/// As [`endure`], of connections that ask for a value of [`fill`] this many times and do not take
/// it.
pub fn endure_readers<V: Victim>(
    victim: &V,
    control: &Address,
    (connections, key, times): (usize, &str, usize),
) {
    let requests = format!("get {key}\r\n").repeat(times).into_bytes();
    let name = format!("readers that stop, {times} requests of a {key} value");
    let attack = |victim: &V, count| victim.address().push_all(count, &requests);
    let mut counts = vec![connections, connections * effort()];
    counts.dedup();
    for count in counts {
        endure_exactly(&name, victim, control, count, attack);
    }
}

/// Waits until the victim has no connection, buffer and descriptor of the attack left, and stores.
fn wait_until_given_back<V: Victim>(name: &str, victim: &V, files_before: usize) {
    let (address, deadline) = (victim.address(), Instant::now() + PATIENCE);
    loop {
        let files = open_files(victim.process());
        let left = (address.stat("curr_connections"), address.stat("read_buf_bytes"));
        // The connection that asks. Some descriptors come with the first requests.
        if left == (1, 0) && files <= files_before + 8 {
            break;
        }
        let now = Instant::now();
        assert!(now < deadline, "{name}: {left:?} connections and bytes are left, {files} files");
        std::thread::sleep(Duration::from_millis(5));
    }
    store_patiently(name, victim, ("afterwards", 20_000));
}

/// Stores a value of this length, as soon as the victim does not refuse it.
fn store_patiently<V: Victim>(name: &str, victim: &V, (key, bytes): (&str, usize)) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = victim.address().store(key, bytes);
        if answer == "STORED\r\n" {
            break;
        }
        assert!(V::MAY_REFUSE && Instant::now() < deadline, "{name}: {key} is answered {answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Garbage that is the same in each run.
pub fn garbage(bytes: usize) -> Vec<u8> {
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

/// Stores the values that slow readers ask for, and that bytes are appended to: an attack may have
/// pushed them out, or have made them as long as they can be.
fn fill<V: Victim>(name: &str, victim: &V) {
    for (key, bytes) in [("large", 1_000_000), ("middle", 15_000), APPENDED] {
        store_patiently(name, victim, (key, bytes));
    }
}

/// What clients may do to any port that speaks memcached's protocols. `readers` are connections
/// that ask for a value of [`fill`] this many times and do not take it.
pub fn attack_streams<V: Victim>(victim: &V, control: &Address, readers: &[(usize, &str, usize)]) {
    let line = b"get k k k k k k ".repeat(60_000);
    endure("endless lines", victim, control, 40, |victim, count| {
        victim.address().push_all(count, &line)
    });
    let mut value = b"set k 0 0 1000000\r\n".to_vec();
    value.resize(900_000, b'v');
    endure("values that never end", victim, control, 80, |victim, count| {
        victim.address().push_all(count, &value)
    });
    endure("beginnings of requests", victim, control, 1000, |victim, count| {
        victim.address().push_all(count, &value[..8000])
    });
    for readers in readers {
        endure_readers(victim, control, *readers);
    }
    let (key, bytes) = APPENDED;
    let appends = format!("append {key} 0 0 1 noreply\r\nx\r\n").repeat(APPENDS).into_bytes();
    let before = victim.address().stat("cmd_set");
    endure("bytes appended to a long value", victim, control, 20, |victim, count| {
        victim.address().push_all(count, &appends)
    });
    let (length, sets) = (victim.address().length(key), victim.address().stat("cmd_set"));
    assert!(length > bytes, "nothing was appended by {} sets, or it was pushed out", sets - before);
    let noise = garbage(200_000);
    endure("garbage", victim, control, 50, |victim, count| {
        victim.address().push_all(count, &noise)
    });
    endure("churn", victim, control, 2000, |victim, count| {
        (0..count).for_each(|number| drop(victim.address().push(&noise[..number % 100])));
    });
    endure("idle", victim, control, 2000, |victim, count| victim.address().push_all(count, b""));
}
