//! How chunks move to another node while clients read and write them.
//!
//! The source offers ids; it copies chunks page by page while it serves, and sends again what was
//! written meanwhile; it freezes the ids, and sends the rest with locks and cached responses; then
//! it has the metadata changed. At that change the ids become the target's. Each message is
//! repeated until it is answered. A source cancels a move only before it asks for the change; after
//! that it waits for the result. A target that hears nothing any more looks up who owns the ids.

use std::collections::BTreeSet;

use super::super::moves::{
    IncomingMove, MOVES_MAX, MoveMessage, MoveStage, OutgoingMove, Page, is_movable,
};
use super::super::pending_replies::PendingReply;
use super::super::scan::KeySet;
use super::{ChunkCommand, ChunkService};
use crate::chunks::{ChunkStore, ClientState, MovingItem};
use crate::codec::Wire;
use crate::ids::{ChunkId, IdRange};
use crate::overlay::{Located, Peer, Refusal};
use crate::ranges::Placement;
use crate::replication::{Mutation, RecordKey};

/// Chunks in a page, its approximate bytes, and ids scanned for one page.
const PAGE_CHUNKS: usize = 64;
const PAGE_BYTES: usize = 256 << 10;
const PAGE_LOOKS: u64 = 4_096;
/// Rounds of resending what was written meanwhile before the ids are frozen.
const ROUNDS_MAX: u32 = 8;

impl<S: ChunkStore> ChunkService<S> {
    /// Starts to move ids to another node. False if that is not possible: the node must own all of
    /// them, none may be moving, and moves and ids are bounded.
    pub fn migrate(
        &mut self,
        ids: IdRange,
        target: Peer,
        now_ms: u64,
        out: &mut Vec<ChunkCommand>,
    ) -> bool {
        let is_possible = target != self.me
            && is_movable(ids)
            && self.outgoing.len() < MOVES_MAX
            && self.owned.all(ids.start()..ids.end(), |_| true)
            && !self.is_moving(ids);
        if is_possible {
            let number = self.next_transfer;
            self.next_transfer += 1;
            let since = self.owned(ids).map(|(_, since)| since).max().unwrap_or_default();
            let offer = MoveMessage::Offer { number, ids, since };
            out.push(ChunkCommand::Send(target, offer.clone()));
            let outgoing = OutgoingMove {
                ids,
                target,
                stage: MoveStage::Offering,
                dirty: KeySet::default(),
                in_flight: Some(offer),
                page: 0,
                sent_ms: now_ms,
                heard_ms: now_ms,
                is_target_dead: false,
            };
            self.before_served_changes(ids);
            self.outgoing.insert(number, outgoing);
        }
        is_possible
    }

    /// Numbers of moves from this node and to it.
    pub fn moves(&self) -> (usize, usize) {
        (self.outgoing.len(), self.incoming.len())
    }

    fn is_moving(&self, ids: IdRange) -> bool {
        self.outgoing.values().any(|outgoing| outgoing.ids.overlaps(ids))
            || self.incoming.values().any(|incoming| incoming.ids.overlaps(ids))
    }

    /// Notes a write or removal: a copy that was sent before is outdated.
    pub(super) fn note_write(&mut self, id: ChunkId, key: &[u8]) {
        for outgoing in self.outgoing.values_mut().filter(|outgoing| outgoing.ids.contains(id)) {
            let is_ahead = matches!(outgoing.stage, MoveStage::Copying(next) if id.bits() >= next);
            if outgoing.stage != MoveStage::Offering && !is_ahead {
                outgoing.dirty.insert(id, key);
            }
        }
    }

    /// Handles a message of the other side of a move.
    pub fn on_move(
        &mut self,
        from: Peer,
        message: MoveMessage,
        now_ms: u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        match message {
            MoveMessage::Offer { number, ids, since } => {
                self.on_offer(from, number, (ids, since), now_ms, out);
            }
            MoveMessage::Page { number, page, chunks, tail } => {
                self.on_page(from, number, page, &chunks, tail, now_ms, out);
            }
            MoveMessage::Transferred { number, ids, epoch } => {
                if self.incoming.get(&(from, number)).is_some_and(|move_| move_.ids == ids) {
                    self.activate(from, number, epoch, now_ms);
                }
                // Repeat the answer, even if the ids were given away again since.
                if !self.incoming.contains_key(&(from, number)) {
                    out.push(ChunkCommand::Send(from, MoveMessage::TransferAck { number }));
                }
            }
            MoveMessage::Cancelled { number } => self.cancel_incoming(from, number),
            MoveMessage::Ack { number, page, backups } => {
                self.on_ack(from, (number, page, backups), now_ms, out);
            }
            MoveMessage::Declined { number } => {
                if self.is_target(from, number) && !self.is_committing(number) {
                    self.cancel_outgoing(number);
                }
            }
            MoveMessage::TransferAck { number } => {
                let is_handing_over = self.outgoing.get(&number).is_some_and(|outgoing| {
                    outgoing.target == from && matches!(outgoing.stage, MoveStage::HandingOver(_))
                });
                if is_handing_over {
                    self.forget_outgoing(number);
                }
            }
        }
    }

