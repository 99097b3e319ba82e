//! The client connections of each worker, and the event loop state that they are served from.

pub mod budget;
pub mod connection;
pub mod copy_lanes;
pub mod freed_memory;
pub mod item_dump;
pub mod protocol_state;
pub mod reactor;
pub mod slab;
