//! What is kept in the name of one life of an owner.

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

/// Answers that are kept of one client at most; the oldest go first.
const ANSWERS_MAX: usize = 1 << 12;
/// Changes that are remembered: two backups of one owner differ in about as many as may wait for
/// one ([`super::super::ReplicationSettings::window`]). Where they differ in more, all is copied.
const RECENT_MAX: usize = if cfg!(test) { 8 } else { 1 << 13 };
/// The bits of an id that differ among the chunks of one map.
const SHARD_MASK: u64 = 0xFFFF;

/// A chunk or an item as it was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub position: LogPosition,
    pub is_removed: bool,
}

/// Copies by name. Most that come replace one that is there, and find it without the order that
/// others ask for.
#[derive(Debug, Default)]
pub(super) struct RecordIndex {
    /// By their first ids: no map is so large that its growth is a pause, and all of one can go at
    /// once.
    shards: BTreeMap<u64, Shard>,
    /// When those that are removals were first written: what is older may still be in the log
    /// until then is gone.
    removed_at: BTreeMap<RecordKey, u64>,
    /// The highest version in a shard that is not there any more.
    dropped_last: u64,
}

/// Copies whose ids are neighbours.
#[derive(Debug, Default)]
struct Shard {
    records: IntHashMap<RecordKey, StoredRecord>,
    /// All names in it.
    keys: BTreeSet<RecordKey>,
    /// The highest version of what came.
    last: u64,
}

impl Shard {
    /// Takes out those of some ids; `first` is the first name that one of them could have.
    fn split(&mut self, ids: IdRange, first: RecordKey) -> Self {
        let mut part = Self::default();
        let keys = self.keys.range(first..).copied();
        for name in keys.take_while(|name| ids.contains(name.id)).collect::<Vec<_>>() {
            self.keys.remove(&name);
            part.keys.insert(name);
            part.records.extend(self.records.remove(&name).map(|records| (name, records)));
        }
        part
    }
}

/// The first id of a shard: of neighbouring chunks, or of a partition of items, which are sparse.
fn shard_of(name: &RecordKey) -> u64 {
    let bits = name.id.bits();
    if name.id.creator().is_named() { bits & !COUNTER_MAX } else { bits & !SHARD_MASK }
}

impl RecordIndex {
    /// How it lies, if it is there.
    pub fn get(&self, name: &RecordKey) -> Option<StoredRecord> {
        self.shards.get(&shard_of(name))?.records.get(name).copied()
    }

    /// Keeps what came under some version, a removal if it says since when. Returns what was there
    /// before.
    pub fn insert(
        &mut self,
        (name, version): (RecordKey, u64),
        position: LogPosition,
        removed: Option<u64>,
    ) -> Option<StoredRecord> {
        let records = StoredRecord { position, is_removed: removed.is_some() };
        let shard = self.shards.entry(shard_of(&name)).or_default();
        shard.last = shard.last.max(version);
        let old = shard.records.insert(name, records);
        if old.is_none() {
            shard.keys.insert(name);
        }
        match removed {
            Some(removed_at) => drop(self.removed_at.insert(name, removed_at)),
            None if old.is_some_and(|old| old.is_removed) => drop(self.removed_at.remove(&name)),
            None => {}
        }
        old
    }

    /// It lies elsewhere now.
    pub fn set_position(&mut self, name: &RecordKey, position: LogPosition) {
        let shard = self.shards.get_mut(&shard_of(name));
        if let Some(records) = shard.and_then(|shard| shard.records.get_mut(name)) {
            records.position = position;
        }
    }

    /// Drops one.
    fn remove(&mut self, name: &RecordKey) -> Option<StoredRecord> {
        let number = shard_of(name);
        let shard = self.shards.get_mut(&number)?;
        let records = shard.records.remove(name)?;
        shard.keys.remove(name);
        if shard.keys.is_empty() {
            self.dropped_last = self.dropped_last.max(shard.last);
            self.shards.remove(&number);
        }
        if records.is_removed {
            self.removed_at.remove(name);
        }
        Some(records)
    }

