//! The loop of a node: one thread that reads, decides and sends.
//!
//! Everything that a node decides is in [`Node`], which sees packets, views and ticks; this is what
//! brings them. A turn: wait for events, read once from each connection that has something, hand
//! the packets to the node, send once to each that is owed something.
//!
//! Invariants of this room:
//! 1. Nothing blocks but waiting for events, and the log of backups.
//! 2. What waits to be sent is bounded: beyond it packets to nodes are dropped, which their
//!    protocols mend, and clients are not read from.
//! 3. The deadline of the lease is handed to the node before the packets of a turn are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use amalgam_cluster::chunks::ChunkStore;
use amalgam_cluster::coordinator::Proposal;
use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::node::{Node, NodeCommand};
use amalgam_cluster::overlay::{self, Message, Peer, position};
use amalgam_cluster::replication::ReplicaStore;
use amalgam_cluster::wire::{Control, NodeStatus, OwnedRange, Packet, WIRE_VERSION};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::clock::boot_ms;
use crate::directory::Snapshot;
use crate::handshake::{Handshake, HandshakeError, Introduction};
use crate::link::{Link, READ_BYTES, Role};
use crate::shared::Shared;
use crate::tally::Tally;

/// How often the node looks at its clock, in milliseconds.
const TICK_MS: u64 = 10;
/// A turn that takes as long is told of: others wait for the node meanwhile, and the disk of the
/// log or the machine is too busy.
const SLOW_MS: u64 = 500;
/// A node that could not be reached is dialed again after so long.
const REDIAL_MS: u64 = 100;
/// One that refused this node, or was refused, after so long.
const REFUSED_MS: u64 = 1_000;
/// How often it is looked whether certificates were changed.
const REFRESH_MS: u64 = 1_000;
/// How long a connection may take to say who it is.
const GREETING_MS: u64 = 5_000;
/// Lookups of clients that are under way, and for how long.
const RELAYED_MAX: usize = 1 << 16;
const RELAYED_MS: u64 = 5_000;
/// Lookups of clients have numbers from here on.
const RELAY_FIRST: u64 = 1 << 63;
const EVENTS: usize = 256;
/// Rounds of packets from the node to itself in one turn.
const SETTLINGS_MAX: usize = 64;

/// Events of the listener and the bell; connections count from [`FIRST_LINK`].
const LISTENER: u64 = 0;
const BELL: u64 = 1;
const FIRST_LINK: u64 = 2;

/// What a node owns (partitions, ids, spans), and keeps for others (ranges, creators).
type Counts = ((u64, u64, u64), (u64, u64));

/// A lookup of a client.
#[derive(Clone, Copy, Debug)]
struct Relay {
    link: u64,
    token: u64,
    at_ms: u64,
}

/// See the head of this module.
#[derive(Debug)]
pub struct Hub<S> {
    shared: Arc<Shared>,
    node: Node<S>,
    me: Peer,
    introduction: Introduction,
    proposals: Sender<Proposal>,
    snapshot: Arc<Snapshot>,
    epoll: OwnedFd,
    listener: TcpListener,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    /// Connections to nodes that this one dialed.
    routes: BTreeMap<Peer, u64>,
    /// When a node was last dialed.
    dialed_ms: BTreeMap<Peer, u64>,
    /// Connections whose other end is not known yet, since when.
    strangers: BTreeMap<u64, u64>,
    /// What the node sends to itself.
    local: VecDeque<Packet>,
    relayed: BTreeMap<u64, Relay>,
    next_relay: u64,
    /// Requests that wait for backups, and who is to be answered.
    waiting: BTreeMap<u64, (u64, u64)>,
    next_waiting: u64,
    /// Connections with something to send.
    owed: BTreeSet<u64>,
    next_refresh_ms: u64,
    counts: Tally<Counts>,
    /// Whether it was said that this node keeps no more for others.
    has_told: bool,
    buffer: Vec<u8>,
    /// What was in `buffer`, on a secured connection.
    plain: Vec<u8>,
}

