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
