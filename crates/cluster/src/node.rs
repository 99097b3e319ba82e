//! One node of the cluster: its part in the overlay, its chunks, and its own client.
//!
//! Invariants of this module:
//! 1. Packets, views and ticks go in, commands come out; the commands depend on those inputs alone.
//! 2. Ids change owners only by an edit that a super peer has confirmed.
//! 3. A node with a log ([`Node::resume`]) sends a metadata message only after the records that the
//!    message rests on are safe in the log, which may write them while the node goes on. If they
//!    cannot be made safe, it sends nothing and stops.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::chunks::{Action, ChunkError, ChunkStore, ClientId, Reply, Request, Response};
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
use crate::shard::{
    ChunkCommand, ChunkService, ChunkSettings, MOVES_MAX, Requester, UnreadableChunks,
};
use crate::wire::Packet;

/// A command of the node to the process around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeCommand {
    /// Sends a packet to this incarnation of a node.
    Send(Peer, Packet),
    /// Asks the coordinator to decide a proposal.
    Propose(Proposal),
    /// Reports an event for the log.
    Log(OverlayEvent),
    /// Replies to a request of a client without a node of its own; the number is the one given to
    /// [`Node::execute`].
    Reply(u64, Reply),
    /// The operation of the node's own client with this number is complete.
    Completed(u64, Result<Response, ChunkError>),
    /// The node cannot write what it must not lose, so the process must stop.
    Stop(LogError),
}

/// Parameters of a [`Node`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeSettings {
    /// Settings of the overlay.
    pub overlay: OverlaySettings,
    /// Settings of the chunk service.
    pub chunks: ChunkSettings,
    /// The node claims every partition of the named ids whose number is a multiple of this: 1 in a
    /// cluster, 0 if its store accepts no items. With more, only keys of these partitions have
    /// owners, which is for simulations.
    pub partition_step: u16,
    /// Memory for the cache of looked-up ranges, in bytes; at least
    /// [`crate::ranges::LIMIT_BYTES_MIN`].
    pub cache_bytes: usize,
}

/// Concurrent moves of misplaced ids at most; the other slots are left for operators and hot items.
const MISPLACED_MOVES_MAX: usize = MOVES_MAX - 16;

/// Interval at which a node rereads a part of its replicas, and chunks and items per step.
const SCRUB_MS: u64 = 100;
const SCRUB_COPIES: usize = 32;
/// A log that has not completed a commit for this long, in milliseconds, waits for a slow disk.
const STALLED_MS: u64 = 100;
/// Commands that wait for the log at most.
const DEFERRED_MAX: usize = 1 << 16;
/// Interval at which a node asks whether its replicas of dead incarnations are still needed.
const NEEDED_QUERY_MS: u64 = 5_000;
/// Creators that one round of those queries names at most.
const NEEDED_QUERIES_MAX: usize = 256;

/// The reason for an edit of the metadata that this node asked for.
#[derive(Clone, Debug)]
enum EditReason {
    /// Claims ids for chunks to be created.
    Claim,
    /// Transfers ids to another node at the end of a move.
    Transfer,
    /// Claims a partition of the named ids, with these backups.
    Partition(Vec<Peer>),
    /// Changes the backups of ids, in the change of the replica set with this number.
    Backups(u64),
}

/// All state of a node, without its sockets and clocks.
#[derive(Debug)]
pub struct Node<S> {
    me: Peer,
    super_peer: SuperPeer,
    locator: Locator,
    chunks: ChunkService<S>,
    client: Client,
    /// None if the node claims no partitions of the named ids.
    rendezvous: Option<RendezvousPlacement>,
    /// Edits that were asked for and are not answered, by request.
    edits: BTreeMap<RequestId, (IdRange, EditReason)>,
    /// Lookups of the chunk service, by their token.
    lookups: BTreeMap<u64, ChunkId>,
    /// Replicas of other nodes' chunks; None if this node is no backup.
    replica_store: Option<ReplicaStore>,
    /// Whether the replica store also logs the metadata.
    has_metadata_log: bool,
    /// Commands that wait for the log, each with the number of the commit on which it rests; none
    /// before the log has taken what it rests on.
    deferred: VecDeque<(Option<u64>, NodeCommand)>,
    /// The last commit that the log has carried out, and since when no other was, in milliseconds.
    log_progress: (u64, u64),
    /// Owners that were not members at the last query, and when the next query is due.
    dead_owners: BTreeSet<Peer>,
    next_needed_query_ms: u64,
    next_scrub_ms: u64,
}

