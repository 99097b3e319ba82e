//! Replication entries as they travel and as backups keep them: encoded once, by the owner.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::chunks::{CachedReply, ChunkError, ClientId, LockGrant, Response, SessionState};
use crate::codec::{Wire, WireError, WireReader};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::Peer;

/// Approximate bytes of an entry, to size buffers.
const ENTRY_BYTES: usize = 128;

/// One change, with the replies that depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationEntry {
    /// Ascends over all changes of an owner incarnation.
    pub version: u64,
    /// The change.
    pub mutation: Mutation,
    /// Replies to clients, so that a new owner repeats them instead of executing an operation
    /// twice.
    pub sessions: Vec<SessionState>,
}

/// Identifies a replicated record: a chunk, its lock, or one item of a named id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The chunk's id, or the item's named id.
    pub id: ChunkId,
    /// CRC32C of the item's key, which tells the items of an id apart; 0 for a chunk, 1 for its
    /// lock.
    pub tag: u32,
}

impl RecordKey {
    const LOCK_TAG: u32 = 1;

    /// The key of the lock of a chunk.
    pub fn lock(id: ChunkId) -> Self {
        Self { id, tag: Self::LOCK_TAG }
    }

    /// Whether it is the key of a lock.
    pub fn is_lock(&self) -> bool {
        self.tag == Self::LOCK_TAG && !self.id.creator().is_named()
    }

    /// The key of the item with that memcached key.
    pub fn item(id: ChunkId, key: &[u8]) -> Self {
        Self { id, tag: crc32c::crc32c(key) }
    }

    /// All record keys whose ids are in `ids`.
    pub fn all(ids: IdRange) -> RangeInclusive<Self> {
        Self { id: ids.first(), tag: 0 }..=Self { id: ids.last(), tag: u32::MAX }
    }
}

impl From<ChunkId> for RecordKey {
    fn from(id: ChunkId) -> Self {
        Self { id, tag: 0 }
    }
}

/// A change to replicated state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation<V = Vec<u8>> {
    /// Sets the value of a chunk.
    Put(ChunkId, V),
    /// Removes a chunk.
    Remove(ChunkId),
    /// Empties all ids, whatever was sent about them before: what follows is their whole contents.
    Clear(IdRange),
    /// Changes nothing: the entry only carries replies.
    RepliesOnly,
    /// The ids have a new owner: records of them under the former owner are not needed any more.
    DiscardFormer(Peer, IdRange),
    /// Sets an item, encoded as [`crate::chunks::ReplicaItem`].
    PutItem(RecordKey, V),
    /// Removes an item.
    RemoveItem(RecordKey),
    /// The ids now hold what is kept of them under a former owner, except for what follows.
    ChangeOwner(Peer, IdRange),
    /// Sets the lock of a chunk, encoded as [`LockGrant`].
    PutLock(ChunkId, V),
    /// Removes the lock of a chunk.
    RemoveLock(ChunkId),
}

impl Mutation {
    /// Sets the record of a key to a value, or removes it.
    pub fn of(key: RecordKey, value: Option<Vec<u8>>) -> Self {
        let (id, is_item) = (key.id, key.id.creator().is_named());
        match value {
            Some(value) if is_item => Self::PutItem(key, value),
            Some(value) if key.is_lock() => Self::PutLock(id, value),
            Some(value) => Self::Put(id, value),
            None if is_item => Self::RemoveItem(key),
            None if key.is_lock() => Self::RemoveLock(id),
            None => Self::Remove(id),
        }
    }

    /// Sets the lock of a chunk.
    pub fn put_lock(id: ChunkId, grant: &LockGrant) -> Self {
        let mut bytes = Vec::with_capacity(LockGrant::BYTES_MIN);
        grant.encode(&mut bytes);
        Self::PutLock(id, bytes)
    }
}

impl<V> Mutation<V> {
    /// The record that is changed and whether it is removed; none if the mutation is not about one
    /// record.
    pub fn copy(&self) -> Option<(RecordKey, bool)> {
        match self {
            Self::Put(id, _) => Some((RecordKey::from(*id), false)),
            Self::Remove(id) => Some((RecordKey::from(*id), true)),
            Self::PutItem(key, _) => Some((*key, false)),
            Self::RemoveItem(key) => Some((*key, true)),
            Self::PutLock(id, _) => Some((RecordKey::lock(*id), false)),
            Self::RemoveLock(id) => Some((RecordKey::lock(*id), true)),
            Self::Clear(_)
            | Self::RepliesOnly
            | Self::DiscardFormer(..)
            | Self::ChangeOwner(..) => None,
        }
    }
}

