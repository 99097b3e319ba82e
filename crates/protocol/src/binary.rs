//! The binary protocol: a header of 24 bytes, then extras, key and value.
//!
//! Quiet requests (`…Q`) are answered only where something went wrong, quiet reads only on a hit.
//! A packet that contradicts itself is answered, then the connection closes.
//!
//! Difference from memcached 1.6.45: behind an unknown opcode exactly that packet is thrown away;
//! memcached throws away as many bytes more as the packet has extras and key.

use amalgam_op::{
    Arithmetic, Compare, Delete, Get, ItemView, MAX_KEY_BYTES, Outcome, Store, StoreMode, Verb,
};

use crate::{
    Apply, Arguments, Authentication, Command, Keys, Limits, Problem, Read, Refusal, Reply,
    Request, Step, WireKey, item_bytes,
};

/// The first byte of a request.
pub(crate) const REQUEST_MAGIC: u8 = 0x80;
/// The first byte of an answer.
const RESPONSE_MAGIC: u8 = 0x81;
/// Bytes of a header.
const HEADER_BYTES: usize = 24;
/// The longest body memcached reads.
const MAX_BODY_BYTES: usize = 1 << 30;
/// The longest name of an authentication mechanism.
const MAX_MECHANISM_BYTES: usize = 32;
/// The longest authentication message; memcached bounds it by a slab chunk.
const MAX_AUTHENTICATION_BYTES: usize = 1 << 19;
/// The expiry that forbids incr and decr to create an item.
const NEVER_CREATE: u32 = u32::MAX;

/// Operation codes, the quiet variants folded into the others.
mod opcode {
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const NO_OPERATION: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GET_WITH_KEY: u8 = 0x0c;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const TOUCH: u8 = 0x1c;
    pub const GET_AND_TOUCH: u8 = 0x1d;
    pub const LIST_MECHANISMS: u8 = 0x20;
    pub const AUTHENTICATE: u8 = 0x21;
    pub const AUTHENTICATION_STEP: u8 = 0x22;
    pub const GET_AND_TOUCH_WITH_KEY: u8 = 0x23;

    /// The loud variant of `code`, and whether `code` is quiet.
    pub const fn fold(code: u8) -> (u8, bool) {
        match code {
            0x09 => (GET, true),
            0x0d => (GET_WITH_KEY, true),
            0x11..=0x18 => (code - 0x10, true),
            0x19 => (APPEND, true),
            0x1a => (PREPEND, true),
            0x1e => (GET_AND_TOUCH, true),
            0x24 => (GET_AND_TOUCH_WITH_KEY, true),
            _ => (code, false),
        }
    }
}

/// The status of an answer.
pub(crate) mod status {
    pub const OK: u16 = 0x00;
    pub const NOT_FOUND: u16 = 0x01;
    pub const EXISTS: u16 = 0x02;
    pub const TOO_LARGE: u16 = 0x03;
    pub const INVALID: u16 = 0x04;
    pub const NOT_STORED: u16 = 0x05;
    pub const NOT_A_NUMBER: u16 = 0x06;
    pub const AUTHENTICATION: u16 = 0x20;
    pub const AUTHENTICATION_GOES_ON: u16 = 0x21;
    pub const UNKNOWN_COMMAND: u16 = 0x81;
    pub const OUT_OF_MEMORY: u16 = 0x82;
    pub const INTERNAL: u16 = 0x84;
}

/// What memcached says with a status.
fn status_text(status: u16) -> &'static str {
    match status {
        status::NOT_FOUND => "Not found",
        status::EXISTS => "Data exists for key.",
        status::TOO_LARGE => "Too large.",
        status::NOT_STORED => "Not stored.",
        status::NOT_A_NUMBER => "Non-numeric server-side value for incr or decr",
        status::AUTHENTICATION => "Auth failure.",
        status::UNKNOWN_COMMAND => "Unknown command",
        status::OUT_OF_MEMORY => "Out of memory",
        status::INTERNAL => "Internal error",
        _ => "Invalid arguments",
    }
}

/// How to answer a request of the binary protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinaryReply<'a> {
    /// As it was sent, quiet or not: answers repeat it.
    code: u8,
    /// Sent back as it came.
    opaque: [u8; 4],
    key: &'a [u8],
}

