//! The history of locks as clients saw it, and its check for mutual exclusion and fencing.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Action, ChunkError, Response};
use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::overlay::Peer;

/// What an operation does with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lock {
        lease_ms: u64,
    },
    Unlock,
    /// A put or, without a value, a removal; with a token if it is fenced.
    Change {
        token: Option<u64>,
        value: Option<u64>,
    },
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is not known whether it was executed.
    Unknown,
    Executed,
    Granted(u64),
    Refused(ChunkError),
}

/// An operation that takes, ends or needs a lock.
#[derive(Clone, Copy, Debug)]
struct LockOperation {
    client: Peer,
    kind: Kind,
    began_ms: u64,
    /// When it is known to have been executed; `u64::MAX` if it may not have been.
    known_ms: u64,
    /// When its answer arrived, after which it takes no effect; `u64::MAX` if none did.
    over_ms: u64,
    end: End,
}

/// A granted lock.
#[derive(Clone, Copy, Debug)]
struct Grant {
    client: Peer,
    token: u64,
    began_ms: u64,
    known_ms: u64,
    /// The lock is certainly held from `known_ms` to before `sure_until_ms`.
    sure_until_ms: u64,
}

/// The operations on each chunk that take, end or need its lock. A lock is *surely held* from when
/// its client knows of it until its lease, counted from the request by the fastest clock, may be
/// over, or until an operation begins that may end it. Then:
///
/// 1. Tokens ascend over all grants of a chunk's lock.
/// 2. No change with a token is executed after a greater token was granted.
/// 3. While a lock is surely held, no other client locks, unlocks or changes the chunk, except with
///    the lock's token.
/// 4. Meanwhile the token is not refused, and neither is its client.
#[derive(Debug, Default)]
pub struct LockHistory(BTreeMap<ChunkId, Vec<LockOperation>>);

impl Kind {
    fn of(action: &Action) -> Option<(ChunkId, Self)> {
        let number = |value: &Vec<u8>| value.as_slice().try_into().map_or(0, u64::from_le_bytes);
        match action {
            Action::Lock { id, lease_ms } => Some((*id, Self::Lock { lease_ms: *lease_ms })),
            Action::Unlock(id) => Some((*id, Self::Unlock)),
            Action::Put(id, value) => {
                Some((*id, Self::Change { token: None, value: Some(number(value)) }))
            }
            Action::Delete(id) => Some((*id, Self::Change { token: None, value: None })),
            Action::Fenced(change) => {
                let value = change.value.as_ref().map(number);
                Some((change.id, Self::Change { token: Some(change.token), value }))
            }
            _ => None,
        }
    }
}

impl LockOperation {
    fn grant(&self) -> Option<Grant> {
        let (End::Granted(token), Kind::Lock { lease_ms }) = (self.end, self.kind) else {
            return None;
        };
        let Self { client, began_ms, known_ms, .. } = *self;
        // Clocks run faster by less than 0.5 %, and show whole milliseconds.
        let sure_until_ms = began_ms + (lease_ms * 995 / 1_000).saturating_sub(1);
        Some(Grant { client, token, began_ms, known_ms, sure_until_ms })
    }

    /// Whether it may end or replace a lock that it does not violate.
    fn may_end(&self, grant: &Grant) -> bool {
        let is_other = self.end != End::Granted(grant.token);
        let is_allowed = match self.kind {
            Kind::Lock { .. } | Kind::Unlock | Kind::Change { token: None, value: None } => {
                self.client == grant.client
            }
            Kind::Change { token, value: None } => token == Some(grant.token),
            Kind::Change { .. } => false,
        };
        let was_refused = matches!(self.end, End::Refused(_));
        is_other && is_allowed && !was_refused && self.over_ms > grant.began_ms
    }

    /// What it violates, given a lock that was granted before it began.
    fn violation(&self, grant: &Grant) -> Option<&'static str> {
        let is_own = self.client == grant.client;
        let (token, is_change) = match self.kind {
            Kind::Change { token, .. } => (token, true),
            _ => (None, false),
        };
        match self.end {
            End::Granted(token) if token <= grant.token => return Some("tokens do not ascend"),
            _ if self.known_ms < u64::MAX && token.is_some_and(|token| token < grant.token) => {
                return Some("a change was executed after a greater token was granted");
            }
            End::Refused(ChunkError::Fenced)
                if token == Some(grant.token) && self.over_ms < grant.sure_until_ms =>
            {
                return Some("the token of a held lock was refused");
            }
            End::Refused(ChunkError::Locked | ChunkError::NotLocked)
                if is_own && token.is_none() && self.over_ms < grant.sure_until_ms =>
            {
                return Some("the holder of a lock was refused");
            }
            _ => {}
        }
        let is_allowed = if token.is_some() { token == Some(grant.token) } else { is_own };
        if is_allowed || self.known_ms >= grant.sure_until_ms {
            return None;
        }
        Some(if is_change { "a locked chunk was changed" } else { "a lock was taken or ended" })
    }
}