impl<S: ChunkStore> Node<S> {
    /// Creates a node in a new incarnation. Requires: no client had the number `client` before.
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
            rendezvous: RendezvousPlacement::new(settings.partition_step),
            edits: BTreeMap::new(),
            lookups: BTreeMap::new(),
            replica_store: None,
            has_metadata_log: false,
            deferred: VecDeque::new(),
            log_progress: (0, 0),
            dead_owners: BTreeSet::new(),
            next_needed_query_ms: 0,
            next_scrub_ms: 0,
        }
    }

    /// Makes this node a backup that stores replicas in `replica_store`.
    pub fn set_vault(&mut self, mut replica_store: ReplicaStore) {
        replica_store.set_forgets(self.chunks.evicts());
        self.replica_store = Some(replica_store);
    }

    /// Makes this node a backup that logs its part of the metadata as well, and takes up the
    /// metadata that its earlier incarnations logged. Calls `on_record` after each record, so that
    /// the caller can show that it gets on. Requires: called before anything else.
    pub fn resume(
        &mut self,
        replica_store: ReplicaStore,
        recovered: &RecoveredState,
        on_record: &mut dyn FnMut(),
    ) {
        self.super_peer.resume(recovered.since, &recovered.metadata, on_record);
        self.has_metadata_log = true;
        self.set_vault(replica_store);
    }

    /// The replicas of other nodes' chunks that this node stores.
    pub fn replica_store(&self) -> Option<&ReplicaStore> {
        self.replica_store.as_ref()
    }

    /// Takes the replicas out of a node that is no longer used.
    pub fn into_vault(self) -> Option<ReplicaStore> {
        self.replica_store
    }

    /// The chunk service of the node.
    pub fn chunks(&self) -> &ChunkService<S> {
        &self.chunks
    }

    /// The node's own client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The node's part as a super peer.
    pub fn super_peer(&self) -> &SuperPeer {
        &self.super_peer
    }

    /// [`ChunkService::hold_writes`] and, once all have ended, `change` before
    /// [`ChunkService::release_writes`]. Whether `change` was called; if not, call it again.
    pub fn between_writes(&mut self, change: impl FnOnce()) -> bool {
        let may_change = self.chunks.hold_writes();
        if may_change {
            change();
            self.chunks.release_writes();
        }
        may_change
    }

    /// Sets the time, in milliseconds, until which the node is certain to be a member.
    pub fn set_deadline(&mut self, deadline_ms: u64) {
        self.chunks.set_deadline(deadline_ms);
    }

    /// Starts an operation of the node's own client; [`NodeCommand::Completed`] will carry the
    /// number that is returned.
    pub fn submit(&mut self, action: Action, now_ms: u64, out: &mut Vec<NodeCommand>) -> u64 {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        let locator = &mut self.locator;
        let number = self.client.submit(action, locator, now_ms, &mut commands, &mut asked);
        send(commands, asked, out);
        number
    }

    /// Executes a request of a client without a node of its own. None if the reply has to wait for
    /// backups; [`NodeCommand::Reply`] then carries it with `number`.
    pub fn execute(
        &mut self,
        number: u64,
        request: &Request,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<Reply> {
        self.chunks.execute(Requester::Local(number), request, clock)
    }

    /// Bytes of values that the last request has copied: for its reply, or since it added to them.
    pub fn copied_bytes(&self) -> usize {
        self.chunks.copied_bytes
    }

    /// Sends what was batched, begins to write and sync the replicas, answers what is written, and
    /// goes on with what the log has read. Call it once after a batch of packets, and when the
    /// log's storage has become idle or has read something.
    pub fn flush(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let mut chunk_commands = Vec::new();
        if self.chunks.has_loaded() {
            self.load_failovers(now_ms, &mut chunk_commands, out);
        }
        self.chunks.flush(now_ms, &mut chunk_commands);
        self.execute_chunk_commands(chunk_commands, now_ms, out);
        let mut answers = Vec::new();
        if let Some(replica_store) = &mut self.replica_store {
            let super_peer = &mut self.super_peer;
            // What it records now waits too while the log has no room for it.
            let waiting_bytes = super_peer.catalog().record_bytes();
            if self.has_metadata_log && replica_store.has_room_for_metadata(waiting_bytes) {
                let records = super_peer.take_records();
                replica_store
                    .append_metadata(&records, &|creator| super_peer.catalog().snapshot(creator));
                let rests_on = replica_store.metadata_commit();
                let fresh = self.deferred.iter_mut().rev().take_while(|(on, _)| on.is_none());
                fresh.for_each(|(commit, _)| *commit = Some(rests_on));
            }
            replica_store.flush(&mut answers);
            let (begun, completed) = replica_store.commits();
            let waits_for_room = self.deferred.front().is_some_and(|(on, _)| on.is_none());
            if begun == completed && !waits_for_room || self.log_progress.0 != completed {
                self.log_progress = (completed, now_ms);
            }
            match replica_store.metadata_failure() {
                None => {
                    let is_safe = |(on, _): &(Option<u64>, _)| on.is_some_and(|on| on <= completed);
                    let safe = self.deferred.partition_point(is_safe);
                    out.extend(self.deferred.drain(..safe).map(|(_, command)| command));
                    if now_ms >= self.log_progress.1 + STALLED_MS {
                        self.send_uncertain_answers(out);
                    }
                }
                Some(error) => {
                    self.deferred.clear();
                    out.push(NodeCommand::Stop(error));
                }
            }
        }
        let answers = answers.into_iter();
        out.extend(answers.map(|(to, answer)| NodeCommand::Send(to, Packet::Replication(answer))));
    }

    /// Starts to move ids of this node to another. False if that is not possible now.
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

    /// Sets the racks of nodes, as far as they are known; new backups are spread over racks.
    pub fn set_racks(&mut self, racks: BTreeMap<NodeId, String>) {
        self.chunks.set_racks(racks);
    }

    /// Takes a new view of the coordinator.
    pub fn on_view(&mut self, view: &View, out: &mut Vec<NodeCommand>) {
        let before: Vec<Peer> = {
            let members = self.super_peer.view().members.iter();
            members
                .map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
                .collect()
        };
        let mut commands = Vec::new();
        self.tell_what_is_owned();
        self.super_peer.on_view(view, &mut commands);
        let members = self.super_peer.view().members.iter();
        self.chunks.set_members(
            members.map(|(node, member)| Peer { node: *node, incarnation: member.incarnation }),
        );
        for dead in before.into_iter().filter(|peer| !self.super_peer.view().has(*peer)) {
            self.chunks.on_dead(dead);
        }
        self.defer(commands, out);
    }

    /// Tells the super peer what this node owns, if its metadata may begin empty.
    fn tell_what_is_owned(&mut self) {
        if self.super_peer.may_begin_empty() {
            let owned = self.chunks.all_owned().map(|ids| position(ids.first().creator()));
            self.super_peer.set_owned(owned);
        }
    }

    /// Queues commands of the super peer until the log is safe; without a log they go out at once.
    /// Those that are too many for a disk that does not answer are dropped, as if the network had
    /// lost them.
    fn defer(&mut self, commands: Vec<OverlayCommand>, out: &mut Vec<NodeCommand>) {
        if !self.has_metadata_log {
            return send(commands, Vec::new(), out);
        }
        // An event that tells of a proposal claims nothing. It must not wait: the batch may be on
        // the disk of a node that died before the event came out.
        let is_proposal = |command: &OverlayCommand| {
            matches!(command, OverlayCommand::Log(OverlayEvent::Proposed(..)))
        };
        let (proposals, commands) = commands.into_iter().partition(is_proposal);
        send(proposals, Vec::new(), out);
        let mut deferred = Vec::new();
        send(commands, Vec::new(), &mut deferred);
        let room = DEFERRED_MAX.saturating_sub(self.deferred.len());
        self.deferred.extend(deferred.into_iter().take(room).map(|command| (None, command)));
    }

    /// While the log does not get on, answers lookups all the same, as uncertain: an owner refuses
    /// a request that rests on a wrong answer.
    fn send_uncertain_answers(&mut self, out: &mut Vec<NodeCommand>) {
        let is_answer = |(_, command): &(Option<u64>, NodeCommand)| {
            matches!(command, NodeCommand::Send(_, Packet::Overlay(Message::Found { .. })))
        };
        let deferred = std::mem::take(&mut self.deferred).into_iter();
        let (answers, rest): (VecDeque<_>, _) = deferred.partition(is_answer);
        self.deferred = rest;
        for (_, mut command) in answers {
            if let NodeCommand::Send(_, Packet::Overlay(Message::Found { is_certain, .. })) =
                &mut command
            {
                *is_certain = false;
            }
            out.push(command);
        }
    }

    /// Rereads a part of the replicas in the log.
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

    /// Asks leaders whether anybody needs the replicas of dead incarnations. Only owners that were
    /// dead at the previous query too are named, since views may arrive late.
    fn query_needed_replicas(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let Some(replica_store) =
            self.replica_store.as_ref().filter(|_| now_ms >= self.next_needed_query_ms)
        else {
            return;
        };
        self.next_needed_query_ms = now_ms + NEEDED_QUERY_MS;
        let view = self.super_peer.view();
        let dead: BTreeSet<Peer> =
            replica_store.owners().filter(|owner| !view.has(*owner)).collect();
        let were_dead = dead.intersection(&self.dead_owners);
        let kept = were_dead.flat_map(|source| {
            replica_store.creators(*source).into_iter().map(move |creator| (*source, creator))
        });
        for (source, creator) in kept.take(NEEDED_QUERIES_MAX) {
            let group = view.groups.get(position(creator));
            if let Some(leader) = group.and_then(|group| group.members.first()) {
                let message = Message::QueryNeeded { creator, source, revision: view.revision };
                out.push(NodeCommand::Send(*leader, Packet::Overlay(message)));
            }
        }
        self.dead_owners = dead;
    }

    /// Advances the time to `now_ms`.
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
        // A partition that is about to be moved away still counts as owned.
        let has = |partition: Creator| {
            chunks.owned(partition.ids()).next().is_some() || is_asked(partition)
        };
        if let Some(rendezvous) = self.rendezvous.as_mut().filter(|_| view.has(self.me)) {
            let mut wanted = rendezvous.claims(self.me.node, view, now_ms, has);
            if chunks.is_leaving() {
                wanted.clear();
            }
            for partition in wanted {
                // Nobody has anything of it, so its backups have all from the start.
                let ids = partition.ids();
                let backups = chunks.replication().choose_backup_set(ids);
                let change = Change::Claim(replica_set(self.me, &backups));
                let request = self.locator.change(ids, change, now_ms, &mut commands);
                self.edits.insert(request, (ids, EditReason::Partition(backups)));
            }
        }
        self.load_failovers(now_ms, &mut chunk_commands, out);
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

    /// Takes over parts of what dead nodes owned.
    fn load_failovers(
        &mut self,
        now_ms: u64,
        chunk_commands: &mut Vec<ChunkCommand>,
        out: &mut Vec<NodeCommand>,
    ) {
        let Some(replica_store) = &mut self.replica_store else { return };
        let UnreadableChunks { asked, lost } =
            self.chunks.load_failovers(now_ms, replica_store, chunk_commands);
        let asked =
            asked.into_iter().map(|(source, ids)| OverlayEvent::ChunksUnreadable(source, ids));
        let lost = lost.into_iter().map(|(source, ids)| OverlayEvent::ChunksLost(source, ids));
        out.extend(asked.chain(lost).map(NodeCommand::Log));
    }

    /// Moves ids whose preferred owner is another node.
    fn move_misplaced(&mut self, now_ms: u64, chunk_commands: &mut Vec<ChunkCommand>) {
        let (chunks, view) = (&mut self.chunks, self.super_peer.view());
        let Some(rendezvous) = self.rendezvous.as_mut().filter(|_| view.has(self.me)) else {
            return;
        };
        let free = MISPLACED_MOVES_MAX.saturating_sub(chunks.moves().0);
        let who = (self.me.node, chunks.is_leaving());
        for (ids, node) in rendezvous.misplaced(who, now_ms, free, chunks.all_owned()) {
            if let Some(incarnation) = view.incarnation(node) {
                // A move that is not possible now is tried in a later pass.
                chunks.migrate(ids, Peer { node, incarnation }, now_ms, chunk_commands);
            }
        }
    }

    /// Moves hot ids to nodes with less load.
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
        let peers =
            members.map(|(node, member)| Peer { node: *node, incarnation: member.incarnation });
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

    /// Announces that the node will leave: it moves everything it owns to others.
    pub fn leave(&mut self) {
        self.chunks.leave();
    }

    /// Whether the node owns nothing that another member could take. The only member keeps what it
    /// owns: with backups, it has left once its own log has all of that, since the members that
    /// left before it are no longer asked.
    pub fn has_left(&self) -> bool {
        match self.super_peer.view().members.len() {
            0 | 1 => self.chunks.replication().counts().0 == 0,
            _ => self.chunks.all_owned().next().is_none() && self.chunks.moves().0 == 0,
        }
    }

    /// Handles a packet. `clock` returns the time in milliseconds, and may be called repeatedly.
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
                // A replica that cannot be dropped now is asked about again.
                if let Some(replica_store) = &mut self.replica_store
                    && !self.super_peer.view().has(source)
                {
                    let _ = replica_store.forget(source, creator);
                }
            }
            Packet::Replication(ReplicationMessage::Append { stream, first, entries }) => {
                if let Some(replica_store) = &mut self.replica_store {
                    replica_store.on_append(from, stream, first, entries);
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
                if let Some(replica_store) = &mut self.replica_store {
                    replica_store.on_fetch(from, source, ids, &keys);
                }
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
                if matches!(message, Message::Seal { .. } | Message::Sealed { .. }) {
                    self.tell_what_is_owned();
                }
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
            // A request that came too late is dropped; its client has given it up.
            Packet::Timed(until_ms, _) if now_ms >= until_ms => {}
            Packet::Timed(_, request) => {
                self.on_packet(from, Packet::Request(request), clock, out);
            }
            Packet::Load(LoadMessage::Query) => {
                let told = LoadMessage::Report(self.chunks.load_balancer().rate());
                out.push(NodeCommand::Send(from, Packet::Load(told)));
            }
            Packet::Load(LoadMessage::Report(rate)) => {
                self.chunks.load_balancer_mut().on_report(from, rate)
            }
            // The process around the node handles these.
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

    /// Executes commands of the chunk service.
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
                        None if backups == [self.me] => Change::CompleteFailover(set, self.me),
                        None => Change::Migrate(set),
                    };
                    let request = self.locator.change(ids, change, now_ms, &mut commands);
                    self.edits.insert(request, (ids, EditReason::Backups(number)));
                }
                ChunkCommand::Replication(ReplicationCommand::Send(to, message)) => {
                    out.push(NodeCommand::Send(to, Packet::Replication(message)));
                }
                // The chunk service handles this one itself.
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

    /// Handles answers of super peers.
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
                    (Some((ids, EditReason::Partition(backups))), Ok(epoch)) => {
                        self.chunks.own_partition(ids, *epoch, backups)
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

/// The replica set of an owner and its backups. Backups were chosen distinct from each other, or
/// came from a node that did so; anything else, such as an owner that is its own backup, becomes a
/// set without backups.
fn replica_set(owner: Peer, backups: &[Peer]) -> ReplicaSet {
    ReplicaSet::new(owner, backups).unwrap_or_else(|_| ReplicaSet::of_owner(owner))
}

fn send(
    commands: Vec<OverlayCommand>,
    asked: Vec<crate::client::OutgoingRequest>,
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
