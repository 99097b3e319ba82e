//! What this node keeps of one owner incarnation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, RangeBounds};

use super::super::RecordKey;
use super::super::entry::{Answer, EntryRef};
use crate::chunks::{ClientId, SessionState};
use crate::hash::IntHashMap;
use crate::ids::{COUNTER_MAX, ChunkId, IdRange};
use crate::interval_map::IntervalMap;
use crate::log::LogPosition;
use crate::overlay::Peer;

/// The most replies kept of one client; the oldest are dropped first.
const ANSWERS_MAX: usize = 1 << 12;
/// The most changes remembered. Two backups of one owner differ by about as many changes as may be
/// queued for one ([`super::super::ReplicationSettings::window`]); if they differ by more,
/// everything is copied.
const RECENT_MAX: usize = if cfg!(test) { 8 } else { 1 << 13 };
/// The id bits that differ among the chunks of one shard.
const SHARD_MASK: u64 = 0xFFFF;

/// The last change of a chunk or item: where its record lies, and whether it is a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub position: LogPosition,
    pub is_removed: bool,
}

/// Records by key. Most insertions replace a record, and find it by hash, without the ordered set
/// that range queries use.
#[derive(Debug, Default)]
pub(super) struct RecordIndex {
    /// Shards by their first ids. No shard is so large that its growth causes a pause, and a whole
    /// shard can be dropped at once.
    shards: IntHashMap<u64, Shard>,
    /// The first ids of `shards`, in order.
    numbers: BTreeSet<u64>,
    /// The log sequence at which each removal was first written. The removal is needed while older
    /// records may be in the log.
    removed_at: BTreeMap<RecordKey, u64>,
    /// The highest version in any shard that was dropped.
    dropped_last: u64,
}

/// Records with neighbouring ids.
#[derive(Debug, Default)]
struct Shard {
    records: IntHashMap<RecordKey, StoredRecord>,
    /// All keys of `records`, in order.
    keys: BTreeSet<RecordKey>,
    /// The highest version that was inserted.
    last: u64,
}

impl Shard {
    /// Removes and returns the records of `ids`; `first` is the lowest key that one of them could
    /// have.
    fn split(&mut self, ids: IdRange, first: RecordKey) -> Self {
        let mut part = Self::default();
        let keys = self.keys.range(first..).copied();
        for key in keys.take_while(|key| ids.contains(key.id)).collect::<Vec<_>>() {
            self.keys.remove(&key);
            part.keys.insert(key);
            part.records.extend(self.records.remove(&key).map(|records| (key, records)));
        }
        part
    }
}

/// The first id of a key's shard: a block of neighbouring chunks, or a whole partition of named
/// ids, which are sparse.
fn shard_of(key: &RecordKey) -> u64 {
    let bits = key.id.bits();
    if key.id.creator().is_named() { bits & !COUNTER_MAX } else { bits & !SHARD_MASK }
}

impl RecordIndex {
    /// The record of a key.
    pub fn get(&self, key: &RecordKey) -> Option<StoredRecord> {
        self.shards.get(&shard_of(key))?.records.get(key).copied()
    }

    /// Inserts the record of a key that arrived under a version; `removed` is the log sequence of a
    /// removal. Returns the record that it replaces.
    pub fn insert(
        &mut self,
        (key, version): (RecordKey, u64),
        position: LogPosition,
        removed: Option<u64>,
    ) -> Option<StoredRecord> {
        let records = StoredRecord { position, is_removed: removed.is_some() };
        let number = shard_of(&key);
        let shard = self.shards.entry(number).or_insert_with(|| {
            self.numbers.insert(number);
            Shard::default()
        });
        shard.last = shard.last.max(version);
        let old = shard.records.insert(key, records);
        if old.is_none() {
            shard.keys.insert(key);
        }
        match removed {
            Some(removed_at) => drop(self.removed_at.insert(key, removed_at)),
            None if old.is_some_and(|old| old.is_removed) => drop(self.removed_at.remove(&key)),
            None => {}
        }
        old
    }

    /// The record of a key was moved.
    pub fn set_position(&mut self, key: &RecordKey, position: LogPosition) {
        let shard = self.shards.get_mut(&shard_of(key));
        if let Some(records) = shard.and_then(|shard| shard.records.get_mut(key)) {
            records.position = position;
        }
    }

    /// Removes one record.
    pub fn remove(&mut self, key: &RecordKey) -> Option<StoredRecord> {
        let number = shard_of(key);
        let shard = self.shards.get_mut(&number)?;
        let records = shard.records.remove(key)?;
        shard.keys.remove(key);
        if shard.keys.is_empty() {
            self.dropped_last = self.dropped_last.max(shard.last);
            self.take_shard(number);
        }
        if records.is_removed {
            self.removed_at.remove(key);
        }
        Some(records)
    }

    fn take_shard(&mut self, number: u64) -> Option<Shard> {
        self.numbers.remove(&number);
        self.shards.remove(&number)
    }

    fn put_shard(&mut self, number: u64, shard: Shard) {
        self.numbers.insert(number);
        self.shards.insert(number, shard);
    }

