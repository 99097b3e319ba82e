//! A client of chunks: it finds the owner, sends the request, and repeats it until it has an
//! answer.
//!
//! Invariants of this module:
//! 1. An operation keeps its number across retries and owners, so it takes effect once.
//! 2. The cached owner of an id may be wrong; that costs a lookup and a retry.
//! 3. Each try, the number of tries, and the operation as a whole are bounded in time: if every try
//!    waited for a connection that is never made, the number of tries would bound nothing.
//! 4. An owner keeps its replies to changes until the client tells that all earlier operations have
//!    ended, and for few of them. Where one owner may keep one of them waiting while others answer
//!    many, the client goes on under another id ([`Client::set_patience`]).
//! 5. An operation that is given up ends as [`ChunkError::Unavailable`] only if every try of it was
//!    refused or never sent, so that it was not executed; else as [`ChunkError::Unknown`].

use std::collections::{BTreeMap, BTreeSet};

use crate::chunks::{Action, ChunkError, ClientId, Operation, Reply, Request, Response};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::{Answer, Locator, OverlayCommand, Peer};

/// Time after which an unanswered operation is sent again.
const RETRY_MS: u64 = 200;
/// Pause after an owner answered that it is busy.
const PAUSE_MS: u64 = 20;
/// Pause after an owner turned out to be unreachable, until another may have replaced it.
const UNREACHABLE_MS: u64 = 50;
/// Tries of one operation at most.
const TRIES_MAX: u32 = 1_000;
/// Time after which an operation is not tried again, unless [`Client::set_patience`] says
/// otherwise; longer than failover takes.
const PATIENCE_MS: u64 = 30_000;
/// The circuit breaker of a node: once an operation was given up that this node had refused, others
/// are given up when it refuses them after this time: waiting has been shown not to help. After
/// [`BREAKER_OPEN_MS`], one at a time waits again, until the node answers it. Only for clients
/// whose patience was set.
const BREAKER_PATIENCE_MS: u64 = PAUSE_MS;
const BREAKER_OPEN_MS: u64 = 1_000;
/// Retries without a pause. A new owner that does not know of its ownership yet, as after a crash,
/// would otherwise be asked again as fast as messages travel.
const PROMPT_TRIES: u32 = 2;
/// Every this many tries, the owner is looked up again.
const LOOK_UP_EVERY: u32 = 3;
/// Operations that begin while one has not ended, until a client whose patience was set goes on
/// under another id: far fewer than the replies that an owner keeps.
const NUMBERS_MAX: u64 = 1 << 10;
/// Multiplier of a generator of all 64-bit numbers, from which further ids of a client come.
const NEXT_ID: u64 = 6_364_136_223_846_793_005;
/// Time without a request after which an owner ends the client's session and its locks.
pub const SESSION_MS: u64 = 60_000;

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStatistics {
    /// Operations that were answered.
    pub answered: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that went to a node that did not own the chunk, or no longer did.
    pub misdirected: u64,
    /// Operations that were given up.
    pub given_up: u64,
}

#[derive(Debug)]
enum OperationState {
    /// A lookup with this token is under way.
    Locating(u64),
    /// The owner has the request.
    Asked { to: Peer, since_ms: u64 },
    /// The operation waits for its next try.
    Paused { until_ms: u64 },
}

#[derive(Debug)]
struct PendingOperation {
    action: Action,
    state: OperationState,
    tries: u32,
    /// The only node that may create this operation's chunk: a second one might create a second
    /// chunk.
    creator: Option<Peer>,
    /// The node that could not answer the last try, or be reached; None if the operation waits for
    /// its owner to be found.
    refused_by: Option<Peer>,
    /// Tries that were sent and not refused: any of them may be executed.
    unrefused: u32,
    /// When the operation began, and its deadline.
    began_ms: u64,
    until_ms: u64,
}

impl PendingOperation {
    /// How it ends if it is given up now.
    fn end(&self) -> ChunkError {
        let writes = match &self.action {
            Action::Item { op, .. } => op.verb.writes(),
            action => action.changes(),
        };
        if writes && self.unrefused > 0 { ChunkError::Unknown } else { ChunkError::Unavailable }
    }
}

