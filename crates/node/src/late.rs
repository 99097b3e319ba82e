//! Operations of a gateway's connections that other nodes execute, or this node's event loop, and
//! their answers until the connections take them.
//!
//! Invariants:
//! 1. An answer is taken once, by the operation with its ticket.
//! 2. A connection goes on when all operations that it has under way are answered.
//! 3. What one node has under way is bounded in number and in bytes, until it answers or the client
//!    gives it up: a node that stands still takes no room from others.
//! 4. While answers that were not taken hold [`HELD_BYTES`], a connection begins one operation at a
//!    time. A slow connection keeps no answer that can be asked for again.
//! 5. A read of a key whose value was short when it last came does not wait until long values have
//!    come, whoever asks for those.

use std::collections::BTreeMap;

use amalgam_cluster::IntHashMap;
use amalgam_cluster::chunks::{ChunkError, Response};
use amalgam_cluster::overlay::Peer;
use amalgam_index::Ticket;
use amalgam_op::{Get, Op, Outcome, Store, StoreMode, Verb};

/// Operations of a worker that one node has under way, at most.
const OPERATIONS_MAX: usize = 256;
/// Bytes of the long values of these, sent or expected, at most; a single one may have more. An
/// answer comes behind those that were asked for before it: this many bytes take about a
/// millisecond.
const UNDER_WAY_BYTES: usize = 2 << 20;
/// Bytes of a value that is short: it need not wait until long ones have come.
const SHORT_BYTES: usize = 16 << 10;
/// Bytes that short values may have under way: neither kind takes room of the other.
const SHORT_ROOM_BYTES: usize = 2 << 20;
/// Reads of keys that did not come lately that one node has under way as if their values were
/// short, at most; further ones count as the longest values that came lately.
const UNKNOWN_MAX: usize = 4;
/// Keys of which a worker knows the length of the value.
const KNOWN_KEYS: usize = 1 << 15;
/// Bytes of the values in answers from which on a worker begins no operation ahead.
const HELD_BYTES: usize = 32 << 20;

/// The result of an operation.
pub type Done = Result<Response, ChunkError>;

/// One operation of a connection.
#[derive(Debug)]
struct Operation {
    /// What the client knows it by.
    number: u64,
    /// None before it is answered.
    done: Option<Done>,
    /// Whether the answer may be dropped, as the operation can be begun again.
    is_repeatable: bool,
}

/// The operations of one connection, by position and key.
#[derive(Debug, Default)]
struct Waiting {
    operations: BTreeMap<(u64, u32), Operation>,
    /// The number of those without an answer.
    unanswered: usize,
}

/// What one node has under way.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    operations: usize,
    /// Bytes of long values, and of short ones.
    long_bytes: usize,
    short_bytes: usize,
    /// Reads of keys that are not in [`ValueLengths`].
    unknown: usize,
}

impl Load {
    /// The sum that a value of this length counts in.
    fn bytes_of(&mut self, bytes: usize) -> &mut usize {
        if bytes <= SHORT_BYTES { &mut self.short_bytes } else { &mut self.long_bytes }
    }
}

/// The lengths of the values that came last, by the keys' hashes. A wrong one makes a short read
/// wait for long ones, or lets one long value more be under way.
#[derive(Debug)]
struct ValueLengths {
    /// A part of the hash, and the bits of the length; no bits if the place is free.
    places: Vec<(u16, u8)>,
}

impl Default for ValueLengths {
    fn default() -> Self {
        Self { places: vec![(0, 0); KNOWN_KEYS] }
    }
}

impl ValueLengths {
    /// The place of a key, and the part of its hash that tells it from most others there.
    fn place_of(hash: u64) -> (usize, u16) {
        // The upper bits choose the owner.
        (hash as usize % KNOWN_KEYS, (hash >> 32) as u16)
    }

    /// At least the length of a key's value when it last came, in bytes, and at most twice that;
    /// None if it is not known.
    fn get(&self, hash: u64) -> Option<usize> {
        let (place, part) = Self::place_of(hash);
        let (of, bits) = self.places[place];
        (of == part && bits > 0).then(|| 1 << bits)
    }

    fn set(&mut self, hash: u64, length: usize) {
        let (place, part) = Self::place_of(hash);
        let bits = (usize::BITS - length.leading_zeros()).max(1);
        self.places[place] = (part, bits as u8);
    }
}

