//! A worker's reactor: its connections and the epoll instance that watches them. Another worker may
//! serve them while this one waits for a core.
//!
//! Where more threads are busy than there are cores, a worker that was woken can wait for a core
//! for milliseconds. Its connections need not wait with it: a worker that runs, and finds that
//! another has not waited for events for some batches, serves the other's connections once
//! ([`WorkStealer`]), unless answers of the store come later: to the worker that asked.
//!
//! Thread safety: a reactor is shared by all threads; its connections are behind a lock.
//!
//! Invariants:
//! 1. Connections are touched only by the thread that holds their reactor's [`ReactorGuard`].
//! 2. The thread that fetched an event handles it. Handling an event twice is harmless, and one for
//!    a connection that has closed has no effect ([`ConnectionId`]).
//! 3. A thief that leaves connections to be served wakes the reactor's own worker.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use amalgam_op::IgnorePoison;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::connections::connection::Connection;
use crate::connections::slab::{ConnectionId, ConnectionSlab};

/// Events fetched by one system call, at most.
pub const MAX_EVENTS: usize = 256;

/// The data of the event that [`Reactor::wake`] causes. No connection id has this value.
pub const WAKE_EVENT: u64 = u64::MAX;

/// The data of the event that answers of the store have come. No connection id has this value.
pub const ANSWERS_EVENT: u64 = u64::MAX - 1;

/// Batches of its own after which a worker looks at another's reactor: a few hundred microseconds
/// of small requests. An attempt that finds nothing costs a system call.
const BATCHES_PER_STEAL: u32 = 8;

/// One worker's epoll instance and connections, behind a lock. Aligned so that no two share a cache
/// line.
#[repr(align(128))]
pub struct Reactor {
    /// Watches the sockets.
    pub epoll: OwnedFd,
    /// An eventfd that interrupts the wait for events.
    waker: OwnedFd,
    /// Accepted connections that the worker has not taken over yet.
    arrivals: Mutex<Vec<Connection>>,
    /// How often the reactor's own worker has waited for events; wraps.
    wait_count: AtomicU64,
    connections: Mutex<Connections>,
}

/// The connections of a reactor.
#[derive(Default)]
pub struct Connections {
    /// All of them.
    pub slab: ConnectionSlab,
    /// Those to be served in the next batch.
    pub ready: Vec<ConnectionId>,
    /// Those that could be served in this iteration and have to wait for the next, which begins
    /// with them. Empty between iterations.
    pub deferred: Vec<ConnectionId>,
    /// Those that are paused after a failed login, and some that have closed since.
    pub paused: Vec<ConnectionId>,
    /// Those that wait until the store has room for an operation, and some that have closed since.
    pub without_room: VecDeque<ConnectionId>,
    /// Those whose flush waits for the end of a sweep, and some that have closed since.
    pub awaiting_sweep: Vec<ConnectionId>,
    /// The number of those whose last attempt to send left a part of an answer unsent.
    pub stalled: usize,
}

impl Connections {
    /// Queues a connection for the next batch, unless it is queued or has closed.
    #[inline]
    pub fn queue(&mut self, id: ConnectionId) {
        if let Some(connection) = self.slab.get_mut(id)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.ready.push(id);
        }
    }

    /// Queues a connection for the next iteration, before those that were served in this one:
    /// else these would always be served first.
    #[inline]
    pub fn defer(&mut self, id: ConnectionId) {
        if let Some(connection) = self.slab.get_mut(id)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.deferred.push(id);
        }
    }
}

/// Exclusive access to a reactor's connections.
pub struct ReactorGuard<'r> {
    /// The reactor.
    pub reactor: &'r Reactor,
    connections: MutexGuard<'r, Connections>,
}

impl Deref for ReactorGuard<'_> {
    type Target = Connections;

    #[inline]
    fn deref(&self) -> &Connections {
        &self.connections
    }
}

impl DerefMut for ReactorGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Connections {
        &mut self.connections
    }
}

