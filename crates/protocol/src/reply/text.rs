//! Answers of the classic text protocol.

use amalgam_op::{ItemView, Outcome};

use crate::Problem;
use crate::number::{Scrap, append_decimal};
use crate::reply::RESERVED_VALUE_BYTES;

/// The form of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextForm {
    /// The reply to get and gat.
    Values,
    /// The reply to gets and gats, with CAS ids.
    ValuesWithCas,
    /// The reply to set, add, replace and cas.
    Stored,
    /// The reply to append and prepend.
    Joined,
    /// The reply to incr and decr.
    Number,
    /// The reply to touch.
    Touched,
    /// The reply to delete.
    Deleted,
    /// The reply to every other command, one line.
    Line,
    /// The reply to meta's `mn`.
    MetaNoOperation,
    /// quit, which is not answered.
    Silence,
}

/// How to answer a request of the classic protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextReply {
    pub form: TextForm,
    /// `noreply`: only values are answered.
    pub quiet: bool,
}

impl TextReply {
    #[inline]
    pub fn hit_head(&self, out: &mut Vec<u8>, item: &ItemView<'_>) -> bool {
        let with_cas = match self.form {
            TextForm::Values => false,
            TextForm::ValuesWithCas => true,
            _ => return false,
        };
        out.reserve(item.key.len() + item.value.len().min(RESERVED_VALUE_BYTES) + 64);
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(item.key);
        let mut scrap = Scrap::default();
        scrap.byte(b' ');
        scrap.decimal(item.flags.into());
        scrap.byte(b' ');
        scrap.decimal(item.value.len() as u64);
        if with_cas {
            scrap.byte(b' ');
            scrap.decimal(item.cas.unwrap_or(0));
        }
        scrap.byte(b'\r');
        scrap.byte(b'\n');
        out.extend_from_slice(scrap.as_bytes());
        true
    }

    #[inline]
    pub fn end(&self, out: &mut Vec<u8>) {
        if matches!(self.form, TextForm::Values | TextForm::ValuesWithCas | TextForm::Line) {
            out.extend_from_slice(b"END\r\n");
        }
    }

    #[inline]
    pub fn line(&self, out: &mut Vec<u8>, line: &[u8]) {
        if !self.quiet {
            out.extend_from_slice(line);
            out.extend_from_slice(b"\r\n");
        }
    }

    pub fn ok(&self, out: &mut Vec<u8>) {
        match self.form {
            TextForm::Silence => {}
            TextForm::MetaNoOperation => self.line(out, b"MN"),
            _ => self.line(out, b"OK"),
        }
    }

    #[inline]
    pub fn outcome(&self, out: &mut Vec<u8>, outcome: &Outcome) {
        if matches!(self.form, TextForm::Values | TextForm::ValuesWithCas) || self.quiet {
            return;
        }
        let line = match outcome {
            Outcome::Hit(_) => "TOUCHED",
            Outcome::NotFound => "NOT_FOUND",
            Outcome::Stored(_) => "STORED",
            Outcome::NotStored => "NOT_STORED",
            Outcome::Exists => "EXISTS",
            Outcome::Deleted | Outcome::Invalidated => "DELETED",
            Outcome::Number(counted) => {
                append_decimal(out, counted.number);
                ""
            }
            Outcome::NotANumber => Problem::NOT_A_NUMBER.line,
            Outcome::TooLarge if self.form == TextForm::Joined => "NOT_STORED",
            Outcome::TooLarge => Problem::TOO_LARGE.line,
            Outcome::OutOfMemory if self.form == TextForm::Number => {
                Problem::OUT_OF_MEMORY_COUNTING.line
            }
            Outcome::OutOfMemory => Problem::OUT_OF_MEMORY.line,
            Outcome::Unavailable => Problem::UNAVAILABLE.line,
            Outcome::Unknown => Problem::OUTCOME_UNKNOWN.line,
        };
        self.line(out, line.as_bytes());
    }
}
