//! The backup's side of replication: other nodes' records in a log, along with this node's metadata
//! records.
//!
//! The log is not replayed in the order of writing, since the cleaner appends again what it keeps.
//! So nothing depends on that order: changes of an owner are ordered by their versions, metadata
//! records by their numbers. A record that says that others are gone (a removal,
//! [`Mutation::Clear`], [`Mutation::DiscardFormer`]) is kept until no older record is in the log,
//! and what is gone is never appended again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::entry::EntryRef;
use super::record::{
    LogRecord, LogWriter, RecordEffect, WRITER, encode_entry, entry_of, entry_record,
};
use super::{EntryBatch, Mutation, RecordKey, ReplicationEntry, ReplicationMessage};
use crate::chunks::SessionState;
use crate::codec::Wire;
use crate::ids::{Creator, IdRange};
use crate::log::{
    CleanedPart, Durability, LoadedPart, Log, LogError, LogPosition, LogSettings, RecordLoads,
    Replay, SEGMENT_BEGIN, Storage,
};
use crate::overlay::{MetadataRecord, Peer};

mod fetch;
mod forgetting;
mod futile_cleaning;
mod metadata;
mod owner_change;
mod owner_replica;
mod recovery;
mod scrub;

use fetch::PendingFetch;
use futile_cleaning::FutileCleaning;
use owner_change::{OwnerChange, OwnerChanges, RecordRewrite, holder_of};
use owner_replica::OwnerReplica;
pub use recovery::{ReplicaContents, ReplicaSlice};

/// The most owner incarnations of which records are kept.
const REPLICAS_MAX: usize = 1 << 16;
/// The most replies in one record.
const RECORD_ANSWERS_MAX: usize = 64;

/// No entry is accepted while at least this many bytes wait for a slow disk: the backup is silent,
/// and owners replace it.
const UNWRITTEN_BYTES_MAX: usize = if cfg!(test) { 1 << 16 } else { 16 << 20 };
/// Above this many, metadata is not accepted either, and the node stops.
pub(super) const UNWRITTEN_METADATA_BYTES_MAX: usize = 4 * UNWRITTEN_BYTES_MAX;

/// Boot number of a writer none of whose records count.
const NO_BOOT: u64 = u64::MAX;

/// Bytes of segments that the cleaner examines for each appended byte. Two suffice where half of a
/// segment is live; the rest lets it run ahead.
const CLEAN_FACTOR: u32 = 4;
/// Parts of a segment that are cleaned one by one, and the least bytes of one.
const CLEAN_PARTS: u32 = 32;
const CLEAN_BYTES_MIN: u32 = 256;
/// The most bytes that are cleaned at once, apart from those of a record that is longer.
const CLEAN_BYTES_MAX: u32 = 1 << 20;

/// What a node's former incarnations left in its log.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// The first incarnation whose records are all there; the present one if none are.
    pub since: u32,
    /// Their metadata records.
    pub metadata: Vec<MetadataRecord>,
}

/// A commit of the log that was begun.
#[derive(Debug)]
struct Commit {
    /// The stream of each owner that it answers, and the number of the first entry that it lacks.
    answers: Vec<(Peer, u64, u64)>,
    has_metadata: bool,
}

/// A part of a segment that is loaded to be cleaned.
#[derive(Debug)]
struct Cleaning {
    segment: u32,
    /// Where the part begins, and how long it is.
    from: u32,
    bytes: u32,
    part: LoadedPart,
    /// Whether its items are forgotten rather than kept ([`mod@forgetting`]).
    forgets: bool,
}

/// The append function to use: [`Log::append`] or [`Log::append_reserved`].
type AppendFn = fn(&mut Log<Box<dyn Storage>>, &[u8]) -> Result<LogPosition, LogError>;

