//! The classic text protocol.
//!
//! A line ends with `\n`, with or without `\r` before it. Tokens are cut at spaces and nothing
//! else, so a key may hold any other byte. The name of a get, store, arithmetic or meta command
//! starts the line; other names may have spaces before them (as in memcached).
//!
//! Differences from memcached 1.6.45:
//! - A get with a key that is too long gets one error line, as in older versions. 1.6.45 sends an
//!   empty line behind it and drops the answers to requests before it that are not yet sent, which
//!   puts a client out of step.
//! - A get or gat with such a key reads or touches none of its keys; memcached has done so with
//!   those before it.
//! - A number that gets fewer digits is filled up with spaces, always; memcached leaves them out if
//!   an answer with the item is still under way.

use amalgam_op::{Arithmetic, Compare, Delete, Get, MAX_KEY_BYTES, Store, StoreMode, Verb};

use crate::keys::Tokens;
use crate::line::{Line, MAX_VALUE_BYTES, Value, value};
use crate::meta;
use crate::number::{parse_c_expiry, parse_c_flags, parse_i32, parse_u32, parse_u64};
use crate::reply::{MetaKind, TextForm, TextReply};
use crate::scan::Window;
use crate::{
    Apply, Arguments, Authentication, Command, Each, Keys, Limits, MAX_LINE_BYTES, Problem, Read,
    ReadAnswer, Refusal, Reply, Request, ShutdownMode, Step, WireKey, item_bytes,
};

/// The shortest line that can be a command, its line end included.
const MIN_LINE_BYTES: usize = 4;

/// Leading spaces that memcached passes over when it looks for a long get.
const MAX_LEADING_SPACES: usize = 100;

/// Reads the first request of `input`.
#[inline]
pub(crate) fn parse<'a>(input: &'a [u8], limits: &Limits) -> Step<'a> {
    let window = Window::of_line(input);
    let newline = if window.line_ends != 0 {
        window.line_ends.trailing_zeros() as usize
    } else {
        match memchr::memchr(b'\n', &input[window.bytes..]) {
            Some(newline) => window.bytes + newline,
            None => return parse_endless(input, limits),
        }
    };
    let has_return = newline > 0 && input[newline - 1] == b'\r';
    let line = Line { input, end: newline - usize::from(has_return), used: newline + 1, window };
    if limits.authentication == Authentication::Missing {
        return parse_log_in(line);
    }
    match input.first_chunk() {
        Some(b"get ") if line.end >= 4 => parse_get(line.tokens(4), line, false),
        Some(b"set ") if line.end >= 4 => parse_store(line.tokens(4), line, Storing::Set, limits),
        _ => parse_other(line, limits),
    }
}

/// The shortest line that can announce credentials, without its line end.
const MIN_LOG_IN_BYTES: usize = 6;

/// The most bytes that user and password may have.
const MAX_CREDENTIALS_BYTES: u32 = 16_384;

/// The only request accepted before authentication: `set KEY FLAGS EXPIRY LENGTH`, and behind it
/// user and password. Of the line only its length counts.
#[cold]
fn parse_log_in<'a>(line: Line<'a>) -> Step<'a> {
    if line.used <= MIN_LOG_IN_BYTES {
        return line.refuse(Refusal::close(Reply::line_reply(true)));
    }
    let refuse = |problem| line.refuse(Refusal::new(Reply::line_reply(false), problem));
    let mut tokens = line.tokens(0);
    let length = tokens.nth(4).and_then(parse_u32);
    let (true, Some(length)) = (line.input.starts_with(b"set"), length) else {
        return refuse(Problem::NOT_AUTHENTICATED);
    };
    if length > MAX_CREDENTIALS_BYTES {
        return refuse(Problem::LONG_CREDENTIALS);
    }
    let (credentials, used) = match value(line, length as usize) {
        Value::Whole(credentials, used) => (credentials, used),
        Value::Incomplete { at_least } => return Step::Incomplete { at_least },
        Value::Bad { used } => {
            let refusal = Refusal::new(Reply::line_reply(false), Problem::UNENDED_CREDENTIALS);
            return Step::Refused { refusal, used };
        }
    };
    let Some(space) = memchr::memchr(b' ', credentials) else {
        let refusal = Refusal::new(Reply::line_reply(false), Problem::BAD_CREDENTIALS);
        return Step::Refused { refusal, used };
    };
    let (user, password) = (&credentials[..space], &credentials[space + 1..]);
    let command = Command::LogIn { user, password };
    let request = Request::Command { command, reply: Reply::line_reply(false) };
    Step::Request { request, used }
}

