//! Messages for peers of older releases: what their format versions do not know is left out.

use std::borrow::Cow;

use super::layout::{Packet, TOKENS_SINCE};
use crate::chunks::{ChunkError, Response, SessionState};
use crate::replication::{Mutation, ReplicationMessage};
use crate::shard::MoveMessage;

impl Packet {
    /// The packet as a peer of a format version is sent it; None if that version has nothing like
    /// it. To a version without tokens of locks, locks are as they were in it: clients get no
    /// tokens, backups no locks.
    pub fn for_version(&self, version: u16) -> Option<Cow<'_, Self>> {
        if self.since() > version {
            return None;
        }
        if version < TOKENS_SINCE && self.may_have_tokens() {
            let mut packet = self.clone();
            if packet.drop_tokens() {
                return Some(Cow::Owned(packet));
            }
        }
        Some(Cow::Borrowed(self))
    }

    fn may_have_tokens(&self) -> bool {
        use ReplicationMessage::{Append, Fetched};
        match self {
            Self::Reply(_) => true,
            Self::Move(MoveMessage::Page { tail, .. }) => tail.is_some(),
            Self::Replication(message) => matches!(message, Append { .. } | Fetched { .. }),
            _ => false,
        }
    }

    /// Whether there were any.
    fn drop_tokens(&mut self) -> bool {
        let mut count = 0;
        match self {
            Self::Reply(reply) => count += drop_from(reply.iter_mut().map(|(_, result)| result)),
            Self::Move(MoveMessage::Page { tail: Some(tail), .. }) => {
                for (_, lock) in &mut tail.locks {
                    count += usize::from(lock.token != 0);
                    lock.token = 0;
                }
                count += drop_from(answers(&mut tail.sessions));
            }
            Self::Replication(ReplicationMessage::Append { entries, .. }) => {
                let mut all = entries.to_vec();
                for entry in &mut all {
                    if is_of_lock(&entry.mutation) {
                        entry.mutation = Mutation::RepliesOnly;
                        count += 1;
                    }
                    count += drop_from(answers(&mut entry.sessions));
                }
                *entries = all.into();
            }
            Self::Replication(ReplicationMessage::Fetched { found, sessions, .. }) => {
                let before = found.len();
                found.retain(|one| !is_of_lock(one));
                count += before - found.len() + drop_from(answers(sessions));
            }
            _ => {}
        }
        count > 0
    }
}

fn is_of_lock(mutation: &Mutation) -> bool {
    matches!(mutation, Mutation::PutLock(..) | Mutation::RemoveLock(_))
}

fn answers(
    sessions: &mut [SessionState],
) -> impl Iterator<Item = &mut Result<Response, ChunkError>> {
    sessions.iter_mut().flat_map(|session| &mut session.answers).map(|(_, _, result)| result)
}

/// Replaces the results that name tokens. Returns their number.
fn drop_from<'r>(results: impl Iterator<Item = &'r mut Result<Response, ChunkError>>) -> usize {
    let mut count = 0;
    for result in results {
        let older = match result {
            Ok(Response::Locked(_)) => Ok(Response::Ok),
            Err(ChunkError::Fenced) => Err(ChunkError::NotLocked),
            _ => continue,
        };
        *result = older;
        count += 1;
    }
    count
}
