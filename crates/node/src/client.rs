//! A client of the cluster: operations on chunks and named items.
//!
//! Used by one thread at a time. Operations are submitted, and end in a later [`turn`], which never
//! waits; the other calls block. One node is the client's *home*: it lists the members and forwards
//! lookups to super peers. Another node replaces it when it fails or is silent. The client caches
//! the owners of chunks and sends operations to them directly. All operations are in flight
//! together, those for one node that were submitted before a turn in one request.
//!
//! [`turn`]: ClusterClient::turn
//!
//! Invariants of this module:
//! 1. An operation keeps its number when it is sent again, so it is executed once. The creation of
//!    a chunk is only ever sent to one node.
//! 2. A wrong entry in the cache of owners costs another try, nothing else.
//! 3. Every operation ends: tries are bounded in number and time.
//! 4. Waiting for one node does not delay requests to others: connections open concurrently, and a
//!    silent node is given up (`client_connection`).
//! 5. A client with [`Deadlines`] asks a node that was found silent nothing but whether it is back,
//!    and does not wait for the answer, until anything of that node arrives or the node is no
//!    longer a member.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::ToSocketAddrs;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use amalgam_cluster::chunks::{
    Action, ChunkError, ClientId, ItemVerb, MAX_CHUNK_BYTES, OPERATIONS_MAX, Request, Response,
};
use amalgam_cluster::client::{Client, ClientStatistics, Completion, OutgoingRequest};
use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::overlay::{Locator, OverlayCommand, OverlaySettings, Peer};
use amalgam_cluster::wire::{Control, NodeStatus, Packet};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use crate::client_connection::{
    ClientConnection, ClientError, LOST_MS, PendingConnection, TICK, open_first, wait_for,
};
use crate::clock::boot_ms;
use crate::handshake::{Credentials, HandshakeError, Identity};
use crate::node_state::NodeState;
use crate::silence::Deadlines;

mod control;
mod operations;
mod own_node;
mod probes;

use own_node::OwnNode;

/// Time limit for the first connection to open, and for an answer of its node.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for a connection to open while a call waits.
const DIAL_PATIENCE: Duration = Duration::from_millis(LOST_MS);
/// Pause before a node is dialed again that could not be reached, in milliseconds.
const REDIAL_MS: u64 = 300;
/// Intervals at which the members are asked for while a call waits, and when a node is unknown, in
/// milliseconds.
const MEMBERS_MS: u64 = 1_000;
const UNKNOWN_MS: u64 = 100;
/// Further nodes that are tried as homes for one request.
const HOMES_MAX: usize = 8;
/// Time limit for a member to accept the handshake of a node that is about to join, and of one that
/// joins again: all may do so at once, and none answers before it has joined.
const TRIAL_PATIENCE: Duration = Duration::from_secs(1);
const AGAIN_PATIENCE: Duration = Duration::from_millis(200);
/// Nodes with events that one turn handles at most; the next one handles the others.
const EVENTS_MAX: usize = 64;
/// Event data of the replies of this process's own node; other numbers are those of nodes.
const OWN_NODE: u64 = u64::MAX;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Approximate bytes of a request; further operations go into another one.
const REQUEST_BYTES: usize = 4 << 20;

/// Whether the node at `address` accepts a handshake with this identity, which is that of a former
/// member if `was_member`.
///
/// # Errors
///
/// [`ClientError`].
pub fn check_admission_at(
    address: &str,
    identity: &Identity,
    was_member: bool,
) -> Result<(), ClientError> {
    let patience = if was_member { AGAIN_PATIENCE } else { TRIAL_PATIENCE };
    open_first(&[address.to_owned()], identity, patience).map(drop)
}

