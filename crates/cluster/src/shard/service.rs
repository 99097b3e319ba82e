//! The chunk service of one node.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::failover_task::{Failovers, Fetched};
use super::moves::{IncomingMove, MoveMessage, OutgoingMove};
use super::pending_replies::{PendingReplies, PendingReply, Requester};
use super::scan::ItemScan;
use super::served::Served;
use crate::chunks::{
    ChunkError, ChunkStore, ItemTime, OPERATIONS_MAX, Reply, Request, Response, Sessions,
};
use crate::ids::{
    COUNTER_BITS, COUNTER_MAX, ChunkId, Creator, IdAllocator, IdRange, NAMED_FIRST, NodeId,
};
use crate::interval_map::IntervalMap;
use crate::load::{LoadBalancer, LoadCommand};
use crate::overlay::{Peer, Refusal};
use crate::ranges::Placement;
use crate::replication::{
    Mutation, ReplicationCommand, ReplicationMessage, ReplicationPrimary, ReplicationSettings,
    chunk,
};

mod evictions;
mod failover;
mod item_scan;
mod locks;
mod migration;
mod operations;
mod publication;
mod reserve;

use reserve::Reserve;

/// Ids to skip at most when a claim is refused. A creator can lose this many of its 2^48 at each
/// start.
const SKIPPED_IDS_MAX: u64 = 1 << 31;
/// Spans of transferred ids whose new owner is remembered.
const MOVED_SPANS_MAX: usize = 10_000;

/// Parameters of a [`ChunkService`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSettings {
    /// Ids that a node claims at once for chunks to be created.
    pub claim_ids: u64,
    /// Number of free ids below which it claims more.
    pub low_ids: u64,
    /// Time after which a move repeats an unanswered message, in milliseconds.
    pub retry_ms: u64,
    /// Time without an answer after which a move is cancelled, in milliseconds.
    pub give_up_ms: u64,
    /// Ids that failover loads in one step.
    pub load_ids: u64,
    /// Whether the store evicts items.
    pub evicts: bool,
    /// Settings of replication.
    pub replication: ReplicationSettings,
}

impl Default for ChunkSettings {
    fn default() -> Self {
        let replication = ReplicationSettings::default();
        Self {
            claim_ids: 2_000_000,
            low_ids: 200_000,
            retry_ms: 100,
            give_up_ms: 5_000,
            load_ids: 8_192,
            evicts: false,
            replication,
        }
    }
}

/// A command of the chunk service to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkCommand {
    /// Send a message about a move.
    Send(Peer, MoveMessage),
    /// Make this node the owner of ids without an owner, with these backups. The result goes to
    /// [`ChunkService::on_claimed`].
    Claim(IdRange, Vec<Peer>),
    /// Make another node the owner, with these backups. The result goes to
    /// [`ChunkService::on_transferred`].
    Transfer(IdRange, Peer, Vec<Peer>),
    /// A command of replication; the result of a [`ReplicationCommand::Commit`] goes to
    /// [`ChunkService::on_committed`].
    Replication(ReplicationCommand),
    /// Reply to a request.
    Reply(Requester, Reply),
    /// Look up an id, past the cache. The result goes to [`ChunkService::on_located`].
    LookUp(ChunkId),
}

/// The chunks of one node, and its part in moves. Not thread-safe: one thread calls it.
#[derive(Debug)]
pub struct ChunkService<S> {
    me: Peer,
    limits: ChunkSettings,
    store: S,
    reserve: Reserve,
    /// Ids that this node owns -> the epoch since which it does.
    owned: IntervalMap<u64>,
    /// Ids that are about to be transferred.
    frozen: IntervalMap<()>,
    /// What other threads know of the two maps above and of `outgoing`.
    served: Arc<Served>,
    /// Whether other threads are to write nothing.
    holds_writes: bool,
    /// Ids that were transferred, and their new placement: a hint for clients.
    moved: IntervalMap<Placement>,
    sessions: Sessions,
    outgoing: BTreeMap<u64, OutgoingMove>,
    incoming: BTreeMap<(Peer, u64), IncomingMove>,
    next_transfer: u64,
    scan: ItemScan,
    load_balancer: LoadBalancer,
    is_leaving: bool,
    allocator: IdAllocator,
    /// Counters below it were claimed, by this incarnation or another, or skipped.
    claimed_end: u64,
    /// Ids to skip when the next claim is refused.
    skipped_ids: u64,
    is_claiming: bool,
    /// A claim named a dead peer, so the next one waits.
    claim_waits: bool,
    next_claim_ms: u64,
    deadline_ms: u64,
    replication: ReplicationPrimary,
    pending_replies: PendingReplies,
    failovers: Failovers,
    /// Backups of the ids that are being claimed.
    claiming: Vec<Peer>,
    /// Bytes of values that the last request has copied.
    pub(crate) copied_bytes: usize,
}

