//! Change of owner in place: what is kept under an incarnation that has ended becomes the new
//! owner's, without copying.
//!
//! The new owner and the other replicas received one owner's entries in one order, each up to some
//! version. So they differ only in the keys that the last versions named. The new owner asks the
//! others to accept nothing more of that incarnation and how far they came
//! ([`ReplicaStore::on_seal`]); then it tells them to take over what they have
//! ([`Mutation::ChangeOwner`]) and sends its own state of every key that differs.
//!
//! Until the metadata names the new owner nothing is moved, because another candidate may need it
//! as it was. The commit is announced by the new owner's [`Mutation::DiscardFormer`], or implied by
//! a recovery under the new owner's name, which is recorded as if the new owner had announced it;
//! then the records become the new owner's ([`ReplicaStore::complete_owner_change`]). In the log
//! they still name the former owner: the cleaner rewrites them. Until then the record of the owner
//! change is kept, and as long as that exists, so is any record that revokes it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::record::{ENTRY, encode_entry, entry_record};
use super::super::{Mutation, RecordKey, ReplicationEntry, ReplicationMessage, SkippedValue};
use super::owner_replica::OwnerReplica;
use super::{EntryRef, REPLICAS_MAX, ReplicaStore};
use crate::ids::IdRange;
use crate::log::{LogError, LogPosition};
use crate::overlay::Peer;

/// A change of owner: `owner` takes over `ids` from `source`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerChange {
    pub source: Peer,
    pub owner: Peer,
    pub ids: IdRange,
    /// Version of the entry that announced it.
    pub version: u64,
}

/// Owner changes, by the positions of the records that announce them.
#[derive(Debug, Default)]
pub(super) struct OwnerChanges {
    by_place: BTreeMap<LogPosition, OwnerChange>,
    /// New owners of each source.
    owners: BTreeMap<Peer, BTreeSet<Peer>>,
}

impl OwnerChanges {
    pub fn insert(&mut self, position: LogPosition, change: OwnerChange) {
        self.owners.entry(change.source).or_default().insert(change.owner);
        self.by_place.insert(position, change);
    }

    pub fn get(&self, position: LogPosition) -> Option<&OwnerChange> {
        self.by_place.get(&position)
    }

    /// The record at `from` was moved to `to`.
    pub fn set_position(&mut self, from: LogPosition, to: LogPosition) {
        if let Some(change) = self.by_place.remove(&from) {
            self.by_place.insert(to, change);
        }
    }

    /// A segment was freed: forgets the owner changes recorded in it.
    pub fn drop_segment(&mut self, segment: u32) {
        let count = self.by_place.len();
        self.by_place.retain(|position, _| position.segment() != segment);
        if self.by_place.len() < count {
            self.owners.clear();
            for OwnerChange { source, owner, .. } in self.by_place.values() {
                self.owners.entry(*source).or_default().insert(*owner);
            }
        }
    }

    /// Whether none is recorded, so that each record in the log names its holder.
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    fn owners(&self, source: Peer) -> impl Iterator<Item = Peer> {
        self.owners.get(&source).into_iter().flatten().copied()
    }

    /// Whether `owner` took over something from `source`, directly or through others.
    fn has_taken_over(&self, owner: Peer, source: Peer) -> bool {
        self.owners(source).any(|one| one == owner || self.has_taken_over(owner, one))
    }

    /// Whether an entry of an owner, of that version, revokes an owner change that it announced
    /// before.
    pub fn is_revoked_by(
        &self,
        (owner, version): (Peer, u64),
        mutation: &Mutation<SkippedValue>,
    ) -> bool {
        let (Mutation::Clear(ids) | Mutation::ChangeOwner(_, ids)) = mutation else { return false };
        let mut earlier =
            self.by_place.values().filter(|one| one.owner == owner && one.version < version);
        earlier.any(|one| one.ids.overlaps(*ids))
    }
}

/// A record that must be rewritten because it names a former owner.
pub(super) struct RecordRewrite {
    owner: Peer,
    key: RecordKey,
    position: LogPosition,
    record: Vec<u8>,
}

/// The owner under which a record that names `owner` is kept now.
pub(super) fn holder_of(
    replicas: &BTreeMap<Peer, OwnerReplica>,
    owner_changes: &OwnerChanges,
    owner: Peer,
    (key, position): (RecordKey, LogPosition),
) -> Option<Peer> {
    let held = replicas.get(&owner).and_then(|replica| replica.records.get(&key));
    if held.is_some_and(|held| held.position == position) {
        return Some(owner);
    }
    owner_changes
        .owners(owner)
        .find_map(|one| holder_of(replicas, owner_changes, one, (key, position)))
}

impl RecordRewrite {
    pub fn new(
        owner: Peer,
        version: u64,
        key: RecordKey,
        position: LogPosition,
        entry: &EntryRef<'_>,
    ) -> Self {
        let (mut renamed, mut record) = (Vec::new(), Vec::new());
        entry.encode_as(version, &mut renamed);
        encode_entry(owner, &renamed, &mut record);
        debug_assert_eq!(record[0], ENTRY);
        Self { owner, key, position, record }
    }
}

impl ReplicaStore {
    /// The highest version that was received of an owner; 0 if none was.
    pub fn last_version(&self, owner: Peer) -> u64 {
        self.replicas.get(&owner).map_or(0, |replica| replica.last)
    }

