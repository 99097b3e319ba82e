//! How much one connection may be answered in one turn, where `read_buf_mem_limit` bounds it.
//!
//! Invariants of this room:
//! 1. Without that option everything is admitted, at the cost of one comparison.
//! 2. With it no turn of a connection has more answers than were left at its start.

use amalgam_protocol::{Each, Read, Refusal, Request, Step};

use crate::settings::Settings;

/// What an answer is reckoned at: about as much as memcached keeps for each, so that the option
/// means what it means there.
const ANSWER_BYTES: usize = 1 << 10;

/// See the head of this module; none where nothing is bounded.
pub struct AnswersLeft(Option<usize>);

impl AnswersLeft {
    /// At the start of a turn: a thread's part of the bytes.
    pub fn of(settings: &Settings) -> Self {
        let of_thread = |bytes: usize| (bytes / settings.threads / ANSWER_BYTES).max(1);
        Self(settings.buffer_bytes.map(of_thread))
    }

    /// Takes what a request is answered off what is left. If that is too little, a read of many
    /// keys becomes a refusal; another request stays as it is.
    #[inline]
    pub fn admits(&mut self, step: &mut Step<'_>) -> bool {
        match &mut self.0 {
            None => true,
            Some(left) => take(left, step),
        }
    }
}

#[cold]
fn take(left: &mut usize, step: &mut Step<'_>) -> bool {
    let Step::Request { request, used } = *step else { return true };
    let many = match request {
        Request::Read(Read { keys, reply, .. }) | Request::Each(Each { keys, reply, .. }) => {
            Some((keys.count(), reply))
        }
        _ => None,
    };
    let count = many.map_or(1, |(count, _)| count);
    if count <= *left {
        *left -= count;
        return true;
    }
    if let Some((2.., reply)) = many {
        *step = Step::Refused { refusal: Refusal::of_answers(reply), used };
    }
    false
}
