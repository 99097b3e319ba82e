//! The owner's side of replication: tracks which backups have which changes. Not thread-safe: one
//! thread calls it.
//!
//! An owner never commits a backup out of a set if fewer than the minimum of replicas would remain:
//! the owner itself may be the node that is cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::entry::MutationRef;
use super::stream::{EntryBufferPool, ReplicationStream};
use super::{
    Mutation, RecordKey, ReplicationEntry, ReplicationMessage, ReplicationSettings,
    UnacknowledgedIds,
};
use crate::chunks::{CachedReply, ChunkStore, ClientState, SessionState};
use crate::codec::Wire;
use crate::hash::IntHashMap;
use crate::ids::{ChunkId, IdRange, NodeId};
use crate::interval_map::IntervalMap;
use crate::overlay::{Peer, Refusal};

mod candidates;
mod catch_up;
mod report;

pub use report::Backlog;

pub(crate) use catch_up::chunk;

/// Replica-set changes in progress at most: of chunks, and of named items. All changes of items
/// share one scan of the items. Further changes wait.
const CHANGES_MAX: usize = 16;
pub(crate) const NAMED_CHANGES_MAX: usize = 256;
/// As [`NAMED_CHANGES_MAX`], while this node is alone and its log lacks few items: a crash loses
/// what the log lacks, so the partitions do not wait for each other.
const LONE_CHANGES_MAX: usize = 16 * NAMED_CHANGES_MAX;
/// The items that a scan finds for all changes, about, up to which more of these share it.
const LONE_ITEMS_MAX: usize = 1 << 16;
/// During a failover a learner may be silent this many times longer than otherwise: all nodes are
/// loading, no write waits for it, and starting over is expensive.
const FAILOVER_PATIENCE: u64 = 4;
/// How long a backup that timed out is not chosen again.
const SUSPECTED_MS: u64 = 2_000;
/// How long a scan of the sets that could change nothing is not repeated, if no set, member or
/// suspicion has changed since.
const RESCAN_MS: u64 = 1_000;

/// What the caller of [`ReplicationPrimary`] must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicationCommand {
    /// Send a message to a peer.
    Send(Peer, ReplicationMessage),
    /// Commit these peers as the backups of ids that this node owns, as the set change of that
    /// number; report the result to [`ReplicationPrimary::on_committed`].
    Commit(u64, IdRange, Vec<Peer>),
    /// The set change of that number was abandoned.
    Aborted(u64),
}

/// A change that some backup or learner has not acknowledged.
#[derive(Debug)]
struct PendingWrite {
    id: ChunkId,
    /// Peers that must have the change and have not acknowledged it; it is marked as awaited in
    /// each one's [`ReplicationStream`].
    missing_acks: usize,
}

/// The named id and key of an item.
pub type ItemKey = (ChunkId, Vec<u8>);

#[derive(Debug)]
enum CatchUpStage {
    /// Chunks are being sent to the learners; the position is the next id to send.
    CopyingChunks(u64),
    /// A scan is collecting the items to send; the keys found so far.
    ScanningItems(Vec<ItemKey>),
    /// The scan has finished; the items that are still to be sent.
    CopyingItems(Vec<ItemKey>),
    /// Everything was sent; each learner has to acknowledge up to this entry number.
    AwaitingAcks(Vec<(Peer, u64)>),
    /// The caller sends the contents and commits.
    DrivenByCaller,
    /// The edit of the metadata is in flight.
    Committing,
}

#[derive(Debug)]
struct ReplicaSetChange {
    ids: IdRange,
    /// Backups that stay in the set.
    base: Vec<Peer>,
    learners: Vec<Peer>,
    stage: CatchUpStage,
}

impl ReplicaSetChange {
    fn members(&self) -> Vec<Peer> {
        self.base.iter().chain(&self.learners).copied().collect()
    }
}

