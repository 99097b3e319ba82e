//! Operations of clients: each is checked, executed on the store, and what it changed goes to
//! backups along with its cached response.

use amalgam_op::Outcome;

use super::ChunkService;
use crate::chunks::{
    Action, ChunkError, ChunkStore, ClientId, ItemOp, ItemVerb, MAX_CHUNK_BYTES, Operation, Reply,
    Request, Response, StoreError, added_to_bytes, value_bytes,
};
use crate::ids::{ChunkId, IdRange};
use crate::replication::{Mutation, MutationRef, RecordKey};

/// Ids that one `create` tries at most; ids that were transferred to others are skipped.
const ALLOCATIONS_MAX: usize = 64;
/// Operations of a request behind this many bytes of values, copied for its reply or since it adds
/// to them, are not executed, and are to be repeated: a reply fits a frame, and one client's
/// request takes bounded memory and time.
pub(super) const COPIED_BYTES_MAX: usize = 8 << 20;

/// What an operation has changed, as backups are told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The chunk has the value that is in the operation.
    Put,
    /// Anything else.
    Other(Mutation),
}

impl<S: ChunkStore> ChunkService<S> {
    /// Executes operations in order; consecutive reads fetch memory together.
    pub(super) fn execute_all(&mut self, request: &Request, now_ms: u64) -> Reply {
        let mut reply = Vec::with_capacity(request.operations.len());
        let mut rest = &request.operations[..];
        while let Some(first) = rest.first() {
            let left = COPIED_BYTES_MAX.saturating_sub(self.copied_bytes);
            if left == 0 {
                reply.extend(rest.iter().map(|one| (one.number, Err(ChunkError::Retry))));
                break;
            }
            let is_read = |operation: &&Operation| matches!(operation.action, Action::Get(_));
            let (now, later) = rest.split_at(rest.iter().take_while(is_read).count().max(1));
            let replied = reply.len();
            if now.len() > 1 {
                self.get_all(now, left, &mut reply);
            } else {
                reply.push((first.number, self.execute_one(request.client, first, now_ms)));
            }
            let values = reply[replied..].iter().map(|(_, result)| value_bytes(result));
            self.copied_bytes += values.sum::<usize>();
            rest = later;
        }
        reply
    }

    fn execute_one(
        &mut self,
        client: ClientId,
        operation: &Operation,
        now_ms: u64,
    ) -> Result<Response, ChunkError> {
        let Operation { number, epoch, action } = operation;
        match action {
            Action::Open { lease_ms } => {
                return self.sessions.open(client, *number, *lease_ms, now_ms);
            }
            Action::Close => {
                self.sessions.close(client);
                self.replicate_ended_locks();
                return Ok(Response::Session);
            }
            Action::Get(id) => {
                self.check_owned(*id, *epoch)?;
                return self.get(*id);
            }
            Action::Item { id, op } if !op.verb.changes() => {
                self.check_owned(*id, *epoch)?;
                if op.verb.writes() && !self.replication.accepts(*id) {
                    return Err(self.refusal());
                }
                let is_announced = self.announce(action);
                let (response, mutation) = self.item(*id, op);
                if let Some(mutation) = mutation {
                    self.replication.replicate(*id, mutation, Vec::new());
                }
                self.end_announcement(*id, is_announced);
                return Ok(response);
            }
            _ => {}
        }
        // Check ownership before the duplicate-request table: a new owner has that table too, but
        // its backups may not have it yet.
        if let Some(id) = action.id() {
            self.check_owned(id, *epoch)?;
        }
        if let Some(before) = self.sessions.cached_response(client, *number) {
            return before;
        }
        let is_announced = self.announce(action);
        let (id, done) = match action.id() {
            None => {
                let Action::Create(value) = action else { return Err(ChunkError::NoChunk) };
                let id = self.allocate()?;
                (id, self.create(id, value))
            }
            Some(id) => {
                if !self.replication.accepts(id) {
                    self.end_announcement(id, is_announced);
                    return Err(self.refusal());
                }
                let done = match action {
                    Action::Item { op, .. } => {
                        let (response, mutation) = self.item(id, op);
                        Ok((response, mutation.map(Change::Other)))
                    }
                    action => self.change(client, id, action, now_ms),
                };
                (id, done)
            }
        };
        let (result, change) = match done {
            Ok((response, change)) => (Ok(response), change),
            Err(error) => (Err(error), None),
        };
        let must_be_cached = match (action, &result) {
            (Action::Item { op, .. }, Ok(Response::Item(answer))) => {
                answer.must_be_cached(&op.verb)
            }
            _ => true,
        };
        if must_be_cached {
            self.sessions.cache_response(client, *number, id, &result);
        }
        if let Some(change) = change {
            let answered =
                self.sessions.answered(client, *number, &result).filter(|_| must_be_cached);
            let mutation = match &change {
                Change::Put => MutationRef::Put(id, action.value()),
                Change::Other(mutation) => MutationRef::Other(id, mutation),
            };
            self.replication.replicate_operation(mutation, answered);
            if matches!(change, Change::Other(Mutation::Remove(_))) && self.sessions.release(id) {
                // After the removal: a backup that has only one of the two must not lack the lock
                // of a chunk that is still there.
                self.replication.replicate(id, Mutation::RemoveLock(id), Vec::new());
            }
        }
        self.end_announcement(id, is_announced);
        result
    }