/// That operations are given up early.
#[derive(Debug)]
struct Breaker {
    /// Until when none of them waits.
    until_ms: u64,
    /// The operation that waits since.
    trial: Option<u64>,
}

/// An id of a client, and the numbers of the operations under it.
#[derive(Debug)]
struct Identity {
    id: ClientId,
    /// The number of its first operation. That before it is of none.
    first: u64,
    /// The owners that have a session of it.
    sessions: BTreeSet<Peer>,
}

/// The operations of one client. It uses the [`Locator`] of its node, which callers pass in.
#[derive(Debug)]
pub struct Client {
    /// Ascending by number; those before the last are kept while they have operations.
    identities: Vec<Identity>,
    /// The node that creates chunks for this client.
    home: Peer,
    next_number: u64,
    pending: BTreeMap<u64, PendingOperation>,
    statistics: ClientStatistics,
    /// Time after which an operation is given up.
    patience_ms: u64,
    /// For operations that wait for these nodes, or, under None, for their owner to be found.
    breakers: BTreeMap<Option<Peer>, Breaker>,
}

/// An operation's number and its result.
pub type Completion = (u64, Result<Response, ChunkError>);

/// A request and the owner to send it to.
pub type OutgoingRequest = (Peer, Request);

impl Client {
    /// Creates a client that creates its chunks on `home`. Requires: no client had `id` before.
    pub fn new(id: ClientId, home: Peer) -> Self {
        let identity = Identity { id, first: 1, sessions: BTreeSet::new() };
        Self {
            identities: vec![identity],
            home,
            next_number: 1,
            pending: BTreeMap::new(),
            statistics: ClientStatistics::default(),
            patience_ms: PATIENCE_MS,
            breakers: BTreeMap::new(),
        }
    }

    /// Sets the time after which later operations are given up, in milliseconds. If that is shorter
    /// than the default, the client may take further ids, so it must take no locks.
    pub fn set_patience(&mut self, patience_ms: u64) {
        self.patience_ms = patience_ms;
    }

    /// The deadline of the operation with this number; None if it has ended.
    pub fn until_ms(&self, number: u64) -> Option<u64> {
        self.pending.get(&number).map(|pending| pending.until_ms)
    }

    /// Makes another node create the chunks of later operations.
    pub fn set_home(&mut self, home: Peer) {
        self.home = home;
    }

