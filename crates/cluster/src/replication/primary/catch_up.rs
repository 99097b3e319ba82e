//! Catch-up: what learners are sent before they become members of a set.

use super::super::entry::MutationRef;
use super::super::{Mutation, RecordKey};
use super::{CatchUpStage, ItemKey, ReplicaSetChange, ReplicationCommand, ReplicationPrimary};
use crate::chunks::{ChunkStore, ClientState};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::Peer;

/// The most chunk ids that one step looks up.
const SCAN_IDS_MAX: u64 = 65_536;

/// The mutation that sets a chunk to its present value, or removes it if it does not exist.
pub(crate) fn chunk<S: ChunkStore>(store: &mut S, id: ChunkId) -> Mutation {
    let mut value = None;
    store.read(id, &mut |bytes| value = Some(bytes.to_vec()));
    value.map_or(Mutation::Remove(id), |value| Mutation::Put(id, value))
}

impl ReplicationPrimary {
    /// Begins to add `learners` as backups of `ids`, next to the members `base`. They receive every
    /// change from now on and, unless the caller drives the change (`is_staged`), all present
    /// contents.
    pub fn begin_catch_up(
        &mut self,
        ids: IdRange,
        base: Vec<Peer>,
        learners: Vec<Peer>,
        is_staged: bool,
    ) -> u64 {
        let stage = match is_staged {
            true => CatchUpStage::DrivenByCaller,
            false if ids.first().creator().is_named() => CatchUpStage::ScanningItems(Vec::new()),
            false => CatchUpStage::CopyingChunks(ids.start()),
        };
        self.begin_change(ReplicaSetChange { ids, base, learners, stage })
    }

    /// Begins to add `learners` as backups of named ids, all items of which are given.
    pub fn begin_item_catch_up(
        &mut self,
        ids: IdRange,
        learners: Vec<Peer>,
        items: Vec<ItemKey>,
    ) -> u64 {
        let (base, stage) = (Vec::new(), CatchUpStage::CopyingItems(items));
        self.begin_change(ReplicaSetChange { ids, base, learners, stage })
    }

    fn begin_change(&mut self, change: ReplicaSetChange) -> u64 {
        self.send_all(&change.learners, Mutation::Clear(change.ids), Vec::new());
        self.insert_change(change)
    }

    fn insert_change(&mut self, change: ReplicaSetChange) -> u64 {
        let number = self.next_change;
        self.next_change += 1;
        self.set_changes.insert(number, change);
        number
    }

    /// Begins to add replicas that already hold `ids` under `source`: they keep their records under
    /// this owner's name, and are sent only the keys listed for each.
    pub fn begin_owner_change<S: ChunkStore>(
        &mut self,
        (ids, source): (IdRange, Peer),
        adopters: Vec<(Peer, Vec<RecordKey>)>,
        store: &mut S,
        export: &dyn Fn(IdRange) -> ClientState,
    ) -> u64 {
        let learners: Vec<Peer> = adopters.iter().map(|(peer, _)| *peer).collect();
        self.send_all(&learners, Mutation::ChangeOwner(source, ids), Vec::new());
        for (peer, keys) in adopters {
            for key in keys {
                // The locks that exist follow at the end.
                let mutation = match key.is_lock() {
                    true => Mutation::RemoveLock(key.id),
                    false => chunk(store, key.id),
                };
                self.send_all(&[peer], mutation, Vec::new());
            }
        }
        let mut change = ReplicaSetChange {
            ids,
            base: Vec::new(),
            learners,
            stage: CatchUpStage::DrivenByCaller,
        };
        change.stage = self.finish_copying(&change, export);
        self.insert_change(change)
    }