    /// Why a write is not accepted: there is no use in trying again where no backup can have it.
    fn refusal(&self) -> ChunkError {
        if self.replication.refuses() { ChunkError::Full } else { ChunkError::Retry }
    }

    pub(super) fn check_owned(&self, id: ChunkId, epoch: u64) -> Result<(), ChunkError> {
        match self.owned.get(id.bits()) {
            None if self.failovers.contain(id) => Err(ChunkError::Retry),
            None => Err(ChunkError::Moved(self.moved.get(id.bits()).copied())),
            Some(since) if epoch < *since => Err(ChunkError::Outdated),
            Some(_) if self.frozen.get(id.bits()).is_some() => Err(ChunkError::Retry),
            Some(_) => Ok(()),
        }
    }

    fn get(&mut self, id: ChunkId) -> Result<Response, ChunkError> {
        let mut value = Vec::new();
        if self.store.read(id, &mut |bytes| value.extend_from_slice(bytes)) {
            Ok(Response::Value(value))
        } else {
            Err(ChunkError::NoChunk)
        }
    }

    /// Executes operations that are all reads; those behind `bytes_max` of values are to be
    /// repeated.
    fn get_all(&mut self, operations: &[Operation], bytes_max: usize, reply: &mut Reply) {
        let mut ids = Vec::with_capacity(operations.len());
        let mut places = Vec::with_capacity(operations.len());
        for Operation { number, epoch, action } in operations {
            let Some(id) = action.id() else { continue };
            let owned = self.check_owned(id, *epoch);
            if owned.is_ok() {
                ids.push(id);
                places.push(reply.len());
            }
            reply.push((*number, owned.and(Err(ChunkError::NoChunk))));
        }
        let mut bytes = 0;
        self.store.read_all(&ids, &mut |place, value| {
            let result = if bytes < bytes_max {
                Ok(Response::Value(value.to_vec()))
            } else {
                Err(ChunkError::Retry)
            };
            bytes += value.len();
            reply[places[place]].1 = result;
        });
    }

    /// Executes an operation on a chunk.
    fn change(
        &mut self,
        client: ClientId,
        id: ChunkId,
        action: &Action,
        now_ms: u64,
    ) -> Result<(Response, Option<Change>), ChunkError> {
        if self.sessions.has_locks() || matches!(action, Action::Fenced(_)) {
            self.check_lock(client, id, action, now_ms)?;
        }
        if !self.store.has(id) {
            return Err(ChunkError::NoChunk);
        }
        let change = match action {
            Action::Put(_, value) => self.write(id, value)?,
            Action::Delete(_) => self.delete(id),
            Action::Fenced(change) => match &change.value {
                Some(value) => self.write(id, value)?,
                None => self.delete(id),
            },
            Action::Lock { lease_ms, .. } => {
                let since = self.owned.get(id.bits()).copied().unwrap_or_default();
                let lock = self.sessions.lock(id, client, (since, *lease_ms), now_ms)?;
                let put = Change::Other(Mutation::put_lock(id, &lock));
                return Ok((Response::Locked(lock.token), Some(put)));
            }
            Action::Unlock(_) if !self.sessions.release(id) => return Err(ChunkError::NotLocked),
            Action::Unlock(_) => Change::Other(Mutation::RemoveLock(id)),
            _ => return Ok((Response::Ok, None)),
        };
        Ok((Response::Ok, Some(change)))
    }