/// The inputs of a scan of the sets that found some to change and could change none.
#[derive(Debug)]
struct FutileScan {
    at_ms: u64,
    silent: BTreeSet<Peer>,
    suspected: Vec<Peer>,
}

/// Replicates the chunks and items of one owner to its backups.
#[derive(Debug)]
pub struct ReplicationPrimary {
    me: Peer,
    settings: ReplicationSettings,
    /// Members of the cluster other than this node.
    others: Vec<Peer>,
    /// Whether the member list is known: it has once contained this node.
    is_member: bool,
    /// The committed backups of each id.
    backup_sets: IntervalMap<Vec<Peer>>,
    /// Lower bound on the number of backups of every set at the last full scan; None after any
    /// change.
    min_backups_seen: Option<usize>,
    streams: BTreeMap<Peer, ReplicationStream>,
    /// What the last scan found that could change nothing; None after any change of a set.
    futile_scan: Option<FutileScan>,
    /// Ids without a backup about which nothing was acknowledged yet: a node that is alone accepts
    /// no change of them before they are in its own log.
    unbacked: IntervalMap<()>,
    /// Whether some stream may have reached the window; false means none has.
    is_backlogged: bool,
    next_stream: u64,
    next_version: u64,
    pending_writes: IntHashMap<u64, PendingWrite>,
    pending_by_id: IntHashMap<ChunkId, u64>,
    /// The keys of `pending_by_id`, and the ids of changes that begin, for other threads.
    unacknowledged: Arc<UnacknowledgedIds>,
    set_changes: BTreeMap<u64, ReplicaSetChange>,
    next_change: u64,
    /// The most items that the scan found for a change of a set since this node is alone, or is
    /// not; None before the first one.
    most_scanned_items: Option<usize>,
    /// Rack of each node that named one.
    racks: BTreeMap<NodeId, String>,
    /// Peers that timed out or refused, and until when they are not chosen; `u64::MAX` is for the
    /// rest of their incarnation.
    suspected: BTreeMap<Peer, u64>,
    acknowledged: Vec<u64>,
    is_deposed: bool,
    /// Buffers of acknowledged entries, for reuse.
    buffer_pool: EntryBufferPool,
    versions: Vec<u64>,
    peers: Vec<Peer>,
}

