//! The directory in etcd (3.4 and later), over its HTTP and JSON gateway.
//!
//! One key holds the whole [`ClusterState`]; it is replaced by a transaction that compares its
//! revision with the one that was read. Each node has a key of its own with its lease. A member
//! whose key is gone is taken out by whoever notices first, in a transaction that compares that it
//! is gone.
//!
//! Invariants of this room:
//! 1. Every change is one transaction on what was read; who read something else reads again.
//! 2. A member leaves the directory only after its lease has ended at etcd, which is after the node
//!    itself has stopped to serve.
//! 3. Calls end: each try in [`TIMEOUT`] at most, tries in number.
//! 4. One endpoint of several that is silent ends no lease: a try takes a part of the lease at
//!    most, and the endpoint that answered last is asked first.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amalgam_cluster::coordinator::{CoordinatorError, Proposal};
use amalgam_cluster::overlay::Peer;
use amalgam_op::IgnorePoison;
use amalgam_protocol::{append_base64, decode_base64};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use crate::membership::{ClusterState, Joined, Membership, MembershipError, Snapshot};

/// How long etcd may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Where there are other endpoints to ask: this part of the lease. A keep-alive that is due waits
/// for another call's try on the silent one at most.
const TIMEOUT_PARTS: u32 = 3;
/// Read at once.
const READ_BYTES: usize = 16 << 10;
/// Times that a transaction is tried against others.
const TRANSACTIONS_MAX: u32 = 50;
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// etcd knows whole seconds, and raises short leases to two.
const LEASE_SECONDS_MIN: u64 = 2;

/// A way to a directory in etcd.
pub struct Etcd {
    /// `host:port` of each.
    endpoints: Vec<String>,
    /// The place of that which answered last.
    first: AtomicUsize,
    /// What all keys of the cluster begin with.
    prefix: String,
    lease_seconds: u64,
    /// The lease of each node that joined here.
    leases: Mutex<Vec<(Peer, String)>>,
    /// What was read last.
    last: Mutex<(String, Arc<Snapshot>)>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({:?}, {})", self.endpoints, self.prefix)
    }
}

/// What one read of all keys of the cluster shows.
struct ClusterKeys {
    /// None before the first node joins.
    directory: Option<ClusterState>,
    /// The revision of its key; 0 if there is none.
    revision: String,
    /// Names of the members whose leases last.
    alive: Vec<String>,
}

fn unreadable(why: impl fmt::Display) -> MembershipError {
    MembershipError::Foreign(why.to_string())
}

fn unreachable(why: impl fmt::Display) -> MembershipError {
    MembershipError::Unreachable(why.to_string())
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    append_base64(&mut text, bytes);
    String::from_utf8(text).unwrap_or_default()
}

fn decoded(text: &Value) -> Result<Vec<u8>, MembershipError> {
    let text = text.as_str().unwrap_or_default();
    let mut bytes = vec![0; text.len()];
    let count = decode_base64(text.as_bytes(), &mut bytes);
    bytes.truncate(count.ok_or_else(|| unreadable("a value is not in base64"))?);
    Ok(bytes)
}

fn lease_name(peer: Peer) -> String {
    format!("{}-{}", peer.node.get(), peer.incarnation)
}

