//! One client's connection: its received and its unsent bytes, and how both stay bounded.
//!
//! Invariants:
//! 1. An idle connection owns no buffers.
//! 2. The buffer for a line grows with what has arrived, at most doubling (or by
//!    [`MIN_GROWTH_BYTES`]). That for a large value is allocated whole, and charged before
//!    ([`BufferBudget::admit`]): a value that is received in part can be received to its end.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::connections::budget::{BufferBudget, TEND_PROGRESS_BYTES, UNCHARGED_BYTES};
use crate::connections::protocol_state::{
    CROWDED_READ_BYTES, OWN_BUFFER_BYTES, ProtocolState, TurnBudget,
};
use crate::net::output::Output;
use crate::net::registry::{CloseReason, ConnectionInfo};
use crate::net::transport::Transport;

/// The smallest growth of a connection's own buffer, which otherwise doubles.
const MIN_GROWTH_BYTES: usize = 64 << 10;

/// A client's connection, owned by the reactor that it was given to.
pub struct Connection {
    /// The socket, with its TLS session if it has one.
    pub transport: Transport,
    /// What the protocol carries over from one batch to the next.
    pub protocol_state: ProtocolState,
    /// Bytes received but not consumed.
    pub input: Vec<u8>,
    /// Answers not sent yet.
    pub output: Output,
    /// What other threads may know of the connection.
    pub info: Arc<ConnectionInfo>,
    /// Whether the socket may hold something to read.
    pub is_readable: bool,
    /// Whether the peer will send no more.
    pub is_hung_up: bool,
    /// Whether to close once the output is sent.
    pub is_closing: bool,
    /// The reason to report when the connection closes.
    pub close_reason: CloseReason,
    /// Whether the last attempt to send left a part of an answer unsent.
    pub is_stalled: bool,
    /// The second until which nothing is read or sent, after a failed login; 0 if there is none.
    pub paused_until: u32,
    /// Whether the connection is in the reactor's ready list.
    pub is_queued: bool,
    /// Whether its first request waits for a late answer, for capacity to ask for one, for a sweep,
    /// or for buffer memory for its value.
    pub is_waiting: bool,
    /// The second at which its value is refused for lack of buffer memory; 0 if it does not wait
    /// for any.
    pub memory_deadline: u32,
    /// Bytes of the input when the worker last looked at how fast a value arrives.
    tended_bytes: Option<usize>,
    /// Whether the store may hold answers to its requests.
    pub has_late_answers: bool,
    /// Bytes that were received last, unless into its own buffer.
    pub received_bytes: usize,
    /// Bytes of requests that were dealt with.
    pub consumed_bytes: u64,
    /// Bytes of buffers charged to the server's budget.
    pub charged_bytes: usize,
    /// Bytes of buffers and pinned values, as the registry was last told.
    pub held_bytes: usize,
}

/// Where a connection's input for this batch lies.
pub enum Input {
    /// In this range of the worker's scratch buffer.
    Scratch(Range<usize>),
    /// In the connection's own buffer.
    Own(Vec<u8>),
}

impl Input {
    /// The bytes.
    pub fn bytes<'i>(&'i self, scratch: &'i [u8]) -> &'i [u8] {
        match self {
            Self::Scratch(range) => &scratch[range.clone()],
            Self::Own(bytes) => bytes,
        }
    }

    /// Deducts the input from what an iteration may parse.
    pub fn charge(&self, budget: &mut TurnBudget) {
        let (left, bytes) = match self {
            Self::Own(bytes) => (&mut budget.long_bytes, bytes.len()),
            Self::Scratch(range) => (&mut budget.short_bytes, range.len()),
        };
        *left = left.saturating_sub(bytes);
    }

    /// The bytes behind the first `consumed`, in a buffer of their own.
    pub fn rest(self, consumed: usize, scratch: &[u8]) -> Vec<u8> {
        match self {
            Self::Scratch(range) => scratch[range.start + consumed..range.end].to_vec(),
            Self::Own(bytes) if consumed >= bytes.len() => Vec::new(),
            Self::Own(mut bytes) => {
                bytes.drain(..consumed);
                bytes
            }
        }
    }
}