impl<S: ChunkStore> ChunkService<S> {
    /// Creates a service that owns nothing.
    pub fn new(me: Peer, limits: ChunkSettings, store: S) -> Self {
        let replication = ReplicationPrimary::new(me, limits.replication);
        let served = Arc::new(Served::new(Arc::clone(replication.unacknowledged())));
        Self {
            me,
            limits,
            store,
            reserve: Reserve::new(limits.replication.backups > 0),
            owned: IntervalMap::default(),
            frozen: IntervalMap::default(),
            served,
            holds_writes: false,
            moved: IntervalMap::default(),
            sessions: Sessions::default(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            next_transfer: 1,
            scan: ItemScan::default(),
            load_balancer: LoadBalancer::default(),
            is_leaving: false,
            allocator: IdAllocator::new(Creator::from(me.node)),
            claimed_end: 0,
            skipped_ids: 0,
            is_claiming: false,
            claim_waits: false,
            next_claim_ms: 0,
            deadline_ms: 0,
            replication,
            pending_replies: PendingReplies::default(),
            failovers: Failovers::default(),
            claiming: Vec::new(),
            copied_bytes: 0,
        }
    }

    /// The replication of this node's chunks to its backups.
    pub fn replication(&self) -> &ReplicationPrimary {
        &self.replication
    }

    /// What this node serves, for other threads.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Sets the racks of nodes.
    pub fn set_racks(&mut self, racks: BTreeMap<NodeId, String>) {
        self.replication.set_racks(racks);
    }

    /// Sets the members of the cluster.
    pub fn set_members(&mut self, members: impl Iterator<Item = Peer>) {
        self.replication.set_members(members);
    }

    /// The time at which operations on items run.
    pub fn item_time(&self) -> ItemTime {
        self.store.item_time()
    }

    /// The load balancer of this node.
    pub fn load_balancer(&self) -> &LoadBalancer {
        &self.load_balancer
    }

    /// The load balancer, to record operations and reports.
    pub fn load_balancer_mut(&mut self) -> &mut LoadBalancer {
        &mut self.load_balancer
    }

    /// Decides whether to move a hot id. `others` are the other members.
    pub fn rebalance(&mut self, now_ms: u64, others: &[Peer]) -> Vec<LoadCommand> {
        let (owned, frozen) = (&self.owned, &self.frozen);
        let serves =
            |id: ChunkId| owned.get(id.bits()).is_some() && frozen.get(id.bits()).is_none();
        self.load_balancer.on_tick(now_ms, others, serves)
    }

    /// The named id of a key; None if the node holds no items.
    pub fn item_id(&self, key: &[u8]) -> Option<ChunkId> {
        self.store.item_id(key)
    }

    /// Announces that the node will leave: it claims no more ids and accepts none.
    pub fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Whether the node is leaving.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// All ids that it owns, cut where creators end.
    pub fn all_owned(&self) -> impl Iterator<Item = IdRange> {
        self.owned.iter().flat_map(|(span, _)| IdRange::cut(span))
    }

    /// Sets the time until which the node is certain to be a member; it answers nothing later.
    pub fn set_deadline(&mut self, deadline_ms: u64) {
        self.deadline_ms = deadline_ms;
        self.served.set_deadline(deadline_ms);
    }

    /// Whether this node serves an id now.
    pub fn serves(&self, id: ChunkId) -> bool {
        self.owned.get(id.bits()).is_some() && self.frozen.get(id.bits()).is_none()
    }

    /// The span of ids around one that this node owns since the same epoch; None if it does not own
    /// the id.
    pub fn around(&self, id: ChunkId) -> Option<(IdRange, u64)> {
        let (span, since) = self.owned.around(id.bits())?;
        let creator = id.bits() & !COUNTER_MAX;
        let (first, end) = (span.start.max(creator), span.end.min(creator + COUNTER_MAX + 1));
        Some((IdRange::from_bits(first, end), *since))
    }

    /// The ids within a range that this node owns, with the epoch since which it does.
    pub fn owned(&self, ids: IdRange) -> impl Iterator<Item = (IdRange, u64)> {
        let over = self.owned.over(ids.start()..ids.end());
        over.map(|(span, since)| (IdRange::from_bits(span.start, span.end), *since))
    }

    /// Numbers of owned partitions of the named ids, of owned ids of chunks, and of spans of those.
    pub fn holdings(&self) -> (u64, u64, u64) {
        let is_named = |start: u64| start >> COUNTER_BITS >= u64::from(NAMED_FIRST);
        let (mut named, mut ids, mut spans) = (0, 0, 0);
        for (span, _) in self.owned.iter() {
            if is_named(span.start) {
                named += span.end - span.start;
            } else {
                ids += span.end - span.start;
                spans += 1;
            }
        }
        // Round to the nearest, since single hot ids may be owned elsewhere.
        let partition = 1 << COUNTER_BITS;
        ((named + partition / 2) / partition, ids, spans)
    }

    /// Executes a request. `clock` returns the time in milliseconds and may be called repeatedly:
    /// if the lease ends before the work is done, nothing is answered (the client repeats the
    /// request and gets the cached responses).
    ///
    /// Returns None if the reply has to wait for backups; [`ChunkCommand::Reply`] to `requester`
    /// then carries it, or several of them carry parts of it.
    pub fn execute(
        &mut self,
        requester: Requester,
        request: &Request,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<Reply> {
        self.copied_bytes = 0;
        let now_ms = clock();
        let refuse = |error: ChunkError| -> Option<Reply> {
            let all = request.operations.iter();
            Some(all.map(|operation| (operation.number, Err(error))).collect())
        };
        if now_ms >= self.deadline_ms || self.replication.is_deposed() {
            return refuse(ChunkError::Unavailable);
        }
        if request.incarnation != self.me.incarnation {
            return refuse(ChunkError::Restarted(self.me.incarnation));
        }
        if request.operations.len() > OPERATIONS_MAX || self.pending_replies.is_full() {
            return refuse(ChunkError::Busy);
        }
        self.sessions.touch(request.client, request.answered_below, now_ms);
        self.replicate_ended_locks();
        let reply = self.execute_all(request, now_ms);
        let mut awaited = Vec::new();
        for (operation, (_, result)) in request.operations.iter().zip(&reply) {
            let created = if let Ok(Response::Created(id)) = result { Some(*id) } else { None };
            // The id that the operation changed, or read after a change that backups lack.
            let id = operation.action.id().or(created);
            id.into_iter().for_each(|id| self.load_balancer.record(id));
            awaited.push(id.and_then(|id| self.replication.pending_version(id)));
        }
        if clock() >= self.deadline_ms {
            // A refusal would say that nothing was executed. Without a reply the client repeats the
            // request, or ends it as unknown.
            return Some(Reply::new());
        }
        let versions: Vec<u64> = awaited.iter().flatten().copied().collect();
        if versions.is_empty() {
            return Some(reply);
        }
        let reply = PendingReply::Reply(requester, reply, awaited);
        self.pending_replies.hold(versions, reply, now_ms);
        None
    }

    /// Sends the replies that no longer wait for backups.
    fn release(&mut self, clock: &mut dyn FnMut() -> u64, out: &mut Vec<ChunkCommand>) {
        let mut ready = Vec::new();
        self.replication
            .take_acknowledged(|version| self.pending_replies.release(version, &mut ready));
        self.pending_replies.divide(clock(), &mut ready);
        for waiting in ready {
            match waiting {
                PendingReply::Reply(requester, reply, _) if clock() < self.deadline_ms => {
                    out.push(ChunkCommand::Reply(requester, reply));
                }
                // The client repeats the request and gets the cached responses.
                PendingReply::Reply(..) => {}
                PendingReply::Ack(to, number, page) => {
                    let ack = self.ack_page(to, number, page);
                    out.extend(ack.map(|ack| ChunkCommand::Send(to, ack)));
                }
            }
        }
    }

    /// Handles a message of a backup.
    pub fn on_backup(
        &mut self,
        from: Peer,
        message: &ReplicationMessage,
        clock: &mut dyn FnMut() -> u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        let now_ms = clock();
        match message {
            ReplicationMessage::Resend { stream, keys } => {
                for record in keys {
                    if record.id.creator().is_named() {
                        self.repair_later(from, *stream, *record);
                        continue;
                    }
                    let mutation =
                        match (record.is_lock(), self.sessions.grant_of(record.id, now_ms)) {
                            (false, _) => chunk(&mut self.store, record.id),
                            (true, Some(lock)) => Mutation::put_lock(record.id, &lock),
                            (true, None) => Mutation::RemoveLock(record.id),
                        };
                    self.replication.resend(from, *stream, record.id, mutation);
                }
            }
            ReplicationMessage::Sealed { source, ids, last, beyond } => {
                self.on_sealed(from, (*source, *ids), *last, beyond.as_deref(), now_ms);
            }
            ReplicationMessage::Fetched { source, ids, found, sessions, lacking, damaged } => {
                let answer = Fetched { found, sessions, lacking, damaged };
                self.on_fetched(from, (*source, *ids), &answer, now_ms);
            }
            _ => {}
        }
        self.replication.on_message(from, message, now_ms);
        if self.replication.is_deposed() {
            self.served.withdraw();
        }
        self.release(clock, out);
    }

    /// Sends backups the changes since the last call, and more to those that catch up; publishes
    /// what this node serves, if that has changed. Call it once after a batch of requests.
    pub fn flush(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        self.tell_of_evictions();
        let mut wanted = Vec::new();
        let sessions = &self.sessions;
        let export = |ids: IdRange| sessions.export(ids, now_ms);
        self.replication.advance_catch_up(&mut self.store, &export, &mut wanted);
        self.replication.flush(now_ms, &mut wanted);
        out.extend(wanted.into_iter().map(ChunkCommand::Replication));
        if self.served.is_withdrawn() && !self.replication.is_deposed() {
            self.publish();
        }
    }

    /// Advances the time to `now_ms`: expires sessions, claims ids, continues moves.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        self.sessions.expire(now_ms);
        self.replicate_ended_locks();
        if std::mem::take(&mut self.claim_waits) {
            self.next_claim_ms = now_ms + self.limits.retry_ms;
        }
        if !self.is_claiming
            && now_ms >= self.next_claim_ms
            && self.replication.is_ready()
            && !self.is_leaving
            && self.claimed_end - self.allocator.next_counter() < self.limits.low_ids
            && let Some(ids) = self.next_claim()
        {
            self.is_claiming = true;
            self.claiming = self.replication.choose_backup_set(ids);
            out.push(ChunkCommand::Claim(ids, self.claiming.clone()));
        }
        self.record_others();
        self.tick_moves(now_ms, out);
        self.tick_scan(now_ms, out);
        self.tick_copies(now_ms, out);
        self.close_reserve();
    }

    /// The next ids to claim.
    fn next_claim(&self) -> Option<IdRange> {
        let creator = Creator::from(self.me.node);
        let first = ChunkId::new(creator, self.claimed_end).ok()?;
        let length = self.limits.claim_ids.max(1).min(COUNTER_MAX + 1 - self.claimed_end);
        IdRange::starting_at(first, length).ok()
    }

    /// Takes the result of [`ChunkCommand::Claim`]. Ids that an earlier incarnation of this node
    /// claimed are left alone.
    pub fn on_claimed(&mut self, ids: IdRange, result: Result<u64, Refusal>) {
        self.is_claiming = false;
        if result == Err(Refusal::StalePeer) {
            // A backup is dead; the next try names others.
            self.claim_waits = true;
            return;
        }
        let mut end = ids.last().counter() + 1;
        if result.is_err() {
            // Where an earlier incarnation has ids, there are probably more: skip twice as far each
            // time.
            end = end.saturating_add(self.skipped_ids).min(COUNTER_MAX + 1);
            self.skipped_ids = (self.skipped_ids * 2).max(ids.len()).min(SKIPPED_IDS_MAX);
        }
        self.claimed_end = self.claimed_end.max(end);
        match result {
            Ok(epoch) => {
                self.skipped_ids = 0;
                self.set_owned(ids, Some(epoch));
                let backups = std::mem::take(&mut self.claiming);
                self.replication.set_first_backups(ids, backups);
            }
            Err(_) => {
                if let Ok(allocator) = IdAllocator::resume(self.allocator.creator(), end)
                    && self.allocator.next_counter() < end
                {
                    self.allocator = allocator;
                }
            }
        }
    }

    /// Makes this node the owner of named ids, of which nobody has items, with these backups. Where
    /// they are too few, nothing is changed before there are enough.
    pub fn own_partition(&mut self, ids: IdRange, epoch: u64, backups: Vec<Peer>) {
        self.remove_now(ids);
        self.set_owned(ids, Some(epoch));
        self.replication.set_first_backups(ids, backups);
    }

    /// Remembers where ids went.
    fn note_moved(&mut self, ids: IdRange, to: Placement) {
        if self.moved.len() >= MOVED_SPANS_MAX {
            self.moved = IntervalMap::default();
        }
        self.moved.assign(ids.start()..ids.end(), Some(to));
    }
}

#[cfg(test)]
mod tests;