    /// Takes out those of some ids: neighbours together, however many they are.
    pub fn split(&mut self, ids: IdRange) -> Self {
        let (first, last) = (RecordKey::from(ids.first()), ids.last());
        let shards = self.shards.range(shard_of(&first)..=shard_of(&RecordKey::from(last)));
        let numbers: Vec<u64> = shards.map(|(number, _)| *number).collect();
        let mut taken = Self::default();
        for number in numbers {
            let Some(mut shard) = self.shards.remove(&number) else { continue };
            let is_all = shard.keys.first().is_some_and(|name| ids.contains(name.id))
                && shard.keys.last().is_some_and(|name| ids.contains(name.id));
            if is_all {
                taken.shards.insert(number, shard);
                continue;
            }
            let part = shard.split(ids, first);
            if !part.keys.is_empty() {
                taken.shards.insert(number, part);
            }
            if !shard.keys.is_empty() {
                self.shards.insert(number, shard);
            }
        }
        let removed = self.removed_at.range(RecordKey::all(ids)).map(|(name, _)| *name);
        for name in removed.collect::<Vec<_>>() {
            taken
                .removed_at
                .extend(self.removed_at.remove(&name).map(|removed_at| (name, removed_at)));
        }
        taken
    }

    /// No change of some ids came under a later version.
    pub fn last(&self, ids: IdRange) -> u64 {
        let numbers =
            shard_of(&RecordKey::from(ids.first()))..=shard_of(&RecordKey::from(ids.last()));
        let lasts = self.shards.range(numbers).map(|(_, shard)| shard.last);
        lasts.fold(self.dropped_last, u64::max)
    }

    /// Takes over others that it does not have itself; where the rest lay. What is gone here is to
    /// stay so though it is found there, `newest` at the latest.
    pub fn add(&mut self, others: Self, newest: u64) -> Vec<LogPosition> {
        let mut known = Vec::new();
        let mut removed_at = others.removed_at;
        for (number, mut shard) in others.shards {
            // Nearly always there is little, or nothing: what differed.
            let own = self.shards.remove(&number).unwrap_or_default();
            shard.last = own.last;
            for (name, records) in own.records {
                let Some(other) = shard.records.insert(name, records) else {
                    shard.keys.insert(name);
                    continue;
                };
                known.push(other.position);
                removed_at.remove(&name);
                if records.is_removed {
                    removed_at.insert(name, newest);
                }
            }
            self.shards.insert(number, shard);
        }
        self.removed_at.append(&mut removed_at);
        known
    }

    /// Where they lie.
    pub fn positions(&self) -> impl Iterator<Item = LogPosition> {
        self.shards
            .values()
            .flat_map(|shard| shard.records.values().map(|records| records.position))
    }

    /// Names in their order.
    pub fn range(&self, keys: impl RangeBounds<RecordKey>) -> impl Iterator<Item = RecordKey> {
        let bounds = (keys.start_bound().cloned(), keys.end_bound().cloned());
        let shards = (bounds.0.as_ref().map(shard_of), bounds.1.as_ref().map(shard_of));
        // Of the first and the last shard some may be within.
        let closed = |bound| match bound {
            Bound::Excluded(number) => Bound::Included(number),
            bound => bound,
        };
        let shards = self.shards.range((closed(shards.0), closed(shards.1)));
        shards.flat_map(move |(_, shard)| shard.keys.range(bounds).copied())
    }

    /// The same, and how they lie.
    pub fn stored(
        &self,
        keys: impl RangeBounds<RecordKey>,
    ) -> impl Iterator<Item = (RecordKey, StoredRecord)> {
        self.range(keys).filter_map(|name| Some((name, self.get(&name)?)))
    }