    fn is_target(&self, peer: Peer, number: u64) -> bool {
        self.outgoing.get(&number).is_some_and(|outgoing| outgoing.target == peer)
    }

    /// Whether the metadata may have changed.
    fn is_committing(&self, number: u64) -> bool {
        let stage = self.outgoing.get(&number).map(|outgoing| outgoing.stage);
        matches!(stage, Some(MoveStage::Committing | MoveStage::HandingOver(_)))
    }

    /// Cancels a move from this node; it serves the ids as before.
    fn cancel_outgoing(&mut self, number: u64) {
        if let Some(ids) = self.forget_outgoing(number) {
            self.set_frozen(ids, false);
        }
    }

    fn forget_outgoing(&mut self, number: u64) -> Option<IdRange> {
        let ids = self.outgoing.get(&number)?.ids;
        self.before_served_changes(ids);
        self.outgoing.remove(&number);
        Some(ids)
    }

    fn on_ack(
        &mut self,
        from: Peer,
        (number, page, backups): (u64, u32, Vec<Peer>),
        now_ms: u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        if !self.is_target(from, number) {
            // The move was cancelled, or the target has only a part of it.
            return out.push(ChunkCommand::Send(from, MoveMessage::Cancelled { number }));
        }
        let Some(outgoing) = self.outgoing.get_mut(&number) else { return };
        outgoing.heard_ms = now_ms;
        if outgoing.page != page || outgoing.in_flight.is_none() {
            return;
        }
        let was_last = matches!(&outgoing.in_flight, Some(MoveMessage::Page { tail: Some(_), .. }));
        if was_last && self.replication.is_changing(outgoing.ids) {
            // The old backups must be settled first; the page is sent again until then.
            return;
        }
        outgoing.in_flight = None;
        if outgoing.stage == MoveStage::Offering {
            let is_named = outgoing.ids.first().creator().is_named();
            let start = outgoing.ids.start();
            outgoing.stage =
                if is_named { MoveStage::Collecting } else { MoveStage::Copying(start) };
        }
        if was_last {
            outgoing.stage = MoveStage::Committing;
            out.push(ChunkCommand::Transfer(outgoing.ids, outgoing.target, backups));
        } else if outgoing.stage != MoveStage::Collecting {
            self.send_page(number, now_ms, out);
        }
    }

    /// The moves that wait for a scan.
    pub(super) fn uncollected(&self) -> BTreeSet<u64> {
        let waits = self.outgoing.iter().filter(|(_, one)| one.stage == MoveStage::Collecting);
        waits.map(|(number, _)| *number).collect()
    }

    /// The scan has found all items of a move.
    pub(super) fn collected(&mut self, number: u64, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        let Some(outgoing) = self.outgoing.get_mut(&number) else { return };
        if outgoing.stage == MoveStage::Collecting {
            let pages = outgoing.dirty.len() / PAGE_CHUNKS;
            outgoing.stage = MoveStage::CatchingUp(ROUNDS_MAX + pages as u32);
            self.send_page(number, now_ms, out);
        }
    }

