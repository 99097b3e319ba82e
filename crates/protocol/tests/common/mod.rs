//! A connection and a store of the simplest kind, to run byte scripts against.

pub mod store;

use amalgam_op::{HashSeed, Key, MAX_KEY_BYTES, Now, Op, Outcome, StoreMode, Verb};
use amalgam_protocol::{Command, Limits, Problem, Protocol, Refusal, Reply, Request, Step};
use store::Store;

/// One connection to a store of its own.
pub struct Connection {
    pub store: Store,
    pub limits: Limits,
    pub now: Now,
    pub is_closed: bool,
    protocol: Option<Protocol>,
    seed: HashSeed,
    input: Vec<u8>,
    swallow: usize,
    /// Parse only once at least this number of bytes is there.
    at_least: usize,
}

impl Connection {
    pub fn new(limits: Limits) -> Self {
        Self {
            store: Store::default(),
            limits,
            now: Now { seconds: 1000, epoch_unix_seconds: 1_600_000_000, generation: 0 },
            is_closed: false,
            protocol: None,
            seed: HashSeed::new(1),
            input: Vec::new(),
            swallow: 0,
            at_least: 1,
        }
    }

    /// Receives `bytes` and returns the answers.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if self.is_closed {
            return out;
        }
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut used = 0;
        while !self.is_closed {
            let swallowed = self.swallow.min(input.len() - used);
            self.swallow -= swallowed;
            used += swallowed;
            let rest = &input[used..];
            let Some(first) = rest.first() else { break };
            let protocol = *self.protocol.get_or_insert(Protocol::detect(*first));
            match protocol.parse(rest, &self.limits) {
                Step::Incomplete { at_least } => {
                    assert!(at_least > rest.len(), "asks for what it has");
                    self.at_least = at_least;
                    break;
                }
                step => {
                    assert!(rest.len() >= self.at_least, "came before it was promised");
                    self.at_least = 1;
                    used += self.execute(step, &mut out);
                }
            }
        }
        self.input = input[used..].to_vec();
        out
    }

    fn execute(&mut self, step: Step<'_>, out: &mut Vec<u8>) -> usize {
        match step {
            Step::Incomplete { .. } => unreachable!("handled by the caller"),
            Step::Request { request, used } => {
                self.request(request, out);
                used
            }
            Step::Refused { refusal, used } => {
                self.refuse(&refusal, out);
                used
            }
        }
    }

    fn refuse(&mut self, refusal: &Refusal<'_>, out: &mut Vec<u8>) {
        refusal.write(out);
        self.swallow = refusal.swallow;
        self.is_closed = refusal.closes;
        if let Some(key) = refusal.removes {
            let mut scratch = [0; MAX_KEY_BYTES];
            let key = key.resolve(&mut scratch);
            let delete = Verb::Delete(amalgam_op::Delete::default());
            self.apply(key, delete, None, &mut Vec::new());
        }
    }

    fn request(&mut self, request: Request<'_>, out: &mut Vec<u8>) {
        match request {
            Request::Read(read) => {
                for key in read.keys {
                    let found = self.store.get(key, &self.now);
                    match found {
                        Some(item) if read.answer.must_apply(&item.view(key)) => {
                            self.apply(key, read.answer.verb(), Some(&read.answer.reply), out);
                        }
                        Some(item) => {
                            read.answer.reply.hit(
                                out,
                                &item.view(key),
                                Default::default(),
                                &self.now,
                            );
                            self.store.mark_fetched(key);
                        }
                        None => read.answer.reply.miss(out),
                    }
                }
                read.answer.reply.end(out);
            }
            Request::Each(each) => {
                for key in each.keys {
                    self.apply(key, Verb::Get(each.get), Some(&each.reply), out);
                }
                each.reply.end(out);
            }
            Request::Apply(apply) => {
                let mut scratch = [0; MAX_KEY_BYTES];
                let key = apply.key.resolve(&mut scratch);
                let outcome = self.apply(key, apply.verb, Some(&apply.reply), out);
                if let (Outcome::OutOfMemory, Verb::Store(store)) = (outcome, apply.verb)
                    && store.mode == StoreMode::Set
                {
                    let delete = Verb::Delete(amalgam_op::Delete::default());
                    self.apply(key, delete, None, &mut Vec::new());
                }
            }
            Request::Command { command, reply } => self.command(command, reply, out),
        }
    }

    fn apply(
        &mut self,
        key: &[u8],
        verb: Verb<'_>,
        reply: Option<&Reply<'_>>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let op = Op { key: Key::new(key, &self.seed), verb };
        let now = self.now;
        let outcome = self.store.apply(&op, &now, |item, hit| {
            if let Some(reply) = reply {
                reply.hit(out, item, hit, &now);
            }
        });
        if let Some(reply) = reply {
            reply.outcome(out, &outcome, &now);
        }
        outcome
    }

    fn command(&mut self, command: Command<'_>, reply: Reply<'_>, out: &mut Vec<u8>) {
        match command {
            Command::Version => reply.version(out, "1.6.45"),
            Command::Quit => {
                reply.ok(out);
                self.is_closed = true;
            }
            Command::NoOperation | Command::Verbosity(_) | Command::MemoryLimit { .. } => {
                reply.ok(out);
            }
            Command::Stats(mut arguments) => match arguments.next() {
                None => {
                    reply.stat_number(out, b"pid", 1);
                    reply.end(out);
                }
                Some(_) => reply.problem(out, Problem::UNKNOWN_STATISTIC),
            },
            Command::FlushAll { delay_seconds } => {
                if delay_seconds <= 0 {
                    self.now.generation = Now::next_generation(self.now.generation);
                }
                reply.ok(out);
            }
            Command::Shutdown(_) => reply.problem(out, Problem::SHUTDOWN_DISABLED),
            _ => reply.problem(out, Problem::UNKNOWN),
        }
    }
}
