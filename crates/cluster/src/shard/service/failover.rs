//! Failover: how a backup takes over from a dead owner.
//!
//! The metadata names a backup as the new owner, under a new epoch. The new owner seals the
//! replicas in the name of the old one, so that nothing more of its writes is acknowledged, and
//! loads them in slices, since other requests wait meanwhile. It fetches from the other holders
//! what it cannot read. Then it makes these holders its backups in place: they seal their replicas,
//! report how far they came, rename them to the new owner, and are sent the difference. Where that
//! is not possible everything is copied to a new replica set. Once the set is committed the new
//! owner serves, and replaces missing backups as any owner does. If it dies before, the next holder
//! does the same from its own replicas; each has every acknowledged write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::failover_task::{FailoverTask, Fetched, SliceLoad, UnreadableChunks};
use super::super::missing::Missing;
use super::super::moves::MoveMessage;
use super::{ChunkCommand, ChunkService};
use crate::chunks::{ChunkStore, ClientState, LockGrant, ReplicaItem};
use crate::codec::Wire;
use crate::ids::{ChunkId, IdRange};
use crate::overlay::{FailoverGrant, Peer, Refusal};
use crate::replication::{
    Mutation, NAMED_CHANGES_MAX, RecordKey, ReplicaStore, ReplicationCommand, ReplicationMessage,
};

/// Bytes of failovers that are loaded ahead, and that are taken over at a time: what is loaded
/// occupies memory, and nobody is served meanwhile.
const ASKED_BYTES_MAX: u64 = 4 << 20;
const TAKEN_BYTES_MAX: u64 = 2 << 20;

impl<S: ChunkStore> ChunkService<S> {
    /// The owner to recover from, in the change with this number; None if the change is no
    /// failover.
    pub fn source(&self, change: u64) -> Option<Peer> {
        self.failovers.committing.get(&change).map(|failover| failover.grant.source)
    }

    /// Number of failovers.
    pub fn failovers(&self) -> usize {
        self.failovers.loading.len() + self.failovers.committing.len()
    }

    /// Number of failovers that load replicas, and of those whose new backups are agreed on.
    pub fn failover_stages(&self) -> (usize, usize) {
        (self.failovers.loading.len(), self.failovers.committing.len())
    }

    /// Starts a failover that a leader has granted. The leader repeats the grant until the ids are
    /// served, so a grant that cannot be taken up now is ignored.
    pub fn start_failover(&mut self, grant: &FailoverGrant, replica_store: &mut ReplicaStore) {
        let ids = grant.ids;
        let is_owned = self.owned.over(ids.start()..ids.end()).next().is_some();
        // Items of these ids may still be here: older ones, or a part of the same failover.
        let is_mine = grant.holders.first() == Some(&self.me);
        if !is_mine || is_owned || self.is_removing(ids) {
            return;
        }
        if self.failovers.overlap(ids) {
            let is_same = |known: &FailoverGrant| {
                (known.ids, known.source) == (ids, grant.source) && known.epoch < grant.epoch
            };
            // Some holders may have died since.
            for loading in self.failovers.loading.iter_mut().filter(|one| is_same(&one.grant)) {
                loading.sealed.retain(|peer, _| grant.holders.contains(peer));
                loading.grant = grant.clone();
            }
            return;
        }
        // The other holders keep their replicas until another replica set is committed.
        if !self.replication.meets_min_replicas(self.learners(grant).len()) {
            return;
        }
        // A move of these ids to this node came from the dead owner, or is older.
        self.cancel_incoming_in(ids);
        replica_store.seal(grant.source);
        self.failovers.start(FailoverTask {
            grant: grant.clone(),
            next: ids.start(),
            asked: ids.start(),
            slices: VecDeque::new(),
            items: Vec::new(),
            locks: Vec::new(),
            damaged: Vec::new(),
            missing: Missing::default(),
            past_learners: BTreeSet::new(),
            attempts: 0,
            waits_from_ms: None,
            next_ask_ms: 0,
            sealed: BTreeMap::new(),
        });
    }

