//! One node of the cluster: its part in the overlay, its chunks, and a client of its own.
//!
//! Invariants of this room:
//! 1. Packets, views and ticks go in, effects come out; what is done is decided by them alone.
//! 2. Ids change hands only by an edit that a super peer answered.
//! 3. A node with a log ([`Node::resume`]) sends nothing about metadata before what that rests on
//!    is safe in the log; if it cannot be made safe, nothing at all, and the node is to stop.

use std::collections::{BTreeMap, BTreeSet};

use crate::backup::{BackupMessage, Remains, Vault, Wanted};
use crate::chunks::{
    Action, Asker, ChunkError, ChunkService, ChunkStore, ClientId, Done, Limits, MOVES_MAX, Reply,
    Request, Unread, Wish,
};
use crate::client::Client;
use crate::coordinator::Proposal;
use crate::heat::{HeatMessage, HeatWish};
use crate::homes::Homes;
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::log::LogError;
use crate::overlay::{
    Answer, Change, Command, Event, Locator, Message, Peer, Placed, RequestId, Settings, SuperPeer,
    View, position,
};
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
    /// The answer to a request of a client that has no node of its own, by its number.
    Reply(u64, Reply),
    /// An operation of the node's own client was answered.
    Answered(u64, Result<Done, ChunkError>),
    /// The node cannot keep what it would have to promise: it is to stop.
    Stop(LogError),
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

/// Moves that a node makes at once to tidy up; some are left for operators and hot items.
const TIDYING_MAX: usize = MOVES_MAX - 16;

/// How often a node reads again what it keeps, and how many chunks and items then.
const SCRUB_MS: u64 = 100;
const SCRUB_COPIES: usize = 32;
/// How often a node asks whether what it keeps of lives that are over is needed.
const NEEDED_MS: u64 = 5_000;
/// Of how many creators it asks at once.
const NEEDED_MAX: usize = 256;

