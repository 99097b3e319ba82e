//! Connections that wait for buffer memory: clients whose values do not fit at the same time are
//! not read for a while, rather than refused.
//!
//! Invariants:
//! 1. Those that wait go on in the order in which they asked, whichever worker serves them.
//! 2. None waits for longer than [`MEMORY_WAIT_SECONDS`], and waiting takes no processor time.
//! 3. A client that was admitted and stalls loses its reservation to waiting ones within twice
//!    [`TEND_INTERVAL`], so beginning a value delays others by no more than that.

use std::time::Instant;

use amalgam_index::Store;

use crate::connections::budget::{MEMORY_WAIT_SECONDS, TEND_INTERVAL, Waiter};
use crate::connections::reactor::{Reactor, ReactorGuard};
use crate::connections::slab::{ConnectionId, from_event_data, to_event_data};

use super::Worker;

/// A second that has passed: the clock starts later.
const PAST: u32 = 1;

impl<S: Store> Worker<'_, S> {
    /// The number of the reactor that is being served; another's if this worker is a thief.
    fn number_of(&self, reactor: &Reactor) -> usize {
        let mut reactors = self.state.reactors.iter();
        reactors.position(|one| std::ptr::eq(one, reactor)).unwrap_or(self.number)
    }

    /// Has a connection wait until the budget admits its value.
    #[cold]
    pub(super) fn await_memory(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        let reactor = self.number_of(guard.reactor);
        let Some(connection) = guard.slab.get_mut(id) else { return };
        connection.is_waiting = true;
        let charge = connection.waiting_charge();
        self.state.recharge(connection.charged_bytes, charge);
        connection.info.note_held(charge, self.seconds);
        (connection.charged_bytes, connection.held_bytes) = (charge, charge);
        if connection.memory_deadline == 0 {
            connection.memory_deadline = self.seconds + MEMORY_WAIT_SECONDS;
            let bytes = connection.lacking_bytes();
            let waiter = Waiter { reactor, id: to_event_data(id), bytes };
            if self.state.buffers.enter(waiter) {
                // Sleeping workers may hold stalled reservations to reclaim.
                self.state.reactors.iter().for_each(Reactor::wake);
            }
        }
        self.admit_waiters(guard);
    }

    /// Resumes waiting connections in order, as far as the budget admits their values.
    pub(super) fn admit_waiters(&mut self, guard: &mut ReactorGuard<'_>) {
        if !self.state.buffers.has_waiters() {
            return;
        }
        let reactor = self.number_of(guard.reactor);
        while let Some(first) = self.state.buffers.first_waiter() {
            if first.reactor != reactor {
                return self.state.wake_first_waiter();
            }
            let id = from_event_data(first.id);
            if let Some(connection) = guard.slab.get_mut(id)
                && connection.is_waiting
                && connection.memory_deadline > 0
            {
                if !self.state.buffers.admit_first(connection.lacking_bytes()) {
                    return;
                }
                connection.take_room();
                // That nothing was received meanwhile is not the client's doing.
                connection.info.note_received(0, self.seconds);
                self.go_on(guard, id);
            }
            self.state.buffers.leave(reactor, first.id);
        }
    }

    /// Ends the wait of a connection; its value is refused if the budget still cannot admit it.
    #[cold]
    pub(super) fn end_wait(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        let Some(connection) = guard.slab.get_mut(id) else { return };
        if connection.memory_deadline > 0 && connection.is_waiting {
            connection.memory_deadline = PAST;
            self.leave_waiters(guard, id);
            self.go_on(guard, id);
        }
    }

    /// Removes a connection from those that wait.
    #[cold]
    pub(super) fn leave_waiters(&self, guard: &ReactorGuard<'_>, id: ConnectionId) {
        self.state.buffers.leave(self.number_of(guard.reactor), to_event_data(id));
        self.state.wake_first_waiter();
    }

    /// Once in each [`TEND_INTERVAL`] while connections wait: ends expired waits, and reclaims
    /// stalled reservations.
    #[cold]
    pub(super) fn tend(&mut self, guard: &mut ReactorGuard<'_>) {
        let now = Instant::now();
        if now < self.tends_at {
            return;
        }
        self.tends_at = now + TEND_INTERVAL;
        let (mut late, mut slow) = (Vec::new(), Vec::new());
        for (id, connection) in &mut guard.slab {
            if connection.is_waiting && (1..=self.seconds).contains(&connection.memory_deadline) {
                late.push(id);
            } else if connection.give_back_room() {
                slow.push(id);
            }
        }
        late.into_iter().for_each(|id| self.end_wait(guard, id));
        slow.into_iter().for_each(|id| self.settle(guard, id));
        self.admit_waiters(guard);
    }
}
