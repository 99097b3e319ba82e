//! The path of a request: parsed into a batch, executed against the store, answered.
//!
//! `batch` runs the requests of many connections together: `parse` turns their bytes into the
//! stages of `stage`, `reads` and `writes` execute them. `commands` and its neighbours execute the
//! requests about the server itself, `late` has connections wait for answers that come later.
//! `context` is what all of them work with, `slot` is one connection's part.

pub mod admin_commands;
pub mod batch;
pub mod command_counters;
pub mod commands;
pub mod context;
pub mod datagrams;
pub mod dump;
pub mod late;
pub mod observer;
pub mod parse;
pub mod reads;
pub mod response_budget;
pub mod slot;
pub mod stage;
pub mod stats_command;
pub mod writes;
