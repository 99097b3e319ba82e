//! Captures a trace from a running server, by its `watch` command.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Reading;
use super::lines::Reader;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the clock is checked while no line arrives.
const TICK: Duration = Duration::from_millis(200);

/// The longest answer that is read, in bytes.
const ANSWER_BYTES: u64 = 1 << 20;

/// What was captured from a server.
#[derive(Debug)]
pub struct Capture {
    /// The requests.
    pub reading: Reading,
    /// Its memory limit in bytes.
    pub memory_bytes: u64,
    /// The number of threads of the server.
    pub threads: usize,
    /// The lines that the server's full queue dropped meanwhile. Nothing in the trace marks where
    /// they are missing.
    pub dropped: u64,
}

/// Watches the server at `address` (HOST:PORT) for `seconds`, or until `most_requests` were read.
/// Each line is also written to `copy`.
///
/// # Errors
///
/// If the server cannot be reached or does not allow watching, or got no request meanwhile.
pub fn capture(
    address: &str,
    seconds: u64,
    most_requests: u64,
    copy: &mut dyn Write,
) -> anyhow::Result<Capture> {
    let before = statistics(address)?;
    let mut stream = connect(address)?;
    stream.write_all(b"watch fetchers mutations deletions\r\n")?;
    let mut source = BufReader::with_capacity(1 << 20, stream);
    let mut line = Vec::new();
    source.read_until(b'\n', &mut line)?;
    if line.trim_ascii() != b"OK" {
        let answer = String::from_utf8_lossy(&line);
        bail!("{address} does not allow watching ({}): start it without -W", answer.trim());
    }
    source.get_ref().set_read_timeout(Some(TICK))?;
    let mut reader = Reader::default();
    let end = Instant::now() + Duration::from_secs(seconds);
    line.clear();
    while Instant::now() < end && reader.requests() < most_requests {
        // The part of a line that arrives before a timeout stays in the buffer, up to a bound.
        match (&mut source).take(ANSWER_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => bail!("{address} closed the connection"),
            Ok(_) => {
                copy.write_all(&line)?;
                reader.take(&line);
                line.clear();
            }
            Err(error) if is_timeout(&error) && (line.len() as u64) < ANSWER_BYTES => {}
            Err(error) => return Err(error).context(address.to_owned()),
        }
    }
    copy.flush()?;
    drop(source);
    let after = statistics(address)?;
    let reading = reader.finish().with_context(|| format!("watching {address}"))?;
    Ok(Capture {
        reading,
        memory_bytes: after.number("limit_maxbytes")?,
        threads: after.number("threads")? as usize,
        dropped: after.dropped().saturating_sub(before.dropped()),
    })
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let mut found =
        address.to_socket_addrs().with_context(|| format!("{address}: must be HOST:PORT"))?;
    let found = found.next().with_context(|| format!("{address}: no such address"))?;
    let stream = TcpStream::connect_timeout(&found, PATIENCE)
        .with_context(|| format!("no server answers at {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The server's answer to `stats`.
struct Statistics(String);

fn statistics(address: &str) -> anyhow::Result<Statistics> {
    let mut stream = connect(address)?;
    stream.write_all(b"stats\r\nquit\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(Statistics(String::from_utf8_lossy(&answer).into_owned()))
}

impl Statistics {
    fn number(&self, name: &str) -> anyhow::Result<u64> {
        let mut words = self.0.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let line = words.find(|words| words.len() == 3 && words[1] == name);
        let value = line.and_then(|words| words[2].parse().ok());
        value.with_context(|| format!("the server does not tell its {name}"))
    }

    fn dropped(&self) -> u64 {
        self.number("log_worker_dropped").unwrap_or(0)
    }
}
