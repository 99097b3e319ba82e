//! A worker thread: the event loop that serves its reactor's connections.
//!
//! An iteration of the loop waits for events, receives once from every connection that is ready,
//! then parses, executes and answers the requests of all of them as one batch
//! ([`crate::request::batch`]), and sends once to each. Sockets are watched edge-triggered and
//! registered once; no system call changes a registration later.
//!
//! Invariants:
//! 1. A connection that may have more to read either is in `ready` or waits for its output to
//!    drain; no edge is lost.
//! 2. A connection whose output is not drained is not read from: its memory is bounded by one read,
//!    one incomplete request and one output, and as much again of late answers.
//! 3. The time of a batch is sampled after its requests were received.
//! 4. A connection whose request waits for an answer of the store ([`amalgam_index::LateAnswers`]),
//!    or until the store has room for it, is not served; it goes on when that is there. So does one
//!    whose value waits for buffer memory (`memory_waits`).
//! 5. Long answers ([`LONG_ANSWER_BYTES`]) take [`TURN_SEND_BYTES`] of an iteration together, apart
//!    from one of [`SEND_BYTES`]. Connections whose answers are left stay in `ready`, before
//!    those that come later: requests of others wait for one iteration, not for all long answers.
//! 6. So do requests that are long themselves, or that take long ([`TurnBudget`]). What a batch
//!    keeps of a line of keys of one letter is twelve times its length.

mod endings;
mod memory_waits;

use std::io;
use std::time::{Duration, Instant};

use amalgam_index::{Begun, Store, Worker as _};
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::connections::budget::{MAX_OUTPUT_BYTES, spare_limit};
use crate::connections::connection::{Bounds, Connection, Input, Received};
use crate::connections::protocol_state::{OWN_BUFFER_BYTES, READ_BYTES, TurnBudget};
use crate::connections::reactor::{
    ANSWERS_EVENT, MAX_EVENTS, ReactorGuard, WAKE_EVENT, WorkStealer,
};
use crate::connections::slab::{ConnectionId, from_event_data, to_event_data};
use crate::metrics::counters::{Counters, Counts};
use crate::metrics::hot_keys::Sampler;
use crate::metrics::latency::Stopwatch;
use crate::metrics::miss_curve::AccessRecorder;
use crate::net::output::Sent;
use crate::net::registry::{CloseReason, ConnectionActivity};
use crate::request::batch::Batch;
use crate::request::context::BatchContext;
use crate::request::datagrams::Datagrams;
use crate::request::observer::Observer;
use crate::request::slot::RequestSlot;
use crate::state::server_state::ServerState;
use crate::yielding::Yielder;

/// Bytes received for all connections of one batch, at most: requests and answers of a batch should
/// stay in the core's own cache between being written and being sent.
const BATCH_BYTES: usize = 128 << 10;

/// Bytes of long answers after which no other one is begun in an iteration: a fraction of a
/// millisecond of copying to sockets.
const TURN_SEND_BYTES: usize = 256 << 10;

/// Bytes of one long answer that are sent at once, at most. Values of the usual limit (`-I`) fit:
/// to send these in pieces takes a quarter more of the processor's time.
const SEND_BYTES: usize = (1 << 20) + LONG_ANSWER_BYTES;

/// An answer of more bytes than this is long; shorter ones are sent as soon as they are there.
const LONG_ANSWER_BYTES: usize = 32 << 10;

/// Output buffers kept for reuse, at most, until the next second.
const SPARE_BUFFERS: usize = 256;

/// The largest output buffer that is kept for reuse.
const SPARE_BUFFER_BYTES: usize = 256 << 10;

/// The longest wait for events; after it the worker looks at the clock.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The wait for events after which a worker without work gives up the free memory that it keeps.
const REST_AFTER: Duration = Duration::from_millis(2);

/// The wait for events while all that is left to do waits for another worker.
const BLOCKED_WAIT: Duration = Duration::from_millis(1);

/// Seconds until a failed login is answered: at least one whole second.
const LOGIN_PAUSE_SECONDS: u32 = 2;

