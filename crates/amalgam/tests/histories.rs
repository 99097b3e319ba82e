//! Clients that ask a server, and a cluster of which a node is killed, for a few keys at once. What
//! they were told is recorded for the oracle (docs/histories.md); the test itself only checks that
//! enough was answered.

mod support;

use std::io::{BufRead, BufReader, Error, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amalgam_conformance::harness::Random;
use amalgam_conformance::recording::{End, Recorder, Reply, Request};
use support::etcd::EtcdProcess;
use support::{ANY_PORT, PATIENCE, Process, backed_up, command, temporary};

const CLIENTS: usize = 4;
const KEYS: usize = 6;
/// Operations of one client.
const TURNS: usize = 500;
/// Between two operations, so that items expire meanwhile.
const PAUSE: Duration = Duration::from_millis(6);
const REFUSED: &str = "SERVER_ERROR the key's owner is unavailable; nothing was done";
const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// A connection, made again after an error.
struct Client<'a> {
    addresses: &'a [String],
    place: usize,
    stream: Option<BufReader<TcpStream>>,
}

impl Client<'_> {
    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let stream = self.stream.as_mut().expect("it is connected");
        if stream.read_line(&mut line)? == 0 {
            return Err(Error::other("closed"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Whether there is a connection.
    fn connect(&mut self) -> bool {
        if self.stream.is_none() {
            let address = &self.addresses[self.place % self.addresses.len()];
            self.place += 1;
            self.stream = TcpStream::connect(address).ok().map(|stream| {
                stream.set_read_timeout(Some(PATIENCE)).expect("an option");
                BufReader::new(stream)
            });
        }
        self.stream.is_some()
    }

    fn ask(&mut self, key: &str, request: &Request, ttl: Option<u64>) -> Result<End, Error> {
        let ttl = ttl.unwrap_or(0);
        let store = |verb: &str, value: &str, cas: &str| {
            format!("{verb} {key} 0 {ttl} {}{cas}\r\n{value}\r\n", value.len())
        };
        let text = match request {
            Request::Get => format!("get {key}\r\n"),
            Request::Gets => format!("gets {key}\r\n"),
            Request::Set { value } => store("set", value, ""),
            Request::Add { value } => store("add", value, ""),
            Request::Replace { value } => store("replace", value, ""),
            Request::Append { value } => store("append", value, ""),
            Request::Prepend { value } => store("prepend", value, ""),
            Request::Cas { value, cas } => store("cas", value, &format!(" {cas}")),
            Request::Incr { delta, .. } => format!("incr {key} {delta}\r\n"),
            Request::Delete => format!("delete {key}\r\n"),
            Request::Touch => format!("touch {key} {ttl}\r\n"),
            Request::Flush => "flush_all\r\n".to_owned(),
        };
        self.stream.as_mut().expect("it is connected").get_mut().write_all(text.as_bytes())?;
        let line = self.line()?;
        let reply = match line.as_str() {
            "STORED" => Reply::Stored,
            "NOT_STORED" => Reply::NotStored,
            "EXISTS" => Reply::Exists,
            "NOT_FOUND" | "END" => Reply::NotFound,
            "DELETED" => Reply::Deleted,
            "TOUCHED" => Reply::Touched,
            NOT_A_NUMBER => Reply::NotANumber,
            REFUSED => return Ok(End::Refused),
            line if line.starts_with("SERVER_ERROR") => return Ok(End::Unknown),
            line => match line.strip_prefix("VALUE ") {
                Some(head) => {
                    let found_cas = head.split(' ').nth(3).map(|id| id.parse().expect("an id"));
                    let found = self.line()?;
                    assert_eq!(self.line()?, "END");
                    Reply::Hit { found, found_cas }
                }
                None => {
                    let number = line.parse();
                    Reply::Number { number: number.unwrap_or_else(|_| panic!("answer {line}")) }
                }
            },
        };
        Ok(End::Known(reply))
    }
}

/// Asks for random things, and records them. `turn` counts the turns of all clients.
fn run(recorder: &Recorder, addresses: &[String], client: usize, turn: &AtomicUsize) -> usize {
    let mut random = Random(client as u64 + 1);
    let mut connection = Client { addresses, place: client, stream: None };
    let (mut ids, mut known) = ([0; KEYS], 0);
    for number in 0..TURNS {
        turn.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(PAUSE);
        if !connection.connect() {
            continue;
        }
        let place = random.below(KEYS);
        // Items of half of the keys expire.
        let ttl = place.is_multiple_of(2).then(|| 1 + random.below(2) as u64);
        let (key, value) = (
            format!("key{place}"),
            format!("{}{}", ["", "v"][number % 2], client * 10_000 + number),
        );
        let request = match random.below(12) {
            0..3 => Request::Get,
            3 => Request::Gets,
            4 => Request::Set { value },
            5 => Request::Add { value },
            6 => Request::Replace { value },
            7 => Request::Append { value: "7".to_owned() },
            8 => Request::Incr { delta: 3, initial: None },
            9 if random.below(2) == 0 => Request::Delete,
            9 | 10 if ttl.is_some() => Request::Touch,
            _ => Request::Cas { value, cas: ids[place] },
        };
        // The time to live of an append is not taken.
        let takes_ttl = request.writes()
            && !matches!(request, Request::Append { .. } | Request::Incr { .. } | Request::Delete);
        let ttl = ttl.filter(|_| takes_ttl);
        let begun = recorder.begin_for(&client.to_string(), &key, request.clone(), ttl);
        let end = connection.ask(&key, &request, ttl).unwrap_or_else(|_| {
            connection.stream = None;
            End::Unknown
        });
        if let End::Known(reply) = &end {
            known += 1;
            if let Reply::Hit { found_cas: Some(id), .. } = reply {
                ids[place] = *id;
            }
        }
        recorder.end(begun, end);
    }
    known
}

/// Runs all clients; `meanwhile` begins when a third of their turns are over.
fn record(name: &str, addresses: &[String], meanwhile: impl FnOnce()) {
    let recorder = Recorder::new(name, &format!("process test {name}"));
    let turn = AtomicUsize::new(0);
    let known: usize = std::thread::scope(|scope| {
        let (recorder, turn) = (&recorder, &turn);
        let client = |client| scope.spawn(move || run(recorder, addresses, client, turn));
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let begin = Instant::now();
        while turn.load(Ordering::Acquire) < CLIENTS * TURNS / 3 && begin.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
        meanwhile();
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    assert!(known > CLIENTS * TURNS / 2, "{name}: only {known} operations were answered");
}

#[test]
fn what_a_server_answers_is_recorded() {
    for engine in ["mercury", "memc3", "hotring-r"] {
        let server = Process::start(&mut command(&[ANY_PORT, &["-e", engine]].concat()));
        record(&format!("server-{engine}"), &[format!("127.0.0.1:{}", server.port)], || ());
    }
}

#[test]
fn what_nodes_answer_while_one_is_killed_is_recorded() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("histories");
    let mut nodes: Vec<_> = std::thread::scope(|scope| {
        let (etcd, folder) = (&etcd, &folder);
        let start = |name| scope.spawn(move || backed_up(etcd, folder, name));
        let starting = ["one", "two", "three", "four"].map(start);
        starting.into_iter().map(|one| one.join().expect("it serves")).collect()
    });
    let addresses: Vec<String> = nodes.iter().map(|node| node.nodes[0].1.clone()).collect();
    record("nodes-killed", &addresses, || nodes[3].kill());
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("it is there");
}
