//! One node of the cluster: its part in the overlay, its chunks, and a client of its own.
//!
//! Invariants of this room:
//! 1. Packets, views and ticks go in, effects come out; what is done is decided by them alone.
//! 2. Ids change hands only by an edit that a super peer answered.

use std::collections::BTreeMap;

use crate::chunks::{
    Action, ChunkError, ChunkService, ChunkStore, ClientId, Done, Limits, Reply, Request, Wish,
};
use crate::client::Client;
use crate::coordinator::Proposal;
use crate::homes::Homes;
use crate::ids::{ChunkId, Creator, IdRange};
use crate::overlay::{
    Answer, Change, Command, Event, Locator, Peer, Refusal, RequestId, Settings, SuperPeer, View,
};
use crate::ranges::Placement;
use crate::wire::Packet;

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a packet to that life of a node.
    Send(Peer, Packet),
    /// Ask the coordinator to decide.
    Propose(Proposal),
    /// Something for the log.
    Log(Event),
    /// An operation of the node's own client was answered.
    Answered(u64, Result<Done, ChunkError>),
}

/// Parameters of a [`Node`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeSettings {
    /// Of the overlay.
    pub overlay: Settings,
    /// Of the chunk service.
    pub chunks: Limits,
    /// Whether it claims partitions of the named ids. Its store must take items then.
    pub holds_items: bool,
    /// Memory for ranges that were looked up, in bytes; at least
    /// [`crate::ranges::LIMIT_BYTES_MIN`].
    pub cache_bytes: usize,
}

/// Why the metadata is changed.
#[derive(Clone, Copy, Debug)]
enum Reason {
    /// For chunks to come.
    Claim,
    /// A move.
    Give,
    /// A partition of the named ids.
    Home,
    /// The same, which an earlier life of this node owned.
    Adopt,
}

/// Everything that a node is, but for its sockets and clocks.
#[derive(Debug)]
pub struct Node<S> {
    me: Peer,
    super_peer: SuperPeer,
    locator: Locator,
    chunks: ChunkService<S>,
    client: Client,
    /// None if it claims no partitions of the named ids.
    homes: Option<Homes>,
    /// Ids that were asked for or given away, by request.
    edits: BTreeMap<RequestId, (IdRange, Reason)>,
    /// What the chunk service wants to know.
    lookups: BTreeMap<u64, ChunkId>,
}

impl<S: ChunkStore> Node<S> {
    /// A node in a new life. `client` is a number that no client had before.
    pub fn new(
        me: Peer,
        settings: NodeSettings,
        supers: Vec<Peer>,
        client: ClientId,
        store: S,
    ) -> Self {
        Self {
            me,
            super_peer: SuperPeer::new(me, settings.overlay),
            locator: Locator::new(me, settings.overlay, settings.cache_bytes, supers),
            chunks: ChunkService::new(me, settings.chunks, store),
            client: Client::new(client, me),
            homes: settings.holds_items.then(Homes::default),
            edits: BTreeMap::new(),
            lookups: BTreeMap::new(),
        }
    }

    /// Its chunks.
    pub fn chunks(&self) -> &ChunkService<S> {
        &self.chunks
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What it keeps as a super peer.
    pub fn super_peer(&self) -> &SuperPeer {
        &self.super_peer
    }

    /// The node is a member until then.
    pub fn set_deadline(&mut self, deadline_ms: u64) {
        self.chunks.set_deadline(deadline_ms);
    }

    /// Begins an operation of the node's own client; [`Effect::Answered`] names its number.
    pub fn submit(&mut self, action: Action, now_ms: u64, out: &mut Vec<Effect>) -> u64 {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        let locator = &mut self.locator;
        let number = self.client.submit(action, locator, now_ms, &mut commands, &mut asked);
        send(commands, asked, out);
        number
    }

    /// Carries out a request of a client that has no node of its own.
    pub fn execute(&mut self, request: &Request, clock: &mut dyn FnMut() -> u64) -> Reply {
        self.chunks.execute(request, clock)
    }

    /// Begins to move ids of this node to another; whether it does.
    pub fn migrate(
        &mut self,
        ids: IdRange,
        target: Peer,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) -> bool {
        let mut wishes = Vec::new();
        let does = self.chunks.migrate(ids, target, now_ms, &mut wishes);
        self.grant(wishes, now_ms, out);
        does
    }

    /// The coordinator decided something.
    pub fn on_view(&mut self, view: &View, out: &mut Vec<Effect>) {
        let before: Vec<Peer> = {
            let members = self.super_peer.view().members.iter();
            members
                .map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
                .collect()
        };
        let mut commands = Vec::new();
        self.super_peer.on_view(view, &mut commands);
        for gone in before.into_iter().filter(|peer| !self.super_peer.view().has(*peer)) {
            self.chunks.on_gone(gone);
        }
        send(commands, Vec::new(), out);
    }

    /// Time went on.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        let (mut asked, mut outcomes, mut wishes) = (Vec::new(), Vec::new(), Vec::new());
        self.super_peer.on_tick(now_ms, &mut commands);
        let (chunks, view) = (&self.chunks, self.super_peer.view());
        let owns = |partition: Creator| chunks.serves(partition.ids().first());
        if let Some(homes) = self.homes.as_mut().filter(|_| view.has(self.me)) {
            for partition in homes.wanted(self.me.node, view, now_ms, owns) {
                let change = Change::Claim(Placement::of_owner(self.me.node));
                let ids = partition.ids();
                let request = self.locator.change(ids, change, now_ms, &mut commands);
                self.edits.insert(request, (ids, Reason::Home));
            }
        }
        self.locator.on_tick(now_ms, &mut commands, &mut answers);
        self.chunks.on_tick(now_ms, &mut wishes);
        let locator = &mut self.locator;
        self.client.on_tick(locator, now_ms, &mut commands, &mut asked, &mut outcomes);
        send(commands, asked, out);
        self.grant(wishes, now_ms, out);
        self.answered(&answers, now_ms, out);
        tell(outcomes, out);
    }

