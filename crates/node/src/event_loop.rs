//! The event loop of a node: one thread that reads, decides and sends.
//!
//! [`Node`] makes all decisions, from packets, views and ticks; the loop delivers those. In a turn
//! it waits for events, reads once from each readable connection, passes the packets to the node,
//! and writes once to each connection with something to send.
//!
//! Invariants of this module:
//! 1. Nothing blocks except the wait for events: another thread reads and writes the log of
//!    backups, and wakes the loop when it has.
//! 2. The bytes that wait to be sent are bounded. Beyond the bound, packets to nodes are dropped,
//!    which their protocols repair, and clients are not read from.
//! 3. All clients together occupy at most [`CLIENT_BYTES_MAX`] for frames that have not arrived
//!    whole and answers that they have not taken; the one with most is closed if they need more.
//!    Connections of nodes that are no members count as clients'; a member has opened one to this
//!    node at a time.
//! 4. The node is told the deadline of the lease before it sees the packets of a turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use amalgam_cluster::chunks::{Action, ChunkStore, Reply, Request};
use amalgam_cluster::coordinator::Proposal;
use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::node::{Node, NodeCommand};
use amalgam_cluster::overlay::{self, Message, Peer, position};
use amalgam_cluster::replication::ReplicaStore;
use amalgam_cluster::wire::{Control, NodeMemory, PARTIAL_REPLY, Packet, WIRE_VERSION};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::admission::Admission;
use crate::cached_count::CachedCount;
use crate::clock::boot_ms;
use crate::connection::{Connection, READ_BYTES, Role, dial_node};
use crate::handshake::{Handshake, HandshakeError, Identity};
use crate::lease_keeper::FINAL_TARGET;
use crate::membership::Snapshot;
use crate::node_state::NodeState;
use crate::own_requests::{OwnReplies, OwnRequest};
use crate::round_trips::RoundTrips;

mod about_node;
mod accepting;
mod client_share;
mod reply_target;

use client_share::ClientShare;
use reply_target::{ReplyTarget, refuse};

/// How often the node looks at its clock, in milliseconds.
const TICK_MS: u64 = 10;
/// A turn of at least this many milliseconds is logged: other nodes waited for this one, and the
/// machine is too busy.
const SLOW_MS: u64 = 500;
/// Pause before a node is dialed again that could not be reached, in milliseconds.
const REDIAL_MS: u64 = 100;
/// The same pause after either side refused the other, in milliseconds.
const REFUSED_MS: u64 = 1_000;
/// Interval of checks for changed certificates, and of reports, in milliseconds.
const REFRESH_MS: u64 = 1_000;
/// Lookups of clients that are forwarded at a time, and the time after which one is forgotten.
const RELAYED_MAX: usize = 1 << 16;
const RELAYED_MS: u64 = 5_000;
/// Forwarded lookups have tokens from here on; the node's own are smaller.
const RELAY_FIRST: u64 = 1 << 63;
const EVENTS: usize = 256;
/// Bytes that the buffers of all clients may occupy.
pub(crate) const CLIENT_BYTES_MAX: usize = 128 << 20;
/// The events of a connection that is read from.
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Bound on the rounds of packets from the node to itself in one turn.
const LOCAL_ROUNDS_MAX: usize = 64;

/// Event data of the listener and the waker; connections count from [`FIRST_CONNECTION`].
const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// What a node owns (partitions, ids, spans), and which metadata it keeps for others (ranges,
/// creators).
type Counts = ((u64, u64, u64), (u64, u64));

/// A lookup that is forwarded for a client: whose it is, under which token, and since when.
#[derive(Clone, Copy, Debug)]
struct Relay {
    connection: u64,
    token: u64,
    at_ms: u64,
}

