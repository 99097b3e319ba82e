//! A connection to a server, in the meta protocol.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

/// A server that sends nothing for this long is considered dead.
const PATIENCE: Duration = Duration::from_secs(60);

/// memcached takes a larger number of seconds for a Unix time.
const LONGEST_RELATIVE_SECONDS: u64 = 60 * 60 * 24 * 30;

/// The longest value that a server keeps, in bytes.
const LONGEST_VALUE: usize = 1 << 30;

/// The longest line that is read, in bytes.
const LONGEST_LINE: u64 = 4096;

/// A no-op request whose answer shows that all earlier answers have arrived.
const MARK: &[u8] = b"mn\r\n";
const MARK_ANSWER: &str = "MN";

/// A key as meta commands send it.
pub struct Key {
    pub text: String,
    pub is_base64: bool,
}

/// An item as it was read from the source.
pub struct Item {
    pub value: Vec<u8>,
    flags: u32,
    /// The remaining seconds to live; `None` if the item does not expire.
    pub seconds_left: Option<u64>,
}

/// The target's answer to a store.
pub enum Stored {
    Taken,
    /// The target already had the key, and kept its value.
    Present,
    Refused(String),
}

/// A connection to a source or target.
pub struct Server {
    input: BufReader<Box<dyn Read>>,
    output: BufWriter<Box<dyn Write>>,
}

impl Server {
    /// Connects to HOST:PORT, or to a UNIX socket if `name` contains a `/`.
    pub fn connect(name: &str) -> Result<Self> {
        let problem = || format!("cannot connect to {name}");
        let (input, output): (Box<dyn Read>, Box<dyn Write>) = if name.contains('/') {
            let stream = UnixStream::connect(name).with_context(problem)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            (Box::new(stream.try_clone()?), Box::new(stream))
        } else {
            let stream = TcpStream::connect(name).with_context(problem)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            (Box::new(stream.try_clone()?), Box::new(stream))
        };
        Ok(Self { input: BufReader::new(input), output: BufWriter::new(output) })
    }

    /// Requests the list of all keys.
    pub fn ask_for_keys(&mut self) -> Result<()> {
        self.output.write_all(b"lru_crawler mgdump all\r\n")?;
        Ok(self.output.flush()?)
    }

    /// Reads the next line and removes its end.
    pub fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        self.input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        ensure!(line.ends_with(b"\n"), "the server closed the connection, or is none");
        let line = String::from_utf8(line).context("the server answers with no text")?;
        Ok(line.trim_end().to_owned())
    }

    /// Requests items without changing their recency.
    pub fn ask_for(&mut self, keys: &[Key]) -> Result<()> {
        for key in keys {
            let base64 = if key.is_base64 { " b" } else { "" };
            write!(self.output, "mg {}{base64} f t u v\r\n", key.text)?;
        }
        self.flush_marked()
    }

    /// Reads the next item that was requested, or `None` if the source no longer has it.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        let line = self.line()?;
        let mut words = line.split(' ');
        match words.next() {
            Some("EN") => return Ok(None),
            Some("VA") => {}
            _ => bail!("the source answers '{line}'"),
        }
        let length = words.next().and_then(|word| word.parse().ok());
        let length = length.filter(|length| *length <= LONGEST_VALUE);
        let length: usize = length.with_context(|| format!("the source answers '{line}'"))?;
        let mut item = Item { value: Vec::new(), flags: 0, seconds_left: None };
        for word in words {
            match word.split_at_checked(1) {
                Some(("f", flags)) => item.flags = flags.parse().context("flags")?,
                // -1 means that the item does not expire; it does not parse and gives None.
                Some(("t", seconds)) => item.seconds_left = seconds.parse().ok(),
                _ => {}
            }
        }
        // The buffer grows as bytes arrive: a large length alone takes no memory.
        self.input.by_ref().take(length as u64 + 2).read_to_end(&mut item.value)?;
        ensure!(item.value.ends_with(b"\r\n"), "the source broke off within a value");
        item.value.truncate(length);
        Ok(Some(item))
    }

    /// Writes an item to the buffer of requests.
    pub fn store(&mut self, key: &Key, item: &Item, overwrites: bool) -> Result<()> {
        let base64 = if key.is_base64 { " b" } else { "" };
        let mode = if overwrites { 'S' } else { 'E' };
        let expiry = expiry(item.seconds_left);
        let (length, flags) = (item.value.len(), item.flags);
        write!(self.output, "ms {} {length}{base64} F{flags} T{expiry} M{mode}\r\n", key.text)?;
        self.output.write_all(&item.value)?;
        Ok(self.output.write_all(b"\r\n")?)
    }

    /// Sends the buffered requests, followed by a mark.
    pub fn flush_marked(&mut self) -> Result<()> {
        self.output.write_all(MARK)?;
        Ok(self.output.flush()?)
    }

    /// Reads the answer to the next item that was stored.
    pub fn stored(&mut self) -> Result<Stored> {
        let line = self.line()?;
        Ok(match line.split(' ').next() {
            Some("HD") => Stored::Taken,
            Some("NS") => Stored::Present,
            Some("SERVER_ERROR" | "CLIENT_ERROR") => Stored::Refused(line),
            _ => bail!("the target answers '{line}'"),
        })
    }

    /// Reads the answer to a mark.
    pub fn expect_mark(&mut self) -> Result<()> {
        let line = self.line()?;
        ensure!(line == MARK_ANSWER, "'{line}' came where answers should end");
        Ok(())
    }
}

/// The expiry time of an item as the command `ms` takes it.
fn expiry(seconds_left: Option<u64>) -> u64 {
    match seconds_left {
        None => 0,
        Some(seconds) if seconds <= LONGEST_RELATIVE_SECONDS => seconds,
        Some(seconds) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now.as_secs() + seconds
        }
    }
}
