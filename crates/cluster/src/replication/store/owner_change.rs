//! What was kept of a life that is over, kept in the name of the owner that took its place.
//!
//! An heir and its fellow holders have what one owner sent them in one order, up to some version
//! each: so they differ in what the last versions named, and in nothing else. The heir asks the
//! others to take no more of that life and how far they came ([`ReplicaStore::on_seal`]); it tells them to
//! adopt what they have ([`Mutation::ChangeOwner`]), and what it has itself of all that differs.
//!
//! Until the metadata names the heir nothing is moved, for the next heir may need it as it was.
//! That it does is said by the [`Mutation::DiscardFormer`] of the heir, or by who recovers in the heir's name:
//! then the copies are the heir's ([`ReplicaStore::settle`]). Their records still name the former owner:
//! the cleaner writes them anew, and until then the record of the adoption is kept; and as long as
//! that is there, what takes it back.

use std::collections::{BTreeMap, BTreeSet};

use super::super::record::{ENTRY, encode_entry};
use super::super::{Mutation, RecordKey, ReplicationMessage, SkippedValue};
use super::owner_replica::OwnerReplica;
use super::{EntryRef, REPLICAS_MAX, ReplicaStore};
use crate::chunks::overlap;
use crate::ids::IdRange;
use crate::log::{LogError, LogPosition};
use crate::overlay::Peer;

/// Who adopted what in whose name it was kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerChange {
    pub source: Peer,
    pub owner: Peer,
    pub ids: IdRange,
    /// Of the owner's change that says so.
    pub version: u64,
}

/// Adoptions, by the places of the records that say so.
#[derive(Debug, Default)]
pub(super) struct OwnerChanges {
    by_place: BTreeMap<LogPosition, OwnerChange>,
    /// Who adopted something of whom.
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

    /// A record lies elsewhere now.
    pub fn set_position(&mut self, from: LogPosition, to: LogPosition) {
        if let Some(change) = self.by_place.remove(&from) {
            self.by_place.insert(to, change);
        }
    }

    /// A segment is not there any more.
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

    fn owners(&self, source: Peer) -> impl Iterator<Item = Peer> {
        self.owners.get(&source).into_iter().flatten().copied()
    }

    /// Whether a life adopted something of another one, or of one that did.
    fn is_adopter(&self, owner: Peer, source: Peer) -> bool {
        self.owners(source).any(|one| one == owner || self.is_adopter(owner, one))
    }

    /// Whether a change of an owner, of that version, takes back what it said before that it
    /// adopted.
    pub fn are_taken_back(
        &self,
        (owner, version): (Peer, u64),
        mutation: &Mutation<SkippedValue>,
    ) -> bool {
        let (Mutation::Clear(ids) | Mutation::ChangeOwner(_, ids)) = mutation else { return false };
        let mut earlier =
            self.by_place.values().filter(|one| one.owner == owner && one.version < version);
        earlier.any(|one| overlap(one.ids, *ids))
    }
}

/// A copy whose record names a former owner.
pub(super) struct RecordRewrite {
    owner: Peer,
    name: RecordKey,
    position: LogPosition,
    record: Vec<u8>,
}

/// In whose name a copy is kept whose record names `owner`.
pub(super) fn holder_of(
    replicas: &BTreeMap<Peer, OwnerReplica>,
    owner_changes: &OwnerChanges,
    owner: Peer,
    (name, position): (RecordKey, LogPosition),
) -> Option<Peer> {
    let held = replicas.get(&owner).and_then(|replica| replica.records.get(&name));
    if held.is_some_and(|held| held.position == position) {
        return Some(owner);
    }
    owner_changes
        .owners(owner)
        .find_map(|one| holder_of(replicas, owner_changes, one, (name, position)))
}

impl RecordRewrite {
    pub fn new(
        owner: Peer,
        version: u64,
        name: RecordKey,
        position: LogPosition,
        entry: &EntryRef<'_>,
    ) -> Self {
        let (mut renamed, mut record) = (Vec::new(), Vec::new());
        entry.encode_as(version, &mut renamed);
        encode_entry(owner, &renamed, &mut record);
        debug_assert_eq!(record[0], ENTRY);
        Self { owner, name, position, record }
    }
}

impl ReplicaStore {
    /// The highest version of what was kept of an owner.
    pub fn last_version(&self, owner: Peer) -> u64 {
        self.replicas.get(&owner).map_or(0, |replica| replica.last)
    }

    /// Which of some ids an owner changed after a version, as far as this node was told; none if
    /// that is not known any more.
    pub fn keys_changed_after(
        &self,
        owner: Peer,
        version: u64,
        ids: IdRange,
    ) -> Option<Vec<RecordKey>> {
        let replica = self.replicas.get(&owner);
        replica.map_or_else(|| Some(Vec::new()), |replica| replica.beyond(version, ids))
    }

    /// An heir of ids wants to know how far this node came with what a life kept here that is over,
    /// of which it has all up to the version `last` itself. Nothing of it is taken any more. No
    /// answer if nothing could be adopted.
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

    /// An owner says all that there is of ids, from that version on.
    pub(super) fn clear_ids(&mut self, owner: Peer, ids: IdRange, version: u64) {
        self.drop_records(owner, ids);
        self.replica(owner).begun.assign(ids.start()..ids.end(), Some(version));
    }

    /// An owner has what was kept of ids in the name of another life, from what follows on.
    pub(super) fn adopt(&mut self, position: LogPosition, change: OwnerChange) {
        let OwnerChange { source, owner, ids, version } = change;
        self.clear_ids(owner, ids, version);
        // Lives end once: nobody adopts what is kept of himself, however indirectly.
        if source != owner && !self.owner_changes.is_adopter(source, owner) {
            self.replica(owner).adopted.assign(ids.start()..ids.end(), Some(source));
            self.owner_changes.insert(position, change);
        }
    }

    /// The metadata names an owner the owner of ids: what it adopted of them is kept in its name
    /// from now on.
    pub(super) fn complete_owner_change(&mut self, owner: Peer, ids: IdRange) {
        self.complete_owner_change_from(owner, None, ids);
    }

    /// The same of what was kept in one name, if it says in which. What came in another name it may
    /// have adopted since, and not be the owner of yet.
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
        // Their records are not older than what is written now.
        let newest = self.log.newest();
        for (span, source) in adopted {
            let ids = IdRange::from_bits(span.start, span.end);
            // What that one adopted itself comes along.
            self.complete_owner_change(source, ids);
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

    /// Whether somebody may yet come to own what is kept of ids in the name of another.
    pub(super) fn is_to_be_adopted(&self, source: Peer, ids: IdRange) -> bool {
        let owners = self.owner_changes.owners(source);
        let mut replicas = owners.filter_map(|owner| self.replicas.get(&owner));
        replicas.any(|replica| {
            replica.adopted.over(ids.start()..ids.end()).any(|(_, other)| *other == source)
        })
    }

    /// Writes copies in the names of those who have them now.
    pub(super) fn rename(&mut self, all: Vec<RecordRewrite>) -> Result<(), LogError> {
        for RecordRewrite { owner, name, position, record } in all {
            let to = self.log.append_reserved(&record)?;
            self.replica(owner).records.set_position(&name, to);
            self.log.release(position);
        }
        Ok(())
    }
}