    /// A packet arrived. `clock` tells the time in milliseconds, as often as it is asked.
    pub fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        clock: &mut dyn FnMut() -> u64,
        out: &mut Vec<Effect>,
    ) {
        let now_ms = clock();
        match packet {
            Packet::Overlay(message) => {
                let (mut commands, mut answers) = (Vec::new(), Vec::new());
                self.locator.on_message(&message, now_ms, &mut commands, &mut answers);
                self.super_peer.on_message(from, message, &mut commands);
                send(commands, Vec::new(), out);
                self.answered(&answers, now_ms, out);
            }
            Packet::Move(message) => {
                let mut wishes = Vec::new();
                self.chunks.on_move(from, message, now_ms, &mut wishes);
                self.grant(wishes, now_ms, out);
            }
            Packet::Request(request) => {
                let reply = self.execute(&request, clock);
                out.push(Effect::Send(from, Packet::Reply(reply)));
            }
            // Of the process around it.
            Packet::Control(_) => {}
            Packet::Reply(reply) => {
                let (mut commands, mut outcomes) = (Vec::new(), Vec::new());
                let locator = &mut self.locator;
                self.client.on_reply(from, reply, locator, now_ms, &mut commands, &mut outcomes);
                send(commands, Vec::new(), out);
                tell(outcomes, out);
            }
        }
    }

    /// Does what the chunk service wants.
    fn grant(&mut self, wishes: Vec<Wish>, now_ms: u64, out: &mut Vec<Effect>) {
        let mut commands = Vec::new();
        for wish in wishes {
            match wish {
                Wish::Send(to, message) => out.push(Effect::Send(to, Packet::Move(message))),
                Wish::Claim(ids) => {
                    let change = Change::Claim(Placement::of_owner(self.me.node));
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, Reason::Claim));
                }
                Wish::Give(ids, target) => {
                    let change = Change::Migrate(Placement::of_owner(target.node));
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, Reason::Give));
                }
                Wish::LookUp(id) => {
                    self.locator.forget(IdRange::single(id));
                    let token = self.locator.look_up(id, now_ms, &mut commands);
                    self.lookups.insert(token, id);
                }
            }
        }
        send(commands, Vec::new(), out);
    }

    /// Super peers answered.
    fn answered(&mut self, answers: &[Answer], now_ms: u64, out: &mut Vec<Effect>) {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        let (mut wishes, mut outcomes) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Answer::Changed(request, result) => match (self.edits.remove(request), result) {
                    (Some((ids, Reason::Claim)), _) => self.chunks.on_claimed(ids, *result),
                    (Some((ids, Reason::Give)), _) => {
                        self.chunks.on_given(ids, *result, now_ms, &mut wishes);
                    }
                    (Some((ids, Reason::Home | Reason::Adopt)), Ok(epoch)) => {
                        self.chunks.adopt(ids, *epoch);
                    }
                    // Perhaps an earlier life of this node owns it, whose items are gone.
                    (Some((ids, Reason::Home)), Err(Refusal::Owned)) => {
                        let change = Change::Migrate(Placement::of_owner(self.me.node));
                        let request = self.locator.change(ids, change, now_ms, &mut commands);
                        self.edits.insert(request, (ids, Reason::Adopt));
                    }
                    _ => {}
                },
                Answer::Located(token, located) if self.lookups.contains_key(token) => {
                    let id = self.lookups.remove(token).expect("it is there");
                    self.chunks.on_located(id, located, now_ms);
                }
                Answer::Unowned(token, _) | Answer::Unanswered(token, _)
                    if self.lookups.remove(token).is_some() => {}
                answer => {
                    let locator = &mut self.locator;
                    let (to, done) = (&mut asked, &mut outcomes);
                    self.client.on_located(answer, locator, now_ms, &mut commands, to, done);
                }
            }
        }
        send(commands, asked, out);
        self.grant(wishes, now_ms, out);
        tell(outcomes, out);
    }
}

fn send(commands: Vec<Command>, asked: Vec<crate::client::Asked>, out: &mut Vec<Effect>) {
    out.extend(commands.into_iter().map(|command| match command {
        Command::Send(to, message) => Effect::Send(to, Packet::Overlay(message)),
        Command::Propose(proposal) => Effect::Propose(proposal),
        Command::Log(event) => Effect::Log(event),
    }));
    let requests = asked.into_iter();
    out.extend(requests.map(|(to, request)| Effect::Send(to, Packet::Request(request))));
}

fn tell(outcomes: Vec<crate::client::Outcome>, out: &mut Vec<Effect>) {
    let answered = outcomes.into_iter();
    out.extend(answered.map(|(number, result)| Effect::Answered(number, result)));
}
