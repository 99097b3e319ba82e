//! How nodes come to be backups: what those who join a set are sent before it is committed.

use super::super::entry::MutationRef;
use super::super::stream::ReplicationStream;
use super::super::{Mutation, RecordKey};
use super::{CatchUpStage, ItemKey, ReplicaSetChange, ReplicationCommand, ReplicationPrimary};
use crate::chunks::{ChunkStore, SessionState};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::Peer;

/// Ids that are looked at in one step of a copy.
const LOOKS_MAX: u64 = 65_536;

/// A chunk as it is now.
pub(crate) fn chunk<S: ChunkStore>(store: &mut S, id: ChunkId) -> Mutation {
    let mut value = None;
    store.read(id, &mut |bytes| value = Some(bytes.to_vec()));
    value.map_or(Mutation::Remove(id), |value| Mutation::Put(id, value))
}

impl ReplicationPrimary {
    /// Begins to let nodes join as backups of ids whose members are `base`. They get every change
    /// from now on, and, unless `is_staged`, all there is.
    pub fn join(
        &mut self,
        ids: IdRange,
        base: Vec<Peer>,
        joining: Vec<Peer>,
        is_staged: bool,
    ) -> u64 {
        let stage = match is_staged {
            true => CatchUpStage::Staged,
            false if ids.first().creator().is_named() => CatchUpStage::Collecting(Vec::new()),
            false => CatchUpStage::Filling(ids.start()),
        };
        self.begin_change(ReplicaSetChange { ids, base, joining, stage })
    }

    /// The same of named items, all of which are known.
    pub fn join_with(&mut self, ids: IdRange, joining: Vec<Peer>, items: Vec<ItemKey>) -> u64 {
        let (base, stage) = (Vec::new(), CatchUpStage::Sending(items));
        self.begin_change(ReplicaSetChange { ids, base, joining, stage })
    }

    fn begin_change(&mut self, change: ReplicaSetChange) -> u64 {
        self.send_all(&change.joining, Mutation::Clear(change.ids), Vec::new());
        self.insert_change(change)
    }

    fn insert_change(&mut self, change: ReplicaSetChange) -> u64 {
        let number = self.next_change;
        self.next_change += 1;
        self.changes.insert(number, change);
        number
    }

    /// Lets nodes join as backups of ids that have what was kept in another name: all there is but
    /// for some chunks, which they are sent.
    pub fn join_in_place<S: ChunkStore>(
        &mut self,
        (ids, source): (IdRange, Peer),
        adopters: Vec<(Peer, Vec<RecordKey>)>,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> u64 {
        let joining: Vec<Peer> = adopters.iter().map(|(peer, _)| *peer).collect();
        self.send_all(&joining, Mutation::ChangeOwner(source, ids), Vec::new());
        for (peer, keys) in adopters {
            for RecordKey { id, .. } in keys {
                self.send_all(&[peer], chunk(store, id), Vec::new());
            }
        }
        let mut change =
            ReplicaSetChange { ids, base: Vec::new(), joining, stage: CatchUpStage::Staged };
        change.stage = self.filled(&change, export);
        self.insert_change(change)
    }

    /// Sends those who join what there is, and commits those who have it.
    pub fn fill<S: ChunkStore>(
        &mut self,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
        out: &mut Vec<ReplicationCommand>,
    ) {
        let is_next = |change: &ReplicaSetChange| match &change.stage {
            CatchUpStage::Filling(_) | CatchUpStage::Sending(_) => true,
            CatchUpStage::Filled(until) => self.has_all(until),
            CatchUpStage::Collecting(_) | CatchUpStage::Staged | CatchUpStage::Committing => false,
        };
        let next = self.changes.iter().filter(|(_, change)| is_next(change));
        for number in next.map(|(number, _)| *number).collect::<Vec<_>>() {
            let mut change = self.changes.remove(&number).expect("it is there");
            if let CatchUpStage::Filling(from) = change.stage {
                change.stage = self.fill_some(&change, from, store, export);
            } else if let CatchUpStage::Sending(items) = &mut change.stage {
                let items = std::mem::take(items);
                change.stage = self.send_some(&change, items, store, export);
            }
            if matches!(&change.stage, CatchUpStage::Filled(until) if self.has_all(until)) {
                change.stage = CatchUpStage::Committing;
                out.push(ReplicationCommand::Commit(number, change.ids, change.members()));
            }
            self.changes.insert(number, change);
        }
    }

    /// Whether each has acknowledged all up to there.
    fn has_all(&self, until: &[(Peer, u64)]) -> bool {
        let has_all = |(peer, until): &(Peer, u64)| {
            self.links.get(peer).is_some_and(|link| link.has_all(*until))
        };
        until.iter().all(has_all)
    }

    fn fill_some<S: ChunkStore>(
        &mut self,
        change: &ReplicaSetChange,
        from: u64,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> CatchUpStage {
        let (mut at, end) = (from, change.ids.end());
        while at < end && at < from + LOOKS_MAX {
            if self.is_crowded(change) {
                return CatchUpStage::Filling(at);
            }
            let id = ChunkId::from_bits(at).expect("it lies in a range");
            store.read(id, &mut |bytes| {
                let put = MutationRef::Put(id, bytes);
                self.send(&change.joining, false, |version, to| put.encode(version, None, to));
            });
            at += 1;
        }
        if at < end {
            return CatchUpStage::Filling(at);
        }
        self.filled(change, export)
    }

    fn send_some<S: ChunkStore>(
        &mut self,
        change: &ReplicaSetChange,
        mut items: Vec<ItemKey>,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> CatchUpStage {
        while !self.is_crowded(change) {
            let Some((id, key)) = items.pop() else { return self.filled(change, export) };
            // One that is gone by now: those who join were told so.
            if let Some(kept) = store.replica_item(&key) {
                let mutation = Mutation::PutItem(RecordKey::item(id, &key), kept);
                self.send_all(&change.joining, mutation, Vec::new());
            }
        }
        CatchUpStage::Sending(items)
    }

    /// Whether those who join have enough to do.
    fn is_crowded(&self, change: &ReplicaSetChange) -> bool {
        let window = self.settings.window / 2;
        change.joining.iter().any(|peer| {
            self.links.get(peer).is_some_and(|link: &ReplicationStream| link.waiting() >= window)
        })
    }

    /// All was sent, but for what clients were answered.
    fn filled(
        &mut self,
        change: &ReplicaSetChange,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> CatchUpStage {
        self.send_all(&change.joining, Mutation::RepliesOnly, export(change.ids));
        let last = |peer: &Peer| (*peer, self.links[peer].last());
        CatchUpStage::Filled(change.joining.iter().map(last).collect())
    }
}
