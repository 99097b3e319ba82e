//! The binary protocol: a header of 24 bytes, then extras, key and value.
//!
//! Quiet requests (`…Q`) are answered only if they failed, quiet reads only on a hit.
//! A packet that contradicts itself is answered, then the connection closes.
//!
//! Difference from memcached 1.6.45: behind an unknown opcode exactly that packet is thrown away;
//! memcached throws away as many bytes more as the packet has extras and key.

use amalgam_op::{Arithmetic, Compare, Delete, Get, MAX_KEY_BYTES, Store, StoreMode, Verb};

use crate::reply::{BinaryReply, HEADER_BYTES};
use crate::{
    Apply, Arguments, Authentication, Command, Keys, Limits, Problem, Read, ReadAnswer, Refusal,
    Reply, Request, Step, WireKey, item_bytes, opcode,
};

/// The first byte of a request.
pub(crate) const REQUEST_MAGIC: u8 = 0x80;
/// The longest body memcached reads.
const MAX_BODY_BYTES: usize = 1 << 30;
/// The longest name of an authentication mechanism.
const MAX_MECHANISM_BYTES: usize = 32;
/// The longest authentication message; memcached bounds it by a slab chunk.
const MAX_AUTHENTICATION_BYTES: usize = 1 << 19;
/// The expiry that forbids incr and decr to create an item.
const NEVER_CREATE: u32 = u32::MAX;

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

    /// The offsets of the extras, the key and the value. Requires: they were received.
    fn extras(&self) -> &'a [u8] {
        &self.input[HEADER_BYTES..][..self.extras_bytes]
    }

    fn key(&self) -> &'a [u8] {
        &self.input[HEADER_BYTES + self.extras_bytes..][..self.key_bytes]
    }

    /// Length of header, extras and key in bytes.
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
            answer: ReadAnswer {
                reply: packet.reply(),
                wants_cas: limits.hands_out_cas,
                checks_stale: false,
            },
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
        // Only an answer that is not quiet has room for an id.
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
