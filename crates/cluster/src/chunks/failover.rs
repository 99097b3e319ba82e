//! How a backup takes the place of an owner whose life is over.
//!
//! The metadata names it the owner first, under a new epoch. It seals what it has in the name of
//! the life before, so that nothing of that is acknowledged any more, loads it, a slice at a time,
//! since others wait for its answers meanwhile, fetches from the other holders what it cannot read,
//! and makes them its backups in place: they seal what they have, say how far they came, adopt it,
//! and are sent what differs. Where they cannot, all is copied to a new set. When that is committed
//! it serves, and makes up for backups that are missing as for any others. If it is gone before,
//! the next holder does the same from what it has itself; each has all that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use missing::Missing;

use super::items::ReplicaItem;
use super::migration::{MoveMessage, overlap};
use super::service::{ChunkCommand, ChunkService};
use super::sessions::{ClientState, SessionState};
use super::store::ChunkStore;
use crate::ids::{ChunkId, IdRange};
use crate::overlay::{FailoverGrant, Peer, Refusal};
use crate::replication::{
    ItemKey, Mutation, NAMED_CHANGES_MAX, RecordKey, ReplicaStore, ReplicationCommand,
    ReplicationMessage, ReplicationPrimary,
};
use crate::wire::Wire;

mod missing;

/// For how long an heir waits for holders who said how far they are and were silent since: that is
/// cheaper than to copy all to others.
const PATIENCE_MS: u64 = 1_000;
/// How often it does.
const ATTEMPTS_MAX: u32 = 3;

/// Ids that this node is about to recover, and how far it is with them.
#[derive(Debug)]
pub(super) struct FailoverTask {
    grant: FailoverGrant,
    next: u64,
    /// Named items that are loaded.
    items: Vec<ItemKey>,
    /// What could not be read here; and what of that did not come from others yet.
    damaged: Vec<RecordKey>,
    missing: Missing,
    /// Who was to be a backup, in whatever attempt.
    past_joiners: BTreeSet<Peer>,
    /// How often backups were chosen, and were silent.
    attempts: u32,
    /// Since when it waits for the other holders to say how far they are, as all is loaded; and
    /// when it asks again.
    waits_from_ms: Option<u64>,
    next_ask_ms: u64,
    /// How far each is, and what it has beyond what is loaded, if it knows.
    sealed: BTreeMap<Peer, (u64, Option<Vec<RecordKey>>)>,
}

/// What this node should have and cannot read, by the lives in whose names it is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnreadableChunks {
    /// Found now: others who have it are asked.
    pub asked: BTreeMap<Peer, Vec<ChunkId>>,
    /// Nobody can read it who could be asked.
    pub lost: BTreeMap<Peer, Vec<ChunkId>>,
}

/// What another holder has of what cannot be read here.
#[derive(Debug)]
pub(super) struct Fetched<'m> {
    pub found: &'m [Mutation],
    pub sessions: &'m [SessionState],
    pub lacking: &'m [RecordKey],
    pub damaged: &'m [RecordKey],
}

impl FailoverTask {
    fn is_loaded(&self) -> bool {
        self.next >= self.grant.ids.end()
    }

    /// Other holders, as far as they are members.
    fn others(&self, replication: &ReplicationPrimary) -> impl Iterator<Item = Peer> {
        let others = self.grant.holders[1..].iter().copied();
        others.filter(|peer| replication.is_member(*peer))
    }

    /// Other holders of chunks who have not said how far they are, or were silent since.
    fn unsealed(&self, replication: &ReplicationPrimary) -> impl Iterator<Item = Peer> {
        let is_named = self.grant.ids.first().creator().is_named();
        let is_ready = |peer| self.sealed.contains_key(&peer) && replication.is_healthy(peer);
        let others = self.others(replication).filter(move |_| !is_named);
        others.filter(move |peer| replication.is_eligible(*peer) && !is_ready(*peer))
    }

