//! Answers of the meta commands.

use amalgam_op::{Counted, Expiry, Hit, ItemView, MAX_KEY_BYTES, Now, Outcome};

use crate::keys::{KeyScratch, Tokens};
use crate::number::{append_decimal, parse_i32};
use crate::reply::RESERVED_VALUE_BYTES;
use crate::{Problem, WireKey, base64, item_bytes, status};

/// The error of an `ma` that would create an item.
const NO_MEMORY_CREATING: Problem =
    Problem { line: "SERVER_ERROR Out of memory allocating new item", status: status::INVALID };

/// The meta commands with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaKind {
    Get,
    Set,
    Delete,
    Arithmetic,
    /// `me`, which shows what is known about an item.
    Debug,
    /// A get or arithmetic that is executed and then refused, because its opaque token is too long.
    LongOpaque,
}

/// How to answer a meta command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaReply<'a> {
    pub kind: MetaKind,
    /// `q`: the usual outcome gets no answer.
    pub quiet: bool,
    /// `v`: the answer shows the value.
    pub shows_value: bool,
    /// The operation may move the item's expiry: `t` then depends on the order of flags.
    pub moves_expiry: bool,
    /// `C` of mg: no value if the client has this one.
    pub has_version: Option<u64>,
    /// Length of the value sent, in bytes.
    pub sent_bytes: usize,
    pub key: WireKey<'a>,
    pub flags: &'a [u8],
}