/// A line whose end has not come yet: it may grow to [`MAX_LINE_BYTES`], a get further.
#[cold]
fn parse_endless<'a>(input: &'a [u8], limits: &Limits) -> Step<'a> {
    let limit = if input.len() <= MAX_LINE_BYTES {
        MAX_LINE_BYTES
    } else {
        let spaces = input.iter().take_while(|byte| **byte == b' ').count();
        let name = &input[spaces..];
        let is_get = name.starts_with(b"get ") || name.starts_with(b"gets ");
        let is_taken = limits.authentication != Authentication::Missing;
        match is_get && is_taken && spaces <= MAX_LEADING_SPACES {
            true => limits.max_get_line_bytes,
            false => MAX_LINE_BYTES,
        }
    };
    if input.len() > limit {
        return Step::Refused {
            refusal: Refusal::close(Reply::line_reply(true)),
            used: input.len(),
        };
    }
    Step::Incomplete { at_least: input.len() + 1 }
}

/// The storage commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storing {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

fn parse_other<'a>(line: Line<'a>, limits: &Limits) -> Step<'a> {
    if line.used < MIN_LINE_BYTES {
        return line.bad_format();
    }
    // The name starts the line, or it is one of the few that need not.
    let mut tokens = line.tokens(0);
    let name = match line.input[0] {
        b' ' => &[],
        _ => tokens.next().unwrap_or_default(),
    };
    match name {
        b"get" => parse_get(tokens, line, false),
        b"gets" => parse_get(tokens, line, limits.hands_out_cas),
        b"set" => parse_store(tokens, line, Storing::Set, limits),
        b"add" => parse_store(tokens, line, Storing::Add, limits),
        b"cas" => parse_store(tokens, line, Storing::Cas, limits),
        b"replace" => parse_store(tokens, line, Storing::Replace, limits),
        b"append" => parse_store(tokens, line, Storing::Append, limits),
        b"prepend" => parse_store(tokens, line, Storing::Prepend, limits),
        b"incr" => parse_arithmetic(tokens, line, false),
        b"decr" => parse_arithmetic(tokens, line, true),
        b"delete" => parse_delete(tokens, line),
        b"touch" => parse_touch(tokens, line),
        b"gat" => parse_get_and_touch(tokens, line, false),
        b"gats" => parse_get_and_touch(tokens, line, limits.hands_out_cas),
        b"quit" => line.step(Request::Command {
            command: Command::Quit,
            reply: Reply::text(TextReply { form: TextForm::Silence, quiet: true }),
        }),
        b"version" => line.command(Command::Version, false),
        b"stats" => line.command(Command::Stats(Arguments::new(tokens)), false),
        b"watch" => line.command(Command::Watch(Arguments::new(tokens)), false),
        b"mg" => meta::parse(MetaKind::Get, tokens, line, limits),
        b"ms" => meta::parse(MetaKind::Set, tokens, line, limits),
        b"md" => meta::parse(MetaKind::Delete, tokens, line, limits),
        b"ma" => meta::parse(MetaKind::Arithmetic, tokens, line, limits),
        b"me" => meta::parse(MetaKind::Debug, tokens, line, limits),
        b"mn" => line.step(Request::Command {
            command: Command::NoOperation,
            reply: Reply::text(TextReply { form: TextForm::MetaNoOperation, quiet: false }),
        }),
        _ => parse_rare(line),
    }
}

/// Whether the last of the tokens left is `noreply`.
#[inline]
fn is_quiet(tokens: Tokens<'_>, before: usize) -> bool {
    tokens.last(before) == Some(b"noreply")
}

#[inline]
fn parse_get<'a>(tokens: Tokens<'a>, line: Line<'a>, with_cas: bool) -> Step<'a> {
    if tokens.is_empty() || tokens.has_long_token() {
        return line.bad_format();
    }
    let form = if with_cas { TextForm::ValuesWithCas } else { TextForm::Values };
    line.step(Request::Read(Read {
        keys: Keys::new(tokens),
        answer: ReadAnswer {
            reply: Reply::text(TextReply { form, quiet: false }),
            wants_cas: with_cas,
            checks_stale: false,
        },
    }))
}

fn parse_get_and_touch<'a>(mut tokens: Tokens<'a>, line: Line<'a>, with_cas: bool) -> Step<'a> {
    let (Some(expiry), true) = (tokens.next(), !tokens.is_empty()) else {
        return line.bad_format();
    };
    let form = if with_cas { TextForm::ValuesWithCas } else { TextForm::Values };
    let reply = Reply::text(TextReply { form, quiet: false });
    let Some(expiry) = parse_i32(expiry) else {
        return line.refuse(Refusal::new(Reply::line_reply(false), Problem::BAD_EXPIRY));
    };
    if tokens.has_long_token() {
        return line.bad_format();
    }
    let get = Get { touch: Some(expiry.into()), wants_cas: with_cas, ..Get::default() };
    line.step(Request::Each(Each { keys: Keys::new(tokens), get, reply }))
}