    /// Whether one of them may say so yet, and it is worth while to wait for that.
    fn waits(&mut self, now_ms: u64, replication: &ReplicationPrimary, silent_ms: u64) -> bool {
        let from_ms = *self.waits_from_ms.get_or_insert(now_ms);
        let is_ready = self.sealed.keys().any(|peer| replication.is_healthy(*peer));
        let patience_ms = match is_ready || self.sealed.is_empty() {
            true => silent_ms,
            false => PATIENCE_MS.max(silent_ms),
        };
        let is_early = now_ms < from_ms + patience_ms && self.attempts < ATTEMPTS_MAX;
        is_early && self.unsealed(replication).next().is_some()
    }

    /// Those who were to be backups were silent: others are to be found, or the same once more.
    /// What is loaded stays, for nobody else changes it; so does how far the holders are, for they
    /// take nothing more of that life.
    fn retry(&mut self) {
        self.attempts += 1;
        self.waits_from_ms = None;
        self.next_ask_ms = 0;
    }
}

impl<S: ChunkStore> ChunkService<S> {
    /// What is being recovered, loaded or not.
    fn all_failovers(&self) -> impl Iterator<Item = &FailoverGrant> {
        self.failovers.values().chain(&self.loading).map(|loading| &loading.grant)
    }

    /// Whether an id is being recovered.
    pub(super) fn is_failing_over(&self, id: ChunkId) -> bool {
        self.all_failovers().any(|failover| failover.ids.contains(id))
    }

    /// Whether some of these ids are being recovered.
    pub(super) fn overlaps_failover(&self, ids: IdRange) -> bool {
        self.all_failovers().any(|failover| overlap(failover.ids, ids))
    }

    /// In whose name the ids of a change are recovered, if they are.
    pub fn source(&self, change: u64) -> Option<Peer> {
        self.failovers.get(&change).map(|failover| failover.grant.source)
    }

    /// Ids that are being recovered.
    pub fn failovers(&self) -> usize {
        self.all_failovers().count()
    }

    /// A leader says that this node owns ids and has to recover them. It says so until they are
    /// served, so what is not possible now may be later.
    pub fn start_failover(&mut self, grant: &FailoverGrant, replica_store: &mut ReplicaStore) {
        let ids = grant.ids;
        let is_owned = self.owned.over(ids.start()..ids.end()).next().is_some();
        // Of items of those ids some may be here yet: older ones, or half of the same heritage.
        let is_mine = grant.holders.first() == Some(&self.me);
        if !is_mine || is_owned || self.is_removing(ids) {
            return;
        }
        if self.overlaps_failover(ids) {
            let is_same = |known: &FailoverGrant| {
                (known.ids, known.source) == (ids, grant.source) && known.epoch < grant.epoch
            };
            // Of the holders some may be gone since.
            for loading in self.loading.iter_mut().filter(|one| is_same(&one.grant)) {
                loading.sealed.retain(|peer, _| grant.holders.contains(peer));
                loading.grant = grant.clone();
            }
            return;
        }
        // The other holders have copies for as long as nothing else is committed.
        if !self.replication.meets_min_replicas(self.joining(grant).len()) {
            return;
        }
        // What was on its way here came from the life that is over, or is older.
        self.cancel_incoming_in(ids);
        replica_store.seal(grant.source);
        self.loading.push_back(FailoverTask {
            grant: grant.clone(),
            next: ids.start(),
            items: Vec::new(),
            damaged: Vec::new(),
            missing: Missing::default(),
            past_joiners: BTreeSet::new(),
            attempts: 0,
            waits_from_ms: None,
            next_ask_ms: 0,
            sealed: BTreeMap::new(),
        });
    }