    /// Asks the other holders for reports, and for chunks that cannot be read here.
    fn query_holders(
        &mut self,
        now_ms: u64,
        replica_store: &ReplicaStore,
        out: &mut Vec<ChunkCommand>,
    ) {
        let (replication, retry_ms) = (&self.replication, self.limits.replication.retry_ms);
        for loading in
            self.failovers.loading.iter_mut().filter(|loading| !loading.missing.is_empty())
        {
            let FailoverGrant { ids, source, .. } = loading.grant;
            let others: Vec<Peer> = loading.others(replication).collect();
            let question = loading.missing.question(now_ms, retry_ms, others.into_iter());
            if let Some((peer, keys)) = question {
                let message = ReplicationMessage::Fetch { source, ids, keys };
                out.push(ChunkCommand::Replication(ReplicationCommand::Send(peer, message)));
            }
        }
        for loading in
            self.failovers.loading.iter_mut().filter(|loading| now_ms >= loading.next_ask_ms)
        {
            let FailoverGrant { ids, source, .. } = loading.grant;
            loading.next_ask_ms = now_ms + retry_ms;
            let last = replica_store.last_version(source);
            for peer in loading.unsealed(replication) {
                let message = ReplicationMessage::Seal { source, ids, last };
                out.push(ChunkCommand::Replication(ReplicationCommand::Send(peer, message)));
            }
        }
    }

    /// Takes the report of another holder.
    pub(super) fn on_sealed(
        &mut self,
        from: Peer,
        (source, ids): (Peer, IdRange),
        last: u64,
        beyond: Option<&[RecordKey]>,
        now_ms: u64,
    ) {
        let is_meant = |loading: &&mut FailoverTask| {
            let FailoverGrant { ids: loaded, source: from, .. } = loading.grant;
            (loaded, from) == (ids, source)
        };
        if let Some(loading) = self.failovers.loading.iter_mut().find(is_meant)
            && loading.grant.holders[1..].contains(&from)
        {
            loading.sealed.insert(from, (last, beyond.map(<[RecordKey]>::to_vec)));
            self.replication.on_response(from, now_ms);
        }
    }

    /// Takes another holder's answer about chunks that cannot be read here.
    pub(super) fn on_fetched(
        &mut self,
        from: Peer,
        (source, ids): (Peer, IdRange),
        answer: &Fetched<'_>,
        now_ms: u64,
    ) {
        let is_meant = |loading: &FailoverTask| {
            let grant = &loading.grant;
            (grant.ids, grant.source) == (ids, source) && grant.holders.contains(&from)
        };
        let Some(place) = self.failovers.loading.iter().position(is_meant) else { return };
        let loading = &mut self.failovers.loading[place];
        loading.missing.answered(from, answer.lacking, answer.damaged);
        let (mut came, mut is_stored) = (BTreeSet::new(), true);
        for mutation in answer.found {
            let Some((record, _)) = mutation.copy() else { continue };
            let is_spoilt = match mutation {
                Mutation::PutItem(_, value) => ReplicaItem::decode_all(value).is_err(),
                Mutation::PutLock(_, value) => LockGrant::decode_all(value).is_err(),
                _ => false,
            };
            if is_spoilt {
                loading.missing.answered(from, &[], &[record]);
            } else if loading.missing.came(record) {
                came.insert(record.id);
            }
        }
        let (store, reserve) = (&mut self.store, &mut self.reserve);
        // What came takes the place of what was read here, the lock that of the lock too: of
        // unacknowledged changes, either of the two may have more, and the replies are the other's.
        for mutation in answer.found {
            let Some((record, _)) = mutation.copy() else { continue };
            if !came.contains(&record.id) {
                continue;
            }
            loading.damaged.push(record);
            match mutation {
                Mutation::Put(id, value) => {
                    is_stored &= reserve.write(store, |store| store.write(*id, value)).is_ok();
                }
                Mutation::Remove(id) => drop(store.remove(*id)),
                Mutation::PutLock(id, value) => {
                    let Ok(lock) = LockGrant::decode_all(value) else { continue };
                    self.sessions.restore_lock(*id, &lock, now_ms);
                }
                Mutation::RemoveLock(id) => drop(self.sessions.release(*id)),
                Mutation::PutItem(_, value) => {
                    let Ok(kept) = ReplicaItem::decode_all(value) else { continue };
                    is_stored &= reserve.write(store, |store| store.restore_item(&kept)).is_ok();
                    loading.items.push((record.id, kept.key));
                }
                _ => {}
            }
        }
        if !is_stored {
            // There is no memory now; the leader will repeat the grant.
            self.failovers.loading.remove(place);
            self.failovers.end(ids);
            return self.remove_all(ids);
        }
        if !came.is_empty() {
            self.sessions.forget(&came);
            let mut sessions = answer.sessions.to_vec();
            for session in &mut sessions {
                session.answers.retain(|(_, id, _)| came.contains(id));
            }
            self.sessions.import(ids, &ClientState { sessions, ..ClientState::default() }, now_ms);
        }
        self.replication.on_response(from, now_ms);
    }

