//! What the records of a backup's log say: a kind (1 byte), and an owner and a change of its
//! ([`Entry`]), a [`MetadataRecord`] of the metadata with its number, or the [`Life`] that writes from there
//! on.

use super::entry::EntryRef;
use super::{Entry, Name, What};
use crate::chunks::SessionState;
use crate::ids::{Creator, IdRange};
use crate::overlay::{MetadataRecord, Peer};
use crate::wire::{Reader, Wire, WireError};

/// The kinds of records.
pub(super) const ENTRY: u8 = 1;
pub(super) const NOTE: u8 = 2;
pub(super) const LIFE: u8 = 3;

/// Who writes a log, from one record on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The node, in which life.
    pub peer: Peer,
    /// The first life whose records are all there.
    pub since: u32,
    /// When the machine was started, or something else that is another after a loss of power.
    pub boot: u64,
    /// Whether all is synced before it is answered.
    pub is_synced: bool,
}

/// A record, without values.
pub(super) enum Record {
    Entry(Peer, u64, Change, Vec<SessionState>),
    MetadataRecord(u64, MetadataRecord),
    Life(u64, Life),
}

/// What an entry does to copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Copy(Name, bool),
    Clear(IdRange),
    Bury(Peer, IdRange),
    Adopt(Peer, IdRange),
    Nothing,
}

pub(super) fn entry_record(owner: Peer, entry: &Entry) -> Vec<u8> {
    let (mut entry_bytes, mut record) = (Vec::new(), Vec::new());
    entry.encode(&mut entry_bytes);
    encode_entry(owner, &entry_bytes, &mut record);
    record
}

/// The same of an entry that is encoded already.
pub(super) fn encode_entry(owner: Peer, entry: &[u8], record: &mut Vec<u8>) {
    record.push(ENTRY);
    owner.encode(record);
    record.extend_from_slice(entry);
}

/// The owner and the change of a record, if it is one of that kind, without the value.
pub(super) fn entry_of(record: &[u8]) -> Option<(Peer, EntryRef<'_>)> {
    let mut from = Reader::new(record);
    if u8::decode(&mut from).ok()? != ENTRY {
        return None;
    }
    let owner = Peer::decode(&mut from).ok()?;
    EntryRef::parse(&mut from).ok().map(|entry| (owner, entry))
}

pub(super) fn value_of(record: &[u8]) -> Option<Vec<u8>> {
    let mut from = Reader::new(record);
    if u8::decode(&mut from).ok()? != ENTRY {
        return None;
    }
    let (_, _, what): (Peer, u64, What) = Wire::decode(&mut from).ok()?;
    match what {
        What::Put(_, value) | What::PutItem(_, value) => Some(value),
        _ => None,
    }
}

/// Whose metadata a note is about; none if it is about promises.
pub(super) fn creator_of(note: &MetadataRecord) -> Option<Creator> {
    match note {
        MetadataRecord::Batch(creator, ..)
        | MetadataRecord::Restamp(creator, _)
        | MetadataRecord::Removed(creator) => Some(*creator),
        MetadataRecord::Snapshot(snapshot) => Some(snapshot.creator),
        MetadataRecord::Promises(_) => None,
    }
}

impl Record {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let record = match u8::decode(&mut from)? {
            ENTRY => {
                let owner = Peer::decode(&mut from)?;
                let entry = EntryRef::parse(&mut from)?;
                let change = match (entry.what.copy(), &entry.what) {
                    (Some((name, is_removed)), _) => Change::Copy(name, is_removed),
                    (None, What::Clear(ids)) => Change::Clear(*ids),
                    (None, What::Bury(source, ids)) => Change::Bury(*source, *ids),
                    (None, What::Adopt(source, ids)) => Change::Adopt(*source, *ids),
                    (None, _) => Change::Nothing,
                };
                Self::Entry(owner, entry.version, change, entry.sessions())
            }
            NOTE => {
                let (number, note) = Wire::decode(&mut from)?;
                Self::MetadataRecord(number, note)
            }
            LIFE => {
                let (number, life) = Wire::decode(&mut from)?;
                Self::Life(number, life)
            }
            _ => return Err(WireError::Invalid),
        };
        if from.left() == 0 { Ok(record) } else { Err(WireError::Long) }
    }
}