/// The backup's side of replication. Not thread-safe: one thread calls it.
#[derive(Debug)]
pub struct ReplicaStore {
    pub(super) log: Log<Box<dyn Storage>>,
    replicas: BTreeMap<Peer, OwnerReplica>,
    /// Positions of records without a chunk or item: clears, owner changes, replies. The value is
    /// the log sequence at which each was first written.
    control_records: BTreeMap<LogPosition, u64>,
    /// Owner changes that are recorded in the log.
    owner_changes: OwnerChanges,
    /// Positions of the metadata records that count, by creator.
    metadata_snapshots: BTreeMap<Creator, Vec<LogPosition>>,
    /// The creator of each of those positions.
    metadata_creators: BTreeMap<LogPosition, Creator>,
    /// Positions of the last record of promises and of the last writer record.
    promises: Option<LogPosition>,
    writer: Option<LogPosition>,
    next_number: u64,
    /// Owners that the next commit has to answer.
    unacknowledged: BTreeSet<Peer>,
    has_uncommitted_metadata: bool,
    /// The commit that the log has not carried out yet. There is one at a time, so that everything
    /// that arrives meanwhile shares the next.
    commit: Option<Commit>,
    /// Numbers of commits that were begun and that were carried out, and the last begun one with
    /// metadata.
    begun: u64,
    completed: u64,
    begun_with_metadata: u64,
    failure: Option<LogError>,
    /// Why metadata is not recorded any more.
    metadata_failure: Option<LogError>,
    replay: Replay,
    /// The record that was scrubbed last, and those that are being read to be scrubbed.
    scrubbed: Option<(Peer, RecordKey)>,
    scrubbing: Option<RecordLoads<(Peer, RecordKey)>>,
    /// What other holders asked for and is being read.
    fetches: Vec<PendingFetch>,
    /// The part of a segment that is being cleaned next.
    cleaning: Option<Cleaning>,
    /// Bytes that the cleaner still has to examine, and how many it examines at once.
    cleaning_debt_bytes: u32,
    clean_bytes: u32,
    futile_cleaning: FutileCleaning,
    /// Whether a full log forgets items, and how many it has forgotten.
    forgets: bool,
    forgotten: u64,
    /// Buffer for the record that is being encoded.
    record: Vec<u8>,
}

impl ReplicaStore {
    /// Opens and checks the log, and counts none of its contents: this is a new incarnation
    /// (invariant 4 of replication).
    ///
    /// # Errors
    ///
    /// As [`Log::open`].
    pub fn open(
        storage: Box<dyn Storage>,
        cluster: u64,
        settings: LogSettings,
    ) -> Result<Self, LogError> {
        let mut positions = Vec::new();
        let mut each = |position, _: &[u8]| positions.push(position);
        let (log, replay) = Log::open(storage, cluster, settings, &mut each)?;
        let mut replica_store = Self::around(log, replay, settings.segment_bytes);
        positions.into_iter().for_each(|position| replica_store.log.release(position));
        Ok(replica_store)
    }

    fn around(log: Log<Box<dyn Storage>>, replay: Replay, segment_bytes: u32) -> Self {
        Self {
            log,
            replicas: BTreeMap::new(),
            control_records: BTreeMap::new(),
            owner_changes: OwnerChanges::default(),
            metadata_snapshots: BTreeMap::new(),
            metadata_creators: BTreeMap::new(),
            promises: None,
            writer: None,
            next_number: 1,
            unacknowledged: BTreeSet::new(),
            has_uncommitted_metadata: false,
            commit: None,
            begun: 0,
            completed: 0,
            begun_with_metadata: 0,
            failure: None,
            metadata_failure: None,
            replay,
            scrubbed: None,
            scrubbing: None,
            fetches: Vec::new(),
            cleaning: None,
            cleaning_debt_bytes: 0,
            clean_bytes: (segment_bytes / CLEAN_PARTS).max(CLEAN_BYTES_MIN),
            futile_cleaning: FutileCleaning::default(),
            forgets: false,
            forgotten: 0,
            record: Vec::new(),
        }
    }

