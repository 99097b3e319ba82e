//! The meta commands: mg, ms, md, ma, me. A command, a key, and flags: single letters, some with a
//! token behind them.
//!
//! The flags are read twice: when the line is parsed, for what they make the operation do, and
//! when it is answered, for what they make it show, in their order. They are never copied. A new
//! flag belongs into `Flags::take`, into the function of its command, and into `reply/meta.rs`.
//!
//! Differences from memcached 1.6.45:
//! - `k` shows a key in base64 if the request sent it so (`b`), not if the item was stored so.
//! - `t` of an item that the same request let expire, by a time since the server's start, is as if
//!   it had ended at second 1.
//! - `E` of an ms that is refused for its opaque token is forgotten; memcached gives the id to the
//!   connection's next classic store.
//! - `I` takes an id that was handed out for another key for an older one if the item itself has no
//!   id yet.

use amalgam_op::{Arithmetic, Compare, Delete, Get, MAX_KEY_BYTES, Store, StoreMode, Verb};

use crate::base64;
use crate::keys::{MAX_TOKENS, Tokens};
use crate::line::{Line, MAX_VALUE_BYTES, Value, value};
use crate::number::{parse_i32, parse_u32, parse_u64};
use crate::reply::{MetaKind, MetaReply};
use crate::{
    Apply, Keys, Limits, Problem, Read, ReadAnswer, Refusal, Reply, Request, Step, WireKey,
    item_bytes,
};

/// memcached takes this many tokens, command and key among them.
const MAX_META_TOKENS: usize = 20;

/// The longest opaque token, its `O` included.
const MAX_OPAQUE_BYTES: usize = 32;

/// The effects that the flags of a request ask for.
#[derive(Default)]
struct Flags {
    key_is_base64: bool,
    vivify: Option<i32>,
    touch: Option<i32>,
    recache: Option<i32>,
    /// `N` or `T`, whichever came last.
    last_expiry: i32,
    touches_before_recache: bool,
    wants_cas: bool,
    shows_value: bool,
    leaves_recency: bool,
    /// Read and shown by one operation, or a batched read would count as the access before.
    shows_last_access: bool,
    quiet: bool,
    drops_value: bool,
    marks_stale: bool,
    client_flags: u32,
    compare: Option<u64>,
    new_cas: Option<u64>,
    mode: u8,
    initial: u64,
    delta: u64,
    opaque_is_long: bool,
}

/// The `CLIENT_ERROR`s of flags.
mod problems {
    use crate::Problem;
    use crate::status;

    const fn problem(line: &'static str) -> Problem {
        Problem { line, status: status::INVALID }
    }

    pub const TOO_MANY: Problem = problem("CLIENT_ERROR options flags are too long");
    pub const DUPLICATE: Problem = problem("CLIENT_ERROR duplicate flag");
    pub const INVALID: Problem = problem("CLIENT_ERROR invalid flag");
    pub const BAD_TOKEN: Problem = problem("CLIENT_ERROR bad token in command line format");
    pub const BAD_KEY: Problem = problem("CLIENT_ERROR error decoding key");
    pub const BAD_INITIAL: Problem = problem("CLIENT_ERROR invalid numeric initial value");
    pub const BAD_DELTA: Problem = problem("CLIENT_ERROR invalid numeric delta value");
    pub const BAD_ARITHMETIC: Problem = problem("CLIENT_ERROR invalid or duplicate flag");
    pub const BAD_SET_MODE: Problem = problem("CLIENT_ERROR invalid mode for ms M token");
    pub const BAD_ARITHMETIC_MODE: Problem = problem("CLIENT_ERROR invalid mode for ma M token");
}

/// Whether every flag token starts like one; where not, memcached's tokenizer gives up at once.
fn starts_like_flags(mut tokens: Tokens<'_>, before: usize) -> bool {
    let is_flag = |token: &[u8]| matches!(token[0], 65..=122 | b'0'..=b'9');
    (before..MAX_TOKENS).map_while(|_| tokens.next()).all(is_flag)
}

/// What memcached says of flags among which it finds `problem`: it counts all of them first.
#[cold]
fn worst(mut tokens: Tokens<'_>, before: usize, problem: Problem) -> Problem {
    let count = (before..=MAX_META_TOKENS).map_while(|_| tokens.next()).count();
    if before + count > MAX_META_TOKENS { problems::TOO_MANY } else { problem }
}

