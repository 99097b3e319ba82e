//! Answers to requests, appended to the send buffer.

mod binary;
mod meta;
mod text;

use amalgam_op::{Hit, ItemView, Now, Outcome};

use crate::{Problem, append_decimal};

pub(crate) use binary::{BinaryReply, HEADER_BYTES};
pub(crate) use meta::{MetaKind, MetaReply};
pub(crate) use text::{TextForm, TextReply};

/// Bytes of a value for which the head of an answer reserves memory, at most. A longer value is
/// perhaps not appended, but sent from where it lies.
const RESERVED_VALUE_BYTES: usize = 16 << 10;

/// The writer of one request's reply. It is small, because it is kept until the request has been
/// executed.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a>(pub(crate) Form<'a>);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form<'a> {
    Text(TextReply),
    Meta(MetaReply<'a>),
    Binary(BinaryReply<'a>),
}

/// The form of answers to commands about the server.
enum CommandReply<'a> {
    Lines(TextReply),
    Packets(BinaryReply<'a>),
}

impl<'a> Form<'a> {
    fn command(&self) -> CommandReply<'a> {
        match self {
            Form::Text(reply) => CommandReply::Lines(*reply),
            Form::Meta(_) => CommandReply::Lines(TextReply { form: TextForm::Line, quiet: false }),
            Form::Binary(reply) => CommandReply::Packets(*reply),
        }
    }
}

impl<'a> Reply<'a> {
    #[inline]
    pub(crate) fn text(reply: TextReply) -> Self {
        Self(Form::Text(reply))
    }

    #[inline]
    pub(crate) fn meta(reply: MetaReply<'a>) -> Self {
        Self(Form::Meta(reply))
    }

    #[inline]
    pub(crate) fn binary(reply: BinaryReply<'a>) -> Self {
        Self(Form::Binary(reply))
    }

    /// An answer of one line, which `noreply` suppresses.
    pub(crate) fn line_reply(quiet: bool) -> Self {
        Self::text(TextReply { form: TextForm::Line, quiet })
    }

    /// Answers a hit. `hit` is what the operation found out in addition to the item; it is the
    /// default for a batched read.
    #[inline]
    pub fn hit(&self, out: &mut Vec<u8>, item: &ItemView<'_>, hit: Hit, now: &Now) {
        if self.hit_head(out, item, hit, now) {
            out.extend_from_slice(item.value.as_bytes());
            self.hit_tail(out);
        }
    }

    /// Appends what comes before the value of a hit. If it returns true, the value is to follow
    /// (from wherever it lies), then [`Reply::hit_tail`].
    #[inline]
    pub fn hit_head(&self, out: &mut Vec<u8>, item: &ItemView<'_>, hit: Hit, now: &Now) -> bool {
        match &self.0 {
            Form::Text(reply) => reply.hit_head(out, item),
            Form::Meta(reply) => reply.hit_head(out, item, hit, now),
            Form::Binary(reply) => reply.hit_head(out, item),
        }
    }

    /// Appends what comes behind the value of a hit.
    #[inline]
    pub fn hit_tail(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Form::Text(_) | Form::Meta(_) => out.extend_from_slice(b"\r\n"),
            Form::Binary(_) => {}
        }
    }

    /// Answers a miss of a read.
    #[inline]
    pub fn miss(&self, out: &mut Vec<u8>) {
        self.outcome(out, &Outcome::NotFound, &Now::at(1));
    }

    /// Ends the answer to a read, or to `stats`.
    #[inline]
    pub fn end(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Form::Text(reply) => reply.end(out),
            Form::Meta(_) => {}
            Form::Binary(reply) => reply.end(out),
        }
    }

    /// Answers an operation. A hit was answered by [`Reply::hit`] already, where it has a value.
    #[inline]
    pub fn outcome(&self, out: &mut Vec<u8>, outcome: &Outcome, now: &Now) {
        match &self.0 {
            Form::Text(reply) => reply.outcome(out, outcome),
            Form::Meta(reply) => reply.outcome(out, outcome, now),
            Form::Binary(reply) => reply.outcome(out, outcome),
        }
    }

    /// Answers that a request failed with this problem.
    pub fn problem(&self, out: &mut Vec<u8>, problem: Problem) {
        match self.0.command() {
            CommandReply::Lines(reply) => reply.line(out, problem.line.as_bytes()),
            CommandReply::Packets(reply) => reply.problem(out, problem),
        }
    }

    /// Whether the request was a meta command.
    pub fn is_meta(&self) -> bool {
        matches!(self.0, Form::Meta(_))
    }

    /// Whether the answer is lines, not packets.
    pub fn is_text(&self) -> bool {
        matches!(self.0.command(), CommandReply::Lines(_))
    }

    /// Answers that a command succeeded.
    pub fn ok(&self, out: &mut Vec<u8>) {
        match self.0.command() {
            CommandReply::Lines(reply) => reply.ok(out),
            CommandReply::Packets(reply) => reply.ok(out),
        }
    }

    /// Answers a command of the text protocol with a line of its own (`line` without line end).
    pub fn line(&self, out: &mut Vec<u8>, line: &[u8]) {
        match self.0.command() {
            CommandReply::Lines(reply) => reply.line(out, line),
            CommandReply::Packets(reply) => reply.body(out, line),
        }
    }

    /// Answers with `body`: a packet that holds it, or the bytes as they are.
    pub fn body(&self, out: &mut Vec<u8>, body: &[u8]) {
        match self.0.command() {
            CommandReply::Lines(_) => out.extend_from_slice(body),
            CommandReply::Packets(reply) => reply.body(out, body),
        }
    }

    /// Answers [`crate::Command::Version`].
    pub fn version(&self, out: &mut Vec<u8>, version: &str) {
        match self.0.command() {
            CommandReply::Lines(reply) => {
                reply.line(out, &[b"VERSION ", version.as_bytes()].concat())
            }
            CommandReply::Packets(reply) => reply.body(out, version.as_bytes()),
        }
    }

    /// Answers that the credentials were right.
    pub fn authenticated(&self, out: &mut Vec<u8>) {
        match self.0.command() {
            CommandReply::Lines(reply) => reply.line(out, b"STORED"),
            CommandReply::Packets(reply) => reply.body(out, b"Authenticated"),
        }
    }

    /// Asks the client to continue the authentication (binary).
    pub fn challenge(&self, out: &mut Vec<u8>, challenge: &[u8]) {
        match self.0.command() {
            CommandReply::Lines(reply) => reply.line(out, challenge),
            CommandReply::Packets(reply) => reply.challenge(out, challenge),
        }
    }

    /// One line of [`crate::Command::Stats`].
    pub fn stat(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        match self.0.command() {
            CommandReply::Lines(_) => {
                for part in [b"STAT ", name, b" ", value, b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
            CommandReply::Packets(reply) => reply.stat(out, name, value),
        }
    }

    /// [`Reply::stat`] of a number.
    pub fn stat_number(&self, out: &mut Vec<u8>, name: &[u8], value: u64) {
        let mut digits = Vec::with_capacity(20);
        append_decimal(&mut digits, value);
        self.stat(out, name, &digits);
    }
}