    /// The numbers of the shards that may have records of `ids`.
    fn numbers_over(&self, ids: IdRange) -> impl Iterator<Item = u64> {
        let number = |id| shard_of(&RecordKey::from(id));
        self.numbers.range(number(ids.first())..=number(ids.last())).copied()
    }

    /// Removes and returns the records of `ids`; whole shards at once, whatever their size.
    pub fn split(&mut self, ids: IdRange) -> Self {
        let first = RecordKey::from(ids.first());
        let mut taken = Self::default();
        for number in self.numbers_over(ids).collect::<Vec<_>>() {
            let Some(mut shard) = self.take_shard(number) else { continue };
            let is_all = shard.keys.first().is_some_and(|key| ids.contains(key.id))
                && shard.keys.last().is_some_and(|key| ids.contains(key.id));
            if is_all {
                taken.put_shard(number, shard);
                continue;
            }
            let part = shard.split(ids, first);
            if !part.keys.is_empty() {
                taken.put_shard(number, part);
            }
            if !shard.keys.is_empty() {
                self.put_shard(number, shard);
            }
        }
        let removed = self.removed_at.range(RecordKey::all(ids)).map(|(key, _)| *key);
        for key in removed.collect::<Vec<_>>() {
            taken
                .removed_at
                .extend(self.removed_at.remove(&key).map(|removed_at| (key, removed_at)));
        }
        taken
    }

    /// The highest version under which something of `ids` may have changed.
    pub fn last(&self, ids: IdRange) -> u64 {
        let lasts = self.numbers_over(ids).map(|number| self.shards[&number].last);
        lasts.fold(self.dropped_last, u64::max)
    }

    /// Adds the records of `others` whose keys are not here yet, and returns the positions of the
    /// rest. A removal here must outlast the record that it hides, which was written at `newest` at
    /// the latest.
    pub fn add(&mut self, others: Self, newest: u64) -> Vec<LogPosition> {
        let mut known = Vec::new();
        let mut removed_at = others.removed_at;
        for (number, mut shard) in others.shards {
            // Usually little or nothing is here: only what differed.
            let own = self.take_shard(number).unwrap_or_default();
            shard.last = own.last;
            for (key, records) in own.records {
                let Some(other) = shard.records.insert(key, records) else {
                    shard.keys.insert(key);
                    continue;
                };
                known.push(other.position);
                removed_at.remove(&key);
                if records.is_removed {
                    removed_at.insert(key, newest);
                }
            }
            self.put_shard(number, shard);
        }
        self.removed_at.append(&mut removed_at);
        known
    }

    /// Positions of all records.
    pub fn positions(&self) -> impl Iterator<Item = LogPosition> {
        self.shards
            .values()
            .flat_map(|shard| shard.records.values().map(|records| records.position))
    }

    /// Keys within bounds, in order.
    pub fn range(&self, keys: impl RangeBounds<RecordKey>) -> impl Iterator<Item = RecordKey> {
        let bounds = (keys.start_bound().cloned(), keys.end_bound().cloned());
        let shards = (bounds.0.as_ref().map(shard_of), bounds.1.as_ref().map(shard_of));
        // The first and last shard may be covered in part.
        let closed = |bound| match bound {
            Bound::Excluded(number) => Bound::Included(number),
            bound => bound,
        };
        let numbers = self.numbers.range((closed(shards.0), closed(shards.1)));
        numbers.flat_map(move |number| self.shards[number].keys.range(bounds).copied())
    }

    /// Keys within bounds and their records, in order.
    pub fn stored(
        &self,
        keys: impl RangeBounds<RecordKey>,
    ) -> impl Iterator<Item = (RecordKey, StoredRecord)> {
        self.range(keys).filter_map(|key| Some((key, self.get(&key)?)))
    }

    pub fn len(&self) -> usize {
        self.shards.values().map(|shard| shard.keys.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }
}

/// What is kept of one owner incarnation.
#[derive(Debug, Default)]
pub(super) struct OwnerReplica {
    pub stream: u64,
    /// The number of the next entry in the stream.
    pub next: u64,
    pub is_sealed: bool,
    pub records: RecordIndex,
    pub sessions: BTreeMap<ClientId, SessionState>,
    /// Whether part of it was received by a former incarnation of this node, perhaps as a backup of
    /// other ids. Then versions do not tell up to where all changes of which ids are here.
    pub is_resumed: bool,
    /// The highest version received.
    pub last: u64,
    /// The latest changed chunks and locks and their versions. All changes above version `floor`
    /// are here.
    recent: VecDeque<(u64, RecordKey)>,
    floor: u64,
    /// The version at which each id was last sent in full.
    pub begun: IntervalMap<u64>,
    /// Ids taken over from a former owner: what this owner has not sent itself is kept under that
    /// owner.
    pub adopted: IntervalMap<Peer>,
}

impl SessionState {
    fn has(&self, number: u64) -> bool {
        // Most numbers that are asked for are older.
        number >= self.answered_below && self.answers.iter().any(|(records, ..)| *records == number)
    }
}

impl OwnerReplica {
    /// Removes and returns records, and forgets the replies about them.
    pub fn drop_records(&mut self, ids: IdRange) -> RecordIndex {
        self.adopted.assign(ids.start()..ids.end(), None);
        self.begun.assign(ids.start()..ids.end(), None);
        let records = self.records.split(ids);
        for session in self.sessions.values_mut() {
            session.answers.retain(|(_, id, _)| !ids.contains(*id));
        }
        if self.is_sealed && self.records.is_empty() && self.adopted.is_empty() {
            self.sessions.clear();
        }
        records
    }

