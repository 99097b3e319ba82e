//! Requests of many connections, resolved together.
//!
//! All requests that the connections of a turn sent are parsed into *rounds*: of each connection
//! its reads up to its next other request go into the first round, then its other requests up to
//! its next read, then the second round begins. The reads of a round are one batch for the index,
//! whose answers go in order straight into each connection's output; the other requests follow one
//! by one, with their buckets asked for ahead.
//!
//! Invariants of this room:
//! 1. The requests of a connection are carried out, and answered, in the order they came in.
//! 2. Nothing is copied and nothing is allocated for a request, but into its connection's output.
//! 3. A connection whose output passes [`OUTPUT_BYTES`] stalls: its requests from there on stay in
//!    its input, to be parsed again when the output is drained.

use std::ops::ControlFlow;

use amalgam_index::{Found, Sink, Store, Worker};
use amalgam_op::{Delete, Key, Now, Op, Outcome, StoreMode, Verb};
use amalgam_protocol::{
    Apply, Authentication, Command, Each, KeyScratch, Limits, Problem, Protocol, Read, Refusal,
    Reply, Request, Step,
};

use crate::answers_left::AnswersLeft;
use crate::commands;
use crate::connection::OWN_BUFFER_BYTES;
use crate::counters::Counts;
use crate::dump::{self, Dump};
use crate::hot_keys::Sampler;
use crate::observer::{Observer, Seen};
use crate::output::Output;
use crate::sasl::Exchange;
use crate::server::Shared;
use crate::settings::WireProtocol;
use crate::tally::tally;
use crate::watch::{Events, Get};

/// Output of one connection above which its requests wait until it is drained.
pub const OUTPUT_BYTES: usize = 256 << 10;

/// Values of this length and more are sent from where they lie.
pub const PIN_BYTES: usize = 16 << 10;

/// What a connection's protocol remembers between turns.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    protocol: Option<Protocol>,
    /// Bytes to come that are to be thrown away.
    swallow_bytes: usize,
    /// Keys of the first request that were answered before the connection stalled.
    skip_keys: usize,
    wanted_bytes: usize,
    has_backlog: bool,
    /// A dump under way: what follows waits.
    pub dump: Option<Box<Dump>>,
    /// The client gave a name and the right password.
    pub is_authenticated: bool,
    /// What a client that began to authenticate was asked for (binary).
    pub exchange: Exchange,
}

impl Conversation {
    /// Whether the input may hold whole requests that were not carried out yet.
    pub fn has_backlog(&self) -> bool {
        self.has_backlog || self.dump.is_some()
    }

    /// How many bytes the first request has; 0 when unknown because its line is not complete.
    pub fn wanted_bytes(&self) -> usize {
        self.wanted_bytes
    }
}

/// A connection's part in a batch.
pub struct Seat {
    /// See [`Conversation`].
    pub conversation: Conversation,
    /// Where answers go.
    pub output: Output,
    /// The number of the connection's socket.
    pub number: i32,
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Close the connection once the output is sent.
    pub is_closing: bool,
    /// The client broke the protocol.
    pub is_broken: bool,
    /// What the connection is to be told of from now on, and nothing else.
    pub watches: Option<Events>,
    /// The output is full; `consumed` says what was answered.
    is_stalled: bool,
    /// Large values may be sent from where they lie.
    pins: bool,
}

impl Seat {
    /// A seat for a connection.
    pub fn new(conversation: Conversation, output: Output) -> Self {
        Self {
            conversation,
            output,
            number: 0,
            consumed: 0,
            is_closing: false,
            is_broken: false,
            watches: None,
            is_stalled: false,
            pins: true,
        }
    }

    /// A seat whose output is to hold every byte of the answer.
    pub fn without_pins(conversation: Conversation, output: Output) -> Self {
        Self { pins: false, ..Self::new(conversation, output) }
    }

    /// Whether there is a connection behind it, not a datagram.
    pub fn is_connection(&self) -> bool {
        self.pins
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.output.bytes.len() + self.output.pinned_bytes() >= OUTPUT_BYTES
    }

    /// Closes the connection; nothing of this turn is carried out for it.
    fn give_up(&mut self, input_bytes: usize) {
        self.stall(input_bytes, 0);
        self.conversation.has_backlog = false;
        self.is_closing = true;
        self.is_broken = true;
    }

