//! The thread that sends lines to watchers.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::{Events, Log, Queue, Watcher, lock};
use crate::roster::{Roster, State};

/// How often evictions are looked for while somebody watches them.
const TICK: Duration = Duration::from_millis(50);

/// Sends lines until `is_stopping`; `tick` is called again and again while there are watchers.
pub fn run(log: &Log, roster: &Roster, is_stopping: impl Fn() -> bool, tick: impl Fn()) {
    let mut watchers: Vec<Watcher> = Vec::new();
    while !is_stopping() {
        wait(log, &mut watchers, roster);
        tick();
        let queue = log.take();
        for watcher in lock(&log.newcomers).drain(..) {
            watcher.badge.set_state(State::Watches);
            watchers.push(watcher);
        }
        watchers.iter_mut().for_each(|watcher| watcher.take(log, &queue));
        let is_open = |watcher: &mut Watcher| watcher.send();
        dismiss(log, roster, watchers.extract_if(.., |watcher| !is_open(watcher)).collect());
    }
    dismiss(log, roster, watchers);
}

/// Waits until the bell rings or a watcher can take more, and lets those go that hung up.
fn wait(log: &Log, watchers: &mut Vec<Watcher>, roster: &Roster) {
    let wants = |watcher: &Watcher| match watcher.output.is_empty() && !watcher.channel.owes() {
        true => PollFlags::RDHUP,
        false => PollFlags::RDHUP | PollFlags::OUT,
    };
    let mut descriptors = vec![PollFd::new(&log.bell, PollFlags::IN)];
    descriptors.extend(watchers.iter().map(|one| PollFd::new(&one.channel.socket, wants(one))));
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    let timeout = (!watchers.is_empty()).then_some(&timeout);
    // An error is an interruption: the next round looks again.
    let _ = poll(&mut descriptors, timeout);
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let is_gone: Vec<_> =
        descriptors[1..].iter().map(|descriptor| descriptor.revents().intersects(gone)).collect();
    drop(descriptors);
    let _ = rustix::io::read(&log.bell, &mut [0; 8]);
    let mut is_gone = is_gone.into_iter();
    let gone = watchers.extract_if(.., |_| is_gone.next().unwrap_or(false)).collect();
    dismiss(log, roster, gone);
    let events = watchers.iter().fold(Events::NONE, |all, one| Events(all.0 | one.events.0));
    // Under the lock of the newcomers, whose wishes must not be forgotten. One whose place is
    // reserved but who is not here yet wants again when it joins.
    let newcomers = lock(&log.newcomers);
    let events = newcomers.iter().fold(events, |all, one| Events(all.0 | one.events.0));
    log.wanted.store(events.0, Ordering::Relaxed);
}

fn dismiss(log: &Log, roster: &Roster, gone: Vec<Watcher>) {
    for watcher in gone {
        roster.remove(&watcher.badge);
        log.counts.watchers.fetch_sub(1, Ordering::Relaxed);
        // Dropping the socket closes it.
    }
}

impl Watcher {
    /// Takes the lines that were asked for, as far as there is room.
    fn take(&mut self, log: &Log, queue: &Queue) {
        let mut start = 0;
        for (event, end) in &queue.lines {
            let line = &queue.bytes[start..*end];
            start = *end;
            if !self.events.meets(*event) {
                continue;
            }
            if self.output.len() + line.len() > log.watcher_bytes {
                // What was sent meanwhile makes room for what comes.
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

    /// Sends what the socket takes. Whether the connection is open.
    fn send(&mut self) -> bool {
        self.output.send(&mut self.channel).is_ok()
    }
}