/// An operation under way.
#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    /// The node that executes it; None if the client has to find it.
    owner: Option<Peer>,
    /// Bytes that it counts for.
    bytes: usize,
    /// The key's hash, if its owner reads the value.
    read_hash: Option<u64>,
    /// Whether it counts as a read of an unknown key.
    is_unknown: bool,
}

/// The value that an operation is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValueUse {
    /// Bytes that are sent for it.
    pub sent_bytes: usize,
    /// The key's hash, if the owner reads the value: to answer with it, to add to it, or to send
    /// it to backups.
    pub read_hash: Option<u64>,
    /// Whether it is sent to backups, too, where there are some.
    pub is_written: bool,
}

impl ValueUse {
    /// What an operation does with a value.
    pub fn of(op: &Op<'_>) -> Self {
        let (sent_bytes, is_read) = match op.verb {
            Verb::Get(_) => (0, true),
            Verb::Store(Store { mode, value, .. }) => {
                (value.len(), matches!(mode, StoreMode::Append | StoreMode::Prepend))
            }
            Verb::Delete(delete) => (0, delete.marks_stale && !delete.drops_value),
            Verb::Arithmetic(_) => (0, false),
        };
        // Other reads seldom change the item.
        let is_written = !matches!(op.verb, Verb::Get(Get { touch: None, .. }));
        Self { sent_bytes, read_hash: is_read.then(|| op.key.hash()), is_written }
    }
}

/// An operation to begin.
#[derive(Clone, Copy, Debug)]
pub struct NewOperation {
    /// Names it.
    pub ticket: Ticket,
    /// Whether its answer may be dropped and asked for again.
    pub is_repeatable: bool,
    /// The node that executes it; None if the client has to find it.
    pub owner: Option<Peer>,
    /// What it does with a value.
    pub value: ValueUse,
}

/// The operations of all connections of a worker.
#[derive(Debug, Default)]
pub struct LateOperations {
    connections: IntHashMap<u64, Waiting>,
    /// Those under way, by the client's number; those of closed connections too.
    under_way: IntHashMap<u64, InFlight>,
    loads: IntHashMap<Option<Peer>, Load>,
    /// Bytes of the values in answers that were not taken.
    held_bytes: usize,
    /// About the length of the longest values that came lately, in bytes.
    value_bytes: usize,
    lengths: ValueLengths,
}

impl LateOperations {
    /// Whether one more operation may be begun.
    pub fn has_room(&self, operation: &NewOperation) -> bool {
        let load = self.loads.get(&operation.owner).copied().unwrap_or_default();
        let (bytes, _) = self.expected_bytes(operation);
        let fits = match bytes <= SHORT_BYTES {
            true => load.short_bytes + bytes <= SHORT_ROOM_BYTES,
            false => load.long_bytes == 0 || load.long_bytes + bytes <= UNDER_WAY_BYTES,
        };
        fits && load.operations < OPERATIONS_MAX
    }

    /// Bytes that an operation counts for, and whether it reads an unknown key. A long value that
    /// is written counts twice, as others wait for the owner and then for its backups.
    fn expected_bytes(&self, operation: &NewOperation) -> (usize, bool) {
        let ValueUse { sent_bytes, read_hash, is_written } = operation.value;
        let known = read_hash.map(|hash| self.lengths.get(hash));
        let (read_bytes, is_unknown) = match known {
            None => (0, false),
            Some(Some(bytes)) => (bytes, false),
            Some(None) => {
                let unknown = self.loads.get(&operation.owner).map_or(0, |load| load.unknown);
                let is_probe = unknown < UNKNOWN_MAX;
                let most = if is_probe { SHORT_BYTES } else { usize::MAX };
                // Before any value came, reads are taken for short, as they only take time.
                let is_first = self.value_bytes == 0 && is_written;
                let lately = if is_first { UNDER_WAY_BYTES } else { self.value_bytes };
                (lately.min(most), true)
            }
        };
        let bytes = sent_bytes + read_bytes;
        let is_twice = is_written && bytes > SHORT_BYTES;
        (bytes << u32::from(is_twice), is_unknown)
    }

    /// Whether connections may begin operations behind the one that they wait for.
    pub fn has_room_ahead(&self) -> bool {
        self.held_bytes <= HELD_BYTES
    }

    /// About the length of the longest values that came lately, in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether an operation that was begun is answered; None if it was not, or its answer was
    /// taken.
    pub fn is_answered(&self, ticket: Ticket) -> Option<bool> {
        let waiting = self.connections.get(&ticket.connection)?;
        Some(waiting.operations.get(&key_of(ticket))?.done.is_some())
    }

