//! A worker's batches without sockets: parses, executes and answers given bytes. For tests, and for
//! counting instructions, where those of system calls would dominate.

use std::net::SocketAddr;

use amalgam_index::{Configuration, Engine, Store, Worker};

use crate::connections::protocol_state::{ProtocolState, TurnBudget};
use crate::error::ServerError;
use crate::metrics::counters::Counts;
use crate::metrics::hot_keys::Sampler;
use crate::metrics::miss_curve::AccessRecorder;
use crate::net::output::Output;
use crate::request::batch::Batch;
use crate::request::context::BatchContext;
use crate::request::observer::Observer;
use crate::request::slot::RequestSlot;
use crate::server::Server;
use crate::settings::Settings;
use crate::state::server_state::ServerState;

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
        let mut worker = InProcessWorker::new(self.0.state());
        let mut outputs = vec![Vec::new(); inputs.len()];
        let mut slots = Vec::new();
        for _ in 0..batches {
            for bytes in &mut outputs {
                bytes.clear();
                let mut output = Output::default();
                output.bytes = std::mem::take(bytes);
                slots.push(RequestSlot::new(ProtocolState::default(), output));
            }
            worker.run(inputs, &mut slots);
            for (bytes, slot) in outputs.iter_mut().zip(slots.drain(..)) {
                *bytes = slot.output.bytes;
            }
        }
        outputs
    }
}

/// The server's one worker, without its reactor.
struct InProcessWorker<'s, S: Store + 's> {
    state: &'s ServerState<S>,
    index: S::Worker<'s>,
    batch: Batch,
    counts: Counts,
    sampler: Sampler<'s>,
    recorder: AccessRecorder<'s>,
}

impl<'s, S: Store> InProcessWorker<'s, S> {
    fn new(state: &'s ServerState<S>) -> Self {
        Self {
            state,
            index: state.index.worker(),
            batch: Batch::default(),
            counts: Counts::default(),
            sampler: state.hot_keys.sampler(0),
            recorder: AccessRecorder::new(state.miss_curve.as_ref()),
        }
    }

    /// Runs one batch: an input for each slot.
    fn run(&mut self, inputs: &[&[u8]], slots: &mut [RequestSlot]) {
        let now = self.state.clock.begin_batch(0);
        let mut turn = TurnBudget::default();
        let mut context = BatchContext {
            turn: &mut turn,
            state: self.state,
            worker: 0,
            index: &mut self.index,
            counts: &mut self.counts,
            sampler: &mut self.sampler,
            recorder: &mut self.recorder,
            now,
            observer: Observer::new(self.state),
        };
        self.batch.run(&mut context, inputs.iter().copied(), slots);
        self.state.clock.end_batch(0);
        self.state.copy_lanes.leave(&turn.lanes);
        if self.recorder.is_due() {
            let counters = self.state.counters.of_worker(0);
            counters.publish(&mut self.counts);
            self.recorder.hand_over(counters, &now, &self.state.index, &mut self.index);
        }
        self.index.quiesce();
    }
}

#[cfg(test)]
mod tests {
    use amalgam_index::Eviction;
    use amalgam_index::mercury::Mercury;
    use amalgam_op::Key;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use rand_distr::{Distribution, Zipf};

    use super::*;
    use crate::connections::copy_lanes::{CopyLane, TurnLanes};
    use crate::metrics::miss_curve::{Curve, Estimate, QUARTERS};
    use crate::request::batch::KEPT_BYTES;
    use crate::state::clock::MAX_OUTSTANDING;
    use crate::state::sweep::Sweep;