    pub fn len(&self) -> usize {
        self.shards.values().map(|shard| shard.keys.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(super) struct OwnerReplica {
    pub stream: u64,
    /// The number of the entry that comes next.
    pub next: u64,
    pub is_sealed: bool,
    pub records: RecordIndex,
    pub sessions: BTreeMap<ClientId, SessionState>,
    /// Whether a former life of this node took some of it, as a backup of other ids perhaps: then
    /// versions do not say of which ids all is here up to where.
    pub is_resumed: bool,
    /// The highest version that was taken.
    pub last: u64,
    /// The chunks that were changed last, and under which versions; of those above `floor` all are
    /// here.
    recent: VecDeque<(u64, ChunkId)>,
    floor: u64,
    /// Under which version this node was last told all that there is of ids.
    pub begun: IntervalMap<u64>,
    /// Ids of which what it has not said itself is what was kept of a life before.
    pub adopted: IntervalMap<Peer>,
}

impl SessionState {
    fn has(&self, number: u64) -> bool {
        // Most that is asked for is older.
        number >= self.answered_below && self.answers.iter().any(|(records, ..)| *records == number)
    }
}

impl OwnerReplica {
    /// Takes out copies, and forgets what was answered about them.
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

    /// What clients were answered about some chunks and items.
    pub fn answers(&self, is_about: impl Fn(ChunkId) -> bool) -> Vec<SessionState> {
        let sessions = self.sessions.values().filter_map(|session| {
            let about = session.answers.iter().filter(|(_, id, _)| is_about(*id));
            let answers: Vec<_> = about.cloned().collect();
            (!answers.is_empty()).then(|| SessionState { answers, ..session.clone() })
        });
        sessions.collect()
    }

    /// A chunk was changed.
    pub fn remember(&mut self, version: u64, id: ChunkId) {
        if self.recent.len() >= RECENT_MAX
            && let Some((version, _)) = self.recent.pop_front()
        {
            self.floor = version;
        }
        self.recent.push_back((version, id));
    }

    /// Which of some ids changed after a version; none if that is not known.
    pub fn beyond(&self, version: u64, ids: IdRange) -> Option<Vec<RecordKey>> {
        let mut begun = self.begun.over(ids.start()..ids.end());
        if self.is_resumed || begun.any(|(_, begun)| *begun > version) {
            return None;
        }
        // Most changes were of other ids, with other backups.
        if version >= self.records.last(ids) {
            return Some(Vec::new());
        }
        if version < self.floor {
            return None;
        }
        let later = self.recent.iter().rev().take_while(|(later, _)| *later > version);
        let keys = later.filter(|(_, id)| ids.contains(*id)).map(|(_, id)| RecordKey::from(*id));
        let mut keys: Vec<RecordKey> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// Whether a copy lies there and is to go on; a removal is not when all that is older is gone.
    pub fn keeps(&mut self, (name, position): (RecordKey, LogPosition), oldest: u64) -> bool {
        let Some(records) = self.records.get(&name).filter(|records| records.position == position)
        else {
            return false;
        };
        // Where all is adopted that is not said to be gone, what is older counts.
        let is_over = records.is_removed
            && self.adopted.get(name.id.bits()).is_none()
            && self.records.removed_at.get(&name).is_none_or(|removed_at| *removed_at < oldest);
        if is_over {
            self.records.remove(&name);
        }
        !is_over
    }

    /// The answers of an entry that somebody may ask for again.
    pub fn needed(&self, entry: &EntryRef<'_>) -> Option<Vec<SessionState>> {
        // Nearly always there are none.
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

    /// An entry was kept.
    pub fn take(&mut self, entry: &EntryRef<'_>) {
        let mut from = entry.session_reader();
        while let Some((client, lease_ms, answered_below, count)) = from.next_session() {
            let answers = (0..count).map_while(|_| from.answer());
            self.note((client, lease_ms, answered_below), answers);
        }
        self.next += 1;
        self.last = self.last.max(entry.version);
    }

    /// What a client was answered; whose session, its lease, and below which number it has all
    /// answers.
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
        // All are read, or those of the next session would be taken for these.
        answers.filter(|(number, ..)| *number >= below).for_each(|one| records.answers.push(one));
        let excess = records.answers.len().saturating_sub(ANSWERS_MAX);
        if excess > 0 {
            records.answers.drain(..excess);
        }
    }
}