    /// Stops here: the next request to look at starts at `start`, `skip_keys` of its keys answered.
    fn stall(&mut self, start: usize, skip_keys: usize) {
        self.is_stalled = true;
        self.consumed = start;
        self.conversation.swallow_bytes = 0;
        self.conversation.has_backlog = true;
        self.conversation.skip_keys = skip_keys;
        self.conversation.wanted_bytes = 0;
    }
}

/// What a batch runs on.
pub struct Turn<'t, 's, I: Store + 's> {
    /// The server.
    pub shared: &'s Shared<I>,
    /// The worker's number.
    pub worker: usize,
    /// The worker's access to the index.
    pub index: &'t mut I::Worker<'s>,
    /// What the worker counts.
    pub counts: &'t mut Counts,
    /// Sees which keys are accessed.
    pub sampler: &'t mut Sampler<'s>,
    /// The moment.
    pub now: Now,
    /// Who wants to be told of requests, if anybody does.
    pub observer: Option<Observer<'s>>,
}

/// Where a request of a connection lies.
#[derive(Clone, Copy)]
struct Place {
    /// The connection's seat.
    seat: u32,
    /// The request's first byte.
    start: u32,
    /// The byte behind it.
    end: u32,
}

/// A read whose keys stand in its round.
struct Reading<'t> {
    read: Read<'t>,
    place: Place,
    /// The position in the round behind its last key.
    keys_end: u32,
    /// Keys that were answered before a stall and are not in the round.
    skipped: u32,
}

/// A request that is not a read.
struct Deed<'t> {
    place: Place,
    request: DeedRequest<'t>,
}

enum DeedRequest<'t> {
    Apply { apply: Apply<'t>, hash: u64 },
    Each { each: Each<'t>, skipped: usize },
    Command { command: Command<'t>, reply: Reply<'t> },
    Refusal(Refusal<'t>),
}

#[derive(Default)]
struct Round<'t> {
    keys: Vec<Key<'t>>,
    readings: Vec<Reading<'t>>,
    deeds: Vec<Deed<'t>>,
}

/// Empties a vector and gives its memory to one of another lifetime.
fn recycle<T, U>(mut vector: Vec<T>) -> Vec<U> {
    vector.clear();
    // The standard library collects in place, as source and target have the same layout.
    vector.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

impl Round<'_> {
    fn recycle<'u>(self) -> Round<'u> {
        Round {
            keys: recycle(self.keys),
            readings: recycle(self.readings),
            deeds: recycle(self.deeds),
        }
    }

    fn is_empty(&self) -> bool {
        self.readings.is_empty() && self.deeds.is_empty()
    }
}

/// Memory for batches, used again and again.
#[derive(Default)]
pub struct Batch {
    rounds: Vec<Round<'static>>,
}

/// Rounds whose memory is kept.
const ROUNDS_KEPT: usize = 64;

impl Batch {
    /// Carries out what `inputs`, one for each seat, hold.
    pub fn run<'i, 's, I: Store>(
        &mut self,
        turn: &mut Turn<'_, 's, I>,
        inputs: impl Iterator<Item = &'i [u8]>,
        seats: &mut [Seat],
    ) {
        let mut rounds: Vec<Round<'i>> = std::mem::take(&mut self.rounds);
        for (number, input) in inputs.enumerate() {
            parse(turn, input, number, &mut seats[number], &mut rounds);
        }
        for round in &mut rounds {
            if round.is_empty() {
                break;
            }
            resolve(turn, round, seats);
            carry_out(turn, round, seats);
        }
        for seat in seats.iter_mut().filter(|seat| seat.conversation.dump.is_some()) {
            dump::go_on(turn, seat);
        }
        rounds.truncate(ROUNDS_KEPT);
        self.rounds = rounds.into_iter().map(Round::recycle).collect();
    }
}

/// Parses what a connection sent into rounds.
fn parse<'i, I: Store>(
    turn: &mut Turn<'_, '_, I>,
    input: &'i [u8],
    number: usize,
    seat: &mut Seat,
    rounds: &mut Vec<Round<'i>>,
) {
    if seat.conversation.dump.is_some() {
        return;
    }
    let settings = &turn.shared.settings;
    let swallowed = seat.conversation.swallow_bytes.min(input.len());
    seat.conversation.swallow_bytes -= swallowed;
    seat.conversation.has_backlog = false;
    seat.conversation.wanted_bytes = 0;
    let mut at = swallowed;
    let Some(protocol) = protocol_of(&mut seat.conversation, settings.protocol, &input[at..])
    else {
        seat.consumed = at;
        return;
    };
    let mut skip = std::mem::take(&mut seat.conversation.skip_keys);
    let limits = Limits {
        authentication: match (&turn.shared.users, seat.conversation.is_authenticated) {
            (None, _) => Authentication::NotOffered,
            (Some(_), false) => Authentication::Missing,
            (Some(_), true) => Authentication::Given,
        },
        ..turn.shared.limits
    };
    let mut requests_left = settings.requests_per_turn.unwrap_or(usize::MAX);
    let mut answers_left = AnswersLeft::of(settings);
    let mut round = 0;
    let mut is_in_deeds = false;
    while at < input.len() {
        if requests_left == 0 {
            if seat.conversation.has_backlog {
                break;
            }
            seat.conversation.has_backlog = true;
            turn.counts.conn_yields += 1;
            break;
        }
        requests_left -= 1;
        let mut step = parse_one(turn, protocol, &input[at..], &limits);
        if !answers_left.admits(&mut step) {
            turn.counts.answers_refused += 1;
            if !matches!(step, Step::Refused { .. }) {
                return seat.give_up(input.len());
            }
        }
        let used = match step {
            Step::Request { used, .. } | Step::Refused { used, .. } => used,
            Step::Incomplete { at_least } => {
                seat.conversation.wanted_bytes = wanted_bytes(&input[at..], at_least);
                break;
            }
        };
        let place = Place { seat: number as u32, start: at as u32, end: (at + used) as u32 };
        at += used;
        let is_read = matches!(step, Step::Request { request: Request::Read(_), .. });
        round += usize::from(is_in_deeds && is_read);
        is_in_deeds = !is_read;
        if round == rounds.len() {
            rounds.push(Round::default());
        }
        let round = &mut rounds[round];
        let request = match step {
            Step::Request { request: Request::Read(read), .. } => {
                push_reading(turn, round, read, place, std::mem::take(&mut skip));
                continue;
            }
            Step::Request { request, .. } => deed_request(turn, request, std::mem::take(&mut skip)),
            Step::Refused { refusal, .. } => {
                at += refusal.swallow;
                if refusal.closes {
                    at = input.len();
                }
                DeedRequest::Refusal(refusal)
            }
            Step::Incomplete { .. } => break,
        };
        if let DeedRequest::Command { command, .. } = &request {
            match command {
                Command::Quit | Command::Watch(_) => at = input.len(),
                // What follows is read differently once this is done, or waits for a dump.
                Command::LogIn { .. }
                | Command::Authenticate { .. }
                | Command::Stats(_)
                | Command::LruCrawler(_) => {
                    seat.conversation.has_backlog = at < input.len();
                    requests_left = 0;
                }
                _ => {}
            }
        }
        round.deeds.push(Deed { place, request });
    }
    seat.conversation.swallow_bytes += at.saturating_sub(input.len());
    seat.consumed = at.min(input.len());
}