#[inline]
fn parse_store<'a>(
    mut tokens: Tokens<'a>,
    line: Line<'a>,
    storing: Storing,
    limits: &Limits,
) -> Step<'a> {
    let fields = (|| {
        let key = tokens.next()?;
        let flags = tokens.next()?;
        let flags_start = tokens.start_of(flags);
        let expiry = tokens.next()?;
        let expiry_start = tokens.start_of(expiry);
        let length = parse_i32(tokens.next()?)?;
        (0..=MAX_VALUE_BYTES).contains(&length).then_some(())?;
        let flags = parse_flags(flags, || line.from(flags_start));
        let expiry = parse_expiry(expiry, || line.from(expiry_start));
        Some((key, flags, expiry, length as usize))
    })();
    let Some((key, flags, expiry, length)) = fields else { return line.bad_format() };
    // `noreply` is the last token, whatever stands between.
    let quiet = !tokens.is_empty() && is_quiet(tokens, 5);
    let cas = match storing {
        Storing::Cas => tokens.next().and_then(parse_u64),
        _ => Some(0),
    };
    let form = match storing {
        Storing::Append | Storing::Prepend => TextForm::Joined,
        _ => TextForm::Stored,
    };
    let reply = Reply::text(TextReply { form, quiet });
    let refuse = |problem, removes| {
        let refusal = Refusal::new(reply, problem);
        line.refuse(Refusal { swallow: length + 2, removes, ..refusal })
    };
    let (true, Some(flags), Some(expiry), Some(cas)) =
        (key.len() <= MAX_KEY_BYTES, flags, expiry, cas)
    else {
        return refuse(Problem::BAD_FORMAT, None);
    };
    let key = WireKey::plain(key);
    if item_bytes(key.stored_bytes(), length, flags, limits.hands_out_cas) > limits.max_item_bytes {
        return refuse(Problem::TOO_LARGE, (storing == Storing::Set).then_some(key));
    }
    match value(line, length) {
        Value::Whole(value, used) => {
            let verb = Verb::Store(store(storing, value, flags, expiry, cas));
            Step::Request { request: Request::Apply(Apply { key, verb, reply }), used }
        }
        Value::Incomplete { at_least } => Step::Incomplete { at_least },
        Value::Bad { used } => {
            Step::Refused { refusal: Refusal::new(reply, Problem::BAD_DATA), used }
        }
    }
}

fn store<'a>(
    storing: Storing,
    value: &'a [u8],
    flags: u32,
    expiry_seconds: i32,
    cas: u64,
) -> Store<'a> {
    let mode = match storing {
        Storing::Set | Storing::Cas => StoreMode::Set,
        Storing::Add => StoreMode::Add,
        Storing::Replace => StoreMode::Replace,
        Storing::Append => StoreMode::Append,
        Storing::Prepend => StoreMode::Prepend,
    };
    let compare = Compare { cas, accepts_older_as_stale: false };
    Store {
        compare: (storing == Storing::Cas).then_some(compare),
        ..Store::new(mode, value, flags, expiry_seconds.into())
    }
}

/// Flags are nearly always a few digits; the other forms that C accepts take the slow path.
#[inline]
fn parse_flags<'a>(token: &[u8], from_token: impl Fn() -> &'a [u8]) -> Option<u32> {
    parse_u32(token).or_else(|| parse_c_flags(from_token()))
}

#[inline]
fn parse_expiry<'a>(token: &[u8], from_token: impl Fn() -> &'a [u8]) -> Option<i32> {
    match token {
        b"0" => Some(0),
        [b'-'] => None,
        _ => parse_i32(token).or_else(|| parse_c_expiry(from_token())),
    }
}

fn parse_arithmetic<'a>(mut tokens: Tokens<'a>, line: Line<'a>, is_decrement: bool) -> Step<'a> {
    let (Some(key), Some(delta)) = (tokens.next(), tokens.next()) else {
        return line.bad_format();
    };
    let quiet = tokens.last(3).unwrap_or(delta) == b"noreply";
    let reply = Reply::text(TextReply { form: TextForm::Number, quiet });
    if key.len() > MAX_KEY_BYTES {
        return line.refuse(Refusal::new(reply, Problem::BAD_FORMAT));
    }
    let Some(delta) = parse_u64(delta) else {
        return line.refuse(Refusal::new(reply, Problem::BAD_DELTA));
    };
    let verb = Verb::Arithmetic(Arithmetic { delta, is_decrement, ..Arithmetic::default() });
    line.step(Request::Apply(Apply { key: WireKey::plain(key), verb, reply }))
}