    /// Holders that can become backups in place, and the keys that differ for each.
    fn in_place_replicas(
        &self,
        loading: &FailoverTask,
        replica_store: &ReplicaStore,
    ) -> Vec<(Peer, Vec<RecordKey>)> {
        let FailoverGrant { ids, source, .. } = loading.grant;
        let mut in_place_replicas = Vec::new();
        // Healthy as a backup of its own: it is the only node, and its log has what it has loaded.
        if loading.damaged.is_empty() && self.replication.is_healthy(self.me) {
            return vec![(self.me, loading.locks.clone())];
        }
        if ids.first().creator().is_named() {
            return in_place_replicas;
        }
        for (peer, (last, beyond)) in &loading.sealed {
            let own = replica_store.keys_changed_after(source, *last, ids);
            if let (Some(beyond), Some(own)) = (beyond, own)
                && self.replication.is_healthy(*peer)
            {
                let damaged = loading.damaged.iter().copied();
                let keys = beyond.iter().filter(|record| ids.contains(record.id));
                let others = own.into_iter().chain(damaged).chain(loading.locks.iter().copied());
                let mut keys: Vec<RecordKey> = keys.copied().chain(others).collect();
                keys.sort_unstable();
                keys.dedup();
                in_place_replicas.push((*peer, keys));
            }
        }
        in_place_replicas
    }

    /// The nodes that should become backups of the recovered ids: the other holders first. Nodes
    /// that were silent are among them if there are too few others: nobody serves the ids until
    /// some node backs them up, and after the death of a node the others are busy, not dead.
    pub(super) fn learners(&self, grant: &FailoverGrant) -> Vec<Peer> {
        let replication = &self.replication;
        let holders = grant.holders[1..].iter().copied();
        let mut learners: Vec<Peer> =
            holders.filter(|peer| replication.is_healthy(*peer)).collect();
        learners.extend(replication.choose_missing_backups(grant.ids, &learners));
        if !replication.meets_min_replicas(learners.len()) {
            learners.extend(replication.choose_eligible_backups(grant.ids, &learners));
        }
        learners
    }

    /// Loads a part of the failovers; loaded chunks go to their backups.
    pub fn load_failovers(
        &mut self,
        now_ms: u64,
        replica_store: &mut ReplicaStore,
        out: &mut Vec<ChunkCommand>,
    ) -> UnreadableChunks {
        debug_assert!(self.failovers.are_consistent());
        let mut unread = UnreadableChunks::default();
        self.query_holders(now_ms, replica_store, out);
        // Holders may have reported meanwhile.
        for _ in 0..self.failovers.loading.len() {
            let Some(loading) = self.failovers.loading.pop_front() else { break };
            match loading.is_loaded() {
                true => self.begin(loading, now_ms, replica_store, &mut unread),
                false => self.failovers.loading.push_back(loading),
            }
        }
        self.ask_for_slices(replica_store);
        let (mut left, mut left_bytes) = (self.limits.load_ids, TAKEN_BYTES_MAX);
        while left > 0
            && left_bytes > 0
            && let Some(place) = self.place_with_slice()
            && let Some(mut loading) = self.failovers.loading.remove(place)
            && let Some(one) = loading.slices.pop_front()
        {
            left = left.saturating_sub(one.weight());
            left_bytes = left_bytes.saturating_sub(one.slice.bytes);
            let is_stored = self.take_slice(&mut loading, one, now_ms, replica_store, &mut unread);
            if loading.is_loaded() {
                self.begin(loading, now_ms, replica_store, &mut unread);
            } else if is_stored {
                // Finish one failover before the next is loaded.
                self.failovers.loading.push_front(loading);
            } else {
                self.failovers.end(loading.grant.ids);
            }
            // The medium reads while what it has delivered is taken over.
            self.ask_for_slices(replica_store);
        }
        unread
    }

    /// Whether some failover can go on, because the medium has delivered a part of it.
    pub fn has_loaded(&self) -> bool {
        self.place_with_slice().is_some()
    }

