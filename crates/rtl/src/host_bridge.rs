//! Speaks memcached's protocols in front of the simulated hardware. Each client request is split
//! into table requests, which are simulated cycle by cycle; their answers are combined into the
//! client's answer.
//!
//! Nothing is emulated: a command that the table does not support (CAS, arithmetic, touch, the meta
//! commands) is sent to it as an unknown opcode, and the client gets the table's error. Every
//! request passes through the table, even one that the parser refused, so answers come in the
//! order of the requests.

use std::collections::VecDeque;

use amalgam_op::{Expiry, Hit, ItemView, Now, Outcome, Store, StoreMode, Value, Verb, Written};
use amalgam_protocol::{Apply, Command, Limits, Problem, Protocol, Read, Reply, Step};

use crate::{Configuration, Request, Response, Simulation, opcode, status};

/// An opcode that neither memcached nor the table knows.
const UNKNOWN_OPCODE: u8 = 0xff;

/// The result of [`HostBridge::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The input does not hold a whole request yet.
    Incomplete,
    /// The first request was sent to the table.
    Request {
        /// Length of the request in bytes, to be removed from the input.
        used: usize,
        /// Bytes after the request that must be discarded.
        swallow: usize,
        /// Whether the connection closes after the answer.
        closes: bool,
    },
}

/// A client request in flight; `origin` says who gets the answer.
struct Waiting<T> {
    origin: T,
    protocol: Protocol,
    /// The request as received. It is parsed again to learn how to answer.
    bytes: Vec<u8>,
    /// Number of table answers that make up the client's answer.
    parts: usize,
}

/// The simulated table and the client requests in flight in it. `T` identifies a requester.
pub struct HostBridge<T> {
    simulation: Simulation,
    waiting: VecDeque<Waiting<T>>,
    answers: VecDeque<Response>,
    limits: Limits,
    now: Now,
}

impl<T> HostBridge<T> {
    /// Creates a table, resets it, and sets its clock to `now`.
    pub fn new(configuration: Configuration, now: Now) -> Self {
        let limits = Limits { hands_out_cas: false, ..Limits::default() };
        let simulation = Simulation::new(configuration);
        let mut bridge =
            Self { simulation, waiting: VecDeque::new(), answers: VecDeque::new(), limits, now };
        bridge.simulation.set_evicts(true);
        bridge.set_now(now);
        bridge
    }

    /// Sets the clock.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
        self.simulation.set_now(now.seconds);
    }

    /// Number of client requests in flight.
    pub fn under_way(&self) -> usize {
        self.waiting.len()
    }

    /// Sends the first request in `input` to the table; its answer will be returned with `origin`.
    pub fn take(&mut self, protocol: Protocol, input: &[u8], origin: T) -> Taken {
        let now = self.now;
        let (used, swallow, closes, requests) = match protocol.parse(input, &self.limits) {
            Step::Incomplete { .. } => return Taken::Incomplete,
            Step::Request { request, used } => {
                let closes = matches!(
                    request,
                    amalgam_protocol::Request::Command { command: Command::Quit, .. }
                );
                (used, 0, closes, requests_of(&request, &now))
            }
            Step::Refused { refusal, used } => {
                (used, refusal.swallow, refusal.closes, vec![Request::new(opcode::NOOP, b"", b"")])
            }
        };
        let (parts, bytes) = (requests.len(), input[..used].to_vec());
        self.waiting.push_back(Waiting { origin, protocol, bytes, parts });
        requests.into_iter().for_each(|request| self.simulation.send(request));
        Taken::Request { used, swallow, closes }
    }

    /// Simulates this number of cycles.
    pub fn run(&mut self, cycles: usize) {
        self.simulation.wait(cycles);
        let answers = self.simulation.take_answers().into_iter();
        self.answers.extend(answers.map(|answer| answer.response));
    }

    /// Appends the answer to the oldest request in flight to `out` and returns its origin, or None
    /// if the answer is not complete yet. Nothing is appended where the client wants no answer.
    pub fn next_answer(&mut self, out: &mut Vec<u8>) -> Option<T> {
        let parts = self.waiting.front()?.parts;
        if self.answers.len() < parts {
            return None;
        }
        let waiting = self.waiting.pop_front()?;
        let answers: Vec<_> = self.answers.drain(..parts).collect();
        // Parsing depends on nothing but these bytes.
        match waiting.protocol.parse(&waiting.bytes, &self.limits) {
            Step::Request { request, .. } => say(&request, &answers, &self.now, out),
            Step::Refused { refusal, .. } => refusal.write(out),
            Step::Incomplete { .. } => {}
        }
        Some(waiting.origin)
    }
}

