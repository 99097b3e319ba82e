//! The sessions of clients at a node: their locks and cached responses.

use std::collections::{BTreeMap, BTreeSet};

use super::request::{ChunkError, ClientId, Response};
use crate::ids::{ChunkId, IdRange};

/// Sessions of a node at most.
const SESSIONS_MAX: usize = 1 << 16;
/// Unconfirmed responses of one client at most.
const ANSWERS_MAX: usize = 1 << 12;
/// The longest lease of a session or lock.
const LEASE_MS_MAX: u64 = 600_000;
/// Bits of a token that count the grants of an owner; the bits above have the epoch since which it
/// owns the chunk. So a later owner's tokens are greater, though it may know nothing of earlier
/// ones. Neither part may overflow: owners then grant no lock.
const GRANT_BITS: u32 = 36;

/// A client's session at one node.
#[derive(Clone, Debug, Default)]
struct Session {
    ends_ms: u64,
    lease_ms: u64,
    /// Operations with smaller numbers are refused.
    answered_below: u64,
    /// Cached responses by operation number. For a create, the id is found only here.
    answers: BTreeMap<u64, (ChunkId, Result<Response, ChunkError>)>,
}

/// A held lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock {
    pub client: ClientId,
    /// See [`LockGrant::token`].
    pub token: u64,
    ends_ms: u64,
}

impl Lock {
    fn grant(&self, now_ms: u64) -> LockGrant {
        let Self { client, token, ends_ms } = *self;
        LockGrant { client, token, lease_ms: ends_ms.saturating_sub(now_ms) }
    }
}

/// A held lock, as backups and new owners are sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockGrant {
    /// The client that holds it.
    pub client: ClientId,
    /// Its token, which ascends over all grants of the chunk's lock; 0 if an owner of a release
    /// without tokens granted it.
    pub token: u64,
    /// What was left of its lease, in milliseconds, when this was sent. A new owner, whose clock is
    /// another, counts it from when it loads the chunk.
    pub lease_ms: u64,
}

/// The client state that moves along with chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientState {
    /// The locks of the chunks.
    pub locks: Vec<(ChunkId, LockGrant)>,
    /// Sessions that have locks on the chunks or responses about them.
    pub sessions: Vec<SessionState>,
}

/// The part of a session that concerns some chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// The client.
    pub client: ClientId,
    /// Lease of the session in milliseconds.
    pub lease_ms: u64,
    /// Operations with smaller numbers are confirmed.
    pub answered_below: u64,
    /// Operation number, chunk and response.
    pub answers: Vec<(u64, ChunkId, Result<Response, ChunkError>)>,
}

/// The reply to one operation, as a replication entry carries it.
#[derive(Clone, Copy, Debug)]
pub struct CachedReply<'a> {
    /// The session's client.
    pub client: ClientId,
    /// The session's lease in milliseconds.
    pub lease_ms: u64,
    /// The client has the replies to all operations with smaller numbers.
    pub answered_below: u64,
    /// The operation's number.
    pub number: u64,
    /// Its result.
    pub answer: &'a Result<Response, ChunkError>,
}

/// All sessions of a node. Times are in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: BTreeMap<ClientId, Session>,
    locks: BTreeMap<ChunkId, Lock>,
    /// Locks granted so far.
    grants: u64,
    /// Chunks whose locks have ended with a lease or a session, which backups were not told yet.
    ended: Vec<ChunkId>,
}

impl Sessions {
    pub fn open(
        &mut self,
        client: ClientId,
        number: u64,
        lease_ms: u64,
        now_ms: u64,
    ) -> Result<Response, ChunkError> {
        let is_known = self.sessions.contains_key(&client);
        if !is_known && self.sessions.len() >= SESSIONS_MAX {
            return Err(ChunkError::Busy);
        }
        let session = self.sessions.entry(client).or_default();
        session.lease_ms = lease_ms.min(LEASE_MS_MAX);
        session.ends_ms = now_ms + session.lease_ms;
        if !is_known {
            session.answered_below = number;
        }
        Ok(Response::Session)
    }