/// A request header, and the packet behind it.
#[derive(Clone, Copy)]
struct Packet<'a> {
    code: u8,
    is_quiet: bool,
    key_bytes: usize,
    extras_bytes: usize,
    body_bytes: usize,
    opaque: [u8; 4],
    cas: u64,
    input: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl<'a> Packet<'a> {
    #[inline]
    fn read(input: &'a [u8]) -> Option<Self> {
        let header = input.first_chunk::<HEADER_BYTES>()?;
        let (code, is_quiet) = opcode::fold(header[1]);
        Some(Self {
            code,
            is_quiet,
            key_bytes: usize::from(u16::from_be_bytes([header[2], header[3]])),
            extras_bytes: usize::from(header[4]),
            body_bytes: u32_at(header, 8) as usize,
            opaque: [header[12], header[13], header[14], header[15]],
            cas: u64_at(header, 16),
            input,
        })
    }

    /// Where the extras start, the key, the value; they must have been received.
    fn extras(&self) -> &'a [u8] {
        &self.input[HEADER_BYTES..][..self.extras_bytes]
    }

    fn key(&self) -> &'a [u8] {
        &self.input[HEADER_BYTES + self.extras_bytes..][..self.key_bytes]
    }

    /// Header, extras and key.
    fn head_bytes(&self) -> usize {
        HEADER_BYTES + self.extras_bytes + self.key_bytes
    }

    fn total_bytes(&self) -> usize {
        HEADER_BYTES + self.body_bytes
    }

    /// Zero only in a packet that contradicts itself.
    fn value_bytes(&self) -> usize {
        self.total_bytes().saturating_sub(self.head_bytes())
    }

    fn reply(&self) -> Reply<'a> {
        // The header is there, and the key where it can be an answer's part.
        let key = self.input.get(HEADER_BYTES + self.extras_bytes..self.head_bytes());
        Reply::binary(BinaryReply {
            code: self.input[1],
            opaque: self.opaque,
            key: key.unwrap_or_default(),
        })
    }

    fn close(&self, problem: Problem) -> Step<'a> {
        let refusal = Refusal { closes: true, ..Refusal::new(self.reply(), problem) };
        Step::Refused { refusal, used: self.input.len().min(self.head_bytes()) }
    }

    fn refuse(&self, problem: Problem) -> Step<'a> {
        let swallow = self.value_bytes();
        let refusal = Refusal { swallow, ..Refusal::new(self.reply(), problem) };
        Step::Refused { refusal, used: self.head_bytes() }
    }

    /// The request ends behind the key, whatever the length of the body says.
    #[inline]
    fn step(&self, request: Request<'a>) -> Step<'a> {
        Step::Request { request, used: self.head_bytes() }
    }

    fn command(&self, command: Command<'a>) -> Step<'a> {
        self.step(Request::Command { command, reply: self.reply() })
    }

    fn has(&self, extras_bytes: usize, has_key: bool, has_value: bool) -> bool {
        self.extras_bytes == extras_bytes
            && (self.key_bytes > 0) == has_key
            && (has_value || self.value_bytes() == 0)
    }
}

/// Reads the first request of `input`.
#[inline]
pub(crate) fn parse<'a>(input: &'a [u8], limits: &Limits) -> Step<'a> {
    let Some(packet) = Packet::read(input) else {
        return Step::Incomplete { at_least: HEADER_BYTES };
    };
    if input[0] != REQUEST_MAGIC {
        let refusal = Refusal::close(packet.reply());
        return Step::Refused { refusal, used: HEADER_BYTES };
    }
    if packet.key_bytes > MAX_KEY_BYTES
        || packet.head_bytes() > packet.total_bytes()
        || packet.body_bytes > MAX_BODY_BYTES
        || limits.authentication == Authentication::Missing
    {
        return parse_suspicious(packet, limits);
    }
    if input.len() < packet.head_bytes() {
        return Step::Incomplete { at_least: packet.head_bytes() };
    }
    parse_packet(packet, limits)
}

/// A packet that is refused by its header, or needs authentication.
#[cold]
fn parse_suspicious<'a>(packet: Packet<'a>, limits: &Limits) -> Step<'a> {
    let needs_none = matches!(
        packet.code,
        opcode::LIST_MECHANISMS
            | opcode::AUTHENTICATE
            | opcode::AUTHENTICATION_STEP
            | opcode::VERSION
    );
    if packet.head_bytes() > packet.total_bytes() {
        packet.close(Problem::UNKNOWN)
    } else if packet.body_bytes > MAX_BODY_BYTES {
        packet.close(Problem::BAD_FORMAT)
    } else if limits.authentication == Authentication::Missing && !needs_none {
        packet.close(Problem::NOT_AUTHENTICATED)
    } else if packet.key_bytes > MAX_KEY_BYTES {
        packet.close(Problem::BAD_FORMAT)
    } else if packet.input.len() < packet.head_bytes() {
        Step::Incomplete { at_least: packet.head_bytes() }
    } else {
        parse_packet(packet, limits)
    }
}

