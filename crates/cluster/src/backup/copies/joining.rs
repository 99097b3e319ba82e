//! How nodes come to be backups: what those who join a set are sent before it is committed.

use super::super::entry::Changed;
use super::super::link::Link;
use super::super::{Name, What};
use super::{Copies, ItemKey, SetChange, Stage, Wanted};
use crate::chunks::{ChunkStore, SessionState};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::Peer;

/// Ids that are looked at in one step of a copy.
const LOOKS_MAX: u64 = 65_536;

/// A chunk as it is now.
pub(crate) fn chunk<S: ChunkStore>(store: &mut S, id: ChunkId) -> What {
    let mut value = None;
    store.read(id, &mut |bytes| value = Some(bytes.to_vec()));
    value.map_or(What::Remove(id), |value| What::Put(id, value))
}

impl Copies {
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
            true => Stage::Staged,
            false if ids.first().creator().is_named() => Stage::Collecting(Vec::new()),
            false => Stage::Filling(ids.start()),
        };
        self.begin_change(SetChange { ids, base, joining, stage })
    }

    /// The same of named items, all of which are known.
    pub fn join_with(&mut self, ids: IdRange, joining: Vec<Peer>, items: Vec<ItemKey>) -> u64 {
        let (base, stage) = (Vec::new(), Stage::Sending(items));
        self.begin_change(SetChange { ids, base, joining, stage })
    }

    fn begin_change(&mut self, change: SetChange) -> u64 {
        self.send_all(&change.joining, What::Clear(change.ids), Vec::new());
        self.insert_change(change)
    }

    fn insert_change(&mut self, change: SetChange) -> u64 {
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
        adopters: Vec<(Peer, Vec<Name>)>,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> u64 {
        let joining: Vec<Peer> = adopters.iter().map(|(peer, _)| *peer).collect();
        self.send_all(&joining, What::Adopt(source, ids), Vec::new());
        for (peer, names) in adopters {
            for Name { id, .. } in names {
                self.send_all(&[peer], chunk(store, id), Vec::new());
            }
        }
        let mut change = SetChange { ids, base: Vec::new(), joining, stage: Stage::Staged };
        change.stage = self.filled(&change, export);
        self.insert_change(change)
    }

    /// Sends those who join what there is, and commits those who have it.
    pub fn fill<S: ChunkStore>(
        &mut self,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
        out: &mut Vec<Wanted>,
    ) {
        let is_next = |change: &SetChange| match &change.stage {
            Stage::Filling(_) | Stage::Sending(_) => true,
            Stage::Filled(until) => self.has_all(until),
            Stage::Collecting(_) | Stage::Staged | Stage::Committing => false,
        };
        let next = self.changes.iter().filter(|(_, change)| is_next(change));
        for number in next.map(|(number, _)| *number).collect::<Vec<_>>() {
            let mut change = self.changes.remove(&number).expect("it is there");
            if let Stage::Filling(from) = change.stage {
                change.stage = self.fill_some(&change, from, store, export);
            } else if let Stage::Sending(items) = &mut change.stage {
                let items = std::mem::take(items);
                change.stage = self.send_some(&change, items, store, export);
            }
            if matches!(&change.stage, Stage::Filled(until) if self.has_all(until)) {
                change.stage = Stage::Committing;
                out.push(Wanted::Commit(number, change.ids, change.members()));
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
        change: &SetChange,
        from: u64,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> Stage {
        let (mut at, end) = (from, change.ids.end());
        while at < end && at < from + LOOKS_MAX {
            if self.is_crowded(change) {
                return Stage::Filling(at);
            }
            let id = ChunkId::from_bits(at).expect("it lies in a range");
            store.read(id, &mut |bytes| {
                let put = Changed::Put(id, bytes);
                self.send(&change.joining, false, |version, to| put.encode(version, None, to));
            });
            at += 1;
        }
        if at < end {
            return Stage::Filling(at);
        }
        self.filled(change, export)
    }

    fn send_some<S: ChunkStore>(
        &mut self,
        change: &SetChange,
        mut items: Vec<ItemKey>,
        store: &mut S,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> Stage {
        while !self.is_crowded(change) {
            let Some((id, key)) = items.pop() else { return self.filled(change, export) };
            // One that is gone by now: those who join were told so.
            if let Some(kept) = store.replica_item(&key) {
                let what = What::PutItem(Name::item(id, &key), kept);
                self.send_all(&change.joining, what, Vec::new());
            }
        }
        Stage::Sending(items)
    }

    /// Whether those who join have enough to do.
    fn is_crowded(&self, change: &SetChange) -> bool {
        let window = self.settings.window / 2;
        change
            .joining
            .iter()
            .any(|peer| self.links.get(peer).is_some_and(|link: &Link| link.waiting() >= window))
    }

    /// All was sent, but for what clients were answered.
    fn filled(
        &mut self,
        change: &SetChange,
        export: &dyn Fn(IdRange) -> Vec<SessionState>,
    ) -> Stage {
        self.send_all(&change.joining, What::Answers, export(change.ids));
        let last = |peer: &Peer| (*peer, self.links[peer].last());
        Stage::Filled(change.joining.iter().map(last).collect())
    }
}