    /// Asks other holders how far they are, and for what cannot be read here.
    fn query_holders(
        &mut self,
        now_ms: u64,
        replica_store: &ReplicaStore,
        out: &mut Vec<ChunkCommand>,
    ) {
        let (replication, retry_ms) = (&self.replication, self.limits.replication.retry_ms);
        for loading in self.loading.iter_mut().filter(|loading| !loading.missing.is_empty()) {
            let FailoverGrant { ids, source, .. } = loading.grant;
            let others: Vec<Peer> = loading.others(replication).collect();
            let question = loading.missing.question(now_ms, retry_ms, others.into_iter());
            if let Some((peer, keys)) = question {
                let message = ReplicationMessage::Fetch { source, ids, keys };
                out.push(ChunkCommand::Replication(ReplicationCommand::Send(peer, message)));
            }
        }
        for loading in self.loading.iter_mut().filter(|loading| now_ms >= loading.next_ask_ms) {
            let FailoverGrant { ids, source, .. } = loading.grant;
            loading.next_ask_ms = now_ms + retry_ms;
            let last = replica_store.last_version(source);
            for peer in loading.unsealed(replication) {
                let message = ReplicationMessage::Seal { source, ids, last };
                out.push(ChunkCommand::Replication(ReplicationCommand::Send(peer, message)));
            }
        }
    }

