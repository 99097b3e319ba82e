//! The thread that sends lines to watchers.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::net::registry::{ConnectionActivity, ConnectionRegistry};
use crate::watch::events::Events;
use crate::watch::log::{LineQueue, WatchLog, Watcher, lock};

/// How often `tick` is called while there are watchers.
const TICK: Duration = Duration::from_millis(50);

/// Sends lines to watchers until `is_stopping`. Calls `tick` after each wait, which lasts at most
/// [`TICK`] while there are watchers.
pub fn run(
    log: &WatchLog,
    registry: &ConnectionRegistry,
    is_stopping: impl Fn() -> bool,
    tick: impl Fn(),
) {
    let mut watchers: Vec<Watcher> = Vec::new();
    while !is_stopping() {
        wait(log, &mut watchers, registry);
        tick();
        let queue = log.take();
        for watcher in lock(&log.newcomers).drain(..) {
            watcher.info.set_activity(ConnectionActivity::Watches);
            watchers.push(watcher);
        }
        watchers.iter_mut().for_each(|watcher| watcher.take(log, &queue));
        let is_open = |watcher: &mut Watcher| watcher.send();
        dismiss(log, registry, watchers.extract_if(.., |watcher| !is_open(watcher)).collect());
    }
    dismiss(log, registry, watchers);
}

/// Waits until lines are queued or a watcher can be sent more, and removes those that hung up.
fn wait(log: &WatchLog, watchers: &mut Vec<Watcher>, registry: &ConnectionRegistry) {
    let poll_flags =
        |watcher: &Watcher| match watcher.output.is_empty() && !watcher.transport.has_unsent() {
            true => PollFlags::RDHUP,
            false => PollFlags::RDHUP | PollFlags::OUT,
        };
    let mut descriptors = vec![PollFd::new(&log.waker, PollFlags::IN)];
    descriptors
        .extend(watchers.iter().map(|one| PollFd::new(&one.transport.socket, poll_flags(one))));
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    let timeout = (!watchers.is_empty()).then_some(&timeout);
    // An error is an interruption: the caller comes back.
    let _ = poll(&mut descriptors, timeout);
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let is_gone: Vec<_> =
        descriptors[1..].iter().map(|descriptor| descriptor.revents().intersects(gone)).collect();
    drop(descriptors);
    let _ = rustix::io::read(&log.waker, &mut [0; 8]);
    let mut is_gone = is_gone.into_iter();
    let gone = watchers.extract_if(.., |_| is_gone.next().unwrap_or(false)).collect();
    dismiss(log, registry, gone);
    let events = watchers.iter().fold(Events::NONE, |all, one| all.union(one.events));
    // Under the lock of the newcomers, whose kinds must not be lost. A watcher whose place is
    // reserved but who has not joined yet adds its kinds again when it joins.
    let newcomers = lock(&log.newcomers);
    let events = newcomers.iter().fold(events, |all, one| all.union(one.events));
    log.set_wanted(events);
}

/// Closes watchers.
fn dismiss(log: &WatchLog, registry: &ConnectionRegistry, gone: Vec<Watcher>) {
    for watcher in gone {
        registry.remove(&watcher.info);
        log.counts.watchers.fetch_sub(1, Ordering::Relaxed);
        // Dropping the socket closes it.
    }
}

impl Watcher {
    /// Copies the lines of its kinds into its output, as far as they fit.
    fn take(&mut self, log: &WatchLog, queue: &LineQueue) {
        let mut start = 0;
        for (event, end) in &queue.lines {
            let line = &queue.bytes[start..*end];
            start = *end;
            if !self.events.meets(*event) {
                continue;
            }
            if self.output.len() + line.len() > log.watcher_bytes {
                // Sending may make room.
                self.send();
            }
            if self.output.len() + line.len() > log.watcher_bytes {
                self.skipped += 1;
                log.counts.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if self.skipped > 0 {
                // Writing to memory does not fail.
                let _ = writeln!(self.output.bytes, "skipped={}", self.skipped);
                self.skipped = 0;
            }
            self.output.bytes.extend_from_slice(line);
            log.counts.sent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends as much as the socket accepts. Returns whether the connection is open.
    fn send(&mut self) -> bool {
        self.output.send(&mut self.transport, usize::MAX).is_ok()
    }
}