impl MetaReply<'_> {
    /// Implements [`crate::Reply::hit_head`].
    pub fn hit_head(&self, out: &mut Vec<u8>, item: &ItemView<'_>, hit: Hit, now: &Now) -> bool {
        match self.kind {
            MetaKind::Debug => {
                self.append_debug(out, item, now);
                return false;
            }
            MetaKind::LongOpaque => {
                append_line(out, Problem::LONG_OPAQUE.line);
                return false;
            }
            _ => {}
        }
        let client_has_it = self.has_version.is_some() && self.has_version == item.cas;
        let shows_value = self.shows_value && !client_has_it;
        out.reserve(item.key.len() + item.value.len().min(RESERVED_VALUE_BYTES) + 128);
        append_status(out, shows_value.then_some(item.value.len()));
        let mut expiry = if self.moves_expiry { hit.expiry_before } else { item.expiry };
        self.append_flags(out, |out, flag, argument| match flag {
            b'T' | b'N' if hit.created => expiry = expiry_of(argument, now),
            b'T' => expiry = item.expiry,
            b's' => append_number_flag(out, flag, item.value.len() as u64),
            b't' => append_time_left(out, expiry, now),
            b'c' => append_number_flag(out, flag, item.cas.unwrap_or(0)),
            b'f' => append_number_flag(out, flag, item.flags.into()),
            b'l' => append_number_flag(out, flag, idle_seconds(item, now).into()),
            b'h' => append_number_flag(out, flag, item.fetched.into()),
            _ => {}
        });
        if item.won && !hit.won {
            out.extend_from_slice(b" Z");
        }
        if item.stale {
            out.extend_from_slice(b" X");
        }
        if hit.won {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
        shows_value
    }

    /// Implements [`crate::Reply::outcome`].
    pub fn outcome(&self, out: &mut Vec<u8>, outcome: &Outcome, now: &Now) {
        let status = match outcome {
            Outcome::Hit(_) => return,
            Outcome::NotFound if self.kind == MetaKind::Debug => return out.extend(b"EN\r\n"),
            Outcome::NotFound | Outcome::Exists | Outcome::Number(_)
                if self.kind == MetaKind::LongOpaque =>
            {
                return append_line(out, Problem::LONG_OPAQUE.line);
            }
            Outcome::NotFound if self.kind == MetaKind::Get => {
                if self.quiet {
                    return;
                }
                b"EN"
            }
            Outcome::Stored(_) | Outcome::Deleted | Outcome::Invalidated | Outcome::Number(_)
                if self.quiet =>
            {
                return;
            }
            Outcome::Number(counted) => return self.append_number(out, counted, now),
            Outcome::Stored(_) | Outcome::Deleted | Outcome::Invalidated => b"HD",
            Outcome::NotFound => b"NF",
            Outcome::NotStored => b"NS",
            Outcome::Exists => b"EX",
            Outcome::TooLarge if self.kind == MetaKind::Set => b"NS",
            Outcome::NotANumber
            | Outcome::TooLarge
            | Outcome::OutOfMemory
            | Outcome::Unavailable
            | Outcome::Unknown => return append_line(out, self.problem(outcome).line),
        };
        out.extend_from_slice(status);
        let (cas, value_bytes) = match outcome {
            Outcome::Stored(written) => (written.cas.unwrap_or(0), written.value_bytes),
            _ => (0, self.sent_bytes),
        };
        let is_set = self.kind == MetaKind::Set;
        self.append_flags(out, |out, flag, _| match flag {
            b'c' if is_set => append_number_flag(out, flag, cas),
            b's' if is_set => append_number_flag(out, flag, value_bytes as u64),
            _ => {}
        });
        out.extend_from_slice(b"\r\n");
    }

    fn problem(&self, outcome: &Outcome) -> Problem {
        match (outcome, self.kind) {
            (Outcome::NotANumber, _) => Problem::NOT_A_NUMBER,
            (Outcome::Unavailable, _) => Problem::UNAVAILABLE,
            (Outcome::Unknown, _) => Problem::OUTCOME_UNKNOWN,
            (_, MetaKind::Set) => Problem::OUT_OF_MEMORY,
            (_, MetaKind::Arithmetic) => NO_MEMORY_CREATING,
            _ => Problem::OUT_OF_MEMORY_COUNTING,
        }
    }

    fn append_number(&self, out: &mut Vec<u8>, counted: &Counted, now: &Now) {
        let mut digits = Vec::with_capacity(20);
        append_decimal(&mut digits, counted.number);
        append_status(out, self.shows_value.then_some(digits.len()));
        let mut expiry = if self.moves_expiry { counted.expiry_before } else { counted.expiry };
        let created = counted.created;
        self.append_flags(out, |out, flag, argument| match flag {
            b'T' | b'N' if created => expiry = expiry_of(argument, now),
            b'T' => expiry = counted.expiry,
            b't' => append_time_left(out, expiry, now),
            b'c' => append_number_flag(out, flag, counted.cas.unwrap_or(0)),
            _ => {}
        });
        out.extend_from_slice(b"\r\n");
        if self.shows_value {
            out.extend_from_slice(&digits);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Walks over the flags: opaque and key are shown by every command, the others by `show`.
    fn append_flags(&self, out: &mut Vec<u8>, mut show: impl FnMut(&mut Vec<u8>, u8, &[u8])) {
        let mut flags = Tokens::new(self.flags);
        while let Some(token) = flags.next() {
            match token[0] {
                b'O' => {
                    out.push(b' ');
                    out.extend_from_slice(token);
                }
                b'k' => {
                    out.extend_from_slice(b" k");
                    self.key.append(out);
                    if self.key.is_base64() {
                        out.extend_from_slice(b" b");
                    }
                }
                flag => show(out, flag, &token[1..]),
            }
        }
    }

    fn append_debug(&self, out: &mut Vec<u8>, item: &ItemView<'_>, now: &Now) {
        out.extend_from_slice(b"ME ");
        self.key.append(out);
        out.extend_from_slice(b" exp=");
        append_remaining(out, item.expiry, now);
        out.extend_from_slice(b" la=");
        append_decimal(out, idle_seconds(item, now).into());
        out.extend_from_slice(b" cas=");
        append_decimal(out, item.cas.unwrap_or(0));
        out.extend_from_slice(if item.fetched { b" fetch=yes" } else { b" fetch=no" });
        out.extend_from_slice(b" cls=1 size=");
        let has_cas = item.cas.is_some();
        append_decimal(
            out,
            item_bytes(item.key.len(), item.value.len(), item.flags, has_cas) as u64,
        );
        out.extend_from_slice(b"\r\n");
    }
}

/// The key of a reply, as the client sent it or, in base64, as it should have been written.
impl WireKey<'_> {
    fn append(&self, out: &mut Vec<u8>) {
        let mut scratch: KeyScratch = [0; MAX_KEY_BYTES];
        let key = self.resolve(&mut scratch);
        match self.is_base64() {
            true => base64::append(out, key),
            false => out.extend_from_slice(key),
        }
    }
}

fn append_line(out: &mut Vec<u8>, line: &str) {
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn append_status(out: &mut Vec<u8>, value_bytes: Option<usize>) {
    match value_bytes {
        Some(bytes) => {
            out.extend_from_slice(b"VA ");
            append_decimal(out, bytes as u64);
        }
        None => out.extend_from_slice(b"HD"),
    }
}

fn append_number_flag(out: &mut Vec<u8>, flag: u8, number: u64) {
    out.extend_from_slice(&[b' ', flag]);
    append_decimal(out, number);
}

fn append_time_left(out: &mut Vec<u8>, expiry: Expiry, now: &Now) {
    out.extend_from_slice(b" t");
    append_remaining(out, expiry, now);
}

fn append_remaining(out: &mut Vec<u8>, expiry: Expiry, now: &Now) {
    match expiry.remaining_seconds(now) {
        Some(0) => append_decimal(out, wrapped_remaining(now).into()),
        Some(seconds) => append_decimal(out, seconds.into()),
        None => out.extend_from_slice(b"-1"),
    }
}

/// The expiry that a flag of an item's creation sets, which was parsed before.
#[cold]
fn expiry_of(argument: &[u8], now: &Now) -> Expiry {
    Expiry::from_client(parse_i32(argument).unwrap_or(0).into(), now)
}

/// The seconds that memcached's clock is ahead of [`Now::seconds`]: it starts at 62, not at 2.
const MEMCACHED_SECONDS_AHEAD: u32 = 60;

/// What memcached shows as the time left of an item that the same request made expire: it ended at
/// second 1, and the subtraction wraps around.
#[cold]
fn wrapped_remaining(now: &Now) -> u32 {
    1_u32.wrapping_sub(now.seconds.wrapping_add(MEMCACHED_SECONDS_AHEAD))
}

/// Seconds since the last access; 0 if the engine does not know.
fn idle_seconds(item: &ItemView<'_>, now: &Now) -> u32 {
    item.last_access_seconds.map_or(0, |second| now.seconds.saturating_sub(second))
}
