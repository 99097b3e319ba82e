//! A worker thread: its sockets, its turns.
//!
//! A turn of the loop: wait for events; receive once from every connection that is ready; then
//! parse, resolve and answer for all of them together ([`crate::batch`]); then send once to each.
//! Sockets are watched edge-triggered and registered once: no call changes a registration later.
//!
//! Invariants of this room:
//! 1. A connection that may have more to read is either in `ready` or waits for its output to
//!    drain; an edge is never lost.
//! 2. A connection whose output is not drained is not read from: its memory is bounded by one read,
//!    one unfinished request and one output.
//! 3. Time is sampled after the requests of a batch were received.

use std::io;
use std::time::{Duration, Instant};

use amalgam_index::{Store, Worker as _};
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::batch::{Batch, Seat, Turn};
use crate::connection::{Bounds, Connection, Input, OWN_BUFFER_BYTES, READ_BYTES, Received};
use crate::connections::Token;
use crate::counters::{Counters, Counts};
use crate::datagrams::Datagrams;
use crate::desk::{BELL, EVENTS, Held, Watch};
use crate::hot_keys::Sampler;
use crate::latency::Stopwatch;
use crate::observer::Observer;
use crate::roster::State;
use crate::server::Shared;
use crate::watch::{Ending, Events};

/// Received for all connections of one batch: requests and answers of a batch should stay in the
/// core's own cache between being written and being sent.
const BATCH_BYTES: usize = 128 << 10;

/// Answer buffers kept for reuse, and the largest of them.
const SPARE_BUFFERS: usize = 256;
const SPARE_BUFFER_BYTES: usize = 256 << 10;

/// The worker looks at its clock at least so often.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// After so many turns a worker lets others have its core, if there are several workers. Where more
/// threads are busy than there are cores, whoever waits would do so until a time slice ends, which
/// is milliseconds.
const TURNS_PER_YIELD: u32 = 4;

/// How long a stopping worker tries to send what it owes.
const FAREWELL: Duration = Duration::from_secs(2);

const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// Events of datagram sockets: this and the numbers after it. No token is as large.
const DATAGRAM_SOCKETS: u64 = u64::MAX - (1 << 20);

/// See the head of this module.
pub struct Worker<'s, I: Store + 's> {
    shared: &'s Shared<I>,
    number: usize,
    index: I::Worker<'s>,
    watch: Watch,
    datagrams: Vec<Datagrams>,
    scratch: Vec<u8>,
    batch: Batch,
    inputs: Vec<(Token, Input)>,
    seats: Vec<Seat>,
    spare: Vec<Vec<u8>>,
    counts: Counts,
    stopwatch: Stopwatch,
    sampler: Sampler<'s>,
    seconds: u32,
    last_tick_seconds: u32,
}

impl<'s, I: Store> Worker<'s, I> {
    /// Prepares a worker on the calling thread, which then [`Worker::run`]s it.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new(shared: &'s Shared<I>, number: usize) -> io::Result<Self> {
        let epoll = &shared.desks[number].epoll;
        let seconds = shared.clock.seconds();
        let mut datagrams = Vec::new();
        for (place, socket) in shared.datagram_sockets.iter().enumerate() {
            let socket = Datagrams::new(socket.try_clone()?);
            let data = EventData::new_u64(DATAGRAM_SOCKETS + place as u64);
            // One of the workers that share the socket is woken, not all.
            epoll::add(epoll, socket.socket(), data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
            datagrams.push(socket);
        }
        Ok(Self {
            shared,
            number,
            index: shared.index.worker(),
            watch: Watch::new(number),
            datagrams,
            scratch: vec![0; BATCH_BYTES],
            batch: Batch::default(),
            inputs: Vec::new(),
            seats: Vec::new(),
            spare: Vec::new(),
            counts: Counts::default(),
            stopwatch: Stopwatch::default(),
            sampler: shared.hot_keys.sampler(number),
            seconds,
            last_tick_seconds: seconds,
        })
    }