impl Flags {
    /// Reads the flags of a line whose first `before` tokens are read.
    #[inline]
    fn parse(mut tokens: Tokens<'_>, key: &[u8], before: usize) -> Result<Self, Problem> {
        let mut flags = Self { delta: 1, ..Self::default() };
        if key.len() > MAX_KEY_BYTES {
            return Err(Problem::BAD_FORMAT);
        }
        let all = tokens;
        let mut count = before;
        let mut seen = 0_u128;
        // An error in a token is reported only if no more severe one follows; of several, the last.
        let mut problem = None;
        while let Some(token) = tokens.next() {
            count += 1;
            let flag = token[0];
            if count > MAX_META_TOKENS || flag >= 127 || seen >> flag & 1 != 0 {
                return Err(worst(all, before, problems::DUPLICATE));
            }
            seen |= 1 << flag;
            match flags.take(flag, &token[1..], key) {
                Ok(Ok(())) => {}
                Ok(Err(told)) => problem = told.or(problem).or(Some(Problem::BAD_FORMAT)),
                Err(problem) => return Err(worst(all, before, problem)),
            }
        }
        problem.map_or(Ok(flags), Err)
    }

    /// Takes one flag. The outer error ends parsing, the inner one is kept (its text may be left to
    /// other errors).
    fn take(
        &mut self,
        flag: u8,
        token: &[u8],
        key: &[u8],
    ) -> Result<Result<(), Option<Problem>>, Problem> {
        let seconds = || parse_argument(token, parse_i32).ok_or(Some(problems::BAD_TOKEN));
        let number = |problem| parse_argument(token, parse_u64).ok_or(Some(problem));
        let taken = match flag {
            b'b' => {
                self.key_is_base64 = true;
                decodes(key).then_some(()).ok_or(Some(problems::BAD_KEY))
            }
            b'N' => seconds().map(|seconds| {
                self.vivify = Some(seconds);
                self.last_expiry = seconds;
            }),
            b'T' => seconds().map(|seconds| {
                self.touch = Some(seconds);
                self.last_expiry = seconds;
                self.touches_before_recache = self.recache.is_none();
            }),
            b'R' => seconds().map(|seconds| self.recache = Some(seconds)),
            b'F' => parse_argument(token, parse_u32)
                .map(|client_flags| self.client_flags = client_flags)
                .ok_or(None),
            b'C' => number(problems::BAD_TOKEN).map(|cas| self.compare = Some(cas)),
            b'E' => number(problems::BAD_TOKEN).map(|cas| self.new_cas = Some(cas)),
            b'J' => number(problems::BAD_INITIAL).map(|initial| self.initial = initial),
            b'D' => number(problems::BAD_DELTA).map(|delta| self.delta = delta),
            b'M' => {
                // Without a letter, memcached takes what follows, which is no mode.
                self.mode = token.first().copied().unwrap_or(b' ');
                Ok(())
            }
            b'O' => {
                self.opaque_is_long = token.len() >= MAX_OPAQUE_BYTES;
                Ok(())
            }
            // Known, and read again when the request is answered, or meant for proxies.
            b'k' | b's' | b't' | b'f' | b'P' | b'L' => Ok(()),
            _ => {
                let switch = match flag {
                    b'c' => &mut self.wants_cas,
                    b'v' => &mut self.shows_value,
                    b'l' | b'h' => &mut self.shows_last_access,
                    b'u' => &mut self.leaves_recency,
                    b'q' => &mut self.quiet,
                    b'x' => &mut self.drops_value,
                    b'I' => &mut self.marks_stale,
                    _ => return Err(problems::INVALID),
                };
                *switch = true;
                Ok(())
            }
        };
        Ok(taken)
    }

    fn reply<'a>(&self, kind: MetaKind, key: WireKey<'a>, flags: Tokens<'a>) -> MetaReply<'a> {
        MetaReply {
            kind,
            quiet: self.quiet,
            shows_value: self.shows_value,
            moves_expiry: self.touch.is_some() || self.vivify.is_some(),
            has_version: self.compare,
            sent_bytes: 0,
            key,
            flags: flags.rest(),
        }
    }

    fn key<'a>(&self, sent: &'a [u8]) -> WireKey<'a> {
        if self.key_is_base64 { WireKey::base64(sent) } else { WireKey::plain(sent) }
    }
}

/// Whether `key` is base64 of a key.
#[inline(never)]
fn decodes(key: &[u8]) -> bool {
    base64::decode(key, &mut [0; MAX_KEY_BYTES]).is_some()
}

/// The argument of a flag. Fails if it is missing.
fn parse_argument<T>(token: &[u8], parse: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    if token.is_empty() { None } else { parse(token) }
}

fn refuse<'a>(line: Line<'a>, problem: Problem, swallow: usize) -> Step<'a> {
    let refusal = Refusal::new(Reply::line_reply(false), problem);
    line.refuse(Refusal { swallow, ..refusal })
}