/// A client of a cluster, used by one thread at a time.
#[derive(Debug)]
pub struct ClusterClient {
    identity: Identity,
    /// Reports the nodes whose connections have something to do.
    epoll: OwnedFd,
    /// The node that was connected to first, and the number of its cluster.
    first: Peer,
    cluster: u64,
    /// The present home.
    home: Peer,
    connections: BTreeMap<Peer, ClientConnection>,
    /// Connections that are being opened.
    pending: BTreeMap<Peer, PendingConnection>,
    /// The addresses of the members, as of `revision`.
    addresses: BTreeMap<Peer, String>,
    revision: u64,
    /// When the members are asked for next, in [`boot_ms`].
    next_members_ms: u64,
    /// Nodes that could not be reached, and until when they are not dialed, in [`boot_ms`].
    backoff_until_ms: BTreeMap<Peer, u64>,
    /// When [`Self::turn`] looks at the clock next, in [`boot_ms`], if it waits for anything.
    next_tick_ms: u64,
    /// Nodes that could not be reached, or whose connection broke, and that `client` does not know
    /// of yet.
    unreachable: Vec<Peer>,
    /// The number of the last control request.
    number: u64,
    locator: Locator,
    client: Client,
    /// The node of this process, which is asked without a connection; None if there is none.
    own: Option<OwnNode>,
    /// None if the client waits as long as a failover takes.
    deadlines: Option<Deadlines>,
    /// Silent nodes that were to be asked, and that `client` does not know of yet.
    found_silent: Vec<Peer>,
    /// What is to be sent.
    commands: Vec<OverlayCommand>,
    asked: Vec<OutgoingRequest>,
    /// Operations that have ended, until [`Self::turn`] returns them.
    completions: Vec<Completion>,
    buffer: Vec<u8>,
}

impl ClusterClient {
    /// Connects to the first of several nodes that answers. `cache_bytes` bounds the cache of
    /// owners. The join token alone suffices where connections are not secured.
    ///
    /// # Errors
    ///
    /// [`ClientError`] of the last, if none does.
    pub fn connect(
        homes: &[String],
        credentials: impl Into<Credentials>,
        cache_bytes: usize,
    ) -> Result<Self, ClientError> {
        let credentials = credentials.into();
        let identity = Identity::new(0, None, &credentials);
        let connection = open_first(homes, &identity, PATIENCE)?;
        let (home, cluster) = (connection.peer, connection.cluster);
        let mut own = Self::at(home, cluster, credentials, cache_bytes)?;
        own.open(home, connection);
        own.status()?;
        Ok(own)
    }