impl Etcd {
    /// The cluster of that name at some endpoints: `http://host:port` or `host:port`.
    ///
    /// # Errors
    ///
    /// If an endpoint is none, or a scheme that is not spoken here.
    pub fn new(endpoints: &[String], cluster: &str, lease_seconds: u64) -> Result<Self, String> {
        let endpoint = |endpoint: &String| {
            let rest = endpoint.strip_prefix("http://").unwrap_or(endpoint);
            if rest.contains("://") {
                return Err(format!("'{endpoint}': etcd is spoken to over http alone"));
            }
            let rest = rest.trim_end_matches('/');
            let named = if rest.contains(':') { rest.to_owned() } else { format!("{rest}:2379") };
            if rest.is_empty() { Err("an endpoint of etcd is empty".to_owned()) } else { Ok(named) }
        };
        let endpoints = endpoints.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Err("no endpoint of etcd is named".to_owned());
        }
        Ok(Self {
            endpoints,
            first: AtomicUsize::new(0),
            prefix: format!("amalgam/{cluster}/"),
            lease_seconds: lease_seconds.max(LEASE_SECONDS_MIN),
            leases: Mutex::default(),
            last: Mutex::default(),
        })
    }

    /// How long one endpoint may take to answer.
    fn timeout(&self) -> Duration {
        let lease = Duration::from_secs(self.lease_seconds);
        if self.endpoints.len() == 1 { TIMEOUT } else { TIMEOUT.min(lease / TIMEOUT_PARTS) }
    }

    /// Calls the endpoints, from that on which answered last, until one answers.
    fn call(&self, path: &str, question: &Value) -> Result<Value, MembershipError> {
        let mut last = unreachable("no endpoint");
        // Relaxed: which one is asked first is a hint.
        let first = self.first.load(Ordering::Relaxed);
        let (before, from) = self.endpoints.split_at(first);
        for (number, endpoint) in from.iter().chain(before).enumerate() {
            match post(endpoint, path, &question.to_string(), self.timeout()) {
                Ok(answer) => {
                    let place = (first + number) % self.endpoints.len();
                    self.first.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => last = unreachable(format!("{endpoint}: {error}")),
            }
        }
        Err(last)
    }

    fn key(&self, name: &str) -> String {
        encoded(format!("{}{name}", self.prefix).as_bytes())
    }

    fn state_key(&self) -> String {
        self.key("directory")
    }

    fn lease_key(&self, peer: Peer) -> String {
        self.key(&format!("alive/{}", lease_name(peer)))
    }

    /// Reads all keys of the cluster at one revision.
    fn read(&self) -> Result<ClusterKeys, MembershipError> {
        // '/' and the byte after it.
        let end = format!("{}0", &self.prefix[..self.prefix.len() - 1]);
        let question = json!({ "key": self.key(""), "range_end": encoded(end.as_bytes()) });
        let answer = self.call("/v3/kv/range", &question)?;
        let mut keys = ClusterKeys { directory: None, revision: "0".to_owned(), alive: Vec::new() };
        for entry in answer["kvs"].as_array().into_iter().flatten() {
            let key = decoded(&entry["key"])?;
            let key = String::from_utf8_lossy(&key);
            let name = key.strip_prefix(&self.prefix).unwrap_or_default();
            if name == "directory" {
                let bytes = decoded(&entry["value"])?;
                keys.directory = Some(ClusterState::from_bytes(&bytes).map_err(unreadable)?);
                keys.revision = entry["mod_revision"].as_str().unwrap_or("0").to_owned();
            } else if let Some(life) = name.strip_prefix("alive/") {
                keys.alive.push(life.to_owned());
            }
        }
        Ok(keys)
    }

    /// Replaces the directory that was read by another, if nobody did before. `compare` and
    /// `success` are what else the transaction asks and does. Whether it happened.
    fn replace(
        &self,
        revision: &str,
        directory: &ClusterState,
        compare: Option<Value>,
        success: Option<Value>,
    ) -> Result<bool, MembershipError> {
        let (key, value) = (self.state_key(), encoded(&directory.to_bytes()));
        let same = json!({
            "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision,
        });
        let put = json!({ "requestPut": { "key": key, "value": value } });
        let mut compares = vec![same];
        compares.extend(compare);
        let mut puts = vec![put];
        puts.extend(success);
        let question = json!({ "compare": compares, "success": puts, "failure": [] });
        let answer = self.call("/v3/kv/txn", &question)?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// Changes the directory, however often others change it meanwhile.
    fn change<T>(
        &self,
        mut change: impl FnMut(&mut ClusterState) -> Result<T, CoordinatorError>,
    ) -> Result<T, MembershipError> {
        for _ in 0..TRANSACTIONS_MAX {
            let ClusterKeys { directory, revision, .. } = self.read()?;
            let mut directory = directory.ok_or_else(|| unreadable("there is no cluster"))?;
            let changed = change(&mut directory)?;
            if self.replace(&revision, &directory, None, None)? {
                return Ok(changed);
            }
        }
        Err(unreachable("others change the directory all the time"))
    }

    /// Takes out a member whose lease ended, if there is one; the others follow with later reads.
    fn remove_expired(&self, keys: &mut ClusterKeys) -> Result<(), MembershipError> {
        let Some(directory) = &mut keys.directory else { return Ok(()) };
        let snapshot = directory.snapshot();
        let members = snapshot.view.members.iter();
        let mut peers = members.map(|(node, m)| Peer { node: *node, incarnation: m.incarnation });
        let Some(peer) = peers.find(|peer| !keys.alive.contains(&lease_name(*peer))) else {
            return Ok(());
        };
        directory.coordinator.end(peer);
        let gone = json!({
            "key": self.lease_key(peer), "target": "VERSION", "result": "EQUAL", "version": "0",
        });
        // Where somebody was faster the next read shows it.
        if self.replace(&keys.revision, directory, Some(gone), None)? {
            log::info!(node = peer.node.get(), incarnation = peer.incarnation; "its lease ended");
        }
        *keys = self.read()?;
        Ok(())
    }

    fn lease_of(&self, peer: Peer) -> Option<String> {
        let leases = self.leases.lock().ignore_poison();
        leases.iter().find(|(other, _)| *other == peer).map(|(_, lease)| lease.clone())
    }
}

fn new_cluster(lease_ms: u64) -> Result<ClusterState, MembershipError> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| unreachable("no random numbers"))?;
    let (cluster, seed) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok(ClusterState::new(number(cluster).max(1), number(seed), lease_ms))
}