    /// Sends the next page of a move.
    fn send_page(&mut self, number: u64, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        let Some(mut outgoing) = self.outgoing.remove(&number) else { return };
        let mut chunks = Page::new();
        let mut bytes = 0;
        if let MoveStage::Copying(from) = outgoing.stage {
            let end = outgoing.ids.end();
            let mut at = from;
            while at < end.min(from + PAGE_LOOKS)
                && chunks.len() < PAGE_CHUNKS
                && bytes < PAGE_BYTES
            {
                let id = ChunkId::from_bits(at).expect("it lies in a range");
                let read = |value: &[u8]| {
                    bytes += value.len();
                    chunks.push((id, Some(value.to_vec())));
                };
                let mut read = read;
                self.store.read(id, &mut read);
                at += 1;
            }
            let is_over = at == end;
            outgoing.stage =
                if is_over { MoveStage::CatchingUp(ROUNDS_MAX) } else { MoveStage::Copying(at) };
        } else {
            if let MoveStage::CatchingUp(rounds) = outgoing.stage {
                let freezes = rounds == 0 || outgoing.dirty.len() <= PAGE_CHUNKS;
                outgoing.stage =
                    if freezes { MoveStage::Frozen } else { MoveStage::CatchingUp(rounds - 1) };
                if freezes {
                    // From here on nobody reads or writes the ids until the metadata has changed.
                    self.set_frozen(outgoing.ids, true);
                }
            }
            while chunks.len() < PAGE_CHUNKS
                && bytes < PAGE_BYTES
                && let Some((id, key)) = outgoing.dirty.pop()
            {
                let mut value = None;
                if key.is_empty() {
                    self.store.read(id, &mut |read| value = Some(read.to_vec()));
                } else {
                    let mut carried = Vec::new();
                    self.store.moving_item(&key).encode(&mut carried);
                    value = Some(carried);
                }
                bytes += value.as_ref().map_or(0, Vec::len);
                chunks.push((id, value));
            }
        }
        let is_last = outgoing.stage == MoveStage::Frozen && outgoing.dirty.is_empty();
        let tail = is_last.then(|| self.sessions.export(outgoing.ids, now_ms));
        outgoing.page += 1;
        let message = MoveMessage::Page { number, page: outgoing.page, chunks, tail };
        out.push(ChunkCommand::Send(outgoing.target, message.clone()));
        (outgoing.in_flight, outgoing.sent_ms) = (Some(message), now_ms);
        self.outgoing.insert(number, outgoing);
    }

    /// Takes the result of [`ChunkCommand::Transfer`]. It is final: a late repetition is not
    /// executed.
    pub fn on_transferred(
        &mut self,
        ids: IdRange,
        result: Result<u64, Refusal>,
        now_ms: u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        let found = self
            .outgoing
            .iter_mut()
            .find(|(_, outgoing)| outgoing.ids == ids && outgoing.stage == MoveStage::Committing);
        let Some((number, outgoing)) = found else { return };
        let (number, target) = (*number, outgoing.target);
        let is_target_dead = outgoing.is_target_dead;
        match result {
            Ok(epoch) => {
                outgoing.stage = MoveStage::HandingOver(epoch);
                (outgoing.sent_ms, outgoing.heard_ms) = (now_ms, now_ms);
                out.push(ChunkCommand::Send(
                    target,
                    MoveMessage::Transferred { number, ids, epoch },
                ));
                self.set_owned(ids, None);
                self.set_frozen(ids, false);
                self.note_moved(ids, Placement::of_owner(target.node));
                self.replication.hand_over(ids);
                self.remove_all(ids);
                if is_target_dead {
                    self.forget_outgoing(number);
                }
            }
            Err(_) => {
                self.cancel_outgoing(number);
                out.push(ChunkCommand::Send(target, MoveMessage::Cancelled { number }));
            }
        }
    }

    /// Repeats unanswered messages, and cancels moves whose target is silent.
    pub(super) fn tick_moves(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        let (retry_ms, give_up_ms) = (self.limits.retry_ms, self.limits.give_up_ms);
        let mut expired = Vec::new();
        for (number, outgoing) in &mut self.outgoing {
            let number = *number;
            if outgoing.stage == MoveStage::Collecting {
                // This node is scanning, so the target owes no answer.
                outgoing.heard_ms = now_ms;
            }
            let is_silent = now_ms >= outgoing.heard_ms + give_up_ms;
            let is_committing =
                matches!(outgoing.stage, MoveStage::Committing | MoveStage::HandingOver(_));
            if is_silent && !is_committing {
                expired.push((number, outgoing.target));
            } else if now_ms >= outgoing.sent_ms + retry_ms {
                outgoing.sent_ms = now_ms;
                if let MoveStage::HandingOver(epoch) = outgoing.stage {
                    let message = MoveMessage::Transferred { number, ids: outgoing.ids, epoch };
                    out.push(ChunkCommand::Send(outgoing.target, message));
                } else if let Some(message) = &outgoing.in_flight {
                    out.push(ChunkCommand::Send(outgoing.target, message.clone()));
                }
            }
        }
        for (number, target) in expired {
            out.push(ChunkCommand::Send(target, MoveMessage::Cancelled { number }));
            self.cancel_outgoing(number);
        }
        let mut silent = Vec::new();
        for ((source, number), incoming) in &mut self.incoming {
            if now_ms >= incoming.heard_ms + give_up_ms {
                incoming.heard_ms = now_ms;
                silent.push((*source, *number, incoming.next_page - 1, incoming.ids.first()));
            }
        }
        for (source, number, page, first) in silent {
            // The source tells whether the move goes on, the super peers whether it was committed.
            let ack = self.ack_page(source, number, page);
            out.extend(ack.map(|ack| ChunkCommand::Send(source, ack)));
            out.push(ChunkCommand::LookUp(first));
        }
    }

