//! What a client can do with one chunk or name, in a call each.

use amalgam_cluster::chunks::{
    Action, ChunkError, FencedChange, ItemAnswer, ItemOp, ItemVerb, Response,
};
use amalgam_cluster::ids::ChunkId;
use amalgam_op::{Delete, MAX_KEY_BYTES, Outcome, Store, StoreMode, Verb};

use super::ClusterClient;

impl ClusterClient {
    /// Stores a new chunk on the home node.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn create(&mut self, value: &[u8]) -> Result<ChunkId, ChunkError> {
        match self.call(Action::Create(value.to_vec()))? {
            Response::Created(id) => Ok(id),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Reads a chunk.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn get(&mut self, id: ChunkId) -> Result<Vec<u8>, ChunkError> {
        match self.call(Action::Get(id))? {
            Response::Value(value) => Ok(value),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Reads chunks together.
    pub fn get_all(&mut self, ids: &[ChunkId]) -> Vec<Result<Vec<u8>, ChunkError>> {
        let done = self.call_all(ids.iter().map(|id| Action::Get(*id)).collect());
        let value = |done: Result<Response, ChunkError>| match done? {
            Response::Value(value) => Ok(value),
            _ => Err(ChunkError::Unavailable),
        };
        done.into_iter().map(value).collect()
    }

    /// Replaces the value of a chunk.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn put(&mut self, id: ChunkId, value: &[u8]) -> Result<(), ChunkError> {
        self.call(Action::Put(id, value.to_vec())).map(drop)
    }

    /// Removes a chunk.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn delete(&mut self, id: ChunkId) -> Result<(), ChunkError> {
        self.call(Action::Delete(id)).map(drop)
    }

    /// Gives a chunk a name, in place of what had it before: a named item that holds the 8 bytes of
    /// the id, the highest first (DXRAM's naming service).
    ///
    /// # Errors
    ///
    /// [`ChunkError::TooLarge`] if the name is no key; else as [`ClusterClient::call`].
    pub fn name(&mut self, name: &[u8], id: ChunkId) -> Result<(), ChunkError> {
        let store = Store::new(StoreMode::Set, b"", 0, 0);
        let ItemVerb::Store(head, _) = ItemVerb::from(Verb::Store(store)) else {
            return Err(ChunkError::Unavailable);
        };
        let value = id.bits().to_be_bytes().to_vec();
        match self.item(name, ItemVerb::Store(head, value))?.outcome {
            Outcome::Stored(_) => Ok(()),
            Outcome::TooLarge => Err(ChunkError::TooLarge),
            _ => Err(ChunkError::Full),
        }
    }

    /// The chunk of that name.
    ///
    /// # Errors
    ///
    /// [`ChunkError::NoChunk`] if nothing has that name, or something that is no chunk; else as
    /// [`ClusterClient::name`].
    pub fn named(&mut self, name: &[u8]) -> Result<ChunkId, ChunkError> {
        let item = self.item(name, ItemVerb::Read)?.item.ok_or(ChunkError::NoChunk)?;
        let bits = item.value.try_into().map(u64::from_be_bytes);
        let id = bits.ok().and_then(|bits| ChunkId::from_bits(bits).ok());
        id.filter(|id| !id.creator().is_named()).ok_or(ChunkError::NoChunk)
    }

    /// Takes a name back; the chunk stays.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::named`].
    pub fn unname(&mut self, name: &[u8]) -> Result<(), ChunkError> {
        match self.item(name, ItemVerb::Delete(Delete::default()))?.outcome {
            Outcome::Deleted => Ok(()),
            _ => Err(ChunkError::NoChunk),
        }
    }

    /// Carries out an operation on a named item.
    fn item(&mut self, key: &[u8], verb: ItemVerb) -> Result<ItemAnswer, ChunkError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(ChunkError::TooLarge);
        }
        let id = self.place(key).map_err(|_| ChunkError::Unavailable)?;
        let op = Box::new(ItemOp { key: key.to_vec(), verb });
        match self.call(Action::Item { id, op })? {
            Response::Item(answer) => Ok(*answer),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Locks a chunk for some time at most. The lock ends before that when the client does, or
    /// [`SESSION_MS`](amalgam_cluster::client::SESSION_MS) after its last request to the chunk's
    /// owner; one whose process died holds it for that long. With backups it survives the owner,
    /// and its lease then begins anew.
    ///
    /// Returns the token of the lock, for [`Self::put_fenced`] and for others who shall refuse what
    /// an earlier holder sends late: each grant of a chunk's lock has a greater token than those
    /// before. A lock that the client has already is granted anew. An owner of a release that knows
    /// no tokens returns 0.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn lock(&mut self, id: ChunkId, lease_ms: u64) -> Result<u64, ChunkError> {
        match self.call(Action::Lock { id, lease_ms })? {
            Response::Locked(token) => Ok(token),
            Response::Ok => Ok(0),
            _ => Err(ChunkError::Unavailable),
        }
    }

    /// Replaces the value of a chunk if the lock of this token is still held, by whichever client.
    ///
    /// # Errors
    ///
    /// [`ChunkError::Fenced`] if it has ended, and nothing was changed; else as
    /// [`ClusterClient::call`].
    pub fn put_fenced(&mut self, id: ChunkId, value: &[u8], token: u64) -> Result<(), ChunkError> {
        let value = Some(value.to_vec());
        self.call(Action::Fenced(Box::new(FencedChange { id, token, value }))).map(drop)
    }

    /// Removes a chunk if the lock of this token is still held, by whichever client.
    ///
    /// # Errors
    ///
    /// As [`Self::put_fenced`].
    pub fn delete_fenced(&mut self, id: ChunkId, token: u64) -> Result<(), ChunkError> {
        let value = None;
        self.call(Action::Fenced(Box::new(FencedChange { id, token, value }))).map(drop)
    }

    /// Releases a lock.
    ///
    /// # Errors
    ///
    /// As [`ClusterClient::call`].
    pub fn unlock(&mut self, id: ChunkId) -> Result<(), ChunkError> {
        self.call(Action::Unlock(id)).map(drop)
    }
}