    /// The keys among `ids` that an owner changed after `version`, as far as this node received
    /// them; none if that is not known any more.
    pub fn keys_changed_after(
        &self,
        owner: Peer,
        version: u64,
        ids: IdRange,
    ) -> Option<Vec<RecordKey>> {
        let replica = self.replicas.get(&owner);
        replica.map_or_else(|| Some(Vec::new()), |replica| replica.beyond(version, ids))
    }

    /// Handles [`ReplicationMessage::Seal`] of a new owner that has everything of `source` up to
    /// `last`: seals `source` and returns how far this node came. Returns none if this node could
    /// not take anything over.
    pub fn on_seal(&mut self, source: Peer, ids: IdRange, last: u64) -> Option<ReplicationMessage> {
        let is_full = self.replicas.len() >= REPLICAS_MAX && !self.replicas.contains_key(&source);
        if self.failure.is_some() || is_full {
            return None;
        }
        self.seal(source);
        self.complete_owner_change(source, ids);
        let (own, beyond) = (self.last_version(source), self.keys_changed_after(source, last, ids));
        Some(ReplicationMessage::Sealed { source, ids, last: own, beyond })
    }

    /// An owner sends the whole contents of `ids`, from that version on.
    pub(super) fn clear_ids(&mut self, owner: Peer, ids: IdRange, version: u64) {
        self.drop_records(owner, ids);
        self.replica(owner).begun.assign(ids.start()..ids.end(), Some(version));
    }

    /// An owner takes over what is kept of `ids` under another incarnation, from the following
    /// entries on.
    pub(super) fn adopt(&mut self, position: LogPosition, change: OwnerChange) {
        let OwnerChange { source, owner, ids, version } = change;
        self.clear_ids(owner, ids, version);
        // An incarnation ends once, so nobody takes over from itself, not even indirectly.
        if source != owner && !self.owner_changes.has_taken_over(source, owner) {
            self.replica(owner).adopted.assign(ids.start()..ids.end(), Some(source));
            self.owner_changes.insert(position, change);
        }
    }

    /// The metadata has committed `owner` as the owner of `ids`: what it took over of them is kept
    /// under its name from now on. Records that in the log, since the owner itself has not: it may
    /// have died before.
    pub(super) fn complete_owner_change(&mut self, owner: Peer, ids: IdRange) {
        self.failure = self.failure.or(self.record_completion(owner, ids).err());
        self.complete_owner_change_from(owner, None, ids);
    }

    /// Appends what the owner would have sent. Without it, a replay would keep the records under
    /// the former owner, and [`Self::forget`] of that one would drop them.
    fn record_completion(&mut self, owner: Peer, ids: IdRange) -> Result<(), LogError> {
        if self.failure.is_some() {
            return Ok(());
        }
        let Some(replica) = self.replicas.get(&owner) else { return Ok(()) };
        let (version, over) = (replica.last, replica.adopted.over(ids.start()..ids.end()));
        let adopted: Vec<_> = over.map(|(span, source)| (span, *source)).collect();
        for (span, source) in adopted {
            let ids = IdRange::from_bits(span.start, span.end);
            let mutation = Mutation::DiscardFormer(source, ids);
            let entry = ReplicationEntry { version, mutation, sessions: Vec::new() };
            let position = self.log.append_reserved(&entry_record(owner, &entry))?;
            self.control_records.insert(position, self.log.sequence(position));
        }
        Ok(())
    }

    /// As [`Self::complete_owner_change`], limited to what was kept under `from` if given, and not
    /// recorded. Something that came under another name may have been taken over since, and not be
    /// committed yet.
    pub(super) fn complete_owner_change_from(
        &mut self,
        owner: Peer,
        from: Option<Peer>,
        ids: IdRange,
    ) {
        let Some(replica) = self.replicas.get_mut(&owner) else { return };
        let over = replica.adopted.over(ids.start()..ids.end());
        let over = over.filter(|(_, source)| from.is_none_or(|from| from == **source));
        let adopted: Vec<_> = over.map(|(span, source)| (span, *source)).collect();
        if adopted.is_empty() {
            return;
        }
        for (span, _) in &adopted {
            replica.adopted.assign(span.clone(), None);
        }
        // Their records are not newer than what is written now.
        let newest = self.log.newest();
        for (span, source) in adopted {
            let ids = IdRange::from_bits(span.start, span.end);
            // First complete what the source took over itself.
            self.complete_owner_change_from(source, None, ids);
            let Some(former) = self.replicas.get_mut(&source) else { continue };
            let records = former.drop_records(ids);
            for position in self.replica(owner).records.add(records, newest) {
                self.log.release(position);
            }
        }
        for (position, change) in &self.owner_changes.by_place {
            if change.owner == owner
                && let Some(born) = self.control_records.get_mut(position)
            {
                *born = newest.max(*born);
            }
        }
    }

    /// Whether some owner may still come to own what is kept of `ids` under `source`.
    pub(super) fn has_pending_owner(&self, source: Peer, ids: IdRange) -> bool {
        let owners = self.owner_changes.owners(source);
        let mut replicas = owners.filter_map(|owner| self.replicas.get(&owner));
        replicas.any(|replica| {
            replica.adopted.over(ids.start()..ids.end()).any(|(_, other)| *other == source)
        })
    }

    /// Appends records again under the names of their present owners.
    pub(super) fn rename(&mut self, all: Vec<RecordRewrite>) -> Result<(), LogError> {
        for RecordRewrite { owner, key, position, record } in all {
            let to = self.log.append_reserved(&record)?;
            self.replica(owner).records.set_position(&key, to);
            self.log.release(position);
        }
        Ok(())
    }
}