/// An encoded [`ReplicationEntry`], shared by the queues of all peers that are sent it.
#[derive(Clone, Debug)]
pub(super) struct EncodedEntry {
    pub version: u64,
    pub bytes: Arc<Vec<u8>>,
}

/// The mutation of one operation, by reference: it is encoded as a [`ReplicationEntry`] without
/// making one.
#[derive(Clone, Copy, Debug)]
pub enum MutationRef<'c> {
    /// Sets the value of a chunk.
    Put(ChunkId, &'c [u8]),
    /// Any other mutation, of that chunk or named id.
    Other(ChunkId, &'c Mutation),
}

impl MutationRef<'_> {
    /// The chunk's id, or the item's named id.
    pub fn id(&self) -> ChunkId {
        match self {
            Self::Put(id, _) | Self::Other(id, _) => *id,
        }
    }

    /// Appends the bytes that the equivalent [`ReplicationEntry`] would encode to.
    pub(super) fn encode(self, version: u64, answered: Option<CachedReply<'_>>, to: &mut Vec<u8>) {
        version.encode(to);
        match self {
            Self::Put(id, value) => {
                Mutation::Put(id, SkippedValue).encode(to);
                // Replace the empty value's length by the value.
                to.truncate(to.len() - SkippedValue::BYTES_MIN);
                (value.len() as u32).encode(to);
                to.extend_from_slice(value);
            }
            Self::Other(_, mutation) => mutation.encode(to),
        }
        let Some(CachedReply { client, lease_ms, answered_below, number, answer }) = answered
        else {
            return Vec::<SessionState>::new().encode(to);
        };
        1_u32.encode(to);
        (client, lease_ms, answered_below).encode(to);
        1_u32.encode(to);
        (number, self.id()).encode(to);
        answer.encode(to);
    }
}

/// Entries in order, encoded. A backup keeps the bytes that it was sent without decoding values.
#[derive(Clone, Debug, Default)]
pub struct EntryBatch {
    bytes: Vec<u8>,
    /// Heads of the entries, noted when the batch was decoded and checked; empty for a batch that
    /// was encoded here.
    heads: Vec<EntryHead>,
}

/// An [`EntryRef`] without its bytes.
#[derive(Clone, Debug)]
struct EntryHead {
    version: u64,
    mutation: Mutation<SkippedValue>,
    /// Offsets in the batch at which the entry's sessions begin and the entry ends.
    sessions: usize,
    end: usize,
}

impl PartialEq for EntryBatch {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for EntryBatch {}

impl EntryBatch {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), heads: Vec::new() }
    }

    pub(super) fn push(&mut self, entry: &EncodedEntry) {
        self.bytes.extend_from_slice(&entry.bytes);
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// Whether some entry is a [`Mutation::ChangeOwner`].
    pub fn adopts(&self) -> bool {
        self.iter().any(|entry| matches!(entry.mutation, Mutation::ChangeOwner(..)))
    }

    /// Decodes all entries.
    pub fn to_vec(&self) -> Vec<ReplicationEntry> {
        let decode = |entry: EntryRef<'_>| ReplicationEntry::decode_all(entry.bytes).ok();
        self.iter().filter_map(decode).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        let (mut heads, mut begin) = (self.heads.iter(), 0);
        let unseen = if self.heads.is_empty() { &self.bytes[..] } else { &[] };
        let mut from = WireReader::new(unseen);
        std::iter::from_fn(move || {
            let Some(head) = heads.next() else {
                // This batch was encoded here, so parsing cannot fail.
                return (from.left() > 0).then(|| EntryRef::parse(&mut from).ok()).flatten();
            };
            let bytes = &self.bytes[begin..head.end];
            let sessions = &self.bytes[head.sessions..head.end];
            begin = head.end;
            Some(EntryRef {
                version: head.version,
                mutation: head.mutation.clone(),
                bytes,
                sessions,
            })
        })
    }
}