    fn on_offer(
        &mut self,
        from: Peer,
        number: u64,
        (ids, since): (IdRange, u64),
        now_ms: u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        let known = self.incoming.get(&(from, number));
        if known.is_none() {
            let is_free = self.owned.over(ids.start()..ids.end()).next().is_none();
            if !is_free
                || self.is_leaving()
                || self.is_removing(ids)
                || self.failovers.overlap(ids)
                || self.is_moving(ids)
                || self.incoming.len() >= MOVES_MAX
                || !is_movable(ids)
            {
                return out.push(ChunkCommand::Send(from, MoveMessage::Declined { number }));
            }
            let (staged, heard_ms) = (KeySet::default(), now_ms);
            let has_backups = self.has_backups();
            let backups =
                if has_backups { self.replication.choose_backup_set(ids) } else { Vec::new() };
            if has_backups && !self.replication.meets_min_replicas(backups.len()) {
                return out.push(ChunkCommand::Send(from, MoveMessage::Declined { number }));
            }
            let change = has_backups
                .then(|| self.replication.begin_catch_up(ids, Vec::new(), backups.clone(), true));
            let (next_page, tail) = (1, None);
            let incoming =
                IncomingMove { ids, since, next_page, staged, tail, heard_ms, change, backups };
            self.incoming.insert((from, number), incoming);
        }
        let ack = MoveMessage::Ack { number, page: 0, backups: Vec::new() };
        out.push(ChunkCommand::Send(from, ack));
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one message, and of the call")]
    fn on_page(
        &mut self,
        from: Peer,
        number: u64,
        page: u32,
        chunks: &Page,
        tail: Option<ClientState>,
        now_ms: u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        let Some(incoming) = self.incoming.get_mut(&(from, number)) else { return };
        incoming.heard_ms = now_ms;
        let (mut is_new, mut awaited) = (false, BTreeSet::new());
        if page == incoming.next_page {
            is_new = true;
            for (id, value) in chunks.iter().filter(|(id, _)| incoming.ids.contains(*id)) {
                if id.creator().is_named() {
                    let carried = value.as_deref().map(MovingItem::decode_all);
                    let Some(Ok(carried)) = carried else { continue };
                    incoming.staged.insert(*id, &carried.key);
                    let store = &mut self.store;
                    let stored =
                        self.reserve.write(store, |store| store.store_moved_item(&carried));
                    if stored.is_err() {
                        self.cancel_incoming(from, number);
                        return out
                            .push(ChunkCommand::Send(from, MoveMessage::Declined { number }));
                    }
                    if incoming.change.is_some() {
                        let record = RecordKey::item(*id, &carried.key);
                        let kept = self.store.replica_item(&carried.key);
                        let mutation = kept.map_or(Mutation::RemoveItem(record), |kept| {
                            Mutation::PutItem(record, kept)
                        });
                        self.replication.replicate(*id, mutation, Vec::new());
                        awaited.extend(self.replication.pending_version(*id));
                    }
                    continue;
                }
                let is_stored = match value {
                    Some(value) => {
                        let store = &mut self.store;
                        self.reserve.write(store, |store| store.write(*id, value)).is_ok()
                    }
                    None => {
                        self.store.remove(*id);
                        true
                    }
                };
                incoming.staged.insert(*id, &[]);
                let mutation = match value {
                    Some(value) => Mutation::Put(*id, value.clone()),
                    None => Mutation::Remove(*id),
                };
                self.replication.replicate(*id, mutation, Vec::new());
                awaited.extend(self.replication.pending_version(*id));
                if !is_stored {
                    self.cancel_incoming(from, number);
                    return out.push(ChunkCommand::Send(from, MoveMessage::Declined { number }));
                }
            }
            if let Some(tail) = &tail {
                for (id, lock) in tail.locks.iter().filter(|(id, _)| incoming.ids.contains(*id)) {
                    let mutation = Mutation::put_lock(*id, lock);
                    self.replication.replicate(*id, mutation, Vec::new());
                    awaited.extend(self.replication.pending_version(*id));
                }
                let first = incoming.ids.first();
                self.replication.replicate(first, Mutation::RepliesOnly, tail.sessions.clone());
                awaited.extend(self.replication.pending_version(first));
            }
            incoming.next_page += 1;
            incoming.tail = tail;
        }
        // An old page is not applied again: its content may be outdated.
        if page < incoming.next_page {
            match self.ack_page(from, number, page) {
                Some(ack) => out.push(ChunkCommand::Send(from, ack)),
                None if is_new && !awaited.is_empty() => {
                    let ack = PendingReply::Ack(from, number, page);
                    self.pending_replies.hold(awaited, ack, now_ms);
                }
                None => {}
            }
        }
    }

    /// The acknowledgement of a page, if the backups have everything up to it. From the last page
    /// on the backups are not changed any more: the source may have them committed.
    pub(super) fn ack_page(&mut self, from: Peer, number: u64, page: u32) -> Option<MoveMessage> {
        let incoming = self.incoming.get(&(from, number))?;
        if self.replication.has_pending_writes(incoming.ids) {
            return None;
        }
        if let Some(change) = incoming.change.filter(|_| incoming.tail.is_some()) {
            self.replication.begin_commit(change);
        }
        Some(MoveMessage::Ack { number, page, backups: incoming.backups.clone() })
    }

    /// Cancels moves of these ids to this node; the sources are not told.
    pub(super) fn cancel_incoming_in(&mut self, ids: IdRange) {
        let about = self.incoming.iter().filter(|(_, incoming)| incoming.ids.overlaps(ids));
        for (from, number) in about.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.cancel_incoming(from, number);
        }
    }