impl Membership for Etcd {
    fn lease_ms(&self) -> u64 {
        self.lease_seconds * 1_000
    }

    fn poll_ms(&self) -> u64 {
        100
    }

    fn join(&self, name: &str, address: &str, rack: &str) -> Result<Joined, MembershipError> {
        let seconds = self.lease_seconds.to_string();
        let granted = self.call("/v3/lease/grant", &json!({ "TTL": seconds }))?;
        let lease = granted["ID"].as_str().ok_or_else(|| unreadable("no lease"))?.to_owned();
        for _ in 0..TRANSACTIONS_MAX {
            let ClusterKeys { directory, revision, .. } = self.read()?;
            let mut directory = match directory {
                Some(directory) => directory,
                None => new_cluster(self.lease_ms())?,
            };
            let joined = directory.join(name, (address, rack), 0)?;
            let life = json!({ "requestPut": {
                "key": self.lease_key(joined.peer), "value": encoded(b"1"), "lease": lease,
            }});
            if self.replace(&revision, &directory, None, Some(life))? {
                let mut leases = self.leases.lock().ignore_poison();
                leases.push((joined.peer, lease));
                return Ok(joined);
            }
        }
        Err(unreachable("others change the directory all the time"))
    }

    fn keep_alive(&self, peer: Peer) -> Result<(), MembershipError> {
        let over = || MembershipError::Refused(CoordinatorError::NoMember);
        let lease = self.lease_of(peer).ok_or_else(over)?;
        let answer = self.call("/v3/lease/keepalive", &json!({ "ID": lease }))?;
        let left = answer["result"]["TTL"].as_str().unwrap_or("0");
        if left == "0" { Err(over()) } else { Ok(()) }
    }

    fn leave(&self, peer: Peer) -> Result<(), MembershipError> {
        self.change(|directory| directory.coordinator.leave(peer))?;
        if let Some(lease) = self.lease_of(peer) {
            self.call("/v3/lease/revoke", &json!({ "ID": lease }))?;
        }
        Ok(())
    }

    fn propose(&self, proposal: &Proposal) -> Result<(), MembershipError> {
        self.change(|directory| directory.coordinator.propose(proposal))
    }

    fn flush(&self) -> Result<u64, MembershipError> {
        self.change(|directory| {
            directory.flushes += 1;
            Ok(directory.flushes)
        })
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, MembershipError> {
        let mut keys = self.read()?;
        self.remove_expired(&mut keys)?;
        let mut last = self.last.lock().ignore_poison();
        if last.0 != keys.revision {
            let snapshot = keys.directory.map(|directory| directory.snapshot());
            *last = (keys.revision, Arc::new(snapshot.unwrap_or_default()));
        }
        Ok(Arc::clone(&last.1))
    }
}

/// Sends a question and reads the whole answer, all within `timeout`.
fn post(endpoint: &str, path: &str, body: &str, timeout: Duration) -> Result<Value, String> {
    let text = |error: io::Error| error.to_string();
    let end = Instant::now() + timeout;
    let left = || {
        let left = end.saturating_duration_since(Instant::now());
        // Zero would mean to wait for ever.
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let mut last = "the name has no address".to_owned();
    let mut stream = None;
    for address in endpoint.to_socket_addrs().map_err(text)? {
        match left().and_then(|left| TcpStream::connect_timeout(&address, left)) {
            Ok(open) => {
                stream = Some(open);
                break;
            }
            Err(error) => last = error.to_string(),
        }
    }
    let mut stream = stream.ok_or(last)?;
    stream.set_write_timeout(Some(left().map_err(text)?)).map_err(text)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()))
        .map_err(text)?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    while answer.len() < ANSWER_BYTES_MAX {
        stream.set_read_timeout(Some(left().map_err(text)?)).map_err(text)?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    understand(&answer)
}

/// The JSON of an answer over HTTP.
fn understand(answer: &[u8]) -> Result<Value, String> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(answer).map_err(|error| error.to_string())?;
    let httparse::Status::Complete(body) = parsed else {
        return Err("the answer ends too early".to_owned());
    };
    let is_chunked = response.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("transfer-encoding")
            && header.value.eq_ignore_ascii_case(b"chunked")
    });
    let body = if is_chunked { unchunked(&answer[body..])? } else { answer[body..].to_vec() };
    // A stream is one answer a line; the first is meant.
    let line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let json: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match (response.code, json["error"].as_str()) {
        (Some(200), None) => Ok(json),
        (code, error) => Err(format!("{} {}", code.unwrap_or(0), error.unwrap_or("no reason"))),
    }
}

