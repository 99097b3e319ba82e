//! Contents of the records in a backup's log: one byte for the kind, then an owner and one of its
//! entries ([`ReplicationEntry`]), a number and a [`MetadataRecord`], or a number and the
//! [`LogWriter`] of all records that follow.

use super::entry::EntryRef;
use super::{Mutation, RecordKey, ReplicationEntry};
use crate::chunks::SessionState;
use crate::codec::{Wire, WireError, WireReader};
use crate::ids::{Creator, IdRange};
use crate::overlay::{MetadataRecord, Peer};

/// Record kinds, the first byte of each record.
pub(super) const ENTRY: u8 = 1;
pub(super) const METADATA: u8 = 2;
pub(super) const WRITER: u8 = 3;

/// Numbers of records are below this.
const NUMBER_MAX: u64 = 1 << 63;

/// The node incarnation that writes a log, from this record on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWriter {
    /// The node and its incarnation.
    pub peer: Peer,
    /// The first incarnation whose records are all in the log.
    pub since: u32,
    /// Identifies the machine's boot: differs after a loss of power.
    pub boot: u64,
    /// Whether everything is synced before it is acknowledged.
    pub is_synced: bool,
}

/// A parsed log record, without values.
pub(super) enum LogRecord {
    ReplicationEntry(Peer, u64, RecordEffect, Vec<SessionState>),
    MetadataRecord(u64, MetadataRecord),
    LogWriter(u64, LogWriter),
}

/// What a logged entry does to the stored records.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordEffect {
    Write(RecordKey, bool),
    Clear(IdRange),
    DiscardFormer(Peer, IdRange),
    ChangeOwner(Peer, IdRange),
    Nothing,
}

/// Encodes the record of an entry of `owner`.
pub(super) fn entry_record(owner: Peer, entry: &ReplicationEntry) -> Vec<u8> {
    let (mut entry_bytes, mut record) = (Vec::new(), Vec::new());
    entry.encode(&mut entry_bytes);
    encode_entry(owner, &entry_bytes, &mut record);
    record
}

/// Encodes a record around an entry that is encoded already.
pub(super) fn encode_entry(owner: Peer, entry: &[u8], record: &mut Vec<u8>) {
    record.push(ENTRY);
    owner.encode(record);
    record.extend_from_slice(entry);
}

/// The owner and entry of a record; none if it is of another kind.
pub(super) fn entry_of(record: &[u8]) -> Option<(Peer, EntryRef<'_>)> {
    let mut from = WireReader::new(record);
    if u8::decode(&mut from).ok()? != ENTRY {
        return None;
    }
    let owner = Peer::decode(&mut from).ok()?;
    EntryRef::parse(&mut from).ok().map(|entry| (owner, entry))
}

/// The value in the record of a `Put`, `PutItem` or `PutLock`; none for any other record.
pub(super) fn value_of(record: &[u8]) -> Option<Vec<u8>> {
    let mut from = WireReader::new(record);
    if u8::decode(&mut from).ok()? != ENTRY {
        return None;
    }
    let (_, _, mutation): (Peer, u64, Mutation) = Wire::decode(&mut from).ok()?;
    match mutation {
        Mutation::Put(_, value) | Mutation::PutItem(_, value) | Mutation::PutLock(_, value) => {
            Some(value)
        }
        _ => None,
    }
}

/// The creator whose metadata a record is about; none for promises.
pub(super) fn creator_of(note: &MetadataRecord) -> Option<Creator> {
    match note {
        MetadataRecord::Batch(creator, ..)
        | MetadataRecord::Restamp(creator, _)
        | MetadataRecord::Removed(creator) => Some(*creator),
        MetadataRecord::Snapshot(snapshot) => Some(snapshot.creator),
        MetadataRecord::Promises(_) => None,
    }
}

/// Refuses numbers of 2^63 and more, so that counting on never overflows.
fn checked_number(number: u64) -> Result<u64, WireError> {
    if number < NUMBER_MAX { Ok(number) } else { Err(WireError::Invalid) }
}

impl LogRecord {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = WireReader::new(bytes);
        let record = match u8::decode(&mut from)? {
            ENTRY => {
                let owner = Peer::decode(&mut from)?;
                let entry = EntryRef::parse(&mut from)?;
                let change = match (entry.mutation.copy(), &entry.mutation) {
                    (Some((key, is_removed)), _) => RecordEffect::Write(key, is_removed),
                    (None, Mutation::Clear(ids)) => RecordEffect::Clear(*ids),
                    (None, Mutation::DiscardFormer(source, ids)) => {
                        RecordEffect::DiscardFormer(*source, *ids)
                    }
                    (None, Mutation::ChangeOwner(source, ids)) => {
                        RecordEffect::ChangeOwner(*source, *ids)
                    }
                    (None, _) => RecordEffect::Nothing,
                };
                Self::ReplicationEntry(owner, entry.version, change, entry.sessions())
            }
            METADATA => {
                let (number, note) = Wire::decode(&mut from)?;
                Self::MetadataRecord(checked_number(number)?, note)
            }
            WRITER => {
                let (number, life) = Wire::decode(&mut from)?;
                Self::LogWriter(checked_number(number)?, life)
            }
            _ => return Err(WireError::Invalid),
        };
        if from.left() == 0 { Ok(record) } else { Err(WireError::Long) }
    }
}
