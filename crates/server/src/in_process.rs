//! A worker's batches without sockets: parses, executes and answers given bytes. For tests, and for
//! counting instructions, where those of system calls would dominate.

use std::net::SocketAddr;

use amalgam_index::{Configuration, Engine, Worker};

use crate::connections::protocol_state::ProtocolState;
use crate::error::ServerError;
use crate::metrics::counters::Counts;
use crate::net::output::Output;
use crate::request::batch::Batch;
use crate::request::context::BatchContext;
use crate::request::observer::Observer;
use crate::request::slot::RequestSlot;
use crate::server::Server;
use crate::settings::Settings;

/// A server with one worker that serves byte strings instead of connections.
pub struct InProcessServer<E>(Server<E>);

impl<E: Engine> InProcessServer<E> {
    /// Opens the index.
    ///
    /// # Errors
    ///
    /// As [`Server::open`].
    pub fn open(configuration: Configuration) -> Result<Self, ServerError> {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let settings = Settings { listen, threads: 1, ..Settings::default() };
        Server::open(settings, configuration).map(Self)
    }

    /// Runs `batches` batches, in each of which every connection sends its input, and returns the
    /// connections' answers of the last batch.
    pub fn run(&self, batches: usize, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        let state = self.0.state();
        let mut index = state.index.worker();
        let mut batch = Batch::default();
        let mut counts = Counts::default();
        let mut sampler = state.hot_keys.sampler(0);
        let mut outputs = vec![Vec::new(); inputs.len()];
        let mut slots = Vec::new();
        for _ in 0..batches {
            for bytes in &mut outputs {
                bytes.clear();
                let mut output = Output::default();
                output.bytes = std::mem::take(bytes);
                slots.push(RequestSlot::new(ProtocolState::default(), output));
            }
            let now = state.clock.begin_batch(0);
            let mut context = BatchContext {
                state,
                worker: 0,
                index: &mut index,
                counts: &mut counts,
                sampler: &mut sampler,
                now,
                observer: Observer::new(state),
            };
            batch.run(&mut context, inputs.iter().copied(), &mut slots);
            state.clock.end_batch(0);
            index.quiesce();
            for (bytes, slot) in outputs.iter_mut().zip(slots.drain(..)) {
                *bytes = slot.output.bytes;
            }
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use amalgam_index::Store;
    use amalgam_index::mercury::Mercury;

    use super::*;

    /// What cannot be answered is not parsed again and again.
    #[test]
    fn a_connection_whose_output_was_full_is_parsed_in_proportion_to_what_it_takes() {
        const REQUEST: &[u8] = b"get k\r\n";
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let state = server.0.state();
        let mut index = state.index.worker();
        let (mut batch, mut counts) = (Batch::default(), Counts::default());
        let mut sampler = state.hot_keys.sampler(0);
        let mut run = |input: &[u8], output_limit_bytes, protocol_state| {
            let mut slots = vec![RequestSlot::new(protocol_state, Output::default())];
            slots[0].output_limit_bytes = output_limit_bytes;
            let now = state.clock.begin_batch(0);
            let mut context = BatchContext {
                state,
                worker: 0,
                index: &mut index,
                counts: &mut counts,
                sampler: &mut sampler,
                now,
                observer: Observer::new(state),
            };
            batch.run(&mut context, std::iter::once(input), &mut slots);
            state.clock.end_batch(0);
            index.quiesce();
            let slot = slots.pop().expect("it was there");
            (slot.consumed, slot.protocol_state)
        };
        let store = [b"set k 0 0 900\r\n".as_slice(), &[b'v'; 900], b"\r\n"].concat();
        let (_, mut protocol_state) = run(&store, usize::MAX, ProtocolState::default());
        let input = REQUEST.repeat(100);
        let mut rest = &input[..];
        let mut answered = Vec::new();
        // The client takes three answers at first, and later as many as it asked for.
        for output_limit_bytes in [2500, usize::MAX, usize::MAX, usize::MAX, usize::MAX] {
            let (consumed, after) = run(rest, output_limit_bytes, protocol_state);
            answered.push(consumed / REQUEST.len());
            rest = &rest[consumed..];
            protocol_state = after;
        }
        assert_eq!(answered, [3, 6, 12, 24, 48]);
        let (consumed, protocol_state) = run(rest, usize::MAX, protocol_state);
        assert_eq!(consumed, 7 * REQUEST.len());
        assert!(!protocol_state.has_backlog());
    }
}
