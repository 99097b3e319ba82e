//! What all formats of traces share: requests with numbered keys, and lines of bounded length.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, Read};

use anyhow::{Context, ensure};

/// The longest line of a trace in bytes.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// Collects requests.
pub struct Builder {
    most: u64,
    numbers: HashMap<u64, u32>,
    /// The number of each request's key.
    pub requests: Vec<u32>,
    /// Length of each key's value in bytes, at its first request; 0 where it had none.
    pub value_bytes: Vec<u32>,
    /// Whether any request had a size.
    pub has_sizes: bool,
}

impl Builder {
    /// For at most this number of requests.
    pub fn new(most: u64) -> Self {
        Self {
            most,
            numbers: HashMap::new(),
            requests: Vec::new(),
            value_bytes: Vec::new(),
            has_sizes: false,
        }
    }

    /// Whether further requests would not be kept.
    pub fn is_full(&self) -> bool {
        self.requests.len() as u64 >= self.most
    }

    /// Adds a request unless there are enough.
    pub fn add(&mut self, key: u64, value_bytes: Option<u32>) {
        if self.is_full() {
            return;
        }
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.has_sizes |= value_bytes.is_some();
            self.value_bytes.push(value_bytes.unwrap_or(0));
        }
        self.requests.push(number);
    }
}

/// Calls `take` with each line that is not empty, until it returns false.
pub fn each_line(
    input: &mut dyn BufRead,
    mut take: impl FnMut(&str) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut *input).take(LONGEST_LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        ensure!(
            (line.len() as u64) < LONGEST_LINE_BYTES,
            "a line is longer than {LONGEST_LINE_BYTES} bytes"
        );
        let text = std::str::from_utf8(&line).context("a line is not text")?.trim();
        if !text.is_empty() && !take(text)? {
            return Ok(());
        }
    }
}

/// A key as a number: itself, or its hash.
pub fn key_number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    })
}
