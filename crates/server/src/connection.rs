//! One client's connection: what was received, what is owed, and how both stay bounded.
//!
//! Invariants of this room:
//! 1. An idle connection owns no buffers.
//! 2. A buffer of its own grows by what has arrived, never ahead of it by more than that (or
//!    [`LEAST_GROWTH_BYTES`]): a client that announces a large value pays for it first.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::Conversation;
use crate::budget::Budget;
use crate::channel::Channel;
use crate::output::Output;
use crate::roster::Badge;
use crate::watch::Ending;

/// Received for one connection in one turn, at most (a value under way apart).
pub const READ_BYTES: usize = 16 << 10;

/// An unfinished request that needs more than this is received in a buffer of its own.
pub const OWN_BUFFER_BYTES: usize = READ_BYTES / 2;

/// A buffer of its own grows by as much as it holds, by this at least.
const LEAST_GROWTH_BYTES: usize = 64 << 10;

/// See the head of this module.
pub struct Connection {
    /// The socket, and what is spoken on it.
    pub channel: Channel,
    /// What the protocol remembers between turns.
    pub conversation: Conversation,
    /// Received but not consumed.
    pub input: Vec<u8>,
    /// Answered but not sent.
    pub output: Output,
    /// What all threads know of it.
    pub badge: Arc<Badge>,
    /// Whether something may wait in the socket.
    pub is_readable: bool,
    /// Whether the peer will send no more.
    pub is_hung_up: bool,
    /// Whether to close once the output is sent.
    pub is_closing: bool,
    /// Why it will have ended, when it does.
    pub ending: Ending,
    /// Whether it stands in the list of those to be served.
    pub is_queued: bool,
    /// Bytes of buffers that were charged to the server's budget.
    pub charged_bytes: usize,
}

/// Where a connection's bytes of this turn lie.
pub enum Input {
    /// There, in the worker's scratch buffer.
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

    /// What is left after the first `consumed` bytes, in a buffer of its own.
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

/// What bounds a connection's own buffer.
pub struct Bounds<'b> {
    /// Bytes that all connections may keep.
    pub buffers: &'b Budget,
    /// A longer line need not be whole to be parsed: it will be refused.
    pub longest_line_bytes: usize,
}

/// What came of a receipt.
pub enum Received {
    /// Nothing to parse yet.
    Nothing,
    /// So many bytes to parse.
    Input(Input),
    /// The stream ended or broke.
    End,
}

impl Connection {
    /// A fresh connection.
    pub fn new(channel: Channel, badge: Arc<Badge>) -> Self {
        Self {
            channel,
            conversation: Conversation::default(),
            input: Vec::new(),
            output: Output::default(),
            badge,
            is_readable: true,
            is_hung_up: false,
            is_closing: false,
            ending: Ending::Normal,
            is_queued: false,
            charged_bytes: 0,
        }
    }

    /// Receives once, into `scratch` from `filled` on (which moves) or into the connection's own
    /// buffer, and adds to `count` how many bytes came.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        filled: &mut usize,
        bounds: &Bounds<'_>,
        count: &mut u64,
    ) -> Received {
        if self.conversation.has_backlog() {
            // Nothing more is read before what was read is answered.
            return Received::Input(Input::Own(std::mem::take(&mut self.input)));
        }
        if !self.is_readable {
            return Received::Nothing;
        }
        let is_large = self.input.len().max(self.conversation.wanted_bytes()) > OWN_BUFFER_BYTES;
        let held = self.input.len();
        if is_large && !bounds.buffers.allows(self.growth_bytes()) {
            // Parsed now, the value will be refused for want of memory.
            return Received::Input(Input::Own(std::mem::take(&mut self.input)));
        }
        let result = if is_large {
            self.receive_own()
        } else {
            let room = &mut scratch[*filled + held..*filled + held + READ_BYTES];
            self.channel.receive(room)
        };
        match result {
            Ok((0, _)) => return Received::End,
            Ok((bytes, is_full)) => {
                *count += bytes as u64;
                self.is_readable = is_full || self.is_hung_up;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                return Received::Nothing;
            }
            Err(_) => {
                self.ending = Ending::Error;
                return Received::End;
            }
        }
        if is_large {
            return self.look_at_own(held, bounds);
        }
        let bytes = held + result.map_or(0, |(bytes, _)| bytes);
        scratch[*filled..*filled + held].copy_from_slice(&self.input);
        self.input = Vec::new();
        let range = *filled..*filled + bytes;
        *filled += bytes;
        Received::Input(Input::Scratch(range))
    }

    /// By how much to grow the buffer before the next receipt.
    fn growth_bytes(&self) -> usize {
        let wanted = self.conversation.wanted_bytes().saturating_sub(self.input.len());
        let growth = self.input.len().max(LEAST_GROWTH_BYTES);
        if wanted == 0 { growth } else { wanted.min(growth) }
    }

    fn receive_own(&mut self) -> io::Result<(usize, bool)> {
        self.input.reserve_exact(self.growth_bytes());
        self.channel.receive_behind(&mut self.input)
    }

    /// Whether what came is enough to parse, where the first `held` bytes were not.
    fn look_at_own(&mut self, held: usize, bounds: &Bounds<'_>) -> Received {
        let wanted = self.conversation.wanted_bytes();
        let is_enough = if wanted == 0 {
            self.input[held..].contains(&b'\n') || self.input.len() > bounds.longest_line_bytes
        } else {
            self.input.len() >= wanted
        };
        if is_enough {
            Received::Input(Input::Own(std::mem::take(&mut self.input)))
        } else {
            Received::Nothing
        }
    }

    /// Bytes of buffers that the connection keeps while it waits.
    pub fn buffer_bytes(&self) -> usize {
        self.input.capacity() + self.output.buffer_bytes() + self.channel.kept_bytes()
    }

    /// Whether an answer, or a part of one, has not left yet.
    #[inline]
    pub fn owes(&self) -> bool {
        !self.output.is_empty() || self.channel.owes()
    }
}