impl From<Vec<ReplicationEntry>> for EntryBatch {
    fn from(entries: Vec<ReplicationEntry>) -> Self {
        let mut bytes = Vec::new();
        ReplicationEntry::encode_all(&entries, &mut bytes);
        Self { bytes, heads: Vec::new() }
    }
}

impl Wire for EntryBatch {
    const BYTES_MIN: usize = Vec::<u8>::BYTES_MIN;

    fn encode(&self, to: &mut Vec<u8>) {
        self.bytes.encode(to);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        let bytes = Vec::<u8>::decode(from)?;
        let mut entries = WireReader::new(&bytes);
        let mut heads = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
        while entries.left() > 0 {
            let EntryRef { version, mutation, sessions, .. } = EntryRef::parse(&mut entries)?;
            let end = bytes.len() - entries.left();
            heads.push(EntryHead { version, mutation, sessions: end - sessions.len(), end });
        }
        Ok(Self { bytes, heads })
    }
}

/// Stands for a value that was skipped when decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedValue;

impl Wire for SkippedValue {
    const BYTES_MIN: usize = Vec::<u8>::BYTES_MIN;

    fn encode(&self, to: &mut Vec<u8>) {
        Vec::<u8>::new().encode(to);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        Vec::<u8>::skip(from).map(|()| Self)
    }
}

/// An encoded [`ReplicationEntry`], decoded except for its value.
#[derive(Clone, Debug)]
pub(super) struct EntryRef<'b> {
    pub version: u64,
    pub mutation: Mutation<SkippedValue>,
    /// The whole encoded entry.
    pub bytes: &'b [u8],
    sessions: &'b [u8],
}

impl<'b> EntryRef<'b> {
    /// Parses and checks one entry.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the bytes are not an entry.
    pub fn parse(from: &mut WireReader<'b>) -> Result<Self, WireError> {
        let begin = *from;
        let version = Wire::decode(from)?;
        let mutation = Wire::decode(from)?;
        let sessions = *from;
        Vec::<SessionState>::skip(from)?;
        let (bytes, sessions) = (begin.until(from), sessions.until(from));
        Ok(Self { version, mutation, bytes, sessions })
    }

    /// Encodes the same mutation under another version, without replies.
    pub fn encode_as(&self, version: u64, to: &mut Vec<u8>) {
        version.encode(to);
        let mutation = u64::BYTES_MIN..self.bytes.len() - self.sessions.len();
        to.extend_from_slice(&self.bytes[mutation]);
        Vec::<SessionState>::new().encode(to);
    }

    /// The replies that the entry carries.
    pub fn sessions(&self) -> Vec<SessionState> {
        // `parse` checked these bytes.
        Wire::decode_all(self.sessions).unwrap_or_default()
    }

    /// A reader over the replies that makes no lists.
    pub fn session_reader(&self) -> SessionReader<'b> {
        let mut from = WireReader::new(self.sessions);
        let left = u32::decode(&mut from).unwrap_or(0);
        SessionReader { from, left }
    }
}

/// The reply to an operation: its number, the chunk, the result.
pub(super) type Answer = (u64, ChunkId, Result<Response, ChunkError>);

/// Head of a session: client, lease in milliseconds, the number below which all replies arrived,
/// and the number of replies that follow.
pub(super) type SessionHead = (ClientId, u64, u64, u32);

/// Reads an entry's replies without making lists: the head of each session, then as many replies,
/// or reply numbers, as the head says.
#[derive(Debug)]
pub(super) struct SessionReader<'b> {
    from: WireReader<'b>,
    left: u32,
}

impl SessionReader<'_> {
    /// Reads the head of the next session; none at the end.
    pub fn next_session(&mut self) -> Option<SessionHead> {
        self.left = self.left.checked_sub(1)?;
        // `EntryRef::parse` checked these bytes, so decoding does not fail, here and below.
        Wire::decode(&mut self.from).ok()
    }

    /// Reads the next reply of the session.
    pub fn answer(&mut self) -> Option<Answer> {
        Wire::decode(&mut self.from).ok()
    }

    /// Reads the number of the next reply and skips the rest.
    pub fn number(&mut self) -> Option<u64> {
        let number = u64::decode(&mut self.from).ok()?;
        <(ChunkId, Result<Response, ChunkError>)>::skip(&mut self.from).ok()?;
        Some(number)
    }
}
