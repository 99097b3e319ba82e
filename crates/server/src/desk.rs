//! A worker's desk: its sockets, which another worker may look after while this one waits for a
//! core.
//!
//! A worker that was woken can still wait for a core for milliseconds, where there are more busy
//! threads than cores. Its connections need not wait with it: a worker that is running, and finds
//! that another has not come round for some turns, does a turn on the other's desk ([`Watch`]).
//!
//! Invariants of this room:
//! 1. Connections are touched by whoever holds their desk, and by nobody else.
//! 2. What a desk's events say is done by whoever fetched them; an event twice is harmless, and
//!    one for a connection that is gone means nothing ([`Token`]).
//! 3. Whoever leaves another's desk with connections to be served rings its bell.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::channel::Channel;
use crate::connection::Connection;
use crate::connections::{Connections, Token};
use crate::roster::Badge;

/// Events fetched at once.
pub const EVENTS: usize = 256;

/// The event that means: somebody rang.
pub const BELL: u64 = u64::MAX;

/// Turns of its own after which a worker looks at another's desk: a few hundred microseconds of
/// small requests. A look that finds nothing costs a system call.
const TURNS_PER_LOOK: u32 = 8;

/// See the head of this module. On cache lines of its own.
#[repr(align(128))]
pub struct Desk {
    /// What tells of the sockets.
    pub epoll: OwnedFd,
    bell: OwnedFd,
    arrived: Mutex<Vec<(Channel, Arc<Badge>)>>,
    /// How often its worker has come back from waiting.
    waits: AtomicU64,
    sockets: Mutex<Sockets>,
}

/// The connections of a desk.
#[derive(Default)]
pub struct Sockets {
    /// All of them.
    pub connections: Connections<Connection>,
    /// Those to be served.
    pub ready: Vec<Token>,
}

/// A desk's sockets in the hands of one worker.
pub struct Held<'d> {
    /// The desk.
    pub desk: &'d Desk,
    sockets: MutexGuard<'d, Sockets>,
}

impl Deref for Held<'_> {
    type Target = Sockets;

    #[inline]
    fn deref(&self) -> &Sockets {
        &self.sockets
    }
}

impl DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Sockets {
        &mut self.sockets
    }
}

impl Desk {
    /// An empty desk.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let (arrived, waits, sockets) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        Ok(Self { epoll, bell, arrived, waits, sockets })
    }

    /// Hands over a connection.
    pub fn hand_over(&self, channel: Channel, badge: Arc<Badge>) {
        let mut arrived = self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        arrived.push((channel, badge));
        drop(arrived);
        self.ring();
    }

    /// Makes the worker look around.
    pub fn ring(&self) {
        // Fails only when the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes the connections that were handed over, and silences the bell.
    pub fn arrivals(&self) -> Vec<(Channel, Arc<Badge>)> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Waits for events, for the desk's own worker.
    ///
    /// # Errors
    ///
    /// As [`Desk::fetch`].
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        let result = self.fetch(events, timeout);
        // Relaxed, and no read-modify-write: one thread writes, and others only compare.
        self.waits.store(self.waits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        result
    }

    /// Replaces `events` by those that came, if need be after `timeout`.
    ///
    /// # Errors
    ///
    /// If waiting fails, which no client can bring about.
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

    /// Takes the sockets in hand, as soon as nobody else holds them.
    pub fn hold(&self) -> Held<'_> {
        let sockets = self.sockets.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Held { desk: self, sockets }
    }

    fn try_hold(&self) -> Option<Held<'_>> {
        let sockets = match self.sockets.try_lock() {
            Ok(sockets) => sockets,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Held { desk: self, sockets })
    }
}

/// A worker's eye on the others.
pub struct Watch {
    own: usize,
    /// The desk that is looked at, and what its count of waits was.
    other: usize,
    waits: u64,
    turns_left: u32,
}

impl Watch {
    /// For the worker of the desk `own`.
    pub fn new(own: usize) -> Self {
        Self { own, other: own, waits: 0, turns_left: TURNS_PER_LOOK }
    }

    /// After a turn of one's own: the sockets and the events of a desk whose worker has not come
    /// round since the last look, if there are any.
    #[inline]
    pub fn look<'d>(&mut self, desks: &'d [Desk], events: &mut Vec<Event>) -> Option<Held<'d>> {
        if self.turns_left > 0 {
            self.turns_left -= 1;
            return None;
        }
        self.look_closely(desks, events)
    }

    #[inline(never)]
    fn look_closely<'d>(&mut self, desks: &'d [Desk], events: &mut Vec<Event>) -> Option<Held<'d>> {
        let desk = &desks[self.other];
        if self.other != self.own
            && desk.waits.load(Ordering::Relaxed) == self.waits
            && let Some(held) = desk.try_hold()
            && desk.fetch(events, Duration::ZERO).is_ok()
            && !events.is_empty()
        {
            // Stays there, turn by turn, until its worker is back.
            return Some(held);
        }
        self.turns_left = TURNS_PER_LOOK;
        self.other = (self.other + 1) % desks.len();
        if self.other == self.own {
            self.other = (self.other + 1) % desks.len();
        }
        self.waits = desks[self.other].waits.load(Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until the watch looks closely, and then once more.
    fn looks(watch: &mut Watch, desks: &[Desk]) -> bool {
        let mut events = Vec::with_capacity(EVENTS);
        (0..=TURNS_PER_LOOK).any(|_| watch.look(desks, &mut events).is_some())
    }

    #[test]
    fn a_desk_is_served_by_others_while_its_worker_does_not_come_round() {
        let desks = [Desk::new().unwrap(), Desk::new().unwrap()];
        let mut watch = Watch::new(0);
        desks[1].ring();
        assert!(!looks(&mut watch, &desks), "nothing was noted before the first look");
        assert!(looks(&mut watch, &desks));
        let mut events = Vec::with_capacity(EVENTS);
        assert!(watch.look(&desks, &mut events).is_some(), "and again in the next turn");
        desks[1].wait(&mut events, Duration::ZERO).unwrap();
        assert!(!looks(&mut watch, &desks), "its worker is back");
        let held = desks[1].hold();
        assert!(!looks(&mut watch, &desks), "its worker holds it");
        drop(held);
        desks[1].arrivals();
        assert!(!looks(&mut watch, &desks) && !looks(&mut watch, &desks), "nothing to do");
    }

    #[test]
    fn a_worker_alone_looks_at_nobody() {
        let desks = [Desk::new().unwrap()];
        desks[0].ring();
        let mut watch = Watch::new(0);
        assert!(!looks(&mut watch, &desks) && !looks(&mut watch, &desks));
    }
}
