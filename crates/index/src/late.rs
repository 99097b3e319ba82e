//! Answers that come later: a store that has operations executed by other machines keeps none of
//! its threads waiting for them.
//!
//! An operation of which the answer is not at hand is begun under a [`Ticket`], and its connection
//! waits while others are served. The answer is handed out when the same request is executed again
//! under the same ticket, so a connection is answered in the order of its requests.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use amalgam_op::Op;

/// Names one operation of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The connection. No two of one worker have the same number, one after the other either.
    pub connection: u64,
    /// Bytes that the connection has sent before the request.
    pub position: u64,
    /// The number of the operation's key in the request.
    pub key: u32,
}

/// What a caller does if an answer is not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It waits, and nothing else is served by its thread meanwhile.
    Waits,
    /// It does without the answer.
    Never,
    /// It asks again under this ticket.
    Later(Ticket),
}

/// The state of an operation after [`LateAnswers::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Its answer comes later.
    Waits,
    /// Its answer is at hand, or this thread can execute it by itself.
    Now,
    /// It was not begun, as too many are under way.
    NoRoom,
}

/// The part of a [`Worker`](crate::Worker) whose answers may come later.
pub trait LateAnswers {
    /// About the length of the values that answers bring, in bytes.
    fn value_bytes(&self) -> usize;

    /// Begins an operation. A plain read is an [`amalgam_op::Get`] without any change. If not
    /// `must`, only if this thread can certainly not execute it by itself.
    fn begin(&mut self, op: &Op<'_>, ticket: Ticket, must: bool) -> Begun;

    /// Drops all items, as [`Store::flush`](crate::Store::flush) does. Whether that is certain;
    /// None if it comes later: ask again under the same ticket.
    fn flush(&mut self, delay_seconds: i64, ticket: Ticket) -> Option<bool>;

    /// Sends what was begun, takes the answers that have come, and appends the connections that
    /// wait for nothing more. Never waits. `has_event` tells that [`Self::descriptor`] is readable.
    /// Returns for how many more operations there may be room.
    fn turn(&mut self, has_event: bool, answered: &mut Vec<u64>) -> usize;

    /// How long until [`Self::turn`] must be called without an event; None if it need not be.
    fn next_turn(&self) -> Option<Duration>;

    /// Readable when [`Self::turn`] has something to do; None if there is none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Drops the answers to a connection's requests before `position`; and, if `is_slow`, those to
    /// later ones that can be begun again. Returns whether others are kept.
    fn discard(&mut self, connection: u64, position: u64, is_slow: bool) -> bool;
}