    /// Opens the log of a node whose incarnation `me` begins. The contents count only if the log is
    /// certainly complete: nothing is damaged and, unless it was synced, the machine has not
    /// rebooted since (`boot`).
    ///
    /// # Errors
    ///
    /// As [`Log::open`]; [`LogError::Node`] if another node of the cluster wrote it.
    pub fn resume(
        storage: Box<dyn Storage>,
        (cluster, me, boot): (u64, Peer, u64),
        settings: LogSettings,
    ) -> Result<(Self, RecoveredState), LogError> {
        let (mut records, mut unknown) = (Vec::new(), 0_usize);
        let mut each = |position, bytes: &[u8]| match LogRecord::parse(bytes) {
            Ok(record) => records.push((position, record)),
            Err(_) => unknown += 1,
        };
        let (mut log, replay) = Log::open(storage, cluster, settings, &mut each)?;
        log.begin_incarnation(me.incarnation);
        let mut replica_store = Self::around(log, replay, settings.segment_bytes);
        let lives = records.iter().filter_map(|(_, record)| match record {
            LogRecord::LogWriter(number, life) => Some((*number, *life)),
            _ => None,
        });
        let last = lives.max_by_key(|(number, _)| *number).map(|(_, life)| life);
        if let Some(other) = last.filter(|life| life.peer.node != me.node) {
            return Err(LogError::Node(other.peer.node.get()));
        }
        let is_whole = |life: &LogWriter| {
            let is_there = life.is_synced || life.boot == boot && boot != NO_BOOT;
            let is_read = replica_store.replay.damages.is_empty()
                && replica_store.replay.is_current
                && unknown == 0;
            is_there && is_read && life.peer.incarnation < me.incarnation
        };
        let whole = last.filter(is_whole);
        let metadata = match whole {
            Some(_) => replica_store.replay_records(records),
            None => {
                replica_store.discard_log(me, &records)?;
                Vec::new()
            }
        };
        let since = whole.map_or(me.incarnation, |life| life.since);
        let is_synced =
            settings.durability == Durability::Synced && whole.is_none_or(|life| life.is_synced);
        replica_store.append_writer(LogWriter { peer: me, since, boot, is_synced })?;
        Ok((replica_store, RecoveredState { since, metadata }))
    }

    /// Frees everything that does not count, so that it can never be taken for valid later. Until
    /// all of it is freed, the last writer record is one that never counts.
    fn discard_log(
        &mut self,
        me: Peer,
        records: &[(LogPosition, LogRecord)],
    ) -> Result<(), LogError> {
        let numbers = records.iter().filter_map(|(_, record)| match record {
            LogRecord::MetadataRecord(number, _) | LogRecord::LogWriter(number, _) => Some(*number),
            LogRecord::ReplicationEntry(..) => None,
        });
        self.next_number = numbers.max().unwrap_or(0) + 1;
        self.append_writer(LogWriter {
            peer: me,
            since: me.incarnation,
            boot: NO_BOOT,
            is_synced: false,
        })?;
        self.log.retire_all()
    }

