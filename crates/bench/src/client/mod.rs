//! `bench server`, a closed-loop client that keeps a server busy, and `bench null-server`, which
//! answers as fast as sockets allow.
//!
//! Invariants of this module:
//! 1. The bytes of all requests are generated before the clock starts; a batch is one write of a
//!    slice.
//! 2. A connection sends a batch of `--depth` requests, and the next one when all replies have
//!    arrived.
//! 3. A result says whether the client was the bottleneck: such a figure describes the client.

mod answers;
mod arguments;
mod connections;
mod load;
mod result;
mod rounds;
mod script;
mod stub_server;

pub(crate) use arguments::address_of;
pub use arguments::{Protocol, ServerArguments, StubServerArguments};
pub use result::ServerResult;
pub use rounds::run;
pub use stub_server::StubServer;

/// Measures the servers that `arguments` name, and prints a line for each.
///
/// # Errors
///
/// As [`run`], or if standard output cannot be written.
pub fn run_and_print(arguments: &ServerArguments) -> anyhow::Result<()> {
    for result in run(arguments)? {
        crate::print_result(arguments.json, &result, || result.summary())?;
    }
    Ok(())
}