    /// Replies about some chunks and items.
    pub fn answers(&self, is_about: impl Fn(ChunkId) -> bool) -> Vec<SessionState> {
        let sessions = self.sessions.values().filter_map(|session| {
            let about = session.answers.iter().filter(|(_, id, _)| is_about(*id));
            let answers: Vec<_> = about.cloned().collect();
            (!answers.is_empty()).then(|| SessionState { answers, ..session.clone() })
        });
        sessions.collect()
    }

    /// Remembers the change of a chunk or a lock.
    pub fn remember(&mut self, version: u64, key: RecordKey) {
        if self.recent.len() >= RECENT_MAX
            && let Some((version, _)) = self.recent.pop_front()
        {
            self.floor = version;
        }
        self.recent.push_back((version, key));
    }

    /// The keys among `ids` that changed after a version; none if that is not known.
    pub fn beyond(&self, version: u64, ids: IdRange) -> Option<Vec<RecordKey>> {
        let mut begun = self.begun.over(ids.start()..ids.end());
        if self.is_resumed || begun.any(|(_, begun)| *begun > version) {
            return None;
        }
        // Most changes were to other ids, with other backups.
        if version >= self.records.last(ids) {
            return Some(Vec::new());
        }
        if version < self.floor {
            return None;
        }
        let later = self.recent.iter().rev().take_while(|(later, _)| *later > version);
        let keys = later.map(|(_, key)| *key).filter(|key| ids.contains(key.id));
        let mut keys: Vec<RecordKey> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// Whether the record of `key` at `position` must be kept. A removal need not be when all older
    /// records are gone.
    pub fn keeps(&mut self, (key, position): (RecordKey, LogPosition), oldest: u64) -> bool {
        let Some(records) = self.records.get(&key).filter(|records| records.position == position)
        else {
            return false;
        };
        // Under a pending owner change, a key that is not removed here counts as present, so older
        // records matter.
        let is_over = records.is_removed
            && self.adopted.get(key.id.bits()).is_none()
            && self.records.removed_at.get(&key).is_none_or(|removed_at| *removed_at < oldest);
        if is_over {
            self.records.remove(&key);
        }
        !is_over
    }

    /// The replies of an entry that a client may still ask for; none if there are none.
    pub fn needed(&self, entry: &EntryRef<'_>) -> Option<Vec<SessionState>> {
        // Usually there are none.
        let (mut from, mut is_needed) = (entry.session_reader(), false);
        while let Some((client, _, _, count)) = from.next_session() {
            let records = self.sessions.get(&client);
            for _ in 0..count {
                let number = from.number();
                is_needed |=
                    records.zip(number).is_some_and(|(records, number)| records.has(number));
            }
        }
        if !is_needed {
            return None;
        }
        let mut sessions = entry.sessions();
        sessions.retain_mut(|session| {
            let Some(records) = self.sessions.get(&session.client) else { return false };
            session.answers.retain(|(number, ..)| records.has(*number));
            !session.answers.is_empty()
        });
        Some(sessions)
    }

    /// Notes that an entry was stored.
    pub fn take(&mut self, entry: &EntryRef<'_>) {
        let mut from = entry.session_reader();
        while let Some((client, lease_ms, answered_below, count)) = from.next_session() {
            let answers = (0..count).map_while(|_| from.answer());
            self.note((client, lease_ms, answered_below), answers);
        }
        self.next += 1;
        self.last = self.last.max(entry.version);
    }

    /// Notes replies to a client; the tuple has the session's client, its lease, and the number
    /// below which it has all replies.
    pub fn note(
        &mut self,
        (client, lease_ms, answered_below): (ClientId, u64, u64),
        answers: impl Iterator<Item = Answer>,
    ) {
        let records = self.sessions.entry(client).or_insert_with(|| SessionState {
            client,
            lease_ms,
            answered_below,
            answers: Vec::new(),
        });
        records.lease_ms = lease_ms;
        if answered_below > records.answered_below {
            records.answered_below = answered_below;
            records.answers.retain(|(number, ..)| *number >= answered_below);
        }
        let below = records.answered_below;
        // Consume all, or the replies of the next session would be taken for these.
        answers.filter(|(number, ..)| *number >= below).for_each(|one| records.answers.push(one));
        let excess = records.answers.len().saturating_sub(ANSWERS_MAX);
        if excess > 0 {
            records.answers.drain(..excess);
        }
    }
}
