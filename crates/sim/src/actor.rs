//! Who lives in the world.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Action, ChunkError, ChunkStore, ClientId, Done, Limits};
use amalgam_cluster::ids::{ChunkId, Creator, IdRange, NodeId};
use amalgam_cluster::node::{Effect, Node, NodeSettings};
use amalgam_cluster::overlay::{Answer, Change, Command, Locator, Peer, Settings, SuperPeer, View};
use amalgam_cluster::ranges::{LIMIT_BYTES_MIN, Placement};
use amalgam_cluster::wire::Packet;

use crate::ledger::Ledger;
use crate::names::Names;
use crate::random::Random;
use crate::store::{History, MemoryStore};

/// Ids of a creator that are in use; few, so that many contend for the same.
pub const IDS: u64 = 200;

/// What all actors share, as nobody in a real cluster does: what exists, and what was observed.
#[derive(Debug, Default)]
pub struct Common {
    /// Every life so far.
    pub peers: Vec<Peer>,
    /// What leaders committed.
    pub ledger: Ledger,
    /// What lookups named, once the work is over.
    pub located: BTreeMap<ChunkId, Option<NodeId>>,
    /// Chunks that were created.
    pub chunks: Vec<ChunkId>,
    /// What clients saw.
    pub history: History,
    /// What clients saw of named items.
    pub names: Names,
    /// What nobody should have been answered.
    pub wrong: Vec<String>,
    /// Whether the work is over.
    pub is_calm: bool,
}

/// A node with its workload.
pub trait Actor: Sized {
    /// A new life begins.
    fn start(peer: Peer, supers: Vec<Peer>, settings: Settings) -> Self;

    /// Its part of the overlay.
    fn super_peer(&self) -> &SuperPeer;

    /// Questions without an answer.
    fn waiting(&self) -> usize;

    /// Its lease was prolonged.
    fn set_deadline(&mut self, deadline_ms: u64);

    /// The coordinator decided something.
    fn on_view(&mut self, view: &View, out: &mut Vec<Effect>);

    /// A packet arrived.
    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        common: &mut Common,
        now_ms: u64,
        out: &mut Vec<Effect>,
    );

    /// Time went on.
    fn on_tick(&mut self, common: &mut Common, now_ms: u64, out: &mut Vec<Effect>);

    /// Something that it may want, whether it is possible or not.
    fn work(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    );
}

/// Changes owners at random.
#[derive(Debug)]
pub struct Editor {
    peer: Peer,
    super_peer: SuperPeer,
    locator: Locator,
    asked: BTreeMap<u64, Creator>,
}

impl Editor {
    /// Asks where an id is.
    pub fn look_up(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<Effect>) {
        let mut commands = Vec::new();
        self.locator.look_up(id, now_ms, &mut commands);
        send(commands, out);
    }

    fn answered(&self, answers: Vec<Answer>, common: &mut Common) {
        for answer in answers {
            match answer {
                Answer::Changed(request, Ok(epoch)) => {
                    common.ledger.on_answer(self.asked[&request.sequence], request, epoch);
                }
                Answer::Located(_, located) if common.is_calm => {
                    let (ids, owner) = (located.range.ids, located.range.placement.owner());
                    for counter in ids.first().counter()..=ids.last().counter() {
                        let id = ChunkId::new(ids.first().creator(), counter).expect("an id");
                        common.located.insert(id, Some(owner));
                    }
                }
                Answer::Unowned(_, id) if common.is_calm => {
                    common.located.insert(id, None);
                }
                _ => {}
            }
        }
    }
}

fn send(commands: Vec<Command>, out: &mut Vec<Effect>) {
    out.extend(commands.into_iter().map(|command| match command {
        Command::Send(to, message) => Effect::Send(to, Packet::Overlay(message)),
        Command::Propose(proposal) => Effect::Propose(proposal),
        Command::Log(event) => Effect::Log(event),
    }));
}

impl Actor for Editor {
    fn start(peer: Peer, supers: Vec<Peer>, settings: Settings) -> Self {
        let super_peer = SuperPeer::new(peer, settings);
        let locator = Locator::new(peer, settings, LIMIT_BYTES_MIN, supers);
        Self { peer, super_peer, locator, asked: BTreeMap::new() }
    }

    fn super_peer(&self) -> &SuperPeer {
        &self.super_peer
    }