/// The bounds of a connection's own buffer.
pub struct Bounds<'b> {
    /// The budget of all connections together.
    pub buffers: &'b BufferBudget,
    /// A longer line is parsed before it is complete, and refused.
    pub max_line_bytes: usize,
    /// Bytes to receive at most, unless into the connection's own buffer.
    pub receive_bytes: usize,
    /// The time.
    pub seconds: u32,
}

/// The result of receiving from a connection.
pub enum Received {
    /// There is nothing to parse yet.
    Nothing,
    /// There is this input to parse.
    Input(Input),
    /// The rest of this input cannot be received: there is no memory for it.
    Starved(Input),
    /// Nothing was read: the budget has no memory for the value yet.
    AwaitsMemory,
    /// The stream ended or broke.
    End,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(transport: Transport, info: Arc<ConnectionInfo>) -> Self {
        Self {
            transport,
            protocol_state: ProtocolState::default(),
            input: Vec::new(),
            output: Output::default(),
            info,
            is_readable: true,
            is_hung_up: false,
            is_closing: false,
            close_reason: CloseReason::Normal,
            is_stalled: false,
            paused_until: 0,
            is_queued: false,
            is_waiting: false,
            memory_deadline: 0,
            tended_bytes: None,
            has_late_answers: false,
            received_bytes: 0,
            consumed_bytes: 0,
            charged_bytes: 0,
            held_bytes: 0,
        }
    }