    /// Appends the record of the present writer.
    fn append_writer(&mut self, life: LogWriter) -> Result<(), LogError> {
        let mut record = vec![WRITER];
        self.take_number().encode(&mut record);
        life.encode(&mut record);
        let position = self.log.append_reserved(&record)?;
        if let Some(last) = self.writer.replace(position) {
            self.log.release(last);
        }
        self.log.commit()
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Rebuilds the state from the records. Returns the metadata records that count.
    fn replay_records(&mut self, records: Vec<(LogPosition, LogRecord)>) -> Vec<MetadataRecord> {
        let (mut entries, mut metadata, mut lives) = (Vec::new(), Vec::new(), Vec::new());
        for (position, record) in records {
            let born = self.log.sequence(position);
            match record {
                LogRecord::ReplicationEntry(owner, version, change, sessions) => {
                    // Records of the same version were rewritten after the mutation of all ids.
                    let is_copy = matches!(change, RecordEffect::Write(..));
                    entries.push(((owner, version, is_copy, born, position), change, sessions));
                }
                LogRecord::MetadataRecord(number, note) => metadata.push((number, position, note)),
                LogRecord::LogWriter(number, _) => lives.push((number, position)),
            }
        }
        entries.sort_by_key(|(key, ..)| *key);
        let mut discarded = Vec::new();
        for ((owner, version, _, born, position), change, sessions) in entries {
            let replica = self.replica(owner);
            (replica.is_resumed, replica.last) = (true, replica.last.max(version));
            match change {
                RecordEffect::Write(key, is_removed) => {
                    let removed = is_removed.then_some(born);
                    if let Some(old) =
                        self.replica(owner).records.insert((key, version), position, removed)
                    {
                        self.log.release(old.position);
                    }
                }
                RecordEffect::Clear(ids) => self.drop_records(owner, ids),
                RecordEffect::DiscardFormer(source, ids) => discarded.push((owner, source, ids)),
                RecordEffect::ChangeOwner(source, ids) => {
                    self.adopt(position, OwnerChange { source, owner, ids, version });
                }
                RecordEffect::Nothing => {}
            }
            if !matches!(change, RecordEffect::Write(..)) {
                self.control_records.insert(position, born);
            }
            let replica = self.replica(owner);
            for session in sessions {
                let head = (session.client, session.lease_ms, session.answered_below);
                replica.note(head, session.answers.into_iter());
            }
        }
        // The discarded incarnations had ended before: whatever arrived under their names was
        // older. A new owner sends `DiscardFormer` when it is committed; an incarnation discards
        // its own records only in `forget`.
        let committed = discarded.iter().filter(|(owner, source, _)| owner != source);
        committed.for_each(|(owner, source, ids)| {
            self.complete_owner_change_from(*owner, Some(*source), *ids)
        });
        discarded.into_iter().for_each(|(_, source, ids)| self.drop_records(source, ids));
        let sessions = self.replicas.values_mut().flat_map(|replica| replica.sessions.values_mut());
        for session in sessions {
            // The cleaner may have written some twice.
            session.answers.sort_by_key(|(number, ..)| *number);
            session.answers.dedup_by_key(|(number, ..)| *number);
        }
        lives.sort_unstable();
        self.writer = lives.pop().map(|(number, position)| {
            self.next_number = self.next_number.max(number + 1);
            position
        });
        lives.into_iter().for_each(|(_, position)| self.log.release(position));
        self.replay_metadata(metadata)
    }

    /// What the log held when it was opened.
    pub fn replay_report(&self) -> &Replay {
        &self.replay
    }

    /// Why nothing is stored any more; none if the log works.
    pub fn failure(&self) -> Option<LogError> {
        self.failure
    }

    /// Why metadata is not recorded any more, and so must not be confirmed to others; none if the
    /// log works.
    pub fn metadata_failure(&self) -> Option<LogError> {
        self.metadata_failure
    }

    /// Number of records, and of owner incarnations that they are kept of.
    pub fn counts(&self) -> (usize, usize) {
        (self.replicas.values().map(|replica| replica.records.len()).sum(), self.replicas.len())
    }

    /// Owner incarnations of which something is kept.
    pub fn owners(&self) -> impl Iterator<Item = Peer> {
        let has_some =
            |replica: &OwnerReplica| !replica.records.is_empty() || !replica.adopted.is_empty();
        self.replicas.iter().filter(move |(_, replica)| has_some(replica)).map(|(peer, _)| *peer)
    }

    /// The creators of the ids that are kept of an owner.
    pub fn creators(&self, owner: Peer) -> Vec<Creator> {
        let mut creators = Vec::new();
        let Some(replica) = self.replicas.get(&owner) else { return creators };
        let mut next = replica.records.range(..).next();
        while let Some(key) = next {
            let creator = key.id.creator();
            creators.push(creator);
            let after = (Bound::Excluded(*RecordKey::all(creator.ids()).end()), Bound::Unbounded);
            next = replica.records.range(after).next();
        }
        let adopted = replica.adopted.iter().flat_map(|(span, _)| IdRange::cut(span));
        creators.extend(adopted.map(|ids| ids.first().creator()));
        creators.sort_unstable();
        creators.dedup();
        creators
    }

    /// Whether the storage has carried out everything, as what opened the log did.
    ///
    /// # Errors
    ///
    /// As [`Log::is_written`].
    pub fn is_written(&mut self) -> Result<bool, LogError> {
        self.log.is_written()
    }

    /// The storage, without the log.
    pub fn into_storage(self) -> Box<dyn Storage> {
        self.log.into_storage()
    }

    /// Stores an owner's entries. [`Self::flush`] answers them.
    pub fn on_append(
        &mut self,
        from: Peer,
        stream: u64,
        first: u64,
        entries: impl Into<EntryBatch>,
    ) {
        if self.replicas.len() >= REPLICAS_MAX && !self.replicas.contains_key(&from) {
            self.failure = self.failure.or(Some(LogError::Full));
        }
        let replica = self.replicas.entry(from).or_default();
        if stream < replica.stream {
            return;
        }
        if stream > replica.stream {
            (replica.stream, replica.next) = (stream, 1);
        }
        self.unacknowledged.insert(from);
        let is_behind = self.log.unwritten_bytes() >= UNWRITTEN_BYTES_MAX;
        if replica.is_sealed || self.failure.is_some() || first > replica.next || is_behind {
            return;
        }
        let (known, entries) = (replica.next - first, entries.into());
        for entry in entries.iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
            // Otherwise its owner sends it again.
            if !self.has_room() || self.failure.is_some() {
                return;
            }
            if let Err(error) = self.apply_entry(from, &entry) {
                self.failure = Some(error);
                return;
            }
        }
    }