    fn delete(&mut self, id: ChunkId) -> Change {
        self.store.remove(id);
        self.note_write(id, &[]);
        if id.creator() == self.allocator.creator() {
            // Refused for ids of an earlier incarnation, which are not handed out again.
            let _ = self.allocator.free(IdRange::single(id));
        }
        Change::Other(Mutation::Remove(id))
    }

    /// Executes an operation on a named item. Its linearization point is that of the engine. What
    /// is returned besides the response has backups keep the item as it is now.
    pub(super) fn item(&mut self, id: ChunkId, op: &ItemOp) -> (Response, Option<Mutation>) {
        if self.reserve.is_open() && op.verb.stores() {
            return (Response::Item(Box::new(Outcome::OutOfMemory.into())), None);
        }
        let answer = self.store.item(id, op);
        self.copied_bytes += added_to_bytes(op, &answer.outcome);
        if op.verb != ItemVerb::Read {
            self.note_write(id, &op.key);
        }
        let may_differ = answer.may_have_changed(&op.verb) || self.may_differ_at_backups(op);
        let mutation = (self.has_backups() && op.verb.writes() && may_differ).then(|| {
            self.scan.note_write(RecordKey::item(id, &op.key));
            self.kept(id, &op.key)
        });
        (Response::Item(Box::new(answer)), mutation)
    }

    /// Whether this node replicates to backups.
    pub(super) fn has_backups(&self) -> bool {
        self.limits.replication.backups > 0
    }

    /// The mutation that replicates the present state of an item.
    pub(super) fn kept(&mut self, id: ChunkId, key: &[u8]) -> Mutation {
        let record = RecordKey::item(id, key);
        let kept = self.store.replica_item(key);
        self.copied_bytes += kept.as_ref().map_or(0, Vec::len);
        kept.map_or(Mutation::RemoveItem(record), |kept| Mutation::PutItem(record, kept))
    }

    fn create(
        &mut self,
        id: ChunkId,
        value: &[u8],
    ) -> Result<(Response, Option<Change>), ChunkError> {
        match self.write(id, value) {
            Ok(put) => Ok((Response::Created(id), Some(put))),
            Err(error) => {
                self.allocator.free(IdRange::single(id)).expect("it was handed out just now");
                Err(error)
            }
        }
    }

    pub(super) fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<Change, ChunkError> {
        if value.len() > MAX_CHUNK_BYTES {
            return Err(ChunkError::TooLarge);
        }
        if self.reserve.is_open() {
            return Err(ChunkError::Full);
        }
        self.store.write(id, value).map_err(|error| match error {
            StoreError::TooLarge => ChunkError::TooLarge,
            StoreError::Full => ChunkError::Full,
        })?;
        self.note_write(id, &[]);
        Ok(Change::Put)
    }

    /// An id for a new chunk. Free ids that were transferred meanwhile are never used again.
    pub(super) fn allocate(&mut self) -> Result<ChunkId, ChunkError> {
        for _ in 0..ALLOCATIONS_MAX {
            let id = self.allocator.allocate().map_err(|_| ChunkError::Full)?;
            let is_claimed = id.counter() < self.claimed_end;
            let is_served = is_claimed && self.serves(id);
            if is_served && self.replication.accepts(id) {
                return Ok(id);
            }
            if is_served || !is_claimed || self.owned.get(id.bits()).is_some() {
                self.allocator.free(IdRange::single(id)).expect("it was handed out just now");
                return Err(self.refusal());
            }
        }
        Err(ChunkError::Retry)
    }
}