impl LockHistory {
    /// A client's operation began.
    pub fn begins(&mut self, client: Peer, action: &Action, began_ms: u64) {
        let Some((id, kind)) = Kind::of(action) else { return };
        let (known_ms, over_ms, end) = (u64::MAX, u64::MAX, End::Unknown);
        let operation = LockOperation { client, kind, began_ms, known_ms, over_ms, end };
        self.0.entry(id).or_default().push(operation);
    }

    /// A client's operation ended. Requires: a client begins no two equal operations at once.
    pub fn ends(
        &mut self,
        client: Peer,
        action: &Action,
        began_ms: u64,
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    ) {
        let Some((id, kind)) = Kind::of(action) else { return };
        let Some(operations) = self.0.get_mut(&id) else { return };
        let is_it =
            |one: &LockOperation| (one.client, one.kind, one.began_ms) == (client, kind, began_ms);
        let Some(place) = operations.iter().rposition(is_it) else { return };
        let operation = &mut operations[place];
        operation.end = match result {
            Err(ChunkError::Unknown) => return,
            Err(error @ (ChunkError::Fenced | ChunkError::Locked | ChunkError::NotLocked)) => {
                End::Refused(*error)
            }
            Err(_) => {
                // It was not executed.
                operations.remove(place);
                return;
            }
            Ok(Response::Locked(token)) => End::Granted(*token),
            Ok(_) => End::Executed,
        };
        operation.over_ms = now_ms;
        if !matches!(operation.end, End::Refused(_)) {
            operation.known_ms = operation.known_ms.min(now_ms);
        }
    }

    /// A value of a chunk was read, so its put was executed.
    pub fn read(&mut self, id: ChunkId, value: u64, ended_ms: u64) {
        let operations = self.0.get_mut(&id).into_iter().flatten();
        let wrote = |kind| matches!(kind, Kind::Change { value: Some(put), .. } if put == value);
        for operation in operations.filter(|one| wrote(one.kind)) {
            operation.known_ms = operation.known_ms.min(ended_ms);
        }
    }

    /// The tokens of a chunk, the one that was granted last first.
    pub fn tokens(&self, id: ChunkId) -> impl Iterator<Item = u64> {
        let operations = self.0.get(&id).into_iter().flatten().rev();
        operations.filter_map(LockOperation::grant).map(|grant| grant.token)
    }

    /// Number of grants.
    pub fn grants(&self) -> usize {
        self.0.values().flatten().filter_map(LockOperation::grant).count()
    }

