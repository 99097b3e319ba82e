//! Traces: the requests that a server got, from a file or from a running server, for a replay.
//!
//! Invariants of this module:
//! 1. A line that cannot be read is counted and left out; no line can make a program panic, and a
//!    trace is bounded by the number of requests that its reader asked for.
//! 2. A read that hit, or whose result the trace does not tell, has the length of the value: from
//!    its own line, from another line of the same key, or else the mean of the trace.
//! 3. This module does not depend on any engine.

mod capture;
mod lines;

use std::collections::HashMap;
use std::hash::BuildHasher;

use amalgam_op::MAX_KEY_BYTES;

pub use capture::{Capture, capture};
pub use lines::{Reading, read};

/// The longest value that a request of a trace may have, in bytes.
pub const LONGEST_VALUE_BYTES: u32 = 64 << 20;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A read. A client stores what it misses, unless the trace itself has that store because the
    /// read missed when the trace was taken.
    Read {
        /// Whether the replay stores the item after a miss, as the trace has no store for it.
        fills: bool,
    },
    /// A store.
    Store,
    /// A deletion.
    Delete,
}

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'t> {
    /// The key, at most [`MAX_KEY_BYTES`] long.
    pub key: &'t [u8],
    /// The kind of the request.
    pub kind: RequestKind,
    /// Length of the value in bytes, at most [`LONGEST_VALUE_BYTES`]; 0 for a deletion.
    pub value_bytes: u32,
    /// Time to live of a stored item in seconds; 0 means that it never expires.
    pub ttl_seconds: u32,
    /// Seconds since the first request.
    pub second: u32,
}

/// Bytes of a request in a trace, before its key.
const HEAD_BYTES: usize = 14;

/// Stands for a length that the request's line does not tell.
const UNKNOWN: u32 = u32::MAX;

/// Requests in order, contiguous in memory as they would lie in a receive buffer, so that reading
/// them costs a replay little compared with what it measures.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    bytes: Vec<u8>,
    requests: u64,
    last_second: u32,
    largest_key_bytes: usize,
    largest_value_bytes: u32,
}

impl Trace {
    /// Adds a request.
    ///
    /// # Panics
    ///
    /// If the key is empty or longer than [`MAX_KEY_BYTES`], or the value is longer than
    /// [`LONGEST_VALUE_BYTES`].
    pub fn push(&mut self, request: &Request<'_>) {
        assert!(
            (1..=MAX_KEY_BYTES).contains(&request.key.len()),
            "the key's length is out of range"
        );
        assert!(request.value_bytes <= LONGEST_VALUE_BYTES, "the value is too long");
        self.largest_value_bytes = self.largest_value_bytes.max(request.value_bytes);
        self.push_raw(request);
    }

    fn push_raw(&mut self, request: &Request<'_>) {
        let kind = match request.kind {
            RequestKind::Read { fills } => u8::from(fills),
            RequestKind::Store => 2,
            RequestKind::Delete => 3,
        };
        self.bytes.extend([kind, request.key.len() as u8]);
        for number in [request.value_bytes, request.ttl_seconds, request.second] {
            self.bytes.extend(number.to_le_bytes());
        }
        self.bytes.extend(request.key);
        self.requests += 1;
        self.last_second = self.last_second.max(request.second);
        self.largest_key_bytes = self.largest_key_bytes.max(request.key.len());
    }