    fn waiting(&self) -> usize {
        self.locator.waiting()
    }

    fn set_deadline(&mut self, _: u64) {}

    fn on_view(&mut self, view: &View, out: &mut Vec<Effect>) {
        let mut commands = Vec::new();
        self.super_peer.on_view(view, &mut commands);
        send(commands, out);
    }

    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        common: &mut Common,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let Packet::Overlay(message) = packet else { return };
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.locator.on_message(&message, now_ms, &mut commands, &mut answers);
        self.super_peer.on_message(from, message, &mut commands);
        send(commands, out);
        self.answered(answers, common);
    }

    fn on_tick(&mut self, common: &mut Common, now_ms: u64, out: &mut Vec<Effect>) {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.super_peer.on_tick(now_ms, &mut commands);
        self.locator.on_tick(now_ms, &mut commands, &mut answers);
        send(commands, out);
        self.answered(answers, common);
    }

    fn work(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        if random.percent(70) || self.locator.waiting() > 20 {
            return;
        }
        let creator = random.pick(&common.peers).expect("there is one").node;
        let other = random.pick(&common.peers).expect("there is one").node;
        let start = random.below(IDS);
        let most = if random.percent(50) { 1 } else { IDS - start };
        let first = ChunkId::new(Creator::from(creator), start).expect("an id");
        let length = (1 + random.below(most)).min(IDS - start);
        let ids = IdRange::starting_at(first, length).expect("a range");
        let change = match random.below(10) {
            0..2 => Change::Claim(Placement::of_owner(self.peer.node)),
            2..6 => Change::Migrate(Placement::of_owner(other)),
            6 => Change::Release,
            7 => Change::Fence,
            _ => return self.look_up(first, now_ms, out),
        };
        let mut commands = Vec::new();
        let request = self.locator.change(ids, change, now_ms, &mut commands);
        self.asked.insert(request.sequence, first.creator());
        send(commands, out);
    }
}

/// What the client of a [`Host`]'s node is after.
pub trait Pursuit: Sized {
    /// Where the node keeps what it holds.
    type Store: ChunkStore;

    /// Begins, with a node of its liking.
    fn open(settings: &mut NodeSettings) -> (Self, Self::Store);

    /// An operation was answered that began at a time.
    fn observe(
        &mut self,
        common: &mut Common,
        action: Action,
        began_ms: u64,
        result: &Result<Done, ChunkError>,
        now_ms: u64,
    );

    /// Something that it may want.
    fn work(
        host: &mut Host<Self>,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    );
}

/// A node whose client is after something.
#[derive(Debug)]
pub struct Host<P: Pursuit> {
    pub(crate) peer: Peer,
    pub(crate) node: Node<P::Store>,
    /// What the client is doing: the action and when it began.
    pub(crate) doing: BTreeMap<u64, (Action, u64)>,
    pub(crate) pursuit: P,
}

/// A node whose client creates, reads and writes everybody's chunks, while the node moves those it
/// owns to others.
pub type Keeper = Host<Chunks>;

/// See [`Keeper`].
#[derive(Debug, Default)]
pub struct Chunks {
    next_value: u64,
}

impl<P: Pursuit> Host<P> {
    /// The node.
    pub fn node(&self) -> &Node<P::Store> {
        &self.node
    }

    /// Begins an operation.
    pub fn submit(&mut self, action: Action, now_ms: u64, out: &mut Vec<Effect>) {
        let number = self.node.submit(action.clone(), now_ms, out);
        self.doing.insert(number, (action, now_ms));
    }

    fn observe(&mut self, common: &mut Common, now_ms: u64, effects: &[Effect]) {
        for effect in effects {
            let Effect::Answered(number, result) = effect else { continue };
            let Some((action, began_ms)) = self.doing.remove(number) else { continue };
            self.pursuit.observe(common, action, began_ms, result, now_ms);
        }
    }
}

impl Host<Chunks> {
    /// Reads a chunk.
    pub fn get(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<Effect>) {
        self.submit(Action::Get(id), now_ms, out);
    }

    /// A value that nobody else writes.
    fn new_value(&mut self) -> u64 {
        self.pursuit.next_value += 1;
        u64::from(self.peer.node.get()) << 48 | self.pursuit.next_value
    }
}