    /// A client of the cluster with this number whose home is `home`. It connects when it has
    /// something to send and [`Self::set_members`] has told it where members listen.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor or random bytes.
    pub fn at(
        home: Peer,
        cluster: u64,
        credentials: impl Into<Credentials>,
        cache_bytes: usize,
    ) -> Result<Self, ClientError> {
        let mut number = [0; 8];
        SystemRandom::new().fill(&mut number).map_err(|_| HandshakeError::Random)?;
        Ok(Self {
            identity: Identity::new(0, None, &credentials.into()),
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?,
            first: home,
            cluster,
            home,
            connections: BTreeMap::new(),
            pending: BTreeMap::new(),
            addresses: BTreeMap::new(),
            revision: 0,
            next_members_ms: 0,
            backoff_until_ms: BTreeMap::new(),
            next_tick_ms: 0,
            unreachable: Vec::new(),
            number: 0,
            locator: Locator::new(home, OverlaySettings::default(), cache_bytes, vec![home]),
            client: Client::new(ClientId(u64::from_le_bytes(number)), home),
            own: None,
            deadlines: None,
            found_silent: Vec::new(),
            commands: Vec::new(),
            asked: Vec::new(),
            completions: Vec::new(),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Bounds how long later calls wait.
    pub fn set_deadlines(&mut self, deadlines: Deadlines) {
        self.client.set_patience(deadlines.operation_ms);
        self.deadlines = Some(deadlines);
    }

    /// Asks the home, whose event loop runs in this process with that state, without a connection.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub(crate) fn ask_directly(&mut self, state: Arc<NodeState>) -> io::Result<()> {
        let own = OwnNode::new(self.home, state)?;
        epoll::add(&self.epoll, own.event(), EventData::new_u64(OWN_NODE), EventFlags::IN)?;
        self.own = Some(own);
        Ok(())
    }

    /// Takes over the members as of a revision of the coordinator, unless they are outdated.
    pub fn set_members(&mut self, revision: u64, members: impl Iterator<Item = (Peer, String)>) {
        if revision >= self.revision {
            self.revision = revision;
            self.addresses = members.collect();
            self.on_new_members();
        }
    }

    /// The home: the node that was connected to first, as long as it answers.
    pub fn home(&self) -> Peer {
        self.home
    }

    /// Counters of what this client has done so far.
    pub fn statistics(&self) -> ClientStatistics {
        self.client.statistics()
    }

    /// Takes over a list of members, unless it is older than the present one.
    fn learn_members(&mut self, status: &NodeStatus) {
        if status.revision >= self.revision && !status.members.is_empty() {
            self.revision = status.revision;
            self.addresses = status.members.iter().cloned().collect();
            self.on_new_members();
        }
    }

    /// Forgets nodes that are no longer members. A silent one of them is asked nothing any more, so
    /// that its keys are looked up again.
    fn on_new_members(&mut self) {
        let (members, home) = (&self.addresses, self.home);
        self.connections.retain(|peer, _| members.contains_key(peer) || *peer == home);
        self.backoff_until_ms.retain(|peer, _| members.contains_key(peer));
        if let Some(deadlines) = &self.deadlines
            && !deadlines.silent.is_empty()
        {
            deadlines.silent.retain(|peer| members.contains_key(peer));
        }
    }

    /// Executes an operation.
    ///
    /// # Errors
    ///
    /// [`ChunkError`]; [`ChunkError::Unknown`] if it is unknown whether it was executed.
    pub fn call(&mut self, action: Action) -> Result<Response, ChunkError> {
        self.call_all(vec![action]).pop().unwrap_or(Err(ChunkError::Unavailable))
    }

    /// Executes operations, each atomically and in any order. Answers are in the order of
    /// `actions`. Requires: nothing that was submitted is under way.
    pub fn call_all(&mut self, actions: Vec<Action>) -> Vec<Result<Response, ChunkError>> {
        let mut answers = vec![Err(ChunkError::Unavailable); actions.len()];
        let mut places = BTreeMap::new();
        for (place, action) in actions.into_iter().enumerate() {
            match self.submit(action) {
                Ok(number) => drop(places.insert(number, place)),
                Err(error) => answers[place] = Err(error),
            }
        }
        let mut ended = Vec::new();
        loop {
            self.turn(&mut ended);
            for (number, result) in ended.drain(..) {
                if let Some(place) = places.remove(&number) {
                    answers[place] = result;
                }
            }
            if places.is_empty() {
                return answers;
            }
            self.wait();
        }
    }

    /// Begins an operation, which ends in a later [`Self::turn`] under the number that is returned.
    ///
    /// # Errors
    ///
    /// [`ChunkError::TooLarge`].
    pub fn submit(&mut self, action: Action) -> Result<u64, ChunkError> {
        if let Action::Create(value) | Action::Put(_, value) = &action
            && value.len() > MAX_CHUNK_BYTES
        {
            // It might not fit into a frame.
            return Err(ChunkError::TooLarge);
        }
        let now_ms = boot_ms();
        if !self.waits_for_anything() {
            self.next_tick_ms = now_ms + TICK.as_millis() as u64;
        }
        if self.client.pending() == 0 {
            self.next_members_ms = now_ms + MEMBERS_MS;
            let silent = self.deadlines.as_ref().map(|deadlines| Arc::clone(&deadlines.silent));
            if let Some(own) = &mut self.own {
                own.forget_asked();
            }
            for (peer, connection) in &mut self.connections {
                if silent.as_ref().is_none_or(|silent| !silent.has(*peer)) {
                    connection.restart_silence();
                }
            }
        }
        let (locator, commands, asked) = (&mut self.locator, &mut self.commands, &mut self.asked);
        Ok(self.client.submit(action, locator, now_ms, commands, asked))
    }

    /// The node that would be asked for an id, if the client knows it.
    pub fn owner(&mut self, id: ChunkId) -> Option<Peer> {
        self.locator.find(id).map(|(owner, _)| owner)
    }

    /// Sends what was submitted, and handles what has arrived and what is due; never waits. Appends
    /// the operations that have ended to `ended`.
    pub fn turn(&mut self, ended: &mut Vec<Completion>) {
        self.settle();
        self.handle_events();
        let now_ms = boot_ms();
        if self.waits_for_anything() && now_ms >= self.next_tick_ms {
            self.next_tick_ms = now_ms + TICK.as_millis() as u64;
            self.on_tick(now_ms);
        }
        self.settle();
        ended.append(&mut self.completions);
    }

    /// When [`Self::turn`] is to be called at the latest, in [`boot_ms`]; None if only an event of
    /// [`Self::epoll`] gives it something to do.
    pub fn next_turn_ms(&self) -> Option<u64> {
        self.waits_for_anything().then_some(self.next_tick_ms)
    }

    /// Readable when [`Self::turn`] has something to do.
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Whether anything is due at some time.
    fn waits_for_anything(&self) -> bool {
        let has_silent = || self.deadlines.as_ref().is_some_and(|all| !all.silent.is_empty());
        self.client.pending() > 0 || !self.pending.is_empty() || has_silent()
    }

    /// Waits until [`Self::turn`] has something to do, at most for a tick.
    pub fn wait(&self) {
        wait_for(&mut [PollFd::new(&self.epoll, PollFlags::IN)], TICK);
    }

    /// Sends what is to be sent, and tells `client` of what cannot be.
    fn settle(&mut self) {
        loop {
            self.dispatch();
            for peer in std::mem::take(&mut self.found_silent) {
                self.client.on_silent(peer, &mut self.completions);
            }
            for peer in std::mem::take(&mut self.unreachable) {
                let (locator, commands) = (&mut self.locator, &mut self.commands);
                let completions = &mut self.completions;
                self.client.on_unreachable(peer, locator, boot_ms(), commands, completions);
            }
            if self.commands.is_empty() && self.asked.is_empty() {
                return;
            }
        }
    }

    /// Sends lookups and operations, in as few requests as possible.
    fn dispatch(&mut self) {
        let mut touched: Vec<Peer> = Vec::new();
        for command in std::mem::take(&mut self.commands) {
            // A client's locator sends only lookups; its only super peer is the home.
            if let OverlayCommand::Send(_, message) = command {
                self.push(self.home, Packet::Overlay(message), None, &mut touched);
            }
        }
        for (peer, request) in coalesce(std::mem::take(&mut self.asked)) {
            if self.is_silent(peer) && self.addresses.contains_key(&peer) {
                self.client.on_unsent(&request);
                self.found_silent.push(peer);
                continue;
            }
            let numbers = request.operations.iter().map(|operation| operation.number);
            let until_ms = numbers.filter_map(|number| self.client.until_ms(number)).min();
            if let Some(own) = self.own.as_mut().filter(|own| own.peer == peer) {
                own.ask(request, until_ms);
                continue;
            }
            if !self.can_reach(peer) {
                self.client.on_unsent(&request);
                self.unreachable.push(peer);
                continue;
            }
            self.push(peer, Packet::Request(request), until_ms, &mut touched);
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|peer| self.send(peer));
    }

    /// Sends what is queued for a node, as far as it takes it.
    fn send(&mut self, peer: Peer) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if connection.send().and_then(|()| connection.watch(&self.epoll)).is_err() {
            self.lose(peer);
        }
    }

    /// Queues a packet if there is a connection or one opens, else drops it: unanswered requests
    /// are sent again.
    fn push(&mut self, peer: Peer, packet: Packet, until_ms: Option<u64>, touched: &mut Vec<Peer>) {
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.push_until(packet, until_ms);
            touched.push(peer);
            return;
        }
        if self.dial(peer)
            && let Some(dial) = self.pending.get_mut(&peer)
        {
            dial.push(packet, until_ms);
        }
    }