    /// The requests, in order.
    pub fn iter(&self) -> Requests<'_> {
        Requests(&self.bytes)
    }

    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Seconds from the first request to the last.
    pub fn seconds(&self) -> u32 {
        self.last_second
    }

    /// Length of the longest value in bytes.
    pub fn largest_value_bytes(&self) -> usize {
        self.largest_value_bytes as usize
    }

    /// Length of the longest key in bytes.
    pub fn largest_key_bytes(&self) -> usize {
        self.largest_key_bytes
    }

    /// Distributes the requests over `threads` threads round-robin, `batch` at a time.
    pub fn deal(&self, threads: usize, batch: usize) -> Vec<Self> {
        let mut dealt = vec![Self::default(); threads];
        for (number, request) in self.iter().enumerate() {
            dealt[number / batch % threads].push(&request);
        }
        dealt
    }

    /// Summarizes the trace.
    pub fn summary(&self) -> Summary {
        let mut counts: HashMap<&[u8], u64> = HashMap::new();
        let mut summary = Summary { requests: self.requests, ..Summary::default() };
        let mut value_bytes = 0;
        for request in self.iter() {
            *counts.entry(request.key).or_default() += 1;
            summary.reads += u64::from(matches!(request.kind, RequestKind::Read { .. }));
            value_bytes += u64::from(request.value_bytes);
        }
        let all = self.requests.max(1) as f64;
        summary.keys = counts.len() as u64;
        summary.read_share = summary.reads as f64 / all;
        summary.hottest_share = counts.values().max().map_or(0.0, |most| *most as f64 / all);
        summary.mean_value_bytes = value_bytes as f64 / all;
        summary.seconds = self.last_second;
        summary
    }

    /// Gives reads of unknown length the length of their key's last value, or else the mean.
    fn resolve_lengths(self) -> Self {
        let hasher = std::hash::RandomState::new();
        let mut lengths = HashMap::new();
        let (mut sum, mut count) = (0, 0_u64);
        for request in self.iter().filter(|request| request.value_bytes != UNKNOWN) {
            if request.kind != RequestKind::Delete {
                lengths.insert(hasher.hash_one(request.key), request.value_bytes);
                sum += u64::from(request.value_bytes);
                count += 1;
            }
        }
        let mean = (sum / count.max(1)).min(u64::from(LONGEST_VALUE_BYTES));
        let mut resolved = Self::default();
        resolved.bytes.reserve_exact(self.bytes.len());
        for mut request in self.iter() {
            if request.value_bytes == UNKNOWN {
                let known = lengths.get(&hasher.hash_one(request.key));
                request.value_bytes = known.copied().unwrap_or(mean as u32);
            } else if request.kind != RequestKind::Delete {
                lengths.insert(hasher.hash_one(request.key), request.value_bytes);
            }
            resolved.push(&request);
        }
        resolved
    }
}

/// The figures that describe a trace.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Summary {
    /// The number of requests.
    pub requests: u64,
    /// The number of reads.
    pub reads: u64,
    /// The number of distinct keys.
    pub keys: u64,
    /// The share of the requests that are reads.
    pub read_share: f64,
    /// The share of the requests that name the most frequent key.
    pub hottest_share: f64,
    /// Mean length of a request's value, in bytes.
    pub mean_value_bytes: f64,
    /// Seconds from the first request to the last.
    pub seconds: u32,
}

/// Iterates over the requests of a trace.
#[derive(Clone)]
pub struct Requests<'t>(&'t [u8]);

impl<'t> Iterator for Requests<'t> {
    type Item = Request<'t>;

    #[inline]
    fn next(&mut self) -> Option<Request<'t>> {
        let (head, rest) = self.0.split_first_chunk::<HEAD_BYTES>()?;
        let (key, rest) = rest.split_at(usize::from(head[1]));
        self.0 = rest;
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let kind = match head[0] {
            2 => RequestKind::Store,
            3 => RequestKind::Delete,
            fills => RequestKind::Read { fills: fills == 1 },
        };
        Some(Request {
            key,
            kind,
            value_bytes: number(2),
            ttl_seconds: number(6),
            second: number(10),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &[u8], kind: RequestKind, value_bytes: u32) -> Request<'_> {
        Request { key, kind, value_bytes, ttl_seconds: 7, second: 3 }
    }

    #[test]
    fn requests_come_back_as_they_went_in() {
        let mut trace = Trace::default();
        let kinds = [
            RequestKind::Read { fills: true },
            RequestKind::Read { fills: false },
            RequestKind::Store,
        ];
        for kind in kinds {
            trace.push(&request(b"some key", kind, 12));
        }
        trace.push(&request(b"b", RequestKind::Delete, 0));
        let found: Vec<_> = trace.iter().collect();
        assert_eq!(found.len(), 4);
        assert!(
            found.iter().zip(kinds).all(|(found, kind)| *found == request(b"some key", kind, 12))
        );
        assert_eq!(found[3], request(b"b", RequestKind::Delete, 0));
        let dealt = trace.deal(2, 1);
        assert_eq!((dealt[0].requests(), dealt[1].requests()), (2, 2));
        assert_eq!(dealt[1].iter().next(), Some(found[1]));
    }

    #[test]
    fn unknown_lengths_are_those_of_the_key_or_the_mean() {
        let mut trace = Trace::default();
        trace.push_raw(&request(b"a", RequestKind::Read { fills: true }, UNKNOWN));
        trace.push_raw(&request(b"a", RequestKind::Store, 10));
        trace.push_raw(&request(b"a", RequestKind::Read { fills: true }, UNKNOWN));
        trace.push_raw(&request(b"c", RequestKind::Store, 20));
        trace.push_raw(&request(b"b", RequestKind::Read { fills: true }, UNKNOWN));
        let lengths: Vec<_> =
            trace.resolve_lengths().iter().map(|request| request.value_bytes).collect();
        assert_eq!(lengths, [10, 10, 10, 20, 15]);
    }
}
