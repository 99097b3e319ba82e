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

#[derive(Clone, Copy, Debug)]
struct Lock {
    client: ClientId,
    ends_ms: u64,
}

/// The client state that moves along with chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientState {
    /// Locked chunk, client, and remaining milliseconds of each lock.
    pub locks: Vec<(ChunkId, ClientId, u64)>,
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
        self.locks.retain(|_, lock| lock.client != client);
    }

    /// Ends sessions and locks whose lease is over.
    pub fn expire(&mut self, now_ms: u64) {
        let over: Vec<ClientId> = {
            let over = self.sessions.iter().filter(|(_, session)| session.ends_ms <= now_ms);
            over.map(|(client, _)| *client).collect()
        };
        over.into_iter().for_each(|client| self.close(client));
        self.locks.retain(|_, lock| lock.ends_ms > now_ms);
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

    /// Whether another client holds a lock.
    pub fn is_locked(&self, id: ChunkId, client: ClientId, now_ms: u64) -> bool {
        let lock = self.locks.get(&id);
        lock.is_some_and(|lock| lock.client != client && lock.ends_ms > now_ms)
    }

    pub fn lock(
        &mut self,
        id: ChunkId,
        client: ClientId,
        lease_ms: u64,
        now_ms: u64,
    ) -> Result<Response, ChunkError> {
        if self.is_locked(id, client, now_ms) {
            return Err(ChunkError::Locked);
        }
        let ends_ms = now_ms + lease_ms.min(LEASE_MS_MAX);
        self.locks.insert(id, Lock { client, ends_ms });
        Ok(Response::Ok)
    }

    pub fn unlock(
        &mut self,
        id: ChunkId,
        client: ClientId,
        now_ms: u64,
    ) -> Result<Response, ChunkError> {
        let lock = self.locks.get(&id);
        if !lock.is_some_and(|lock| lock.client == client && lock.ends_ms > now_ms) {
            return Err(ChunkError::NotLocked);
        }
        self.locks.remove(&id);
        Ok(Response::Ok)
    }

    /// Removes the lock of a removed chunk.
    pub fn release(&mut self, id: ChunkId) {
        self.locks.remove(&id);
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
        let locks = locks.map(|(id, lock)| (*id, lock.client, lock.ends_ms - now_ms));
        let locks: Vec<_> = locks.collect();
        let sessions = self.sessions.iter().filter_map(|(client, session)| {
            let about = session.answers.iter().filter(|(_, (id, _))| ids.contains(*id));
            let answers: Vec<_> =
                about.map(|(number, (id, answer))| (*number, *id, answer.clone())).collect();
            let (lease_ms, answered_below) = (session.lease_ms, session.answered_below);
            let export = SessionState { client: *client, lease_ms, answered_below, answers };
            let is_locker = locks.iter().any(|(_, locker, _)| locker == client);
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
        for (id, client, left_ms) in export.locks.iter().filter(|(id, ..)| ids.contains(*id)) {
            let ends_ms = now_ms + (*left_ms).min(LEASE_MS_MAX);
            self.locks.insert(*id, Lock { client: *client, ends_ms });
        }
    }
}