    /// Whether there is a connection to a node, or one opens.
    fn can_reach(&mut self, peer: Peer) -> bool {
        self.connections.contains_key(&peer) || self.dial(peer)
    }

    /// Begins to open a connection to a node, unless one is being opened. Whether one is.
    fn dial(&mut self, peer: Peer) -> bool {
        if self.pending.contains_key(&peer) {
            return true;
        }
        if self.backoff_until_ms.contains_key(&peer) {
            return false;
        }
        let Some(address) = self.addresses.get(&peer) else {
            // The node joined since the members were asked for.
            self.next_members_ms = self.next_members_ms.min(boot_ms() + UNKNOWN_MS);
            return false;
        };
        let resolved = address.to_socket_addrs().map_err(ClientError::from);
        let target = resolved.and_then(|mut all| {
            all.next().ok_or_else(|| ClientError::Answer(format!("no address: {address}")))
        });
        let dial = target.and_then(|target| {
            let mut dial = PendingConnection::start(target, &self.identity, DIAL_PATIENCE)?;
            dial.watch(&self.epoll, peer.node.get().into())?;
            Ok(dial)
        });
        match dial {
            Ok(dial) => drop(self.pending.insert(peer, dial)),
            Err(error) => self.fail(peer, &error),
        }
        self.pending.contains_key(&peer)
    }