#[inline]
fn parse_packet<'a>(packet: Packet<'a>, limits: &Limits) -> Step<'a> {
    let is_fine = match packet.code {
        opcode::GET | opcode::GET_WITH_KEY => packet.has(0, true, false),
        opcode::SET | opcode::ADD | opcode::REPLACE => packet.has(8, true, true),
        opcode::APPEND | opcode::PREPEND => packet.has(0, true, true),
        opcode::DELETE => packet.has(0, true, false),
        opcode::INCREMENT | opcode::DECREMENT => packet.has(20, true, false),
        opcode::TOUCH | opcode::GET_AND_TOUCH | opcode::GET_AND_TOUCH_WITH_KEY => {
            packet.has(4, true, true)
        }
        opcode::FLUSH => packet.has(0, false, false) || packet.has(4, false, false),
        opcode::QUIT | opcode::NO_OPERATION | opcode::VERSION | opcode::LIST_MECHANISMS => {
            packet.has(0, false, false)
        }
        opcode::STAT => packet.extras_bytes == 0,
        opcode::AUTHENTICATE | opcode::AUTHENTICATION_STEP => packet.has(0, true, true),
        _ => return packet.refuse(Problem::UNKNOWN),
    };
    if !is_fine {
        return packet.close(Problem::BAD_FORMAT);
    }
    match packet.code {
        opcode::GET | opcode::GET_WITH_KEY => packet.step(Request::Read(Read {
            keys: Keys::single(packet.key()),
            reply: packet.reply(),
            wants_cas: limits.hands_out_cas,
            checks_stale: false,
        })),
        opcode::SET | opcode::ADD | opcode::REPLACE | opcode::APPEND | opcode::PREPEND => {
            parse_store(packet, limits)
        }
        opcode::DELETE => {
            let compare = Some(packet.cas).filter(|cas| *cas != 0);
            apply(packet, Verb::Delete(Delete { compare, ..Delete::default() }))
        }
        opcode::INCREMENT | opcode::DECREMENT => parse_arithmetic(packet, limits),
        opcode::TOUCH | opcode::GET_AND_TOUCH | opcode::GET_AND_TOUCH_WITH_KEY => {
            let touch = Some(u32_at(packet.extras(), 0).into());
            let wants_cas = limits.hands_out_cas;
            apply(packet, Verb::Get(Get { touch, wants_cas, ..Get::default() }))
        }
        opcode::FLUSH => {
            let delay_seconds =
                if packet.extras_bytes == 0 { 0 } else { u32_at(packet.extras(), 0) };
            packet.command(Command::FlushAll { delay_seconds: delay_seconds.into() })
        }
        opcode::QUIT => packet.command(Command::Quit),
        opcode::NO_OPERATION => packet.command(Command::NoOperation),
        opcode::VERSION => packet.command(Command::Version),
        opcode::STAT => packet.command(Command::Stats(Arguments::whole(packet.key()))),
        _ => parse_authentication(packet, limits),
    }
}

fn apply<'a>(packet: Packet<'a>, verb: Verb<'a>) -> Step<'a> {
    let key = WireKey::plain(packet.key());
    packet.step(Request::Apply(Apply { key, verb, reply: packet.reply() }))
}

fn parse_store<'a>(packet: Packet<'a>, limits: &Limits) -> Step<'a> {
    let mode = match packet.code {
        // A compare makes any of these a cas: it misses as one.
        opcode::SET => StoreMode::Set,
        opcode::ADD | opcode::REPLACE if packet.cas != 0 => StoreMode::Set,
        opcode::ADD => StoreMode::Add,
        opcode::REPLACE => StoreMode::Replace,
        opcode::APPEND => StoreMode::Append,
        _ => StoreMode::Prepend,
    };
    let (flags, expiry) = match packet.extras_bytes {
        8 => (u32_at(packet.extras(), 0), u32_at(packet.extras(), 4)),
        _ => (0, 0),
    };
    let size = item_bytes(packet.key_bytes, packet.value_bytes(), flags, limits.hands_out_cas);
    if size > limits.max_item_bytes {
        let removes = (packet.code == opcode::SET).then(|| WireKey::plain(packet.key()));
        let refusal = Refusal::new(packet.reply(), Problem::TOO_LARGE);
        let refusal = Refusal { swallow: packet.value_bytes(), removes, ..refusal };
        return Step::Refused { refusal, used: packet.head_bytes() };
    }
    let Some(value) = packet.input.get(packet.head_bytes()..packet.total_bytes()) else {
        return Step::Incomplete { at_least: packet.total_bytes() };
    };
    let compare = Compare { cas: packet.cas, accepts_older_as_stale: false };
    let verb = Verb::Store(Store {
        compare: (packet.cas != 0).then_some(compare),
        // Only a loud answer has room for an id.
        wants_cas: limits.hands_out_cas && !packet.is_quiet,
        ..Store::new(mode, value, flags, expiry.into())
    });
    let key = WireKey::plain(packet.key());
    let request = Request::Apply(Apply { key, verb, reply: packet.reply() });
    Step::Request { request, used: packet.total_bytes() }
}