/// Reads a meta command; `tokens` are those behind its name.
pub(crate) fn parse<'a>(
    kind: MetaKind,
    mut tokens: Tokens<'a>,
    line: Line<'a>,
    limits: &Limits,
) -> Step<'a> {
    let Some(key) = tokens.next() else { return refuse(line, Problem::BAD_FORMAT, 0) };
    if kind == MetaKind::Set {
        return parse_set(key, tokens, line, limits);
    }
    if kind == MetaKind::Debug {
        return parse_debug(key, tokens, line, limits);
    }
    let mut flags = match Flags::parse(tokens, key, 2) {
        Ok(flags) => flags,
        Err(_) if !starts_like_flags(tokens, 2) => return refuse(line, Problem::BAD_FORMAT, 0),
        Err(_) if kind == MetaKind::Arithmetic => {
            return refuse(line, problems::BAD_ARITHMETIC, 0);
        }
        Err(problem) => return refuse(line, problem, 0),
    };
    let is_decrement = match flags.mode {
        0 | b'I' | b'+' => false,
        b'D' | b'-' => true,
        _ if kind == MetaKind::Arithmetic => {
            return refuse(line, problems::BAD_ARITHMETIC_MODE, 0);
        }
        _ => false,
    };
    if flags.opaque_is_long {
        if kind == MetaKind::Delete {
            return refuse(line, Problem::LONG_OPAQUE, 0);
        }
        flags.end_at_opaque(tokens);
    }
    let wire_key = flags.key(key);
    let shown = if flags.opaque_is_long { MetaKind::LongOpaque } else { kind };
    let reply = flags.reply(shown, wire_key, tokens);
    let wants_cas = flags.wants_cas && limits.hands_out_cas;
    let verb = match kind {
        MetaKind::Delete => Verb::Delete(flags.delete()),
        MetaKind::Arithmetic => Verb::Arithmetic(flags.arithmetic(is_decrement, wants_cas)),
        _ => match flags.get(wants_cas) {
            None if !flags.key_is_base64 && !flags.opaque_is_long => {
                return line.step(Request::Read(Read {
                    keys: Keys::single(key),
                    answer: ReadAnswer { reply: Reply::meta(reply), wants_cas, checks_stale: true },
                }));
            }
            get => {
                let checks_stale = !flags.opaque_is_long;
                let read = Get { wants_cas, checks_stale, ..Get::default() };
                Verb::Get(get.unwrap_or(read))
            }
        },
    };
    line.step(Request::Apply(Apply { key: wire_key, verb, reply: Reply::meta(reply) }))
}

impl Flags {
    /// Leaves what memcached has done to the item when it finds that the opaque token is too long:
    /// the flags behind the token do not count, and a get neither wins the recache token nor, with
    /// flags that lock the item, counts as an access.
    #[cold]
    fn end_at_opaque(&mut self, mut tokens: Tokens<'_>) {
        self.leaves_recency |= self.touch.is_some()
            || self.vivify.is_some()
            || self.recache.is_some()
            || self.shows_last_access;
        (self.touch, self.recache, self.last_expiry) = (None, None, 0);
        while let Some(token) = tokens.next() {
            let seconds = parse_i32(&token[1..]);
            match token[0] {
                b'O' => break,
                b'T' => self.touch = seconds,
                b'N' => {}
                _ => continue,
            }
            self.last_expiry = seconds.unwrap_or(0);
        }
    }

    /// The operation of an mg that does more than read.
    fn get(&self, wants_cas: bool) -> Option<Get> {
        let acts = self.touch.is_some()
            || self.vivify.is_some()
            || self.recache.is_some()
            || self.leaves_recency
            || self.shows_last_access;
        acts.then(|| Get {
            touch: self.touch.map(i64::from),
            vivify: self.vivify.map(|_| self.last_expiry.into()),
            recache_below_seconds: self.recache.map(i64::from),
            wants_cas,
            new_cas: self.new_cas,
            checks_stale: !self.opaque_is_long,
            touches_before_recache: self.touches_before_recache,
            is_quiet_access: self.leaves_recency,
        })
    }

    fn delete(&self) -> Delete {
        Delete {
            compare: self.compare,
            marks_stale: self.marks_stale,
            drops_value: self.drops_value,
            flags: self.client_flags,
            touch: self.touch.map(i64::from),
            new_cas: self.new_cas,
        }
    }

