//! One node of the cluster: its part in the overlay, its chunks, and a client of its own.
//!
//! Invariants of this room:
//! 1. Packets, views and ticks go in, effects come out; what is done is decided by them alone.
//! 2. Ids change hands only by an edit that a super peer answered.
//! 3. A node with a log ([`Node::resume`]) sends nothing about metadata before what that rests on
//!    is safe in the log; if it cannot be made safe, nothing at all, and the node is to stop.

use std::collections::{BTreeMap, BTreeSet};

use crate::chunks::{
    Action, ChunkCommand, ChunkError, ChunkService, ChunkSettings, ChunkStore, ClientId, MOVES_MAX,
    Reply, Request, Requester, Response, UnreadableChunks,
};
use crate::client::Client;
use crate::coordinator::Proposal;
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::load::{LoadCommand, LoadMessage};
use crate::log::LogError;
use crate::overlay::{
    Answer, Change, Locator, Message, OverlayCommand, OverlayEvent, OverlaySettings, Peer,
    ReplicaSet, RequestId, SuperPeer, View, position,
};
use crate::rendezvous::RendezvousPlacement;
use crate::replication::{RecoveredState, ReplicaStore, ReplicationCommand, ReplicationMessage};
use crate::wire::Packet;

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeCommand {
    /// Send a packet to that life of a node.
    Send(Peer, Packet),
    /// Ask the coordinator to decide.
    Propose(Proposal),
    /// Something for the log.
    Log(OverlayEvent),
    /// The answer to a request of a client that has no node of its own, by its number.
    Reply(u64, Reply),
    /// An operation of the node's own client was answered.
    Completed(u64, Result<Response, ChunkError>),
    /// The node cannot keep what it would have to promise: it is to stop.
    Stop(LogError),
}

/// Parameters of a [`Node`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeSettings {
    /// Of the overlay.
    pub overlay: OverlaySettings,
    /// Of the chunk service.
    pub chunks: ChunkSettings,
    /// Whether it claims partitions of the named ids. Its store must take items then.
    pub holds_items: bool,
    /// Memory for ranges that were looked up, in bytes; at least
    /// [`crate::ranges::LIMIT_BYTES_MIN`].
    pub cache_bytes: usize,
}

/// Moves that a node makes at once to tidy up; some are left for operators and hot items.
const MISPLACED_MOVES_MAX: usize = MOVES_MAX - 16;

/// How often a node reads again what it keeps, and how many chunks and items then.
const SCRUB_MS: u64 = 100;
const SCRUB_COPIES: usize = 32;
/// How often a node asks whether what it keeps of lives that are over is needed.
const NEEDED_QUERY_MS: u64 = 5_000;
/// Of how many creators it asks at once.
const NEEDED_QUERIES_MAX: usize = 256;

