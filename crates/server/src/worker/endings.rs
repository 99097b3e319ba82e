//! The ends of connections: who is closed, what is given back, and how a worker stops.

use std::time::{Duration, Instant};

use amalgam_index::Store;
use rustix::event::epoll::{self, Event};

use crate::connections::connection::Connection;
use crate::connections::protocol_state::TurnBudget;
use crate::connections::reactor::ReactorGuard;
use crate::connections::slab::ConnectionId;
use crate::net::registry::CloseReason;
use crate::watch::events::Events;

use super::Worker;

/// How long a stopping worker tries to send the remaining output.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

impl<S: Store> Worker<'_, S> {
    /// Takes a connection from its reactor, which is charged nothing for it any more.
    fn take_out(
        &mut self,
        guard: &mut ReactorGuard<'_>,
        id: ConnectionId,
    ) -> Option<Box<Connection>> {
        let connection = guard.slab.remove(id)?;
        self.forget_answers(id, &connection);
        guard.stalled -= usize::from(connection.is_stalled);
        self.state.recharge(connection.charged_bytes, 0);
        if connection.memory_deadline > 0 {
            self.leave_waiters(guard, id);
        }
        self.state.buffers.recharge_session(connection.transport.kept_bytes(), 0);
        Some(connection)
    }

    pub(super) fn close(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        let Some(mut connection) = self.take_out(guard, id) else { return };
        // What it pinned is given up first, or another worker would close one more for it.
        drop(std::mem::take(&mut connection.output));
        self.state.registry.remove(&connection.info);
        if connection.info.is_being_closed() {
            connection.close_reason = CloseReason::BuffersFull;
        }
        self.state.log.closed(&connection.info, connection.close_reason);
        let counters = self.counters();
        counters.connections_closed.add(1);
        match connection.close_reason {
            CloseReason::BuffersFull => counters.buffers_full_kicks.add(1),
            CloseReason::IdleTimeout => counters.idle_kicks.add(1),
            CloseReason::SendTimeout => counters.send_timeout_kicks.add(1),
            _ => {}
        }
        // Dropping the socket closes it and removes it from epoll.
    }

    /// Gives a connection that became a watcher to the log. The counters count it as closed.
    pub(super) fn hand_to_log(
        &mut self,
        guard: &mut ReactorGuard<'_>,
        id: ConnectionId,
        events: Events,
    ) {
        let Some(connection) = self.take_out(guard, id) else { return };
        connection.info.note_held(0, self.seconds);
        self.counters().connections_closed.add(1);
        // Fails only for a socket that is not registered, and this one is.
        let _ = epoll::delete(&guard.reactor.epoll, &connection.transport.socket);
        let Connection { transport, info, output, .. } = *connection;
        self.state.log.join(transport, info, events, output);
    }

    /// Closes the connections whose answers stood still for longer than the send timeout.
    pub(super) fn close_stalled(&mut self, guard: &mut ReactorGuard<'_>, seconds: u32) {
        let timeout = self.state.settings.send_timeout_seconds;
        if timeout == 0 || guard.stalled == 0 {
            return;
        }
        let is_late = |connection: &Connection| {
            connection.is_stalled
                && seconds.saturating_sub(connection.info.sent_seconds()) > timeout
        };
        self.close_those(guard, CloseReason::SendTimeout, is_late);
    }

    /// Closes the connections of which `is_one` is true.
    pub(super) fn close_those(
        &mut self,
        guard: &mut ReactorGuard<'_>,
        reason: CloseReason,
        is_one: impl Fn(&Connection) -> bool,
    ) {
        let those = guard.slab.iter().filter(|(_, connection)| is_one(connection));
        for id in those.map(|(id, _)| id).collect::<Vec<_>>() {
            if let Some(connection) = guard.slab.get_mut(id) {
                connection.close_reason = reason;
            }
            self.close(guard, id);
        }
    }

    /// Before the worker ends: answers what has arrived, waits for up to [`DRAIN_TIMEOUT`] for late
    /// answers and until all is sent, and closes all connections.
    pub(super) fn drain(&mut self, guard: &mut ReactorGuard<'_>, events: &mut Vec<Event>) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        let _ = guard.reactor.fetch(events, Duration::ZERO);
        self.on_wake(guard);
        self.serve(guard, events);
        self.send_left_bytes = usize::MAX;
        loop {
            self.take_answers(guard, true);
            self.turn_budget = TurnBudget::default();
            self.serve_ready(guard);
            self.take_answers(guard, false);
            self.state.copy_lanes.leave(&self.turn_budget.lanes);
            let unsent = guard.slab.iter().filter(|(_, connection)| connection.has_unsent());
            let unsent: Vec<_> = unsent.map(|(id, _)| id).collect();
            let mut is_drained = !guard
                .slab
                .values()
                .any(|connection| connection.is_waiting && connection.memory_deadline == 0);
            for id in unsent {
                if self.send(guard, id) {
                    self.settle(guard, id);
                } else {
                    is_drained = false;
                }
            }
            if is_drained && guard.ready.is_empty() || Instant::now() > end {
                break;
            }
            let _ = guard.reactor.fetch(events, Duration::from_millis(20));
        }
        self.close_those(guard, CloseReason::Shutdown, |_| true);
    }
}
