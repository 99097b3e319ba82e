//! Changes, as they travel and as they are kept: encoded once, by the owner.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::chunks::{ChunkError, ClientId, Response, SessionState};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::Peer;
use crate::wire::{Wire, WireError, WireReader};

/// Bytes of an entry, about.
const ENTRY_BYTES: usize = 128;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationEntry {
    /// Ascends over all changes of an owner's life.
    pub version: u64,
    /// The change.
    pub mutation: Mutation,
    /// What its client was answered, to be answered again rather than carried out twice.
    pub sessions: Vec<SessionState>,
}

/// What a copy is of: a chunk, or one of the items of a named id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The chunk's id, or the item's named id.
    pub id: ChunkId,
    /// Tells the items of an id apart; 0 for a chunk.
    pub tag: u32,
}

impl RecordKey {
    /// Of the item with that key.
    pub fn item(id: ChunkId, key: &[u8]) -> Self {
        Self { id, tag: crc32c::crc32c(key) }
    }

    /// Everything that ids can name.
    pub fn all(ids: IdRange) -> RangeInclusive<Self> {
        Self { id: ids.first(), tag: 0 }..=Self { id: ids.last(), tag: u32::MAX }
    }
}

impl From<ChunkId> for RecordKey {
    fn from(id: ChunkId) -> Self {
        Self { id, tag: 0 }
    }
}

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation<V = Vec<u8>> {
    /// A chunk has that value.
    Put(ChunkId, V),
    /// A chunk is gone.
    Remove(ChunkId),
    /// All ids are empty, whatever was said of them before: what follows is all there is.
    Clear(IdRange),
    /// No chunk: only answers.
    RepliesOnly,
    /// Ids have a new owner: what was kept of them in the name of a former one is not needed.
    DiscardFormer(Peer, IdRange),
    /// An item is that ([`crate::chunks::KeptItem`]).
    PutItem(RecordKey, V),
    /// An item is gone.
    RemoveItem(RecordKey),
    /// All ids are what is kept of them in the name of a former owner, but for what follows.
    ChangeOwner(Peer, IdRange),
}

impl<V> Mutation<V> {
    /// The chunk or item that is changed, if it is one, and whether it is gone.
    pub fn copy(&self) -> Option<(RecordKey, bool)> {
        match self {
            Self::Put(id, _) => Some((RecordKey::from(*id), false)),
            Self::Remove(id) => Some((RecordKey::from(*id), true)),
            Self::PutItem(name, _) => Some((*name, false)),
            Self::RemoveItem(name) => Some((*name, true)),
            Self::Clear(_)
            | Self::RepliesOnly
            | Self::DiscardFormer(..)
            | Self::ChangeOwner(..) => None,
        }
    }
}

/// An encoded [`ReplicationEntry`], shared by the queues of all who are sent it.
#[derive(Clone, Debug)]
pub(super) struct EncodedEntry {
    pub version: u64,
    pub bytes: Arc<Vec<u8>>,
}

/// What an operation changed, to be encoded as an [`ReplicationEntry`] without making one.
#[derive(Clone, Copy, Debug)]
pub enum MutationRef<'c> {
    /// A chunk has that value.
    Put(ChunkId, &'c [u8]),
    /// Anything else, of that chunk or named id.
    Other(ChunkId, &'c Mutation),
}

/// What a client is answered, as an entry says it of one operation.
#[derive(Clone, Copy, Debug)]
pub struct CachedReply<'a> {
    /// Whose session.
    pub client: ClientId,
    /// Its lease in milliseconds.
    pub lease_ms: u64,
    /// Operations with smaller numbers were answered.
    pub answered_below: u64,
    /// The operation.
    pub number: u64,
    /// Its answer.
    pub answer: &'a Result<Response, ChunkError>,
}

