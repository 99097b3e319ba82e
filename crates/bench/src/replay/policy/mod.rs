//! Eviction policies, simulated offline at a number of payload bytes.
//!
//! A request of an item that is not in misses, and puts it in after evictions have made room, as a
//! client that looks aside does. Items have the bytes of their keys and values alone: no headers,
//! no classes.
//!
//! Invariants of this module:
//! 1. No policy holds more bytes than its capacity; an item that is larger than that is never in.
//! 2. Results depend on the requests and sizes alone.

mod list;
mod ordered;
mod queue;
mod s3_fifo;
mod tiny_lfu;

use std::str::FromStr;

use anyhow::Context;

use ordered::{Ordered, Priority};
use queue::{Queue, Rule};
use s3_fifo::S3Fifo;
use tiny_lfu::TinyLfu;

/// A request of an item.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The item.
    pub item: u32,
    /// The position in the trace of its next request; `u32::MAX` if there is none.
    pub next: u32,
}

trait Policy {
    /// Takes a request; returns whether the item was in. `bytes` are those of every item.
    fn request(&mut self, request: Request, bytes: &[u32]) -> bool;
}

/// The policies that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(into = "&'static str")]
pub enum PolicyName {
    /// First in, first out.
    Fifo,
    /// Least recently used.
    Lru,
    /// Second chance with one bit.
    Clock1,
    /// Second chance with a count of two bits.
    Clock2,
    /// A queue whose hand unmarks items where they are (Zhang et al., NSDI 2024).
    Sieve,
    /// Three queues: small, main and ghost (Yang et al., SOSP 2023).
    S3Fifo,
    /// W-TinyLFU with a window of one hundredth.
    WTinyLfu,
    /// W-TinyLFU with a window that adapts.
    WTinyLfuAdaptive,
    /// Greedy dual, size and frequency.
    Gdsf,
    /// The policy of Belady, which knows the future; not the optimum where sizes differ.
    Belady,
}

impl PolicyName {
    /// All, in the order of tables.
    pub const ALL: [Self; 10] = [
        Self::Fifo,
        Self::Lru,
        Self::Clock1,
        Self::Clock2,
        Self::Sieve,
        Self::S3Fifo,
        Self::WTinyLfu,
        Self::WTinyLfuAdaptive,
        Self::Gdsf,
        Self::Belady,
    ];

    /// What command lines and results call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Clock1 => "clock-1",
            Self::Clock2 => "clock-2",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::WTinyLfu => "w-tinylfu",
            Self::WTinyLfuAdaptive => "w-tinylfu-adaptive",
            Self::Gdsf => "gdsf",
            Self::Belady => "belady",
        }
    }
}

impl From<PolicyName> for &'static str {
    fn from(policy: PolicyName) -> Self {
        policy.name()
    }
}

/// The policies that a command line names: `all`, `none`, or names after commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySet(pub Vec<PolicyName>);

impl FromStr for PolicySet {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text {
            "all" => return Ok(Self(PolicyName::ALL.to_vec())),
            "none" => return Ok(Self(Vec::new())),
            _ => {}
        }
        let known = || PolicyName::ALL.map(PolicyName::name).join(", ");
        let name = |text: &str| {
            let found = PolicyName::ALL.into_iter().find(|policy| policy.name() == text);
            found.with_context(|| format!("'{text}' is none of all, none, {}", known()))
        };
        Ok(Self(text.split(',').map(name).collect::<anyhow::Result<_>>()?))
    }
}

/// The positions of the next request of the same key, by position; `u32::MAX` where there is none.
pub fn next_requests(requests: &[u32], keys: u32) -> Vec<u32> {
    let mut upcoming = vec![u32::MAX; keys as usize];
    let mut next = vec![u32::MAX; requests.len()];
    for (position, key) in requests.iter().enumerate().rev() {
        next[position] = std::mem::replace(&mut upcoming[*key as usize], position as u32);
    }
    next
}

/// What a simulation needs to know of a load.
pub struct Simulation<'t> {
    /// The key of each request.
    pub requests: &'t [u32],
    /// See [`next_requests`].
    pub next: &'t [u32],
    /// The number of keys.
    pub keys: u32,
    /// Copies of the trace in lockstep.
    pub copies: u32,
    /// Bytes of key and value of each item; key k of copy c is item c * keys + k.
    pub bytes: &'t [u32],
}

impl Simulation<'_> {
    /// The requests that miss in an empty cache of `capacity_bytes`.
    pub fn misses(&self, policy: PolicyName, capacity_bytes: u64) -> u64 {
        let items = self.bytes.len();
        let all: u64 = self.bytes.iter().map(|bytes| u64::from(*bytes)).sum();
        let mean = (all as f64 / items.max(1) as f64).max(1.0);
        let fitting = (capacity_bytes as f64 / mean) as u64;
        let queue = |rule| Queue::new(rule, items, capacity_bytes);
        let ordered = |priority| Ordered::new(priority, items, capacity_bytes);
        let tiny = |is_adaptive| TinyLfu::new(items, capacity_bytes, fitting, is_adaptive);
        match policy {
            PolicyName::Fifo => self.play(queue(Rule::Clock(0))),
            PolicyName::Lru => self.play(queue(Rule::Lru)),
            PolicyName::Clock1 => self.play(queue(Rule::Clock(1))),
            PolicyName::Clock2 => self.play(queue(Rule::Clock(3))),
            PolicyName::Sieve => self.play(queue(Rule::Sieve)),
            PolicyName::S3Fifo => self.play(S3Fifo::new(items, capacity_bytes)),
            PolicyName::WTinyLfu => self.play(tiny(false)),
            PolicyName::WTinyLfuAdaptive => self.play(tiny(true)),
            PolicyName::Gdsf => self.play(ordered(Priority::Gdsf)),
            PolicyName::Belady => self.play(ordered(Priority::Belady)),
        }
    }

    fn play(&self, mut policy: impl Policy) -> u64 {
        let mut misses = 0;
        for (key, next) in self.requests.iter().zip(self.next) {
            for copy in 0..self.copies {
                let request = Request { item: copy * self.keys + key, next: *next };
                misses += u64::from(!policy.request(request, self.bytes));
            }
        }
        misses
    }
}
