//! A backup: other nodes' chunks in a log, and what this node noted down of the metadata.
//!
//! The log is not read in the order in which it was written, since the cleaner appends again what
//! it keeps. So nothing depends on that order: changes of an owner are told by their versions,
//! notes by their numbers. What says that others are gone (a removal, a change of kind
//! [`Mutation::Clear`] or [`Mutation::DiscardFormer`]) is kept until nothing that is older is in the log; and what
//! is gone is never appended again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::entry::EntryRef;
use super::record::{
    LogRecord, LogWriter, METADATA, RecordEffect, WRITER, creator_of, encode_entry, entry_of,
    entry_record, value_of,
};
use super::{EntryBatch, Mutation, RecordKey, ReplicationEntry, ReplicationMessage};
use crate::chunks::{ClientState, SessionState};
use crate::ids::{Creator, IdRange};
use crate::log::{
    Durability, Log, LogError, LogPosition, LogSettings, Replay, SEGMENT_BEGIN, Storage,
};
use crate::overlay::{MetadataRecord, Peer, Snapshot};
use crate::wire::Wire;

mod fetch;
mod owner_change;
mod owner_replica;
mod scrub;

use owner_change::{OwnerChange, OwnerChanges, RecordRewrite, holder_of};
use owner_replica::OwnerReplica;

/// Owners' lives that are kept at most.
const REPLICAS_MAX: usize = 1 << 16;
/// Answers in one record.
const RECORD_ANSWERS_MAX: usize = 64;
/// Notes about one creator before all that is held of it is written anew.
const METADATA_RECORDS_MAX: usize = if cfg!(test) { 8 } else { 256 };

/// Of a life of which nothing counts.
const NO_BOOT: u64 = u64::MAX;

/// So many bytes of segments are looked at by the cleaner for each that is appended. Two are enough
/// where half of a segment is live; the rest is for it to be ahead.
const CLEAN_FACTOR: u32 = 4;
/// A part of a segment that is cleaned together is one of so many at most, and has so many bytes at
/// least.
const CLEAN_PARTS_MAX: u32 = 512;
const CLEAN_BYTES_MIN: u32 = 256;

/// What former lives of a node left in its log.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// The first life whose records are all there; that of the node now if none are.
    pub since: u32,
    /// What they noted down of the metadata.
    pub metadata: Vec<MetadataRecord>,
}

/// What was kept of an owner.
#[derive(Debug, Default)]
pub struct ReplicaContents {
    /// Chunks and items that it had.
    pub records: u64,
    /// What clients were answered.
    pub export: ClientState,
    /// Chunks and items that cannot be read any more.
    pub damaged: Vec<RecordKey>,
}

/// How a record gets into the log.
type AppendFn = fn(&mut Log<Box<dyn Storage>>, &[u8]) -> Result<LogPosition, LogError>;

/// The backup's side. Not shared: one thread calls it.
#[derive(Debug)]
pub struct ReplicaStore {
    pub(super) log: Log<Box<dyn Storage>>,
    replicas: BTreeMap<Peer, OwnerReplica>,
    /// Records that only say that others are gone, or what clients were answered; since when.
    control_records: BTreeMap<LogPosition, u64>,
    /// Those that say that copies have another owner.
    owner_changes: OwnerChanges,
    /// The notes that count, by creator.
    metadata_snapshots: BTreeMap<Creator, Vec<LogPosition>>,
    /// Of which creator each of them is.
    metadata_creators: BTreeMap<LogPosition, Creator>,
    /// The last note of promises, and of the life that writes.
    promises: Option<LogPosition>,
    writer: Option<LogPosition>,
    next_number: u64,
    /// Owners that wait for [`Self::flush`].
    unacknowledged: BTreeSet<Peer>,
    has_uncommitted_metadata: bool,
    failure: Option<LogError>,
    /// Why notes are not kept any more.
    metadata_failure: Option<LogError>,
    replay: Replay,
    /// What was read again last.
    scrubbed: Option<(Peer, RecordKey)>,
    /// The segment that is being cleaned, and from where on.
    cleaning: Option<(u32, u32)>,
    /// How much is to be cleaned of it, and how much at least together.
    cleaning_debt_bytes: u32,
    clean_bytes_min: u32,
    /// The record that is being made.
    record: Vec<u8>,
}