    /// An operation is refused without being sent.
    pub fn refuse(&mut self, ticket: Ticket, error: ChunkError) {
        let done = Some(Err(error));
        let operation = Operation { number: 0, done, is_repeatable: true };
        let waiting = self.connections.entry(ticket.connection).or_default();
        waiting.operations.insert(key_of(ticket), operation);
    }

    /// An operation was begun that the client knows by `number`.
    pub fn begin(&mut self, operation: &NewOperation, number: u64) {
        let (bytes, is_unknown) = self.expected_bytes(operation);
        let NewOperation { ticket, is_repeatable, owner, value } = *operation;
        let operation = Operation { number, done: None, is_repeatable };
        let waiting = self.connections.entry(ticket.connection).or_default();
        waiting.operations.insert(key_of(ticket), operation);
        waiting.unanswered += 1;
        let read_hash = value.read_hash;
        self.under_way.insert(number, InFlight { ticket, owner, bytes, read_hash, is_unknown });
        let load = self.loads.entry(owner).or_default();
        load.operations += 1;
        *load.bytes_of(bytes) += bytes;
        load.unknown += usize::from(is_unknown);
    }

    /// An operation has ended. Its connection is appended to `answered` if it waits for nothing
    /// more.
    pub fn end(&mut self, number: u64, done: Done, answered: &mut Vec<u64>) {
        let Some(ended) = self.under_way.remove(&number) else { return };
        let InFlight { ticket, owner, .. } = ended;
        if let Some(load) = self.loads.get_mut(&owner) {
            load.operations -= 1;
            *load.bytes_of(ended.bytes) -= ended.bytes;
            load.unknown -= usize::from(ended.is_unknown);
            if load.operations == 0 {
                self.loads.remove(&owner);
            }
        }
        let read_bytes = if ended.read_hash.is_some() { read_bytes(&done) } else { 0 };
        if let Some(hash) = ended.read_hash
            && done.is_ok()
        {
            self.lengths.set(hash, read_bytes);
        }
        self.value_bytes = read_bytes.max(self.value_bytes - self.value_bytes / 8);
        let Some(waiting) = self.connections.get_mut(&ticket.connection) else { return };
        let operation = waiting.operations.get_mut(&key_of(ticket));
        let is_it = |one: &&mut Operation| one.number == number && one.done.is_none();
        let Some(operation) = operation.filter(is_it) else { return };
        self.held_bytes += value_bytes(&done);
        operation.done = Some(done);
        waiting.unanswered -= 1;
        if waiting.unanswered == 0 {
            answered.push(ticket.connection);
        }
    }

    /// Takes an answer.
    #[inline]
    pub fn take(&mut self, ticket: Ticket) -> Option<Done> {
        if self.connections.is_empty() {
            return None;
        }
        let waiting = self.connections.get_mut(&ticket.connection)?;
        let key = key_of(ticket);
        waiting.operations.get(&key)?.done.as_ref()?;
        let done = waiting.operations.remove(&key)?.done;
        self.held_bytes -= done.as_ref().map_or(0, value_bytes);
        done
    }

