//! The progress of failovers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::missing::Missing;
use crate::chunks::{LockGrant, SessionState};
use crate::ids::{ChunkId, IdRange};
use crate::interval_map::IntervalMap;
use crate::overlay::{FailoverGrant, Peer};
use crate::replication::{ItemKey, Mutation, RecordKey, ReplicaSlice, ReplicationPrimary};

/// Time to wait for a holder that has reported and then fell silent; waiting is cheaper than
/// copying everything to another node.
const PATIENCE_MS: u64 = 1_000;
/// Waits at most.
const ATTEMPTS_MAX: u32 = 3;

/// The failover of one range of ids, and its progress.
#[derive(Debug)]
pub(super) struct FailoverTask {
    pub(super) grant: FailoverGrant,
    /// Where what is not taken over begins.
    pub(super) next: u64,
    /// Where what was not asked for begins; not before `next`.
    pub(super) asked: u64,
    /// What was asked for and is not taken over yet, in order.
    pub(super) slices: VecDeque<SliceLoad>,
    /// Keys of the named items that are loaded.
    pub(super) items: Vec<ItemKey>,
    /// Keys of the locks that are loaded; some may have ended since.
    pub(super) locks: Vec<RecordKey>,
    /// `damaged`: what could not be read here. `missing`: the part of it that no other holder has
    /// sent yet.
    pub(super) damaged: Vec<RecordKey>,
    pub(super) missing: Missing,
    /// Nodes that were to become backups in any attempt.
    pub(super) past_learners: BTreeSet<Peer>,
    /// Attempts at a replica set whose members fell silent.
    pub(super) attempts: u32,
    /// `waits_from_ms`: since when everything is loaded and only reports of the other holders are
    /// missing. `next_ask_ms`: when they are asked next.
    pub(super) waits_from_ms: Option<u64>,
    pub(super) next_ask_ms: u64,
    /// The last version of each holder that has reported, and what it has beyond the replicas here;
    /// None if it does not know.
    pub(super) sealed: BTreeMap<Peer, (u64, Option<Vec<RecordKey>>)>,
}

/// All failovers of a node. Their ids do not overlap.
#[derive(Debug, Default)]
pub(super) struct Failovers {
    /// Those whose new replica set is being committed, by the number of that change.
    pub(super) committing: BTreeMap<u64, FailoverTask>,
    /// Those that are being loaded, the next one first, or that wait for backups.
    pub(super) loading: VecDeque<FailoverTask>,
    /// The ids of both: requests ask for them, and a node may have a thousand failovers.
    ids: IntervalMap<()>,
}

impl Failovers {
    /// Adds one that is to be loaded behind the others.
    pub(super) fn start(&mut self, failover: FailoverTask) {
        let ids = failover.grant.ids;
        debug_assert!(!self.overlap(ids), "{ids:?} are in failover already");
        self.ids.assign(ids.start()..ids.end(), Some(()));
        self.loading.push_back(failover);
    }

    /// Forgets the ids of one that has ended, and is in neither list any more.
    pub(super) fn end(&mut self, ids: IdRange) {
        self.ids.assign(ids.start()..ids.end(), None);
    }

    /// Whether an id is in failover.
    pub(super) fn contain(&self, id: ChunkId) -> bool {
        self.ids.get(id.bits()).is_some()
    }

    /// Whether some of these ids are in failover.
    pub(super) fn overlap(&self, ids: IdRange) -> bool {
        self.ids.over(ids.start()..ids.end()).next().is_some()
    }

    /// Whether the ids are those of the failovers.
    pub(super) fn are_consistent(&self) -> bool {
        let mut ids = IntervalMap::default();
        for failover in self.committing.values().chain(&self.loading) {
            ids.assign(failover.grant.ids.start()..failover.grant.ids.end(), Some(()));
        }
        ids.iter().eq(self.ids.iter())
    }
}

/// A slice of a failover that is being loaded.
#[derive(Debug)]
pub(super) struct SliceLoad {
    pub(super) slice: ReplicaSlice,
    /// For each chunk id whether it was found.
    pub(super) is_here: Vec<bool>,
    /// The locks that were found.
    pub(super) locks: Vec<(RecordKey, LockGrant)>,
    /// What cannot be read. Other holders are asked for it once the rest of the slice is here,
    /// which would take the place of what they send.
    pub(super) damaged: Vec<RecordKey>,
}

impl SliceLoad {
    /// The ids or items that have to be looked at.
    pub(super) fn weight(&self) -> u64 {
        (self.is_here.len() as u64).max(self.slice.records).max(1)
    }
}

/// Chunks that this node should hold and cannot read, by the owner in whose name they were
/// replicated.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnreadableChunks {
    /// Found now; other holders are asked for them.
    pub asked: BTreeMap<Peer, Vec<ChunkId>>,
    /// No holder that could be asked can read them.
    pub lost: BTreeMap<Peer, Vec<ChunkId>>,
}

/// Another holder's answer about chunks that cannot be read here.
#[derive(Debug)]
pub(super) struct Fetched<'m> {
    pub found: &'m [Mutation],
    pub sessions: &'m [SessionState],
    pub lacking: &'m [RecordKey],
    pub damaged: &'m [RecordKey],
}

impl FailoverTask {
    pub(super) fn is_loaded(&self) -> bool {
        self.next >= self.grant.ids.end()
    }

    /// Whether the next slice can be taken over.
    pub(super) fn has_slice(&self) -> bool {
        self.slices.front().is_some_and(|one| one.slice.is_loaded())
    }

    /// The other holders that are members.
    pub(super) fn others(&self, replication: &ReplicationPrimary) -> impl Iterator<Item = Peer> {
        let others = self.grant.holders[1..].iter().copied();
        others.filter(|peer| replication.is_member(*peer))
    }

    /// Other holders of chunks that have not reported, or fell silent since.
    pub(super) fn unsealed(&self, replication: &ReplicationPrimary) -> impl Iterator<Item = Peer> {
        let is_named = self.grant.ids.first().creator().is_named();
        let is_ready = |peer| self.sealed.contains_key(&peer) && replication.is_healthy(peer);
        let others = self.others(replication).filter(move |_| !is_named);
        others.filter(move |peer| replication.is_eligible(*peer) && !is_ready(*peer))
    }

    /// Whether to wait for reports that are still missing.
    pub(super) fn waits(
        &mut self,
        now_ms: u64,
        replication: &ReplicationPrimary,
        silent_ms: u64,
    ) -> bool {
        let from_ms = *self.waits_from_ms.get_or_insert(now_ms);
        let is_ready = self.sealed.keys().any(|peer| replication.is_healthy(*peer));
        let patience_ms = match is_ready || self.sealed.is_empty() {
            true => silent_ms,
            false => PATIENCE_MS.max(silent_ms),
        };
        let is_early = now_ms < from_ms + patience_ms && self.attempts < ATTEMPTS_MAX;
        is_early && self.unsealed(replication).next().is_some()
    }

    /// The chosen backups fell silent: choose others, or the same again. Loaded chunks stay, since
    /// nobody else changes them; so do the reports, since the holders accept no more writes of the
    /// old owner.
    pub(super) fn retry(&mut self) {
        self.attempts += 1;
        self.waits_from_ms = None;
        self.next_ask_ms = 0;
    }
}
