//! The connections of one worker, by an id that is never reused.

use slotmap::{Key, KeyData, SlotMap, new_key_type};

use crate::connections::connection::Connection;

new_key_type! {
    /// Identifies a connection of one worker. A slot of the slab is reused, an id is not: an event
    /// that was fetched before a connection closed does not reach the next one in its slot.
    pub struct ConnectionId;
}

/// The connections of one worker. Connections are boxed, so that growing does not move them.
pub type ConnectionSlab = SlotMap<ConnectionId, Box<Connection>>;

/// The id as 64 bits, which epoll hands back with each event.
pub fn to_event_data(id: ConnectionId) -> u64 {
    id.data().as_ffi()
}

/// The id that [`to_event_data`] made these bits of.
pub fn from_event_data(bits: u64) -> ConnectionId {
    KeyData::from_ffi(bits).into()
}
