//! The servers that `amalgam top` asks, and what they answered last.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use amalgam_bench::Usage;
use amalgam_server::append_base64;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer that is read, in bytes.
const ANSWER_BYTES: u64 = 4 << 20;

/// A server and its last answer.
pub struct Host {
    /// The address as the user wrote it.
    pub name: String,
    address: SocketAddr,
    /// The last status that the server sent; null before the first.
    pub status: Value,
    /// Why the last request failed; None if it succeeded.
    pub problem: Option<String>,
    /// The value of the Authorization header; None to send none.
    authorization: Option<String>,
}

impl Host {
    /// A server that was not asked yet; `authorization` is for [`authorization`]'s header.
    ///
    /// # Errors
    ///
    /// If the name is no address, or cannot be found.
    pub fn find(name: &str, authorization: Option<String>) -> Result<Self> {
        let found = amalgam_bench::resolve(name);
        let mut found = found.with_context(|| name.to_owned()).usage()?;
        let address = found.next().with_context(|| format!("{name}: no such address"))?;
        let (name, status) = (name.to_owned(), Value::Null);
        Ok(Self { name, address, status, problem: None, authorization })
    }

    /// A server that answered.
    #[cfg(test)]
    pub fn answered(name: &str, status: Value) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 9150));
        Self { name: name.to_owned(), address, status, problem: None, authorization: None }
    }

    /// Asks the server, and keeps what it answered before if it does not answer now.
    fn fetch(&mut self) {
        let address = self.address;
        match fetch(address, self.authorization.as_deref()) {
            Ok(status) => (self.status, self.problem) = (status, None),
            Err(error) => {
                self.problem = Some(format!(
                    "no answer from {address}: {error:#}; is the server running with --admin \
                     {address}?"
                ));
            }
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

/// Fetches the status of a server.
fn fetch(address: SocketAddr, authorization: Option<&str>) -> Result<Value> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let field = authorization.map(|value| format!("Authorization: {value}\r\n"));
    let field = field.unwrap_or_default();
    let request = format!("GET /api/status HTTP/1.1\r\nHost: {address}\r\n{field}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("the answer is not HTTP")? + 4);
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(body).trim());
    serde_json::from_slice(body).context("the answer is not that of an Amalgam server")
}