impl<S: ChunkStore> Hub<S> {
    /// A loop around a node.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new(
        shared: Arc<Shared>,
        node: Node<S>,
        me: Peer,
        introduction: Introduction,
        listener: TcpListener,
        proposals: Sender<Proposal>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, shared.bell(), EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self {
            shared,
            node,
            me,
            introduction,
            proposals,
            snapshot: Arc::default(),
            epoll,
            listener,
            links: BTreeMap::new(),
            next_link: FIRST_LINK,
            routes: BTreeMap::new(),
            dialed_ms: BTreeMap::new(),
            strangers: BTreeMap::new(),
            local: VecDeque::new(),
            relayed: BTreeMap::new(),
            next_relay: RELAY_FIRST,
            waiting: BTreeMap::new(),
            next_waiting: 0,
            owed: BTreeSet::new(),
            next_refresh_ms: 0,
            counts: Tally::default(),
            has_told: false,
            buffer: vec![0; READ_BYTES],
            plain: Vec::new(),
        })
    }

    /// Serves until the node stops.
    ///
    /// # Errors
    ///
    /// If waiting for events fails, which nobody outside can bring about.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        let mut next_tick_ms = 0_u64;
        while !self.shared.is_stopping() {
            let wait_ms = u64::min(TICK_MS, next_tick_ms.saturating_sub(boot_ms()).max(1));
            let timeout =
                rustix::time::Timespec { tv_sec: 0, tv_nsec: (wait_ms * 1_000_000).cast_signed() };
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let woken_ms = boot_ms();
            self.node.set_deadline(self.shared.deadline_ms());
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => {
                        let _ = rustix::io::read(self.shared.bell(), &mut [0; 8]);
                        next_tick_ms = 0;
                    }
                    link => self.on_event(link, event.flags),
                }
            }
            let now_ms = boot_ms();
            if now_ms >= next_tick_ms {
                next_tick_ms = now_ms + TICK_MS;
                self.tick(now_ms);
            }
            self.settle();
            let ms = boot_ms().saturating_sub(woken_ms);
            if ms >= SLOW_MS {
                log::warn!(ms; "a turn of the node's loop took long");
            }
        }
        Ok(())
    }

    fn tick(&mut self, now_ms: u64) {
        let mut out = Vec::new();
        let snapshot = self.shared.snapshot();
        if !Arc::ptr_eq(&snapshot, &self.snapshot) {
            self.node.set_racks(snapshot.racks.clone());
            self.node.on_view(&snapshot.view, &mut out);
            self.dialed_ms.retain(|peer, _| snapshot.view.has(*peer));
            self.snapshot = snapshot;
        }
        // Again each time: flushes may have to wait for a sweep.
        self.shared.clock.flush_up_to(self.snapshot.flushes);
        if self.shared.is_leaving() {
            self.node.leave();
            if self.node.has_left() {
                self.shared.set_has_left();
            }
        }
        self.node.on_tick(now_ms, &mut out);
        self.carry_out(out);
        let is_late = |since_ms: &u64| now_ms >= *since_ms + GREETING_MS;
        let late: Vec<u64> = {
            let late = self.strangers.iter().filter(|(_, since_ms)| is_late(since_ms));
            late.map(|(link, _)| *link).collect()
        };
        late.into_iter().for_each(|link| self.close(link));
        self.relayed.retain(|_, relay| now_ms < relay.at_ms + RELAYED_MS);
        if !self.has_told
            && let Some(error) = self.node.replica_store().and_then(ReplicaStore::failure)
        {
            self.has_told = true;
            log::error!(error:%; "no more backups are kept here until the node starts anew");
        }
        if now_ms >= self.next_refresh_ms {
            self.next_refresh_ms = now_ms + REFRESH_MS;
            self.introduction.refresh();
        }
    }

    /// Hands the node what it sent to itself, lets it write its log once for all that arrived, and
    /// sends what others are owed.
    fn settle(&mut self) {
        for _ in 0..SETTLINGS_MAX {
            while let Some(packet) = self.local.pop_front() {
                self.receive(self.me, packet);
            }
            let mut out = Vec::new();
            self.node.flush(boot_ms(), &mut out);
            self.carry_out(out);
            // What the log made safe may be for this node itself.
            if self.local.is_empty() {
                break;
            }
        }
        for number in std::mem::take(&mut self.owed) {
            self.send(number);
        }
    }

    fn accept(&mut self) {
        // One that went away meanwhile, or no descriptors left: nothing to do but go on.
        while let Ok((socket, _)) = self.listener.accept() {
            let mut out = Vec::new();
            let introduction = self.introduction.clone();
            let Ok(session) = introduction.session(false) else { continue };
            let Ok(handshake) = Handshake::start(introduction, false, &mut out) else { continue };
            if socket.set_nonblocking(true).is_ok() && socket.set_nodelay(true).is_ok() {
                self.insert(Link::new(socket, session, handshake, out, None), EventFlags::IN);
            }
        }
    }

    fn insert(&mut self, link: Link, flags: EventFlags) -> Option<u64> {
        let number = self.next_link;
        self.next_link += 1;
        let data = EventData::new_u64(number);
        if let Err(error) = epoll::add(&self.epoll, &link.socket, data, flags) {
            log::warn!(error:%; "a connection is given up");
            return None;
        }
        self.links.insert(number, link);
        self.strangers.insert(number, boot_ms());
        self.owed.insert(number);
        Some(number)
    }

    fn close(&mut self, number: u64) {
        self.strangers.remove(&number);
        self.waiting.retain(|_, (link, _)| *link != number);
        if let Some(link) = self.links.remove(&number)
            && let Some(peer) = link.dialed
        {
            self.routes.remove(&peer);
        }
    }

    fn on_event(&mut self, number: u64, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            if let Some(link) = self.links.get_mut(&number) {
                link.is_open = true;
            }
            self.owed.insert(number);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read(number);
        }
    }

    fn read(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = rustix::io::read(&link.socket, &mut buffer[..]);
        match result {
            Ok(0) => self.close(number),
            Ok(count) => {
                let result = match link.is_secured() {
                    true => self.open(number, &buffer[..count]),
                    false => self.take(number, &buffer[..count]),
                };
                if let Err(error) = result {
                    self.refuse(number, &error);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.close(number),
        }
        self.buffer = buffer;
    }

    /// Closes a connection that is not as it should be.
    fn refuse(&mut self, number: u64, error: &str) {
        let Some(link) = self.links.get(&number) else { return };
        let from = link.socket.peer_addr().ok();
        log::warn!(from:?, error; "a connection is closed");
        if let (Role::Stranger(_), Some(peer)) = (&link.role, link.dialed) {
            self.dialed_ms.insert(peer, boot_ms() + REFUSED_MS - REDIAL_MS);
        }
        // What says why it is refused goes first.
        self.send(number);
        self.close(number);
    }

    /// Takes bytes of a secured connection.
    fn open(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&number) else { return Ok(()) };
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let opened = link.open(bytes, &mut plain).map_err(|error| error.to_string());
        // TLS may have to answer.
        self.owed.insert(number);
        let result = opened.and_then(|()| self.take(number, &plain));
        self.plain = plain;
        result
    }

    /// Takes bytes of a connection.
    fn take(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&number) else { return Ok(()) };
        let mut rest = Vec::new();
        let bytes = match &mut link.role {
            Role::Stranger(handshake) => {
                let mut out = Vec::new();
                let fed = handshake.feed(bytes, &mut out);
                link.push_raw(&out);
                self.owed.insert(number);
                let known = fed.map_err(|error: HandshakeError| error.to_string())?;
                let Some((hello, after)) = known else { return Ok(()) };
                rest.extend_from_slice(&after);
                let spoken = hello.version.min(WIRE_VERSION);
                match (link.dialed, hello.from) {
                    (Some(dialed), from) if from != Some(dialed) => {
                        return Err("another node listens there now".to_owned());
                    }
                    (_, Some(peer)) => {
                        link.check_node().map_err(|error| error.to_string())?;
                        link.introduce(Role::Peer(peer), spoken);
                    }
                    (_, None) => link.introduce(Role::Client, spoken),
                }
                self.strangers.remove(&number);
                &rest[..]
            }
            Role::Peer(_) | Role::Client => bytes,
        };
        link.frames.feed(bytes);
        loop {
            let Some(link) = self.links.get_mut(&number) else { return Ok(()) };
            let frame = link.frames.next_frame().map_err(|error| error.to_string())?;
            let Some((request, packet)) = frame else { return Ok(()) };
            match link.role {
                Role::Peer(peer) => self.receive(peer, packet),
                Role::Client => self.serve(number, request, packet),
                Role::Stranger(_) => return Err("it has not said who it is".to_owned()),
            }
        }
    }

    /// A packet of a node, perhaps this one.
    fn receive(&mut self, from: Peer, packet: Packet) {
        if let Packet::Overlay(Message::Found { token, id, epoch, found, is_certain }) = packet
            && token >= RELAY_FIRST
        {
            if let Some(Relay { link, token, .. }) = self.relayed.remove(&token) {
                let message = Message::Found { token, id, epoch, found, is_certain };
                self.push(link, 0, &Packet::Overlay(message));
            }
            return;
        }
        let mut out = Vec::new();
        self.node.on_packet(from, packet, &mut boot_ms, &mut out);
        self.carry_out(out);
    }

    /// A packet of a client.
    fn serve(&mut self, link: u64, number: u64, packet: Packet) {
        match packet {
            Packet::Request(request) => {
                let waiting = self.next_waiting;
                match self.node.execute(waiting, &request, &mut boot_ms) {
                    Some(reply) => self.push(link, number, &Packet::Reply(reply)),
                    None => {
                        self.waiting.insert(waiting, (link, number));
                        self.next_waiting += 1;
                    }
                }
            }
            Packet::Overlay(Message::LookUp { token, id, .. }) => self.relay(link, token, id),
            Packet::Control(Control::GetStatus) => {
                let status = Control::Status(Box::new(self.status()));
                self.push(link, number, &Packet::Control(status));
            }
            Packet::Control(Control::LocateItem(key)) => {
                if let Some(id) = self.node.chunks().item_id(&key) {
                    self.push(link, number, &Packet::Control(Control::ItemLocation(id)));
                }
            }
            Packet::Control(Control::GetOwnership(id)) => {
                let chunks = self.node.chunks();
                let held = chunks.around(id).map(|(ids, epoch)| {
                    let replicas = chunks.replication().lag(id);
                    OwnedRange { ids, epoch, replicas }
                });
                self.push(link, number, &Packet::Control(Control::Ownership(held)));
            }
            Packet::Control(Control::Migrate { ids, target }) => {
                let incarnation = self.snapshot.view.incarnation(target);
                let mut out = Vec::new();
                let does = incarnation.is_some_and(|incarnation| {
                    let target = Peer { node: target, incarnation };
                    self.node.migrate(ids, target, boot_ms(), &mut out)
                });
                self.carry_out(out);
                self.push(link, number, &Packet::Control(Control::Migrating(does)));
            }
            Packet::Control(Control::Drain) => {
                if !self.shared.is_leaving() {
                    log::info!("the node hands all it has to others");
                    self.shared.leave();
                }
                let is_drained = Control::Drained(self.shared.has_left());
                self.push(link, number, &Packet::Control(is_drained));
            }
            // Nothing that clients say.
            Packet::Overlay(_) | Packet::Move(_) | Packet::Replication(_) | Packet::Load(_) => {}
            Packet::Reply(_) | Packet::Control(_) => {}
        }
    }

    /// Asks a super peer for a client, who asks again if nothing comes of it.
    fn relay(&mut self, link: u64, token: u64, id: ChunkId) {
        let group = self.snapshot.view.groups.get(position(id.creator()));
        let Some(leader) = group.and_then(|group| group.members.first()).copied() else { return };
        if self.relayed.len() >= RELAYED_MAX {
            return;
        }
        let number = self.next_relay;
        self.next_relay += 1;
        self.relayed.insert(number, Relay { link, token, at_ms: boot_ms() });
        let message = Message::LookUp { origin: self.me, token: number, id, hops: 0 };
        self.carry_out(vec![NodeCommand::Send(leader, Packet::Overlay(message))]);
    }

    fn carry_out(&mut self, effects: Vec<NodeCommand>) {
        for effect in effects {
            match effect {
                NodeCommand::Send(to, packet) if to == self.me => self.local.push_back(packet),
                NodeCommand::Send(to, packet) => {
                    if let Some(link) = self.route(to) {
                        self.push(link, 0, &packet);
                    }
                }
                NodeCommand::Propose(proposal) => {
                    // Nobody listens any more only while the node ends.
                    let _ = self.proposals.send(proposal);
                }
                NodeCommand::Log(overlay::OverlayEvent::ChunksLost(owner, ids)) => {
                    log::error!(
                        owner:?, chunks = ids.len(), first:? = ids.first();
                        "no backup can be read any more: lost"
                    );
                }
                NodeCommand::Log(event @ overlay::OverlayEvent::ReplicaLost(..)) => {
                    log::error!(event:?; "nobody has a copy any more");
                }
                NodeCommand::Log(overlay::OverlayEvent::ChunksUnreadable(owner, ids)) => {
                    log::error!(
                        owner:?, chunks = ids.len(), first:? = ids.first();
                        "the log is damaged: others who have it are asked"
                    );
                }
                NodeCommand::Log(event @ overlay::OverlayEvent::MetadataLost(..)) => {
                    log::error!(
                        event:?;
                        "metadata is lost with all who held it: chunks there cannot be served; a \
                         cluster under another name (--cluster) begins anew"
                    );
                }
                NodeCommand::Stop(error) => {
                    if !self.shared.is_stopping() {
                        log::error!(error:%; "metadata cannot be kept: the node stops");
                    }
                    self.shared.set_deadline_ms(0);
                    self.shared.stop();
                }
                NodeCommand::Log(event) => log::trace!(event:?; "the overlay"),
                NodeCommand::Reply(waiting, reply) => {
                    if let Some((link, number)) = self.waiting.remove(&waiting) {
                        self.push(link, number, &Packet::Reply(reply));
                    }
                }
                // The node's own client is not used.
                NodeCommand::Completed(..) => {}
            }
        }
    }

    /// The connection to a node, which is opened if need be.
    fn route(&mut self, to: Peer) -> Option<u64> {
        if let Some(link) = self.routes.get(&to) {
            return Some(*link);
        }
        let now_ms = boot_ms();
        let last_ms = self.dialed_ms.get(&to).copied().unwrap_or(0);
        if !self.snapshot.view.has(to) || now_ms < last_ms + REDIAL_MS {
            return None;
        }
        self.dialed_ms.insert(to, now_ms);
        let address = self.snapshot.addresses.get(&to.node)?;
        let socket = match address.parse().map_err(io::Error::other).and_then(dial) {
            Ok(socket) => socket,
            Err(error) => {
                log::warn!(address, error:%; "a node cannot be reached");
                return None;
            }
        };
        let mut out = Vec::new();
        let session = self.introduction.session(true).ok()?;
        let handshake = Handshake::start(self.introduction.clone(), true, &mut out).ok()?;
        let link = Link::new(socket, session, handshake, out, Some(to));
        let number = self.insert(link, EventFlags::IN | EventFlags::OUT)?;
        self.routes.insert(to, number);
        Some(number)
    }

    fn push(&mut self, link: u64, number: u64, packet: &Packet) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        match connection.push(number, packet) {
            Ok(()) => {
                self.owed.insert(link);
            }
            Err(error) => log::debug!(error:%; "a packet is dropped"),
        }
    }

    /// Sends what can be sent, and waits for room where not all can.
    fn send(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let was_waiting = !link.is_open || link.is_waiting_for_room;
        match link.send() {
            Ok(is_all) => {
                let flags = match (is_all, link.is_clogged()) {
                    (true, _) => EventFlags::IN,
                    (false, false) => EventFlags::IN | EventFlags::OUT,
                    (false, true) => EventFlags::OUT,
                };
                link.is_waiting_for_room = !is_all;
                link.is_open |= is_all;
                if was_waiting || !is_all {
                    let data = EventData::new_u64(number);
                    // Fails only for a socket that is not watched, and this one is.
                    let _ = epoll::modify(&self.epoll, &link.socket, data, flags);
                }
            }
            Err(_) => self.close(number),
        }
    }

    fn status(&mut self) -> NodeStatus {
        let chunks = self.node.chunks();
        let catalog = self.node.super_peer().catalog();
        let ((partitions, ids, spans), ranges) = self.counts.tell(Instant::now, || {
            let ranges = (catalog.all_ranges().count(), catalog.summaries().count());
            (chunks.holdings(), (ranges.0 as u64, ranges.1 as u64))
        });
        let (outgoing, incoming) = chunks.moves();
        NodeStatus {
            peer: self.me,
            members: self.snapshot.members().map(|(peer, at)| (peer, at.to_owned())).collect(),
            supers: self.snapshot.view.supers().collect(),
            revision: self.snapshot.view.revision,
            flushes: self.shared.clock.flushes(),
            partitions,
            ids,
            spans,
            ranges,
            moves: (outgoing as u64, incoming as u64),
            backups: chunks.replication().configured_backups() as u64,
            reduced: (chunks.replication().counts().0 as u64, chunks.failovers() as u64),
            kept: self
                .node
                .replica_store()
                .map_or(0, |replica_store| replica_store.counts().0 as u64),
            lease_left_ms: self.shared.deadline_ms().saturating_sub(boot_ms()),
            rate: chunks.load_balancer().rate(),
            hot_moves: chunks.load_balancer().moved(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Opens a connection without waiting for it.
///
/// # Errors
///
/// Of the system.
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Ok(socket)
}