/// Parses the first request of `rest`; refuses a value under way for which there is no memory.
#[inline]
fn parse_one<'i, I: Store>(
    turn: &mut Turn<'_, '_, I>,
    protocol: Protocol,
    rest: &'i [u8],
    limits: &Limits,
) -> Step<'i> {
    let step = protocol.parse(rest, limits);
    if let Step::Incomplete { at_least } = step
        && at_least > OWN_BUFFER_BYTES
        && !turn.shared.buffers.allows(at_least - rest.len())
    {
        // Under a stricter limit the same bytes are a refusal, which says what to throw away.
        let strict = Limits { max_item_bytes: 0, ..*limits };
        if let Step::Refused { refusal, used } = protocol.parse(rest, &strict) {
            turn.counts.read_buf_oom += 1;
            return Step::Refused { refusal: refusal.out_of_memory(), used };
        }
    }
    step
}

/// How many bytes the request at the start of `rest` has, or 0 if its line is not complete.
fn wanted_bytes(rest: &[u8], at_least: usize) -> usize {
    let is_exact = at_least > rest.len() + 1 || rest.contains(&b'\n');
    if is_exact { at_least } else { 0 }
}

fn protocol_of(
    conversation: &mut Conversation,
    setting: WireProtocol,
    input: &[u8],
) -> Option<Protocol> {
    if conversation.protocol.is_none() {
        let first = *input.first()?;
        conversation.protocol = Some(match setting {
            WireProtocol::Negotiated => Protocol::detect(first),
            WireProtocol::Text => Protocol::Text,
            WireProtocol::Binary => Protocol::Binary,
        });
    }
    conversation.protocol
}

