//! The servers that `amalgam top` asks, and what they answered last.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use amalgam_bench::{Usage, UsageError};
use amalgam_server::append_base64;
use amalgam_tls::ClientTls;
use anyhow::{Context, Error, Result, ensure};
use serde_json::Value;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a node is asked, each time after a pause, until it has the answers of the others: it
/// asks them only when somebody wants to know, and waits 5 s for one that is silent.
const CLUSTER_PATIENCE: Duration = Duration::from_secs(6);
const CLUSTER_PAUSE: Duration = Duration::from_millis(100);

/// The longest answer that is read, in bytes.
const ANSWER_BYTES: u64 = 4 << 20;

/// What precedes the address of a server that is asked over TLS.
const HTTPS: &str = "https://";

/// How a server knows the user, and the user a server.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The value of the Authorization header; None to send none.
    pub authorization: Option<String>,
    /// The certificates to trust; None if no server can be asked over TLS.
    pub tls: Option<ClientTls>,
}

/// A server and its last answer.
pub struct Host {
    /// The address as the user wrote it.
    pub name: String,
    /// The name or IP address in it, which the server's certificate must be for.
    host: String,

    /// Where it may listen, in the order in which these are tried.
    addresses: Vec<SocketAddr>,
    /// The last status that the server sent; null before the first.
    pub status: Value,
    /// What the server told last about the nodes of its cluster; null if it is in none.
    pub cluster: Value,
    /// When it last sent that; None before the first time.
    answered_at: Option<Instant>,
    /// Why the last request failed; None if it succeeded.
    pub problem: Option<String>,
    credentials: Credentials,
}

impl Host {
    /// A server that was not asked yet.
    ///
    /// # Errors
    ///
    /// If the name is no address, or cannot be found, or is asked over TLS and nothing is trusted.
    pub fn find(name: &str, mut credentials: Credentials) -> Result<Self> {
        let address = match name.strip_prefix(HTTPS) {
            None => {
                credentials.tls = None;
                name.strip_prefix("http://").unwrap_or(name)
            }
            Some(_) if credentials.tls.is_none() => {
                return Err(UsageError::new(format!(
                    "{name} needs --tls-ca FILE, with the CA of the server's certificate or the \
                     certificate itself"
                ))
                .into());
            }
            Some(rest) => rest,
        };
        let address = address.trim_end_matches('/');
        let found = amalgam_bench::resolve(address);
        let addresses: Vec<_> = found.with_context(|| name.to_owned()).usage()?.collect();
        ensure!(!addresses.is_empty(), "{name}: no such address");
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            name: name.to_owned(),
            host,
            addresses,
            status: Value::Null,
            cluster: Value::Null,
            answered_at: None,
            problem: None,
            credentials,
        })
    }

    /// A server that answered.
    #[cfg(test)]
    pub fn answered(name: &str, status: Value) -> Self {
        Self {
            name: name.to_owned(),
            host: name.to_owned(),
            addresses: Vec::new(),
            status,
            cluster: Value::Null,
            answered_at: None,
            problem: None,
            credentials: Credentials::default(),
        }
    }

    /// Asks the server, and keeps what it answered before if it does not answer now.
    fn fetch(&mut self) {
        match self.ask("/api/status") {
            Ok(status) => (self.status, self.problem) = (status, None),
            Err(error) => {
                let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
                let (all, address) = (all.join(", "), &self.name);
                self.problem = Some(format!(
                    "no answer from {all}: {error:#}; is the server running with --admin \
                     {address}?"
                ));
            }
        }
    }

    /// Whether it is a node of a cluster.
    fn is_node(&self) -> bool {
        self.status["engine"] == "cluster"
    }

    /// Asks once for the nodes of the server's cluster, if it is in one; whether it answered. If
    /// not, what it told before stays.
    pub fn fetch_cluster(&mut self) -> bool {
        if !self.is_node() {
            self.cluster = Value::Null;
            return true;
        }
        let answer = self.ask("/api/cluster");
        let has_answered = answer.is_ok();
        if let Ok(cluster) = answer {
            (self.cluster, self.answered_at) = (cluster, Some(Instant::now()));
        }
        has_answered
    }

    /// How long ago the nodes answered what [`Host::cluster`] has of them; None if they did not.
    pub fn cluster_age(&self) -> Option<Duration> {
        let age = Duration::from_millis(self.cluster["age_ms"].as_u64()?);
        Some(age + self.answered_at?.elapsed())
    }

    /// Asks for the nodes until the server knows them; whether it did in time.
    pub fn await_cluster(&mut self) -> bool {
        let end = Instant::now() + CLUSTER_PATIENCE;
        while self.fetch_cluster() {
            if !self.is_node() || !self.cluster["age_ms"].is_null() {
                return true;
            }
            if Instant::now() >= end {
                break;
            }
            thread::sleep(CLUSTER_PAUSE);
        }
        false
    }

    /// What the server answers at a path.
    fn ask(&self, path: &str) -> Result<Value> {
        let Self { addresses, host, credentials, .. } = self;
        // A name may have an address of IPv6 where the server listens on IPv4 alone.
        let mut connected = Err(Error::msg("it has no address"));
        for address in addresses {
            connected = TcpStream::connect_timeout(address, PATIENCE)
                .map(|stream| (stream, address))
                .map_err(Error::from);
            if connected.is_ok() {
                break;
            }
        }
        let (stream, address) = connected?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let field = credentials.authorization.as_ref();
        let field = field.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{field}\r\n");
        match &credentials.tls {
            None => fetch(stream, &request),
            Some(tls) => fetch(tls.stream(host, stream).map_err(Error::msg)?, &request),
        }
    }
}

/// Asks all servers at once, so that one that does not answer delays no other.
pub fn fetch_all(hosts: &mut [Host]) {
    thread::scope(|scope| {
        for host in hosts {
            scope.spawn(|| host.fetch());
        }
    });
}

/// The value of an Authorization header with the user and password in a file's first line.
///
/// # Errors
///
/// If the file cannot be read, or the line is not of the form user:password.
pub fn authorization(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    ensure!(
        line.contains(&b':'),
        "{}: the first line is not of the form user:password",
        file.display()
    );
    let mut value = b"Basic ".to_vec();
    append_base64(&mut value, line);
    Ok(String::from_utf8(value).expect("base64 is ASCII"))
}

/// Sends a request, and reads the answer.
fn fetch(mut stream: impl Read + Write, request: &str) -> Result<Value> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("the answer is not HTTP")? + 4);
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(body).trim());
    serde_json::from_slice(body).context("the answer is not that of an Amalgam server")
}