    fn replica(&mut self, owner: Peer) -> &mut OwnerReplica {
        self.replicas.entry(owner).or_default()
    }

    /// Stores the next entry. Decodes only what has to be indexed.
    fn apply_entry(&mut self, owner: Peer, entry: &EntryRef<'_>) -> Result<(), LogError> {
        self.charge_cleaner(entry.bytes.len());
        let Some((key, is_removed)) = entry.mutation.copy() else {
            self.apply_control_entry(owner, entry)?;
            self.replica(owner).take(entry);
            return self.clean();
        };
        let position = self.append(owner, entry)?;
        let removed = is_removed.then(|| self.log.sequence(position));
        let replica = self.replicas.entry(owner).or_default();
        if let Some(old) = replica.records.insert((key, entry.version), position, removed) {
            self.log.release(old.position);
        }
        replica.take(entry);
        if !key.id.creator().is_named() {
            replica.remember(entry.version, key);
        }
        self.clean()
    }

    /// Stores an entry whose mutation is not about one chunk or item.
    fn apply_control_entry(&mut self, owner: Peer, entry: &EntryRef<'_>) -> Result<(), LogError> {
        if entry.mutation == Mutation::RepliesOnly {
            return self.append_replies(owner, (entry.version, &entry.sessions()), Log::append);
        }
        let position = self.append(owner, entry)?;
        self.control_records.insert(position, self.log.sequence(position));
        match entry.mutation {
            Mutation::Clear(ids) => self.clear_ids(owner, ids, entry.version),
            Mutation::DiscardFormer(source, ids) if source != owner => {
                self.complete_owner_change_from(owner, Some(source), ids);
                self.drop_records(source, ids);
            }
            Mutation::DiscardFormer(source, ids) if self.is_sealed(source) => {
                self.drop_records(source, ids)
            }
            Mutation::ChangeOwner(source, ids) => {
                let version = entry.version;
                self.adopt(position, OwnerChange { source, owner, ids, version });
            }
            _ => {}
        }
        Ok(())
    }

