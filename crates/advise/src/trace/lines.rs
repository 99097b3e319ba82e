//! Parses the lines of a trace: memcached's watcher log, or comma-separated values.

use std::io::{BufRead, Read};

use amalgam_op::MAX_KEY_BYTES;
use anyhow::{Context, bail};

use super::{LONGEST_VALUE_BYTES, Request, RequestKind, Trace, UNKNOWN};

/// The longest line that can be valid, in bytes: a key takes at most 750 bytes of a URI.
const LONGEST_LINE_BYTES: u64 = 4096;

/// The longest time to live in seconds: memcached takes a larger number for a date.
const LONGEST_TTL_SECONDS: u32 = 30 * 24 * 3600;

/// The longest time that a trace may cover, in seconds: a year.
const LONGEST_SECONDS: f64 = 365.0 * 24.0 * 3600.0;

/// Columns of a comma-separated line: time, key, its length, the value's length, client, command,
/// time to live.
const COLUMNS: usize = 7;

/// A trace that was read, and the lines that it lacks.
#[derive(Debug, Default)]
pub struct Reading {
    /// The requests that were read.
    pub trace: Trace,
    /// The number of lines that could not be parsed.
    pub unreadable: u64,
    /// The number of the first unreadable line, from 1; None if there is none.
    pub first_unreadable: Option<u64>,
    /// The number of lines that the server says it left out.
    pub skipped: u64,
}

/// A parsed line.
enum Line<'l> {
    /// A request, with its time in seconds and its key as the line has it (URI-encoded or not).
    Request {
        time: f64,
        key: &'l [u8],
        is_encoded: bool,
        kind: RequestKind,
        value_bytes: u32,
        ttl: u32,
    },
    /// The server left out N lines.
    Skipped(u64),
    /// A line that a trace can ignore.
    Other,
}

/// Reads a trace of at most `most_requests` requests.
///
/// # Errors
///
/// If the source cannot be read, or most of its lines are not requests, or none is.
pub fn read(source: impl Read, most_requests: u64) -> anyhow::Result<Reading> {
    let mut reader = Reader::default();
    let mut source = std::io::BufReader::with_capacity(1 << 20, source);
    let mut line = Vec::new();
    while reader.requests() < most_requests {
        line.clear();
        let count = (&mut source).take(LONGEST_LINE_BYTES).read_until(b'\n', &mut line)?;
        if count == 0 {
            break;
        }
        if line.last() != Some(&b'\n') && count as u64 == LONGEST_LINE_BYTES {
            source.skip_until(b'\n')?;
            line.clear();
            line.push(b'?');
        }
        reader.take(&line);
    }
    reader.finish()
}

/// Builds a trace from lines.
#[derive(Default)]
pub struct Reader {
    reading: Reading,
    lines: u64,
    first_time: Option<f64>,
    key: Vec<u8>,
    /// The last line where it is a watched read: the next line may show that it was not a client's
    /// read but a store's lookup of the present item.
    held: Option<Vec<u8>>,
}

impl Reader {
    /// Adds a line, with or without its line end.
    pub fn take(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        if let Some(held) = self.held.take() {
            match is_look_of(&held, line) {
                true => self.lines += 1,
                false => self.take_now(&held),
            }
        }
        match field(line, b"type") {
            Some(b"item_get") => self.held = Some(line.to_vec()),
            _ => self.take_now(line),
        }
    }

    fn take_now(&mut self, line: &[u8]) {
        self.lines += 1;
        let is_understood = match parse(line) {
            Some(Line::Request { time, key, is_encoded, kind, value_bytes, ttl }) => {
                self.add(time, key, is_encoded, kind, value_bytes, ttl)
            }
            Some(Line::Skipped(lines)) => {
                self.reading.skipped = self.reading.skipped.saturating_add(lines);
                Some(())
            }
            Some(Line::Other) => Some(()),
            None => None,
        };
        if is_understood.is_none() {
            self.reading.unreadable += 1;
            self.reading.first_unreadable.get_or_insert(self.lines);
        }
    }

    /// The number of requests that were read so far.
    pub fn requests(&self) -> u64 {
        self.reading.trace.requests() + u64::from(self.held.is_some())
    }

    fn add(
        &mut self,
        time: f64,
        key: &[u8],
        is_encoded: bool,
        kind: RequestKind,
        value_bytes: u32,
        ttl: u32,
    ) -> Option<()> {
        self.key.clear();
        if is_encoded {
            decode(key, &mut self.key)?;
        } else {
            self.key.extend_from_slice(key);
        }
        if !(1..=MAX_KEY_BYTES).contains(&self.key.len()) {
            return None;
        }
        let first = *self.first_time.get_or_insert(time);
        let second = (time - first).clamp(0.0, LONGEST_SECONDS) as u32;
        let ttl_seconds = ttl.min(LONGEST_TTL_SECONDS);
        let key = &self.key;
        self.reading.trace.push_raw(&Request { key, kind, value_bytes, ttl_seconds, second });
        Some(())
    }