    /// Records that a connection to a node could not be opened.
    fn fail(&mut self, peer: Peer, error: &ClientError) {
        log::debug!(node = peer.node.get(), error:%; "a node cannot be reached");
        if let Some(dial) = self.pending.remove(&peer) {
            dial.requests().for_each(|request| self.client.on_unsent(request));
        }
        self.backoff_until_ms.insert(peer, boot_ms() + REDIAL_MS);
        // The own node is asked without a connection, whatever becomes of those for lookups.
        if self.own.as_ref().is_some_and(|own| own.peer == peer) {
            return;
        }
        match &self.deadlines {
            Some(deadlines) if self.addresses.contains_key(&peer) => {
                deadlines.silent.change(|silent| silent.insert(peer));
                self.found_silent.push(peer);
            }
            _ => self.unreachable.push(peer),
        }
    }

    /// Drops a connection that is broken or whose node is silent.
    fn lose(&mut self, peer: Peer) {
        self.connections.remove(&peer);
        if self.deadlines.is_none() {
            self.backoff_until_ms.insert(peer, boot_ms() + REDIAL_MS);
        }
        self.unreachable.push(peer);
    }

    /// Chooses another home if there is no connection to the present one: a connected node, or the
    /// next that may be reachable.
    fn find_home(&mut self) {
        let home = self.home;
        let is_there = self.connections.contains_key(&home) || self.pending.contains_key(&home);
        if is_there && self.addresses.contains_key(&home) {
            return;
        }
        let after = self.addresses.range((Bound::Excluded(home), Bound::Unbounded));
        let around = after.chain(self.addresses.range(..=home)).map(|(peer, _)| *peer);
        let mut there = around.clone().filter(|peer| self.connections.contains_key(peer));
        let next = there.next().or_else(|| {
            let mut others = around.filter(|peer| !self.backoff_until_ms.contains_key(peer));
            others.next()
        });
        if let Some(next) = next {
            log::debug!(node = next.node.get(); "changed the home node");
            self.set_home(next);
            self.dial_home();
        }
    }

    fn dial_home(&mut self) {
        if !self.connections.contains_key(&self.home) {
            self.dial(self.home);
        }
    }

    fn set_home(&mut self, home: Peer) {
        self.home = home;
        self.client.set_home(home);
        // The new home may know more members.
        self.next_members_ms = 0;
    }