/// The bytes of a body that was sent in chunks.
fn unchunked(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete((start, size))) => (start, size as usize),
            _ => return Err("the answer ends too early".to_owned()),
        };
        if size == 0 {
            return Ok(body);
        }
        let end = start.saturating_add(size);
        body.extend_from_slice(rest.get(start..end).ok_or("the answer ends too early")?);
        rest = rest.get(end + 2..).ok_or("the answer ends too early")?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn endpoints_are_checked() {
        let of = |text: &str| Etcd::new(&[text.to_owned()], "c", 3).map(|etcd| etcd.endpoints);
        assert_eq!(of("http://a:1/"), Ok(vec!["a:1".to_owned()]));
        assert_eq!(of("a"), Ok(vec!["a:2379".to_owned()]));
        assert!(of("https://a:1").is_err() && of("").is_err());
        assert!(Etcd::new(&[], "c", 3).is_err());
    }

    /// Says to each question that there is nothing.
    fn endpoint() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut question = [0; 4 << 10];
                let mut count = 0;
                // All of it: what is closed before it was read is reset. Nothing but its body ends
                // so.
                while !question[..count].ends_with(b"}") {
                    match stream.read(&mut question[count..]) {
                        Ok(more) if more > 0 => count += more,
                        _ => break,
                    }
                }
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                // Whoever left is not answered.
                let _ = stream.write_all(answer);
            }
        });
        address
    }

    /// As where packets to a machine vanish: nothing is refused there.
    #[test]
    fn a_silent_endpoint_is_asked_once_and_for_a_part_of_the_lease() {
        const LEASE_SECONDS: u64 = 2;
        let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = mute.local_addr().expect("an address").to_string();
        let endpoints = [silent, endpoint()];
        let etcd = Etcd::new(&endpoints, "c", LEASE_SECONDS).expect("endpoints");
        // What a try takes, and what a keep-alive that comes right after it waits before, leave
        // half of the lease.
        assert!(
            etcd.timeout() + Duration::from_secs(LEASE_SECONDS) / 4
                < Duration::from_secs(LEASE_SECONDS) * 2 / 3
        );
        let begin = Instant::now();
        etcd.snapshot().expect("the other answers");
        let first = begin.elapsed();
        assert!(first >= etcd.timeout(), "{first:?}");
        for _ in 0..20 {
            etcd.snapshot().expect("the other answers");
        }
        mute.set_nonblocking(true).expect("an option");
        let asked = mute.incoming().map_while(Result::ok).count();
        assert_eq!(asked, 1, "it was asked again");
        // The quickest of some, as the machine may be busy.
        let try_it = |_| {
            let begin = Instant::now();
            post(&endpoints[0], "/", "", Duration::from_millis(20)).expect_err("nobody answers");
            begin.elapsed()
        };
        let quickest = (0..5).map(try_it).min().expect("some");
        assert!(quickest < TIMEOUT / 2, "{quickest:?}: a try takes what it is given");
    }

    #[test]
    fn answers_are_understood() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\":\"b\"}";
        assert_eq!(understand(whole), Ok(json!({ "a": "b" })));
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\n{\"a\":\r\n5\r\n\"b\"}\n\r\n0\r\n\r\n";
        assert_eq!(understand(chunks), Ok(json!({ "a": "b" })));
        for cut in 0..chunks.len() - 6 {
            assert!(understand(&chunks[..cut]).is_err());
        }
        let refused = b"HTTP/1.1 404 Not Found\r\n\r\n{\"error\":\"no lease\"}";
        assert_eq!(understand(refused), Err("404 no lease".to_owned()));
    }
}