    fn append(&mut self, owner: Peer, entry: &EntryRef<'_>) -> Result<LogPosition, LogError> {
        self.record.clear();
        encode_entry(owner, entry.bytes, &mut self.record);
        self.log.append(&self.record)
    }

    /// Appends replies, in records of bounded length.
    fn append_replies(
        &mut self,
        owner: Peer,
        (version, sessions): (u64, &[SessionState]),
        append: AppendFn,
    ) -> Result<(), LogError> {
        for session in sessions {
            for answers in session.answers.chunks(RECORD_ANSWERS_MAX) {
                let part = SessionState { answers: answers.to_vec(), ..session.clone() };
                let (mutation, sessions) = (Mutation::RepliesOnly, vec![part]);
                let record = entry_record(owner, &ReplicationEntry { version, mutation, sessions });
                let position = append(&mut self.log, &record)?;
                self.control_records.insert(position, self.log.sequence(position));
            }
        }
        Ok(())
    }

    fn drop_records(&mut self, owner: Peer, ids: IdRange) {
        let Some(replica) = self.replicas.get_mut(&owner) else { return };
        for position in replica.drop_records(ids).positions() {
            self.log.release(position);
        }
    }

    /// Discards what is kept of a creator under an ended incarnation: nobody needs it.
    ///
    /// # Errors
    ///
    /// [`LogError`] if the log does not accept the record of that.
    pub fn forget(&mut self, owner: Peer, creator: Creator) -> Result<(), LogError> {
        let all = creator.ids();
        let is_kept = self.replicas.contains_key(&owner) && !self.has_pending_owner(owner, all);
        if is_kept && self.failure.is_none() {
            // Recorded as if the next owner had sent it; otherwise the next incarnation would
            // replay it.
            let mutation = Mutation::DiscardFormer(owner, all);
            let entry = ReplicationEntry { version: 0, mutation, sessions: Vec::new() };
            let position = self.log.append_reserved(&entry_record(owner, &entry))?;
            self.control_records.insert(position, self.log.sequence(position));
            self.drop_records(owner, all);
        }
        Ok(())
    }

    /// Charges appended bytes to the cleaner.
    fn charge_cleaner(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_mul(CLEAN_FACTOR);
        self.cleaning_debt_bytes = self.cleaning_debt_bytes.saturating_add(bytes);
    }

    /// Whether something is accepted now. In the last segment only the cleaner may append while the
    /// medium has not delivered what frees others.
    pub fn has_room(&mut self) -> bool {
        if self.log.is_at_end()
            && let Err(error) = self.clean()
        {
            self.failure = self.failure.or(Some(error));
        }
        !self.log.is_at_end() || self.cleaning.as_ref().is_none_or(|one| one.part.is_loaded())
    }

    /// Runs the cleaner, which frees segments with few live bytes. A removal is dropped when
    /// everything older is.
    ///
    /// A segment is loaded and cleaned in parts, several times what was appended meanwhile, so that
    /// no change waits for a whole segment, and none for the medium. When segments run short, every
    /// segment worth it is cleaned, as long as that frees some.
    fn clean(&mut self) -> Result<(), LogError> {
        while self.cleaning_debt_bytes >= self.clean_bytes || self.is_cleaning_urgent() {
            let cleaning = match self.cleaning.take() {
                Some(cleaning) => cleaning,
                None => {
                    let Some((victim, forgets)) = self.next_to_clean() else { break };
                    let begin = (SEGMENT_BEGIN, self.clean_bytes);
                    let Some(cleaning) = self.begin_part(victim, begin, forgets) else { break };
                    cleaning
                }
            };
            if !cleaning.part.is_loaded() {
                self.cleaning = Some(cleaning);
                return Ok(());
            }
            let Cleaning { segment, from, bytes, part, forgets } = cleaning;
            let next = self.clean_part(segment, &part, forgets)?;
            self.cleaning_debt_bytes = self.cleaning_debt_bytes.saturating_sub(bytes);
            match next {
                Some(next) => {
                    let more =
                        if next == from { bytes.saturating_mul(2) } else { self.clean_bytes };
                    self.cleaning = self.begin_part(segment, (next, more), forgets);
                }
                None => {
                    self.log.retire(segment)?;
                    self.count_cleaning();
                    // Until then records in it may have needed them.
                    self.owner_changes.drop_segment(segment);
                }
            }
        }
        // What could not be cleaned is not owed later.
        self.cleaning_debt_bytes = self.cleaning_debt_bytes.min(self.clean_bytes);
        Ok(())
    }