    /// Continues every catch-up that can proceed, and requests the commit of each one whose
    /// learners have acknowledged everything.
    pub fn advance_catch_up<S: ChunkStore>(
        &mut self,
        store: &mut S,
        export: &dyn Fn(IdRange) -> ClientState,
        out: &mut Vec<ReplicationCommand>,
    ) {
        let is_next = |change: &ReplicaSetChange| match &change.stage {
            CatchUpStage::CopyingChunks(_) | CatchUpStage::CopyingItems(_) => true,
            CatchUpStage::AwaitingAcks(_) => self.is_caught_up(&change.stage),
            CatchUpStage::ScanningItems(_)
            | CatchUpStage::DrivenByCaller
            | CatchUpStage::Committing => false,
        };
        let next = self.set_changes.iter().filter(|(_, change)| is_next(change));
        for number in next.map(|(number, _)| *number).collect::<Vec<_>>() {
            let mut change = self.set_changes.remove(&number).expect("it is there");
            if let CatchUpStage::CopyingChunks(from) = change.stage {
                change.stage = self.copy_chunks(&change, from, store, export);
            } else if let CatchUpStage::CopyingItems(items) = &mut change.stage {
                let items = std::mem::take(items);
                change.stage = self.copy_items(&change, items, store, export);
            }
            if self.is_caught_up(&change.stage) {
                change.stage = CatchUpStage::Committing;
                out.push(ReplicationCommand::Commit(number, change.ids, change.members()));
            }
            self.set_changes.insert(number, change);
        }
    }

    /// Whether every learner has acknowledged all that it was sent.
    fn is_caught_up(&self, stage: &CatchUpStage) -> bool {
        let CatchUpStage::AwaitingAcks(last) = stage else { return false };
        let has_acknowledged = |(peer, last): &(Peer, u64)| {
            self.streams.get(peer).is_some_and(|stream| stream.has_acknowledged(*last))
        };
        last.iter().all(has_acknowledged)
    }

    fn copy_chunks<S: ChunkStore>(
        &mut self,
        change: &ReplicaSetChange,
        from: u64,
        store: &mut S,
        export: &dyn Fn(IdRange) -> ClientState,
    ) -> CatchUpStage {
        let (mut at, end) = (from, change.ids.end());
        while at < end && at < from + SCAN_IDS_MAX {
            if self.is_backlogged(change) {
                return CatchUpStage::CopyingChunks(at);
            }
            let id = ChunkId::from_bits(at).expect("it lies in a range");
            store.read(id, &mut |bytes| {
                let put = MutationRef::Put(id, bytes);
                self.send(&change.learners, false, |version, to| put.encode(version, None, to));
            });
            at += 1;
        }
        if at < end {
            return CatchUpStage::CopyingChunks(at);
        }
        self.finish_copying(change, export)
    }

    fn copy_items<S: ChunkStore>(
        &mut self,
        change: &ReplicaSetChange,
        mut items: Vec<ItemKey>,
        store: &mut S,
        export: &dyn Fn(IdRange) -> ClientState,
    ) -> CatchUpStage {
        while !self.is_backlogged(change) {
            let Some((id, key)) = items.pop() else { return self.finish_copying(change, export) };
            // An item that was removed meanwhile is skipped: the learners received the removal.
            if let Some(kept) = store.replica_item(&key) {
                let mutation = Mutation::PutItem(RecordKey::item(id, &key), kept);
                self.send_all(&change.learners, mutation, Vec::new());
            }
        }
        CatchUpStage::CopyingItems(items)
    }

    /// Whether a learner's queue is half full.
    fn is_backlogged(&self, change: &ReplicaSetChange) -> bool {
        let window = self.settings.window;
        let mut streams = change.learners.iter().filter_map(|peer| self.streams.get(peer));
        streams.any(|stream| stream.is_filled(2, window))
    }

    /// Ends the copying: sends the locks and the replies that clients received, and waits for
    /// acknowledgements.
    fn finish_copying(
        &mut self,
        change: &ReplicaSetChange,
        export: &dyn Fn(IdRange) -> ClientState,
    ) -> CatchUpStage {
        let ClientState { locks, sessions } = export(change.ids);
        for (id, grant) in locks {
            self.send_all(&change.learners, Mutation::put_lock(id, &grant), Vec::new());
        }
        self.send_all(&change.learners, Mutation::RepliesOnly, sessions);
        let last = |peer: &Peer| (*peer, self.streams[peer].last());
        CatchUpStage::AwaitingAcks(change.learners.iter().map(last).collect())
    }
}
