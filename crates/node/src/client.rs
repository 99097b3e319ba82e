//! A client of the cluster: chunks and named items over connections to all nodes that it needs.
//!
//! It knows one node, its *home*, which tells it who else there is and asks the super peers for it.
//! Where chunks are it remembers; to their owners it speaks itself. Calls block; operations of one
//! call are under way together, those for one node in one request.
//!
//! Invariants of this room:
//! 1. An operation has one number however often it is asked for: it counts once.
//! 2. What is wrong in its memory of owners costs another try.
//! 3. A call ends: tries are bounded in number and time.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use amalgam_cluster::chunks::{
    Action, ChunkError, ClientId, Done, ItemAnswer, ItemOp, ItemVerb, MAX_CHUNK_BYTES,
    OPERATIONS_MAX, Request,
};
use amalgam_cluster::client::{Asked, Client, ClientStatistics, Outcome};
use amalgam_cluster::ids::{ChunkId, IdRange, NodeId};
use amalgam_cluster::overlay::{Command, Locator, Peer, Settings};
use amalgam_cluster::wire::{Control, FrameReader, Holding, NodeStatus, Packet, encode_frame};
use amalgam_op::{Delete, MAX_KEY_BYTES, Outcome as ItemOutcome, Store, StoreMode, Verb};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::boot_ms;
use crate::handshake::{Credentials, Handshake, HandshakeError, Introduction};
use crate::tls::{Session, TlsError};

/// How often retries are looked after.
const TICK: Duration = Duration::from_millis(20);
/// How long a connection may take to open, and an answer of the home to come.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a node that wants to know whether it would be welcome.
const TRIAL_PATIENCE: Duration = Duration::from_secs(1);
/// Read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes of a request, about: what it holds beyond goes in another.
const REQUEST_BYTES: usize = 4 << 20;

/// Why a client has no connection.
#[derive(Debug)]
pub enum ClientError {
    /// The system or the network.
    System(io::Error),
    /// The other side is not of this cluster.
    Handshake(HandshakeError),
    /// What it said makes no sense.
    Answer(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
            Self::Answer(why) => write!(f, "the node's answer: {why}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<TlsError> for ClientError {
    fn from(error: TlsError) -> Self {
        Self::Handshake(error.into())
    }
}

impl From<HandshakeError> for ClientError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// A connection that blocks.
#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    /// None if it is not secured.
    session: Option<Session>,
    peer: Peer,
    frames: FrameReader,
    out: Vec<u8>,
    /// What was opened last.
    plain: Vec<u8>,
    /// Requests without an answer.
    in_flight: u64,
}

/// Whether somebody there would speak to this process; who would not says why.
///
/// # Errors
///
/// [`ClientError`].
pub fn try_at(address: &str, introduction: &Introduction) -> Result<(), ClientError> {
    Wire::open(address, introduction, TRIAL_PATIENCE).map(drop)
}

/// Sends all that is to be sent, encrypted where it has to be.
fn write(
    stream: &mut TcpStream,
    session: &mut Option<Session>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let result = match session {
        Some(session) => {
            let mut sealed = Vec::new();
            session.seal(out, &mut sealed);
            stream.write_all(&sealed)
        }
        None => stream.write_all(out),
    };
    out.clear();
    result
}

impl Wire {
    fn open(
        address: &str,
        introduction: &Introduction,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let mut last = io::Error::other(format!("no address: {address}"));
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(stream) => return Self::greet(stream, introduction, patience),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn greet(
        mut stream: TcpStream,
        introduction: &Introduction,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut session = introduction.session(true)?;
        let mut out = Vec::new();
        let mut handshake = Handshake::start(introduction.clone(), true, &mut out)?;
        let (mut buffer, mut plain) = ([0; 4_096], Vec::new());
        loop {
            write(&mut stream, &mut session, &mut out)?;
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                // It does not say why: most likely the token.
                return Err(HandshakeError::Token.into());
            }
            let mut said = &buffer[..count];
            if let Some(session) = &mut session {
                plain.clear();
                if let Err(error) = session.receive(said, &mut plain) {
                    // It is told why, if it still listens.
                    let mut alert = Vec::new();
                    session.seal(&[], &mut alert);
                    let _ = stream.write_all(&alert);
                    return Err(error.into());
                }
                if let Some(binding) = session.binding() {
                    handshake.bind(&binding);
                }
                said = &plain;
            }
            if let Some((hello, rest)) = handshake.feed(said, &mut out)? {
                // The proof, if the other's came along with its hello. It is said once.
                write(&mut stream, &mut session, &mut out)?;
                stream.set_read_timeout(Some(TICK))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                let nobody = || ClientError::Answer("it is no node".to_owned());
                let peer = hello.from.ok_or_else(nobody)?;
                let mut frames = FrameReader::default();
                frames.feed(&rest);
                return Ok(Self { stream, session, peer, frames, out, plain, in_flight: 0 });
            }
        }
    }