/// Translates a client request into table requests, at least one.
fn requests_of(request: &amalgam_protocol::Request<'_>, now: &Now) -> Vec<Request> {
    let scratch = &mut [0; amalgam_op::MAX_KEY_BYTES];
    match request {
        amalgam_protocol::Request::Read(Read { keys, answer })
            if !answer.wants_cas && !answer.reply.is_meta() =>
        {
            keys.map(Request::get).collect()
        }
        amalgam_protocol::Request::Apply(Apply { key, verb, reply }) if !reply.is_meta() => {
            let key = key.resolve(scratch);
            vec![request_of(key, verb, now)]
        }
        amalgam_protocol::Request::Command {
            command: Command::NoOperation | Command::Version | Command::Quit,
            ..
        } => vec![Request::new(opcode::NOOP, b"", b"")],
        _ => vec![Request::new(UNKNOWN_OPCODE, b"", b"")],
    }
}

fn request_of(key: &[u8], verb: &Verb<'_>, now: &Now) -> Request {
    match verb {
        Verb::Store(Store {
            mode: StoreMode::Set, compare: None, value, flags, expiry, ..
        }) => Request {
            flags: *flags,
            expiry: Expiry::from_client(*expiry, now).0,
            ..Request::set(key, value)
        },
        Verb::Delete(delete) if delete.compare.is_none() => Request::delete(key),
        _ => Request::new(UNKNOWN_OPCODE, b"", b""),
    }
}

/// Writes the client's answer, combined from the table's answers.
fn say(
    request: &amalgam_protocol::Request<'_>,
    answers: &[Response],
    now: &Now,
    out: &mut Vec<u8>,
) {
    let reply = match request {
        amalgam_protocol::Request::Read(read) => &read.answer.reply,
        amalgam_protocol::Request::Each(each) => &each.reply,
        amalgam_protocol::Request::Apply(apply) => &apply.reply,
        amalgam_protocol::Request::Command { reply, .. } => reply,
    };
    for (status, problem) in
        [(status::UNKNOWN, Problem::UNKNOWN), (status::INVALID, Problem::BAD_FORMAT)]
    {
        if answers.iter().any(|answer| answer.status == status) {
            return reply.problem(out, problem);
        }
    }
    match request {
        amalgam_protocol::Request::Read(read) => {
            read.keys.zip(answers).for_each(|(key, answer)| say_read(reply, key, answer, now, out));
            reply.end(out);
        }
        amalgam_protocol::Request::Apply(apply) => {
            reply.outcome(out, &outcome_of(&apply.verb, &answers[0]), now);
        }
        amalgam_protocol::Request::Command { command: Command::Version, .. } => {
            reply.version(out, env!("CARGO_PKG_VERSION"));
        }
        // In the text protocol, quit is answered by closing the connection.
        amalgam_protocol::Request::Command { command: Command::Quit, .. } if reply.is_text() => {}
        _ => reply.ok(out),
    }
}

fn say_read(reply: &Reply<'_>, key: &[u8], answer: &Response, now: &Now, out: &mut Vec<u8>) {
    let Some(value) = &answer.value else { return reply.miss(out) };
    let item = ItemView {
        key,
        value: Value::Bytes(value),
        flags: answer.flags,
        expiry: Expiry::NEVER,
        cas: None,
        generation: 0,
        fetched: true,
        stale: false,
        won: false,
        last_access_seconds: None,
    };
    reply.hit(out, &item, Hit::default(), now);
}

fn outcome_of(verb: &Verb<'_>, answer: &Response) -> Outcome {
    match (answer.status, verb) {
        (status::OK, Verb::Store(store)) => {
            Outcome::Stored(Written { cas: None, value_bytes: store.value.len() })
        }
        (status::OK, _) => Outcome::Deleted,
        (status::TOO_LARGE, _) => Outcome::TooLarge,
        (status::NO_MEMORY, _) => Outcome::OutOfMemory,
        _ => Outcome::NotFound,
    }
}
