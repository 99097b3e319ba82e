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
/// that it refuses are given up after this time, for [`BREAKER_OPEN_MS`] or until it answers one of
/// them: waiting has been shown not to help. Longer than [`PAUSE_MS`], so that each is tried again.
/// Only for clients whose patience was set.
const BREAKER_PATIENCE_MS: u64 = 30;
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
    /// The node that refused the last try, or could not be reached; None if the operation waits for
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
    /// Until when operations are given up early that wait for these nodes, or, under None, for their
    /// owner to be found.
    breakers: BTreeMap<Option<Peer>, u64>,
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
        self.give_up_while_open(now_ms, completions);
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
                    self.breakers.insert(pending.refused_by, now_ms + BREAKER_OPEN_MS);
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
    ) {
        for pending in self.pending.values_mut() {
            let (Some(id), OperationState::Asked { to, .. }) =
                (pending.action.id(), &pending.state)
            else {
                continue;
            };
            if *to == node {
                pending.refused_by = Some(node);
                locator.forget(IdRange::single(id));
                pending.state = match pending.tries <= PROMPT_TRIES {
                    true => OperationState::Locating(locator.look_up(id, now_ms, commands)),
                    false => OperationState::Paused { until_ms: now_ms + UNREACHABLE_MS },
                };
            }
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

    /// Gives up the operations that wait for a node for which waiting has not helped others.
    fn give_up_while_open(&mut self, now_ms: u64, completions: &mut Vec<Completion>) {
        self.breakers.retain(|_, until_ms| now_ms < *until_ms);
        if self.breakers.is_empty() {
            return;
        }
        let is_late = |pending: &PendingOperation| {
            let waits = !matches!(pending.state, OperationState::Asked { .. });
            let is_open = || self.breakers.contains_key(&pending.refused_by);
            waits && now_ms >= pending.began_ms + BREAKER_PATIENCE_MS && is_open()
        };
        let late = self.pending.iter().filter(|(_, pending)| is_late(pending));
        let late = late.map(|(number, pending)| (*number, pending.refused_by));
        for (number, refused_by) in late.collect::<Vec<_>>() {
            self.breakers.insert(refused_by, now_ms + BREAKER_OPEN_MS);
            self.give_up(number, completions);
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
                    pending.refused_by = Some(from);
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
                    }
                }
                result => {
                    if pending.refused_by == Some(from) {
                        self.breakers.remove(&Some(from));
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
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::overlay::{Located, Message, OverlaySettings};
    use crate::ranges::{Placement, Range};

    #[test]
    fn an_operation_ends_however_long_each_try_takes() {
        let home = Peer { node: NodeId::new(0).expect("a node"), incarnation: 1 };
        let mut locator = Locator::new(home, OverlaySettings::default(), 1 << 16, vec![home]);
        for step_ms in [20, 5_000] {
            let mut client = Client::new(ClientId(1), home);
            let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
            let action = Action::Create(Vec::new());
            let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
            let mut now_ms = 0;
            while completions.is_empty() {
                assert!(now_ms <= PATIENCE_MS, "it goes on at {now_ms}");
                now_ms += step_ms;
                let (to, done) = (&mut asked, &mut completions);
                client.on_tick(&mut locator, now_ms, &mut commands, to, done);
            }
            assert_eq!(completions, [(number, Err(ChunkError::Unknown))], "it was asked");
            assert!(asked.len() > 5 && client.pending() == 0);
        }
    }

    /// Whoever is told that nothing was done may repeat the operation, so nobody is told that of
    /// one that may have been executed.
    #[test]
    fn what_is_given_up_is_unknown_unless_every_try_was_refused() {
        let home = Peer { node: NodeId::new(0).expect("a node"), incarnation: 1 };
        let mut locator = Locator::new(home, OverlaySettings::default(), 1 << 16, vec![home]);
        for (refused, expected) in
            [(1, ChunkError::Unknown), (2, ChunkError::Unavailable), (0, ChunkError::Unknown)]
        {
            let mut client = Client::new(ClientId(1), home);
            client.set_patience(RETRY_MS + 1);
            let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
            let action = Action::Create(Vec::new());
            let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
            assert_eq!(client.until_ms(number), Some(RETRY_MS + 1));
            client.on_tick(&mut locator, RETRY_MS, &mut commands, &mut asked, &mut completions);
            assert_eq!((asked.len(), completions.len()), (2, 0), "it was sent twice");
            for _ in 0..refused {
                let reply = vec![(number, Err(ChunkError::Retry))];
                let (to, done) = (&mut commands, &mut completions);
                client.on_reply(home, reply, &mut locator, RETRY_MS, to, done);
            }
            let late_ms = RETRY_MS + PAUSE_MS;
            client.on_tick(&mut locator, late_ms, &mut commands, &mut asked, &mut completions);
            assert_eq!(completions, [(number, Err(expected))], "{refused} refusals");
            assert_eq!(asked.len(), 2, "it was not sent again");
        }
        // One that was never sent was not executed, and a silent owner is not waited for.
        let mut client = Client::new(ClientId(1), home);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        for is_sent in [false, true] {
            let action = Action::Create(Vec::new());
            let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
            let (_, request) = asked.pop().expect("a request");
            if !is_sent {
                client.on_unsent(&request);
            }
            client.on_silent(home, &mut completions);
            let expected = if is_sent { ChunkError::Unknown } else { ChunkError::Unavailable };
            assert_eq!(completions.pop(), Some((number, Err(expected))));
        }
    }

    /// While one node cannot answer for what it has to take over, another may need a moment for a
    /// range that moves.
    #[test]
    fn only_operations_of_a_node_that_waiting_does_not_help_end_early() {
        let [failing, sound] = [0, 1]
            .map(|number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 });
        let mut locator = Locator::new(sound, OverlaySettings::default(), 1 << 16, vec![sound]);
        let mut client = Client::new(ClientId(1), sound);
        client.set_patience(1_000);
        // Creates at `home`, which refuses `refusals` times. Returns when it ended, and how.
        let mut create = |home, mut now_ms, refusals| {
            let (mut commands, mut asked, mut done) = (Vec::new(), Vec::new(), Vec::new());
            client.set_home(home);
            let action = Action::Create(Vec::new());
            let number = client.submit(action, &mut locator, now_ms, &mut commands, &mut asked);
            let mut refused = 0;
            while done.is_empty() {
                for (to, _) in std::mem::take(&mut asked) {
                    let is_refused = refused < refusals;
                    refused += u32::from(is_refused);
                    let answer = if is_refused { Err(ChunkError::Busy) } else { Ok(Response::Ok) };
                    let reply = vec![(number, answer)];
                    client.on_reply(to, reply, &mut locator, now_ms, &mut commands, &mut done);
                }
                now_ms += 10;
                client.on_tick(&mut locator, now_ms, &mut commands, &mut asked, &mut done);
            }
            (now_ms, done.remove(0).1)
        };
        let (given_up, answered) = (Err(ChunkError::Unavailable), Ok(Response::Ok));
        assert_eq!(create(failing, 0, u32::MAX), (1_000, given_up.clone()));
        assert_eq!(create(failing, 1_000, u32::MAX), (1_030, given_up.clone()), "others did not");
        assert_eq!(create(sound, 1_100, 10), (1_310, answered.clone()), "it refuses for a while");
        assert_eq!(create(failing, 1_400, 1), (1_430, answered), "waiting helped");
        assert_eq!(create(failing, 1_500, u32::MAX), (2_500, given_up), "so it may help others");
    }

    /// One owner keeps an operation waiting, and others answer thousands: they need not keep all of
    /// these replies.
    #[test]
    fn a_client_whose_operation_waits_goes_on_under_another_id() {
        let [slow, fast] = [0, 1]
            .map(|number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 });
        let mut locator = Locator::new(slow, OverlaySettings::default(), 1 << 16, vec![slow]);
        let mut client = Client::new(ClientId(1), slow);
        client.set_patience(PATIENCE_MS - 1);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let create = |client: &mut Client, locator: &mut Locator, asked: &mut Vec<_>| {
            client.submit(Action::Create(Vec::new()), locator, 0, &mut Vec::new(), asked)
        };
        let waits = create(&mut client, &mut locator, &mut asked);
        client.set_home(fast);
        let (mut ids, mut numbers) = (BTreeSet::new(), BTreeSet::from([waits]));
        for _ in 0..5 * NUMBERS_MAX {
            asked.clear();
            let number = create(&mut client, &mut locator, &mut asked);
            assert!(numbers.insert(number), "numbers are unique");
            let (to, request) = asked.pop().expect("a request");
            assert!(to == fast && number - request.answered_below <= NUMBERS_MAX);
            if ids.insert(request.client) {
                let opens = &request.operations[0];
                assert!(matches!(opens.action, Action::Open { .. }) && opens.number < number);
                assert!(!numbers.contains(&opens.number), "it is of no operation");
            }
            let reply = vec![(number, Ok(Response::Ok))];
            client.on_reply(fast, reply, &mut locator, 0, &mut commands, &mut completions);
        }
        assert_eq!((ids.len(), client.identities.len()), (2, 2));
        let reply = vec![(waits, Ok(Response::Ok))];
        client.on_reply(slow, reply, &mut locator, 0, &mut commands, &mut completions);
        asked.clear();
        client.on_tick(&mut locator, 0, &mut commands, &mut asked, &mut completions);
        let closes = |(_, request): &OutgoingRequest| request.operations[0].action == Action::Close;
        assert!(asked.iter().all(closes) && asked.len() == 2, "one for each owner");
        assert_eq!((client.identities.len(), client.pending()), (1, 0));
        assert_eq!(completions.len() as u64, 5 * NUMBERS_MAX + 1);
    }

    /// A session is opened along with an operation, by a request that may be refused as a whole.
    #[test]
    fn a_refused_session_does_not_count_as_the_refusal_of_another_operation() {
        let [home, other] = [0, 1]
            .map(|number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 });
        let mut locator = Locator::new(home, OverlaySettings::default(), 1 << 16, vec![home]);
        let mut client = Client::new(ClientId(1), home);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let mut create = |client: &mut Client| {
            let action = Action::Create(Vec::new());
            client.submit(action, &mut locator, 0, &mut commands, &mut asked);
            let (_, request) = asked.pop().expect("a request");
            assert_eq!(request.operations.len(), 2, "one opens a session");
            request
        };
        create(&mut client);
        client.set_home(other);
        let refused = create(&mut client).operations.into_iter();
        let reply = refused.map(|operation| (operation.number, Err(ChunkError::Busy))).collect();
        client.on_reply(other, reply, &mut locator, 0, &mut commands, &mut completions);
        client.on_silent(home, &mut completions);
        assert_eq!(completions, [(1, Err(ChunkError::Unknown))], "it was sent and not refused");
    }

    /// The responsible super peer may have died, and another takes over.
    #[test]
    fn an_unanswered_lookup_is_retried_until_the_deadline() {
        let home = Peer { node: NodeId::new(0).expect("a node"), incarnation: 1 };
        let mut locator = Locator::new(home, OverlaySettings::default(), 1 << 16, vec![home]);
        let mut client = Client::new(ClientId(1), home);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let action = Action::Get(ChunkId::from_bits(7).expect("an id"));
        let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
        let (mut unanswered, mut now_ms) = (0, 0);
        while completions.is_empty() {
            assert!(now_ms < 2 * PATIENCE_MS, "{unanswered} lookups");
            now_ms += 20;
            let mut answers = Vec::new();
            locator.on_tick(now_ms, &mut commands, &mut answers);
            unanswered += answers.len();
            for answer in answers {
                let (to, done) = (&mut asked, &mut completions);
                client.on_located(&answer, &mut locator, now_ms, &mut commands, to, done);
            }
            let (to, done) = (&mut asked, &mut completions);
            client.on_tick(&mut locator, now_ms, &mut commands, to, done);
        }
        assert_eq!(completions, [(number, Err(ChunkError::Unavailable))]);
        assert!(now_ms >= PATIENCE_MS && unanswered > 2, "{unanswered} lookups, {now_ms} ms");
    }

    /// A node whose lease ended still answers, but another node owns its chunks.
    #[test]
    fn an_owner_without_a_lease_is_looked_up_again() {
        let [home, owner] = [0, 1]
            .map(|number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 });
        let mut locator = Locator::new(home, OverlaySettings::default(), 1 << 16, vec![home]);
        let mut client = Client::new(ClientId(1), home);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let id = ChunkId::from_bits(7).expect("an id");
        let number = client.submit(Action::Get(id), &mut locator, 0, &mut commands, &mut asked);
        let (mut lookups, mut now_ms) = (0, 0);
        while lookups < 3 {
            assert!(now_ms < 1_000, "{lookups} lookups in a second");
            for command in std::mem::take(&mut commands) {
                let OverlayCommand::Send(_, Message::LookUp { token, .. }) = command else {
                    continue;
                };
                lookups += 1;
                let range =
                    Range { ids: IdRange::single(id), placement: Placement::of_owner(owner.node) };
                let found = Some((range, owner.incarnation));
                let found = Message::Found { token, id, epoch: 1, found, is_certain: true };
                let mut answers = Vec::new();
                locator.on_message(&found, now_ms, &mut commands, &mut answers);
                let (to, done) = (&mut asked, &mut completions);
                client.on_located(&answers[0], &mut locator, now_ms, &mut commands, to, done);
            }
            for (to, _) in std::mem::take(&mut asked) {
                assert_eq!(to, owner);
                let reply = vec![(number, Err(ChunkError::Unavailable))];
                client.on_reply(to, reply, &mut locator, now_ms, &mut commands, &mut completions);
            }
            now_ms += 10;
            let (to, done) = (&mut asked, &mut completions);
            client.on_tick(&mut locator, now_ms, &mut commands, to, done);
        }
    }

    /// The replacement is looked up at once, and then at intervals.
    #[test]
    fn an_unreachable_owner_is_looked_up_again() {
        let [home, owner] = [0, 1]
            .map(|number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 });
        let mut locator = Locator::new(home, OverlaySettings::default(), 1 << 16, vec![home]);
        let mut client = Client::new(ClientId(1), home);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let id = ChunkId::from_bits(7).expect("an id");
        client.submit(Action::Get(id), &mut locator, 0, &mut commands, &mut asked);
        for now_ms in [0, 1, UNREACHABLE_MS + 1] {
            let lookups = commands.drain(..).filter_map(|command| match command {
                OverlayCommand::Send(_, Message::LookUp { token, .. }) => Some(token),
                _ => None,
            });
            let [token] = lookups.collect::<Vec<_>>()[..] else { panic!("one lookup") };
            let range =
                Range { ids: IdRange::single(id), placement: Placement::of_owner(owner.node) };
            let located = Located { range, owner, epoch: 1, is_certain: true };
            let answer = Answer::Located(token, located);
            let (to, done) = (&mut asked, &mut completions);
            client.on_located(&answer, &mut locator, now_ms, &mut commands, to, done);
            assert_eq!(asked.drain(..).map(|(to, _)| to).collect::<Vec<_>>(), [owner]);
            client.on_unreachable(home, &mut locator, now_ms, &mut commands);
            assert!(commands.is_empty(), "it was not asked");
            client.on_unreachable(owner, &mut locator, now_ms, &mut commands);
            let (to, done) = (&mut asked, &mut completions);
            client.on_tick(&mut locator, UNREACHABLE_MS + 1, &mut commands, to, done);
        }
        assert!(completions.is_empty() && client.pending() == 1);
    }

    /// A chunk created twice would leave one that nobody knows.
    #[test]
    fn a_create_goes_to_one_node() {
        let [old, new] = [0, 1]
            .map(|number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 });
        let mut locator = Locator::new(old, OverlaySettings::default(), 1 << 16, vec![old]);
        let mut client = Client::new(ClientId(1), old);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let mut create = |client: &mut Client, now_ms, asked: &mut Vec<OutgoingRequest>| {
            let action = Action::Create(Vec::new());
            client.submit(action, &mut locator, now_ms, &mut commands, asked)
        };
        let first = create(&mut client, 0, &mut asked);
        client.set_home(new);
        create(&mut client, 0, &mut asked);
        assert_eq!(asked.drain(..).map(|(to, _)| to).collect::<Vec<_>>(), [old, new]);
        client.on_tick(&mut locator, RETRY_MS, &mut commands, &mut asked, &mut completions);
        let again: BTreeSet<Peer> = asked.drain(..).map(|(to, _)| to).collect();
        assert_eq!(again, BTreeSet::from([old, new]), "each is asked again");
        client.on_members(|_| true, &mut completions);
        assert!(completions.is_empty() && client.pending() == 2);
        client.on_members(|peer| peer == new, &mut completions);
        assert_eq!(completions, [(first, Err(ChunkError::Unknown))], "nobody else can tell");
        assert_eq!(client.pending(), 1);
    }
}