/// Delivers packets, views and ticks to a node, and sends what it answers. Owned by one thread.
#[derive(Debug)]
pub struct EventLoop<S> {
    state: Arc<NodeState>,
    node: Node<S>,
    me: Peer,
    identity: Identity,
    proposals: Sender<Proposal>,
    snapshot: Arc<Snapshot>,
    epoll: OwnedFd,
    listener: TcpListener,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// Connections to nodes that this one dialed.
    dialed: BTreeMap<Peer, u64>,
    /// When each node was last dialed, in [`boot_ms`].
    dialed_ms: BTreeMap<Peer, u64>,
    round_trips: RoundTrips,
    /// Connections whose handshake is not complete.
    unauthenticated: Admission,
    /// How many of them may still be read from in this turn.
    handshakes_left: usize,
    client_share: ClientShare,
    /// When the listener is polled again, in [`boot_ms`]; None while it is polled.
    accepts_from_ms: Option<u64>,
    /// From when on a shortage of descriptors is logged again, in [`boot_ms`].
    next_shortage_ms: u64,
    /// Packets from the node to itself.
    local: VecDeque<Packet>,
    relayed: BTreeMap<u64, Relay>,
    next_relay: u64,
    /// Requests that wait for backups: where their replies go, and for how many operations.
    waiting: BTreeMap<u64, (ReplyTarget, usize)>,
    next_waiting: u64,
    /// Replies to workers of this process, until the end of the turn.
    own_replies: Vec<(Arc<OwnReplies>, Reply)>,
    /// Connections with something to send.
    to_send: BTreeSet<u64>,
    /// Bytes that the buffers of clients occupy.
    client_bytes: usize,
    resident_memory: amalgam_server::ResidentMemory,
    next_tick_ms: u64,
    next_refresh_ms: u64,
    counts: CachedCount<Counts>,
    /// Whether the failure of the log of backups was logged.
    has_reported_failure: bool,
    buffer: Vec<u8>,
    /// The plaintext of `buffer`, for a secured connection.
    plain: Vec<u8>,
}