    /// Gives up the operations that only a node that is no longer a member could answer.
    pub fn on_members(
        &mut self,
        is_member: impl Fn(Peer) -> bool,
        completions: &mut Vec<Completion>,
    ) {
        let is_lost =
            |pending: &PendingOperation| pending.creator.is_some_and(|peer| !is_member(peer));
        let lost = self.pending.iter().filter(|(_, pending)| is_lost(pending));
        for number in lost.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.give_up(number, completions);
        }
    }

    /// Counters since the client was created.
    pub fn statistics(&self) -> ClientStatistics {
        self.statistics
    }

    /// Operations that are not answered.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Starts an operation. Many may be under way; operations on one chunk are not ordered.
    pub fn submit(
        &mut self,
        action: Action,
        locator: &mut Locator,
        now_ms: u64,
        commands: &mut Vec<OverlayCommand>,
        out: &mut Vec<OutgoingRequest>,
    ) -> u64 {
        self.renew_id();
        let number = self.next_number;
        self.next_number += 1;
        let state = OperationState::Paused { until_ms: now_ms };
        let pending = PendingOperation {
            action,
            state,
            tries: 0,
            creator: None,
            refused_by: None,
            unrefused: 0,
            began_ms: now_ms,
            until_ms: now_ms + self.patience_ms,
        };
        self.pending.insert(number, pending);
        self.advance(number, None, locator, now_ms, commands, out);
        number
    }

    /// Takes another id if an operation under the present one has not ended for too long.
    fn renew_id(&mut self) {
        let Some(Identity { id, first, .. }) = self.identities.last() else { return };
        let (id, first) = (*id, *first);
        let oldest = self.pending.range(first..).next().map_or(self.next_number, |(one, _)| *one);
        if self.patience_ms >= PATIENCE_MS || self.next_number - oldest < NUMBERS_MAX {
            return;
        }
        let id = ClientId(id.0.wrapping_mul(NEXT_ID).wrapping_add(1));
        self.next_number += 1;
        self.identities.push(Identity { id, first: self.next_number, sessions: BTreeSet::new() });
    }

    /// The place of the id under which an operation is.
    fn identity_of(&self, number: u64) -> usize {
        self.identities.partition_point(|identity| identity.first <= number).saturating_sub(1)
    }

    /// All operations under this id with smaller numbers have ended.
    fn answered_below(&self, identity: usize) -> u64 {
        let first = self.identities[identity].first;
        let end = self.identities.get(identity + 1).map_or(self.next_number, |next| next.first - 1);
        self.pending.range(first..end).next().map_or(end, |(number, _)| *number)
    }

    /// Closes the sessions under earlier ids that have no operations any more.
    fn close_earlier(&mut self, out: &mut Vec<OutgoingRequest>) {
        while let [earlier, next, ..] = &self.identities[..]
            && self.pending.range(earlier.first..next.first).next().is_none()
        {
            // No operation has the number before the next id's first.
            let (earlier, number) = (self.identities.remove(0), self.identities[0].first - 1);
            out.extend(close_sessions(earlier, number));
        }
    }

    /// Sends the operation to the owner if it is known, else a lookup to a super peer.
    fn advance(
        &mut self,
        number: u64,
        located: Option<(Peer, u64)>,
        locator: &mut Locator,
        now_ms: u64,
        commands: &mut Vec<OverlayCommand>,
        out: &mut Vec<OutgoingRequest>,
    ) {
        let identity = self.identity_of(number);
        let answered_below = self.answered_below(identity);
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let (to, epoch) = match pending.action.id() {
            None => (*pending.creator.get_or_insert(self.home), 0),
            Some(id) => match located.or_else(|| locator.find(id)) {
                Some(found) => found,
                None => {
                    pending.state = OperationState::Locating(locator.look_up(id, now_ms, commands));
                    return;
                }
            },
        };
        pending.tries += 1;
        pending.unrefused += 1;
        pending.state = OperationState::Asked { to, since_ms: now_ms };
        let operation = Operation { number, epoch, action: pending.action.clone() };
        let mut operations = vec![operation];
        let identity = &mut self.identities[identity];
        if identity.sessions.insert(to) {
            let action = Action::Open { lease_ms: SESSION_MS };
            // The number of an operation that has ended, so that an answer to this one is never
            // taken for an answer to another.
            let number = answered_below - 1;
            operations.insert(0, Operation { number, epoch: 0, action });
        }
        self.statistics.requests += 1;
        let incarnation = to.incarnation;
        let client = identity.id;
        out.push((to, Request { client, incarnation, answered_below, operations }));
    }

    /// Advances the time to `now_ms`: retries operations and gives up those past their deadline.
    pub fn on_tick(
        &mut self,
        locator: &mut Locator,
        now_ms: u64,
        commands: &mut Vec<OverlayCommand>,
        out: &mut Vec<OutgoingRequest>,
        completions: &mut Vec<Completion>,
    ) {
        let pending = &self.pending;
        self.breakers.retain(|_, breaker| match breaker.trial {
            Some(number) => pending.contains_key(&number),
            None => now_ms < breaker.until_ms + BREAKER_OPEN_MS,
        });
        if !self.breakers.is_empty() {
            let is_sought =
                |pending: &PendingOperation| matches!(pending.state, OperationState::Locating(_));
            let sought = self.pending.iter().filter(|(_, pending)| is_sought(pending));
            for number in sought.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.give_up_if_open(number, now_ms, completions);
            }
        }
        self.close_earlier(out);
        let is_due = |pending: &PendingOperation| match pending.state {
            OperationState::Locating(_) => now_ms >= pending.until_ms,
            OperationState::Asked { since_ms, .. } => {
                now_ms >= pending.until_ms.min(since_ms + RETRY_MS)
            }
            OperationState::Paused { until_ms } => now_ms >= until_ms,
        };
        let due = self.pending.iter().filter(|(_, pending)| is_due(pending));
        for number in due.map(|(number, _)| *number).collect::<Vec<_>>() {
            let pending = &self.pending[&number];
            if pending.tries >= TRIES_MAX || now_ms >= pending.until_ms {
                let is_asked = matches!(pending.state, OperationState::Asked { .. });
                if !is_asked && self.patience_ms < PATIENCE_MS {
                    let breaker = Breaker { until_ms: now_ms + BREAKER_OPEN_MS, trial: None };
                    self.breakers.insert(pending.refused_by, breaker);
                }
                self.give_up(number, completions);
                continue;
            }
            // An owner that is cut off from the coordinator answers that it must not serve; another
            // node may own the chunk by now.
            if let Some(id) = pending.action.id()
                && pending.tries.is_multiple_of(LOOK_UP_EVERY)
            {
                locator.forget(IdRange::single(id));
            }
            self.advance(number, None, locator, now_ms, commands, out);
        }
    }

    /// Looks up the owners of all chunks that were requested from an unreachable node, instead of
    /// waiting for the retry timeout.
    pub fn on_unreachable(
        &mut self,
        node: Peer,
        locator: &mut Locator,
        now_ms: u64,
        commands: &mut Vec<OverlayCommand>,
        completions: &mut Vec<Completion>,
    ) {
        let mut refused = Vec::new();
        for (number, pending) in &mut self.pending {
            let (Some(id), OperationState::Asked { to, .. }) =
                (pending.action.id(), &pending.state)
            else {
                continue;
            };
            if *to == node {
                refused.push(*number);
                pending.refused_by = Some(node);
                locator.forget(IdRange::single(id));
                pending.state = match pending.tries <= PROMPT_TRIES {
                    true => OperationState::Locating(locator.look_up(id, now_ms, commands)),
                    false => OperationState::Paused { until_ms: now_ms + UNREACHABLE_MS },
                };
            }
        }
        for number in refused {
            self.give_up_if_open(number, now_ms, completions);
        }
    }

    /// Ends the client. Returns the requests that close its sessions, so that its locks end now; an
    /// owner that misses its request closes the session after [`SESSION_MS`].
    pub fn close(&mut self) -> Vec<OutgoingRequest> {
        let number = self.next_number;
        self.next_number += 1;
        let identities = std::mem::take(&mut self.identities).into_iter();
        identities.flat_map(|identity| close_sessions(identity, number)).collect()
    }

    /// Gives up the operations of a node that makes no progress, as of now: requests that it has
    /// may still be executed.
    pub fn on_silent(&mut self, node: Peer, completions: &mut Vec<Completion>) {
        let is_its = |pending: &PendingOperation| match pending.state {
            OperationState::Asked { to, .. } => to == node,
            _ => false,
        };
        let its = self.pending.iter().filter(|(_, pending)| is_its(pending));
        for number in its.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.give_up(number, completions);
        }
    }

    /// A request with these operations was not sent after all.
    pub fn on_unsent(&mut self, request: &Request) {
        for operation in &request.operations {
            if let Some(pending) = self.pending.get_mut(&operation.number) {
                pending.unrefused = pending.unrefused.saturating_sub(1);
            }
        }
    }

    /// Gives up an operation if waiting for the same node has not helped others.
    fn give_up_if_open(&mut self, number: u64, now_ms: u64, completions: &mut Vec<Completion>) {
        let Some(PendingOperation { refused_by, began_ms, .. }) = self.pending.get(&number) else {
            return;
        };
        if now_ms >= began_ms + BREAKER_PATIENCE_MS
            && let Some(breaker) = self.breakers.get_mut(refused_by)
        {
            if now_ms >= breaker.until_ms && breaker.trial.is_none() {
                breaker.trial = Some(number);
            }
            if breaker.trial != Some(number) {
                self.give_up(number, completions);
            }
        }
    }

    fn give_up(&mut self, number: u64, completions: &mut Vec<Completion>) {
        let Some(pending) = self.pending.remove(&number) else { return };
        self.statistics.given_up += 1;
        completions.push((number, Err(pending.end())));
    }

    /// Handles a super peer's answer to a lookup, which may be another's.
    pub fn on_located(
        &mut self,
        answer: &Answer,
        locator: &mut Locator,
        now_ms: u64,
        commands: &mut Vec<OverlayCommand>,
        out: &mut Vec<OutgoingRequest>,
        completions: &mut Vec<Completion>,
    ) {
        let (token, located) = match answer {
            Answer::Located(token, located) => (*token, Some(*located)),
            Answer::Unowned(token, _) | Answer::Unanswered(token, _) => (*token, None),
            Answer::Changed(..) => return,
        };
        let waits = |pending: &PendingOperation| match pending.state {
            OperationState::Locating(asked) => asked == token,
            _ => false,
        };
        let found = self.pending.iter().find(|(_, pending)| waits(pending));
        let Some(number) = found.map(|(number, _)| *number) else { return };
        match (located, answer) {
            (Some(located), _) => {
                let found = Some((located.owner, located.epoch));
                self.advance(number, found, locator, now_ms, commands, out);
            }
            // The super peer may have died and be replaced, so the lookup is repeated until the
            // operation's deadline.
            (None, Answer::Unanswered(..)) => {
                if let Some(pending) = self.pending.get_mut(&number) {
                    pending.state = OperationState::Paused { until_ms: now_ms + PAUSE_MS };
                }
            }
            (None, _) => {
                let Some(pending) = self.pending.remove(&number) else { return };
                self.statistics.answered += 1;
                // A former owner may have executed an earlier try.
                let error = match pending.end() {
                    ChunkError::Unknown => ChunkError::Unknown,
                    _ => ChunkError::NoChunk,
                };
                completions.push((number, Err(error)));
            }
        }
    }

    /// Handles a reply of an owner.
    pub fn on_reply(
        &mut self,
        from: Peer,
        reply: Reply,
        locator: &mut Locator,
        now_ms: u64,
        commands: &mut Vec<OverlayCommand>,
        completions: &mut Vec<Completion>,
    ) {
        for (number, result) in reply {
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            match result {
                // A session is opened along with an operation, which has its own answer.
                Ok(Response::Session) => {}
                Err(ChunkError::Moved(_) | ChunkError::Outdated | ChunkError::Restarted(_)) => {
                    pending.refused_by = None;
                    pending.unrefused = pending.unrefused.saturating_sub(1);
                    if let (Some(id), OperationState::Asked { .. }) =
                        (pending.action.id(), &pending.state)
                    {
                        self.statistics.misdirected += 1;
                        locator.forget(IdRange::single(id));
                        pending.state = match pending.tries <= PROMPT_TRIES {
                            true => OperationState::Locating(locator.look_up(id, now_ms, commands)),
                            false => OperationState::Paused { until_ms: now_ms + PAUSE_MS },
                        };
                        self.give_up_if_open(number, now_ms, completions);
                    }
                }
                Err(ChunkError::NoSession) => {
                    let identity = self
                        .identities
                        .partition_point(|identity| identity.first <= number)
                        .saturating_sub(1);
                    self.identities[identity].sessions.remove(&from);
                    pending.unrefused = pending.unrefused.saturating_sub(1);
                    pending.state = OperationState::Paused { until_ms: now_ms };
                }
                Err(ChunkError::Retry | ChunkError::Busy | ChunkError::Unavailable) => {
                    pending.refused_by = Some(from);
                    pending.unrefused = pending.unrefused.saturating_sub(1);
                    if matches!(pending.state, OperationState::Asked { .. }) {
                        pending.state = OperationState::Paused { until_ms: now_ms + PAUSE_MS };
                        self.give_up_if_open(number, now_ms, completions);
                    }
                }
                result => {
                    if pending.tries > 1 {
                        self.breakers.remove(&pending.refused_by);
                    }
                    self.pending.remove(&number);
                    self.statistics.answered += 1;
                    completions.push((number, result));
                }
            }
        }
    }

    /// The chunk of an operation that is under way.
    pub fn chunk(&self, number: u64) -> Option<ChunkId> {
        self.pending.get(&number)?.action.id()
    }
}

/// The requests that end all sessions under an id.
fn close_sessions(identity: Identity, number: u64) -> impl Iterator<Item = OutgoingRequest> {
    let Identity { id: client, sessions, .. } = identity;
    sessions.into_iter().map(move |to| {
        let operations = vec![Operation { number, epoch: 0, action: Action::Close }];
        let incarnation = to.incarnation;
        (to, Request { client, incarnation, answered_below: number, operations })
    })
}

#[cfg(test)]
mod tests;
