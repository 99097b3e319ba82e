//! Bounds the answers to one connection in one batch, if `read_buf_mem_limit` is set.
//!
//! Invariants:
//! 1. Without that option every request is admitted, at the cost of one comparison.
//! 2. With it, no connection gets more answers in a batch than its budget held at the start.

use amalgam_protocol::{Each, Read, ReadAnswer, Refusal, Request, Step};

use crate::settings::Settings;

/// The assumed size of an answer: about what memcached allocates for each, so that the option has
/// the effect that it has there.
const ANSWER_BYTES: usize = 1 << 10;

/// The answers that are left to one connection in one batch; None if they are not bounded.
pub struct ResponseBudget(Option<usize>);

impl ResponseBudget {
    /// The budget at the start of a batch: an equal share of the bytes for each thread.
    pub fn new(settings: &Settings) -> Self {
        let of_thread = |bytes: usize| (bytes / settings.threads / ANSWER_BYTES).max(1);
        Self(settings.buffer_bytes.map(of_thread))
    }

    /// Deducts the answers to a request, and returns whether the budget sufficed. If it did not, a
    /// read of several keys is replaced by a refusal; any other request is left unchanged.
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
        Request::Read(Read { keys, answer: ReadAnswer { reply, .. } })
        | Request::Each(Each { keys, reply, .. }) => Some((keys.count(), reply)),
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