    /// What contradicts the rules of [`LockHistory`].
    pub fn violations(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for (id, operations) in &self.0 {
            for mut grant in operations.iter().filter_map(LockOperation::grant) {
                let ends = operations.iter().filter(|one| one.may_end(&grant));
                let first_end = ends.map(|one| one.began_ms).min();
                grant.sure_until_ms = grant.sure_until_ms.min(first_end.unwrap_or(u64::MAX));
                for one in operations.iter().filter(|one| one.began_ms > grant.known_ms) {
                    if let Some(what) = one.violation(&grant) {
                        violations.push(format!("{id}: {what}: {one:?} after {grant:?}"));
                    }
                }
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::chunks::FencedChange;
    use amalgam_cluster::ids::NodeId;

    use super::*;

    type Answer = Result<Response, ChunkError>;

    /// A client, its action, when it began, and its answer and when that came.
    type Performed = (u16, Action, u64, Option<(Answer, u64)>);

    const LEASE_MS: u64 = 2_000;

    fn id() -> ChunkId {
        ChunkId::from_bits(5).expect("an id")
    }

    fn client(node: u16) -> Peer {
        Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 }
    }

    fn lock() -> Action {
        Action::Lock { id: id(), lease_ms: LEASE_MS }
    }

    fn put(token: Option<u64>, value: u64) -> Action {
        let (id, value) = (id(), value.to_le_bytes().to_vec());
        match token {
            Some(token) => Action::Fenced(Box::new(FencedChange { id, token, value: Some(value) })),
            None => Action::Put(id, value),
        }
    }

    /// Whether a lock of client 1, with token 7 and from 100 to 110, and these operations have a
    /// violation.
    fn is_wrong(operations: &[Performed]) -> bool {
        let mut history = LockHistory::default();
        let first = (1, lock(), 100, Some((Ok(Response::Locked(7)), 110)));
        for (node, action, began_ms, end) in std::iter::once(&first).chain(operations) {
            history.begins(client(*node), action, *began_ms);
            if let Some((result, ended_ms)) = end {
                history.ends(client(*node), action, *began_ms, result, *ended_ms);
            }
        }
        !history.violations().is_empty()
    }

    fn ended(result: Answer, ended_ms: u64) -> Option<(Answer, u64)> {
        Some((result, ended_ms))
    }

    #[test]
    fn a_held_lock_excludes_others() {
        let (ok, locked, sure) = (Ok(Response::Ok), Ok(Response::Locked(8)), 100 + 1_989);
        for (node, action, answer) in [
            (2, lock(), locked.clone()),
            (2, put(None, 1), ok.clone()),
            (2, Action::Unlock(id()), ok.clone()),
            (2, Action::Delete(id()), ok.clone()),
            (2, put(Some(7), 1), Err(ChunkError::Fenced)),
            (1, put(None, 1), Err(ChunkError::Locked)),
            (1, Action::Unlock(id()), Err(ChunkError::NotLocked)),
        ] {
            let one = |began_ms, ended_ms| {
                is_wrong(&[(node, action.clone(), began_ms, ended(answer.clone(), ended_ms))])
            };
            assert!(one(111, 120) && one(111, sure - 1), "{action:?}");
            assert!(!one(110, 120), "{action:?} may have come first");
            assert!(!one(111, sure), "{action:?} may have come after the lease");
            let unlock = |answer| (1, Action::Unlock(id()), 500, ended(answer, 510));
            let later = (node, action.clone(), 505, ended(answer.clone(), 520));
            assert!(!is_wrong(&[unlock(Ok(Response::Ok)), later.clone()]), "{action:?}");
            assert!(!is_wrong(&[(1, Action::Unlock(id()), 500, None), later.clone()]));
            assert!(is_wrong(&[unlock(Err(ChunkError::Locked)), later]), "{action:?}");
        }
        for (node, action, answer) in [
            (2, lock(), Err(ChunkError::Locked)),
            (2, put(None, 1), Err(ChunkError::Locked)),
            (1, lock(), locked),
            (1, put(None, 1), ok.clone()),
            (2, put(Some(7), 1), ok),
            (1, put(Some(6), 1), Err(ChunkError::Fenced)),
        ] {
            assert!(!is_wrong(&[(node, action, 111, ended(answer, 120))]));
        }
    }

    #[test]
    fn tokens_ascend_and_fence() {
        let late = 100 + 2 * LEASE_MS;
        for (token, is_less) in [(6, true), (7, true), (8, false)] {
            let answer = ended(Ok(Response::Locked(token)), late + 10);
            assert_eq!(is_wrong(&[(2, lock(), late, answer)]), is_less, "{token}");
        }
        let change = |token, answer| (2, put(Some(token), 1), late, ended(answer, late + 10));
        assert!(is_wrong(&[change(6, Ok(Response::Ok))]));
        assert!(!is_wrong(&[change(6, Err(ChunkError::Fenced))]));
        assert!(!is_wrong(&[change(7, Ok(Response::Ok))]), "the lease was counted anew");
    }

    #[test]
    fn a_change_that_was_read_was_executed() {
        let mut history = LockHistory::default();
        history.begins(client(1), &lock(), 100);
        history.ends(client(1), &lock(), 100, &Ok(Response::Locked(7)), 110);
        for (token, value) in [(None, 1), (Some(6), 2), (Some(7), 3)] {
            history.begins(client(2), &put(token, value), 200);
        }
        assert_eq!(history.violations(), Vec::<String>::new());
        history.read(id(), 3, 300);
        assert_eq!(history.violations(), Vec::<String>::new());
        history.read(id(), 2, 5_000);
        assert_eq!(history.violations().len(), 1, "at any time");
        history.read(id(), 1, 5_000);
        assert_eq!(history.violations().len(), 1, "the lease was over");
        history.read(id(), 1, 300);
        assert_eq!(history.violations().len(), 2);
        assert_eq!(history.tokens(id()).collect::<Vec<_>>(), [7]);
    }
}
