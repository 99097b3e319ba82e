//! A line of the text protocols, and the value behind it.

use crate::keys::Tokens;
use crate::scan::Window;
use crate::{Command, Problem, Refusal, Reply, Request, Step};

/// memcached holds lengths with the line end in 31 bits.
pub(crate) const MAX_VALUE_BYTES: i32 = i32::MAX - 2;

/// A complete line and the bytes that follow it.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    /// The bytes received.
    pub input: &'a [u8],
    /// Where the line end starts.
    pub end: usize,
    /// Where the next line starts.
    pub used: usize,
    /// The spaces and line ends found among its first bytes.
    pub window: Window,
}

impl<'a> Line<'a> {
    /// The tokens from `start` on, which is at most the length of a command's name.
    #[inline]
    pub fn tokens(&self, start: usize) -> Tokens<'a> {
        Tokens::of_line(&self.input[..self.end], start, &self.window)
    }

    /// The line from `start` on, its line end included.
    pub fn from(&self, start: usize) -> &'a [u8] {
        &self.input[start..self.used]
    }

    #[inline]
    pub fn step(&self, request: Request<'a>) -> Step<'a> {
        Step::Request { request, used: self.used }
    }

    #[inline]
    pub fn refuse(&self, refusal: Refusal<'a>) -> Step<'a> {
        Step::Refused { refusal, used: self.used }
    }

    /// Refuses the line as malformed, with an answer even after `noreply`.
    pub fn bad_format(&self) -> Step<'a> {
        self.refuse(Refusal::new(Reply::line_reply(false), Problem::BAD_FORMAT))
    }

    pub fn command(&self, command: Command<'a>, quiet: bool) -> Step<'a> {
        self.step(Request::Command { command, reply: Reply::line_reply(quiet) })
    }
}

/// The data behind a storage line.
pub(crate) enum Value<'a> {
    /// The value, and where the next request starts.
    Whole(&'a [u8], usize),
    Incomplete {
        at_least: usize,
    },
    /// The value is not followed by a line end; the same number of bytes is used.
    Bad {
        used: usize,
    },
}

#[inline]
pub(crate) fn value<'a>(line: Line<'a>, length: usize) -> Value<'a> {
    let end = line.used + length;
    match line.input.get(end..end + 2) {
        Some(b"\r\n") => Value::Whole(&line.input[line.used..end], end + 2),
        Some(_) => Value::Bad { used: end + 2 },
        None => Value::Incomplete { at_least: end + 2 },
    }
}