const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// The event data of the first datagram socket; the others follow. No connection id is as large.
const DATAGRAM_SOCKETS: u64 = u64::MAX - (1 << 20);

/// Serves the connections of its reactor, on a thread of its own.
pub struct Worker<'s, S: Store + 's> {
    state: &'s ServerState<S>,
    /// The number of the worker, its reactor and its counters.
    number: usize,
    index: S::Worker<'s>,
    stealer: WorkStealer,
    datagrams: Vec<Datagrams>,
    /// The input of a batch, except for large values.
    scratch: Vec<u8>,
    batch: Batch,
    /// The connections of the current batch, with their inputs; parallel to `slots`.
    inputs: Vec<(ConnectionId, Input)>,
    slots: Vec<RequestSlot>,
    spare: Vec<Vec<u8>>,
    /// The sum of the capacities of `spare`.
    spare_bytes: usize,
    /// Its largest value.
    max_spare_bytes: usize,
    counts: Counts,
    stopwatch: Stopwatch,
    sampler: Sampler<'s>,
    /// Connections whose answers have come; empty between calls.
    answered: Vec<u64>,
    recorder: AccessRecorder<'s>,
    /// Bytes of output from which on a connection of the current batch waits.
    output_limit_bytes: usize,
    /// Bytes of long answers that may still be sent in this iteration.
    send_left_bytes: usize,
    turn_budget: TurnBudget,
    /// Whether all that this iteration left waits for other workers.
    is_blocked: bool,
    /// The server's second at the last batch or tick.
    seconds: u32,
    last_tick_seconds: u32,
    /// When connections that wait for buffer memory are checked next.
    tends_at: Instant,
    /// Bytes of the largest input of a batch so far.
    #[cfg(test)]
    most_batch_bytes: usize,
}

impl<'s, S: Store> Worker<'s, S> {
    /// Prepares worker `number` on the calling thread, which then calls [`Worker::run`].
    ///
    /// # Errors
    ///
    /// If the system refuses a file descriptor.
    pub fn new(state: &'s ServerState<S>, number: usize) -> io::Result<Self> {
        let epoll = &state.reactors[number].epoll;
        let seconds = state.clock.seconds();
        let mut datagrams = Vec::new();
        for (position, socket) in state.datagram_sockets.iter().enumerate() {
            let socket = Datagrams::new(socket.try_clone()?, state.settings.protocol.fixed());
            let data = EventData::new_u64(DATAGRAM_SOCKETS + position as u64);
            // Exclusive: one of the workers that share the socket is woken, not all.
            epoll::add(epoll, socket.socket(), data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
            datagrams.push(socket);
        }
        let mut index = state.index.worker();
        if let Some(answers) = index.late_answers().and_then(|late| late.descriptor()) {
            epoll::add(epoll, answers, EventData::new_u64(ANSWERS_EVENT), EventFlags::IN)?;
        }
        Ok(Self {
            state,
            number,
            index,
            stealer: WorkStealer::new(number),
            datagrams,
            scratch: vec![0; BATCH_BYTES],
            batch: Batch::default(),
            inputs: Vec::new(),
            slots: Vec::new(),
            spare: Vec::new(),
            spare_bytes: 0,
            max_spare_bytes: spare_limit(&state.settings),
            counts: Counts::default(),
            stopwatch: Stopwatch::default(),
            sampler: state.hot_keys.sampler(number),
            answered: Vec::new(),
            recorder: AccessRecorder::new(state.miss_curve.as_ref()),
            output_limit_bytes: MAX_OUTPUT_BYTES,
            send_left_bytes: TURN_SEND_BYTES,
            turn_budget: TurnBudget::default(),
            is_blocked: false,
            seconds,
            last_tick_seconds: seconds,
            tends_at: Instant::now(),
            #[cfg(test)]
            most_batch_bytes: 0,
        })
    }

    /// Serves until the server stops.
    ///
    /// # Errors
    ///
    /// If waiting for events fails, which no client can cause.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let mut yielder = Yielder::default();
        let mut timeout = REST_AFTER;
        while !self.state.is_stopping() {
            let has_more = self.turn(&mut events, timeout)?;
            timeout = match has_more {
                true if self.is_blocked => BLOCKED_WAIT,
                true => Duration::ZERO,
                // No events came while it waited, and the memory that it kept is given up.
                false if !timeout.is_zero() && events.is_empty() && !self.index.rest() => MAX_WAIT,
                false => REST_AFTER,
            };
            if self.state.buffers.has_waiters() {
                timeout = timeout.min(self.tends_at.saturating_duration_since(Instant::now()));
            }
            if self.state.reactors.len() > 1 {
                yielder.iterate();
            }
        }
        self.drain(&mut self.state.reactors[self.number].lock(), &mut events);
        Ok(())
    }

