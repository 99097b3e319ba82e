//! What the protocol of one connection carries over from one batch to the next.

use amalgam_protocol::Protocol;

use crate::auth::sasl::Exchange;
use crate::connections::item_dump::ItemDump;
use crate::settings::WireProtocol;

/// The state of one connection's protocol between batches.
#[derive(Clone, Debug, Default)]
pub struct ProtocolState {
    /// The protocol that the listener asks for; None for that of the server.
    pub wire_protocol: Option<WireProtocol>,
    /// The wire protocol; None until the first byte has arrived.
    pub protocol: Option<Protocol>,
    /// Bytes still to arrive that are discarded: the value of a refused request.
    pub discard_bytes: usize,
    /// The answer to the refused request whose value is discarded: sent when all of it has arrived,
    /// as in memcached. Empty if there is none.
    pub held_answer: Box<[u8]>,
    /// Keys of the first request that were answered before the connection stalled.
    pub skip_keys: usize,
    /// Bytes of the incomplete first request; 0 if its line is not complete and the length unknown.
    pub wanted_bytes: usize,
    /// Whether the input may hold whole requests that were not parsed yet.
    pub has_unparsed_input: bool,
    /// Bytes of the input to parse in the next batch at most, in whole requests; 0 if not bounded.
    /// Set where the output was full, as what cannot be answered would be parsed in vain.
    pub parse_bytes: u32,
    /// Keys of the first request to look up in the next batch at most, for the same reason; 0 if
    /// not bounded.
    pub parse_keys: u32,
    /// A dump in progress: the requests behind it wait for its end.
    pub dump: Option<Box<ItemDump>>,
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
}
