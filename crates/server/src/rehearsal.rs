//! A worker's turns without sockets: what is parsed, resolved and answered for given bytes, again
//! and again. For tests and for counting instructions, which system calls would drown.

use std::net::SocketAddr;

use amalgam_index::{Configuration, Engine, Worker};

use crate::batch::{Batch, Conversation, Seat, Turn};
use crate::counters::Counts;
use crate::observer::Observer;
use crate::output::Output;
use crate::server::Server;
use crate::{ServerError, Settings};

/// A server with one worker that nobody can connect to.
pub struct Rehearsal<I>(Server<I>);

impl<I: Engine> Rehearsal<I> {
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

    /// Runs `turns` turns, in each of which every connection sends its input, and returns the
    /// connections' answers of the last.
    pub fn run(&self, turns: usize, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        let shared = self.0.shared();
        let mut index = shared.index.worker();
        let mut batch = Batch::default();
        let mut counts = Counts::default();
        let mut sampler = shared.hot_keys.sampler(0);
        let mut outputs = vec![Vec::new(); inputs.len()];
        let mut seats = Vec::new();
        for _ in 0..turns {
            for bytes in &mut outputs {
                bytes.clear();
                let mut output = Output::default();
                output.bytes = std::mem::take(bytes);
                seats.push(Seat::new(Conversation::default(), output));
            }
            let now = shared.clock.begin_turn(0);
            let mut turn = Turn {
                shared,
                worker: 0,
                index: &mut index,
                counts: &mut counts,
                sampler: &mut sampler,
                now,
                observer: Observer::of(shared),
            };
            batch.run(&mut turn, inputs.iter().copied(), &mut seats);
            shared.clock.end_turn(0);
            index.quiesce();
            for (bytes, seat) in outputs.iter_mut().zip(seats.drain(..)) {
                *bytes = seat.output.bytes;
            }
        }
        outputs
    }
}