fn parse_arithmetic<'a>(packet: Packet<'a>, limits: &Limits) -> Step<'a> {
    let extras = packet.extras();
    let expiry = u32_at(extras, 16);
    apply(
        packet,
        Verb::Arithmetic(Arithmetic {
            delta: u64_at(extras, 0),
            is_decrement: packet.code == opcode::DECREMENT,
            initial: (expiry != NEVER_CREATE).then(|| u64_at(extras, 8)),
            initial_expiry: expiry.into(),
            compare: Some(packet.cas).filter(|cas| *cas != 0),
            wants_cas: limits.hands_out_cas && !packet.is_quiet,
            ..Arithmetic::default()
        }),
    )
}

fn parse_authentication<'a>(packet: Packet<'a>, limits: &Limits) -> Step<'a> {
    if limits.authentication == Authentication::NotOffered {
        return packet.refuse(Problem::UNKNOWN);
    }
    if packet.code == opcode::LIST_MECHANISMS {
        return packet.command(Command::ListMechanisms);
    }
    if packet.key_bytes > MAX_MECHANISM_BYTES {
        return packet.refuse(Problem::BAD_FORMAT);
    }
    if packet.value_bytes() > MAX_AUTHENTICATION_BYTES {
        return packet.refuse(Problem::NO_MEMORY);
    }
    let Some(message) = packet.input.get(packet.head_bytes()..packet.total_bytes()) else {
        return Step::Incomplete { at_least: packet.total_bytes() };
    };
    let is_step = packet.code == opcode::AUTHENTICATION_STEP;
    let command = Command::Authenticate { is_step, mechanism: packet.key(), message };
    let request = Request::Command { command, reply: packet.reply() };
    Step::Request { request, used: packet.total_bytes() }
}

/// The parts of an answer that come before its value.
struct Head<'k> {
    status: u16,
    cas: u64,
    flags: Option<u32>,
    key: &'k [u8],
    value_bytes: usize,
}