#[inline]
fn push_reading<'i, I: Store>(
    turn: &Turn<'_, '_, I>,
    round: &mut Round<'i>,
    read: Read<'i>,
    place: Place,
    skip: usize,
) {
    let seed = turn.shared.index.seed();
    for key in read.keys.skip(skip) {
        round.keys.push(Key::new(key, seed));
    }
    let keys_end = round.keys.len() as u32;
    round.readings.push(Reading { read, place, keys_end, skipped: skip as u32 });
}

fn deed_request<'i, I: Store>(
    turn: &Turn<'_, '_, I>,
    request: Request<'i>,
    skipped: usize,
) -> DeedRequest<'i> {
    match request {
        Request::Apply(apply) => {
            let mut scratch: KeyScratch = [0; _];
            let key = Key::new(apply.key.resolve(&mut scratch), turn.shared.index.seed());
            turn.index.prefetch(&key);
            DeedRequest::Apply { apply, hash: key.hash() }
        }
        Request::Each(each) => DeedRequest::Each { each, skipped },
        Request::Command { command, reply } => DeedRequest::Command { command, reply },
        Request::Read(_) => unreachable!("reads are no deeds"),
    }
}

/// Why a batch of reads broke off.
#[derive(Clone, Copy, Default, PartialEq)]
enum Stop {
    #[default]
    Not,
    /// The item must be changed to be answered.
    MustApply,
    /// The connection's output is full.
    Full,
}

/// Takes what a round's reads find into the outputs of their connections.
struct Answers<'r, 'i> {
    readings: &'r [Reading<'i>],
    keys: &'r [Key<'i>],
    seats: &'r mut [Seat],
    now: &'r Now,
    observer: Option<Observer<'r>>,
    /// The reading that is being answered.
    reading: usize,
    /// The position in the round of the batch's first key.
    first: usize,
    hits: u64,
    misses: u64,
    expired: u64,
    flushed: u64,
    stop: Stop,
}

impl Answers<'_, '_> {
    /// The key at `position` of the round was answered.
    #[inline]
    fn next(&mut self, position: usize) -> ControlFlow<()> {
        let reading = &self.readings[self.reading];
        let seat = &mut self.seats[reading.place.seat as usize];
        if position + 1 == reading.keys_end as usize {
            reading.read.reply.end(&mut seat.output.bytes);
            self.reading += 1;
        }
        if seat.is_full() {
            self.stop = Stop::Full;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// The position in the round of the first key of a reading.
    fn first_key(&self, reading: usize) -> usize {
        reading.checked_sub(1).map_or(0, |before| self.readings[before].keys_end as usize)
    }

    /// Stalls the connection whose output the key before `position` filled.
    fn stall(&mut self, position: usize) {
        let before = self.first_key(self.reading);
        if position == before {
            let place = self.readings[self.reading - 1].place;
            self.seats[place.seat as usize].stall(place.end as usize, 0);
        } else {
            let reading = &self.readings[self.reading];
            let answered = reading.skipped as usize + position - before;
            let place = reading.place;
            self.seats[place.seat as usize].stall(place.start as usize, answered);
        }
    }

    /// The next keys from `position` on that belong to connections that are not stalled.
    fn runnable(&mut self, mut position: usize) -> std::ops::Range<usize> {
        let is_stalled = |reading: &Reading<'_>| self.seats[reading.place.seat as usize].is_stalled;
        while self.readings.get(self.reading).is_some_and(is_stalled) {
            position = self.readings[self.reading].keys_end as usize;
            self.reading += 1;
        }
        let rest = &self.readings[self.reading..];
        let count = rest.iter().position(is_stalled).unwrap_or(rest.len());
        let end = count.checked_sub(1).map_or(position, |last| rest[last].keys_end as usize);
        position..end
    }
}

impl Answers<'_, '_> {
    #[inline]
    fn missed(&mut self, position: usize, get: Get) -> ControlFlow<()> {
        let reading = &self.readings[self.reading];
        let seat = &mut self.seats[reading.place.seat as usize];
        reading.read.reply.miss(&mut seat.output.bytes);
        self.misses += 1;
        if let Some(observer) = &self.observer {
            observer.read(self.keys[self.first + position].bytes(), get, seat.number);
        }
        self.next(self.first + position)
    }
}

impl Sink for Answers<'_, '_> {
    #[inline]
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        let reading = &self.readings[self.reading];
        if reading.read.must_apply(&found.item) {
            self.stop = Stop::MustApply;
            return ControlFlow::Break(());
        }
        let seat = &mut self.seats[reading.place.seat as usize];
        answer_hit(&reading.read.reply, seat, found, self.now);
        self.hits += 1;
        if let Some(observer) = &self.observer {
            observer.read(found.item.key, Get::Found(found.item.value.len()), seat.number);
        }
        self.next(self.first + position)
    }

    #[inline]
    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        self.missed(position, Get::NotFound)
    }

