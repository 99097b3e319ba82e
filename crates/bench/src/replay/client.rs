//! A look-aside client: it gets, and sets what it missed, as caches are used.
//!
//! Invariants of this module:
//! 1. A key stands at most once in a batch, and always goes over the same connection: its set after
//!    a miss is on the way before its next get.
//! 2. A batch's requests are sent before its answers are read; they are so few that a server can
//!    buffer the gets while its answers wait.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::workload::KeySpace;

/// How long an answer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// Keys that one get asks for at most.
const KEYS_PER_GET: usize = 100;

/// The most keys in a batch.
pub const MOST_BATCH_KEYS: usize = 4096;

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Keys asked for.
    pub gets: u64,
    /// Of which the server had none.
    pub misses: u64,
    /// Sets that the server did not store.
    pub refused: u64,
}

/// Connections to one server.
pub struct Client {
    connections: Vec<Connection>,
    key_space: KeySpace,
    /// The bytes of values: each is a beginning of this.
    value: Vec<u8>,
    /// What came of all batches.
    pub counts: Counts,
}

struct Connection {
    stream: BufReader<TcpStream>,
    /// Requests that are not sent yet.
    unsent: Vec<u8>,
    /// Sets among `unsent` or unanswered.
    sets: usize,
    /// The items of this batch's gets.
    asked: Vec<u32>,
    line: Vec<u8>,
    key: Vec<u8>,
}

impl Client {
    /// Opens connections.
    ///
    /// # Errors
    ///
    /// If nothing listens there, or keys cannot have that length.
    pub fn connect(address: SocketAddr, count: usize, key_bytes: usize) -> anyhow::Result<Self> {
        let key_space = KeySpace::new(key_bytes)?;
        let open = |_| -> anyhow::Result<Connection> {
            let stream = TcpStream::connect_timeout(&address, ANSWER_DEADLINE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
            stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
            Ok(Connection {
                stream: BufReader::with_capacity(256 << 10, stream),
                unsent: Vec::new(),
                sets: 0,
                asked: Vec::new(),
                line: Vec::new(),
                key: vec![0; key_bytes],
            })
        };
        let connections = (0..count).map(open).collect::<anyhow::Result<_>>();
        let connections = connections.with_context(|| format!("connecting to {address}"))?;
        Ok(Self { connections, key_space, value: Vec::new(), counts: Counts::default() })
    }

    /// Gets the items of a batch, and notes a set for each that the server does not have; they are
    /// sent with the next batch or by [`flush`](Self::flush). Item i goes over connection
    /// `connection_of(i)`; a value has `value_bytes[i]` bytes.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or the answer is none or is a value of another length.
    pub fn look_aside(
        &mut self,
        batch: &[u32],
        value_bytes: &[u32],
        connection_of: impl Fn(u32) -> usize,
    ) -> anyhow::Result<()> {
        for item in batch {
            self.connections[connection_of(*item)].asked.push(*item);
        }
        for connection in &mut self.connections {
            connection.send_gets(&self.key_space)?;
        }
        for connection in &mut self.connections {
            self.counts.refused += connection.read_set_answers()?;
            self.counts.gets += connection.asked.len() as u64;
            let asked = std::mem::take(&mut connection.asked);
            let mut misses = Vec::new();
            connection.read_get_answers(&asked, value_bytes, &self.key_space, |item, is_hit| {
                if !is_hit {
                    misses.push(item);
                }
            })?;
            self.counts.misses += misses.len() as u64;
            for item in misses {
                let bytes = value_bytes[item as usize] as usize;
                if self.value.len() < bytes {
                    self.value.resize(bytes, b'v');
                }
                connection.add_set(item, &self.value[..bytes], &self.key_space)?;
            }
            connection.asked = asked;
            connection.asked.clear();
        }
        Ok(())
    }

    /// Sends the sets that are left, and reads their answers.
    ///
    /// # Errors
    ///
    /// As [`look_aside`](Self::look_aside).
    pub fn flush(&mut self) -> anyhow::Result<()> {
        for connection in &mut self.connections {
            connection.send()?;
            self.counts.refused += connection.read_set_answers()?;
        }
        Ok(())
    }

    /// Asks for items without counting, and calls `each` with each and whether the server has it.
    ///
    /// # Errors
    ///
    /// As [`look_aside`](Self::look_aside).
    pub fn probe(
        &mut self,
        items: &[u32],
        value_bytes: &[u32],
        each: impl FnMut(u32, bool),
    ) -> anyhow::Result<()> {
        let connection = &mut self.connections[0];
        connection.asked.extend_from_slice(items);
        connection.send_gets(&self.key_space)?;
        connection.asked.clear();
        connection.read_get_answers(items, value_bytes, &self.key_space, each)
    }

    /// What the server answers to `stats`.
    ///
    /// # Errors
    ///
    /// If the connection breaks or the answer is none of `stats`.
    pub fn statistics(&mut self) -> anyhow::Result<HashMap<String, String>> {
        let connection = &mut self.connections[0];
        connection.unsent.extend_from_slice(b"stats\r\n");
        connection.send()?;
        let mut found = HashMap::new();
        loop {
            connection.read_line()?;
            let line = String::from_utf8_lossy(&connection.line);
            if line == "END" {
                return Ok(found);
            }
            let named = line.strip_prefix("STAT ").and_then(|rest| rest.split_once(' '));
            let (name, value) = named.with_context(|| format!("'{line}' answers no stats"))?;
            found.insert(name.to_owned(), value.to_owned());
        }
    }
}

impl Connection {
    fn send(&mut self) -> anyhow::Result<()> {
        if !self.unsent.is_empty() {
            self.stream.get_mut().write_all(&self.unsent).context("sending requests")?;
            self.unsent.clear();
        }
        Ok(())
    }