    fn arithmetic(&self, is_decrement: bool, wants_cas: bool) -> Arithmetic {
        Arithmetic {
            delta: self.delta,
            is_decrement,
            initial: self.vivify.map(|_| self.initial),
            initial_expiry: self.last_expiry.into(),
            touch: self.touch.map(i64::from),
            compare: self.compare.filter(|cas| *cas != 0),
            wants_cas,
            new_cas: self.new_cas,
        }
    }

    /// The store of `value`; None if the mode is unknown.
    fn store<'a>(&self, value: &'a [u8], wants_cas: bool) -> Option<Store<'a>> {
        let mode = match self.mode {
            0 | b'S' => StoreMode::Set,
            b'E' => StoreMode::Add,
            b'A' => StoreMode::Append,
            b'P' => StoreMode::Prepend,
            b'R' => StoreMode::Replace,
            _ => return None,
        };
        let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let compare = self.compare.filter(|cas| !joins || *cas != 0);
        // A compare makes a replace a cas: it misses with NF, not NS.
        let mode = match mode {
            StoreMode::Replace if compare.is_some() => StoreMode::Set,
            mode => mode,
        };
        let accepts_older_as_stale = self.marks_stale && mode == StoreMode::Set;
        Some(Store {
            mode,
            value,
            flags: self.client_flags,
            expiry: self.touch.unwrap_or(0).into(),
            compare: compare.map(|cas| Compare { cas, accepts_older_as_stale }),
            vivify: self.vivify.filter(|_| joins).map(i64::from),
            wants_cas,
            // memcached's store takes 0 for no id.
            new_cas: self.new_cas.filter(|cas| *cas != 0),
        })
    }
}

fn parse_set<'a>(
    key: &'a [u8],
    mut tokens: Tokens<'a>,
    line: Line<'a>,
    limits: &Limits,
) -> Step<'a> {
    let length =
        tokens.next().and_then(parse_i32).filter(|length| (0..=MAX_VALUE_BYTES).contains(length));
    let Some(length) = length else { return refuse(line, Problem::BAD_FORMAT, 0) };
    let length = length as usize;
    let flags = match Flags::parse(tokens, key, 3) {
        Ok(flags) => flags,
        Err(_) if !starts_like_flags(tokens, 3) => return refuse(line, Problem::BAD_FORMAT, 0),
        Err(problem) => return refuse(line, problem, length + 2),
    };
    let wants_cas = flags.wants_cas && limits.hands_out_cas;
    let Some(store) = flags.store(&[], wants_cas) else {
        return refuse(line, problems::BAD_SET_MODE, length + 2);
    };
    let key = flags.key(key);
    let reply =
        Reply::meta(MetaReply { sent_bytes: length, ..flags.reply(MetaKind::Set, key, tokens) });
    let size = item_bytes(key.stored_bytes(), length, flags.client_flags, limits.hands_out_cas);
    if size > limits.max_item_bytes {
        let refusal = Refusal::new(Reply::line_reply(false), Problem::TOO_LARGE);
        return line.refuse(Refusal { swallow: length + 2, removes: Some(key), ..refusal });
    }
    if flags.opaque_is_long {
        return refuse(line, Problem::LONG_OPAQUE, length + 2);
    }
    match value(line, length) {
        Value::Whole(value, used) => {
            let verb = Verb::Store(Store { value, ..store });
            Step::Request { request: Request::Apply(Apply { key, verb, reply }), used }
        }
        Value::Incomplete { at_least } => Step::Incomplete { at_least },
        Value::Bad { used } => {
            let refusal = Refusal::new(Reply::line_reply(false), Problem::BAD_DATA);
            Step::Refused { refusal, used }
        }
    }
}

/// `me`. As in memcached 1.6.45, `b` counts only with another flag behind it.
fn parse_debug<'a>(key: &'a [u8], tokens: Tokens<'a>, line: Line<'a>, limits: &Limits) -> Step<'a> {
    let mut flags = tokens;
    let is_base64 = flags.next() == Some(b"b") && flags.next().is_some();
    if !starts_like_flags(tokens, 2) {
        return refuse(line, Problem::BAD_FORMAT, 0);
    }
    if key.len() > MAX_KEY_BYTES || (is_base64 && !decodes(key)) {
        return refuse(line, Problem::BAD_FORMAT, 0);
    }
    let flags = Flags { key_is_base64: is_base64, shows_value: true, ..Flags::default() };
    let key = flags.key(key);
    let reply = Reply::meta(flags.reply(MetaKind::Debug, key, tokens));
    let wants_cas = limits.hands_out_cas;
    let verb = Verb::Get(Get { is_quiet_access: true, wants_cas, ..Get::default() });
    line.step(Request::Apply(Apply { key, verb, reply }))
}