impl<S: ChunkStore> EventLoop<S> {
    /// An event loop for a node; it registers the listener and the waker.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new(
        state: Arc<NodeState>,
        node: Node<S>,
        me: Peer,
        identity: Identity,
        listener: TcpListener,
        proposals: Sender<Proposal>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        state.set_served(Arc::clone(node.chunks().served()));
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, state.waker(), EventData::new_u64(WAKER), EventFlags::IN)?;
        Ok(Self {
            state,
            node,
            me,
            identity,
            proposals,
            snapshot: Arc::default(),
            epoll,
            listener,
            connections: BTreeMap::new(),
            next_connection: FIRST_CONNECTION,
            dialed: BTreeMap::new(),
            dialed_ms: BTreeMap::new(),
            round_trips: RoundTrips::default(),
            unauthenticated: Admission::default(),
            handshakes_left: 0,
            client_share: ClientShare::default(),
            accepts_from_ms: None,
            next_shortage_ms: 0,
            local: VecDeque::new(),
            relayed: BTreeMap::new(),
            next_relay: RELAY_FIRST,
            waiting: BTreeMap::new(),
            next_waiting: 0,
            own_replies: Vec::new(),
            to_send: BTreeSet::new(),
            client_bytes: 0,
            resident_memory: Default::default(),
            next_tick_ms: 0,
            next_refresh_ms: 0,
            counts: CachedCount::default(),
            has_reported_failure: false,
            buffer: vec![0; READ_BYTES],
            plain: Vec::new(),
        })
    }

    /// Serves until the node stops.
    ///
    /// # Errors
    ///
    /// If the system cannot wait for events, which no peer can cause.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !self.state.is_stopping() {
            self.turn(&mut events)?;
        }
        Ok(())
    }

    /// One turn; `events` is a buffer.
    fn turn(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let wait_ms = self.wait_ms(boot_ms());
        let timeout =
            rustix::time::Timespec { tv_sec: 0, tv_nsec: (wait_ms * 1_000_000).cast_signed() };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let woken_ms = boot_ms();
        self.state.beat(woken_ms);
        self.node.set_deadline(self.state.deadline_ms());
        self.handshakes_left = accepting::HANDSHAKES_A_TURN;
        self.client_share.begin_turn();
        self.go_on_with_clients();
        for event in &*events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKER => {
                    let _ = rustix::io::read(self.state.waker(), &mut [0; 8]);
                    if self.state.take_tick_due() {
                        self.next_tick_ms = 0;
                    }
                }
                connection => self.on_event(connection, event.flags),
            }
        }
        for request in self.state.take_requests() {
            self.on_own_request(request);
        }
        let now_ms = boot_ms();
        if now_ms >= self.next_tick_ms {
            self.next_tick_ms = now_ms + TICK_MS;
            self.tick(now_ms);
        }
        self.finish_turn();
        let ms = boot_ms().saturating_sub(woken_ms);
        if ms >= SLOW_MS {
            log::warn!(ms; "a slow turn of the event loop: the machine is busy");
        }
        Ok(())
    }

    /// How long to wait for events, in milliseconds.
    fn wait_ms(&self, now_ms: u64) -> u64 {
        match self.may_go_on_with_clients() {
            true => 0,
            false => u64::min(TICK_MS, self.next_tick_ms.saturating_sub(now_ms).max(1)),
        }
    }

    fn tick(&mut self, now_ms: u64) {
        let mut out = Vec::new();
        let snapshot = self.state.snapshot();
        if !Arc::ptr_eq(&snapshot, &self.snapshot) {
            self.node.set_racks(snapshot.racks.clone());
            self.node.on_view(&snapshot.view, &mut out);
            self.dialed_ms.retain(|peer, _| snapshot.view.has(*peer));
            self.round_trips.retain(|peer| snapshot.view.has(peer));
            self.snapshot = snapshot;
        }
        // At each tick, since flushes may have to wait for a sweep, and for the writes of other
        // threads: they write items of the time at which they began.
        let (clock, flushes) = (&self.state.clock, self.snapshot.flushes);
        if clock.flushes() < flushes {
            self.node.between_writes(|| clock.flush_up_to(flushes));
        }
        if self.state.is_leaving() {
            self.node.leave();
            if self.node.has_left() {
                self.state.set_has_left();
            }
        }
        self.node.on_tick(now_ms, &mut out);
        self.execute(out);
        let late = self.unauthenticated.late(now_ms);
        late.into_iter().for_each(|connection| self.close(connection));
        if self.accepts_from_ms.is_some_and(|from_ms| now_ms >= from_ms) {
            self.resume_accepting();
        }
        self.relayed.retain(|_, relay| now_ms < relay.at_ms + RELAYED_MS);
        if !self.has_reported_failure
            && let Some(error) = self.node.replica_store().and_then(ReplicaStore::failure)
        {
            self.has_reported_failure = true;
            log::error!(
                error:%;
                "the backup log failed: restart the node to have it keep backups again"
            );
        }
        if now_ms >= self.next_refresh_ms {
            self.next_refresh_ms = now_ms + REFRESH_MS;
            self.waiting.retain(|_, (to, _)| !to.is_late(now_ms));
            self.identity.refresh();
            let NodeMemory { items, chunks, .. } = self.state.memory();
            self.resident_memory.watch((items.used + chunks.used) as usize, Instant::now());
            let report = self.report();
            self.state.set_report(report);
        }
    }

    /// Delivers the packets from the node to itself, has it write its log once for everything that
    /// arrived, and sends what waits on connections.
    fn finish_turn(&mut self) {
        for _ in 0..LOCAL_ROUNDS_MAX {
            while let Some(packet) = self.local.pop_front() {
                self.on_node_packet(self.me, packet);
            }
            let mut out = Vec::new();
            self.node.flush(boot_ms(), &mut out);
            self.execute(out);
            // The node may have sent itself something once the log was written.
            if self.local.is_empty() {
                break;
            }
        }
        for number in std::mem::take(&mut self.to_send) {
            self.send(number);
        }
        for (replies, reply) in self.own_replies.drain(..) {
            replies.push(reply);
        }
    }

    /// Polls a connection; `from` is where it was accepted from, None if this node dialed.
    fn insert(
        &mut self,
        connection: Connection,
        flags: EventFlags,
        from: Option<IpAddr>,
    ) -> Option<u64> {
        let number = self.next_connection;
        self.next_connection += 1;
        let data = EventData::new_u64(number);
        if let Err(error) = epoll::add(&self.epoll, &connection.socket, data, flags) {
            log::warn!(error:%; "a connection was dropped: it cannot be polled");
            return None;
        }
        self.connections.insert(number, connection);
        self.to_send.insert(number);
        if let Some(oldest) = self.unauthenticated.insert(number, from, boot_ms()) {
            self.close(oldest);
        }
        Some(number)
    }

    fn close(&mut self, number: u64) {
        self.unauthenticated.remove(number);
        self.client_share.remove(number);
        self.waiting
            .retain(|_, (to, _)| !matches!(to, ReplyTarget::Connection(of, _) if *of == number));
        if let Some(connection) = self.connections.remove(&number) {
            self.interrupt_round_trip(&connection);
            self.client_bytes -= connection.charged_bytes;
            if let Some(peer) = connection.dialed {
                self.dialed.remove(&peer);
            }
        }
    }

    /// Charges what a connection occupies now, and closes clients while they occupy too much.
    fn charge(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let bytes = connection.client_bytes(|peer| self.snapshot.view.has(peer));
        self.client_bytes = self.client_bytes + bytes - connection.charged_bytes;
        connection.charged_bytes = bytes;
        while self.client_bytes > CLIENT_BYTES_MAX {
            let connections = self.connections.iter();
            let most = connections.max_by_key(|(_, connection)| connection.charged_bytes);
            let Some((number, connection)) = most else { return };
            let (number, bytes) = (*number, connection.charged_bytes);
            let from = connection.socket.peer_addr().ok();
            log::warn!(
                from:?, bytes;
                "closed a client: the buffers of all clients are full, and it has the largest"
            );
            self.close(number);
        }
    }

    fn on_event(&mut self, number: u64, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.is_open = true;
            }
            self.to_send.insert(number);
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP)
            && let Some(connection) = self.connections.get_mut(&number)
        {
            connection.is_hung_up = true;
        }
        // What is not read now is reported again.
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
            && self.may_read(number)
        {
            self.read(number);
        }
    }

    fn read(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = rustix::io::read(&connection.socket, &mut buffer[..]);
        match result {
            Ok(0) => self.close(number),
            Ok(count) => {
                connection.heard_ms = boot_ms();
                let result = match connection.is_secured() {
                    true => self.on_encrypted_bytes(number, &buffer[..count]),
                    false => self.on_bytes(number, &buffer[..count]),
                };
                match result {
                    Ok(()) => self.charge(number),
                    Err(error) => self.reject(number, &error),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.close(number),
        }
        self.buffer = buffer;
    }

    /// Closes a connection whose handshake failed or whose peer broke the protocol.
    fn reject(&mut self, number: u64, error: &str) {
        let Some(connection) = self.connections.get(&number) else { return };
        let from = connection.socket.peer_addr().ok();
        log::warn!(from:?, error; "closed a connection");
        if let (Role::Unauthenticated(_), Some(peer)) = (&connection.role, connection.dialed) {
            self.dialed_ms.insert(peer, boot_ms() + REFUSED_MS - REDIAL_MS);
        }
        // The alert that says why is sent first.
        self.send(number);
        self.close(number);
    }

    /// Decrypts bytes that arrived on a secured connection, and handles them.
    fn on_encrypted_bytes(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let opened = connection.decrypt(bytes, &mut plain).map_err(|error| error.to_string());
        // TLS may have to answer.
        self.to_send.insert(number);
        let result = opened.and_then(|()| self.on_bytes(number, &plain));
        self.plain = plain;
        result
    }

    /// Handles plaintext of a connection: the handshake first, frames once it is complete.
    fn on_bytes(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let (mut rest, mut accepted) = (Vec::new(), None);
        let bytes = match &mut connection.role {
            Role::Unauthenticated(handshake) => {
                let mut out = Vec::new();
                let fed = handshake.feed(bytes, &mut out);
                let is_operator = handshake.is_operator();
                connection.push_handshake(&out);
                self.to_send.insert(number);
                let known = fed.map_err(|error: HandshakeError| error.to_string())?;
                let Some((hello, after)) = known else { return Ok(()) };
                rest.extend_from_slice(&after);
                let wire_version = hello.version.min(WIRE_VERSION);
                match (connection.dialed, hello.from) {
                    (Some(dialed), from) if from != Some(dialed) => {
                        return Err("another node listens at this address now".to_owned());
                    }
                    (_, Some(peer)) => {
                        connection.check_node().map_err(|error| error.to_string())?;
                        connection.authenticate(Role::Peer(peer), wire_version);
                        accepted = Some(peer).filter(|_| connection.dialed.is_none());
                    }
                    (_, None) => {
                        connection.authenticate(Role::Client { is_operator }, wire_version);
                    }
                }
                self.unauthenticated.remove(number);
                &rest[..]
            }
            Role::Peer(_) | Role::Client { .. } => bytes,
        };
        connection.frames.feed(bytes);
        if let Some(peer) = accepted {
            self.close_earlier(number, peer);
        }
        self.on_frames(number)
    }

    /// Closes the connection that a node had opened before this one: it has given that up.
    fn close_earlier(&mut self, number: u64, peer: Peer) {
        let is_earlier = |(other, connection): &(&u64, &Connection)| {
            let is_its = matches!(connection.role, Role::Peer(of) if of == peer);
            is_its && connection.dialed.is_none() && **other != number
        };
        let earlier = self.connections.iter().find(is_earlier).map(|(other, _)| *other);
        earlier.into_iter().for_each(|other| self.close(other));
    }

    /// Handles a packet of a node, perhaps this one.
    fn on_node_packet(&mut self, from: Peer, packet: Packet) {
        if let Packet::Overlay(Message::Found { token, id, epoch, found, is_certain }) = packet
            && token >= RELAY_FIRST
        {
            if let Some(Relay { connection, token, .. }) = self.relayed.remove(&token) {
                let message = Message::Found { token, id, epoch, found, is_certain };
                self.push(connection, 0, &Packet::Overlay(message));
            }
            return;
        }
        if matches!(packet, Packet::Overlay(Message::Alive { .. })) {
            self.round_trips.answer(from, Instant::now());
        }
        let mut out = Vec::new();
        self.node.on_packet(from, packet, &mut boot_ms, &mut out);
        self.execute(out);
    }

    /// Handles a packet of a client.
    fn on_client_packet(&mut self, connection: u64, number: u64, packet: Packet) {
        match packet {
            Packet::Timed(until_ms, request) if boot_ms() >= until_ms => {
                self.push(connection, number, &Packet::Reply(refuse(&request)));
            }
            Packet::Timed(_, mut request) | Packet::Request(mut request) => {
                if self.connections.get(&connection).is_some_and(|one| one.is_hung_up) {
                    // The client has given up the rest.
                    request.operations.retain(|one| matches!(one.action, Action::Close));
                }
                self.on_request(ReplyTarget::Connection(connection, number), &request);
            }
            Packet::Overlay(Message::LookUp { token, id, hops, .. }) => {
                self.relay(connection, token, (id, hops));
            }
            Packet::Control(
                question @ (Control::GetStatus
                | Control::GetClock
                | Control::GetMemory
                | Control::LocateItem(_)
                | Control::GetOwnership(_)),
            ) => {
                if let Some(answer) = self.about_node(&question) {
                    self.push(connection, number, &Packet::Control(answer));
                }
            }
            Packet::Control(Control::Migrate { .. } | Control::Drain)
                if !self.may_operate(connection) =>
            {
                let from = self.connections.get(&connection);
                let from = from.and_then(|from| from.socket.peer_addr().ok());
                log::warn!(
                    from:?;
                    "refused to drain the node or to move chunks: the client is not an operator"
                );
                self.push(connection, number, &Packet::Control(Control::Forbidden));
            }
            Packet::Control(Control::Migrate { ids, target }) => {
                let incarnation = self.snapshot.view.incarnation(target);
                let mut out = Vec::new();
                let does = incarnation.is_some_and(|incarnation| {
                    let target = Peer { node: target, incarnation };
                    self.node.migrate(ids, target, boot_ms(), &mut out)
                });
                self.execute(out);
                self.push(connection, number, &Packet::Control(Control::Migrating(does)));
            }
            Packet::Control(Control::Drain) => {
                if !self.state.is_leaving() {
                    log::info!("draining: the node hands everything it has to the other nodes");
                    self.state.start_leaving();
                }
                let is_drained = Control::Drained(self.state.has_left());
                self.push(connection, number, &Packet::Control(is_drained));
            }
            // Clients do not send these.
            Packet::Overlay(_) | Packet::Move(_) | Packet::Replication(_) | Packet::Load(_) => {}
            Packet::Reply(_) | Packet::Control(_) => {}
        }
    }

    fn on_own_request(&mut self, OwnRequest { request, until_ms, replies }: OwnRequest) {
        if until_ms.is_some_and(|until_ms| boot_ms() >= until_ms) {
            return self.own_replies.push((replies, refuse(&request)));
        }
        self.on_request(ReplyTarget::Worker(replies, until_ms), &request);
    }

    /// Executes a request; its reply may have to wait for backups.
    fn on_request(&mut self, from: ReplyTarget, request: &Request) {
        let waiting = self.next_waiting;
        let reply = self.node.execute(waiting, request, &mut boot_ms);
        if let ReplyTarget::Connection(..) = from {
            self.client_share.charge_copy(self.node.copied_bytes());
        }
        match reply {
            Some(reply) => self.reply(&from, reply, true),
            None => {
                self.waiting.insert(waiting, (from, request.operations.len()));
                self.next_waiting += 1;
            }
        }
    }

    /// Sends a reply, or a part of one.
    fn reply(&mut self, to: &ReplyTarget, reply: Reply, is_last: bool) {
        match to {
            ReplyTarget::Connection(connection, number) => {
                let number = if is_last { *number } else { PARTIAL_REPLY };
                self.push(*connection, number, &Packet::Reply(reply));
            }
            ReplyTarget::Worker(replies, _) => {
                self.own_replies.push((Arc::clone(replies), reply));
            }
        }
    }

    /// Forwards a client's lookup to a super peer. If it is dropped, the client asks again.
    fn relay(&mut self, connection: u64, token: u64, (id, hops): (ChunkId, u8)) {
        let group = self.snapshot.view.groups.get(position(id.creator()));
        let to = group.and_then(|group| group.answerer(self.me, hops > 0, self.next_relay));
        let Some(to) = to else { return };
        if self.relayed.len() >= RELAYED_MAX {
            // The oldest makes room: nobody answers it, or its client has asked again.
            self.relayed.pop_first();
        }
        let number = self.next_relay;
        self.next_relay += 1;
        self.relayed.insert(number, Relay { connection, token, at_ms: boot_ms() });
        let message = Message::LookUp { origin: self.me, token: number, id, hops };
        self.execute(vec![NodeCommand::Send(to, Packet::Overlay(message))]);
    }

    fn execute(&mut self, commands: Vec<NodeCommand>) {
        for command in commands {
            match command {
                NodeCommand::Send(to, packet) if to == self.me => self.local.push_back(packet),
                NodeCommand::Send(to, packet) => {
                    if let Some(connection) = self.route(to) {
                        self.begin_round_trip(to, connection, &packet);
                        self.push(connection, 0, &packet);
                    }
                }
                NodeCommand::Propose(proposal) => {
                    // The lease keeper has ended only if the node is stopping.
                    let _ = self.proposals.send(proposal);
                }
                NodeCommand::Log(overlay::OverlayEvent::ChunksLost(owner, ids)) => {
                    log::error!(
                        owner:?, chunks = ids.len(), first:? = ids.first();
                        "chunks are lost: no replica of them can be read"
                    );
                }
                NodeCommand::Log(event @ overlay::OverlayEvent::ReplicaLost(..)) => {
                    log::error!(event:?; "data is lost: no replica is left");
                }
                NodeCommand::Log(overlay::OverlayEvent::ChunksUnreadable(owner, ids)) => {
                    log::error!(
                        owner:?, chunks = ids.len(), first:? = ids.first();
                        "the backup log is damaged: these chunks are fetched from other replicas"
                    );
                }
                NodeCommand::Log(overlay::OverlayEvent::MetadataLost(segment, true)) => {
                    log::warn!(
                        segment:?;
                        "metadata is lost with all nodes that kept it: this part of the cache \
                         begins empty"
                    );
                }
                NodeCommand::Log(overlay::OverlayEvent::MetadataLost(segment, false)) => {
                    log::error!(
                        segment:?;
                        "metadata is lost with all nodes that kept it, so its keys and chunks \
                         cannot be served; a cache goes on empty once no node owns any of them, a \
                         store is started anew under another name (--cluster)"
                    );
                }
                NodeCommand::Stop(error) => {
                    if !self.state.is_stopping() {
                        log::error!(
                            target: FINAL_TARGET, error:%;
                            "the node stops: it cannot keep metadata"
                        );
                    }
                    self.state.set_deadline_ms(0);
                    self.state.stop();
                }
                NodeCommand::Log(event) => log::trace!(event:?; "the overlay"),
                NodeCommand::Reply(waiting, reply) => {
                    if let Some((to, left)) = self.waiting.remove(&waiting) {
                        let left = left.saturating_sub(reply.len());
                        self.reply(&to, reply, left == 0);
                        if left > 0 {
                            self.waiting.insert(waiting, (to, left));
                        }
                    }
                }
                // The node's own client is not used.
                NodeCommand::Completed(..) => {}
            }
        }
    }

    /// The connection to a node, which is dialed if there is none. None while the node is unknown
    /// or must not be dialed again yet.
    fn route(&mut self, to: Peer) -> Option<u64> {
        if let Some(connection) = self.dialed.get(&to) {
            return Some(*connection);
        }
        let now_ms = boot_ms();
        let last_ms = self.dialed_ms.get(&to).copied().unwrap_or(0);
        if !self.snapshot.view.has(to) || now_ms < last_ms + REDIAL_MS {
            return None;
        }
        self.dialed_ms.insert(to, now_ms);
        let address = self.snapshot.addresses.get(&to.node)?;
        let socket = match address.parse().map_err(io::Error::other).and_then(dial_node) {
            Ok(socket) => socket,
            Err(error) => {
                log::warn!(address, error:%; "a node cannot be reached");
                return None;
            }
        };
        let mut out = Vec::new();
        let session = self.identity.session(true).ok()?;
        let handshake = Handshake::start(self.identity.clone(), true, &mut out).ok()?;
        let connection = Connection::new(socket, session, handshake, out, Some(to));
        let number = self.insert(connection, READABLE | EventFlags::OUT, None)?;
        self.dialed.insert(to, number);
        Some(number)
    }

    /// Queues a packet for a connection, or drops it if the connection is gone or backlogged.
    fn push(&mut self, id: u64, number: u64, packet: &Packet) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.push(number, packet) {
            Ok(()) => {
                self.to_send.insert(id);
                self.charge(id);
            }
            Err(error) => log::debug!(error:%; "dropped a packet"),
        }
    }

    /// Sends what the socket takes, and asks for an event when it takes more.
    fn send(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let was_waiting = !connection.is_open || connection.awaits_room;
        match connection.send() {
            Ok(is_all) => {
                let flags = match (is_all, connection.is_backlogged()) {
                    (true, _) => READABLE,
                    (false, false) => READABLE | EventFlags::OUT,
                    (false, true) => EventFlags::OUT,
                };
                connection.awaits_room = !is_all;
                connection.is_open |= is_all;
                if was_waiting || !is_all {
                    let data = EventData::new_u64(number);
                    // Fails only for a socket that is not registered, and this one is.
                    let _ = epoll::modify(&self.epoll, &connection.socket, data, flags);
                }
                self.charge(number);
            }
            Err(_) => self.close(number),
        }
    }
}