    /// Asks the log for the next slices of failovers, up to a bound.
    fn ask_for_slices(&mut self, replica_store: &mut ReplicaStore) {
        let asked = self.failovers.loading.iter().flat_map(|loading| &loading.slices);
        let (mut ids, mut bytes) = (0, 0);
        for one in asked {
            (ids, bytes) = (ids + one.weight(), bytes + one.slice.bytes);
        }
        let has_named = self.failovers.committing.len() >= NAMED_CHANGES_MAX;
        for loading in &mut self.failovers.loading {
            let FailoverGrant { ids: all, source, .. } = loading.grant;
            let is_named = all.first().creator().is_named();
            while loading.asked < all.end() && !(is_named && has_named) {
                if ids >= self.limits.load_ids || bytes >= ASKED_BYTES_MAX {
                    return;
                }
                let rest = IdRange::from_bits(loading.asked, all.end());
                let slice = replica_store.load_slice(source, rest, self.limits.load_ids - ids);
                loading.asked = slice.ids.end();
                let chunks = if is_named { 0 } else { slice.ids.len() as usize };
                let one = SliceLoad {
                    slice,
                    is_here: vec![false; chunks],
                    locks: Vec::new(),
                    damaged: Vec::new(),
                };
                (ids, bytes) = (ids + one.weight(), bytes + one.slice.bytes);
                loading.slices.push_back(one);
            }
        }
    }

    /// The place of the first failover that has a loaded slice and may go on.
    fn place_with_slice(&self) -> Option<usize> {
        let has_named = self.failovers.committing.len() >= NAMED_CHANGES_MAX;
        self.failovers.loading.iter().position(|loading| {
            let is_named = loading.grant.ids.first().creator().is_named();
            loading.has_slice() && !(is_named && has_named)
        })
    }

    /// Takes over the next slice of a failover, which is loaded. Whether it fitted; if not, nothing
    /// of the failover stays in the store.
    fn take_slice(
        &mut self,
        loading: &mut FailoverTask,
        one: SliceLoad,
        now_ms: u64,
        replica_store: &mut ReplicaStore,
        unread: &mut UnreadableChunks,
    ) -> bool {
        let FailoverGrant { ids, source, .. } = loading.grant;
        let SliceLoad { slice, mut is_here, mut locks, mut damaged } = one;
        let (slice_ids, is_named) = (slice.ids, ids.first().creator().is_named());
        let (store, reserve) = (&mut self.store, &mut self.reserve);
        let mut is_stored = true;
        let found = replica_store.recover(source, slice, &mut |record, value| {
            if record.is_lock() {
                match LockGrant::decode_all(&value) {
                    Ok(lock) => locks.push((record, lock)),
                    Err(_) => damaged.push(record),
                }
            } else if !is_named {
                is_here[(record.id.bits() - slice_ids.start()) as usize] = true;
                is_stored &= reserve.write(store, |store| store.write(record.id, &value)).is_ok();
            } else if let Ok(kept) = ReplicaItem::decode_all(&value) {
                is_stored &= reserve.write(store, |store| store.restore_item(&kept)).is_ok();
                loading.items.push((record.id, kept.key));
            } else {
                damaged.push(record);
            }
        });
        if !is_stored {
            self.remove_all(IdRange::from_bits(ids.start(), slice_ids.end()));
            return false;
        }
        damaged.extend(found.damaged);
        if let Some(slice) = found.moved {
            loading.slices.push_front(SliceLoad { slice, is_here, locks, damaged });
            return true;
        }
        if !damaged.is_empty() {
            loading.missing.add(&damaged);
            unread.asked.entry(source).or_default().extend(damaged.iter().map(|record| record.id));
            loading.damaged.append(&mut damaged);
        }
        // An earlier attempt may have loaded more.
        for at in (0..is_here.len()).filter(|at| !is_here[*at]) {
            let at = slice_ids.start() + at as u64;
            self.remove_all(IdRange::from_bits(at, at + 1));
        }
        self.sessions.import(slice_ids, &found.export, now_ms);
        for (record, lock) in locks {
            self.sessions.restore_lock(record.id, &lock, now_ms);
            loading.locks.push(record);
        }
        loading.next = slice_ids.end();
        true
    }

