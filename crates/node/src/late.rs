//! Operations of a gateway's connections that other nodes execute, or this node's event loop, and
//! their answers until the connections take them.
//!
//! Invariants:
//! 1. An answer is taken once, by the operation with its ticket.
//! 2. A connection goes on when all operations that it has under way are answered.
//! 3. Answers that were not taken are bounded: for each node, by [`OPERATIONS_MAX`], or fewer where
//!    values are large ([`VALUES_BYTES`]). A slow connection keeps none that can be asked for
//!    again.

use std::collections::{BTreeMap, HashMap};

use amalgam_cluster::chunks::{ChunkError, Response};
use amalgam_cluster::overlay::Peer;
use amalgam_index::Ticket;

/// Operations of a worker that one node has at a time, at most; a node that stands still takes no
/// room from others.
const OPERATIONS_MAX: usize = 256;
/// The same, at least.
const OPERATIONS_MIN: usize = 8;
/// Bytes of values that a worker expects from one node at a time, about.
const VALUES_BYTES: usize = 8 << 20;

/// The result of an operation.
pub type Done = Result<Response, ChunkError>;

/// One operation that was begun.
#[derive(Debug)]
struct Operation {
    /// None before it is answered.
    done: Option<Done>,
    /// Whether the answer may be dropped, as the operation can be begun again.
    is_read: bool,
    /// The node that is to execute it; None if the client has to find out.
    owner: Option<Peer>,
    /// Whether it counts for its owner's room: while its connection waits.
    takes_room: bool,
}

/// The operations of one connection, by position and key.
#[derive(Debug, Default)]
struct Waiting {
    operations: BTreeMap<(u64, u32), Operation>,
    /// The number of those without an answer.
    unanswered: usize,
}

/// The operations of all connections of a worker.
#[derive(Debug, Default)]
pub struct LateOperations {
    connections: HashMap<u64, Waiting>,
    /// Those under way, by the client's number.
    tickets: HashMap<u64, Ticket>,
    /// Operations of connections that wait, by owner.
    taken: HashMap<Option<Peer>, usize>,
    /// About the length of the longest values that came lately, in bytes.
    value_bytes: usize,
}

impl LateOperations {
    /// Whether one more operation of this owner may be begun.
    pub fn has_room(&self, owner: Option<Peer>) -> bool {
        let most = VALUES_BYTES / self.value_bytes.max(1);
        let taken = self.taken.get(&owner).copied().unwrap_or(0);
        taken < most.clamp(OPERATIONS_MIN, OPERATIONS_MAX)
    }

    /// Whether an operation that was begun is answered; None if it was not, or its answer was
    /// taken.
    pub fn is_answered(&self, ticket: Ticket) -> Option<bool> {
        let waiting = self.connections.get(&ticket.connection)?;
        Some(waiting.operations.get(&place(ticket))?.done.is_some())
    }

    /// An operation is answered before anybody was asked.
    pub fn refuse(&mut self, ticket: Ticket, error: ChunkError) {
        let done = Some(Err(error));
        let operation = Operation { done, is_read: true, owner: None, takes_room: false };
        let waiting = self.connections.entry(ticket.connection).or_default();
        waiting.operations.insert(place(ticket), operation);
    }

    /// An operation was begun that the client knows by `number`.
    pub fn begin(&mut self, ticket: Ticket, number: u64, is_read: bool, owner: Option<Peer>) {
        let operation = Operation { done: None, is_read, owner, takes_room: true };
        let waiting = self.connections.entry(ticket.connection).or_default();
        waiting.operations.insert(place(ticket), operation);
        waiting.unanswered += 1;
        self.tickets.insert(number, ticket);
        *self.taken.entry(owner).or_default() += 1;
    }

    /// An operation has ended. Whether it was one of these; its connection is appended to
    /// `answered` if it waits for nothing more.
    pub fn end(&mut self, number: u64, done: Done, answered: &mut Vec<u64>) -> bool {
        let Some(ticket) = self.tickets.remove(&number) else { return false };
        self.value_bytes = value_bytes(&done).max(self.value_bytes - self.value_bytes / 8);
        let Some(waiting) = self.connections.get_mut(&ticket.connection) else { return true };
        let Some(operation) = waiting.operations.get_mut(&place(ticket)) else { return true };
        operation.done = Some(done);
        waiting.unanswered -= 1;
        if waiting.unanswered == 0 {
            waiting.operations.values_mut().for_each(|one| release(&mut self.taken, one));
            answered.push(ticket.connection);
        }
        true
    }

    /// Takes an answer.
    #[inline]
    pub fn take(&mut self, ticket: Ticket) -> Option<Done> {
        if self.connections.is_empty() {
            return None;
        }
        let waiting = self.connections.get_mut(&ticket.connection)?;
        let place = place(ticket);
        waiting.operations.get(&place)?.done.as_ref()?;
        waiting.operations.remove(&place)?.done
    }