impl ReplicationPrimary {
    /// Creates the state of a node that owns nothing.
    pub fn new(me: Peer, settings: ReplicationSettings) -> Self {
        Self {
            me,
            settings,
            others: Vec::new(),
            is_member: false,
            backup_sets: IntervalMap::default(),
            min_backups_seen: None,
            futile_scan: None,
            unbacked: IntervalMap::default(),
            streams: BTreeMap::new(),
            is_backlogged: false,
            next_stream: 1,
            next_version: 1,
            pending_writes: IntHashMap::default(),
            pending_by_id: IntHashMap::default(),
            unacknowledged: Arc::new(UnacknowledgedIds::new(settings.backups > 0)),
            set_changes: BTreeMap::new(),
            next_change: 1,
            most_scanned_items: None,
            racks: BTreeMap::new(),
            suspected: BTreeMap::new(),
            acknowledged: Vec::new(),
            is_deposed: false,
            buffer_pool: EntryBufferPool::default(),
            versions: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// Whether a backup reported that this node's incarnation was sealed by a successor.
    pub fn is_deposed(&self) -> bool {
        self.is_deposed
    }

    /// Whether a version waits for an acknowledgement.
    pub fn is_pending(&self, version: u64) -> bool {
        self.pending_writes.contains_key(&version)
    }

    /// Chooses all backups for ids that are new.
    pub fn choose_backup_set(&self, ids: IdRange) -> Vec<Peer> {
        self.choose_backups(ids, &[], self.backup_target())
    }

    /// The committed backups of an id; none if this node does not own it.
    pub fn backups(&self, id: ChunkId) -> Option<&[Peer]> {
        self.backup_sets.get(id.bits()).map(Vec::as_slice)
    }

    /// The configured number of backups, which small clusters may not reach.
    pub fn configured_backups(&self) -> usize {
        self.settings.backups
    }

    /// Makes this node the owner of `ids` with these backups, which have all their contents.
    pub fn set_backups(&mut self, ids: IdRange, backups: Vec<Peer>) {
        if self.settings.backups > 0 {
            self.unbacked.assign(ids.start()..ids.end(), None);
            self.backup_sets.assign(ids.start()..ids.end(), Some(backups));
            self.min_backups_seen = None;
            self.futile_scan = None;
            self.recheck_writes(ids);
        }
    }

    /// As [`Self::set_backups`], for new ids: nothing was acknowledged about them.
    pub fn set_first_backups(&mut self, ids: IdRange, backups: Vec<Peer>) {
        let is_unbacked = backups.is_empty();
        self.set_backups(ids, backups);
        if is_unbacked {
            self.unbacked.assign(ids.start()..ids.end(), Some(()));
        }
    }

    /// Forgets ids that this node no longer owns; nothing about them is pending any more.
    pub fn drop_ids(&mut self, ids: IdRange) {
        self.backup_sets.assign(ids.start()..ids.end(), None);
        self.unbacked.assign(ids.start()..ids.end(), None);
        self.set_changes.retain(|_, change| !change.ids.overlaps(ids));
        self.pending_writes.retain(|_, write| !ids.contains(write.id));
        let unacknowledged = &self.unacknowledged;
        self.pending_by_id.retain(|id, _| {
            let is_kept = !ids.contains(*id);
            if !is_kept {
                unacknowledged.remove(*id);
            }
            is_kept
        });
    }

    /// Whether a change of the backups of some of `ids` is in progress.
    pub fn is_changing(&self, ids: IdRange) -> bool {
        self.set_changes.values().any(|change| change.ids.overlaps(ids))
    }

    /// Whether no write can be acknowledged until a node joins or restarts: too many refused for
    /// the rest of their incarnations, since their logs are full or broken.
    pub fn refuses(&self) -> bool {
        let is_full = |until_ms: &u64| *until_ms == u64::MAX;
        self.settings.backups > 0
            && self.suspected.values().any(is_full)
            && self.others.iter().filter(|peer| self.is_eligible(**peer)).count() + 1
                < self.min_replicas()
    }

    /// Whether a write to `id` is accepted: it has enough replicas, and no queue of a backup or
    /// learner is full.
    pub fn accepts(&self, id: ChunkId) -> bool {
        if self.settings.backups == 0 {
            return true;
        }
        let Some(set) = self.backup_sets.get(id.bits()) else { return false };
        let is_full = |peer: Peer| {
            self.streams.get(&peer).is_some_and(|stream| stream.is_filled(1, self.settings.window))
        };
        let is_new =
            self.is_alone() && self.is_small(set) && self.unbacked.get(id.bits()).is_some();
        let is_backlogged = || self.is_backlogged && self.peers(id).any(is_full);
        let has_enough = self.others_in(set) + 1 >= self.min_replicas() && !is_new;
        has_enough && !self.refuses() && !is_backlogged()
    }

    /// The peers that must have each change of `id`: its backups, then its learners.
    fn peers(&self, id: ChunkId) -> impl Iterator<Item = Peer> {
        let set = self.backup_sets.get(id.bits()).map_or(&[][..], Vec::as_slice);
        let mut learners = Vec::new();
        for change in self.set_changes.values().filter(|change| change.ids.contains(id)) {
            for peer in &change.learners {
                if !set.contains(peer) && !learners.contains(peer) {
                    learners.push(*peer);
                }
            }
        }
        set.iter().copied().chain(learners)
    }

    /// Sends a change of a chunk to every backup and learner of its id. Until all of them have
    /// acknowledged it, [`Self::pending_version`] returns its version.
    pub fn replicate(&mut self, id: ChunkId, mutation: Mutation, sessions: Vec<SessionState>) {
        self.replicate_encoded(id, |version, to| {
            ReplicationEntry { version, mutation, sessions }.encode(to)
        });
    }

    /// Replicates the change of an operation, together with the reply to its client.
    pub fn replicate_operation(
        &mut self,
        changed: MutationRef<'_>,
        answered: Option<CachedReply<'_>>,
    ) {
        self.replicate_encoded(changed.id(), |version, to| changed.encode(version, answered, to));
    }

    fn replicate_encoded(&mut self, id: ChunkId, encode: impl FnOnce(u64, &mut Vec<u8>)) {
        let mut peers = std::mem::take(&mut self.peers);
        peers.extend(self.peers(id));
        if !peers.is_empty() {
            let version = self.send(&peers, true, encode);
            self.pending_writes.insert(version, PendingWrite { id, missing_acks: peers.len() });
            if self.pending_by_id.insert(id, version).is_none() {
                self.unacknowledged.add(id);
            }
        }
        peers.clear();
        self.peers = peers;
    }

    /// The version of the last change of `id` that some peer has not acknowledged. No reply about
    /// the chunk may be sent before that.
    pub fn pending_version(&self, id: ChunkId) -> Option<u64> {
        self.pending_by_id.get(&id).copied()
    }

    /// The ids with a pending change, for other threads.
    pub fn unacknowledged(&self) -> &Arc<UnacknowledgedIds> {
        &self.unacknowledged
    }

    /// Whether a change of some of `ids` is pending.
    pub fn has_pending_writes(&self, ids: IdRange) -> bool {
        self.pending_by_id.keys().any(|id| ids.contains(*id))
    }

    /// Passes on and forgets the versions that have been acknowledged by all.
    pub fn take_acknowledged(&mut self, each: impl FnMut(u64)) {
        self.acknowledged.drain(..).for_each(each);
    }

    /// Set changes that need a scan of the items, and their ids.
    pub fn pending_item_scans(&self) -> impl Iterator<Item = (u64, IdRange)> {
        let waits = self
            .set_changes
            .iter()
            .filter(|(_, one)| matches!(one.stage, CatchUpStage::ScanningItems(_)));
        waits.map(|(number, change)| (*number, change.ids))
    }

    /// Adds an item that the scan found to a set change.
    pub fn add_scanned_item(&mut self, number: u64, item: ItemKey) {
        let change = self.set_changes.get_mut(&number);
        if let Some(CatchUpStage::ScanningItems(items)) = change.map(|change| &mut change.stage) {
            items.push(item);
        }
    }

    /// Ends the scan for a set change.
    pub fn finish_item_scan(&mut self, number: u64) {
        if let Some(change) = self.set_changes.get_mut(&number)
            && let CatchUpStage::ScanningItems(items) = &mut change.stage
        {
            self.most_scanned_items = self.most_scanned_items.max(Some(items.len()));
            change.stage = CatchUpStage::CopyingItems(std::mem::take(items));
        }
    }

    /// Marks a change driven by the caller as committing: it cannot be abandoned any more, since
    /// its edit may already be committed. Returns the members.
    pub fn begin_commit(&mut self, number: u64) -> Vec<Peer> {
        let Some(change) = self.set_changes.get_mut(&number) else { return Vec::new() };
        change.stage = CatchUpStage::Committing;
        change.members()
    }

    /// Abandons a set change.
    pub fn abort(&mut self, number: u64) {
        if let Some(change) = self.set_changes.remove(&number) {
            self.recheck_writes(change.ids);
        }
    }

    /// Tells backups of `ids` to discard what they keep of them under `source`.
    pub fn discard_former(&mut self, source: Peer, ids: IdRange, backups: &[Peer]) {
        let members = backups.iter().copied();
        let members: Vec<Peer> = members.filter(|peer| self.is_present(*peer)).collect();
        self.send_all(&members, Mutation::DiscardFormer(source, ids), Vec::new());
    }

    /// Tells nodes that are not backups of `ids` to discard what they keep of them.
    pub fn clear_on(&mut self, ids: IdRange, peers: impl Iterator<Item = Peer>) {
        let members: Vec<Peer> = peers.filter(|peer| self.is_present(*peer)).collect();
        self.send_all(&members, Mutation::Clear(ids), Vec::new());
    }

    /// Whether `peer` must have the contents of `id` and `stream` is its present stream.
    pub fn is_backup(&self, peer: Peer, stream: u64, id: ChunkId) -> bool {
        let is_present = self.streams.get(&peer).is_some_and(|known| known.number == stream);
        is_present && self.peers(id).any(|other| other == peer)
    }

    /// Sends a backup the present value of a chunk or item again, or that it was removed.
    pub fn resend(&mut self, peer: Peer, stream: u64, id: ChunkId, mutation: Mutation) {
        if self.is_backup(peer, stream, id) {
            self.send_all(&[peer], mutation, Vec::new());
        }
    }

    /// Tells every peer that must have `key` that the item was removed. No reply waits for this.
    pub fn remove_item(&mut self, key: RecordKey) {
        let peers: Vec<Peer> = self.peers(key.id).collect();
        self.send_all(&peers, Mutation::RemoveItem(key), Vec::new());
    }

    /// Drops ids that have another owner and tells the backups to discard them.
    pub fn hand_over(&mut self, ids: IdRange) {
        let members: BTreeSet<Peer> = self
            .backup_sets
            .over(ids.start()..ids.end())
            .flat_map(|(_, set)| set.clone())
            .collect();
        let members: Vec<Peer> =
            members.into_iter().filter(|peer| self.streams.contains_key(peer)).collect();
        self.send_all(&members, Mutation::Clear(ids), Vec::new());
        self.drop_ids(ids);
    }

    /// Handles a backup's answer.
    pub fn on_message(&mut self, from: Peer, message: &ReplicationMessage, now_ms: u64) {
        let Some(stream) = self.streams.get_mut(&from) else { return };
        match message {
            ReplicationMessage::Appended { stream: number, next } if *number == stream.number => {
                let mut versions = std::mem::take(&mut self.versions);
                let pool = &mut self.buffer_pool;
                stream.acknowledge(*next, now_ms, |entry, is_awaited| {
                    versions.extend(is_awaited.then_some(entry.version));
                    pool.recycle(entry);
                });
                self.update_backlogged();
                for version in versions.drain(..) {
                    if let Some(write) = self.pending_writes.get_mut(&version) {
                        write.missing_acks -= 1;
                        if write.missing_acks == 0 {
                            self.complete_if_acknowledged(version);
                        }
                    }
                }
                self.versions = versions;
            }
            ReplicationMessage::Refused { stream: number, is_sealed }
                if *number == stream.number =>
            {
                self.is_deposed |= *is_sealed;
                // The backup accepts nothing more: treat it as timed out. It never will in this
                // incarnation, so a set that it joined could never become complete.
                stream.awaiting_since_ms = Some(0);
                self.suspect(from, u64::MAX);
            }
            _ => {}
        }
    }

    /// Completes a change that everybody has acknowledged, if its set has enough replicas.
    fn complete_if_acknowledged(&mut self, version: u64) {
        let Some(write) = self.pending_writes.get(&version) else { return };
        let id = write.id;
        let is_enough = match self.backup_sets.get(id.bits()) {
            Some(set) => self.others_in(set) + 1 >= self.min_replicas(),
            None => true,
        };
        if write.missing_acks == 0 && is_enough {
            self.pending_writes.remove(&version);
            if self.pending_by_id.get(&id) == Some(&version) {
                self.pending_by_id.remove(&id);
                self.unacknowledged.remove(id);
            }
            self.acknowledged.push(version);
        }
    }

    /// Recounts the peers that writes to `ids` wait for, after their members changed.
    fn recheck_writes(&mut self, ids: IdRange) {
        let about = self.pending_writes.iter().filter(|(_, write)| ids.contains(write.id));
        let mut versions: Vec<u64> = about.map(|(version, _)| *version).collect();
        versions.sort_unstable();
        for version in versions {
            let peers: Vec<Peer> = self.peers(self.pending_writes[&version].id).collect();
            let mut missing = 0;
            for (peer, stream) in &mut self.streams {
                missing += usize::from(stream.set_awaited(version, peers.contains(peer)));
            }
            self.pending_writes
                .get_mut(&version)
                .expect("the version was listed above")
                .missing_acks = missing;
            self.complete_if_acknowledged(version);
        }
    }

    /// Handles the result of [`ReplicationCommand::Commit`]. Returns the ids and their new members
    /// (none if it failed), or none if the change was abandoned meanwhile.
    pub fn on_committed(
        &mut self,
        number: u64,
        result: Result<u64, Refusal>,
    ) -> Option<(IdRange, Vec<Peer>)> {
        let change = self.set_changes.remove(&number)?;
        if result.is_ok() {
            let members = change.members();
            let before = self.backups(change.ids.first()).unwrap_or_default();
            let left: Vec<Peer> =
                before.iter().filter(|peer| !members.contains(peer)).copied().collect();
            self.set_backups(change.ids, members.clone());
            if left.contains(&self.me) {
                self.clear_on(change.ids, std::iter::once(self.me));
            } else if !self.racks.is_empty() {
                // A silent node never receives this, or is in a new incarnation when it does.
                self.clear_on(change.ids, left.into_iter());
            }
            return Some((change.ids, members));
        }
        self.recheck_writes(change.ids);
        Some((change.ids, Vec::new()))
    }

    /// Advances time: abandons, begins and continues set changes, and sends again what timed out.
    /// `is_leaving` tells whether the owner is about to hand over ids; their sets stay as they are.
    pub fn on_tick<S: ChunkStore>(
        &mut self,
        now_ms: u64,
        is_leaving: &dyn Fn(IdRange) -> bool,
        store: &mut S,
        export: &dyn Fn(IdRange) -> ClientState,
        out: &mut Vec<ReplicationCommand>,
    ) {
        if self.settings.backups == 0 {
            return;
        }
        let suspected = self.suspected.len();
        self.suspected.retain(|_, until_ms| *until_ms > now_ms);
        if self.suspected.len() < suspected {
            self.recheck_racks();
        }
        let silent_ms = self.settings.silent_ms;
        let primary = &*self;
        let silent_for = |silent_ms: u64| {
            let is_silent = move |(peer, stream): (&Peer, &ReplicationStream)| {
                let is_late =
                    stream.awaiting_since_ms.is_some_and(|since| now_ms >= since + silent_ms);
                (is_late || !primary.is_present(*peer)).then_some(*peer)
            };
            primary.streams.iter().filter_map(is_silent).collect::<BTreeSet<Peer>>()
        };
        let (silent, gone) = (silent_for(silent_ms), silent_for(FAILOVER_PATIENCE * silent_ms));
        for peer in &silent {
            self.suspect(*peer, now_ms + SUSPECTED_MS);
        }
        self.abort_unreachable(&silent, &gone, out);
        self.change_sets(now_ms, &silent, is_leaving, out);
        self.advance_catch_up(store, export, out);
        self.drop_unused_streams();
        self.resend_timed_out(now_ms);
    }

    fn abort_unreachable(
        &mut self,
        silent: &BTreeSet<Peer>,
        gone: &BTreeSet<Peer>,
        out: &mut Vec<ReplicationCommand>,
    ) {
        let is_hopeless = |change: &ReplicaSetChange| {
            let absent = match change.stage {
                CatchUpStage::Committing => return false,
                CatchUpStage::DrivenByCaller => silent,
                _ if self.backup_sets.get(change.ids.start()).is_none() => gone,
                _ => silent,
            };
            change.members().iter().any(|peer| absent.contains(peer))
        };
        let hopeless: Vec<u64> = {
            let changes = self.set_changes.iter().filter(|(_, change)| is_hopeless(change));
            changes.map(|(number, _)| *number).collect()
        };
        for number in hopeless {
            self.abort(number);
            out.push(ReplicationCommand::Aborted(number));
        }
    }

    /// Changes of sets of named items that may be in progress.
    fn named_changes_max(&self) -> usize {
        match self.most_scanned_items.filter(|_| self.is_alone()) {
            Some(items) => {
                (LONE_ITEMS_MAX / items.max(1)).clamp(NAMED_CHANGES_MAX, LONE_CHANGES_MAX)
            }
            None => NAMED_CHANGES_MAX,
        }
    }

    /// Commits silent backups out of their sets, and begins to add backups to sets that are too
    /// small.
    fn change_sets(
        &mut self,
        now_ms: u64,
        silent: &BTreeSet<Peer>,
        is_leaving: &dyn Fn(IdRange) -> bool,
        out: &mut Vec<ReplicationCommand>,
    ) {
        if silent.is_empty() && self.min_backups_seen == Some(self.backup_target()) {
            return;
        }
        let is_futile = |scan: &FutileScan| {
            now_ms < scan.at_ms + RESCAN_MS
                && scan.silent == *silent
                && self.suspected.keys().eq(&scan.suspected)
        };
        if self.futile_scan.as_ref().is_some_and(is_futile) {
            return;
        }
        let mut wanted = Vec::new();
        self.min_backups_seen = Some(self.backup_target());
        for (span, set) in self.backup_sets.iter() {
            let is_hurt = set.iter().any(|peer| silent.contains(peer));
            let is_small = self.is_small(set);
            let shares_rack = || self.placement().better(span.start, set).is_some();
            if is_hurt || is_small || shares_rack() {
                self.min_backups_seen = None;
                let parts = IdRange::cut(span).filter(|ids| !is_leaving(*ids));
                wanted.extend(parts.map(|ids| (!is_hurt, ids, set.clone())));
            }
        }
        // Sets with silent members go first, and of these the ones that a write waits for.
        let awaited = if silent.is_empty() { Vec::new() } else { self.ids_with_pending_writes() };
        wanted.sort_by_cached_key(|(has_no_silent, ids, _)| {
            let after = awaited.partition_point(|id| *id < ids.start());
            let is_awaited = awaited.get(after).is_some_and(|id| *id < ids.end());
            (*has_no_silent, !is_awaited, ids.start())
        });
        let is_named = |ids: IdRange| ids.first().creator().is_named();
        let changing: Vec<IdRange> = self.set_changes.values().map(|change| change.ids).collect();
        let named = changing.iter().filter(|ids| is_named(**ids)).count();
        // Changes in progress, of chunks and of named items.
        let mut begun = [changing.len() - named, named];
        let is_idle = changing.is_empty() && !wanted.is_empty();
        let named_most = self.named_changes_max();
        for (has_no_silent, ids, set) in wanted {
            let (begun, most) = match is_named(ids) {
                true => (&mut begun[1], named_most),
                false => (&mut begun[0], CHANGES_MAX),
            };
            if *begun >= most || changing.iter().any(|other| other.overlaps(ids)) {
                continue;
            }
            // Others take the place of this node.
            let stays = |peer: &&Peer| !silent.contains(peer) && self.is_available(**peer);
            let base: Vec<Peer> = set.iter().filter(stays).copied().collect();
            if !has_no_silent && base.len() + 1 >= self.min_replicas() {
                let number = self.begin_catch_up(ids, base.clone(), Vec::new(), true);
                self.begin_commit(number);
                out.push(ReplicationCommand::Commit(number, ids, base));
                *begun += 1;
                continue;
            }
            // The silent backup may be the last one with all contents, so it is replaced rather
            // than dropped.
            let learners = self.choose_missing_backups(ids, &base);
            let is_enough = has_no_silent || base.len() + learners.len() + 1 >= self.min_replicas();
            if is_enough && !(has_no_silent && learners.is_empty()) {
                self.begin_catch_up(ids, base, learners, false);
                *begun += 1;
            } else if has_no_silent
                && let Some((leaving, better)) = self.placement().better(ids.start(), &base)
            {
                let rest = base.into_iter().filter(|peer| *peer != leaving).collect();
                self.begin_catch_up(ids, rest, vec![better], false);
                *begun += 1;
            }
        }
        let suspected = || self.suspected.keys().copied().collect();
        self.futile_scan = (is_idle && self.set_changes.is_empty()).then(|| FutileScan {
            at_ms: now_ms,
            silent: silent.clone(),
            suspected: suspected(),
        });
    }

    fn ids_with_pending_writes(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.pending_by_id.keys().map(|id| id.bits()).collect();
        ids.sort_unstable();
        ids
    }

    /// Queues a mutation for peers; no reply waits for it.
    fn send_all(&mut self, to: &[Peer], mutation: Mutation, sessions: Vec<SessionState>) {
        self.send(to, false, |version, to| {
            ReplicationEntry { version, mutation, sessions }.encode(to)
        });
    }

    /// Queues an entry for peers, under a version of its own, which is returned.
    fn send(
        &mut self,
        to: &[Peer],
        is_awaited: bool,
        encode: impl FnOnce(u64, &mut Vec<u8>),
    ) -> u64 {
        let version = self.next_version;
        self.next_version += 1;
        let entry = self.buffer_pool.encode(version, encode);
        for peer in to {
            let next = &mut self.next_stream;
            let stream = self.streams.entry(*peer).or_insert_with(|| {
                *next += 1;
                ReplicationStream::new(*next - 1)
            });
            stream.push(entry.clone(), is_awaited);
            self.is_backlogged |= stream.is_filled(1, self.settings.window);
        }
        version
    }

    fn update_backlogged(&mut self) {
        if self.is_backlogged {
            let mut streams = self.streams.values();
            self.is_backlogged = streams.any(|one| one.is_filled(1, self.settings.window));
        }
    }

    /// Forgets the streams of peers in no set, once they are drained or the peer is suspected.
    fn drop_unused_streams(&mut self) {
        // Usually the first sets already name every peer.
        let mut unused: Vec<Peer> = self.streams.keys().copied().collect();
        let sets = self.backup_sets.iter().map(|(_, set)| set);
        for set in sets.chain(self.set_changes.values().map(|change| &change.learners)) {
            if unused.is_empty() {
                return;
            }
            unused.retain(|peer| !set.contains(peer));
        }
        for peer in unused {
            if self.streams[&peer].queued() == 0 || self.suspected.contains_key(&peer) {
                self.streams.remove(&peer);
            }
        }
        self.update_backlogged();
    }

    fn resend_timed_out(&mut self, now_ms: u64) {
        let retry_ms = self.settings.retry_ms;
        for stream in self.streams.values_mut() {
            stream.resend_timed_out(now_ms, retry_ms);
        }
    }

    /// Sends the entries that were not sent yet, in as few messages as possible.
    pub fn flush(&mut self, now_ms: u64, out: &mut Vec<ReplicationCommand>) {
        // One that refused for good would refuse again.
        let accepts = |peer: &Peer| self.suspected.get(peer) != Some(&u64::MAX);
        for (peer, stream) in self.streams.iter_mut().filter(|(peer, _)| accepts(peer)) {
            let message = stream.next_message(now_ms);
            out.extend(message.map(|message| ReplicationCommand::Send(*peer, message)));
        }
    }
}