    pub fn close(&mut self, client: ClientId) {
        self.sessions.remove(&client);
        self.keep_locks(|lock| lock.client != client);
    }

    fn keep_locks(&mut self, keep: impl Fn(&Lock) -> bool) {
        let ended = &mut self.ended;
        self.locks.retain(|id, lock| {
            let is_kept = keep(lock);
            ended.extend((!is_kept).then_some(*id));
            is_kept
        });
    }

    /// Takes the chunks whose locks have ended by themselves since the last call.
    pub fn take_ended(&mut self) -> Vec<ChunkId> {
        std::mem::take(&mut self.ended)
    }

    /// Ends sessions and locks whose lease is over.
    pub fn expire(&mut self, now_ms: u64) {
        let over: Vec<ClientId> = {
            let over = self.sessions.iter().filter(|(_, session)| session.ends_ms <= now_ms);
            over.map(|(client, _)| *client).collect()
        };
        over.into_iter().for_each(|client| self.close(client));
        self.keep_locks(|lock| lock.ends_ms > now_ms);
    }

    /// Renews a session and drops the responses that the client confirms. False if there is no
    /// session.
    pub fn touch(&mut self, client: ClientId, answered_below: u64, now_ms: u64) -> bool {
        let Some(session) = self.sessions.get_mut(&client) else { return false };
        if session.ends_ms <= now_ms {
            self.close(client);
            return false;
        }
        session.ends_ms = now_ms + session.lease_ms;
        if answered_below > session.answered_below {
            session.answered_below = answered_below;
            session.answers = session.answers.split_off(&answered_below);
        }
        true
    }

    /// The cached response of an operation, or the reason to refuse it; None if it is new.
    pub fn cached_response(
        &self,
        client: ClientId,
        number: u64,
    ) -> Option<Result<Response, ChunkError>> {
        let Some(session) = self.sessions.get(&client) else {
            return Some(Err(ChunkError::NoSession));
        };
        if number < session.answered_below {
            return Some(Err(ChunkError::Forgotten));
        }
        if let Some((_, answer)) = session.answers.get(&number) {
            return Some(answer.clone());
        }
        (session.answers.len() >= ANSWERS_MAX).then_some(Err(ChunkError::Busy))
    }

    pub fn cache_response(
        &mut self,
        client: ClientId,
        number: u64,
        id: ChunkId,
        answer: &Result<Response, ChunkError>,
    ) {
        if let Some(session) = self.sessions.get_mut(&client) {
            session.answers.insert(number, (id, answer.clone()));
        }
    }