    /// Makes this node the owner of the ids of a move.
    fn activate(&mut self, from: Peer, number: u64, epoch: u64, now_ms: u64) {
        if self.incoming.get(&(from, number)).is_none_or(|incoming| incoming.tail.is_none()) {
            return;
        }
        let incoming = self.incoming.remove(&(from, number)).expect("it was there");
        let ids = incoming.ids;
        self.sessions.import(ids, &incoming.tail.unwrap_or_default(), now_ms);
        self.moved.assign(ids.start()..ids.end(), None);
        self.set_owned(ids, Some(epoch));
        self.replication.set_backups(ids, incoming.backups);
        if let Some(change) = incoming.change {
            self.replication.abort(change);
        }
    }

    pub(super) fn cancel_incoming(&mut self, from: Peer, number: u64) {
        if let Some(mut incoming) = self.incoming.remove(&(from, number)) {
            while let Some((id, key)) = incoming.staged.pop() {
                if key.is_empty() {
                    self.store.remove(id);
                } else {
                    self.store.remove_item_of(&key);
                }
            }
            self.replication.drop_ids(incoming.ids);
        }
    }

    /// Takes the result of [`ChunkCommand::LookUp`] for a move to this node. Only a committed owner
    /// counts, at an epoch no older than the source's.
    pub fn on_located(&mut self, id: ChunkId, located: &Located, now_ms: u64) {
        let found = self.incoming.iter().find(|(_, incoming)| incoming.ids.first() == id);
        let Some((&(source, number), incoming)) = found else { return };
        if !located.is_certain || located.epoch < incoming.since {
            return;
        }
        if located.owner == self.me {
            self.activate(source, number, located.epoch, now_ms);
        } else if located.owner != source {
            // The source gave the ids to another node or is restarted: nothing will arrive.
            self.cancel_incoming(source, number);
        }
    }

    /// A peer is dead: its answers will not arrive.
    pub fn on_dead(&mut self, peer: Peer) {
        for outgoing in self.outgoing.values_mut() {
            outgoing.is_target_dead |= outgoing.target == peer;
        }
        let cancelled = |(number, outgoing): (&u64, &OutgoingMove)| {
            (outgoing.target == peer && outgoing.stage != MoveStage::Committing).then_some(*number)
        };
        for number in self.outgoing.iter().filter_map(cancelled).collect::<Vec<_>>() {
            self.cancel_outgoing(number);
        }
    }
}
