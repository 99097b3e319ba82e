//! What the protocol of one connection carries over from one batch to the next.

use amalgam_index::Worker;
use amalgam_protocol::Protocol;

use crate::auth::sasl::Exchange;
use crate::connections::copy_lanes::{CopyLane, TurnLanes};
use crate::connections::item_dump::ItemDump;

/// Where the next batch continues after the output was full, and how far it goes: what cannot be
/// answered would be parsed in vain. All zero if the connection did not stall.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resumption {
    /// Keys of the first request that were answered.
    pub answered_keys: u32,
    /// Keys of the first request to look up at most; 0 if not bounded.
    pub most_keys: u32,
    /// Bytes of the input to parse at most, in whole requests; 0 if not bounded.
    pub most_bytes: u32,
}

/// Bytes received for one connection in one batch, at most, apart from the rest of a large value.
pub const READ_BYTES: usize = 16 << 10;

/// An incomplete request longer than this is received into the connection's own buffer.
pub const OWN_BUFFER_BYTES: usize = READ_BYTES / 2;

/// [`READ_BYTES`] after the iteration has received enough. A connection that last sent as much
/// waits for the next one: a client that awaits each answer sends less.
pub const CROWDED_READ_BYTES: usize = 1 << 10;

/// What one iteration of a worker's loop may still do for requests that take long. Those of other
/// connections wait for no more than that.
#[derive(Clone, Debug)]
pub struct TurnBudget {
    /// Slices of all dumps.
    pub slices: usize,
    /// Answers to `stats`.
    pub reports: usize,
    /// Steps of TLS handshakes: one may take a millisecond for a signature.
    pub handshakes: usize,
    /// Bytes of values that are copied since a client adds to them or touches them. A request of
    /// twenty bytes copies a whole value, and what it replaces is free after the iteration only.
    pub copied_bytes: usize,
    /// In which lanes the worker makes such copies.
    pub lanes: TurnLanes,
    /// Bytes of connections' own buffers that are parsed, apart from one request. A long line is
    /// parsed again each time that its client has taken a part of its answer.
    pub long_bytes: usize,
    /// Bytes of other input, apart from one receive. Then connections that last sent little go on,
    /// and the others wait: a kibibyte may name 500 keys.
    pub short_bytes: usize,
}

impl Default for TurnBudget {
    fn default() -> Self {
        let (slices, reports) = (SLICES_A_TURN, REPORTS_A_TURN);
        let (handshakes, copied_bytes) = (HANDSHAKES_A_TURN, COPIED_BYTES_A_TURN);
        let (long_bytes, short_bytes) = (LONG_BYTES_A_TURN, SHORT_BYTES_A_TURN);
        let lanes = TurnLanes::default();
        Self { slices, reports, handshakes, copied_bytes, lanes, long_bytes, short_bytes }
    }
}

impl TurnBudget {
    /// That of an iteration of a worker's loop that begins.
    pub fn of(index: &impl Worker) -> Self {
        let lanes = if index.has_much_retired() { TurnLanes::NONE } else { TurnLanes::default() };
        Self { lanes, ..Self::default() }
    }

    /// Bytes to receive from the next connection, at most.
    pub fn receive_bytes(&self) -> usize {
        if self.short_bytes == 0 { CROWDED_READ_BYTES } else { READ_BYTES }
    }
}

/// See [`TurnBudget`].
const SLICES_A_TURN: usize = 1;
const REPORTS_A_TURN: usize = 1;
const HANDSHAKES_A_TURN: usize = 4;
const COPIED_BYTES_A_TURN: usize = 1 << 20;
const LONG_BYTES_A_TURN: usize = 256 << 10;
const SHORT_BYTES_A_TURN: usize = 128 << 10;

/// The state of one connection's protocol between batches.
#[derive(Clone, Debug, Default)]
pub struct ProtocolState {
    /// The wire protocol; None if the first byte tells it and has not arrived.
    pub protocol: Option<Protocol>,
    /// Bytes still to arrive that are discarded: the value of a refused request.
    pub discard_bytes: usize,
    /// The answer to the refused request whose value is discarded: sent when all of it has arrived,
    /// as in memcached. Empty if there is none.
    pub held_answer: Box<[u8]>,
    /// Bytes of the incomplete first request; 0 if its line is not complete and the length unknown.
    pub wanted_bytes: usize,
    /// Whether the input may hold whole requests that were not parsed yet.
    pub has_unparsed_input: bool,
    /// Where the next batch continues after the connection stalled.
    pub resumption: Resumption,
    /// A dump in progress: the requests behind it wait for its end.
    pub dump: Option<Box<ItemDump>>,
    /// Whether the next `stats` of the input waits for an iteration of the worker's loop that has
    /// not answered enough reports yet ([`TurnBudget`]).
    pub awaits_report: bool,
    /// The lane in which the next request of the input may copy a value, if it waits for an
    /// iteration that has not copied enough yet, or for other workers ([`TurnBudget`]).
    pub awaited_lane: Option<CopyLane>,
    /// Whether the last value that it added to, or touched, was short; so is the next, probably.
    pub copies_short: bool,
    /// Whether the client gave the name of a user and the right password.
    pub is_authenticated: bool,
    /// The SASL exchange in progress (binary protocol).
    pub exchange: Exchange,
}

impl ProtocolState {
    /// Whether the connection can be served without anything further arriving.
    pub fn has_backlog(&self) -> bool {
        self.has_unparsed_input || self.dump.is_some()
    }

    /// Whether nothing more can be done for it with this budget. Requires: it has a backlog.
    pub fn awaits_turn(&self, budget: &TurnBudget) -> bool {
        match self.dump {
            Some(_) => budget.slices == 0,
            None => {
                self.awaits_report && budget.reports == 0
                    || self.awaited_lane.is_some() && budget.copied_bytes == 0
                    || self.awaits_others(budget)
            }
        }
    }

    /// Whether it waits until other workers have gone on.
    pub fn awaits_others(&self, budget: &TurnBudget) -> bool {
        self.awaited_lane.is_some_and(|lane| budget.lanes.refuse(lane))
    }
}