    /// Another holder said how far it is.
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
        if let Some(loading) = self.loading.iter_mut().find(is_meant)
            && loading.grant.holders[1..].contains(&from)
        {
            loading.sealed.insert(from, (last, beyond.map(<[RecordKey]>::to_vec)));
            self.replication.on_response(from, now_ms);
        }
    }

    /// Another holder said what it has of what cannot be read here.
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
        let Some(place) = self.loading.iter().position(is_meant) else { return };
        let loading = &mut self.loading[place];
        loading.missing.answered(from, answer.lacking, answer.damaged);
        let (mut came, mut is_stored) = (BTreeSet::new(), true);
        for mutation in answer.found {
            let Some((name, _)) = mutation.copy() else { continue };
            let kept = match mutation {
                Mutation::PutItem(_, value) => ReplicaItem::decode_all(value).map(Some),
                _ => Ok(None),
            };
            let Ok(kept) = kept else {
                loading.missing.answered(from, &[], &[name]);
                continue;
            };
            if !loading.missing.came(name) {
                continue;
            }
            came.insert(name.id);
            if let Some(kept) = kept {
                is_stored &= self.store.restore_item(&kept).is_ok();
                loading.items.push((name.id, kept.key));
            } else if let Mutation::Put(id, value) = mutation {
                is_stored &= self.store.write(*id, value).is_ok();
            }
        }
        if !is_stored {
            // There is no room now; it is told again.
            self.loading.remove(place);
            return self.remove_all(ids);
        }
        if !came.is_empty() {
            // Of changes that nobody was told of one of the two may have more.
            self.sessions.forget(&came);
            let mut sessions = answer.sessions.to_vec();
            for session in &mut sessions {
                session.answers.retain(|(_, id, _)| came.contains(id));
            }
            self.sessions.import(ids, &ClientState { sessions, ..ClientState::default() }, now_ms);
        }
        self.replication.on_response(from, now_ms);
    }

    /// Who can be a backup in place, and what each must be sent.
    fn in_place_replicas(
        &self,
        loading: &FailoverTask,
        replica_store: &ReplicaStore,
    ) -> Vec<(Peer, Vec<RecordKey>)> {
        let FailoverGrant { ids, source, .. } = loading.grant;
        let mut in_place_replicas = Vec::new();
        if ids.first().creator().is_named() {
            return in_place_replicas;
        }
        for (peer, (last, beyond)) in &loading.sealed {
            let own = replica_store.keys_changed_after(source, *last, ids);
            if let (Some(beyond), Some(own)) = (beyond, own)
                && self.replication.is_healthy(*peer)
            {
                let damaged = loading.damaged.iter().copied();
                let keys = beyond.iter().filter(|name| ids.contains(name.id));
                let mut keys: Vec<RecordKey> = keys.copied().chain(own).chain(damaged).collect();
                keys.sort_unstable();
                keys.dedup();
                in_place_replicas.push((*peer, keys));
            }
        }
        in_place_replicas
    }

    /// Who is to be a backup of what is recovered: the other holders first.
    fn joining(&self, grant: &FailoverGrant) -> Vec<Peer> {
        let holders = grant.holders[1..].iter().copied();
        let mut joining: Vec<Peer> =
            holders.filter(|peer| self.replication.is_healthy(*peer)).collect();
        joining.extend(self.replication.choose_missing_backups(grant.ids, &joining));
        joining
    }

    /// Loads a part of what is to be recovered; what is loaded is sent to its backups.
    pub fn load_failovers(
        &mut self,
        now_ms: u64,
        replica_store: &mut ReplicaStore,
        out: &mut Vec<ChunkCommand>,
    ) -> UnreadableChunks {
        let mut unread = UnreadableChunks::default();
        self.query_holders(now_ms, replica_store, out);
        // Holders may have said by now how far they are.
        for _ in 0..self.loading.len() {
            let Some(loading) = self.loading.pop_front() else { break };
            match loading.is_loaded() {
                true => self.begin(loading, now_ms, replica_store, &mut unread),
                false => self.loading.push_back(loading),
            }
        }
        let mut left = self.limits.load_ids;
        while left > 0
            && let Some(mut loading) = self.next_to_load()
        {
            let (looked, is_stored) =
                self.load_slice(&mut loading, left, now_ms, replica_store, &mut unread);
            left = left.saturating_sub(looked);
            if loading.is_loaded() {
                self.begin(loading, now_ms, replica_store, &mut unread);
            } else if is_stored {
                // One is served before the next is loaded.
                self.loading.push_front(loading);
            }
        }
        unread
    }

    /// What is not loaded and can be, of which the first is taken out.
    fn next_to_load(&mut self) -> Option<FailoverTask> {
        let has_named = self.failovers.len() >= NAMED_CHANGES_MAX;
        let place = self.loading.iter().position(|loading| {
            let is_named = loading.grant.ids.first().creator().is_named();
            !(loading.is_loaded() || is_named && has_named)
        })?;
        self.loading.remove(place)
    }

    /// Loads a part of one heritage: so many ids, or items where ids are sparse. Returns how many
    /// were looked at, and whether there was room for them; if not, nothing of it is left here.
    fn load_slice(
        &mut self,
        loading: &mut FailoverTask,
        most: u64,
        now_ms: u64,
        replica_store: &mut ReplicaStore,
        unread: &mut UnreadableChunks,
    ) -> (u64, bool) {
        let FailoverGrant { ids, source, .. } = loading.grant;
        let is_named = ids.first().creator().is_named();
        let rest = IdRange::from_bits(loading.next, ids.end());
        let end = match is_named {
            true => replica_store.slice_end(source, rest, most),
            false => ids.end().min(loading.next.saturating_add(most)),
        };
        let slice = IdRange::from_bits(loading.next, end);
        let (store, mut is_stored, mut spoilt) = (&mut self.store, true, Vec::new());
        let mut is_here = vec![false; if is_named { 0 } else { slice.len() as usize }];
        let found = replica_store.recover(source, slice, &mut |name, value| {
            if !is_named {
                is_here[(name.id.bits() - slice.start()) as usize] = true;
                is_stored &= store.write(name.id, &value).is_ok();
            } else if let Ok(kept) = ReplicaItem::decode_all(&value) {
                is_stored &= store.restore_item(&kept).is_ok();
                loading.items.push((name.id, kept.key));
            } else {
                spoilt.push(name);
            }
        });
        let looked = if is_named { found.records.max(1) } else { slice.len() };
        // Of an attempt before there may be more.
        for at in (0..is_here.len()).filter(|at| !is_here[*at]) {
            let at = slice.start() + at as u64;
            self.remove_all(IdRange::from_bits(at, at + 1));
        }
        if !is_stored {
            self.remove_all(IdRange::from_bits(ids.start(), end));
            return (looked, false);
        }
        spoilt.extend(found.damaged);
        if !spoilt.is_empty() {
            loading.missing.add(&spoilt);
            unread.asked.entry(source).or_default().extend(spoilt.iter().map(|name| name.id));
            loading.damaged.append(&mut spoilt);
        }
        self.sessions.import(slice, &found.export, now_ms);
        loading.next = end;
        (looked, true)
    }

    /// Finds backups for what is loaded, if there are any yet.
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
                return self.loading.push_back(loading);
            }
            let lost: Vec<ChunkId> = loading.missing.give_up().map(|name| name.id).collect();
            if !lost.is_empty() {
                unread.lost.entry(source).or_default().extend(lost);
            }
        }
        let joining = self.joining(&loading.grant);
        if loading.waits(now_ms, &self.replication, self.limits.replication.silent_ms)
            || !self.replication.meets_min_replicas(joining.len())
        {
            return self.loading.push_back(loading);
        }
        let in_place_replicas = self.in_place_replicas(&loading, replica_store);
        let number = if !in_place_replicas.is_empty()
            && self.replication.meets_min_replicas(in_place_replicas.len())
        {
            loading.past_joiners.extend(in_place_replicas.iter().map(|(peer, _)| *peer));
            let sessions = &self.sessions;
            let export = |ids: IdRange| sessions.export(ids, now_ms).sessions;
            self.replication.begin_owner_change(
                (ids, source),
                in_place_replicas,
                &mut self.store,
                &export,
            )
        } else if ids.first().creator().is_named() {
            self.replication.begin_item_catch_up(ids, joining, std::mem::take(&mut loading.items))
        } else {
            loading.past_joiners.extend(&joining);
            self.replication.begin_catch_up(ids, Vec::new(), joining, false)
        };
        self.failovers.insert(number, loading);
    }

    /// Removes the chunks of ids.
    pub(super) fn remove_all(&mut self, ids: IdRange) {
        if ids.first().creator().is_named() {
            return self.scan.remove_later(ids);
        }
        for bits in ids.start()..ids.end() {
            let id = ChunkId::from_bits(bits).expect("it lies in a range");
            if self.store.remove(id) {
                self.sessions.release(id);
            }
        }
    }

    /// Ids are not this node's any more.
    fn lose(&mut self, ids: IdRange) {
        self.owned.assign(ids.start()..ids.end(), None);
        self.frozen.assign(ids.start()..ids.end(), None);
        self.replication.drop_ids(ids);
        self.remove_all(ids);
    }

    /// What came of a [`ReplicationCommand::Commit`].
    pub fn on_committed(
        &mut self,
        number: u64,
        result: Result<u64, Refusal>,
        clock: &mut dyn FnMut() -> u64,
        out: &mut Vec<ChunkCommand>,
    ) {
        let Some((ids, members)) = self.replication.on_committed(number, result) else { return };
        match (self.failovers.remove(&number), result) {
            (Some(failover), Ok(epoch)) => {
                self.moved.assign(ids.start()..ids.end(), None);
                self.owned.assign(ids.start()..ids.end(), Some(epoch));
                self.replication.discard_former(failover.grant.source, ids, &members);
                let given_up = failover.past_joiners.iter().filter(|peer| !members.contains(peer));
                self.replication.clear_on(ids, given_up.copied());
            }
            // It is told again, if it still is the heir.
            (Some(_), Err(_)) => self.remove_all(ids),
            (None, Err(Refusal::NotOwner)) => self.lose(ids),
            (None, _) => {}
        }
        self.release(clock, out);
    }

    /// Time went on: backups that are silent or missing.
    pub(super) fn tick_copies(&mut self, now_ms: u64, out: &mut Vec<ChunkCommand>) {
        let mut wanted = Vec::new();
        let (outgoing, sessions) = (&self.outgoing, &self.sessions);
        let is_leaving = |ids: IdRange| outgoing.values().any(|move_| move_.is_leaving(ids));
        let export = |ids: IdRange| sessions.export(ids, now_ms).sessions;
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
        if let Some(mut failover) = self.failovers.remove(&number) {
            let ids = failover.grant.ids;
            if ids.first().creator().is_named() {
                // Its items were handed over to be sent; it is told again.
                return self.remove_all(ids);
            }
            failover.retry();
            return self.loading.push_back(failover);
        }
        let found = self.incoming.iter().find(|(_, incoming)| incoming.change == Some(number));
        if let Some((source, number)) = found.map(|(name, _)| *name) {
            self.cancel_incoming(source, number);
            out.push(ChunkCommand::Send(source, MoveMessage::Declined { number }));
        }
    }
}