    /// The response as it is replicated to backups; None without a session.
    pub fn answered<'a>(
        &self,
        client: ClientId,
        number: u64,
        answer: &'a Result<Response, ChunkError>,
    ) -> Option<CachedReply<'a>> {
        let Session { lease_ms, answered_below, .. } = *self.sessions.get(&client)?;
        Some(CachedReply { client, lease_ms, answered_below, number, answer })
    }

    /// Whether any chunk is locked.
    pub fn has_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    /// The lock of a chunk. One whose lease is over ends now.
    pub fn lock_of(&mut self, id: ChunkId, now_ms: u64) -> Option<Lock> {
        let lock = *self.locks.get(&id)?;
        if lock.ends_ms > now_ms {
            return Some(lock);
        }
        self.locks.remove(&id);
        self.ended.push(id);
        None
    }

    /// The lock of a chunk, to be sent to a backup.
    pub fn grant_of(&self, id: ChunkId, now_ms: u64) -> Option<LockGrant> {
        self.locks.get(&id).map(|lock| lock.grant(now_ms))
    }

    /// Grants a lock, in place of one that the client has. `since` is the epoch since which this
    /// node owns the chunk. Requires: no other client holds the lock.
    pub fn lock(
        &mut self,
        id: ChunkId,
        client: ClientId,
        (since, lease_ms): (u64, u64),
        now_ms: u64,
    ) -> Result<LockGrant, ChunkError> {
        let grants = self.grants + 1;
        if grants >> GRANT_BITS != 0 || since >> (u64::BITS - GRANT_BITS) != 0 {
            return Err(ChunkError::Busy);
        }
        self.grants = grants;
        let token = since << GRANT_BITS | grants;
        let lock = Lock { client, token, ends_ms: now_ms + lease_ms.min(LEASE_MS_MAX) };
        self.locks.insert(id, lock);
        Ok(lock.grant(now_ms))
    }

    /// Takes a lock that another owner granted; its lease is counted from now on. A session that
    /// the client has here lasts as long: the client may have spoken only to the other owner.
    pub fn restore_lock(&mut self, id: ChunkId, grant: &LockGrant, now_ms: u64) {
        let LockGrant { client, token, lease_ms } = *grant;
        let ends_ms = now_ms + lease_ms.min(LEASE_MS_MAX);
        self.locks.insert(id, Lock { client, token, ends_ms });
        if let Some(session) = self.sessions.get_mut(&client) {
            session.ends_ms = session.ends_ms.max(ends_ms);
        }
    }

    /// Removes the lock of a chunk that was removed, or is unlocked. Whether there was one.
    pub fn release(&mut self, id: ChunkId) -> bool {
        self.locks.remove(&id).is_some()
    }

    /// Forgets the locks of chunks that another node owns.
    pub fn forget_locks(&mut self, ids: IdRange) {
        let locks = self.locks.range(ids.first()..=ids.last());
        for id in locks.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.locks.remove(&id);
        }
    }

    /// Drops cached responses about chunks: those operations did not happen.
    pub fn forget(&mut self, ids: &BTreeSet<ChunkId>) {
        for session in self.sessions.values_mut() {
            session.answers.retain(|_, (id, _)| !ids.contains(id));
        }
    }

    /// The locks and sessions that must move along with chunks.
    pub fn export(&self, ids: IdRange, now_ms: u64) -> ClientState {
        let locks = self.locks.range(ids.first()..=ids.last());
        let locks = locks.filter(|(_, lock)| lock.ends_ms > now_ms);
        let locks: Vec<_> = locks.map(|(id, lock)| (*id, lock.grant(now_ms))).collect();
        let sessions = self.sessions.iter().filter_map(|(client, session)| {
            let about = session.answers.iter().filter(|(_, (id, _))| ids.contains(*id));
            let answers: Vec<_> =
                about.map(|(number, (id, answer))| (*number, *id, answer.clone())).collect();
            let (lease_ms, answered_below) = (session.lease_ms, session.answered_below);
            let export = SessionState { client: *client, lease_ms, answered_below, answers };
            let is_locker = locks.iter().any(|(_, lock)| lock.client == *client);
            (is_locker || !export.answers.is_empty()).then_some(export)
        });
        let sessions = sessions.collect();
        ClientState { locks, sessions }
    }

    /// Takes locks and sessions that moved along, as far as they concern `ids`.
    pub fn import(&mut self, ids: IdRange, export: &ClientState, now_ms: u64) {
        for moved in &export.sessions {
            let is_known = self.sessions.contains_key(&moved.client);
            if !is_known && self.sessions.len() >= SESSIONS_MAX {
                continue;
            }
            let session = self.sessions.entry(moved.client).or_default();
            if !is_known {
                session.lease_ms = moved.lease_ms.min(LEASE_MS_MAX);
                session.answered_below = moved.answered_below;
            }
            session.ends_ms = session.ends_ms.max(now_ms + session.lease_ms);
            for (number, id, answer) in moved.answers.iter().filter(|(_, id, _)| ids.contains(*id))
            {
                if *number >= session.answered_below {
                    session.answers.insert(*number, (*id, answer.clone()));
                }
            }
        }
        for (id, grant) in export.locks.iter().filter(|(id, _)| ids.contains(*id)) {
            self.restore_lock(*id, grant, now_ms);
        }
    }
}