    /// Ends the trace and returns it.
    ///
    /// # Errors
    ///
    /// If it holds no request, or most lines were not requests.
    pub fn finish(mut self) -> anyhow::Result<Reading> {
        if let Some(held) = self.held.take() {
            self.take_now(&held);
        }
        let Reading { trace, unreadable, first_unreadable, skipped } = self.reading;
        if let Some(first) = first_unreadable
            && unreadable > self.lines / 2
        {
            bail!(
                "{unreadable} of {} lines are no requests, line {first} to begin with: a trace has \
                 the lines of `watch fetchers mutations deletions`, or \
                 time,key,key bytes,value bytes,client,command,seconds to live",
                self.lines
            );
        }
        let has_requests = (trace.requests() > 0).then_some(());
        has_requests.context("the trace has no requests")?;
        Ok(Reading { trace: trace.resolve_lengths(), unreadable, first_unreadable, skipped })
    }
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    if line.is_empty() || line.starts_with(b"#") || line == b"OK" || line.starts_with(b"time") {
        return Some(Line::Other);
    }
    if let Some(count) = line.strip_prefix(b"skipped=") {
        return Some(Line::Skipped(number(count)?));
    }
    if line.starts_with(b"ts=") { watched(line) } else { separated(line) }
}

/// The value of the field `name` in a line of `watch`.
fn field<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    line.split(|byte| *byte == b' ')
        .find_map(|word| word.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")))
}

/// Whether a watched read is the lookup of the store in the next line: memcached logs a set as both
/// a read and a store.
fn is_look_of(read: &[u8], store: &[u8]) -> bool {
    let is_same = |name: &[u8]| field(read, name).is_some_and(|it| field(store, name) == Some(it));
    field(store, b"type") == Some(b"item_store") && is_same(b"key") && is_same(b"cfd")
}

/// Parses a line of `watch`, memcached's or Amalgam's.
fn watched(line: &[u8]) -> Option<Line<'_>> {
    let field = |name: &str| field(line, name.as_bytes());
    let length = || field("size").map_or(Some(UNKNOWN), value_bytes);
    let (kind, value_bytes, ttl) = match field("type")? {
        b"item_get" if field("status")? == b"found" => {
            (RequestKind::Read { fills: true }, length()?, 0)
        }
        b"item_get" => (RequestKind::Read { fills: false }, UNKNOWN, 0),
        b"item_store" if field("status")? == b"stored" => {
            // A negative time to live expires the item at once, so the store is a deletion.
            let ttl = field("ttl").map_or(Some(0), |ttl| match ttl.strip_prefix(b"-") {
                Some(_) => Some(0),
                None => number(ttl),
            })?;
            (RequestKind::Store, length()?, u32::try_from(ttl).unwrap_or(u32::MAX))
        }
        b"deleted" => (RequestKind::Delete, 0, 0),
        _ => return Some(Line::Other),
    };
    let (time, key) = (seconds(field("ts")?)?, field("key")?);
    Some(Line::Request { time, key, is_encoded: true, kind, value_bytes, ttl })
}

/// Parses a line of comma-separated values. A key may contain commas itself.
fn separated(line: &[u8]) -> Option<Line<'_>> {
    let commas: Vec<_> = (0..line.len()).filter(|at| line[*at] == b',').collect();
    let behind_key = commas.len().checked_sub(COLUMNS - 2).filter(|first| *first > 0)?;
    let (time, key) = (&line[..commas[0]], &line[commas[0] + 1..commas[behind_key]]);
    let rest = &line[commas[behind_key] + 1..];
    let columns: Vec<_> = rest.split(|byte| *byte == b',').collect();
    let (length, command, ttl) = (columns[1], columns[3], columns[4]);
    let length = value_bytes(length)?;
    let (kind, value_bytes) = match command {
        b"get" | b"gets" | b"gat" => {
            (RequestKind::Read { fills: true }, if length == 0 { UNKNOWN } else { length })
        }
        b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
            (RequestKind::Store, length)
        }
        b"delete" => (RequestKind::Delete, 0),
        _ => return None,
    };
    let ttl = u32::try_from(number(ttl)?).unwrap_or(u32::MAX);
    Some(Line::Request { time: seconds(time)?, key, is_encoded: false, kind, value_bytes, ttl })
}

