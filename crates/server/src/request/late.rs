//! Operations whose answers come later: a connection stalls at the first of its requests that needs
//! one, as at a full output, and goes on when it is there.
//!
//! What follows in the same stage is begun too, so that a client that sends many requests at once
//! waits about once. Such operations are on keys that differ, and their client has not seen an
//! answer to any of them: they may be executed in any order. Values are asked for as far as the
//! output takes them.

use amalgam_index::{Begun, Flush, Patience, Store, Worker};
use amalgam_op::{Op, Verb};

use crate::request::context::BatchContext;
use crate::request::slot::RequestSlot;

/// Operations of a connection that are begun, or passed over, at a time, at most.
const AHEAD_MAX: usize = 128;

/// Bytes of the input that are parsed when a connection goes on, in whole requests: those behind a
/// request that needs another answer are parsed in vain.
const PARSE_BYTES: u32 = 16 << 10;

/// Stalls the connection of a slot at an operation whose answer is not at hand: the one on the key
/// of number `key` in the request at byte `start`.
#[cold]
pub fn wait_for<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    op: &Op<'_>,
    (start, key): (u32, usize),
) {
    stall(slot, start, key);
    let Patience::Later(ticket) = slot.patience(start, key) else { return };
    let Some(late) = context.index.late_answers() else { return };
    slot.begun = Some(late.begin(op, ticket, true));
    slot.ahead = Some(vec![op.key.hash()]);
}

/// Drops all items of a store whose result may come later; None if the connection of the slot waits
/// for it now. `start` is the first byte of the request.
pub fn flush<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    delay_seconds: i64,
    start: u32,
) -> Option<Flush> {
    let flush = match (slot.patience(start, 0), context.index.late_answers()) {
        (Patience::Later(ticket), Some(late)) => late
            .flush(delay_seconds, ticket)
            .map(|is_done| if is_done { Flush::Done } else { Flush::Incomplete }),
        _ => Some(context.state.index.flush(delay_seconds)),
    };
    if flush.is_none() {
        stall(slot, start, 0);
        slot.begun = Some(Begun::Waits);
    }
    flush
}

fn stall(slot: &mut RequestSlot, start: u32, key: usize) {
    slot.stall(start as usize, key);
    slot.protocol_state.resumption.most_bytes = PARSE_BYTES;
}

/// Begins a later operation of a connection that waits, if it may. Whether one behind it may too.
pub fn begin_ahead<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    op: &Op<'_>,
    (start, key): (u32, usize),
) -> bool {
    let patience = slot.patience(start, key);
    let (Some(ahead), Patience::Later(ticket)) = (&mut slot.ahead, patience) else { return false };
    let Some(late) = context.index.late_answers() else { return false };
    let (hash, count) = (op.key.hash(), ahead.len());
    let output_bytes = match op.verb {
        Verb::Get(_) => (count + 1) * late.value_bytes(),
        _ => 0,
    };
    let may_begin = slot.begun != Some(Begun::NoRoom)
        && count < AHEAD_MAX
        && !ahead.contains(&hash)
        && slot.output.bytes.len() + output_bytes <= slot.output_limit_bytes
        && late.begin(op, ticket, false) != Begun::NoRoom;
    match may_begin {
        true => ahead.push(hash),
        false => slot.ahead = None,
    }
    may_begin
}