/// Why the metadata is changed.
#[derive(Clone, Copy, Debug)]
enum Reason {
    /// For chunks to come.
    Claim,
    /// A move.
    Give,
    /// A partition of the named ids.
    Home,
    /// Other backups.
    Backups(u64),
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
    /// Others' chunks, where this node is their backup; none if it is nobody's.
    vault: Option<Vault>,
    /// Whether the vault has the metadata, too.
    is_noting: bool,
    /// What waits until the log is safe.
    unsaid: Vec<Effect>,
    /// Owners that were gone when it was asked last, and when to ask again.
    gone: BTreeSet<Peer>,
    next_needed_ms: u64,
    next_scrub_ms: u64,
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
            vault: None,
            is_noting: false,
            unsaid: Vec::new(),
            gone: BTreeSet::new(),
            next_needed_ms: 0,
            next_scrub_ms: 0,
        }
    }

    /// Keeps backups from now on.
    pub fn set_vault(&mut self, vault: Vault) {
        self.vault = Some(vault);
    }

    /// Keeps backups from now on, and its part of the metadata, where its former lives left theirs.
    /// To be called first.
    pub fn resume(&mut self, vault: Vault, remains: &Remains) {
        self.super_peer.resume(remains.since, &remains.notes);
        self.is_noting = true;
        self.vault = Some(vault);
    }

    /// Its backups of others' chunks.
    pub fn vault(&self) -> Option<&Vault> {
        self.vault.as_ref()
    }

    /// The same, when the node is not needed any more.
    pub fn into_vault(self) -> Option<Vault> {
        self.vault
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

    /// Carries out a request of a client that has no node of its own. If it has to wait for
    /// backups, [`Effect::Reply`] answers it, with that number.
    pub fn execute(
        &mut self,
        number: u64,
        request: &Request,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<Reply> {
        self.chunks.execute(Asker::Local(number), request, clock)
    }

    /// Sends what waits to go along with others: once after many packets. What backups keep is
    /// written and synced here.
    pub fn flush(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let mut wishes = Vec::new();
        self.chunks.flush(now_ms, &mut wishes);
        self.grant(wishes, now_ms, out);
        let mut answers = Vec::new();
        if let Some(vault) = &mut self.vault {
            if self.is_noting {
                let super_peer = &mut self.super_peer;
                let notes = super_peer.take_notes();
                vault.note(&notes, &|creator| super_peer.catalog().snapshot(creator));
            }
            vault.flush(&mut answers);
            match vault.notes_failed() {
                None => out.append(&mut self.unsaid),
                Some(error) => {
                    self.unsaid.clear();
                    out.push(Effect::Stop(error));
                }
            }
        }
        let answers = answers.into_iter();
        out.extend(answers.map(|(to, answer)| Effect::Send(to, Packet::Backup(answer))));
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

    /// Where nodes are, as far as that was said: backups of what has none yet are spread by it.
    pub fn set_racks(&mut self, racks: BTreeMap<NodeId, String>) {
        self.chunks.set_racks(racks);
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
        let members = self.super_peer.view().members.iter();
        self.chunks.set_members(
            members.map(|(node, life)| Peer { node: *node, incarnation: life.incarnation }),
        );
        for gone in before.into_iter().filter(|peer| !self.super_peer.view().has(*peer)) {
            self.chunks.on_gone(gone);
        }
        self.say(commands, out);
    }

    /// What this node says as a super peer: when the log is safe, if there is one.
    fn say(&mut self, commands: Vec<Command>, out: &mut Vec<Effect>) {
        send(commands, Vec::new(), if self.is_noting { &mut self.unsaid } else { out });
    }

    /// Reads a part of its log again.
    fn scrub(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let Some(vault) = self.vault.as_mut().filter(|_| now_ms >= self.next_scrub_ms) else {
            return;
        };
        self.next_scrub_ms = now_ms + SCRUB_MS;
        let mut asked = Vec::new();
        let moment = self.chunks.moment();
        for (owner, ids) in vault.scrub(SCRUB_COPIES, &moment, &mut asked) {
            out.push(Effect::Log(Event::Unreadable(owner, ids)));
        }
        out.extend(asked.into_iter().map(|(to, ask)| Effect::Send(to, Packet::Backup(ask))));
    }

    /// Asks leaders whether anybody needs what it keeps of lives that are over, and were when it
    /// asked last: views may come late.
    fn ask_what_is_needed(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let Some(vault) = self.vault.as_ref().filter(|_| now_ms >= self.next_needed_ms) else {
            return;
        };
        self.next_needed_ms = now_ms + NEEDED_MS;
        let view = self.super_peer.view();
        let gone: BTreeSet<Peer> = vault.owners().filter(|owner| !view.has(*owner)).collect();
        let were_gone = gone.intersection(&self.gone);
        let kept = were_gone.flat_map(|source| {
            vault.creators(*source).into_iter().map(move |creator| (*source, creator))
        });
        for (source, creator) in kept.take(NEEDED_MAX) {
            let group = view.groups.get(position(creator));
            if let Some(leader) = group.and_then(|group| group.members.first()) {
                let message = Message::Needed { creator, source, revision: view.revision };
                out.push(Effect::Send(*leader, Packet::Overlay(message)));
            }
        }
        self.gone = gone;
    }

    /// Time went on.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        let (mut asked, mut outcomes, mut wishes) = (Vec::new(), Vec::new(), Vec::new());
        let mut own = Vec::new();
        self.super_peer.on_tick(now_ms, &mut own);
        self.say(own, out);
        self.ask_what_is_needed(now_ms, out);
        self.scrub(now_ms, out);
        let (chunks, view) = (&self.chunks, self.super_peer.view());
        let is_asked = |partition: Creator| {
            let mut edits = self.edits.values();
            edits.any(|(ids, _)| ids.first().creator() == partition)
        };
        // What is about to leave is owned, too.
        let has = |partition: Creator| {
            chunks.owned(partition.ids()).next().is_some() || is_asked(partition)
        };
        if let Some(homes) = self.homes.as_mut().filter(|_| view.has(self.me)) {
            let mut wanted = homes.wanted(self.me.node, view, now_ms, has);
            if chunks.is_leaving() {
                wanted.clear();
            }
            for partition in wanted {
                let change = Change::Claim(Placed::of_owner(self.me));
                let ids = partition.ids();
                let request = self.locator.change(ids, change, now_ms, &mut commands);
                self.edits.insert(request, (ids, Reason::Home));
            }
        }
        if let Some(vault) = &mut self.vault {
            let Unread { asked, lost } = self.chunks.load(now_ms, vault, &mut wishes);
            let asked = asked.into_iter().map(|(source, ids)| Event::Unreadable(source, ids));
            let lost = lost.into_iter().map(|(source, ids)| Event::Damaged(source, ids));
            out.extend(asked.chain(lost).map(Effect::Log));
        }
        self.tidy_up(now_ms, &mut wishes);
        self.cool(now_ms, &mut wishes, out);
        self.locator.on_tick(now_ms, &mut commands, &mut answers);
        self.chunks.on_tick(now_ms, &mut wishes);
        let locator = &mut self.locator;
        self.client.on_tick(locator, now_ms, &mut commands, &mut asked, &mut outcomes);
        send(commands, asked, out);
        self.grant(wishes, now_ms, out);
        self.answered(&answers, now_ms, out);
        tell(outcomes, out);
    }

    /// Moves what should be others' to them.
    fn tidy_up(&mut self, now_ms: u64, wishes: &mut Vec<Wish>) {
        let (chunks, view) = (&mut self.chunks, self.super_peer.view());
        let Some(homes) = self.homes.as_mut().filter(|_| view.has(self.me)) else { return };
        let free = TIDYING_MAX.saturating_sub(chunks.moves().0);
        let who = (self.me.node, chunks.is_leaving());
        for (ids, node) in homes.strays(who, now_ms, free, chunks.all_owned()) {
            if let Some(incarnation) = view.incarnation(node) {
                // What cannot move now is found again.
                chunks.migrate(ids, Peer { node, incarnation }, now_ms, wishes);
            }
        }
    }

    /// Moves what is hot to nodes that are less busy.
    fn cool(&mut self, now_ms: u64, wishes: &mut Vec<Wish>, out: &mut Vec<Effect>) {
        if self.chunks.is_leaving() || self.homes.is_none() {
            return;
        }
        let members = self.super_peer.view().members.iter();
        let peers = members.map(|(node, life)| Peer { node: *node, incarnation: life.incarnation });
        let others: Vec<Peer> = peers.filter(|peer| *peer != self.me).collect();
        for wish in self.chunks.cool(now_ms, &others) {
            match wish {
                HeatWish::Ask(peer) => {
                    out.push(Effect::Send(peer, Packet::Heat(HeatMessage::Ask)));
                }
                HeatWish::Move(id, target) => {
                    self.chunks.migrate(IdRange::single(id), target, now_ms, wishes);
                }
            }
        }
    }

    /// The node is about to leave: it moves all it has to others.
    pub fn leave(&mut self) {
        self.chunks.leave();
    }

    /// Whether nothing is left here that others could have.
    pub fn has_left(&self) -> bool {
        let is_alone = self.super_peer.view().members.len() <= 1;
        is_alone || (self.chunks.all_owned().next().is_none() && self.chunks.moves().0 == 0)
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
            Packet::Overlay(Message::Inherit(inheritance)) => {
                if let Some(vault) = &mut self.vault {
                    self.chunks.inherit(&inheritance, vault);
                }
            }
            Packet::Overlay(Message::Unneeded { creator, source }) => {
                // What cannot be forgotten now is asked about again.
                if let Some(vault) = &mut self.vault
                    && !self.super_peer.view().has(source)
                {
                    let _ = vault.forget(source, creator);
                }
            }
            Packet::Backup(BackupMessage::Append { link, first, entries }) => {
                if let Some(vault) = &mut self.vault {
                    vault.on_append(from, link, first, entries);
                }
            }
            Packet::Backup(BackupMessage::Seal { source, ids, last }) => {
                let vault = self.vault.as_mut();
                let answer = vault.and_then(|vault| vault.on_seal(source, ids, last));
                out.extend(answer.map(|answer| Effect::Send(from, Packet::Backup(answer))));
            }
            Packet::Backup(BackupMessage::Fetch { source, ids, names }) => {
                let vault = self.vault.as_mut();
                let answer = vault.map(|vault| vault.on_fetch(source, ids, &names));
                out.extend(answer.map(|answer| Effect::Send(from, Packet::Backup(answer))));
            }
            Packet::Backup(answer) => {
                let mut wishes = Vec::new();
                self.chunks.on_backup(from, &answer, clock, &mut wishes);
                self.grant(wishes, now_ms, out);
            }
            Packet::Overlay(message) => {
                let (mut commands, mut answers) = (Vec::new(), Vec::new());
                self.locator.on_message(&message, now_ms, &mut commands, &mut answers);
                send(commands, Vec::new(), out);
                let mut own = Vec::new();
                self.super_peer.on_message(from, message, &mut own);
                self.say(own, out);
                self.answered(&answers, now_ms, out);
            }
            Packet::Move(message) => {
                let mut wishes = Vec::new();
                self.chunks.on_move(from, message, now_ms, &mut wishes);
                self.grant(wishes, now_ms, out);
            }
            Packet::Request(request) => {
                if let Some(reply) = self.chunks.execute(Asker::Peer(from), &request, clock) {
                    out.push(Effect::Send(from, Packet::Reply(reply)));
                }
            }
            Packet::Heat(HeatMessage::Ask) => {
                let told = HeatMessage::Tell(self.chunks.heat().rate());
                out.push(Effect::Send(from, Packet::Heat(told)));
            }
            Packet::Heat(HeatMessage::Tell(rate)) => self.chunks.heat_mut().on_tell(from, rate),
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
                Wish::Claim(ids, backups) => {
                    let change = Change::Claim(placed(self.me, &backups));
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, Reason::Claim));
                }
                Wish::Give(ids, target, backups) => {
                    let change = Change::Migrate(placed(target, &backups));
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, Reason::Give));
                }
                Wish::Backup(Wanted::Commit(number, ids, backups)) => {
                    let placed = placed(self.me, &backups);
                    let change = match self.chunks.source(number) {
                        Some(source) => Change::Take(placed, source),
                        None => Change::Migrate(placed),
                    };
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, Reason::Backups(number)));
                }
                Wish::Backup(Wanted::Send(to, message)) => {
                    out.push(Effect::Send(to, Packet::Backup(message)));
                }
                // The chunk service hears of it itself.
                Wish::Backup(Wanted::Aborted(_)) => {}
                Wish::Answer(Asker::Peer(to), reply) => {
                    out.push(Effect::Send(to, Packet::Reply(reply)));
                }
                Wish::Answer(Asker::Local(number), reply) => {
                    out.push(Effect::Reply(number, reply));
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
                    (Some((_, Reason::Backups(number))), _) => {
                        let chunks = &mut self.chunks;
                        chunks.on_committed(number, *result, &mut || now_ms, &mut wishes);
                    }
                    (Some((ids, Reason::Home)), Ok(epoch)) => self.chunks.adopt(ids, *epoch),
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

/// A backup is not its owner and named once: they are chosen so, or came from a node that did.
/// What is none of that is a placement without backups, and costs copies, which are made anew.
fn placed(owner: Peer, backups: &[Peer]) -> Placed {
    Placed::new(owner, backups).unwrap_or_else(|_| Placed::of_owner(owner))
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