    fn push(&mut self, packet: &Packet) {
        // Requests are cut far below the bound.
        if encode_frame(0, packet, &mut self.out).is_ok() {
            self.in_flight += 1;
        }
    }

    fn send(&mut self) -> io::Result<()> {
        write(&mut self.stream, &mut self.session, &mut self.out)
    }

    /// Reads what is there, or what comes within a tick; whether the connection lives.
    fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => false,
            Ok(count) => self.take(&buffer[..count]),
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ),
        }
    }

    /// Takes what was read; whether the connection lives.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let Some(session) = &mut self.session else {
            self.frames.feed(bytes);
            return true;
        };
        self.plain.clear();
        if session.receive(bytes, &mut self.plain).is_err() {
            return false;
        }
        self.frames.feed(&self.plain);
        // TLS may have to answer, as when keys are renewed.
        !session.owes() || write(&mut self.stream, &mut self.session, &mut Vec::new()).is_ok()
    }

    /// The next packet, if all of it is here.
    fn next(&mut self) -> Result<Option<Packet>, ClientError> {
        let frame = self.frames.next_frame();
        let frame = frame.map_err(|error| ClientError::Answer(error.to_string()))?;
        self.in_flight = self.in_flight.saturating_sub(u64::from(frame.is_some()));
        Ok(frame.map(|(_, packet)| packet))
    }
}

/// See the head of this module. Used by one thread at a time.
#[derive(Debug)]
pub struct ClusterClient {
    introduction: Introduction,
    home: Peer,
    wires: BTreeMap<Peer, Wire>,
    addresses: BTreeMap<Peer, String>,
    locator: Locator,
    client: Client,
    buffer: Vec<u8>,
}