    /// Receives once, into `scratch` from `filled` on (and advances `filled`) or into the
    /// connection's own buffer. Adds the number of bytes received to `count`.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        filled: &mut usize,
        bounds: &Bounds<'_>,
        count: &mut u64,
    ) -> Received {
        if self.protocol_state.has_backlog() {
            // Nothing further is read before what was read is answered.
            return Received::Input(Input::Own(std::mem::take(&mut self.input)));
        }
        if !self.is_readable {
            return Received::Nothing;
        }
        let is_large = self.is_large();
        let old_bytes = self.input.len();
        if is_large && !self.make_room(bounds) {
            if self.protocol_state.wanted_bytes > 0 && self.may_wait(bounds) {
                return Received::AwaitsMemory;
            }
            self.memory_deadline = 0;
            return Received::Starved(Input::Own(std::mem::take(&mut self.input)));
        }
        let result = if is_large {
            self.transport.append_received(&mut self.input)
        } else {
            let buffer =
                &mut scratch[*filled + old_bytes..*filled + old_bytes + bounds.receive_bytes];
            self.transport.receive(buffer)
        };
        match result {
            Ok((0, _)) => return Received::End,
            Ok((bytes, is_full)) => {
                *count += bytes as u64;
                self.is_readable = is_full || self.is_hung_up;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A TLS session takes a short read for the last one: the end, of which an event
                // came before, may be behind it.
                self.is_readable = self.is_hung_up;
                return Received::Nothing;
            }
            Err(_) => {
                self.close_reason = CloseReason::Error;
                return Received::End;
            }
        }
        if is_large {
            return self.check_own_input(old_bytes, bounds);
        }
        self.received_bytes = result.map_or(0, |(bytes, _)| bytes);
        let bytes = old_bytes + self.received_bytes;
        scratch[*filled..*filled + old_bytes].copy_from_slice(&self.input);
        self.input = Vec::new();
        let range = *filled..*filled + bytes;
        *filled += bytes;
        Received::Input(Input::Scratch(range))
    }

    /// Whether what it receives next, or has received, lies in its own buffer. The announcement of
    /// a large value alone reserves nothing.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.input.len() > OWN_BUFFER_BYTES
    }

    /// Whether it is served in another iteration: nothing more can be done for it with this budget.
    #[inline]
    pub fn awaits_turn(&self, budget: &TurnBudget) -> bool {
        let is_spent = match self.is_large() {
            true => budget.long_bytes == 0,
            false => budget.short_bytes == 0 && self.received_bytes >= CROWDED_READ_BYTES,
        };
        is_spent || self.protocol_state.has_backlog() && self.protocol_state.awaits_turn(budget)
    }

    /// Grows its own buffer for the next receive. Returns false if the budget refuses.
    fn make_room(&mut self, bounds: &Bounds<'_>) -> bool {
        let wanted = self.protocol_state.wanted_bytes;
        if wanted == 0 {
            let growth = self.input.len().max(MIN_GROWTH_BYTES);
            let is_allowed = bounds.buffers.allows(growth);
            if is_allowed {
                self.input.reserve_exact(growth);
            }
            return is_allowed;
        }
        if self.input.capacity() >= wanted {
            return true;
        }
        let is_admitted = bounds.buffers.admit(self.lacking_bytes());
        if is_admitted {
            self.take_room();
        }
        is_admitted
    }

    /// Bytes to charge before the rest of a value is received.
    pub fn lacking_bytes(&self) -> usize {
        let lacking = self.protocol_state.wanted_bytes.saturating_sub(self.input.capacity());
        (self.buffer_bytes() + lacking).saturating_sub(self.charged_bytes)
    }

    /// Allocates the buffer of a value whole. Requires: [`Self::lacking_bytes`] were charged.
    pub fn take_room(&mut self) {
        self.charged_bytes += self.lacking_bytes();
        let rest = self.protocol_state.wanted_bytes.saturating_sub(self.input.len());
        self.input.reserve_exact(rest);
        (self.memory_deadline, self.tended_bytes) = (0, None);
    }

    /// Drops the unused reservation of a value that arrives too slowly; it must be admitted again.
    /// Returns whether it did. To be called once in each [`TEND_INTERVAL`].
    ///
    /// [`TEND_INTERVAL`]: crate::connections::budget::TEND_INTERVAL
    pub fn give_back_room(&mut self) -> bool {
        let (wanted, bytes) = (self.protocol_state.wanted_bytes, self.input.len());
        // What was not read yet is not the client's doing.
        if wanted == 0 || self.input.capacity() < wanted || self.is_readable {
            return false;
        }
        let before = self.tended_bytes.replace(bytes);
        let is_slow = before.is_some_and(|before| bytes - before < TEND_PROGRESS_BYTES);
        if is_slow {
            self.input.shrink_to_fit();
        }
        is_slow
    }

    /// Whether it may begin to wait for buffer memory, or go on waiting.
    fn may_wait(&self, bounds: &Bounds<'_>) -> bool {
        match self.memory_deadline {
            0 => bounds.buffers.takes_waiters(),
            deadline => deadline > bounds.seconds,
        }
    }

    /// Bytes that it is charged while it waits for buffer memory.
    pub fn waiting_charge(&self) -> usize {
        self.buffer_bytes().saturating_sub(UNCHARGED_BYTES)
    }

    /// The input, if it is enough to parse; its first `old_bytes` bytes were not.
    fn check_own_input(&mut self, old_bytes: usize, bounds: &Bounds<'_>) -> Received {
        let wanted = self.protocol_state.wanted_bytes;
        let is_enough = if wanted == 0 {
            self.input[old_bytes..].contains(&b'\n') || self.input.len() > bounds.max_line_bytes
        } else {
            self.input.len() >= wanted
        };
        if is_enough {
            Received::Input(Input::Own(std::mem::take(&mut self.input)))
        } else {
            Received::Nothing
        }
    }

    /// Bytes of the buffers that the connection keeps while it waits.
    pub fn buffer_bytes(&self) -> usize {
        let dump = self.protocol_state.dump.as_ref().map_or(0, |dump| dump.kept_bytes());
        let buffers = self.input.capacity() + self.output.buffer_bytes();
        buffers + self.transport.waiting_bytes() + dump
    }

    /// Bytes of answers that no socket has taken yet, in plaintext or as ciphertext.
    #[inline]
    pub fn unsent_bytes(&self) -> usize {
        self.output.len() + self.transport.unsent_bytes()
    }

    /// Whether a part of an answer has not been sent yet.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.output.is_empty() || self.transport.has_unsent()
    }
}