    /// Drops connections to silent nodes, changes the home if need be, asks for the members, and
    /// repeats what is unanswered.
    fn on_tick(&mut self, now_ms: u64) {
        self.backoff_until_ms.retain(|_, until_ms| *until_ms > now_ms);
        self.probe_silent();
        self.note_silence(now_ms);
        let silent = self.connections.iter_mut().filter_map(|(peer, connection)| {
            let is_alive = connection.is_alive(now_ms) && connection.watch(&self.epoll).is_ok();
            (!is_alive).then_some(*peer)
        });
        for peer in silent.collect::<Vec<_>>() {
            self.lose(peer);
        }
        self.give_up_late_dials(now_ms);
        self.find_home();
        if now_ms >= self.next_members_ms {
            self.next_members_ms = now_ms + MEMBERS_MS;
            self.dispatch_question();
            let members = &self.addresses;
            self.client.on_members(|peer| members.contains_key(&peer), &mut self.completions);
        }
        let (locator, commands, asked) = (&mut self.locator, &mut self.commands, &mut self.asked);
        let mut unanswered = Vec::new();
        locator.on_tick(now_ms, commands, &mut unanswered);
        let ended = &mut self.completions;
        for answer in unanswered {
            self.client.on_located(&answer, locator, now_ms, commands, asked, ended);
        }
        self.client.on_tick(locator, now_ms, commands, asked, ended);
    }

    fn give_up_late_dials(&mut self, now_ms: u64) {
        let late = self.pending.iter().filter(|(_, dial)| dial.is_late(now_ms));
        for peer in late.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.fail(peer, &io::Error::from(io::ErrorKind::TimedOut).into());
        }
    }

    /// Asks the home for the members; the answer arrives among others.
    fn dispatch_question(&mut self) {
        let mut touched = Vec::new();
        self.push(self.home, Packet::Control(Control::GetStatus), None, &mut touched);
        touched.into_iter().for_each(|peer| self.send(peer));
    }

    /// Handles the events of connections.
    fn handle_events(&mut self) {
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        // Fails only if it is interrupted; the events stay.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&Timespec::default()))
        else {
            return;
        };
        for event in events {
            let number = event.data.u64();
            if number == OWN_NODE {
                self.take_own_replies();
                continue;
            }
            // There may be connections to two incarnations of a node.
            let is_its = |peer: &&Peer| u64::from(peer.node.get()) == number;
            let opening: Vec<Peer> = self.pending.keys().filter(is_its).copied().collect();
            opening.into_iter().for_each(|peer| self.advance_pending(peer));
            let open: Vec<Peer> = self.connections.keys().filter(is_its).copied().collect();
            open.into_iter().for_each(|peer| self.read(peer));
        }
    }

    /// Reads from a connection, and handles what has arrived completely.
    fn read(&mut self, peer: Peer) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let mut is_alive =
            connection.receive(&mut self.buffer) && connection.watch(&self.epoll).is_ok();
        while is_alive && let Some(connection) = self.connections.get_mut(&peer) {
            match connection.next() {
                Ok(Some((_, packet))) => self.take(peer, packet),
                Ok(None) => break,
                Err(error) => {
                    log::warn!(error:%; "dropped a connection: its node broke the protocol");
                    is_alive = false;
                }
            }
        }
        if !is_alive {
            self.lose(peer);
            self.find_home();
        }
    }

    /// Takes what the node of this process has replied.
    fn take_own_replies(&mut self) {
        let Some((peer, replies)) = self.own.as_mut().map(|own| (own.peer, own.take())) else {
            return;
        };
        for reply in replies {
            self.take(peer, Packet::Reply(reply));
        }
    }

    /// Continues to open a pending connection.
    fn advance_pending(&mut self, peer: Peer) {
        let Some(dial) = self.pending.get_mut(&peer) else { return };
        let advanced = dial.advance().and_then(|is_open| {
            dial.watch(&self.epoll, peer.node.get().into())?;
            Ok(is_open)
        });
        match advanced {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => {
                self.fail(peer, &error);
                return self.find_home();
            }
        }
        let Some(dial) = self.pending.remove(&peer) else { return };
        let opened = dial.finish();
        match opened {
            Ok(connection) if connection.cluster == self.cluster => self.open(peer, connection),
            Ok(_) => {
                self.fail(peer, &ClientError::Answer("the node is of another cluster".to_owned()))
            }
            Err(error) => self.fail(peer, &error),
        }
        self.find_home();
    }

    /// Takes over an open connection. The node may be a new incarnation of the one that was dialed,
    /// which refuses requests to the old one.
    fn open(&mut self, meant: Peer, mut connection: ClientConnection) {
        let peer = connection.peer;
        if peer != meant {
            if let Some(address) = self.addresses.remove(&meant) {
                self.addresses.insert(peer, address);
            }
            self.next_members_ms = 0;
            if meant == self.home {
                self.set_home(peer);
            }
        }
        match connection.send().and_then(|()| connection.watch(&self.epoll)) {
            Ok(()) => {
                self.note_progress(peer);
                self.connections.insert(peer, connection);
            }
            Err(error) => self.fail(peer, &error.into()),
        }
    }

    fn take(&mut self, from: Peer, packet: Packet) {
        let now_ms = boot_ms();
        self.note_progress(from);
        let (locator, commands, asked) = (&mut self.locator, &mut self.commands, &mut self.asked);
        let completions = &mut self.completions;
        match packet {
            Packet::Reply(reply) => {
                self.client.on_reply(from, reply, locator, now_ms, commands, completions);
            }
            Packet::Overlay(message) => {
                let mut answers = Vec::new();
                locator.on_message(&message, now_ms, commands, &mut answers);
                for answer in answers {
                    self.client.on_located(&answer, locator, now_ms, commands, asked, completions);
                }
            }
            Packet::Control(Control::Status(status)) => self.learn_members(&status),
            Packet::Control(Control::Clock(clock_ms)) => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.set_clock(clock_ms);
                }
            }
            Packet::Move(_) | Packet::Request(_) | Packet::Timed(..) | Packet::Control(_) => {}
            Packet::Replication(_) | Packet::Load(_) => {}
        }
    }
}

