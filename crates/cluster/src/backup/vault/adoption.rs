//! What was kept of a life that is over, kept in the name of the owner that took its place.
//!
//! An heir and its fellow holders have what one owner sent them in one order, up to some version
//! each: so they differ in what the last versions named, and in nothing else. The heir asks the
//! others to take no more of that life and how far they came ([`Vault::on_seal`]); it tells them to
//! adopt what they have ([`What::Adopt`]), and what it has itself of all that differs.
//!
//! Until the metadata names the heir nothing is moved, for the next heir may need it as it was.
//! That it does is said by the [`What::Bury`] of the heir, or by who recovers in the heir's name:
//! then the copies are the heir's ([`Vault::settle`]). Their records still name the former owner:
//! the cleaner writes them anew, and until then the record of the adoption is kept; and as long as
//! that is there, what takes it back.

use std::collections::BTreeMap;

use super::super::record::{ENTRY, encode_entry};
use super::super::{BackupMessage, Name, Omitted, What};
use super::stream::Stream;
use super::{EntryRef, Vault};
use crate::chunks::overlap;
use crate::ids::IdRange;
use crate::log::{LogError, Place};
use crate::overlay::Peer;

/// Changes that are remembered, of all owners together: where two holders differ in more, all is
/// copied.
const RECENT_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };

/// Who adopted what in whose name it was kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adoption {
    pub source: Peer,
    pub owner: Peer,
    pub ids: IdRange,
    /// Of the owner's change that says so.
    pub version: u64,
}

/// Whether a change of an owner, of that version, takes back what it said before that it adopted.
pub(super) fn takes_back(
    adoptions: &BTreeMap<Place, Adoption>,
    (owner, version): (Peer, u64),
    what: &What<Omitted>,
) -> bool {
    let (What::Clear(ids) | What::Adopt(_, ids)) = what else { return false };
    let mut earlier = adoptions.values().filter(|one| one.owner == owner && one.version < version);
    earlier.any(|one| overlap(one.ids, *ids))
}

/// A copy whose record names a former owner.
pub(super) struct Renamed {
    owner: Peer,
    name: Name,
    place: Place,
    record: Vec<u8>,
}

/// In whose name a copy is kept whose record names `owner`.
pub(super) fn keeper_of(
    streams: &BTreeMap<Peer, Stream>,
    adoptions: &BTreeMap<Place, Adoption>,
    owner: Peer,
    (name, place): (Name, Place),
) -> Option<Peer> {
    let held = streams.get(&owner).and_then(|stream| stream.copies.get(&name));
    if held.is_some_and(|held| held.place == place) {
        return Some(owner);
    }
    let adopted = adoptions.values().filter(|one| one.source == owner);
    let mut adopted = adopted.filter(|one| one.ids.contains(name.id));
    adopted.find_map(|one| keeper_of(streams, adoptions, one.owner, (name, place)))
}

impl Renamed {
    pub fn new(owner: Peer, version: u64, name: Name, place: Place, entry: &EntryRef<'_>) -> Self {
        let (mut renamed, mut record) = (Vec::new(), Vec::new());
        entry.encode_as(version, &mut renamed);
        encode_entry(owner, &renamed, &mut record);
        debug_assert_eq!(record[0], ENTRY);
        Self { owner, name, place, record }
    }
}

impl Vault {
    /// A copy came.
    pub(super) fn remember(&mut self, owner: Peer, version: u64, name: Name) {
        if self.recent.len() >= RECENT_MAX
            && let Some((owner, version, _)) = self.recent.pop_front()
            && let Some(stream) = self.streams.get_mut(&owner)
        {
            stream.floor = stream.floor.max(version);
        }
        self.recent.push_back((owner, version, name));
    }

    /// The highest version of what was kept of an owner.
    pub fn last(&self, owner: Peer) -> u64 {
        self.streams.get(&owner).map_or(0, |stream| stream.last)
    }