    /// One iteration of the loop: waits for events, up to `timeout`, and serves the connections
    /// that are ready. Returns whether some can be served again at once.
    ///
    /// # Errors
    ///
    /// As [`Worker::run`].
    pub fn turn(&mut self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<bool> {
        let reactors = &self.state.reactors;
        let reactor = &reactors[self.number];
        let due = self.index.late_answers().and_then(|late| late.next_turn());
        reactor.wait(events, due.map_or(timeout, |due| due.min(timeout)))?;
        let lap = self.stopwatch.start(self.counters());
        let mut guard = reactor.lock();
        self.serve(&mut guard, events);
        self.tick(&mut guard);
        if self.state.buffers.has_waiters() {
            self.tend(&mut guard);
        }
        let has_more = !guard.ready.is_empty();
        self.is_blocked = has_more && self.awaits_others(&guard);
        drop(guard);
        if let Some(lap) = lap {
            lap.end(self.counters(), &self.state.latencies[self.number]);
        }
        // Only the worker that began an operation knows its answer.
        if self.index.late_answers().is_none()
            && let Some(mut guard) = self.stealer.steal(reactors, events)
        {
            self.serve(&mut guard, events);
            if !guard.ready.is_empty() {
                guard.reactor.wake();
            }
        }
        if self.recorder.is_due() {
            self.hand_over_accesses();
        }
        self.index.quiesce();
        Ok(has_more)
    }

    /// Bytes of the largest input of a batch so far.
    #[cfg(test)]
    pub fn most_batch_bytes(&self) -> usize {
        self.most_batch_bytes
    }

    /// Bytes that are kept for the next batch: output buffers, and stages.
    #[cfg(any(test, fuzzing))]
    pub fn spare_bytes(&self) -> usize {
        self.spare_bytes + self.batch.kept_bytes()
    }

    /// Frees the memory that is kept for the next batch: requests that came once may have taken
    /// megabytes, and lists that are needed grow again in microseconds.
    fn give_up_spares(&mut self) {
        self.spare.clear();
        self.spare_bytes = 0;
        self.batch = Batch::default();
    }

    fn counters(&self) -> &'s Counters {
        self.state.counters.of_worker(self.number)
    }

    /// Handles events, and serves the connections that are ready.
    fn serve(&mut self, guard: &mut ReactorGuard<'_>, events: &[Event]) {
        self.seconds = self.state.clock.seconds();
        self.send_left_bytes = TURN_SEND_BYTES;
        self.turn_budget = TurnBudget::of(&self.index);
        let mut has_answers = false;
        for event in events {
            match event.data.u64() {
                WAKE_EVENT => self.on_wake(guard),
                ANSWERS_EVENT => has_answers = true,
                socket @ DATAGRAM_SOCKETS.. => {
                    self.serve_datagrams((socket - DATAGRAM_SOCKETS) as usize);
                }
                id => self.note_event(guard, from_event_data(id), event.flags),
            }
        }
        self.take_answers(guard, has_answers);
        self.serve_ready(guard);
        // Sends what was begun.
        self.take_answers(guard, false);
        self.state.copy_lanes.leave(&self.turn_budget.lanes);
    }

