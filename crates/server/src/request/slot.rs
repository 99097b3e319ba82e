//! One connection's part in a batch: its protocol state and its output, lent for the duration.

use crate::connections::budget::MAX_OUTPUT_BYTES;
use crate::connections::protocol_state::{ProtocolState, Resumption};
use crate::net::output::Output;
use crate::watch::events::Events;
use amalgam_index::{Begun, Patience, Ticket};

/// Where the output was full, the next batch parses this many times the bytes and keys that could
/// be answered; and if that was not enough to fill it again, the one after it this many times more.
pub const PARSE_GROWTH: usize = 2;

/// A connection's or a datagram's part in one batch.
pub struct RequestSlot {
    /// What the protocol carries over from earlier batches.
    pub protocol_state: ProtocolState,
    /// Where answers go.
    pub output: Output,
    /// The file descriptor of the connection, by which watchers know it; 0 for a datagram.
    pub number: i32,
    /// Bytes of output from which on the connection's requests wait until the output is drained.
    pub output_limit_bytes: usize,
    /// Bytes of the input that were dealt with and can be discarded.
    pub consumed: usize,
    /// Whether to close the connection once the output is sent.
    pub is_closing: bool,
    /// Whether the client violated the protocol.
    pub is_broken: bool,
    /// Whether an attempt to authenticate failed: the answers are then sent after a pause.
    pub has_failed_login: bool,
    /// The kinds of lines to send if the connection becomes a watcher after this batch.
    pub watches: Option<Events>,
    /// Whether the output is full; `consumed` then ends before the first unanswered request.
    pub is_stalled: bool,
    /// Whether its next request is a flush that a sweep must come before.
    pub awaits_sweep: bool,
    /// Whether there is no memory to receive the rest of the input. The first request must then be
    /// answered or refused as it is: waiting for more would never end.
    pub is_starved: bool,
    /// Whether large values may be sent from where they lie, without a copy. False for datagrams.
    pub allows_pins: bool,
    /// The connection's number, and the bytes that it sent before its input in this batch: so an
    /// answer may come later. None if the store has none that do, and for a datagram.
    pub stream: Option<(u64, u64)>,
    /// What became of the operation that the connection waits for, if it stalled for one.
    pub begun: Option<Begun>,
    /// The hashes of the keys of later operations that may be begun before that one has ended, and
    /// of its own: two on one key are executed one after the other. None if no more may be begun.
    pub ahead: Option<Vec<u64>>,
}

impl RequestSlot {
    /// A slot for a connection.
    pub fn new(protocol_state: ProtocolState, output: Output) -> Self {
        Self {
            protocol_state,
            output,
            number: 0,
            output_limit_bytes: MAX_OUTPUT_BYTES,
            consumed: 0,
            is_closing: false,
            is_broken: false,
            has_failed_login: false,
            watches: None,
            is_stalled: false,
            awaits_sweep: false,
            is_starved: false,
            allows_pins: true,
            stream: None,
            begun: None,
            ahead: None,
        }
    }

    /// A slot for a datagram, whose output holds a copy of every byte of the answer.
    pub fn for_datagram(protocol_state: ProtocolState, output: Output) -> Self {
        Self { allows_pins: false, ..Self::new(protocol_state, output) }
    }

    /// Whether to wait for the answer to the key of this number in the request at byte `start`.
    #[inline]
    pub fn patience(&self, start: u32, key: usize) -> Patience {
        match self.stream {
            None => Patience::Waits,
            Some((connection, before)) => {
                let (position, key) = (before + u64::from(start), key as u32);
                Patience::Later(Ticket { connection, position, key })
            }
        }
    }

    /// Whether the slot belongs to a connection, not to a datagram.
    pub fn is_connection(&self) -> bool {
        self.allows_pins
    }

    /// The number of bytes that the output may still take before it is full.
    #[inline]
    pub fn room_bytes(&self) -> usize {
        let taken = self.output.bytes.len() + self.output.pinned_bytes();
        self.output_limit_bytes.saturating_sub(taken)
    }

    /// Whether the output has reached its limit.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.output.bytes.len() + self.output.pinned_bytes() >= self.output_limit_bytes
    }

    /// Closes the connection without executing the requests that it sent in this batch, which are
    /// `input_bytes` long.
    pub fn abort(&mut self, input_bytes: usize) {
        self.stall(input_bytes, 0);
        self.protocol_state.has_unparsed_input = false;
        self.is_closing = true;
        self.is_broken = true;
    }

    /// Stops parsing and executing here. The next batch begins with the request at byte `start`,
    /// of which `answered_keys` keys are answered already.
    pub fn stall(&mut self, start: usize, answered_keys: usize) {
        self.is_stalled = true;
        // What is to be discarded lies behind the last request that was parsed.
        if start != self.consumed {
            self.protocol_state.discard_bytes = 0;
        }
        self.consumed = start;
        self.protocol_state.has_unparsed_input = true;
        self.protocol_state.wanted_bytes = 0;
        self.protocol_state.resumption = Resumption {
            answered_keys: answered_keys as u32,
            most_keys: 0,
            most_bytes: (PARSE_GROWTH * start).max(1) as u32,
        };
    }
}