    /// Which of some ids an owner changed after a version, as far as this node was told; none if
    /// that is not known any more.
    pub fn beyond(&self, owner: Peer, version: u64, ids: IdRange) -> Option<Vec<Name>> {
        let Some(stream) = self.streams.get(&owner) else { return Some(Vec::new()) };
        if stream.is_resumed {
            return None;
        }
        if version >= stream.last {
            return Some(Vec::new());
        }
        if version < stream.floor {
            return None;
        }
        let recent = self.recent.iter().filter(|(peer, later, name)| {
            *peer == owner && *later > version && ids.contains(name.id)
        });
        let mut names: Vec<Name> = recent.map(|(_, _, name)| *name).collect();
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    /// An heir of ids wants to know how far this node came with what a life kept here that is over,
    /// of which it has all up to the version `last` itself. Nothing of it is taken any more. No
    /// answer if nothing could be adopted.
    pub fn on_seal(&mut self, source: Peer, ids: IdRange, last: u64) -> Option<BackupMessage> {
        if self.failed.is_some() {
            return None;
        }
        self.seal(source);
        self.settle(source, ids);
        let (own, beyond) = (self.last(source), self.beyond(source, last, ids));
        Some(BackupMessage::Sealed { source, ids, last: own, beyond })
    }

    /// An owner has what was kept of ids in the name of another life, from what follows on.
    pub(super) fn adopt(&mut self, place: Place, adoption: Adoption) {
        let Adoption { source, owner, ids, .. } = adoption;
        self.drop_copies(owner, ids);
        // Lives end once: nobody adopts what is kept of himself, however indirectly.
        if source != owner && !self.is_adopter(source, owner) {
            self.stream(owner).adopted.assign(ids.start()..ids.end(), Some(source));
            self.adoptions.insert(place, adoption);
        }
    }

    /// Whether a life adopted something of another one, or of one that did.
    fn is_adopter(&self, owner: Peer, source: Peer) -> bool {
        let mut of_source = self.adoptions.values().filter(|one| one.source == source);
        of_source.any(|one| one.owner == owner || self.is_adopter(owner, one.owner))
    }

    /// The metadata names an owner the owner of ids: what it adopted of them is kept in its name
    /// from now on.
    pub(super) fn settle(&mut self, owner: Peer, ids: IdRange) {
        self.settle_one(owner, None, ids);
    }

    /// The same of what was kept in one name, if it says in which. What came in another name it may
    /// have adopted since, and not be the owner of yet.
    pub(super) fn settle_one(&mut self, owner: Peer, from: Option<Peer>, ids: IdRange) {
        let Some(stream) = self.streams.get_mut(&owner) else { return };
        let over = stream.adopted.over(ids.start()..ids.end());
        let over = over.filter(|(_, source)| from.is_none_or(|from| from == **source));
        let adopted: Vec<_> = over.map(|(span, source)| (span, *source)).collect();
        if adopted.is_empty() {
            return;
        }
        for (span, _) in &adopted {
            stream.adopted.assign(span.clone(), None);
        }
        // Their records are not older than what is written now.
        let newest = self.log.newest();
        for (span, source) in adopted {
            let ids = IdRange::from_bits(span.start, span.end);
            // What that one adopted itself comes along.
            self.settle(source, ids);
            let Some(former) = self.streams.get_mut(&source) else { continue };
            let copies = former.drop_copies(ids);
            for place in self.stream(owner).copies.add(copies, newest) {
                self.log.release(place);
            }
        }
        for (place, adoption) in &self.adoptions {
            if adoption.owner == owner
                && let Some(born) = self.marks.get_mut(place)
            {
                *born = newest.max(*born);
            }
        }
    }

    /// Whether somebody may yet come to own what is kept of ids in the name of another.
    pub(super) fn is_to_be_adopted(&self, source: Peer, ids: IdRange) -> bool {
        let of_source = self.adoptions.values().filter(|one| one.source == source);
        let mut owners = of_source.filter_map(|one| self.streams.get(&one.owner));
        owners.any(|stream| {
            stream.adopted.over(ids.start()..ids.end()).any(|(_, other)| *other == source)
        })
    }

    /// Writes copies in the names of those who have them now.
    pub(super) fn rename(&mut self, all: Vec<Renamed>) -> Result<(), LogError> {
        for Renamed { owner, name, place, record } in all {
            let to = self.log.append_reserved(&record)?;
            self.stream(owner).copies.set_place(&name, to);
            self.log.release(place);
        }
        Ok(())
    }
}
