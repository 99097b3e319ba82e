//! The client of all systems: one key's reads and writes over memcached's text protocol or
//! Redis's. Both try another member where none accepts, and repeat nothing that was sent.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::chaos::checker::Outcome;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a connection may take to open.
const DIAL_PATIENCE: Duration = Duration::from_millis(500);
/// Operations after which a client of memcached's protocol goes on to the next member.
const OPERATIONS_PER_GATEWAY: u32 = 40;
/// Redirects that one operation follows at most.
const REDIRECTS_MAX: u32 = 4;
/// What gateways of ours add where a write had no effect.
const NOTHING_DONE: &str = "nothing was done";

/// What is spoken, and how a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol, at any member.
    Memcached,
    /// Redis's protocol, at the key's owner. With `waits`, a write counts once a replica has it.
    Redis {
        /// Whether `WAIT 1` follows each write.
        waits: bool,
    },
}

/// A client of one key at a time.
pub struct Client {
    protocol: Protocol,
    members: Vec<SocketAddr>,
    /// The member that is asked next.
    pub gateway: usize,
    /// The member that was tried last, which an error is about. After it a client goes on.
    pub asked: usize,
    connection: Option<BufReader<TcpStream>>,
    operations: u32,
}

/// An answer, as far as clients look at it.
enum Answer {
    Line(String),
    Value(Option<String>),
}

impl Client {
    /// A client that begins with the member of this number.
    pub fn new(protocol: Protocol, members: &[SocketAddr], gateway: usize) -> Self {
        let (members, gateway) = (members.to_vec(), gateway % members.len());
        Self { protocol, members, gateway, asked: gateway, connection: None, operations: 0 }
    }

    /// Asks this member next.
    pub fn move_to(&mut self, gateway: usize) {
        self.gateway = gateway % self.members.len();
        self.connection = None;
    }

    /// Writes a number.
    pub fn write(&mut self, key: &str, number: u64) -> Outcome {
        let value = format!("{number:010}");
        let request = match self.protocol {
            Protocol::Memcached => format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()),
            Protocol::Redis { .. } => command(&["SET", key, &value]),
        };
        match self.ask(&request) {
            Ok(Answer::Line(line)) if line == "STORED" => Outcome::Stored,
            Ok(Answer::Line(line)) if line == "+OK" => self.wait_for_replica(),
            Ok(Answer::Line(line)) if line.contains(NOTHING_DONE) => Outcome::Refused,
            Err(IsSent(false)) => Outcome::Refused,
            // Redis executes nothing that it answers with an error.
            Ok(Answer::Line(line)) if line.starts_with('-') => Outcome::Refused,
            _ => Outcome::Unknown,
        }
    }

    fn wait_for_replica(&mut self) -> Outcome {
        if self.protocol != (Protocol::Redis { waits: true }) {
            return Outcome::Stored;
        }
        let sent = self.exchange(&command(&["WAIT", "1", "1000"]));
        match sent {
            Ok(Answer::Line(line)) if line.starts_with(':') && line != ":0" => Outcome::Stored,
            _ => Outcome::Unknown,
        }
    }

    /// Reads the number of a key.
    pub fn read(&mut self, key: &str) -> Outcome {
        let request = match self.protocol {
            Protocol::Memcached => format!("get {key}\r\n"),
            Protocol::Redis { .. } => command(&["GET", key]),
        };
        match self.ask(&request) {
            Ok(Answer::Value(None)) => Outcome::Miss,
            Ok(Answer::Value(Some(value))) => value.parse().map_or(Outcome::Failed, Outcome::Hit),
            _ => Outcome::Failed,
        }
    }

    /// Sends a request to the member that serves it.
    fn ask(&mut self, request: &str) -> Result<Answer, IsSent> {
        if self.protocol == Protocol::Memcached {
            self.operations += 1;
            if self.operations.is_multiple_of(OPERATIONS_PER_GATEWAY) {
                self.move_to(self.gateway + 1);
            }
            return self.send(request);
        }
        let mut answer = self.send(request)?;
        for _ in 0..REDIRECTS_MAX {
            let Answer::Line(line) = &answer else { break };
            let mut words = line.split(' ');
            let is_asked = match words.next() {
                Some("-MOVED") => false,
                Some("-ASK") => true,
                _ => break,
            };
            let place = words.nth(1).and_then(|at| at.parse().ok());
            let place = place.and_then(|at| self.members.iter().position(|other| *other == at));
            let Some(place) = place else { break };
            self.move_to(place);
            if !self.connect() {
                // Its owner is gone: others may know of a new one.
                self.move_to(place + 1);
                return Err(IsSent(false));
            }
            if is_asked {
                self.exchange(&command(&["ASKING"]))?;
            }
            answer = self.exchange(request)?;
        }
        if matches!(&answer, Answer::Line(line) if line.starts_with("-CLUSTERDOWN")) {
            // The member sees too few others; those may see each other.
            self.move_to(self.gateway + 1);
        }
        Ok(answer)
    }

    /// Sends a request to the first member that accepts a connection.
    fn send(&mut self, request: &str) -> Result<Answer, IsSent> {
        for _ in 0..self.members.len() {
            if self.connect() {
                return self.exchange(request);
            }
            self.move_to(self.gateway + 1);
        }
        Err(IsSent(false))
    }

    fn connect(&mut self) -> bool {
        self.asked = self.gateway;
        if self.connection.is_none() {
            let stream = TcpStream::connect_timeout(&self.members[self.gateway], DIAL_PATIENCE);
            let prepared = stream.and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(stream)
            });
            self.connection = prepared.ok().map(BufReader::new);
        }
        self.connection.is_some()
    }

    /// Sends and reads over the open connection, which ends if that fails.
    fn exchange(&mut self, request: &str) -> Result<Answer, IsSent> {
        let stream = self.connection.as_mut().ok_or(IsSent(false))?;
        let answer = stream.get_mut().write_all(request.as_bytes()).and_then(|()| read(stream));
        answer.map_err(|_| {
            // A client cannot know whether the member that it leaves has taken the request.
            self.move_to(self.gateway + 1);
            IsSent(true)
        })
    }
}