    /// Sends what the store has begun, and lets the connections go on whose answers have come.
    #[inline]
    fn take_answers(&mut self, guard: &mut ReactorGuard<'_>, has_event: bool) {
        let Some(late) = self.index.late_answers() else { return };
        let mut answered = std::mem::take(&mut self.answered);
        let mut room = late.turn(has_event, &mut answered);
        while room > 0
            && let Some(id) = guard.without_room.pop_front()
        {
            // One that has closed takes none.
            room -= usize::from(guard.slab.contains_key(id));
            self.go_on(guard, id);
        }
        for id in answered.drain(..) {
            self.go_on(guard, from_event_data(id));
        }
        self.answered = answered;
    }

    /// Lets a connection go on that waited for an answer of the store, for room, or for a sweep.
    fn go_on(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        let Some(connection) = guard.slab.get_mut(id) else { return };
        connection.is_waiting = false;
        self.discard_answers(guard, id);
        self.settle(guard, id);
    }

    /// Takes over the connections that the main thread accepted for this reactor, and lets those go
    /// on that waited for a sweep.
    fn on_wake(&mut self, guard: &mut ReactorGuard<'_>) {
        let reactor = guard.reactor;
        for connection in reactor.take_arrivals() {
            self.state.log.opened(&connection.info);
            self.state.buffers.recharge_session(0, connection.transport.kept_bytes());
            let id = guard.slab.insert(Box::new(connection));
            self.counters().connections_opened.add(1);
            let Some(connection) = guard.slab.get_mut(id) else { continue };
            let data = EventData::new_u64(to_event_data(id));
            if epoll::add(&reactor.epoll, &connection.transport.socket, data, WATCHED).is_err() {
                self.close(guard, id);
            }
        }
        for id in std::mem::take(&mut guard.awaiting_sweep) {
            self.go_on(guard, id);
        }
        self.admit_waiters(guard);
    }