    /// Starts the change to the new replica set of a loaded failover, if enough backups are there.
    fn begin(
        &mut self,
        mut loading: FailoverTask,
        now_ms: u64,
        replica_store: &ReplicaStore,
        unread: &mut UnreadableChunks,
    ) {
        let FailoverGrant { ids, source, .. } = loading.grant;
        if !loading.missing.is_empty() {
            if loading.missing.may_come(loading.others(&self.replication)) {
                return self.failovers.loading.push_back(loading);
            }
            let (lost, unacknowledged) = loading.missing.give_up();
            // Their clients repeat what they were not answered: it did not happen.
            self.sessions.forget(&unacknowledged.iter().map(|record| record.id).collect());
            let lost = lost.into_iter().filter(|record| !record.is_lock());
            let lost: Vec<ChunkId> = lost.map(|record| record.id).collect();
            if !lost.is_empty() {
                unread.lost.entry(source).or_default().extend(lost);
            }
        }
        let learners = self.learners(&loading.grant);
        if loading.waits(now_ms, &self.replication, self.limits.replication.silent_ms)
            || !self.replication.meets_min_replicas(learners.len())
        {
            return self.failovers.loading.push_back(loading);
        }
        let in_place_replicas = self.in_place_replicas(&loading, replica_store);
        let number = if !in_place_replicas.is_empty()
            && self.replication.meets_min_replicas(in_place_replicas.len())
        {
            loading.past_learners.extend(in_place_replicas.iter().map(|(peer, _)| *peer));
            let sessions = &self.sessions;
            let export = |ids: IdRange| sessions.export(ids, now_ms);
            self.replication.begin_owner_change(
                (ids, source),
                in_place_replicas,
                &mut self.store,
                &export,
            )
        } else if ids.first().creator().is_named() {
            self.replication.begin_item_catch_up(ids, learners, std::mem::take(&mut loading.items))
        } else {
            loading.past_learners.extend(&learners);
            self.replication.begin_catch_up(ids, Vec::new(), learners, false)
        };
        self.failovers.committing.insert(number, loading);
    }

    /// Removes the chunks of these ids.
    pub(super) fn remove_all(&mut self, ids: IdRange) {
        if ids.first().creator().is_named() {
            return self.scan.remove_later(ids);
        }
        for bits in ids.start()..ids.end() {
            self.store.remove(ChunkId::from_bits(bits).expect("it lies in a range"));
        }
        self.sessions.forget_locks(ids);
    }

    /// Drops ids that this node no longer owns.
    fn lose(&mut self, ids: IdRange) {
        self.set_owned(ids, None);
        self.set_frozen(ids, false);
        self.replication.drop_ids(ids);
        self.remove_all(ids);
    }

    /// Takes the result of a [`ReplicationCommand::Commit`].
    pub fn on_committed(
        &mut self,
        number: u64,
        result: Result<u64, Refusal>,
        clock: &mut dyn FnMut() -> u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        let Some((ids, members)) = self.replication.on_committed(number, result) else { return };
        let failover = self.failovers.committing.remove(&number);
        if let Some(failover) = &failover {
            self.failovers.end(failover.grant.ids);
        }
        match (failover, result) {
            (Some(failover), Ok(epoch)) => {
                self.moved.assign(ids.start()..ids.end(), None);
                self.set_owned(ids, Some(epoch));
                self.replication.discard_former(failover.grant.source, ids, &members);
                let given_up = failover.past_learners.iter().filter(|peer| !members.contains(peer));
                self.replication.clear_on(ids, given_up.copied());
            }
            // The grant is repeated if this node still is the new owner.
            (Some(_), Err(_)) => self.remove_all(ids),
            (None, Err(Refusal::NotOwner)) => self.lose(ids),
            (None, _) => {}
        }
        self.release(clock, out);
    }

    /// Handles silent or missing backups.
    pub(super) fn tick_copies(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        let mut wanted = Vec::new();
        let (outgoing, sessions) = (&self.outgoing, &self.sessions);
        let is_leaving = |ids: IdRange| outgoing.values().any(|move_| move_.is_leaving(ids));
        let export = |ids: IdRange| sessions.export(ids, now_ms);
        self.replication.on_tick(now_ms, &is_leaving, &mut self.store, &export, &mut wanted);
        for wanted in wanted {
            match wanted {
                ReplicationCommand::Aborted(number) => self.aborted(number, out),
                wanted => out.push(ChunkCommand::Replication(wanted)),
            }
        }
        self.release(&mut || now_ms, out);
        let replication = &self.replication;
        self.pending_replies.keep(|version| replication.is_pending(version));
    }

    fn aborted(&mut self, number: u64, out: &mut Vec<ChunkCommand>) {
        if let Some(mut failover) = self.failovers.committing.remove(&number) {
            let ids = failover.grant.ids;
            if ids.first().creator().is_named() {
                // Its items were handed to the replication, so the failover starts over with the
                // next grant.
                self.failovers.end(ids);
                return self.remove_all(ids);
            }
            failover.retry();
            return self.failovers.loading.push_back(failover);
        }
        let found = self.incoming.iter().find(|(_, incoming)| incoming.change == Some(number));
        if let Some((source, number)) = found.map(|(key, _)| *key) {
            self.cancel_incoming(source, number);
            out.push(ChunkCommand::Send(source, MoveMessage::Declined { number }));
        }
    }
}