    /// See [`amalgam_index::LateAnswers::discard`].
    pub fn discard(&mut self, connection: u64, position: u64, is_slow: bool) -> bool {
        let Some(waiting) = self.connections.get_mut(&connection) else { return false };
        let (taken, unanswered) = (&mut self.taken, &mut waiting.unanswered);
        waiting.operations.retain(|(at, _), operation| {
            let is_kept = *at >= position && !(is_slow && operation.is_read);
            if !is_kept {
                *unanswered -= usize::from(operation.done.is_none());
                release(taken, operation);
            }
            is_kept
        });
        let is_kept = !waiting.operations.is_empty();
        if !is_kept {
            self.connections.remove(&connection);
        }
        is_kept
    }
}

fn place(ticket: Ticket) -> (u64, u32) {
    (ticket.position, ticket.key)
}

/// Gives an operation's room back.
fn release(taken: &mut HashMap<Option<Peer>, usize>, operation: &mut Operation) {
    if std::mem::take(&mut operation.takes_room)
        && let Some(count) = taken.get_mut(&operation.owner)
    {
        *count -= 1;
        if *count == 0 {
            taken.remove(&operation.owner);
        }
    }
}

/// The length of the value in an answer, in bytes.
fn value_bytes(done: &Done) -> usize {
    match done {
        Ok(Response::Item(answer)) => answer.item.as_ref().map_or(0, |item| item.value.len()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::chunks::{ItemAnswer, ItemRecord};
    use amalgam_cluster::ids::NodeId;
    use amalgam_op::{Expiry, Hit, Outcome};

    use super::*;

    fn ticket(connection: u64, position: u64, key: u32) -> Ticket {
        Ticket { connection, position, key }
    }

    fn owner(number: u16) -> Option<Peer> {
        Some(Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 })
    }

    fn value(bytes: usize) -> Done {
        let item = ItemRecord {
            value: vec![0; bytes],
            flags: 0,
            expiry: Expiry(0),
            cas: None,
            fetched: false,
            stale: false,
            won: false,
            idle_seconds: None,
        };
        let outcome = Outcome::Hit(Hit::default());
        Ok(Response::Item(Box::new(ItemAnswer { outcome, item: Some(item) })))
    }

    #[test]
    fn a_connection_goes_on_when_all_is_answered_and_takes_each_answer_once() {
        let (mut late, mut answered) = (LateOperations::default(), Vec::new());
        late.begin(ticket(1, 10, 0), 100, true, owner(0));
        late.begin(ticket(1, 10, 1), 101, true, owner(1));
        late.begin(ticket(2, 10, 0), 102, false, owner(0));
        assert!(late.end(101, value(5), &mut answered) && answered.is_empty());
        assert_eq!(late.take(ticket(1, 10, 0)), None, "it is under way");
        assert!(late.end(100, Err(ChunkError::Unavailable), &mut answered));
        assert_eq!(answered, [1]);
        assert!(!late.end(99, value(1), &mut answered), "somebody else's");
        assert_eq!(late.take(ticket(1, 10, 0)), Some(Err(ChunkError::Unavailable)));
        assert_eq!(late.take(ticket(1, 10, 0)), None, "it was taken");
        assert_eq!(late.take(ticket(1, 11, 1)), None, "another request");
        assert_eq!(late.take(ticket(1, 10, 1)), Some(value(5)));
        // A connection closes, and the answer to what it had under way has no taker.
        assert!(!late.discard(2, u64::MAX, false));
        assert!(late.end(102, value(1), &mut answered));
        assert_eq!((answered.len(), late.take(ticket(2, 10, 0))), (1, None));
        assert!(late.taken.is_empty() && late.tickets.is_empty());
    }

    #[test]
    fn a_slow_connection_keeps_what_cannot_be_asked_for_again() {
        let (mut late, mut answered) = (LateOperations::default(), Vec::new());
        for (position, is_read) in [(10, true), (20, false), (30, true), (40, false)] {
            late.begin(ticket(1, position, 0), position, is_read, owner(0));
            late.end(position, value(1), &mut answered);
        }
        assert!(late.discard(1, 20, false) && late.connections[&1].operations.len() == 3);
        assert!(late.discard(1, 20, true) && late.connections[&1].operations.len() == 2);
        assert_eq!(late.take(ticket(1, 30, 0)), None, "it is asked for again");
        assert!(late.take(ticket(1, 20, 0)).is_some() && late.take(ticket(1, 40, 0)).is_some());
        assert!(!late.discard(1, 50, false) && late.connections.is_empty());
    }

    #[test]
    fn a_silent_node_takes_no_room_of_others_and_large_values_take_more() {
        let (mut late, mut answered) = (LateOperations::default(), Vec::new());
        let mut number = 0;
        let mut fill = |late: &mut LateOperations, owner: Option<Peer>| {
            let begin = number;
            while late.has_room(owner) {
                late.begin(ticket(number, 0, 0), number, true, owner);
                number += 1;
            }
            begin..number
        };
        let silent = fill(&mut late, owner(0));
        assert_eq!(silent.count(), OPERATIONS_MAX);
        let sound = fill(&mut late, owner(1));
        assert_eq!(sound.clone().count(), OPERATIONS_MAX);
        sound.for_each(|number| assert!(late.end(number, value(1 << 20), &mut answered)));
        assert_eq!(answered.len(), OPERATIONS_MAX);
        assert_eq!(fill(&mut late, owner(1)).count(), OPERATIONS_MIN, "values are long");
        assert_eq!(fill(&mut late, owner(0)).count(), 0);
    }
}