    #[cold]
    fn dead(&mut self, position: usize, is_flushed: bool) -> ControlFlow<()> {
        *(if is_flushed { &mut self.flushed } else { &mut self.expired }) += 1;
        self.missed(position, if is_flushed { Get::Flushed } else { Get::Expired })
    }
}

#[inline]
fn answer_hit(reply: &Reply<'_>, seat: &mut Seat, found: &Found<'_>, now: &Now) {
    let output = &mut seat.output;
    if !reply.hit_head(&mut output.bytes, &found.item, found.hit, now) {
        return;
    }
    if seat.pins
        && found.item.value.len() >= PIN_BYTES
        && let Some(value) = found.pin()
    {
        output.push_pinned(value);
    } else {
        output.bytes.extend_from_slice(found.item.value.as_bytes());
    }
    reply.hit_tail(&mut output.bytes);
}

/// Resolves the reads of a round.
fn resolve<I: Store>(turn: &mut Turn<'_, '_, I>, round: &Round<'_>, seats: &mut [Seat]) {
    let now = turn.now;
    let mut answers = Answers {
        readings: &round.readings,
        keys: &round.keys,
        seats,
        now: &now,
        observer: turn.observer,
        reading: 0,
        first: 0,
        hits: 0,
        misses: 0,
        expired: 0,
        flushed: 0,
        stop: Stop::Not,
    };
    let mut position = 0;
    loop {
        let keys = answers.runnable(position);
        if keys.is_empty() {
            break;
        }
        answers.first = keys.start;
        let done = turn.index.get_batch(&round.keys[keys.clone()], &now, &mut answers);
        position = keys.start + done;
        turn.sampler.see(&round.keys[keys.start..position], now.seconds);
        if answers.stop == Stop::MustApply {
            answers.stop = Stop::Not;
            apply_read(turn, &round.keys[position - 1], &mut answers);
            let _ = answers.next(position - 1);
        }
        if answers.stop == Stop::Full {
            answers.stop = Stop::Not;
            answers.stall(position);
        }
    }
    turn.counts.cmd_get += answers.hits + answers.misses;
    turn.counts.get_hits += answers.hits;
    turn.counts.get_misses += answers.misses;
    turn.counts.get_expired += answers.expired;
    turn.counts.get_flushed += answers.flushed;
}

/// Answers a key whose item has to change for it, such as one that gets its CAS id now.
fn apply_read<I: Store>(turn: &mut Turn<'_, '_, I>, key: &Key<'_>, answers: &mut Answers<'_, '_>) {
    let reading = &answers.readings[answers.reading];
    let seat = &mut answers.seats[reading.place.seat as usize];
    let number = seat.number;
    let op = Op { key: *key, verb: reading.read.verb() };
    let mut sink = OneAnswer { reply: &reading.read.reply, seat, now: answers.now };
    let mut get = Get::Found(0);
    match turn.index.apply(&op, answers.now, &mut sink) {
        Outcome::Hit(_) => answers.hits += 1,
        outcome => {
            reading.read.reply.outcome(&mut seat.output.bytes, &outcome, answers.now);
            answers.misses += 1;
            get = Get::NotFound;
        }
    }
    if let Some(observer) = &answers.observer {
        observer.read(key.bytes(), get, number);
    }
}

/// Takes what one operation shows.
struct OneAnswer<'r, 'i> {
    reply: &'r Reply<'i>,
    seat: &'r mut Seat,
    now: &'r Now,
}