    /// Serves until the server stops.
    ///
    /// # Errors
    ///
    /// If waiting for events fails, which no client can bring about.
    pub fn run(&mut self) -> io::Result<()> {
        let desks = &self.shared.desks;
        let desk = &desks[self.number];
        let mut events = Vec::with_capacity(EVENTS);
        let mut has_more = false;
        let mut turns = 0_u32;
        while !self.shared.is_stopping() {
            desk.wait(&mut events, if has_more { Duration::ZERO } else { LONGEST_WAIT })?;
            let lap = self.stopwatch.start(self.counters());
            let mut held = desk.hold();
            self.serve(&mut held, &events);
            self.tick(&mut held);
            has_more = !held.ready.is_empty();
            drop(held);
            if let Some(lap) = lap {
                lap.end(self.counters(), &self.shared.latencies[self.number]);
            }
            if let Some(mut held) = self.watch.look(desks, &mut events) {
                self.serve(&mut held, &events);
                if !held.ready.is_empty() {
                    held.desk.ring();
                }
            }
            self.index.quiesce();
            turns = turns.wrapping_add(1);
            if desks.len() > 1 && turns.is_multiple_of(TURNS_PER_YIELD) {
                std::thread::yield_now();
            }
        }
        self.farewell(&mut desk.hold(), &mut events);
        Ok(())
    }