fn number_of(value: &[u8]) -> u64 {
    value.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

impl<P: Pursuit> Actor for Host<P> {
    fn start(peer: Peer, supers: Vec<Peer>, overlay: Settings) -> Self {
        let chunks = Limits { claim_ids: 300, low_ids: 100, ..Limits::default() };
        let cache_bytes = LIMIT_BYTES_MIN;
        let mut settings = NodeSettings { overlay, chunks, holds_items: false, cache_bytes };
        let (pursuit, store) = P::open(&mut settings);
        let client = ClientId(u64::from(peer.node.get()) << 32 | u64::from(peer.incarnation));
        let node = Node::new(peer, settings, supers, client, store);
        Self { peer, node, doing: BTreeMap::new(), pursuit }
    }

    fn super_peer(&self) -> &SuperPeer {
        self.node.super_peer()
    }

    fn waiting(&self) -> usize {
        self.doing.len()
    }

    fn set_deadline(&mut self, deadline_ms: u64) {
        self.node.set_deadline(deadline_ms);
    }

    fn on_view(&mut self, view: &View, out: &mut Vec<Effect>) {
        self.node.on_view(view, out);
    }

    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        common: &mut Common,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        self.node.on_packet(from, packet, &mut || now_ms, out);
        self.observe(common, now_ms, out);
    }

    fn on_tick(&mut self, common: &mut Common, now_ms: u64, out: &mut Vec<Effect>) {
        self.node.on_tick(now_ms, out);
        self.observe(common, now_ms, out);
    }

    fn work(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        P::work(self, common, random, now_ms, out);
    }
}

impl Pursuit for Chunks {
    type Store = MemoryStore;

    fn open(_: &mut NodeSettings) -> (Self, MemoryStore) {
        Default::default()
    }

    fn observe(
        &mut self,
        common: &mut Common,
        action: Action,
        began_ms: u64,
        result: &Result<Done, ChunkError>,
        now_ms: u64,
    ) {
        match (&action, result) {
            (Action::Create(value), Ok(Done::Created(id))) => {
                let value = number_of(value);
                common.history.write_begins(*id, value, began_ms);
                common.history.write_ends(*id, value, now_ms);
                common.chunks.push(*id);
            }
            (Action::Put(id, value), Ok(Done::Ok)) => {
                common.history.write_ends(*id, number_of(value), now_ms);
            }
            (Action::Get(id), Ok(Done::Value(value))) => {
                common.history.read(*id, number_of(value), began_ms, now_ms);
            }
            // A lock of somebody else, and who does not hold one.
            (
                Action::Put(..) | Action::Lock { .. } | Action::Unlock(_),
                Err(ChunkError::Locked | ChunkError::NotLocked),
            )
            | (Action::Lock { .. } | Action::Unlock(_), Ok(Done::Ok)) => {}
            // Nobody knows.
            (_, Err(ChunkError::Unavailable)) => {}
            (action, result) => {
                common.wrong.push(format!("{now_ms}: {action:?} came to {result:?}"));
            }
        }
    }

    fn work(
        host: &mut Keeper,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        if random.percent(10) {
            host.move_some(common, random, now_ms, out);
        }
        if host.doing.len() > 8 {
            return;
        }
        let value = host.new_value();
        let Some(id) = random.pick(&common.chunks).copied().filter(|_| random.percent(95)) else {
            let action = Action::Create(value.to_le_bytes().to_vec());
            return host.submit(action, now_ms, out);
        };
        let action = match random.below(10) {
            0..5 => Action::Get(id),
            5 => Action::Lock { id, lease_ms: 200 },
            6 => Action::Unlock(id),
            _ => {
                common.history.write_begins(id, value, now_ms);
                Action::Put(id, value.to_le_bytes().to_vec())
            }
        };
        host.submit(action, now_ms, out);
    }
}

impl Host<Chunks> {
    /// Moves a few ids around one that this node serves.
    fn move_some(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let target = *random.pick(&common.peers).expect("there is one");
        let chunks = common.chunks.iter().filter(|id| self.node.chunks().serves(**id));
        let own: Vec<ChunkId> = chunks.copied().collect();
        let Some(first) = random.pick(&own).copied() else { return };
        let length = if random.percent(50) { 1 } else { 1 + random.below(80) };
        let ids = IdRange::starting_at(first, length).expect("a range");
        self.node.migrate(ids, target, now_ms, out);
    }
}