impl ReplicaStore {
    /// Opens the log and checks what is in it. None of it counts: this is a new life (invariant 4).
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
            failure: None,
            metadata_failure: None,
            replay,
            scrubbed: None,
            cleaning: None,
            cleaning_debt_bytes: 0,
            clean_bytes_min: (segment_bytes / CLEAN_PARTS_MAX).max(CLEAN_BYTES_MIN),
            record: Vec::new(),
        }
    }

    /// Opens the log of a node that begins the life `me`. What former lives left counts if all of
    /// it is there for certain: nothing is damaged, and where it was not synced the machine has
    /// been running since (`boot`).
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

    /// Frees all that does not count, so that it never comes to count beside what does. Until
    /// nothing of it is left, a life that never counts stands last.
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

    /// Says who writes from now on.
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

    /// Makes of records what there was when they were written. Returns the notes that count.
    fn replay_records(&mut self, records: Vec<(LogPosition, LogRecord)>) -> Vec<MetadataRecord> {
        let (mut entries, mut metadata, mut lives) = (Vec::new(), Vec::new(), Vec::new());
        for (position, record) in records {
            let born = self.log.sequence(position);
            match record {
                LogRecord::ReplicationEntry(owner, version, change, sessions) => {
                    // Copies of the same version were renamed after what it says of all.
                    let is_copy = matches!(change, RecordEffect::Write(..));
                    entries.push(((owner, version, is_copy, born, position), change, sessions));
                }
                LogRecord::MetadataRecord(number, note) => metadata.push((number, position, note)),
                LogRecord::LogWriter(number, _) => lives.push((number, position)),
            }
        }
        entries.sort_by_key(|(name, ..)| *name);
        let mut discarded = Vec::new();
        for ((owner, version, _, born, position), change, sessions) in entries {
            let replica = self.replica(owner);
            (replica.is_resumed, replica.last) = (true, replica.last.max(version));
            match change {
                RecordEffect::Write(name, is_removed) => {
                    let removed = is_removed.then_some(born);
                    if let Some(old) =
                        self.replica(owner).records.insert((name, version), position, removed)
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
        // Of lives that were over before: whatever came in their names was older.
        // An heir says so when it is committed; of itself nobody says it but who forgets it.
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

    fn replay_metadata(
        &mut self,
        mut metadata: Vec<(u64, LogPosition, MetadataRecord)>,
    ) -> Vec<MetadataRecord> {
        metadata.sort_by_key(|(number, position, _)| (*number, *position));
        let log = &mut self.log;
        metadata.dedup_by(|(number, position, _), (earlier, other, _)| {
            // The cleaner had appended it again, and was not done with the segment.
            let is_same = number == earlier;
            if is_same {
                log.release(std::mem::replace(other, *position));
            }
            is_same
        });
        self.next_number = self.next_number.max(metadata.last().map_or(0, |last| last.0) + 1);
        let is_base = |note: &MetadataRecord| {
            matches!(note, MetadataRecord::Snapshot(_) | MetadataRecord::Removed(_))
        };
        let mut bases: BTreeMap<Creator, u64> = BTreeMap::new();
        let mut last_promises = 0;
        for (number, _, note) in &metadata {
            match creator_of(note) {
                Some(creator) if is_base(note) => drop(bases.insert(creator, *number)),
                Some(_) => {}
                None => last_promises = *number,
            }
        }
        let mut counting = Vec::new();
        for (number, position, note) in metadata {
            let from = match creator_of(&note) {
                Some(creator) => bases.get(&creator).copied().unwrap_or(0),
                None => last_promises,
            };
            if number < from {
                self.log.release(position);
                continue;
            }
            match creator_of(&note) {
                Some(creator) => {
                    self.metadata_snapshots.entry(creator).or_default().push(position);
                    self.metadata_creators.insert(position, creator);
                }
                None => self.promises = Some(position),
            }
            counting.push(note);
        }
        counting
    }

    /// What the log held when it was opened.
    pub fn replay_report(&self) -> &Replay {
        &self.replay
    }

    /// Why nothing is kept any more, if so.
    pub fn failure(&self) -> Option<LogError> {
        self.failure
    }

    /// Why the metadata is not noted down any more, if so: nothing may be said of it then.
    pub fn metadata_failure(&self) -> Option<LogError> {
        self.metadata_failure
    }

    /// Chunks and items that are kept, and in the name of how many lives.
    pub fn counts(&self) -> (usize, usize) {
        (self.replicas.values().map(|replica| replica.records.len()).sum(), self.replicas.len())
    }

    /// Owners' lives of which something is kept.
    pub fn owners(&self) -> impl Iterator<Item = Peer> {
        let has_some =
            |replica: &OwnerReplica| !replica.records.is_empty() || !replica.adopted.is_empty();
        self.replicas.iter().filter(move |(_, replica)| has_some(replica)).map(|(peer, _)| *peer)
    }

    /// The creators of what is kept in the name of a life.
    pub fn creators(&self, owner: Peer) -> Vec<Creator> {
        let mut creators = Vec::new();
        let Some(replica) = self.replicas.get(&owner) else { return creators };
        let mut next = replica.records.range(..).next();
        while let Some(name) = next {
            let creator = name.id.creator();
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

    /// The medium.
    pub fn into_storage(self) -> Box<dyn Storage> {
        self.log.into_storage()
    }

    /// An owner's changes. They are answered by [`Self::flush`].
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
        if replica.is_sealed || self.failure.is_some() || first > replica.next {
            return;
        }
        let (known, entries) = (replica.next - first, entries.into());
        for entry in entries.iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
            if let Err(error) = self.apply_entry(from, &entry) {
                self.failure = Some(error);
                return;
            }
        }
    }

    fn replica(&mut self, owner: Peer) -> &mut OwnerReplica {
        self.replicas.entry(owner).or_default()
    }

    /// Keeps the entry that comes next. Nothing is taken out of it but what is to be looked up.
    fn apply_entry(&mut self, owner: Peer, entry: &EntryRef<'_>) -> Result<(), LogError> {
        self.charge_cleaner(entry.bytes.len());
        let Some((name, is_removed)) = entry.mutation.copy() else {
            self.apply_control_entry(owner, entry)?;
            self.replica(owner).take(entry);
            return self.clean();
        };
        let position = self.append(owner, entry)?;
        let removed = is_removed.then(|| self.log.sequence(position));
        let replica = self.replicas.entry(owner).or_default();
        if let Some(old) = replica.records.insert((name, entry.version), position, removed) {
            self.log.release(old.position);
        }
        replica.take(entry);
        if !name.id.creator().is_named() {
            replica.remember(entry.version, name.id);
        }
        self.clean()
    }

    /// The same of what is no copy.
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

    /// Appends answers, in records of a bounded length.
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

    /// Nobody needs what is kept of a creator in the name of a life that is over.
    ///
    /// # Errors
    ///
    /// If the log does not take that.
    pub fn forget(&mut self, owner: Peer, creator: Creator) -> Result<(), LogError> {
        let all = creator.ids();
        let is_kept = self.replicas.contains_key(&owner) && !self.is_to_be_adopted(owner, all);
        if is_kept && self.failure.is_none() {
            // As if the next owner had said so, or the next life would have it again.
            let mutation = Mutation::DiscardFormer(owner, all);
            let entry = ReplicationEntry { version: 0, mutation, sessions: Vec::new() };
            let position = self.log.append_reserved(&entry_record(owner, &entry))?;
            self.control_records.insert(position, self.log.sequence(position));
            self.drop_records(owner, all);
        }
        Ok(())
    }

    /// The cleaner has to do more.
    fn charge_cleaner(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_mul(CLEAN_FACTOR);
        self.cleaning_debt_bytes = self.cleaning_debt_bytes.saturating_add(bytes);
    }

    /// Makes room where little of a segment is live. A removal goes when all that is older did.
    ///
    /// A segment is cleaned in parts, several times what was appended meanwhile: so no change waits
    /// for a whole segment. When segments run short all is cleaned that is worth it.
    fn clean(&mut self) -> Result<(), LogError> {
        if self.log.is_short() {
            self.cleaning_debt_bytes = u32::MAX;
        }
        while self.cleaning_debt_bytes >= self.clean_bytes_min {
            let (victim, from) = match self.cleaning {
                Some(cleaning) => cleaning,
                None => match self.log.victim() {
                    Some(victim) => (victim, SEGMENT_BEGIN),
                    None => break,
                },
            };
            let next = self.clean_part(victim, (from, self.cleaning_debt_bytes))?;
            self.cleaning = next.map(|next| (victim, next));
            if next.is_none() {
                self.log.retire(victim)?;
                // Until then copies in it may have needed them.
                self.owner_changes.drop_segment(victim);
            }
            if !self.log.is_short() {
                break;
            }
        }
        if self.cleaning_debt_bytes >= self.clean_bytes_min {
            self.cleaning_debt_bytes = 0;
        }
        Ok(())
    }

    /// Cleans a part of a segment; where the next begins, if there is one.
    fn clean_part(&mut self, victim: u32, part: (u32, u32)) -> Result<Option<u32>, LogError> {
        let oldest = self.log.oldest(victim);
        let (replicas, control_records, owner_changes) =
            (&mut self.replicas, &mut self.control_records, &self.owner_changes);
        let (metadata_creators, others) = (&self.metadata_creators, [self.promises, self.writer]);
        let is_noted = |position: LogPosition| {
            others.contains(&Some(position)) || metadata_creators.contains_key(&position)
        };
        let (mut owners, mut rescued, mut renamed) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut is_live = |position: LogPosition, record: &[u8]| {
            let Some((owner, entry)) = entry_of(record) else { return is_noted(position) };
            let is_live = match entry.mutation.copy() {
                Some((name, _)) => {
                    let holder = holder_of(replicas, owner_changes, owner, (name, position));
                    let kept = holder.and_then(|holder| {
                        let replica = replicas.get_mut(&holder)?;
                        replica.keeps((name, position), oldest).then_some((holder, replica.last))
                    });
                    match kept {
                        Some((holder, last)) if holder != owner => {
                            renamed.push(RecordRewrite::new(holder, last, name, position, &entry));
                            false
                        }
                        Some(_) => {
                            owners.insert(position, (owner, name));
                            true
                        }
                        None => false,
                    }
                }
                // Answers are rescued, if somebody needs them.
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
                        || owner_changes.are_taken_back((owner, entry.version), &entry.mutation);
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
        let (moved, next) = self.log.clean_part(victim, part, &mut is_live)?;
        for (from, to) in moved {
            if let Some((owner, name)) = owners.get(&from).copied() {
                self.replica(owner).records.set_position(&name, to);
            } else if let Some(born) = self.control_records.remove(&from) {
                self.control_records.insert(to, born);
                self.owner_changes.set_position(from, to);
            } else {
                self.move_metadata_record(from, to);
            }
        }
        self.rename(renamed)?;
        // What clients may ask for again goes on, though the change that it was the answer to may
        // not.
        for (owner, entry) in rescued {
            self.append_replies(owner, (entry.version, &entry.sessions), Log::append_reserved)?;
        }
        Ok(next)
    }

    fn move_metadata_record(&mut self, from: LogPosition, to: LogPosition) {
        let creator = self.metadata_creators.remove(&from);
        let chapter = creator.and_then(|creator| {
            self.metadata_creators.insert(to, creator);
            self.metadata_snapshots.get_mut(&creator)
        });
        let positions = chapter.into_iter().flatten();
        let positions = positions.chain(&mut self.promises).chain(&mut self.writer);
        positions.filter(|position| **position == from).for_each(|position| *position = to);
    }

    /// Notes down what changed in the metadata; `whole` says what is held of a creator now. It is
    /// safe after [`Self::flush`], if [`Self::notes_failed`] says nothing.
    pub fn append_metadata(
        &mut self,
        metadata: &[MetadataRecord],
        whole: &dyn Fn(Creator) -> Option<Snapshot>,
    ) {
        let mut long = BTreeSet::new();
        for note in metadata {
            let creator = creator_of(note);
            if let Err(error) = self.append_metadata_record(note) {
                self.metadata_failure = Some(error);
                return;
            }
            long.extend(creator.filter(|creator| {
                self.metadata_snapshots
                    .get(creator)
                    .is_some_and(|positions| positions.len() > METADATA_RECORDS_MAX)
            }));
        }
        for creator in long {
            let result = whole(creator)
                .map(|snapshot| self.append_metadata_record(&MetadataRecord::Snapshot(snapshot)));
            // One that is too long for a record is left in pieces.
            if let Some(Err(error)) = result.filter(|result| *result != Err(LogError::Length)) {
                self.metadata_failure = Some(error);
            }
        }
        if !metadata.is_empty()
            && let Err(error) = self.clean()
        {
            self.metadata_failure = Some(error);
        }
    }

    fn append_metadata_record(&mut self, note: &MetadataRecord) -> Result<(), LogError> {
        let mut record = vec![METADATA];
        self.take_number().encode(&mut record);
        note.encode(&mut record);
        self.charge_cleaner(record.len());
        let position = self.log.append_reserved(&record)?;
        self.has_uncommitted_metadata = true;
        let Some(creator) = creator_of(note) else {
            if let Some(last) = self.promises.replace(position) {
                self.log.release(last);
            }
            return Ok(());
        };
        let chapter = self.metadata_snapshots.entry(creator).or_default();
        if matches!(note, MetadataRecord::Snapshot(_) | MetadataRecord::Removed(_)) {
            for position in chapter.drain(..) {
                self.log.release(position);
                self.metadata_creators.remove(&position);
            }
        }
        chapter.push(position);
        self.metadata_creators.insert(position, creator);
        Ok(())
    }

    /// Makes safe what was appended, all at once, and answers it.
    pub fn flush(&mut self, out: &mut Vec<(Peer, ReplicationMessage)>) {
        if self.unacknowledged.is_empty() && !self.has_uncommitted_metadata {
            return;
        }
        let committed = self.log.commit().err();
        self.failure = self.failure.or(committed);
        if std::mem::take(&mut self.has_uncommitted_metadata) {
            self.metadata_failure = self.metadata_failure.or(committed);
        }
        let failed = self.failure.is_some();
        for owner in std::mem::take(&mut self.unacknowledged) {
            let OwnerReplica { stream, next, is_sealed, .. } = *self.replica(owner);
            out.push((
                owner,
                match is_sealed || failed {
                    true => ReplicationMessage::Refused { stream, is_sealed },
                    false => ReplicationMessage::Appended { stream, next },
                },
            ));
        }
    }

    /// Takes nothing of a life of an owner any more (invariant 3).
    pub fn seal(&mut self, owner: Peer) {
        self.replica(owner).is_sealed = true;
    }

    fn is_sealed(&self, owner: Peer) -> bool {
        self.replicas.get(&owner).is_some_and(|replica| replica.is_sealed)
    }

    /// The end of those of `ids` that `most` chunks or items have that are kept of an owner, or
    /// their own.
    pub fn slice_end(&mut self, owner: Peer, ids: IdRange, most: u64) -> u64 {
        self.complete_owner_change(owner, ids);
        let records =
            self.replicas.get(&owner).map(|replica| replica.records.range(RecordKey::all(ids)));
        let mut after =
            records.into_iter().flatten().skip(usize::try_from(most).unwrap_or(usize::MAX));
        // All items of an id are loaded together.
        after.next().map_or(ids.end(), |name| name.id.bits().max(ids.start() + 1))
    }

    /// Reads what was kept of a life of an owner that is sealed, in the order of the log.
    pub fn recover(
        &mut self,
        owner: Peer,
        ids: IdRange,
        each: &mut dyn FnMut(RecordKey, Vec<u8>),
    ) -> ReplicaContents {
        self.complete_owner_change(owner, ids);
        let mut contents = ReplicaContents::default();
        let Some(replica) = self.replicas.get(&owner) else { return contents };
        let held = replica.records.stored(RecordKey::all(ids)).filter(|(_, held)| !held.is_removed);
        let mut positions: Vec<(LogPosition, RecordKey)> =
            held.map(|(name, held)| (held.position, name)).collect();
        self.log.read_many(&mut positions, &mut |name, record| match record.and_then(value_of) {
            Some(value) => {
                contents.records += 1;
                each(*name, value);
            }
            None => contents.damaged.push(*name),
        });
        contents.damaged.sort_unstable();
        contents.export.sessions = replica.answers(|id| ids.contains(id));
        contents
    }
}