    fn counters(&self) -> &'s Counters {
        self.shared.counters.of_worker(self.number)
    }

    /// Takes up what events say, and serves those that are ready.
    fn serve(&mut self, held: &mut Held<'_>, events: &[Event]) {
        for event in events {
            match event.data.u64() {
                BELL => self.take_arrivals(held),
                socket @ DATAGRAM_SOCKETS.. => {
                    self.serve_datagrams((socket - DATAGRAM_SOCKETS) as usize);
                }
                token => self.note(held, Token::from_bits(token), event.flags),
            }
        }
        self.serve_ready(held);
    }

    fn take_arrivals(&mut self, held: &mut Held<'_>) {
        let desk = held.desk;
        for (channel, badge) in desk.arrivals() {
            self.shared.log.opened(&badge);
            let connection = Connection::new(channel, badge);
            let token = held.connections.insert(connection);
            self.counters().connections_opened.add(1);
            let Some(connection) = held.connections.get(token) else { continue };
            let data = EventData::new_u64(token.to_bits());
            if epoll::add(&desk.epoll, &connection.channel.socket, data, WATCHED).is_err() {
                self.close(held, token);
            }
        }
    }

    /// Takes up what the system says of a connection.
    fn note(&mut self, held: &mut Held<'_>, token: Token, flags: EventFlags) {
        let Some(connection) = held.connections.get(token) else { return };
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            connection.is_hung_up = true;
            connection.is_readable = true;
        }
        if flags.contains(EventFlags::IN) {
            connection.is_readable = true;
        }
        // A full socket that has room again is noticed here too: there is output to send.
        let is_useful = connection.is_readable || connection.owes();
        if is_useful && !connection.is_queued {
            connection.is_queued = true;
            held.ready.push(token);
        }
    }

    fn serve_ready(&mut self, held: &mut Held<'_>) {
        let ready = std::mem::take(&mut held.ready);
        let mut rest = &ready[..];
        while !rest.is_empty() {
            rest = self.serve_some(held, rest);
        }
        // What was put back meanwhile goes behind; the old buffer is kept.
        let mut buffer = ready;
        buffer.clear();
        buffer.append(&mut held.ready);
        held.ready = buffer;
    }

    /// Serves as many connections as fit one batch; returns the others.
    fn serve_some<'r>(&mut self, held: &mut Held<'_>, ready: &'r [Token]) -> &'r [Token] {
        let mut filled = 0;
        let mut taken = 0;
        while taken < ready.len() && BATCH_BYTES - filled >= READ_BYTES + OWN_BUFFER_BYTES {
            self.receive(held, ready[taken], &mut filled);
            taken += 1;
        }
        if !self.seats.is_empty() {
            self.answer();
            self.dismiss_all(held);
        }
        &ready[taken..]
    }

    /// Receives once from a connection, if it may say something, and gives it a seat.
    fn receive(&mut self, held: &mut Held<'_>, token: Token, filled: &mut usize) {
        let Some(connection) = held.connections.get(token) else { return };
        connection.is_queued = false;
        if connection.owes() && !self.send(held, token) {
            return;
        }
        let Some(connection) = held.connections.get(token) else { return };
        let counters = self.counters();
        let mut bytes_read = 0;
        let bounds = Bounds {
            buffers: &self.shared.buffers,
            longest_line_bytes: self.shared.limits.max_get_line_bytes,
        };
        let received = connection.receive(&mut self.scratch, filled, &bounds, &mut bytes_read);
        counters.bytes_read.add(bytes_read);
        match received {
            Received::End => self.close(held, token),
            Received::Nothing => self.rest(held, token),
            Received::Input(input) => {
                connection.badge.note_activity(self.seconds);
                let mut seat = Seat::new(
                    std::mem::take(&mut connection.conversation),
                    std::mem::take(&mut connection.output),
                );
                seat.number = connection.badge.number;
                if seat.output.bytes.capacity() == 0 {
                    seat.output.bytes = self.spare.pop().unwrap_or_default();
                }
                self.inputs.push((token, input));
                self.seats.push(seat);
            }
        }
    }

    /// Serves a batch of datagrams.
    fn serve_datagrams(&mut self, place: usize) {
        let counters = self.counters();
        let Some(datagrams) = self.datagrams.get_mut(place) else { return };
        counters.bytes_read.add(datagrams.receive(&mut self.seats));
        if self.seats.is_empty() {
            return;
        }
        let mut turn = Turn {
            shared: self.shared,
            worker: self.number,
            index: &mut self.index,
            counts: &mut self.counts,
            sampler: &mut self.sampler,
            now: self.shared.clock.begin_turn(self.number),
            observer: Observer::of(self.shared),
        };
        self.batch.run(&mut turn, datagrams.inputs(), &mut self.seats);
        self.shared.clock.end_turn(self.number);
        counters.publish(&mut self.counts);
        counters.bytes_written.add(datagrams.send(&mut self.seats));
    }

    fn answer(&mut self) {
        let now = self.shared.clock.begin_turn(self.number);
        self.seconds = now.seconds;
        let (inputs, scratch) = (&self.inputs, &self.scratch);
        let inputs = inputs.iter().map(|(_, input)| input.bytes(scratch));
        let mut turn = Turn {
            shared: self.shared,
            worker: self.number,
            index: &mut self.index,
            counts: &mut self.counts,
            sampler: &mut self.sampler,
            now,
            observer: Observer::of(self.shared),
        };
        self.batch.run(&mut turn, inputs, &mut self.seats);
        self.shared.clock.end_turn(self.number);
        self.counters().publish(&mut self.counts);
    }

    fn dismiss_all(&mut self, held: &mut Held<'_>) {
        let mut inputs = std::mem::take(&mut self.inputs);
        let mut seats = std::mem::take(&mut self.seats);
        for ((token, input), seat) in inputs.drain(..).zip(seats.drain(..)) {
            let Some(connection) = held.connections.get(token) else { continue };
            connection.input = input.rest(seat.consumed, &self.scratch);
            connection.badge.set_state(match seat.conversation.wanted_bytes() {
                0 => State::Waits,
                _ => State::Receives,
            });
            connection.conversation = seat.conversation;
            connection.output = seat.output;
            connection.is_closing |= seat.is_closing;
            if seat.is_broken {
                connection.ending = Ending::Error;
            }
            if let Some(events) = seat.watches {
                self.hand_to_log(held, token, events);
                continue;
            }
            self.send(held, token);
            self.rest(held, token);
        }
        (self.inputs, self.seats) = (inputs, seats);
    }

    /// Sends what can be sent. Whether the connection is open and owes nothing.
    fn send(&mut self, held: &mut Held<'_>, token: Token) -> bool {
        let Some(connection) = held.connections.get(token) else { return false };
        let before = connection.output.len();
        let result = connection.output.send(&mut connection.channel);
        let sent = before - connection.output.len();
        self.counters().bytes_written.add(sent as u64);
        match result {
            Ok(true) => {
                let buffer = connection.output.take_buffer();
                let is_closing = connection.is_closing;
                let is_kept = buffer.capacity() <= SPARE_BUFFER_BYTES;
                if is_kept && self.spare.len() < SPARE_BUFFERS && buffer.capacity() > 0 {
                    self.spare.push(buffer);
                }
                if is_closing {
                    self.close(held, token);
                }
                !is_closing
            }
            Ok(false) => false,
            Err(_) => {
                self.close(held, token);
                false
            }
        }
    }

    /// A connection was served: settles what its buffers cost, and queues it if it can go on.
    fn rest(&mut self, held: &mut Held<'_>, token: Token) {
        let Some(connection) = held.connections.get(token) else { return };
        let bytes = connection.buffer_bytes();
        if bytes != connection.charged_bytes {
            self.shared.buffers.settle(connection.charged_bytes, bytes);
            connection.charged_bytes = bytes;
        }
        let can_go_on = connection.is_readable || connection.conversation.has_backlog();
        if can_go_on && !connection.owes() && !connection.is_queued {
            connection.is_queued = true;
            held.ready.push(token);
        }
    }

    fn close(&mut self, held: &mut Held<'_>, token: Token) {
        let Some(connection) = held.connections.remove(token) else { return };
        self.shared.buffers.settle(connection.charged_bytes, 0);
        self.shared.roster.remove(&connection.badge);
        self.shared.log.closed(&connection.badge, connection.ending);
        self.counters().connections_closed.add(1);
        // Dropping the socket closes it and takes it out of the watched set.
    }

    /// Gives up a connection that only listens from now on. It counts as closed here.
    fn hand_to_log(&mut self, held: &mut Held<'_>, token: Token, events: Events) {
        let Some(connection) = held.connections.remove(token) else { return };
        self.shared.buffers.settle(connection.charged_bytes, 0);
        self.counters().connections_closed.add(1);
        // Fails only for a socket that is not watched, and this one is.
        let _ = epoll::delete(&held.desk.epoll, &connection.channel.socket);
        let Connection { channel, badge, output, .. } = *connection;
        self.shared.log.join(channel, badge, events, output);
    }

    /// Once a second: closes connections that have been silent for too long.
    fn tick(&mut self, held: &mut Held<'_>) {
        let seconds = self.shared.clock.seconds();
        if seconds == self.last_tick_seconds {
            return;
        }
        (self.seconds, self.last_tick_seconds) = (seconds, seconds);
        self.spare.truncate(SPARE_BUFFERS / 8);
        let timeout = self.shared.settings.idle_timeout_seconds;
        if timeout == 0 {
            return;
        }
        for place in 0..held.connections.places() {
            let Some((token, connection)) = held.connections.at(place) else { continue };
            if seconds.saturating_sub(connection.badge.active_seconds()) > timeout {
                self.counters().idle_kicks.add(1);
                connection.ending = Ending::IdleTimeout;
                self.close(held, token);
            }
        }
    }

    /// Answers what has arrived, sends what is owed, in bounded time, and closes everything.
    fn farewell(&mut self, held: &mut Held<'_>, events: &mut Vec<Event>) {
        let end = Instant::now() + FAREWELL;
        let _ = held.desk.fetch(events, Duration::ZERO);
        self.serve(held, events);
        loop {
            let mut owes = false;
            for place in 0..held.connections.places() {
                if let Some((token, connection)) = held.connections.at(place) {
                    owes |= connection.owes() && !self.send(held, token);
                }
            }
            if !owes || Instant::now() > end {
                break;
            }
            let _ = held.desk.fetch(events, Duration::from_millis(20));
        }
        for place in 0..held.connections.places() {
            if let Some((token, connection)) = held.connections.at(place) {
                connection.ending = Ending::Shutdown;
                self.close(held, token);
            }
        }
    }
}
