//! The queue of lines for watchers, and the connections that wait to become watchers.

use std::fmt::Arguments;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use amalgam_op::IgnorePoison;
use rustix::event::{EventfdFlags, eventfd};

use crate::net::output::Output;
use crate::net::registry::ConnectionInfo;
use crate::net::transport::Transport;
use crate::watch::events::Events;

/// Watchers at once, at most.
pub const MAX_WATCHERS: u64 = 20;

/// A connection that receives lines and is not served any more.
pub struct Watcher {
    pub(super) transport: Transport,
    pub(super) info: Arc<ConnectionInfo>,
    /// The kinds of lines that it asked for.
    pub(super) events: Events,
    pub(super) output: Output,
    /// Lines skipped since the last one that entered its output.
    pub(super) skipped: u64,
}

/// Lines that wait to be sent.
#[derive(Default)]
pub(super) struct LineQueue {
    pub(super) bytes: Vec<u8>,
    /// The kind of each line, and the offset behind it in `bytes`.
    pub(super) lines: Vec<(Events, usize)>,
    last_number: u64,
}

/// The log's statistics, for `stats`.
#[derive(Default)]
pub struct LogCounts {
    /// Lines dropped because the queue was full.
    pub dropped: AtomicU64,
    /// Lines that entered the queue.
    pub written: AtomicU64,
    /// Lines skipped because a watcher's buffer was full.
    pub skipped: AtomicU64,
    /// Lines that entered a watcher's buffer.
    pub sent: AtomicU64,
    /// Current watchers.
    pub watchers: AtomicU64,
}

/// Queues lines for watchers, in bounded memory. Shared by all threads.
pub struct WatchLog {
    /// The kinds that some watcher asked for: an [`Events`].
    wanted: AtomicU16,
    queue: Mutex<LineQueue>,
    /// Watchers that the sending thread has not taken over yet.
    pub(super) newcomers: Mutex<Vec<Watcher>>,
    /// An eventfd that wakes the sending thread.
    pub(super) waker: OwnedFd,
    /// Bytes of the queue from which on lines are dropped.
    queue_bytes: usize,
    /// Bytes of a watcher's output above which it skips lines.
    pub(super) watcher_bytes: usize,
    /// See [`LogCounts`].
    pub counts: LogCounts,
}

/// Locks a mutex, whether or not a panic has poisoned it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

impl WatchLog {
    /// A log whose queue and watchers' buffers are bounded by these sizes.
    ///
    /// # Errors
    ///
    /// If the system refuses a file descriptor.
    pub fn new(queue_bytes: usize, watcher_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            wanted: AtomicU16::new(0),
            queue: Mutex::default(),
            newcomers: Mutex::default(),
            waker: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            queue_bytes,
            watcher_bytes,
            counts: LogCounts::default(),
        })
    }

    /// The kinds of lines that some watcher asked for.
    #[inline]
    pub fn wanted(&self) -> Events {
        // Relaxed: a new watcher gets lines of later requests, on other threads a batch later.
        Events::from_bits(self.wanted.load(Ordering::Relaxed))
    }

    /// Makes the sending thread return from waiting.
    pub fn wake(&self) {
        // Fails only if a wake-up is pending already.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    /// Reserves one of the [`MAX_WATCHERS`] places, to be taken with [`WatchLog::join`]. Returns
    /// whether one was free.
    pub fn reserve(&self) -> bool {
        let add = |watchers| (watchers < MAX_WATCHERS).then_some(watchers + 1);
        let order = Ordering::Relaxed;
        self.counts.watchers.fetch_update(order, order, add).is_ok()
    }

    /// Makes [`WatchLog::wanted`] include these kinds from now on.
    pub fn want(&self, events: Events) {
        self.wanted.fetch_or(events.bits(), Ordering::Relaxed);
    }

    /// Makes a connection a watcher, in the place that was reserved for it.
    pub fn join(
        &self,
        transport: Transport,
        info: Arc<ConnectionInfo>,
        events: Events,
        output: Output,
    ) {
        let mut newcomers = lock(&self.newcomers);
        // Again: the sending thread, which did not know of this watcher, may have reset it.
        self.want(events);
        newcomers.push(Watcher { transport, info, events, output, skipped: 0 });
        drop(newcomers);
        self.wake();
    }

    /// Replaces what [`WatchLog::wanted`] returns. Requires: `newcomers` is locked, so that the
    /// wishes of those who join meanwhile are not lost.
    pub(super) fn set_wanted(&self, events: Events) {
        self.wanted.store(events.bits(), Ordering::Relaxed);
    }

    /// Appends a line of this kind to the queue, or drops it if the queue is full.
    pub(super) fn add(&self, event: Events, text: Arguments<'_>) {
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

    /// Takes all lines out of the queue.
    pub(super) fn take(&self) -> LineQueue {
        let mut queue = lock(&self.queue);
        let last_number = queue.last_number;
        std::mem::replace(&mut *queue, LineQueue { last_number, ..LineQueue::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_dropped_when_the_queue_is_full() {
        let log = WatchLog::new(100, 100).unwrap();
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