/// A request that was not answered; whether it may have been sent.
struct IsSent(bool);

/// A command in Redis's protocol.
fn command(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

/// Reads an answer of either protocol: their first characters differ.
fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Answer> {
    let first = line(stream)?;
    match first.as_bytes().first() {
        Some(b'$') if first == "$-1" => Ok(Answer::Value(None)),
        Some(b'$') => Ok(Answer::Value(Some(line(stream)?))),
        _ if first == "END" => Ok(Answer::Value(None)),
        _ if first.starts_with("VALUE ") => {
            let value = line(stream)?;
            line(stream)?;
            Ok(Answer::Value(Some(value)))
        }
        _ => Ok(Answer::Line(first)),
    }
}

fn line(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Members that each answer one connection's requests with these texts.
    fn members(answers: &'static [&'static [&'static str]]) -> Vec<SocketAddr> {
        let start = |answers: &'static [&'static str]| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let address = listener.local_addr().expect("an address");
            std::thread::spawn(move || {
                let mut stream = BufReader::new(listener.accept().expect("accepts").0);
                for answer in answers {
                    while line(&mut stream).is_ok_and(|line| !is_last(&line)) {}
                    stream.get_mut().write_all(answer.as_bytes()).expect("sends");
                }
            });
            address
        };
        answers.iter().map(|answers| start(answers)).collect()
    }

    /// Whether a request of these tests ends with this line.
    fn is_last(line: &str) -> bool {
        ["get k", "0000000007", "1000", "lonely"].contains(&line)
    }

    #[test]
    fn answers_of_memcached_are_understood() {
        let members = members(&[&[
            "STORED\r\n",
            "SERVER_ERROR the key's owner is unavailable; nothing was done\r\n",
            "SERVER_ERROR unknown outcome\r\n",
            "VALUE k 0 10\r\n0000000007\r\nEND\r\n",
            "END\r\n",
            "SERVER_ERROR no\r\n",
        ]]);
        let mut client = Client::new(Protocol::Memcached, &members, 0);
        assert_eq!(client.write("k", 7), Outcome::Stored);
        assert_eq!(client.write("k", 7), Outcome::Refused);
        assert_eq!(client.write("k", 7), Outcome::Unknown);
        assert_eq!(client.read("k"), Outcome::Hit(7));
        assert_eq!(client.read("k"), Outcome::Miss);
        assert_eq!(client.read("k"), Outcome::Failed);
    }

    #[test]
    fn a_member_that_does_not_listen_is_passed_over() {
        let mut members = members(&[&["STORED\r\n"]]);
        let gone = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("one");
        members.insert(0, gone);
        let mut client = Client::new(Protocol::Memcached, &members, 0);
        assert_eq!(client.write("k", 7), Outcome::Stored);
        assert_eq!(client.gateway, 1);
        let mut client = Client::new(Protocol::Memcached, &[gone], 0);
        assert_eq!(client.write("k", 7), Outcome::Refused);
    }

    #[test]
    fn a_member_that_sees_too_few_others_is_left() {
        let members = members(&[&["-CLUSTERDOWN The cluster is down\r\n"], &["$-1\r\n"]]);
        let mut client = Client::new(Protocol::Redis { waits: false }, &members, 0);
        assert_eq!(client.read("lonely"), Outcome::Failed);
        assert_eq!((client.asked, client.gateway), (0, 1), "the error is the first one's");
        assert_eq!(client.read("lonely"), Outcome::Miss);
        assert_eq!(client.asked, 1);
    }

    #[test]
    fn a_write_whose_replica_did_not_answer_is_unknown() {
        let members = members(&[&["+OK\r\n", ":1\r\n", "+OK\r\n", ":0\r\n", "-LOADING\r\n"]]);
        let mut client = Client::new(Protocol::Redis { waits: true }, &members, 0);
        assert_eq!(client.write("k", 7), Outcome::Stored);
        assert_eq!(client.write("k", 7), Outcome::Unknown);
        assert_eq!(client.write("k", 7), Outcome::Refused);
    }
}