    fn begin_part(
        &mut self,
        segment: u32,
        (from, bytes): (u32, u32),
        forgets: bool,
    ) -> Option<Cleaning> {
        // Acknowledgements wait for one such read at most, unless a record is longer.
        let owed = if self.log.is_short() { u32::MAX } else { self.cleaning_debt_bytes };
        let bytes = bytes.max(owed.min(CLEAN_BYTES_MAX));
        let part = self.log.load_to_clean(segment, (from, bytes))?;
        Some(Cleaning { segment, from, bytes, part, forgets })
    }

    /// Cleans one part of a segment; returns where the next part begins, if there is one.
    fn clean_part(
        &mut self,
        victim: u32,
        part: &LoadedPart,
        forgets: bool,
    ) -> Result<Option<u32>, LogError> {
        let oldest = self.log.oldest(victim);
        let (replicas, control_records, owner_changes) =
            (&mut self.replicas, &mut self.control_records, &self.owner_changes);
        let (metadata_creators, others) = (&self.metadata_creators, [self.promises, self.writer]);
        let is_noted = |position: LogPosition| {
            others.contains(&Some(position)) || metadata_creators.contains_key(&position)
        };
        let (mut owners, mut rescued, mut renamed) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut forgotten = Vec::new();
        let mut is_live = |position: LogPosition, record: &[u8]| {
            let Some((owner, entry)) = entry_of(record) else { return is_noted(position) };
            let is_live = match entry.mutation.copy() {
                Some((key, is_removed)) => {
                    let holder = holder_of(replicas, owner_changes, owner, (key, position));
                    let kept = holder.and_then(|holder| {
                        let replica = replicas.get_mut(&holder)?;
                        replica.keeps((key, position), oldest).then_some((holder, replica.last))
                    });
                    let is_forgotten = forgets && !is_removed && key.id.creator().is_named();
                    match kept {
                        Some((holder, _)) if is_forgotten => {
                            forgotten.push((holder, key));
                            false
                        }
                        Some((holder, last)) if holder != owner => {
                            renamed.push(RecordRewrite::new(holder, last, key, position, &entry));
                            false
                        }
                        Some(_) => {
                            owners.insert(position, (owner, key));
                            true
                        }
                        None => false,
                    }
                }
                // Replies are rescued below if a client may still ask for them.
                None => {
                    let is_pending = owner_changes.get(position).is_some_and(|one| {
                        let all = one.ids.start()..one.ids.end();
                        let replica = replicas.get(&one.owner);
                        replica.is_some_and(|replica| replica.adopted.over(all).next().is_some())
                    });
                    let is_young =
                        control_records.get(&position).is_some_and(|born| *born >= oldest);
                    let is_needed = is_pending
                        || is_young && entry.mutation != Mutation::RepliesOnly
                        || owner_changes.is_revoked_by((owner, entry.version), &entry.mutation);
                    if !is_needed {
                        control_records.remove(&position);
                    }
                    is_needed
                }
            };
            if !is_live && let Some(replica) = replicas.get(&owner) {
                rescued.extend(replica.needed(&entry).map(|sessions| {
                    (
                        owner,
                        ReplicationEntry {
                            version: entry.version,
                            mutation: Mutation::RepliesOnly,
                            sessions,
                        },
                    )
                }));
            }
            is_live
        };
        let CleanedPart { moved, next } = self.log.clean_part(part, &mut is_live)?;
        for (from, to) in moved {
            if let Some((owner, key)) = owners.get(&from).copied() {
                self.replica(owner).records.set_position(&key, to);
            } else if let Some(born) = self.control_records.remove(&from) {
                self.control_records.insert(to, born);
                self.owner_changes.set_position(from, to);
            } else {
                self.move_metadata_record(from, to);
            }
        }
        self.rename(renamed)?;
        self.forget_items(forgotten)?;
        // Replies that clients may ask for again stay, though the change that they answered may
        // not.
        for (owner, entry) in rescued {
            self.append_replies(owner, (entry.version, &entry.sessions), Log::append_reserved)?;
        }
        Ok(next)
    }