    /// Records an event of a connection, and queues the connection if it can be served.
    fn note_event(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId, flags: EventFlags) {
        let Some(connection) = guard.slab.get_mut(id) else { return };
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            connection.is_hung_up = true;
            connection.is_readable = true;
        }
        if flags.contains(EventFlags::IN) {
            connection.is_readable = true;
        }
        // A full socket that can be written again comes here too: there is output to send.
        let is_useful = connection.is_readable || connection.has_unsent();
        if is_useful {
            guard.queue(id);
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Nobody can be answered.
            self.end_wait(guard, id);
        }
    }

    /// Whether all connections that could be served wait for other workers.
    fn awaits_others(&self, guard: &ReactorGuard<'_>) -> bool {
        let budget = &self.turn_budget;
        let mut ready = guard.ready.iter().filter_map(|id| guard.slab.get(*id));
        ready.all(|connection| connection.protocol_state.awaits_others(budget))
    }

    fn serve_ready(&mut self, guard: &mut ReactorGuard<'_>) {
        let ready = std::mem::take(&mut guard.ready);
        let mut rest = &ready[..];
        while !rest.is_empty() {
            rest = self.serve_some(guard, rest);
        }
        // Connections that were queued again meanwhile stay; the old list's memory is kept.
        let mut buffer = ready;
        buffer.clear();
        buffer.append(&mut guard.deferred);
        buffer.append(&mut guard.ready);
        guard.ready = buffer;
    }

    /// Serves as many connections as fit into one batch; returns the others.
    fn serve_some<'r>(
        &mut self,
        guard: &mut ReactorGuard<'_>,
        ready: &'r [ConnectionId],
    ) -> &'r [ConnectionId] {
        let taken = self.receive_some(guard, ready);
        if !self.slots.is_empty() {
            self.run_batch();
            self.finish_batch(guard);
        }
        &ready[taken..]
    }

    /// Receives from as many connections as fit into one batch, and returns how many these are.
    fn receive_some(&mut self, guard: &mut ReactorGuard<'_>, ready: &[ConnectionId]) -> usize {
        let (mut filled, mut taken) = (0, 0);
        let most = ready.len().min(MAX_EVENTS);
        self.output_limit_bytes = self.state.buffers.output_allowance(most);
        while taken < most && BATCH_BYTES - filled >= READ_BYTES + OWN_BUFFER_BYTES {
            let inputs = self.inputs.len();
            self.receive(guard, ready[taken], &mut filled);
            if let Some((_, input)) = self.inputs.get(inputs) {
                input.charge(&mut self.turn_budget);
            }
            taken += 1;
        }
        taken
    }

    /// Receives once from a connection and, if there is something to parse, adds it to the batch.
    fn receive(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId, filled: &mut usize) {
        let Some(connection) = guard.slab.get_mut(id) else { return };
        connection.is_queued = false;
        if connection.paused_until > 0 {
            return;
        }
        if connection.has_unsent() && !self.send(guard, id) {
            self.settle(guard, id);
            return;
        }
        let has_late = self.index.late_answers().is_some();
        let Some(connection) = guard.slab.get_mut(id) else { return };
        if connection.is_waiting {
            return;
        }
        if connection.awaits_turn(&self.turn_budget) {
            return guard.defer(id);
        }
        if connection.transport.is_handshaking() {
            match self.turn_budget.handshakes.checked_sub(1) {
                Some(left) => self.turn_budget.handshakes = left,
                None => return guard.defer(id),
            }
        }
        let counters = self.counters();
        let mut bytes_read = 0;
        let bounds = Bounds {
            buffers: &self.state.buffers,
            max_line_bytes: self.state.limits.max_get_line_bytes,
            receive_bytes: self.turn_budget.receive_bytes(),
            seconds: self.seconds,
        };
        let received = connection.receive(&mut self.scratch, filled, &bounds, &mut bytes_read);
        counters.bytes_read.add(bytes_read);
        if bytes_read > 0 {
            connection.info.note_received(bytes_read, self.seconds);
        }
        let is_starved = matches!(received, Received::Starved(_));
        match received {
            Received::End => self.close(guard, id),
            Received::Nothing => self.settle(guard, id),
            Received::AwaitsMemory => self.await_memory(guard, id),
            Received::Input(input) | Received::Starved(input) => {
                let mut slot = RequestSlot::new(
                    std::mem::take(&mut connection.protocol_state),
                    std::mem::take(&mut connection.output),
                );
                slot.number = connection.info.number;
                slot.is_starved = is_starved;
                slot.stream = has_late.then_some((to_event_data(id), connection.consumed_bytes));
                slot.output_limit_bytes = self.output_limit_bytes;
                if slot.output.bytes.capacity() == 0 {
                    slot.output.bytes = self.spare.pop().unwrap_or_default();
                    self.spare_bytes -= slot.output.bytes.capacity();
                }
                self.inputs.push((id, input));
                self.slots.push(slot);
            }
        }
    }

    /// Serves one batch of datagrams.
    fn serve_datagrams(&mut self, position: usize) {
        let counters = self.counters();
        let Some(datagrams) = self.datagrams.get_mut(position) else { return };
        counters.bytes_read.add(datagrams.receive(&mut self.slots));
        let mut has_more = !self.slots.is_empty();
        while has_more {
            let mut context = BatchContext {
                state: self.state,
                worker: self.number,
                index: &mut self.index,
                counts: &mut self.counts,
                sampler: &mut self.sampler,
                recorder: &mut self.recorder,
                turn: &mut self.turn_budget,
                now: self.state.clock.begin_batch(self.number),
                observer: Observer::new(self.state),
            };
            self.batch.run(&mut context, datagrams.inputs(), &mut self.slots);
            self.state.clock.end_batch(self.number);
            has_more = datagrams.has_more(&self.slots);
        }
        counters.publish(&mut self.counts);
        counters.bytes_written.add(datagrams.send(&mut self.slots));
    }

    /// Runs the requests of the connections in `slots`.
    fn run_batch(&mut self) {
        let now = self.state.clock.begin_batch(self.number);
        self.seconds = now.seconds;
        let (inputs, scratch) = (&self.inputs, &self.scratch);
        let inputs = inputs.iter().map(|(_, input)| input.bytes(scratch));
        #[cfg(test)]
        {
            let bytes = inputs.clone().map(<[u8]>::len).sum();
            self.most_batch_bytes = self.most_batch_bytes.max(bytes);
        }
        let mut context = BatchContext {
            state: self.state,
            worker: self.number,
            index: &mut self.index,
            counts: &mut self.counts,
            sampler: &mut self.sampler,
            recorder: &mut self.recorder,
            turn: &mut self.turn_budget,
            now,
            observer: Observer::new(self.state),
        };
        self.batch.run(&mut context, inputs, &mut self.slots);
        self.state.clock.end_batch(self.number);
        if self.counts.read_buf_oom > 0 {
            self.state.relieve_buffers(true, self.seconds);
        }
        self.counters().publish(&mut self.counts);
    }

    /// Gives the connections of a batch their state and output back, and sends to each.
    fn finish_batch(&mut self, guard: &mut ReactorGuard<'_>) {
        let mut inputs = std::mem::take(&mut self.inputs);
        let mut slots = std::mem::take(&mut self.slots);
        for ((id, input), slot) in inputs.drain(..).zip(slots.drain(..)) {
            let Some(connection) = guard.slab.get_mut(id) else { continue };
            connection.input = input.rest(slot.consumed, &self.scratch);
            connection.protocol_state = slot.protocol_state;
            connection.output = slot.output;
            connection.consumed_bytes += slot.consumed as u64;
            connection.has_late_answers |= slot.begun.is_some();
            let awaits_store = matches!(slot.begun, Some(Begun::Waits | Begun::NoRoom));
            connection.is_waiting = awaits_store || slot.awaits_sweep;
            connection.is_closing |= slot.is_closing;
            if slot.is_broken {
                connection.close_reason = CloseReason::Error;
            }
            if slot.has_failed_login {
                self.pause(guard, id);
                continue;
            }
            if let Some(events) = slot.watches {
                self.hand_to_log(guard, id, events);
                continue;
            }
            guard.awaiting_sweep.extend(slot.awaits_sweep.then_some(id));
            guard.without_room.extend((slot.begun == Some(Begun::NoRoom)).then_some(id));
            self.send(guard, id);
            self.discard_answers(guard, id);
            self.settle(guard, id);
        }
        (self.inputs, self.slots) = (inputs, slots);
    }

    /// Drops the store's answers that a connection has no more use for, or can ask for again.
    #[inline]
    fn discard_answers(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        if let Some(connection) = guard.slab.get_mut(id)
            && connection.has_late_answers
            && let Some(late) = self.index.late_answers()
        {
            let is_slow = connection.is_stalled && !connection.is_waiting;
            connection.has_late_answers =
                late.discard(to_event_data(id), connection.consumed_bytes, is_slow);
        }
    }

    /// Drops all of the store's answers to a connection that goes.
    fn forget_answers(&mut self, id: ConnectionId, connection: &Connection) {
        if connection.has_late_answers
            && let Some(late) = self.index.late_answers()
        {
            late.discard(to_event_data(id), u64::MAX, true);
        }
    }

    /// Sends what can be sent. Returns whether the connection is open and everything was sent.
    fn send(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) -> bool {
        let Some(connection) = guard.slab.get_mut(id) else { return false };
        let before = connection.unsent_bytes();
        let is_long = before > LONG_ANSWER_BYTES;
        if is_long && self.send_left_bytes == 0 {
            // That the answer stands still is not the client's doing.
            if !connection.is_stalled {
                connection.info.note_sent(0, self.seconds);
            }
            guard.defer(id);
            return false;
        }
        let most = if is_long { SEND_BYTES.max(self.send_left_bytes) } else { usize::MAX };
        let result = connection.output.send(&mut connection.transport, most);
        let sent = before - connection.unsent_bytes();
        if is_long {
            self.send_left_bytes = self.send_left_bytes.saturating_sub(sent);
        }
        self.counters().bytes_written.add(sent as u64);
        match result {
            Ok(Sent::All) => {
                let buffer = connection.output.take_buffer();
                let is_closing = connection.is_closing;
                if std::mem::take(&mut connection.is_stalled) {
                    guard.stalled -= 1;
                }
                let bytes = buffer.capacity();
                let is_kept = bytes <= SPARE_BUFFER_BYTES
                    && self.spare_bytes + bytes <= self.max_spare_bytes
                    && self.spare.len() < SPARE_BUFFERS;
                if is_kept && bytes > 0 {
                    self.spare_bytes += bytes;
                    self.spare.push(buffer);
                }
                if is_closing {
                    self.close(guard, id);
                }
                !is_closing
            }
            Ok(Sent::Most) => {
                connection.info.note_sent(sent as u64, self.seconds);
                guard.queue(id);
                false
            }
            Ok(Sent::Full) => {
                let was_stalled = std::mem::replace(&mut connection.is_stalled, true);
                if sent > 0 || !was_stalled {
                    connection.info.note_sent(sent as u64, self.seconds);
                }
                guard.stalled += usize::from(!was_stalled);
                false
            }
            Err(_) => {
                self.close(guard, id);
                false
            }
        }
    }

    /// Holds the answers of a connection back, and reads no further request, for a while: guessing
    /// a password takes that long.
    fn pause(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        let Some(connection) = guard.slab.get_mut(id) else { return };
        let peer = connection.info.peer_name();
        log::warn!(peer:%; "a login failed");
        connection.paused_until = self.seconds + LOGIN_PAUSE_SECONDS;
        guard.paused.push(id);
        self.settle(guard, id);
    }

    /// Lets the connections go on whose pause is over.
    fn resume(&mut self, guard: &mut ReactorGuard<'_>, seconds: u32) {
        for id in std::mem::take(&mut guard.paused) {
            let Some(connection) = guard.slab.get_mut(id) else { continue };
            if connection.paused_until > seconds {
                guard.paused.push(id);
                continue;
            }
            connection.paused_until = 0;
            self.send(guard, id);
            self.settle(guard, id);
        }
    }

    /// Updates the charge for a connection's buffers after it was served, and queues the connection
    /// if it can be served again.
    fn settle(&mut self, guard: &mut ReactorGuard<'_>, id: ConnectionId) {
        let Some(connection) = guard.slab.get_mut(id) else { return };
        connection.info.set_activity(match connection.protocol_state.wanted_bytes {
            _ if connection.has_unsent() => ConnectionActivity::SendsAnswer,
            0 => ConnectionActivity::AwaitsRequest,
            _ => ConnectionActivity::ReceivesValue,
        });
        let bytes = connection.buffer_bytes();
        let held = bytes + connection.output.pinned_bytes();
        let has_grown = held > connection.held_bytes;
        if held != connection.held_bytes || bytes != connection.charged_bytes {
            self.state.recharge(connection.charged_bytes, bytes);
            connection.info.note_held(held, self.seconds);
            (connection.charged_bytes, connection.held_bytes) = (bytes, held);
        }
        let can_go_on = connection.is_readable || connection.protocol_state.has_backlog();
        let waits = connection.has_unsent() || connection.paused_until > 0 || connection.is_waiting;
        if can_go_on && !waits {
            guard.queue(id);
        }
        if has_grown {
            self.state.relieve_buffers(false, self.seconds);
        }
    }

    /// Once a second: frees what is kept for the next batch, and closes connections that exceeded
    /// the send timeout or the idle timeout.
    fn tick(&mut self, guard: &mut ReactorGuard<'_>) {
        let seconds = self.state.clock.seconds();
        if seconds == self.last_tick_seconds {
            return;
        }
        (self.seconds, self.last_tick_seconds) = (seconds, seconds);
        self.give_up_spares();
        self.hand_over_accesses();
        self.resume(guard, seconds);
        self.close_stalled(guard, seconds);
        self.state.relieve_buffers(false, seconds);
        let timeout = self.state.settings.idle_timeout_seconds;
        if timeout == 0 {
            return;
        }
        let is_idle = |connection: &Connection| {
            connection.memory_deadline == 0
                && seconds.saturating_sub(connection.info.active_seconds()) > timeout
        };
        self.close_those(guard, CloseReason::IdleTimeout, is_idle);
    }

    /// Hands what was sampled to the simulation of other memory sizes.
    fn hand_over_accesses(&mut self) {
        let (state, now) = (self.state, self.state.clock.now());
        self.recorder.hand_over(self.counters(), &now, &state.index, &mut self.index);
    }
}
