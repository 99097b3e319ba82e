//! What all threads of a server share.

pub mod accept_gate;
pub mod clock;
pub mod engine_controls;
pub mod server_state;
pub mod sweep;
pub mod warm_restart;