    /// What cannot be answered is not parsed again and again.
    #[test]
    fn a_connection_whose_output_was_full_is_parsed_in_proportion_to_what_it_takes() {
        const REQUEST: &[u8] = b"get k\r\n";
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let mut worker = InProcessWorker::new(server.0.state());
        let mut run = |input: &[u8], output_limit_bytes, protocol_state| {
            let mut slots = [RequestSlot::new(protocol_state, Output::default())];
            slots[0].output_limit_bytes = output_limit_bytes;
            worker.run(&[input], &mut slots);
            let [slot] = slots;
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

        // The same for the keys of one request.
        let input = [b"get".as_slice(), &b" k".repeat(100), b"\r\n"].concat();
        let mut answered = Vec::new();
        let (mut consumed, mut protocol_state) = run(&input, 2500, protocol_state);
        while protocol_state.has_backlog() {
            assert_eq!(consumed, 0);
            answered.push(protocol_state.resumption.answered_keys);
            (consumed, protocol_state) = run(&input, usize::MAX, protocol_state);
        }
        assert_eq!((answered, consumed), (vec![3, 9, 21, 45, 93], input.len()));
    }

    /// Sends requests in one batch and returns the answers.
    fn answer(worker: &mut InProcessWorker<'_, Mercury>, input: &[u8]) -> Vec<u8> {
        let mut slots = [RequestSlot::new(ProtocolState::default(), Output::default())];
        slots[0].output_limit_bytes = usize::MAX;
        worker.run(&[input], &mut slots);
        let [slot] = slots;
        slot.output.bytes
    }

    /// Reads the keys, and stores those that are missed, with values of 100 to 1,600 bytes. Returns
    /// the number missed.
    fn look_aside(worker: &mut InProcessWorker<'_, Mercury>, keys: &[u64]) -> usize {
        let value = [b'v'; 1600];
        let gets: String = keys.iter().map(|key| format!("mg {key:016}\r\n")).collect();
        let answers = answer(worker, gets.as_bytes());
        let (mut sets, mut misses) = (Vec::new(), 0);
        for (key, _) in keys.iter().zip(answers.chunks(4)).filter(|(_, hit)| *hit == b"EN\r\n") {
            misses += 1;
            let bytes = 100 << (key * 7 % 5);
            sets.extend_from_slice(format!("set {key:016} 0 0 {bytes} noreply\r\n").as_bytes());
            sets.extend_from_slice(&value[..bytes]);
            sets.extend_from_slice(b"\r\n");
        }
        assert!(answer(worker, &sets).is_empty());
        misses
    }

    /// Settings of a server with one thread that no client reaches.
    fn settings(memory_bytes: usize) -> Settings {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let max_item_bytes = 64 << 10;
        Settings { listen, threads: 1, memory_bytes, max_item_bytes, ..Settings::default() }
    }

    /// Scans among reads by Zipf's law, and then keys that are read twice, far apart: the policy of
    /// eviction follows, if it may.
    #[test]
    fn the_policy_of_eviction_follows_the_load() {
        // How soon it follows depends on when the size of the simulated caches is set anew.
        const READS: u64 = 400_000;
        const ROUNDS: u64 = 5;
        for chooses_eviction in [true, false] {
            let settings = Settings { chooses_eviction, ..settings(16 << 20) };
            let server = Server::<Mercury>::open(settings, Configuration::default());
            let server = server.expect("it opens");
            let mut worker = InProcessWorker::new(server.state());
            let policy = |worker: &mut _, has_played: bool| {
                let shown = String::from_utf8(answer(worker, b"stats settings\r\n"));
                let shown = shown.expect("text");
                assert_eq!(shown.contains("STAT eviction auto\r\n"), chooses_eviction, "{shown}");
                let ratio = String::from_utf8(answer(worker, b"stats mrc\r\n")).expect("text");
                let has_ratio = ratio.contains("STAT mrc:probation_over_clock ");
                assert_eq!(has_ratio, chooses_eviction && has_played, "{ratio}");
                let policy = server.state().index.statistics().memory.eviction;
                let line = format!("STAT eviction_policy {}\r\n", policy.name());
                assert_eq!(shown.contains(&line), chooses_eviction, "{shown}");
                policy
            };
            assert_eq!(policy(&mut worker, false), Eviction::GClock);
            let zipf = Zipf::new(60_000.0, 0.9).expect("a distribution");
            let mut random = SmallRng::seed_from_u64(11);
            let mut play_until = |is_probation, key: &mut dyn FnMut(u64) -> u64| {
                for batch in 0..ROUNDS * READS / 50 {
                    let keys: Vec<_> = (0..50).map(|read| key(batch * 50 + read)).collect();
                    look_aside(&mut worker, &keys);
                    Mercury::maintain(&mut worker.index, &server.state().clock.now());
                    let is_due = (batch + 1) % (READS / 50) == 0;
                    let expected = [Eviction::Clock, Eviction::GClock, Eviction::Probation];
                    let expected = if is_probation { &expected[2..] } else { &expected[..2] };
                    if is_due && expected.contains(&policy(&mut worker, true)) {
                        return;
                    }
                }
                panic!("probation should be in force: {is_probation}");
            };
            play_until(chooses_eviction, &mut |read| match read % 2 {
                0 => zipf.sample(&mut random) as u64,
                _ => 1_000_000 + read,
            });
            play_until(false, &mut |read| match read % 2 {
                0 => 3_000_000 + read,
                _ => 3_000_000 + (read - 1).saturating_sub(2 * 9_000),
            });
        }
    }

    /// A look-aside load: keys by Zipf's law, values of 100 to 1,600 bytes. Returns the miss ratio,
    /// and what the server says of other sizes.
    fn replay(memory_bytes: usize) -> (f64, Estimate) {
        const KEYS: f64 = 400_000.0;
        const BATCHES: usize = 24_000;
        const BATCH: usize = 50;
        let server = Server::<Mercury>::open(settings(memory_bytes), Configuration::default());
        let server = server.expect("it opens");
        let mut worker = InProcessWorker::new(server.state());
        let zipf = Zipf::new(KEYS, 0.9).expect("a distribution");
        let mut random = SmallRng::seed_from_u64(11);
        let mut misses = 0;
        for _ in 0..BATCHES {
            let keys: Vec<_> = (0..BATCH).map(|_| zipf.sample(&mut random) as u64).collect();
            misses += look_aside(&mut worker, &keys);
            Mercury::maintain(&mut worker.index, &server.state().clock.now());
        }
        let ratio = misses as f64 / (BATCHES * BATCH) as f64;
        (ratio, server.state().miss_curve.as_ref().expect("it is estimated").estimate())
    }

    #[test]
    fn misses_with_other_memory_sizes_are_foretold() {
        const MEMORY_BYTES: usize = 32 << 20;
        let (present, estimate) = replay(MEMORY_BYTES);
        let Curve::Known(estimated) = estimate.curve else { panic!("{estimate:?}") };
        for (quarters, estimated) in QUARTERS.into_iter().zip(estimated) {
            let truth = match quarters {
                4 => present,
                1 | 8 | 16 => replay(MEMORY_BYTES / 4 * quarters as usize).0,
                // The others lie between these.
                _ => continue,
            };
            assert!((estimated - truth).abs() < 0.01, "{quarters} quarters: {estimated}, {truth}");
        }
    }

    /// Requests of a few bytes take many times as much while they are executed, each time in
    /// another stage.
    #[test]
    fn memory_that_requests_took_is_given_back() {
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let mut worker = InProcessWorker::new(server.0.state());
        for stage in 0..40 {
            let input = [b"mn\r\nget k\r\n".repeat(stage), b"mn\r\n".repeat(10_000)].concat();
            let mut slots = [RequestSlot::new(ProtocolState::default(), Output::default())];
            slots[0].output_limit_bytes = usize::MAX;
            worker.run(&[&input], &mut slots);
            assert_eq!(slots[0].consumed, input.len());
        }
        let kept = worker.batch.kept_bytes();
        assert!(kept > 0 && kept <= KEPT_BYTES, "{kept} bytes are kept");
    }

    /// Else a client makes the others wait for the copies of a thousand values, with 20 KB.
    #[test]
    fn long_values_are_copied_a_few_at_a_time() {
        const REQUEST: &[u8] = b"append k 0 0 1 noreply\r\nx\r\n";
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let mut worker = InProcessWorker::new(server.0.state());
        let mut run = |inputs: [&[u8]; 2], states: [ProtocolState; 2]| {
            let mut slots = states.map(|state| RequestSlot::new(state, Output::default()));
            worker.run(&inputs, &mut slots);
            slots.map(|slot| (slot.consumed, slot.protocol_state))
        };
        let none = || ProtocolState::default();
        let store = [b"set k 0 0 600000\r\n".as_slice(), &[b'v'; 600_000], b"\r\n"].concat();
        run([&store, b""], [none(), none()]);
        let input = REQUEST.repeat(20);
        let [(consumed, state), (of_other, _)] = run([&input, b"get k\r\n"], [none(), none()]);
        assert_eq!((consumed, of_other), (2 * REQUEST.len(), 7));
        assert!(state.has_backlog() && state.awaited_lane.is_some());
        let spent = TurnBudget { copied_bytes: 0, ..TurnBudget::default() };
        assert!(state.awaits_turn(&spent) && !state.awaits_turn(&TurnBudget::default()));
        let [(consumed, _), _] = run([&input[consumed..], b""], [state, none()]);
        assert_eq!(consumed, 2 * REQUEST.len());
        // An item without an expiry has no space for one, so that a touch copies it too.
        run([&store, b""], [none(), none()]);
        let touches = b"touch k 100 noreply\r\ntouch k 0 noreply\r\n".repeat(10);
        let [(touched, of_touches), _] = run([&touches, b""], [none(), none()]);
        assert!(of_touches.awaited_lane.is_some() && touched < touches.len() / 4);
        // Short values are appended to as fast as requests come.
        run([b"set k 0 0 1\r\nv\r\n", b""], [none(), none()]);
        let [(consumed, state), _] = run([&input, b""], [none(), none()]);
        assert_eq!(consumed, input.len());
        assert!(!state.has_backlog());
        // One worker at a time copies what may be long.
        let (lanes, mut of_other) = (&server.0.state().copy_lanes, TurnLanes::default());
        let lane = CopyLane::of(Key::new(b"k", server.0.state().index.seed()).hash());
        assert!(of_other.enter(lane, lanes, 1));
        let [(of_short, _), (of_any, waits)] = run([&input, &input], [state, none()]);
        assert_eq!((of_short, of_any), (input.len(), 0));
        let refused = TurnBudget { lanes: TurnLanes::NONE, ..TurnBudget::default() };
        assert!(waits.awaits_others(&refused) && !waits.awaits_turn(&TurnBudget::default()));
        lanes.leave(&of_other);
        let [(consumed, _), _] = run([&input, b""], [waits, none()]);
        assert!(consumed > 0, "it goes on");
    }

    /// Each waits for the batches of other workers.
    #[test]
    fn a_batch_flushes_once_for_a_connection() {
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let mut worker = InProcessWorker::new(server.0.state());
        let mut slots = [RequestSlot::new(ProtocolState::default(), Output::default())];
        worker.run(&[b"flush_all\r\nflush_all\r\nmn\r\n"], &mut slots);
        let [slot] = slots;
        assert_eq!((&slot.output.bytes[..], slot.consumed), (&b"OK\r\n"[..], 11));
        assert!(slot.protocol_state.has_backlog());
    }

    /// Else dozens of flushes stop all connections of a worker until the items are swept.
    #[test]
    fn a_flush_that_waits_for_a_sweep_stalls_its_connection_only() {
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let state = server.0.state();
        let mut worker = InProcessWorker::new(state);
        let new = || RequestSlot::new(ProtocolState::default(), Output::default());
        let mut flush = |slots: &mut [RequestSlot]| {
            worker.run(&[b"flush_all\r\n", b"set k 0 0 1\r\nv\r\nget k\r\n"], slots);
        };
        for _ in 0..MAX_OUTSTANDING {
            let mut slots = [new(), new()];
            flush(&mut slots);
            assert_eq!(slots[0].output.bytes, b"OK\r\n");
        }
        for is_connection in [true, false] {
            let datagram =
                || RequestSlot::for_datagram(ProtocolState::default(), Output::default());
            let mut slots = [if is_connection { new() } else { datagram() }, new()];
            flush(&mut slots);
            let [flushing, other] = slots;
            assert!(flushing.is_stalled && flushing.awaits_sweep && flushing.consumed == 0);
            assert!(flushing.output.bytes.is_empty() && flushing.protocol_state.has_backlog());
            assert_eq!(other.output.bytes, b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
        }
        let mut sweep = Sweep::begin(&state.index, &state.clock);
        while !sweep.step(&state.index, &state.clock, &state.crawler, |_| 0) {}
        let mut slots = [new(), new()];
        flush(&mut slots);
        assert_eq!(slots[0].output.bytes, b"OK\r\n");
        assert!(!slots[0].awaits_sweep);
    }

    /// Else a datagram of ten bytes costs the other clients the copy of a megabyte.
    #[test]
    fn a_value_that_is_too_long_for_a_datagram_is_not_copied() {
        const LIMIT_BYTES: usize = 4096;
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let mut worker = InProcessWorker::new(server.0.state());
        let mut run = |input: &[u8], mut slot: RequestSlot| {
            slot.output_limit_bytes = LIMIT_BYTES;
            let mut slots = [slot];
            worker.run(&[input], &mut slots);
            let [slot] = slots;
            slot.output.bytes
        };
        let store = [b"set k 0 0 900000\r\n".as_slice(), &[b'v'; 900_000], b"\r\n"].concat();
        let connection = RequestSlot::new(ProtocolState::default(), Output::default());
        assert_eq!(run(&store, connection), b"STORED\r\n");
        for request in [b"get k\r\n".as_slice(), b"gets k\r\n", b"mg k v\r\n"] {
            let datagram = RequestSlot::for_datagram(ProtocolState::default(), Output::default());
            let bytes = run(request, datagram).len();
            assert!((LIMIT_BYTES..LIMIT_BYTES + 100).contains(&bytes), "{bytes} bytes");
        }
    }

    /// The value of a store that was refused is no request, although the refusal fills the output.
    #[test]
    fn a_refused_value_is_never_executed() {
        let configuration = Configuration { workers: 1, ..Configuration::default() };
        let server = InProcessServer::<Mercury>::open(configuration).expect("it opens");
        let mut worker = InProcessWorker::new(server.0.state());
        let head = [b"set ".as_slice(), &[b'k'; 251], b" 0 0 11\r\n"].concat();
        let value = b"flush_all\r\n\r\n";
        // All of the value is here, or a part of it.
        for here in [value.len(), 4] {
            let input = [b"version\r\n".as_slice(), &head, &value[..here]].concat();
            let mut slots = [RequestSlot::new(ProtocolState::default(), Output::default())];
            slots[0].output_limit_bytes = 40;
            worker.run(&[&input], &mut slots);
            let [slot] = slots;
            assert_eq!(slot.consumed, input.len(), "the rest of the input is not parsed again");
            let mut slots = [RequestSlot::new(slot.protocol_state, Output::default())];
            worker.run(&[&value[here..]], &mut slots);
            assert!(!slots[0].output.bytes.starts_with(b"OK"), "flush_all was not executed");
        }
    }
}