fn parse_delete<'a>(mut tokens: Tokens<'a>, line: Line<'a>) -> Step<'a> {
    let Some(key) = tokens.next() else { return line.bad_format() };
    // Even a key of that name counts where it is the last token.
    let quiet = tokens.last(2).unwrap_or(key) == b"noreply";
    let reply = Reply::text(TextReply { form: TextForm::Deleted, quiet });
    // memcached ignores what follows the key, once a time. Four words are too many for memccapable.
    if tokens.nth(3).is_some() {
        return line.refuse(Refusal::new(reply, Problem::DELETE_USAGE));
    }
    if key.len() > MAX_KEY_BYTES {
        return line.refuse(Refusal::new(reply, Problem::BAD_FORMAT));
    }
    let verb = Verb::Delete(Delete::default());
    line.step(Request::Apply(Apply { key: WireKey::plain(key), verb, reply }))
}

fn parse_touch<'a>(mut tokens: Tokens<'a>, line: Line<'a>) -> Step<'a> {
    let (Some(key), Some(expiry)) = (tokens.next(), tokens.next()) else {
        return line.bad_format();
    };
    let quiet = tokens.last(3).unwrap_or(expiry) == b"noreply";
    let reply = Reply::text(TextReply { form: TextForm::Touched, quiet });
    if key.len() > MAX_KEY_BYTES {
        return line.refuse(Refusal::new(reply, Problem::BAD_FORMAT));
    }
    let Some(expiry) = parse_i32(expiry) else {
        return line.refuse(Refusal::new(reply, Problem::BAD_EXPIRY));
    };
    let verb = Verb::Get(Get { touch: Some(expiry.into()), ..Get::default() });
    line.step(Request::Apply(Apply { key: WireKey::plain(key), verb, reply }))
}

/// Commands whose name may have spaces before it, and lines that are not a command.
#[cold]
fn parse_rare<'a>(line: Line<'a>) -> Step<'a> {
    let mut tokens = line.tokens(0);
    let Some(name) = tokens.next() else {
        return line.refuse(Refusal::new(Reply::line_reply(false), Problem::UNKNOWN));
    };
    let arguments = Arguments::new(tokens);
    let last = tokens.last(1);
    // The line may consist of this word alone.
    let quiet = last.unwrap_or(name) == b"noreply";
    let refuse = |problem| line.refuse(Refusal::new(Reply::line_reply(quiet), problem));
    let first = { arguments }.next();
    match name {
        b"flush_all" => {
            let has_delay = arguments.count() != usize::from(quiet);
            match has_delay.then(|| first.and_then(parse_i32)) {
                Some(None) => refuse(Problem::BAD_EXPIRY),
                delay => {
                    let delay_seconds = delay.flatten().unwrap_or(0).into();
                    line.command(Command::FlushAll { delay_seconds }, quiet)
                }
            }
        }
        b"verbosity" => match first.and_then(parse_u32) {
            Some(level) => line.command(Command::Verbosity(level), quiet),
            None => refuse(Problem::BAD_FORMAT),
        },
        b"cache_memlimit" => match first.and_then(parse_u32) {
            None => refuse(Problem::UNKNOWN),
            Some(0..8) => refuse(Problem::MEMORY_LIMIT_TOO_SMALL),
            Some(1_000_000_001..) => refuse(Problem::MEMORY_LIMIT_IN_BYTES),
            Some(mebibytes) => line.command(Command::MemoryLimit { mebibytes }, quiet),
        },
        b"shutdown" => {
            let mode = match (first, { arguments }.nth(1)) {
                (None, _) => ShutdownMode::Now,
                (Some(mode), None) if b"graceful".starts_with(mode) => ShutdownMode::Graceful,
                _ => ShutdownMode::Unknown,
            };
            line.command(Command::Shutdown(mode), quiet)
        }
        b"slabs" => line.command(Command::Slabs(arguments), quiet),
        b"lru" => line.command(Command::Lru(arguments), quiet),
        b"lru_crawler" => line.command(Command::LruCrawler(arguments), quiet),
        b"refresh_certs" => line.command(Command::RefreshCertificates, quiet),
        b"debugtime" => line.command(Command::DebugTime(arguments), quiet),
        b"debugitem" => line.command(Command::DebugItem(arguments), quiet),
        b"misbehave" => line.command(Command::Misbehave, quiet),
        // The client is a browser or scanner on the wrong port.
        _ if last.is_some_and(|last| last.starts_with(b"HTTP/")) => {
            line.refuse(Refusal::close(Reply::line_reply(true)))
        }
        _ => refuse(Problem::UNKNOWN),
    }
}