    fn send_gets(&mut self, key_space: &KeySpace) -> anyhow::Result<()> {
        for items in self.asked.chunks(KEYS_PER_GET) {
            self.unsent.extend_from_slice(b"get");
            for item in items {
                key_space.write_text(*item, &mut self.key);
                self.unsent.push(b' ');
                self.unsent.extend_from_slice(&self.key);
            }
            self.unsent.extend_from_slice(b"\r\n");
        }
        self.send()
    }

    fn add_set(&mut self, item: u32, value: &[u8], key_space: &KeySpace) -> anyhow::Result<()> {
        key_space.write_text(item, &mut self.key);
        self.unsent.extend_from_slice(b"set ");
        self.unsent.extend_from_slice(&self.key);
        write!(self.unsent, " 0 0 {}\r\n", value.len())?;
        self.unsent.extend_from_slice(value);
        self.unsent.extend_from_slice(b"\r\n");
        self.sets += 1;
        Ok(())
    }

    /// Reads a line into `line`, without its end.
    fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        self.stream.by_ref().take(4096).read_until(b'\n', &mut self.line)?;
        ensure!(self.line.ends_with(b"\r\n"), "the server closed the connection within an answer");
        self.line.truncate(self.line.len() - 2);
        Ok(())
    }

    /// Reads the answers to all sets, and counts those that were refused.
    fn read_set_answers(&mut self) -> anyhow::Result<u64> {
        let mut refused = 0;
        for _ in 0..std::mem::take(&mut self.sets) {
            self.read_line()?;
            match self.line.as_slice() {
                b"STORED" => {}
                line if line.starts_with(b"SERVER_ERROR") || line == b"NOT_STORED" => refused += 1,
                line => bail!("'{}' answers no set", String::from_utf8_lossy(line)),
            }
        }
        Ok(refused)
    }

    /// Reads the answers to gets of `items`: values in the order of the keys.
    fn read_get_answers(
        &mut self,
        items: &[u32],
        value_bytes: &[u32],
        key_space: &KeySpace,
        mut each: impl FnMut(u32, bool),
    ) -> anyhow::Result<()> {
        for items in items.chunks(KEYS_PER_GET) {
            let mut rest = items.iter();
            loop {
                self.read_line()?;
                if self.line == b"END" {
                    break;
                }
                let answered = Shown(&self.line);
                let mut fields = self.line.split(|byte| *byte == b' ');
                ensure!(fields.next() == Some(b"VALUE"), "'{answered}' answers no get");
                let key = fields.next().unwrap_or_default();
                let item = loop {
                    let item = rest.next();
                    let item = *item.with_context(|| format!("'{answered}' was not asked for"))?;
                    key_space.write_text(item, &mut self.key);
                    if self.key == key {
                        break item;
                    }
                    each(item, false);
                };
                let expected = value_bytes[item as usize];
                let bytes = fields.nth(1).and_then(|text| std::str::from_utf8(text).ok());
                let bytes = bytes.and_then(|text| text.parse::<u32>().ok());
                ensure!(
                    bytes == Some(expected),
                    "'{answered}': the value must have {expected} bytes"
                );
                self.skip(expected as usize + 2)?;
                each(item, true);
            }
            rest.for_each(|item| each(*item, false));
        }
        Ok(())
    }

    fn skip(&mut self, mut bytes: usize) -> anyhow::Result<()> {
        while bytes > 0 {
            let available = self.stream.fill_buf()?.len().min(bytes);
            ensure!(available > 0, "the server closed the connection within a value");
            self.stream.consume(available);
            bytes -= available;
        }
        Ok(())
    }
}

/// A line of an answer, for a message.
struct Shown<'l>(&'l [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(self.0))
    }
}