fn value_bytes(text: &[u8]) -> Option<u32> {
    u32::try_from(number(text)?).ok().filter(|bytes| *bytes <= LONGEST_VALUE_BYTES)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn seconds(text: &[u8]) -> Option<f64> {
    let time: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    time.is_finite().then_some(time)
}

/// Decodes URI-encoded bytes.
fn decode(text: &[u8], target: &mut Vec<u8>) -> Option<()> {
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte == b'%' {
            let (digits, behind) = rest.split_first_chunk::<2>()?;
            let digit = |byte: u8| char::from(byte).to_digit(16);
            target.push((digit(digits[0])? << 4 | digit(digits[1])?) as u8);
            rest = behind;
        } else {
            target.push(*byte);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests(text: &str) -> Vec<(String, RequestKind, u32, u32, u32)> {
        let reading = read(text.as_bytes(), 100).expect("requests");
        let tell = |request: Request<'_>| {
            let key = String::from_utf8_lossy(request.key).into_owned();
            (key, request.kind, request.value_bytes, request.ttl_seconds, request.second)
        };
        reading.trace.iter().map(tell).collect()
    }

    #[test]
    fn lines_of_watchers_are_read() {
        let found = requests(
            "OK\r\n\
             ts=100.5 gid=1 type=item_get key=a%20b status=not_found clsid=0 cfd=27 size=0\n\
             ts=100.6 gid=2 type=item_get key=a%20b status=not_found clsid=0 cfd=2 size=0\n\
             ts=100.6 gid=3 type=item_store key=a%20b status=stored cmd=set ttl=60 clsid=1 cfd=2 \
             size=5\n\
             ts=100.7 gid=3 type=item_store key=x status=not_stored cmd=add ttl=0 clsid=1 cfd=2 \
             size=5\n\
             skipped=12\n\
             ts=102.6 gid=9 type=item_get key=a%20b status=found clsid=1 cfd=27 size=5\n\
             ts=103.6 gid=10 type=eviction key=y fetch=no ttl=-1 la=0 clsid=1 size=3\n\
             ts=104.6 gid=11 type=deleted key=a%20b cmd=delete clsid=1 size=5\n",
        );
        let key = || "a b".to_owned();
        assert_eq!(
            found,
            [
                (key(), RequestKind::Read { fills: false }, 5, 0, 0),
                (key(), RequestKind::Store, 5, 60, 0),
                (key(), RequestKind::Read { fills: true }, 5, 0, 2),
                (key(), RequestKind::Delete, 0, 0, 4),
            ]
        );
    }

    #[test]
    fn comma_separated_values_are_read() {
        let found = requests(
            "time,key,key bytes,value bytes,client,command,ttl\n\
             7,a,1,100,3,set,300\n7,b,1,0,3,get,0\n9,x,y,3,8,3,get,0\n9,a,1,0,3,delete,0\n",
        );
        assert_eq!(
            found,
            [
                ("a".to_owned(), RequestKind::Store, 100, 300, 0),
                ("b".to_owned(), RequestKind::Read { fills: true }, 54, 0, 0),
                ("x,y".to_owned(), RequestKind::Read { fills: true }, 8, 0, 2),
                ("a".to_owned(), RequestKind::Delete, 0, 0, 2),
            ]
        );
    }

    #[test]
    fn what_is_no_trace_is_told_apart() {
        let good = "7,a,1,100,3,set,300\n".repeat(3);
        let long = format!("{good}7,{},1,1,3,get,0\n{good}", "k".repeat(100_000));
        let reading = read(long.as_bytes(), 100).expect("mostly requests");
        assert_eq!((reading.trace.requests(), reading.unreadable), (6, 1));
        assert_eq!(reading.first_unreadable, Some(4));
        for wrong in ["", "# nothing\n", "hello\n", "1,k,1,1,1,fly,0\n", "ts=x type=item_get\n"] {
            assert!(read(wrong.as_bytes(), 100).is_err(), "{wrong}");
        }
        let error = read(&b"\xff\xfe\n\x00"[..], 100).expect_err("no requests").to_string();
        assert!(error.contains("2 of 2 lines") && error.contains("line 1"), "{error}");
        assert_eq!(read(good.as_bytes(), 2).expect("valid").trace.requests(), 2);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..60), which in 0..3_usize) {
            let front = ["", "ts=1 type=item_store status=stored key=", "9,k"][which].as_bytes();
            let text = [front, &line].concat();
            if let Ok(reading) = read(&text[..], 100) {
                prop_assert!(reading.trace.iter().all(|request| !request.key.is_empty()));
            }
        }
    }
}