impl ClusterClient {
    /// Connects to the first of some nodes that answers. `cache_bytes` bounds what it remembers of
    /// owners. The join token alone is enough where connections are not secured.
    ///
    /// # Errors
    ///
    /// [`ClientError`] of the last, if none does.
    pub fn connect(
        homes: &[String],
        credentials: impl Into<Credentials>,
        cache_bytes: usize,
    ) -> Result<Self, ClientError> {
        let introduction = Introduction::new(0, None, &credentials.into());
        let mut last = ClientError::Answer("no node is named".to_owned());
        for address in homes {
            match Wire::open(address, &introduction, PATIENCE) {
                Ok(wire) => return Self::at_home(wire, introduction, cache_bytes),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn at_home(
        wire: Wire,
        introduction: Introduction,
        cache_bytes: usize,
    ) -> Result<Self, ClientError> {
        let mut number = [0; 8];
        SystemRandom::new().fill(&mut number).map_err(|_| HandshakeError::Chance)?;
        let home = wire.peer;
        let locator = Locator::new(home, Settings::default(), cache_bytes, vec![home]);
        let client = Client::new(ClientId(u64::from_le_bytes(number)), home);
        let (wires, addresses) = (BTreeMap::from([(home, wire)]), BTreeMap::new());
        let buffer = vec![0; READ_BYTES];
        let mut own = Self { introduction, home, wires, addresses, locator, client, buffer };
        own.learn_addresses()?;
        Ok(own)
    }

    /// Who answers for the cluster.
    pub fn home(&self) -> Peer {
        self.home
    }

    /// What it did so far.
    pub fn statistics(&self) -> ClientStatistics {
        self.client.statistics()
    }

    /// Asks the home how it is, and who is there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn status(&mut self) -> Result<NodeStatus, ClientError> {
        match self.control(&Control::Ask)? {
            Control::Status(status) => Ok(*status),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// What the home says of an id, if it owns it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn holding(&mut self, id: ChunkId) -> Result<Option<Holding>, ClientError> {
        match self.control(&Control::Hold(id))? {
            Control::Held(holding) => Ok(holding),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// The named id of a key.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; its text says so if the key is none.
    pub fn place(&mut self, key: &[u8]) -> Result<ChunkId, ClientError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(ClientError::Answer(format!("a key has 1 to {MAX_KEY_BYTES} bytes")));
        }
        match self.control(&Control::Place(key.to_vec()))? {
            Control::Placed(id) => Ok(id),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Has the home move ids that it owns to another node; whether it begins to.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn migrate(&mut self, ids: IdRange, target: NodeId) -> Result<bool, ClientError> {
        match self.control(&Control::Migrate { ids, target })? {
            Control::Migrating(does) => Ok(does),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Has the home hand all it has to others and take nothing more; whether they have it all. To
    /// be asked again until they do.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn drain(&mut self) -> Result<bool, ClientError> {
        match self.control(&Control::Drain)? {
            Control::Drained(is) => Ok(is),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Asks the home and waits. No operation is under way meanwhile.
    fn control(&mut self, question: &Control) -> Result<Control, ClientError> {
        let gone = || ClientError::Answer("the home is gone".to_owned());
        let wire = self.wires.get_mut(&self.home).ok_or_else(gone)?;
        wire.push(&Packet::Control(question.clone()));
        wire.send()?;
        let end_ms = boot_ms() + PATIENCE.as_millis() as u64;
        while boot_ms() < end_ms {
            // Others are late answers to what was given up.
            while let Some(packet) = wire.next()? {
                if let Packet::Control(answer) = packet {
                    return Ok(answer);
                }
            }
            if !wire.receive(&mut self.buffer) {
                break;
            }
        }
        Err(gone())
    }

    fn learn_addresses(&mut self) -> Result<(), ClientError> {
        let status = self.status()?;
        self.addresses = status.members.into_iter().collect();
        self.wires.retain(|peer, _| self.addresses.contains_key(peer) || *peer == self.home);
        Ok(())
    }

    /// Carries out an operation.
    ///
    /// # Errors
    ///
    /// [`ChunkError`]; [`ChunkError::Unavailable`] if nobody knows what came of it.
    pub fn call(&mut self, action: Action) -> Result<Done, ChunkError> {
        self.call_all(vec![action]).pop().unwrap_or(Err(ChunkError::Unavailable))
    }

    /// Carries out operations, each by itself and in no order; answers are in theirs.
    pub fn call_all(&mut self, actions: Vec<Action>) -> Vec<Result<Done, ChunkError>> {
        let (mut commands, mut asked, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
        let mut places = BTreeMap::new();
        let mut answers = vec![Err(ChunkError::Unavailable); actions.len()];
        let now_ms = boot_ms();
        for (place, action) in actions.into_iter().enumerate() {
            if let Action::Create(value) | Action::Put(_, value) = &action
                && value.len() > MAX_CHUNK_BYTES
            {
                // It might not even fit into a frame.
                answers[place] = Err(ChunkError::TooLarge);
                continue;
            }
            let locator = &mut self.locator;
            let number = self.client.submit(action, locator, now_ms, &mut commands, &mut asked);
            places.insert(number, place);
        }
        let mut next_tick_ms = now_ms + TICK.as_millis() as u64;
        loop {
            self.dispatch(std::mem::take(&mut commands), std::mem::take(&mut asked));
            for (number, result) in outcomes.drain(..) {
                if let Some(place) = places.remove(&number) {
                    answers[place] = result;
                }
            }
            if places.is_empty() {
                return answers;
            }
            self.receive(&mut commands, &mut asked, &mut outcomes);
            let now_ms = boot_ms();
            if now_ms >= next_tick_ms {
                next_tick_ms = now_ms + TICK.as_millis() as u64;
                let mut unanswered = Vec::new();
                self.locator.on_tick(now_ms, &mut commands, &mut unanswered);
                let locator = &mut self.locator;
                for answer in unanswered {
                    let (to, done) = (&mut asked, &mut outcomes);
                    self.client.on_located(&answer, locator, now_ms, &mut commands, to, done);
                }
                self.client.on_tick(locator, now_ms, &mut commands, &mut asked, &mut outcomes);
            }
        }
    }

    /// Sends what is to be sent, in as few requests as possible.
    fn dispatch(&mut self, commands: Vec<Command>, asked: Vec<Asked>) {
        let mut touched: Vec<Peer> = Vec::new();
        for command in commands {
            // All that a client's locator says are lookups; its only super peer is the home.
            if let (Command::Send(_, message), Some(wire)) =
                (command, self.wires.get_mut(&self.home))
            {
                wire.push(&Packet::Overlay(message));
                touched.push(self.home);
            }
        }
        for (peer, request) in merged(asked) {
            if let Some(wire) = self.wire(peer) {
                wire.push(&Packet::Request(request));
                touched.push(peer);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for peer in touched {
            if self.wires.get_mut(&peer).is_some_and(|wire| wire.send().is_err()) {
                self.drop_wire(peer);
            }
        }
    }

    fn wire(&mut self, peer: Peer) -> Option<&mut Wire> {
        if !self.wires.contains_key(&peer) {
            if !self.addresses.contains_key(&peer) {
                // Somebody who joined since.
                self.learn_addresses().ok()?;
            }
            let address = self.addresses.get(&peer)?;
            match Wire::open(address, &self.introduction, PATIENCE) {
                // Another life of that node is none of the one that is meant.
                Ok(wire) if wire.peer == peer => {
                    self.wires.insert(peer, wire);
                }
                Ok(_) => {
                    self.addresses.remove(&peer);
                    return None;
                }
                Err(error) => {
                    log::debug!(address:%, error:%; "a node cannot be reached");
                    return None;
                }
            }
        }
        self.wires.get_mut(&peer)
    }

    /// A connection is broken. The home is dialed again at once: all lookups go there.
    fn drop_wire(&mut self, peer: Peer) {
        self.wires.remove(&peer);
        if peer == self.home
            && let Some(address) = self.addresses.get(&peer)
            && let Ok(wire) = Wire::open(address, &self.introduction, PATIENCE)
            && wire.peer == peer
        {
            self.wires.insert(peer, wire);
        }
    }

    /// Takes what arrives within a tick.
    fn receive(
        &mut self,
        commands: &mut Vec<Command>,
        asked: &mut Vec<Asked>,
        outcomes: &mut Vec<Outcome>,
    ) {
        let mut waiting: Vec<Peer> = Vec::new();
        waiting.extend(self.wires.iter().filter(|(_, wire)| wire.in_flight > 0).map(|(p, _)| *p));
        let ready = match &waiting[..] {
            [] => return std::thread::sleep(TICK / 20),
            // One connection: reading waits by itself.
            [_] => waiting,
            _ => self.wait(waiting),
        };
        for peer in ready {
            let Some(wire) = self.wires.get_mut(&peer) else { continue };
            if !wire.receive(&mut self.buffer) {
                self.drop_wire(peer);
                continue;
            }
            while let Some(wire) = self.wires.get_mut(&peer) {
                match wire.next() {
                    Ok(Some(packet)) => self.take(peer, packet, commands, asked, outcomes),
                    Ok(None) => break,
                    Err(error) => {
                        log::warn!(error:%; "a connection is given up");
                        self.drop_wire(peer);
                        break;
                    }
                }
            }
        }
    }

    /// Those of some connections that have something to read, after a tick at most.
    fn wait(&self, waiting: Vec<Peer>) -> Vec<Peer> {
        let streams = waiting.iter().filter_map(|peer| self.wires.get(peer));
        let mut descriptors: Vec<PollFd<'_>> =
            streams.map(|wire| PollFd::new(&wire.stream, PollFlags::IN)).collect();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        // An interrupted wait finds nothing ready.
        if poll(&mut descriptors, Some(&timeout)).is_err() {
            return Vec::new();
        }
        let ready = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty());
        let ready: Vec<bool> = ready.collect();
        waiting.into_iter().zip(ready).filter_map(|(peer, is)| is.then_some(peer)).collect()
    }

    fn take(
        &mut self,
        from: Peer,
        packet: Packet,
        commands: &mut Vec<Command>,
        asked: &mut Vec<Asked>,
        outcomes: &mut Vec<Outcome>,
    ) {
        let now_ms = boot_ms();
        let locator = &mut self.locator;
        match packet {
            Packet::Reply(reply) => {
                self.client.on_reply(from, reply, locator, now_ms, commands, outcomes);
            }
            Packet::Overlay(message) => {
                let mut answers = Vec::new();
                locator.on_message(&message, now_ms, commands, &mut answers);
                for answer in answers {
                    let locator = &mut self.locator;
                    self.client.on_located(&answer, locator, now_ms, commands, asked, outcomes);
                }
            }
            Packet::Move(_) | Packet::Request(_) | Packet::Control(_) => {}
            Packet::Backup(_) | Packet::Heat(_) => {}
        }
    }

    /// Stores a new chunk on the home node.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn create(&mut self, value: &[u8]) -> Result<ChunkId, ChunkError> {
        match self.call(Action::Create(value.to_vec()))? {
            Done::Created(id) => Ok(id),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Reads a chunk.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn get(&mut self, id: ChunkId) -> Result<Vec<u8>, ChunkError> {
        match self.call(Action::Get(id))? {
            Done::Value(value) => Ok(value),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Reads chunks together.
    pub fn get_all(&mut self, ids: &[ChunkId]) -> Vec<Result<Vec<u8>, ChunkError>> {
        let done = self.call_all(ids.iter().map(|id| Action::Get(*id)).collect());
        let value = |done: Result<Done, ChunkError>| match done? {
            Done::Value(value) => Ok(value),
            _ => Err(ChunkError::Unavailable),
        };
        done.into_iter().map(value).collect()
    }

    /// Replaces the value of a chunk.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn put(&mut self, id: ChunkId, value: &[u8]) -> Result<(), ChunkError> {
        self.call(Action::Put(id, value.to_vec())).map(drop)
    }

    /// Removes a chunk.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn delete(&mut self, id: ChunkId) -> Result<(), ChunkError> {
        self.call(Action::Delete(id)).map(drop)
    }

    /// Gives a chunk a name, in place of what had it before: a named item that holds the 8 bytes of
    /// the id, the highest first (DXRAM's naming service).
    ///
    /// # Errors
    ///
    /// [`ChunkError::TooLarge`] if the name is no key; else as [`ClusterClient::call`].
    pub fn name(&mut self, name: &[u8], id: ChunkId) -> Result<(), ChunkError> {
        let store = Store::new(StoreMode::Set, b"", 0, 0);
        let ItemVerb::Store(head, _) = ItemVerb::from(Verb::Store(store)) else {
            return Err(ChunkError::Unavailable);
        };
        let value = id.bits().to_be_bytes().to_vec();
        match self.item(name, ItemVerb::Store(head, value))?.outcome {
            ItemOutcome::Stored(_) => Ok(()),
            ItemOutcome::TooLarge => Err(ChunkError::TooLarge),
            _ => Err(ChunkError::Full),
        }
    }

    /// The chunk of that name.
    ///
    /// # Errors
    ///
    /// [`ChunkError::NoChunk`] if nothing has that name, or something that is no chunk; else as
    /// [`ClusterClient::name`].
    pub fn named(&mut self, name: &[u8]) -> Result<ChunkId, ChunkError> {
        let item = self.item(name, ItemVerb::Read)?.item.ok_or(ChunkError::NoChunk)?;
        let bits = item.value.try_into().map(u64::from_be_bytes);
        let id = bits.ok().and_then(|bits| ChunkId::from_bits(bits).ok());
        id.filter(|id| !id.creator().is_named()).ok_or(ChunkError::NoChunk)
    }

    /// Takes a name back; the chunk stays.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::named`].
    pub fn unname(&mut self, name: &[u8]) -> Result<(), ChunkError> {
        match self.item(name, ItemVerb::Delete(Delete::default()))?.outcome {
            ItemOutcome::Deleted => Ok(()),
            _ => Err(ChunkError::NoChunk),
        }
    }

    /// Carries out an operation on a named item.
    fn item(&mut self, key: &[u8], verb: ItemVerb) -> Result<ItemAnswer, ChunkError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(ChunkError::TooLarge);
        }
        let id = self.place(key).map_err(|_| ChunkError::Unavailable)?;
        let op = Box::new(ItemOp { key: key.to_vec(), verb });
        match self.call(Action::Item { id, op })? {
            Done::Item(answer) => Ok(*answer),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Locks a chunk for some time at most.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn lock(&mut self, id: ChunkId, lease_ms: u64) -> Result<(), ChunkError> {
        self.call(Action::Lock { id, lease_ms }).map(drop)
    }

    /// Releases a lock.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn unlock(&mut self, id: ChunkId) -> Result<(), ChunkError> {
        self.call(Action::Unlock(id)).map(drop)
    }
}

/// One request for each node, or a few where it would be too long.
fn merged(asked: Vec<Asked>) -> Vec<Asked> {
    let mut requests: Vec<(Asked, usize)> = Vec::new();
    for (peer, request) in asked {
        let bytes: usize = request.operations.iter().map(|one| bytes_of(&one.action)).sum();
        let fits = |((to, open), length): &&mut ((Peer, Request), usize)| {
            *to == peer
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

/// About what an operation takes on the wire.
fn bytes_of(action: &Action) -> usize {
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