impl BinaryReply<'_> {
    #[inline]
    fn head(&self, out: &mut Vec<u8>, head: Head<'_>) {
        let extras_bytes = if head.flags.is_some() { 4 } else { 0 };
        // Keys have at most 250 bytes, names of statistics fewer than 65,536; values fit by `-I`.
        let key_bytes = u16::try_from(head.key.len()).unwrap_or(u16::MAX);
        let body_bytes = extras_bytes + usize::from(key_bytes) + head.value_bytes;
        let body_bytes = u32::try_from(body_bytes).unwrap_or(u32::MAX);
        let mut header = [0; HEADER_BYTES];
        header[0] = RESPONSE_MAGIC;
        header[1] = self.code;
        header[2..4].copy_from_slice(&key_bytes.to_be_bytes());
        header[4] = extras_bytes as u8;
        header[6..8].copy_from_slice(&head.status.to_be_bytes());
        header[8..12].copy_from_slice(&body_bytes.to_be_bytes());
        header[12..16].copy_from_slice(&self.opaque);
        header[16..24].copy_from_slice(&head.cas.to_be_bytes());
        out.extend_from_slice(&header);
        if let Some(flags) = head.flags {
            out.extend_from_slice(&flags.to_be_bytes());
        }
        out.extend_from_slice(&head.key[..usize::from(key_bytes)]);
    }

    fn is_quiet(&self) -> bool {
        opcode::fold(self.code).1
    }

    /// An answer that is a status, an id and a body.
    fn packet(&self, out: &mut Vec<u8>, status: u16, cas: u64, body: &[u8]) {
        let head = Head { status, cas, flags: None, key: &[], value_bytes: body.len() };
        self.head(out, head);
        out.extend_from_slice(body);
    }

    fn shows_key(&self) -> bool {
        matches!(opcode::fold(self.code).0, opcode::GET_WITH_KEY | opcode::GET_AND_TOUCH_WITH_KEY)
    }

    /// See [`Reply::hit_head`].
    #[inline]
    pub fn hit_head(&self, out: &mut Vec<u8>, item: &ItemView<'_>) -> bool {
        let shows_value = self.code != opcode::TOUCH;
        let value_bytes = if shows_value { item.value.len() } else { 0 };
        out.reserve(HEADER_BYTES + 4 + self.key.len() + value_bytes);
        let key = if self.shows_key() { self.key } else { &[] };
        let cas = item.cas.unwrap_or(0);
        let head = Head { status: status::OK, cas, flags: Some(item.flags), key, value_bytes };
        self.head(out, head);
        shows_value
    }

    fn error(&self, out: &mut Vec<u8>, status: u16) {
        self.packet(out, status, 0, status_text(status).as_bytes());
    }

    /// See [`Reply::outcome`].
    pub fn outcome(&self, out: &mut Vec<u8>, outcome: &Outcome) {
        let (code, is_quiet) = opcode::fold(self.code);
        let is_read = matches!(
            code,
            opcode::GET
                | opcode::GET_WITH_KEY
                | opcode::TOUCH
                | opcode::GET_AND_TOUCH
                | opcode::GET_AND_TOUCH_WITH_KEY
        );
        let succeeds = |cas: Option<u64>, body: &[u8], out: &mut Vec<u8>| {
            if !is_quiet {
                self.packet(out, status::OK, cas.unwrap_or(0), body);
            }
        };
        match outcome {
            Outcome::Hit(_) => {}
            Outcome::NotFound if is_read => self.miss(out),
            Outcome::NotFound => self.error(out, status::NOT_FOUND),
            Outcome::Stored(written) => succeeds(written.cas, &[], out),
            Outcome::NotStored => self.error(
                out,
                match code {
                    opcode::ADD => status::EXISTS,
                    opcode::REPLACE => status::NOT_FOUND,
                    _ => status::NOT_STORED,
                },
            ),
            Outcome::Exists => self.error(out, status::EXISTS),
            Outcome::Deleted | Outcome::Invalidated => succeeds(None, &[], out),
            Outcome::Number(counted) => {
                succeeds(counted.cas, &counted.number.to_be_bytes(), out);
            }
            Outcome::NotANumber => self.error(out, status::NOT_A_NUMBER),
            Outcome::TooLarge if matches!(code, opcode::APPEND | opcode::PREPEND) => {
                self.error(out, status::NOT_STORED);
            }
            Outcome::TooLarge => self.error(out, status::TOO_LARGE),
            Outcome::OutOfMemory => {
                let text: &[u8] = match code {
                    opcode::INCREMENT | opcode::DECREMENT => b"Out of memory incrementing value",
                    _ => b"Out of memory allocating item",
                };
                self.packet(out, status::OUT_OF_MEMORY, 0, text);
            }
        }
    }

    fn miss(&self, out: &mut Vec<u8>) {
        if self.is_quiet() {
            return;
        }
        if !self.shows_key() {
            return self.error(out, status::NOT_FOUND);
        }
        let head =
            Head { status: status::NOT_FOUND, cas: 0, flags: None, key: self.key, value_bytes: 0 };
        self.head(out, head);
    }

    /// See [`Reply::end`]: only statistics have an end.
    pub fn end(&self, out: &mut Vec<u8>) {
        if self.code == opcode::STAT {
            self.packet(out, status::OK, 0, &[]);
        }
    }

    /// See [`Reply::stat`].
    pub fn stat(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let value_bytes = value.len();
        self.head(out, Head { status: status::OK, cas: 0, flags: None, key: name, value_bytes });
        out.extend_from_slice(value);
    }

    /// See [`Reply::ok`].
    pub fn ok(&self, out: &mut Vec<u8>) {
        if !self.is_quiet() {
            self.packet(out, status::OK, 0, &[]);
        }
    }

    /// See [`Reply::body`].
    pub fn body(&self, out: &mut Vec<u8>, body: &[u8]) {
        self.packet(out, status::OK, 0, body);
    }

    /// See [`Reply::challenge`].
    pub fn challenge(&self, out: &mut Vec<u8>, challenge: &[u8]) {
        self.packet(out, status::AUTHENTICATION_GOES_ON, 0, challenge);
    }

    /// See [`Reply::problem`].
    pub fn problem(&self, out: &mut Vec<u8>, problem: Problem) {
        self.error(out, problem.status);
    }
}