impl Sink for OneAnswer<'_, '_> {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        answer_hit(self.reply, self.seat, found, self.now);
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Carries out the requests of a round that are no reads.
fn carry_out<I: Store>(turn: &mut Turn<'_, '_, I>, round: &Round<'_>, seats: &mut [Seat]) {
    for deed in &round.deeds {
        let seat = &mut seats[deed.place.seat as usize];
        if seat.is_stalled {
            continue;
        }
        match &deed.request {
            DeedRequest::Apply { apply, hash } => carry_out_apply(turn, seat, apply, *hash),
            DeedRequest::Each { each, skipped } => {
                carry_out_each(turn, seat, each, *skipped, deed.place);
            }
            DeedRequest::Command { command, reply } => commands::run(turn, seat, command, reply),
            DeedRequest::Refusal(refusal) => carry_out_refusal(turn, seat, refusal),
        }
        if seat.is_full() && !seat.is_stalled {
            seat.stall(deed.place.end as usize, 0);
        }
    }
}

fn carry_out_apply<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    apply: &Apply<'_>,
    hash: u64,
) {
    let mut scratch: KeyScratch = [0; _];
    let key = Key::with_hash(apply.key.resolve(&mut scratch), hash);
    let op = Op { key, verb: apply.verb };
    let before = look(turn, &op.key);
    let mut sink = OneAnswer { reply: &apply.reply, seat: &mut *seat, now: &turn.now };
    let outcome = turn.index.apply(&op, &turn.now, &mut sink);
    turn.sampler.see(&[key], turn.now.seconds);
    apply.reply.outcome(&mut seat.output.bytes, &outcome, &turn.now);
    tally(turn.counts, &op.verb, &outcome);
    if let Some(observer) = &turn.observer {
        let (is_meta, number) = (apply.reply.is_meta(), seat.number);
        let seen = Seen { op: &op, outcome: &outcome, before, is_meta, number };
        observer.applied(&seen, &turn.now);
    }
    let is_lost = matches!(outcome, Outcome::OutOfMemory | Outcome::TooLarge);
    let is_set = matches!(op.verb, Verb::Store(store)
        if store.mode == StoreMode::Set && store.compare.is_none());
    if is_lost && is_set {
        // So that nobody reads a value that the client meant to replace.
        remove(turn, key);
    }
}

/// What a key holds before it is changed, where somebody wants to be told.
#[inline]
fn look<I: Store>(turn: &mut Turn<'_, '_, I>, key: &Key<'_>) -> Get {
    match turn.observer {
        Some(observer) => observer.look(&mut *turn.index, key, &turn.now),
        None => Get::NotFound,
    }
}

fn remove<I: Store>(turn: &mut Turn<'_, '_, I>, key: Key<'_>) {
    struct Nowhere;
    impl Sink for Nowhere {
        fn hit(&mut self, _: usize, _: &Found<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
        fn miss(&mut self, _: usize) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }
    let op = Op { key, verb: Verb::Delete(Delete::default()) };
    turn.index.apply(&op, &turn.now, &mut Nowhere);
}

fn carry_out_each<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    each: &Each<'_>,
    skipped: usize,
    place: Place,
) {
    let verb = Verb::Get(each.get);
    for (number, key) in each.keys.enumerate().skip(skipped) {
        if seat.is_full() {
            seat.stall(place.start as usize, number);
            return;
        }
        let op = Op { key: Key::new(key, turn.shared.index.seed()), verb };
        let before = look(turn, &op.key);
        let mut sink = OneAnswer { reply: &each.reply, seat: &mut *seat, now: &turn.now };
        let outcome = turn.index.apply(&op, &turn.now, &mut sink);
        turn.sampler.see(&[op.key], turn.now.seconds);
        each.reply.outcome(&mut seat.output.bytes, &outcome, &turn.now);
        tally(turn.counts, &verb, &outcome);
        if let Some(observer) = &turn.observer {
            let number = seat.number;
            let seen = Seen { op: &op, outcome: &outcome, before, is_meta: false, number };
            observer.applied(&seen, &turn.now);
        }
        turn.counts.cmd_get += 1;
        let is_hit = matches!(outcome, Outcome::Hit(_));
        turn.counts.get_hits += u64::from(is_hit);
        turn.counts.get_misses += u64::from(!is_hit);
    }
    each.reply.end(&mut seat.output.bytes);
}

fn carry_out_refusal<I: Store>(turn: &mut Turn<'_, '_, I>, seat: &mut Seat, refusal: &Refusal<'_>) {
    refusal.write(&mut seat.output.bytes);
    match refusal.problem() {
        Some(Problem::TOO_LARGE) => turn.counts.store_too_large += 1,
        Some(Problem::OUT_OF_MEMORY) => turn.counts.store_no_memory += 1,
        _ => {}
    }
    seat.is_closing |= refusal.closes;
    seat.is_broken |= refusal.closes;
    if let Some(key) = &refusal.removes {
        let mut scratch: KeyScratch = [0; _];
        let key = Key::new(key.resolve(&mut scratch), turn.shared.index.seed());
        remove(turn, key);
    }
}