impl Reactor {
    /// A reactor without connections.
    ///
    /// # Errors
    ///
    /// If the system refuses a file descriptor.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &waker, EventData::new_u64(WAKE_EVENT), EventFlags::IN)?;
        let (arrivals, connections) = (Mutex::default(), Mutex::default());
        Ok(Self { epoll, waker, arrivals, wait_count: AtomicU64::new(0), connections })
    }

    /// Hands an accepted connection to the reactor's worker, and wakes it.
    pub fn hand_over(&self, connection: Connection) {
        self.arrivals.lock().ignore_poison().push(connection);
        self.wake();
    }

    /// Makes the worker return from waiting.
    pub fn wake(&self) {
        // Fails only if a wake-up is pending already.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    /// Takes the connections that were handed over, and clears the pending wake-up.
    pub fn take_arrivals(&self) -> Vec<Connection> {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        std::mem::take(&mut *self.arrivals.lock().ignore_poison())
    }

    /// Waits for events. Requires: called by the reactor's own worker.
    ///
    /// # Errors
    ///
    /// As [`Reactor::fetch`].
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        let result = self.fetch(events, timeout);
        // Relaxed, and no read-modify-write: one thread writes, and others only compare.
        let count = self.wait_count.load(Ordering::Relaxed);
        self.wait_count.store(count.wrapping_add(1), Ordering::Relaxed);
        result
    }

    /// Replaces `events` by pending ones, and waits up to `timeout` if there are none.
    ///
    /// # Errors
    ///
    /// If the wait fails, which no client can cause.
    pub fn fetch(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        events.clear();
        let spare = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, spare, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks the connections; waits while another thread holds them.
    pub fn lock(&self) -> ReactorGuard<'_> {
        let connections = self.connections.lock().ignore_poison();
        ReactorGuard { reactor: self, connections }
    }

    /// Locks the connections, unless another thread holds them.
    fn try_lock(&self) -> Option<ReactorGuard<'_>> {
        let connections = match self.connections.try_lock() {
            Ok(connections) => connections,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(ReactorGuard { reactor: self, connections })
    }
}

/// Finds reactors whose workers are late, for one worker.
pub struct WorkStealer {
    /// The number of the worker's own reactor.
    own: usize,
    /// The number of the observed reactor; `own` before the first attempt.
    victim: usize,
    /// The observed reactor's wait count at the last attempt.
    wait_count: u64,
    /// Batches of the worker until the next attempt.
    batches_left: u32,
}

impl WorkStealer {
    /// A stealer for the worker of the reactor number `own`.
    pub fn new(own: usize) -> Self {
        Self { own, victim: own, wait_count: 0, batches_left: BATCHES_PER_STEAL }
    }

    /// To be called after each batch of the worker's own. Now and then it tries another reactor: if
    /// that one's worker has not waited since the last attempt and events are pending, they replace
    /// `events` and the locked reactor is returned.
    #[inline]
    pub fn steal<'r>(
        &mut self,
        reactors: &'r [Reactor],
        events: &mut Vec<Event>,
    ) -> Option<ReactorGuard<'r>> {
        if self.batches_left > 0 {
            self.batches_left -= 1;
            return None;
        }
        self.try_steal(reactors, events)
    }

    #[inline(never)]
    fn try_steal<'r>(
        &mut self,
        reactors: &'r [Reactor],
        events: &mut Vec<Event>,
    ) -> Option<ReactorGuard<'r>> {
        let victim = &reactors[self.victim];
        if self.victim != self.own
            && victim.wait_count.load(Ordering::Relaxed) == self.wait_count
            && let Some(guard) = victim.try_lock()
            && victim.fetch(events, Duration::ZERO).is_ok()
            && !events.is_empty()
        {
            // `batches_left` stays 0: the same reactor is tried after every batch until its worker
            // is back.
            return Some(guard);
        }
        self.batches_left = BATCHES_PER_STEAL;
        self.victim = (self.victim + 1) % reactors.len();
        if self.victim == self.own {
            self.victim = (self.victim + 1) % reactors.len();
        }
        self.wait_count = reactors[self.victim].wait_count.load(Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `steal` through one interval of batches, up to and including the attempt at its end.
    fn steals(stealer: &mut WorkStealer, reactors: &[Reactor]) -> bool {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        (0..=BATCHES_PER_STEAL).any(|_| stealer.steal(reactors, &mut events).is_some())
    }

    #[test]
    fn a_reactor_is_served_by_others_while_its_worker_is_late() {
        let reactors = [Reactor::new().unwrap(), Reactor::new().unwrap()];
        let mut stealer = WorkStealer::new(0);
        reactors[1].wake();
        assert!(!steals(&mut stealer, &reactors), "the first attempt only notes the count");
        assert!(steals(&mut stealer, &reactors));
        let mut events = Vec::with_capacity(MAX_EVENTS);
        assert!(stealer.steal(&reactors, &mut events).is_some(), "and again after the next batch");
        reactors[1].wait(&mut events, Duration::ZERO).unwrap();
        assert!(!steals(&mut stealer, &reactors), "its worker is back");
        let guard = reactors[1].lock();
        assert!(!steals(&mut stealer, &reactors), "its worker holds the lock");
        drop(guard);
        reactors[1].take_arrivals();
        assert!(!steals(&mut stealer, &reactors) && !steals(&mut stealer, &reactors), "no events");
    }

    #[test]
    fn a_single_worker_steals_from_nobody() {
        let reactors = [Reactor::new().unwrap()];
        reactors[0].wake();
        let mut stealer = WorkStealer::new(0);
        assert!(!steals(&mut stealer, &reactors) && !steals(&mut stealer, &reactors));
    }
}