/// Why the metadata is changed.
#[derive(Clone, Copy, Debug)]
enum EditReason {
    /// For chunks to come.
    Claim,
    /// A move.
    Transfer,
    /// A partition of the named ids.
    Partition,
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
    rendezvous: Option<RendezvousPlacement>,
    /// Ids that were asked for or given away, by request.
    edits: BTreeMap<RequestId, (IdRange, EditReason)>,
    /// What the chunk service wants to know.
    lookups: BTreeMap<u64, ChunkId>,
    /// Others' chunks, where this node is their backup; none if it is nobody's.
    replica_store: Option<ReplicaStore>,
    /// Whether the vault has the metadata, too.
    has_metadata_log: bool,
    /// What waits until the log is safe.
    deferred: Vec<NodeCommand>,
    /// Owners that were gone when it was asked last, and when to ask again.
    gone: BTreeSet<Peer>,
    next_needed_query_ms: u64,
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
            rendezvous: settings.holds_items.then(RendezvousPlacement::default),
            edits: BTreeMap::new(),
            lookups: BTreeMap::new(),
            replica_store: None,
            has_metadata_log: false,
            deferred: Vec::new(),
            gone: BTreeSet::new(),
            next_needed_query_ms: 0,
            next_scrub_ms: 0,
        }
    }

    /// Keeps backups from now on.
    pub fn set_vault(&mut self, replica_store: ReplicaStore) {
        self.replica_store = Some(replica_store);
    }

    /// Keeps backups from now on, and its part of the metadata, where its former lives left theirs.
    /// To be called first.
    pub fn resume(&mut self, replica_store: ReplicaStore, recovered: &RecoveredState) {
        self.super_peer.resume(recovered.since, &recovered.notes);
        self.has_metadata_log = true;
        self.replica_store = Some(replica_store);
    }

    /// Its backups of others' chunks.
    pub fn replica_store(&self) -> Option<&ReplicaStore> {
        self.replica_store.as_ref()
    }

    /// The same, when the node is not needed any more.
    pub fn into_vault(self) -> Option<ReplicaStore> {
        self.replica_store
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

    /// Begins an operation of the node's own client; [`NodeCommand::Completed`] names its number.
    pub fn submit(&mut self, action: Action, now_ms: u64, out: &mut Vec<NodeCommand>) -> u64 {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        let locator = &mut self.locator;
        let number = self.client.submit(action, locator, now_ms, &mut commands, &mut asked);
        send(commands, asked, out);
        number
    }

    /// Carries out a request of a client that has no node of its own. If it has to wait for
    /// backups, [`NodeCommand::Reply`] answers it, with that number.
    pub fn execute(
        &mut self,
        number: u64,
        request: &Request,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<Reply> {
        self.chunks.execute(Requester::Local(number), request, clock)
    }

    /// Sends what waits to go along with others: once after many packets. What backups keep is
    /// written and synced here.
    pub fn flush(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let mut chunk_commands = Vec::new();
        self.chunks.flush(now_ms, &mut chunk_commands);
        self.execute_chunk_commands(chunk_commands, now_ms, out);
        let mut answers = Vec::new();
        if let Some(replica_store) = &mut self.replica_store {
            if self.has_metadata_log {
                let super_peer = &mut self.super_peer;
                let notes = super_peer.take_records();
                replica_store.note(&notes, &|creator| super_peer.catalog().snapshot(creator));
            }
            replica_store.flush(&mut answers);
            match replica_store.notes_failed() {
                None => out.append(&mut self.deferred),
                Some(error) => {
                    self.deferred.clear();
                    out.push(NodeCommand::Stop(error));
                }
            }
        }
        let answers = answers.into_iter();
        out.extend(answers.map(|(to, answer)| NodeCommand::Send(to, Packet::Replication(answer))));
    }

    /// Begins to move ids of this node to another; whether it does.
    pub fn migrate(
        &mut self,
        ids: IdRange,
        target: Peer,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) -> bool {
        let mut chunk_commands = Vec::new();
        let does = self.chunks.migrate(ids, target, now_ms, &mut chunk_commands);
        self.execute_chunk_commands(chunk_commands, now_ms, out);
        does
    }

    /// Where nodes are, as far as that was said: backups of what has none yet are spread by it.
    pub fn set_racks(&mut self, racks: BTreeMap<NodeId, String>) {
        self.chunks.set_racks(racks);
    }

    /// The coordinator decided something.
    pub fn on_view(&mut self, view: &View, out: &mut Vec<NodeCommand>) {
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
        self.defer(commands, out);
    }

    /// What this node says as a super peer: when the log is safe, if there is one.
    fn defer(&mut self, commands: Vec<OverlayCommand>, out: &mut Vec<NodeCommand>) {
        send(commands, Vec::new(), if self.has_metadata_log { &mut self.deferred } else { out });
    }

    /// Reads a part of its log again.
    fn scrub(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let Some(replica_store) =
            self.replica_store.as_mut().filter(|_| now_ms >= self.next_scrub_ms)
        else {
            return;
        };
        self.next_scrub_ms = now_ms + SCRUB_MS;
        let mut asked = Vec::new();
        let time = self.chunks.item_time();
        for (owner, ids) in replica_store.scrub(SCRUB_COPIES, &time, &mut asked) {
            out.push(NodeCommand::Log(OverlayEvent::ChunksUnreadable(owner, ids)));
        }
        out.extend(
            asked.into_iter().map(|(to, ask)| NodeCommand::Send(to, Packet::Replication(ask))),
        );
    }

    /// Asks leaders whether anybody needs what it keeps of lives that are over, and were when it
    /// asked last: views may come late.
    fn query_needed_replicas(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let Some(replica_store) =
            self.replica_store.as_ref().filter(|_| now_ms >= self.next_needed_query_ms)
        else {
            return;
        };
        self.next_needed_query_ms = now_ms + NEEDED_QUERY_MS;
        let view = self.super_peer.view();
        let gone: BTreeSet<Peer> =
            replica_store.owners().filter(|owner| !view.has(*owner)).collect();
        let were_gone = gone.intersection(&self.gone);
        let kept = were_gone.flat_map(|source| {
            replica_store.creators(*source).into_iter().map(move |creator| (*source, creator))
        });
        for (source, creator) in kept.take(NEEDED_QUERIES_MAX) {
            let group = view.groups.get(position(creator));
            if let Some(leader) = group.and_then(|group| group.members.first()) {
                let message = Message::QueryNeeded { creator, source, revision: view.revision };
                out.push(NodeCommand::Send(*leader, Packet::Overlay(message)));
            }
        }
        self.gone = gone;
    }

    /// Time went on.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        let (mut asked, mut completions, mut chunk_commands) = (Vec::new(), Vec::new(), Vec::new());
        let mut own = Vec::new();
        self.super_peer.on_tick(now_ms, &mut own);
        self.defer(own, out);
        self.query_needed_replicas(now_ms, out);
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
        if let Some(rendezvous) = self.rendezvous.as_mut().filter(|_| view.has(self.me)) {
            let mut wanted = rendezvous.claims(self.me.node, view, now_ms, has);
            if chunks.is_leaving() {
                wanted.clear();
            }
            for partition in wanted {
                let change = Change::Claim(ReplicaSet::of_owner(self.me));
                let ids = partition.ids();
                let request = self.locator.change(ids, change, now_ms, &mut commands);
                self.edits.insert(request, (ids, EditReason::Partition));
            }
        }
        if let Some(replica_store) = &mut self.replica_store {
            let UnreadableChunks { asked, lost } =
                self.chunks.load_failovers(now_ms, replica_store, &mut chunk_commands);
            let asked =
                asked.into_iter().map(|(source, ids)| OverlayEvent::ChunksUnreadable(source, ids));
            let lost = lost.into_iter().map(|(source, ids)| OverlayEvent::ChunksLost(source, ids));
            out.extend(asked.chain(lost).map(NodeCommand::Log));
        }
        self.move_misplaced(now_ms, &mut chunk_commands);
        self.rebalance(now_ms, &mut chunk_commands, out);
        self.locator.on_tick(now_ms, &mut commands, &mut answers);
        self.chunks.on_tick(now_ms, &mut chunk_commands);
        let locator = &mut self.locator;
        self.client.on_tick(locator, now_ms, &mut commands, &mut asked, &mut completions);
        send(commands, asked, out);
        self.execute_chunk_commands(chunk_commands, now_ms, out);
        self.on_answers(&answers, now_ms, out);
        deliver(completions, out);
    }

    /// Moves what should be others' to them.
    fn move_misplaced(&mut self, now_ms: u64, chunk_commands: &mut Vec<ChunkCommand>) {
        let (chunks, view) = (&mut self.chunks, self.super_peer.view());
        let Some(rendezvous) = self.rendezvous.as_mut().filter(|_| view.has(self.me)) else {
            return;
        };
        let free = MISPLACED_MOVES_MAX.saturating_sub(chunks.moves().0);
        let who = (self.me.node, chunks.is_leaving());
        for (ids, node) in rendezvous.misplaced(who, now_ms, free, chunks.all_owned()) {
            if let Some(incarnation) = view.incarnation(node) {
                // What cannot move now is found again.
                chunks.migrate(ids, Peer { node, incarnation }, now_ms, chunk_commands);
            }
        }
    }

    /// Moves what is hot to nodes that are less busy.
    fn rebalance(
        &mut self,
        now_ms: u64,
        chunk_commands: &mut Vec<ChunkCommand>,
        out: &mut Vec<NodeCommand>,
    ) {
        if self.chunks.is_leaving() || self.rendezvous.is_none() {
            return;
        }
        let members = self.super_peer.view().members.iter();
        let peers = members.map(|(node, life)| Peer { node: *node, incarnation: life.incarnation });
        let others: Vec<Peer> = peers.filter(|peer| *peer != self.me).collect();
        for command in self.chunks.rebalance(now_ms, &others) {
            match command {
                LoadCommand::Query(peer) => {
                    out.push(NodeCommand::Send(peer, Packet::Load(LoadMessage::Query)));
                }
                LoadCommand::Move(id, target) => {
                    self.chunks.migrate(IdRange::single(id), target, now_ms, chunk_commands);
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
        out: &mut Vec<NodeCommand>,
    ) {
        let now_ms = clock();
        match packet {
            Packet::Overlay(Message::GrantFailover(inheritance)) => {
                if let Some(replica_store) = &mut self.replica_store {
                    self.chunks.start_failover(&inheritance, replica_store);
                }
            }
            Packet::Overlay(Message::NotNeeded { creator, source }) => {
                // What cannot be forgotten now is asked about again.
                if let Some(replica_store) = &mut self.replica_store
                    && !self.super_peer.view().has(source)
                {
                    let _ = replica_store.forget(source, creator);
                }
            }
            Packet::Replication(ReplicationMessage::Append { link, first, entries }) => {
                if let Some(replica_store) = &mut self.replica_store {
                    replica_store.on_append(from, link, first, entries);
                }
            }
            Packet::Replication(ReplicationMessage::Seal { source, ids, last }) => {
                let replica_store = self.replica_store.as_mut();
                let answer = replica_store
                    .and_then(|replica_store| replica_store.on_seal(source, ids, last));
                out.extend(
                    answer.map(|answer| NodeCommand::Send(from, Packet::Replication(answer))),
                );
            }
            Packet::Replication(ReplicationMessage::Fetch { source, ids, keys }) => {
                let replica_store = self.replica_store.as_mut();
                let answer =
                    replica_store.map(|replica_store| replica_store.on_fetch(source, ids, &keys));
                out.extend(
                    answer.map(|answer| NodeCommand::Send(from, Packet::Replication(answer))),
                );
            }
            Packet::Replication(answer) => {
                let mut chunk_commands = Vec::new();
                self.chunks.on_backup(from, &answer, clock, &mut chunk_commands);
                self.execute_chunk_commands(chunk_commands, now_ms, out);
            }
            Packet::Overlay(message) => {
                let (mut commands, mut answers) = (Vec::new(), Vec::new());
                self.locator.on_message(&message, now_ms, &mut commands, &mut answers);
                send(commands, Vec::new(), out);
                let mut own = Vec::new();
                self.super_peer.on_message(from, message, &mut own);
                self.defer(own, out);
                self.on_answers(&answers, now_ms, out);
            }
            Packet::Move(message) => {
                let mut chunk_commands = Vec::new();
                self.chunks.on_move(from, message, now_ms, &mut chunk_commands);
                self.execute_chunk_commands(chunk_commands, now_ms, out);
            }
            Packet::Request(request) => {
                if let Some(reply) = self.chunks.execute(Requester::Peer(from), &request, clock) {
                    out.push(NodeCommand::Send(from, Packet::Reply(reply)));
                }
            }
            Packet::Load(LoadMessage::Query) => {
                let told = LoadMessage::Report(self.chunks.load_balancer().rate());
                out.push(NodeCommand::Send(from, Packet::Load(told)));
            }
            Packet::Load(LoadMessage::Report(rate)) => {
                self.chunks.load_balancer_mut().on_report(from, rate)
            }
            // Of the process around it.
            Packet::Control(_) => {}
            Packet::Reply(reply) => {
                let (mut commands, mut completions) = (Vec::new(), Vec::new());
                let locator = &mut self.locator;
                self.client.on_reply(from, reply, locator, now_ms, &mut commands, &mut completions);
                send(commands, Vec::new(), out);
                deliver(completions, out);
            }
        }
    }

    /// Does what the chunk service wants.
    fn execute_chunk_commands(
        &mut self,
        chunk_commands: Vec<ChunkCommand>,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let mut commands = Vec::new();
        for command in chunk_commands {
            match command {
                ChunkCommand::Send(to, message) => {
                    out.push(NodeCommand::Send(to, Packet::Move(message)))
                }
                ChunkCommand::Claim(ids, backups) => {
                    let change = Change::Claim(replica_set(self.me, &backups));
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, EditReason::Claim));
                }
                ChunkCommand::Transfer(ids, target, backups) => {
                    let change = Change::Migrate(replica_set(target, &backups));
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, EditReason::Transfer));
                }
                ChunkCommand::Replication(ReplicationCommand::Commit(number, ids, backups)) => {
                    let set = replica_set(self.me, &backups);
                    let change = match self.chunks.source(number) {
                        Some(source) => Change::CompleteFailover(set, source),
                        None => Change::Migrate(set),
                    };
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, EditReason::Backups(number)));
                }
                ChunkCommand::Replication(ReplicationCommand::Send(to, message)) => {
                    out.push(NodeCommand::Send(to, Packet::Replication(message)));
                }
                // The chunk service hears of it itself.
                ChunkCommand::Replication(ReplicationCommand::Aborted(_)) => {}
                ChunkCommand::Reply(Requester::Peer(to), reply) => {
                    out.push(NodeCommand::Send(to, Packet::Reply(reply)));
                }
                ChunkCommand::Reply(Requester::Local(number), reply) => {
                    out.push(NodeCommand::Reply(number, reply));
                }
                ChunkCommand::LookUp(id) => {
                    self.locator.forget(IdRange::single(id));
                    let token = self.locator.look_up(id, now_ms, &mut commands);
                    self.lookups.insert(token, id);
                }
            }
        }
        send(commands, Vec::new(), out);
    }

    /// Super peers answered.
    fn on_answers(&mut self, answers: &[Answer], now_ms: u64, out: &mut Vec<NodeCommand>) {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        let (mut chunk_commands, mut completions) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Answer::Changed(request, result) => match (self.edits.remove(request), result) {
                    (Some((ids, EditReason::Claim)), _) => self.chunks.on_claimed(ids, *result),
                    (Some((ids, EditReason::Transfer)), _) => {
                        self.chunks.on_transferred(ids, *result, now_ms, &mut chunk_commands);
                    }
                    (Some((_, EditReason::Backups(number))), _) => {
                        let chunks = &mut self.chunks;
                        chunks.on_committed(number, *result, &mut || now_ms, &mut chunk_commands);
                    }
                    (Some((ids, EditReason::Partition)), Ok(epoch)) => {
                        self.chunks.own_partition(ids, *epoch)
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
                    let (to, done) = (&mut asked, &mut completions);
                    self.client.on_located(answer, locator, now_ms, &mut commands, to, done);
                }
            }
        }
        send(commands, asked, out);
        self.execute_chunk_commands(chunk_commands, now_ms, out);
        deliver(completions, out);
    }
}

/// A backup is not its owner and named once: they are chosen so, or came from a node that did.
/// What is none of that is a placement without backups, and costs copies, which are made anew.
fn replica_set(owner: Peer, backups: &[Peer]) -> ReplicaSet {
    ReplicaSet::new(owner, backups).unwrap_or_else(|_| ReplicaSet::of_owner(owner))
}

fn send(
    commands: Vec<OverlayCommand>,
    asked: Vec<crate::client::Asked>,
    out: &mut Vec<NodeCommand>,
) {
    out.extend(commands.into_iter().map(|command| match command {
        OverlayCommand::Send(to, message) => NodeCommand::Send(to, Packet::Overlay(message)),
        OverlayCommand::Propose(proposal) => NodeCommand::Propose(proposal),
        OverlayCommand::Log(event) => NodeCommand::Log(event),
    }));
    let requests = asked.into_iter();
    out.extend(requests.map(|(to, request)| NodeCommand::Send(to, Packet::Request(request))));
}

fn deliver(completions: Vec<crate::client::Completion>, out: &mut Vec<NodeCommand>) {
    let answered = completions.into_iter();
    out.extend(answered.map(|(number, result)| NodeCommand::Completed(number, result)));
}