impl Drop for ClusterClient {
    /// Releases its locks at the owners that can be told at once; others release them some time
    /// later.
    fn drop(&mut self) {
        for (peer, request) in self.client.close() {
            if let Some(own) = self.own.as_mut().filter(|own| own.peer == peer) {
                own.ask(request, None);
            } else if let Some(connection) = self.connections.get_mut(&peer) {
                connection.send_last(&Packet::Request(request));
            }
        }
    }
}

/// Combines operations into one request for each node, or several if it would be too long.
fn coalesce(asked: Vec<OutgoingRequest>) -> Vec<OutgoingRequest> {
    let mut requests: Vec<(OutgoingRequest, usize)> = Vec::new();
    for (peer, request) in asked {
        let bytes: usize = request.operations.iter().map(|one| request_bytes(&one.action)).sum();
        let fits = |((to, open), length): &&mut ((Peer, Request), usize)| {
            *to == peer
                && open.client == request.client
                && open.operations.len() + request.operations.len() <= OPERATIONS_MAX
                && *length + bytes <= REQUEST_BYTES
        };
        match requests.iter_mut().rev().find(fits) {
            Some(((_, open), length)) => {
                *length += bytes;
                open.answered_below = open.answered_below.min(request.answered_below);
                open.operations.extend(request.operations);
            }
            None => requests.push(((peer, request), bytes)),
        }
    }
    requests.into_iter().map(|(request, _)| request).collect()
}

/// Approximate bytes of an operation on the wire.
fn request_bytes(action: &Action) -> usize {
    64 + match action {
        Action::Create(value) | Action::Put(_, value) => value.len(),
        Action::Item { op, .. } => {
            op.key.len()
                + match &op.verb {
                    ItemVerb::Store(_, value) => value.len(),
                    _ => 0,
                }
        }
        _ => 0,
    }
}