    /// Commits everything appended, in one step, and answers the owners whose entries are
    /// committed, and the holders whose records are loaded. While a commit is under way no other
    /// begins: call this again when the storage is idle, and when it has loaded something.
    pub fn flush(&mut self, out: &mut Vec<(Peer, ReplicationMessage)>) {
        if self.failure.is_none() && self.cleaning.as_ref().is_some_and(|one| one.part.is_loaded())
        {
            self.failure = self.clean().err();
        }
        self.answer_fetches(out);
        self.complete_commit(out);
        let has_metadata = self.has_uncommitted_metadata;
        if self.commit.is_some() || self.unacknowledged.is_empty() && !has_metadata {
            return;
        }
        self.has_uncommitted_metadata = false;
        self.begun += 1;
        if has_metadata {
            self.begun_with_metadata = self.begun;
        }
        let owners = std::mem::take(&mut self.unacknowledged).into_iter();
        let answers = owners.map(|owner| {
            let OwnerReplica { stream, next, .. } = *self.replica(owner);
            (owner, stream, next)
        });
        self.commit = Some(Commit { answers: answers.collect(), has_metadata });
        // Its error comes again when the commit completes.
        let _ = self.log.commit();
        self.complete_commit(out);
    }

    /// Answers the owners if the commit that was begun is carried out.
    fn complete_commit(&mut self, out: &mut Vec<(Peer, ReplicationMessage)>) {
        if self.commit.is_none() {
            return;
        }
        let failed = match self.log.is_written() {
            Ok(false) => return,
            Ok(true) => None,
            Err(error) => Some(error),
        };
        let Some(Commit { answers, has_metadata }) = self.commit.take() else { return };
        self.completed = self.begun;
        self.failure = self.failure.or(failed);
        if has_metadata {
            self.metadata_failure = self.metadata_failure.or(failed);
        }
        for (owner, stream, next) in answers {
            let is_sealed = self.is_sealed(owner);
            out.push((
                owner,
                match is_sealed || self.failure.is_some() {
                    true => ReplicationMessage::Refused { stream, is_sealed },
                    false => ReplicationMessage::Appended { stream, next },
                },
            ));
        }
    }

    /// The number of the commit with which the metadata recorded so far is durable.
    pub fn metadata_commit(&self) -> u64 {
        if self.has_uncommitted_metadata { self.begun + 1 } else { self.begun_with_metadata }
    }

    /// Numbers of the last commits that were begun and that were carried out.
    pub fn commits(&self) -> (u64, u64) {
        (self.begun, self.completed)
    }

    /// Seals an owner incarnation: accepts nothing more of it (invariant 3 of replication).
    pub fn seal(&mut self, owner: Peer) {
        self.replica(owner).is_sealed = true;
    }

    fn is_sealed(&self, owner: Peer) -> bool {
        self.replicas.get(&owner).is_some_and(|replica| replica.is_sealed)
    }
}