impl MutationRef<'_> {
    /// The chunk's id, or the item's named id.
    pub fn id(&self) -> ChunkId {
        match self {
            Self::Put(id, _) | Self::Other(id, _) => *id,
        }
    }

    /// As the [`ReplicationEntry`] would be that says the same.
    pub(super) fn encode(self, version: u64, answered: Option<CachedReply<'_>>, to: &mut Vec<u8>) {
        version.encode(to);
        match self {
            Self::Put(id, value) => {
                Mutation::Put(id, SkippedValue).encode(to);
                // The value comes in place of none.
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

/// Changes in their order. What a backup was sent is what it keeps: the bytes are not taken apart.
#[derive(Clone, Debug, Default)]
pub struct EntryBatch {
    bytes: Vec<u8>,
    /// Of those that were decoded: what was seen when they were checked.
    heads: Vec<EntryHead>,
}

/// An [`EntryRef`] without its bytes.
#[derive(Clone, Debug)]
struct EntryHead {
    version: u64,
    mutation: Mutation<SkippedValue>,
    /// Where its sessions begin, and where it ends.
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

    /// How many they are.
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// Whether one of them says that copies have another owner.
    pub fn adopts(&self) -> bool {
        self.iter().any(|entry| matches!(entry.mutation, Mutation::ChangeOwner(..)))
    }

    /// All of them, taken apart.
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
                // They were encoded here.
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

/// A value that was passed over.
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

/// An encoded [`ReplicationEntry`], seen without taking its value out.
#[derive(Clone, Debug)]
pub(super) struct EntryRef<'b> {
    pub version: u64,
    pub mutation: Mutation<SkippedValue>,
    /// All of it.
    pub bytes: &'b [u8],
    sessions: &'b [u8],
}

impl<'b> EntryRef<'b> {
    /// Reads one, and checks all of it.
    ///
    /// # Errors
    ///
    /// [`WireError`] if it is none.
    pub fn parse(from: &mut WireReader<'b>) -> Result<Self, WireError> {
        let begin = *from;
        let version = Wire::decode(from)?;
        let mutation = Wire::decode(from)?;
        let sessions = *from;
        Vec::<SessionState>::skip(from)?;
        let (bytes, sessions) = (begin.until(from), sessions.until(from));
        Ok(Self { version, mutation, bytes, sessions })
    }

    /// The same change under another version, and without answers.
    pub fn encode_as(&self, version: u64, to: &mut Vec<u8>) {
        version.encode(to);
        let mutation = u64::BYTES_MIN..self.bytes.len() - self.sessions.len();
        to.extend_from_slice(&self.bytes[mutation]);
        Vec::<SessionState>::new().encode(to);
    }

    /// What clients were answered.
    pub fn sessions(&self) -> Vec<SessionState> {
        // It was checked.
        Wire::decode_all(self.sessions).unwrap_or_default()
    }

    /// The same, one after the other.
    pub fn session_reader(&self) -> SessionReader<'b> {
        let mut from = WireReader::new(self.sessions);
        let left = u32::decode(&mut from).unwrap_or(0);
        SessionReader { from, left }
    }
}

/// What an operation was answered: its number, the chunk, the answer.
pub(super) type Answer = (u64, ChunkId, Result<Response, ChunkError>);

/// Whose session it is, its lease, below which number all was answered, and how many answers
/// follow.
pub(super) type SessionHead = (ClientId, u64, u64, u32);

/// Reads what an entry says that clients were answered, without lists: the head of a session, then
/// as many answers as it says, or their numbers.
#[derive(Debug)]
pub(super) struct SessionReader<'b> {
    from: WireReader<'b>,
    left: u32,
}

impl SessionReader<'_> {
    /// The head of the next session.
    pub fn next_session(&mut self) -> Option<SessionHead> {
        self.left = self.left.checked_sub(1)?;
        // It was checked, here and below.
        Wire::decode(&mut self.from).ok()
    }

    /// The next answer of the session.
    pub fn answer(&mut self) -> Option<Answer> {
        Wire::decode(&mut self.from).ok()
    }

    /// The number of the next answer, which is passed over.
    pub fn number(&mut self) -> Option<u64> {
        let number = u64::decode(&mut self.from).ok()?;
        <(ChunkId, Result<Response, ChunkError>)>::skip(&mut self.from).ok()?;
        Some(number)
    }
}