    /// See [`amalgam_index::LateAnswers::discard`].
    pub fn discard(&mut self, connection: u64, position: u64, is_slow: bool) -> bool {
        let Some(waiting) = self.connections.get_mut(&connection) else { return false };
        let (held_bytes, unanswered) = (&mut self.held_bytes, &mut waiting.unanswered);
        waiting.operations.retain(|(at, _), operation| {
            let is_held = operation.done.is_some();
            let is_kept = *at >= position && !(is_slow && is_held && operation.is_repeatable);
            if !is_kept {
                *unanswered -= usize::from(!is_held);
                *held_bytes -= operation.done.as_ref().map_or(0, value_bytes);
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

fn key_of(ticket: Ticket) -> (u64, u32) {
    (ticket.position, ticket.key)
}

/// The length of the value in an answer, in bytes.
fn value_bytes(done: &Done) -> usize {
    match done {
        Ok(Response::Item(answer)) => answer.item.as_ref().map_or(0, |item| item.value.len()),
        _ => 0,
    }
}

/// The length of the value that an operation has answered with or added to, in bytes.
fn read_bytes(done: &Done) -> usize {
    match done {
        Ok(Response::Item(answer)) => match answer.outcome {
            Outcome::Stored(written) => written.value_bytes,
            _ => value_bytes(done),
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::chunks::{ItemAnswer, ItemRecord};
    use amalgam_cluster::ids::NodeId;
    use amalgam_op::{Expiry, Hit, Written};

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

    fn begin(late: &mut LateOperations, ticket: Ticket, number: u64, owner: Option<Peer>) {
        late.begin(
            &NewOperation { ticket, is_repeatable: true, owner, value: ValueUse::default() },
            number,
        );
    }

    #[test]
    fn a_connection_goes_on_when_all_is_answered_and_takes_each_answer_once() {
        let (mut late, mut answered) = (LateOperations::default(), Vec::new());
        begin(&mut late, ticket(1, 10, 0), 100, owner(0));
        begin(&mut late, ticket(1, 10, 1), 101, owner(1));
        begin(&mut late, ticket(2, 10, 0), 102, owner(0));
        late.end(101, value(5), &mut answered);
        assert!(answered.is_empty() && late.held_bytes == 5);
        assert_eq!(late.take(ticket(1, 10, 0)), None, "it is under way");
        late.end(100, Err(ChunkError::Unavailable), &mut answered);
        late.end(99, value(1), &mut answered);
        assert_eq!(answered, [1]);
        assert_eq!(late.take(ticket(1, 10, 0)), Some(Err(ChunkError::Unavailable)));
        assert_eq!(late.take(ticket(1, 10, 0)), None, "it was taken");
        assert_eq!(late.take(ticket(1, 11, 1)), None, "another request");
        assert_eq!(late.take(ticket(1, 10, 1)), Some(value(5)));
        // A connection closes, and the answer to what it had under way has no taker.
        assert!(!late.discard(2, u64::MAX, false) && !late.is_idle());
        late.end(102, value(1), &mut answered);
        assert_eq!((answered.len(), late.take(ticket(2, 10, 0))), (1, None));
        assert!(late.loads.is_empty() && late.is_idle() && late.held_bytes == 0);
    }

    #[test]
    fn a_late_end_of_an_earlier_operation_is_not_taken_for_that_of_a_later_one() {
        let (mut late, mut answered) = (LateOperations::default(), Vec::new());
        begin(&mut late, ticket(1, 10, 0), 1, owner(0));
        assert!(!late.discard(1, 11, false));
        begin(&mut late, ticket(1, 10, 0), 2, owner(0));
        late.end(1, value(1), &mut answered);
        assert!(answered.is_empty() && late.is_answered(ticket(1, 10, 0)) == Some(false));
        late.end(2, value(2), &mut answered);
        assert_eq!((answered.len(), late.take(ticket(1, 10, 0))), (1, Some(value(2))));
    }

    #[test]
    fn a_slow_connection_keeps_what_cannot_be_asked_for_again() {
        let (mut late, mut answered) = (LateOperations::default(), Vec::new());
        for (position, is_repeatable) in [(10, true), (20, false), (30, true), (40, false)] {
            let (ticket, owner) = (ticket(1, position, 0), owner(0));
            let operation =
                NewOperation { ticket, is_repeatable, owner, value: ValueUse::default() };
            late.begin(&operation, position);
            late.end(position, value(1), &mut answered);
        }
        assert!(late.discard(1, 20, false) && late.connections[&1].operations.len() == 3);
        assert!(late.discard(1, 20, true) && late.connections[&1].operations.len() == 2);
        assert_eq!(late.take(ticket(1, 30, 0)), None, "it is asked for again");
        assert!(late.take(ticket(1, 20, 0)).is_some() && late.take(ticket(1, 40, 0)).is_some());
        assert!(!late.discard(1, 50, false) && late.connections.is_empty());
        assert_eq!(late.held_bytes, 0);
    }

    fn written(sent_bytes: usize, read_hash: Option<u64>) -> ValueUse {
        ValueUse { sent_bytes, read_hash, is_written: true }
    }

    /// Begins operations of one connection as far as there is room, and returns their numbers.
    fn fill(
        late: &mut LateOperations,
        number: &mut u64,
        owner: Option<Peer>,
        value: impl Fn(u64) -> ValueUse,
    ) -> std::ops::Range<u64> {
        let first = *number;
        loop {
            let (ticket, value) = (ticket(1, *number, 0), value(*number));
            let operation = NewOperation { ticket, is_repeatable: true, owner, value };
            if !late.has_room(&operation) {
                return first..*number;
            }
            late.begin(&operation, *number);
            *number += 1;
        }
    }

    #[test]
    fn a_silent_node_takes_no_room_of_others_and_large_values_take_more() {
        let (mut late, mut answered, mut number) = (LateOperations::default(), Vec::new(), 0);
        let sent = |bytes: usize| move |_| written(bytes, None);
        assert_eq!(fill(&mut late, &mut number, owner(0), sent(0)).count(), OPERATIONS_MAX);
        let sound = fill(&mut late, &mut number, owner(1), sent(0));
        assert_eq!(sound.clone().count(), OPERATIONS_MAX);
        sound.for_each(|number| late.end(number, value(1 << 20), &mut answered));
        assert!(answered.is_empty(), "it waits for the silent one");
        assert!(!late.has_room_ahead(), "it holds much");
        assert_eq!(fill(&mut late, &mut number, owner(1), sent(1 << 19)).count(), 2);
        // Short ones are stored meanwhile.
        assert_eq!(fill(&mut late, &mut number, owner(1), sent(500)).count(), OPERATIONS_MAX - 2);
        assert_eq!(fill(&mut late, &mut number, owner(2), sent(16 << 20)).count(), 1);
        assert_eq!(fill(&mut late, &mut number, owner(0), sent(0)).count(), 0);
    }

    fn read(hash: u64) -> ValueUse {
        ValueUse { read_hash: Some(hash), ..ValueUse::default() }
    }

    /// Twenty bytes that touch or append to a value of a megabyte have its owner copy it, and send
    /// it to backups.
    #[test]
    fn changes_of_long_values_count_as_what_they_change() {
        let (mut late, mut answered, mut number) = (LateOperations::default(), Vec::new(), 0);
        let stored = Outcome::Stored(Written { cas: None, value_bytes: (1 << 19) - 1 });
        let stored = ItemAnswer { outcome: stored, item: None };
        let first = fill(&mut late, &mut number, owner(0), |number| written(1, Some(number)));
        assert_eq!(first.clone().count(), UNKNOWN_MAX);
        first.for_each(|number| late.end(number, value(9), &mut answered));
        let (appended, touched) = (written(1, Some(1 << 40)), written(0, Some(1 << 40 | 1)));
        let begun = number;
        for value in [appended, touched] {
            let (ticket, owner) = (ticket(2, number, 0), owner(0));
            late.begin(&NewOperation { ticket, is_repeatable: true, owner, value }, number);
            number += 1;
        }
        late.end(begun, Ok(Response::Item(Box::new(stored))), &mut answered);
        late.end(begun + 1, self::value((1 << 19) - 1), &mut answered);
        assert_eq!(fill(&mut late, &mut number, owner(0), |_| touched).count(), 2);
        assert_eq!(fill(&mut late, &mut number, owner(1), |_| appended).count(), 1);
        assert_eq!(fill(&mut late, &mut number, owner(2), |_| written(1, None)).count(), 256);
    }

    #[test]
    fn reads_of_short_values_do_not_wait_for_long_ones() {
        let (mut late, mut answered, mut number) = (LateOperations::default(), Vec::new(), 0);
        let (long_key, short, unknown) = (1 << 40, 1 << 40 | 1, 1 << 42);
        // Before anything came all are taken for short.
        let first = fill(&mut late, &mut number, owner(0), |_| read(long_key));
        assert_eq!(first.clone().count(), OPERATIONS_MAX);
        first.for_each(|number| late.end(number, value((1 << 20) - 1), &mut answered));
        let begun = fill(&mut late, &mut number, owner(0), |_| read(short));
        begun.for_each(|number| late.end(number, value(500), &mut answered));
        late.value_bytes = 1 << 20;
        let long = fill(&mut late, &mut number, owner(0), |_| read(long_key));
        assert_eq!(long.clone().count(), 2);
        // Some whose values may be long are asked for all the same, the others wait.
        let new = fill(&mut late, &mut number, owner(0), |number| read(unknown + number));
        assert_eq!(new.clone().count(), UNKNOWN_MAX);
        let begun = fill(&mut late, &mut number, owner(0), |_| read(short));
        assert_eq!(begun.clone().count(), OPERATIONS_MAX - 2 - UNKNOWN_MAX);
        // A long one begins when one has ended, however many short ones are under way.
        let ended = long.start;
        late.end(ended, value(1 << 19), &mut answered);
        let next = fill(&mut late, &mut number, owner(0), |_| read(long_key));
        assert_eq!(next.clone().count(), 1);
        for number in long.chain(new).chain(begun).chain(next).filter(|number| *number != ended) {
            late.end(number, value(1), &mut answered);
        }
        assert!(late.loads.is_empty() && late.is_idle());
    }
}
