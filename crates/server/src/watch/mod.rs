//! `watch`: log lines for clients that ask for them.
//!
//! Workers append lines to one bounded queue; a thread takes them from there and sends each to the
//! watchers that asked for its kind. Without a watcher no line is made.
//!
//! Invariants of this room:
//! 1. No request waits for a watcher: a full queue drops lines (`log_worker_dropped`), a watcher
//!    that does not read skips lines (`log_watcher_skipped`) and is told how many.
//! 2. Lines are numbered, and sent to each watcher, in the order in which they entered the queue.
//! 3. There are at most [`MOST_WATCHERS`].

mod lines;
mod thread;

use std::fmt::Arguments;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, eventfd};

use crate::channel::Channel;
use crate::output::Output;
use crate::roster::Badge;

pub use lines::{Ending, Get, Lines, Stored};
pub use thread::run;

/// Watchers at once.
pub const MOST_WATCHERS: u64 = 20;

/// Kinds of lines, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u16);

impl Events {
    /// No kind.
    pub const NONE: Self = Self(0);
    /// Reads.
    pub const FETCHERS: Self = Self(1);
    /// Stores.
    pub const MUTATIONS: Self = Self(2);
    /// Items removed to make room.
    pub const EVICTIONS: Self = Self(4);
    /// Connections that begin and end.
    pub const CONNECTIONS: Self = Self(8);
    /// Deletes.
    pub const DELETIONS: Self = Self(16);

    /// Reads the words behind `watch`; as in memcached, a beginning is enough. None if one is no
    /// kind. Kinds that only memcached's proxy or its debugging have are taken, and never come.
    pub fn parse<'w>(words: impl Iterator<Item = &'w [u8]>) -> Option<Self> {
        const NAMES: [(&str, Events); 10] = [
            ("rawcmds", Events::NONE),
            ("evictions", Events::EVICTIONS),
            ("fetchers", Events::FETCHERS),
            ("mutations", Events::MUTATIONS),
            ("sysevents", Events::NONE),
            ("connevents", Events::CONNECTIONS),
            ("proxyreqs", Events::NONE),
            ("proxyevents", Events::NONE),
            ("proxyuser", Events::NONE),
            ("deletions", Events::DELETIONS),
        ];
        let mut events = None;
        for word in words {
            let (_, kind) = NAMES.iter().find(|(name, _)| name.as_bytes().starts_with(word))?;
            events = Some(Self(events.unwrap_or(Self::NONE).0 | kind.0));
        }
        Some(events.unwrap_or(Self::FETCHERS))
    }

    /// Whether they have a kind in common.
    #[inline]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A connection that only listens.
pub struct Watcher {
    channel: Channel,
    badge: Arc<Badge>,
    events: Events,
    output: Output,
    skipped: u64,
}

/// Lines that wait for the thread, each with its kind and its end.
#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    lines: Vec<(Events, usize)>,
    last_number: u64,
}

/// What `stats` shows.
#[derive(Default)]
pub struct Counts {
    /// Lines that found no room in the queue.
    pub dropped: AtomicU64,
    /// Lines that entered it.
    pub written: AtomicU64,
    /// Lines that a watcher's buffer had no room for.
    pub skipped: AtomicU64,
    /// Lines that went into a watcher's buffer.
    pub sent: AtomicU64,
    /// Watchers now.
    pub watchers: AtomicU64,
}

/// See the head of this module.
pub struct Log {
    wanted: AtomicU16,
    queue: Mutex<Queue>,
    newcomers: Mutex<Vec<Watcher>>,
    bell: OwnedFd,
    queue_bytes: usize,
    watcher_bytes: usize,
    /// See [`Counts`].
    pub counts: Counts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Log {
    /// A log whose queue, and the buffer of each watcher, are bounded by these lengths.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new(queue_bytes: usize, watcher_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            wanted: AtomicU16::new(0),
            queue: Mutex::default(),
            newcomers: Mutex::default(),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            queue_bytes,
            watcher_bytes,
            counts: Counts::default(),
        })
    }

    /// What somebody wants to be told of.
    #[inline]
    pub fn wanted(&self) -> Events {
        // Relaxed: who begins to watch is told of what begins later, on other threads a turn later.
        Events(self.wanted.load(Ordering::Relaxed))
    }

    /// Makes the thread look around.
    pub fn wake(&self) {
        // Fails only when the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Reserves a place for a watcher, to be taken with [`Log::join`]. Whether there is one.
    pub fn reserve(&self) -> bool {
        let add = |watchers| (watchers < MOST_WATCHERS).then_some(watchers + 1);
        let order = Ordering::Relaxed;
        self.counts.watchers.fetch_update(order, order, add).is_ok()
    }

    /// From here on lines of these kinds are made.
    pub fn want(&self, events: Events) {
        self.wanted.fetch_or(events.0, Ordering::Relaxed);
    }

    /// A connection becomes a watcher, in the place that was reserved for it.
    pub fn join(&self, channel: Channel, badge: Arc<Badge>, events: Events, output: Output) {
        let mut newcomers = lock(&self.newcomers);
        // Again: the thread, which did not know of this watcher, may have forgotten.
        self.want(events);
        newcomers.push(Watcher { channel, badge, events, output, skipped: 0 });
        drop(newcomers);
        self.wake();
    }

    /// Adds a line of this kind.
    fn add(&self, event: Events, text: Arguments<'_>) {
        let mut queue = lock(&self.queue);
        if queue.bytes.len() >= self.queue_bytes {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.counts.written.fetch_add(1, Ordering::Relaxed);
        queue.last_number += 1;
        let number = queue.last_number;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, micros) = (now.as_secs(), now.subsec_micros());
        // Writing to memory does not fail.
        let _ = writeln!(queue.bytes, "ts={seconds}.{micros} gid={number} {text}");
        let end = queue.bytes.len();
        queue.lines.push((event, end));
        let is_first = queue.lines.len() == 1;
        drop(queue);
        if is_first {
            self.wake();
        }
    }

    fn take(&self) -> Queue {
        let mut queue = lock(&self.queue);
        let last_number = queue.last_number;
        std::mem::replace(&mut *queue, Queue { last_number, ..Queue::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_memcached_reads_them() {
        let parse =
            |words: &[&'static str]| Events::parse(words.iter().map(|word| word.as_bytes()));
        assert_eq!(parse(&[]), Some(Events::FETCHERS));
        assert_eq!(parse(&["mut", "evictions"]), Some(Events(6)));
        assert_eq!(parse(&["rawcmds"]), Some(Events::NONE));
        assert_eq!(parse(&["fetchers", "nothing"]), None);
    }

    #[test]
    fn lines_above_the_bound_are_dropped() {
        let log = Log::new(100, 100).unwrap();
        for number in 0..100 {
            log.add(Events::FETCHERS, format_args!("{number}"));
        }
        let (written, dropped) = (&log.counts.written, &log.counts.dropped);
        let written = written.load(Ordering::Relaxed);
        assert_eq!(written + dropped.load(Ordering::Relaxed), 100);
        let queue = log.take();
        assert_eq!(queue.lines.len() as u64, written);
        assert!(queue.bytes.len() < 200);
        assert!(log.take().lines.is_empty());
    }
}
