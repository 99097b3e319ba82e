//! Parses what connections sent into the stages of a batch.

use amalgam_index::{Store, Worker};
use amalgam_op::Key;
use amalgam_protocol::{
    Authentication, Command, KeyScratch, Limits, Protocol, Read, ReadAnswer, Request, Step,
};

use crate::connections::protocol_state::{OWN_BUFFER_BYTES, ProtocolState, Resumption};
use crate::request::context::BatchContext;
use crate::request::response_budget::ResponseBudget;
use crate::request::slot::{PARSE_GROWTH, RequestSlot};
use crate::request::stage::{
    BatchStage, LeftOut, Operation, ReadRequest, RequestSpan, WriteRequest,
};

/// The answer to a line of a text command that there is no memory to receive; the connection ends.
const OUT_OF_MEMORY_READING: &[u8] = b"SERVER_ERROR out of memory reading request\r\n";

/// Parses the input of the connection in slot `number` into `stages`, and prefetches the buckets of
/// its writes. Stops at the first incomplete request.
pub fn parse<'i, S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    input: &'i [u8],
    number: usize,
    slot: &mut RequestSlot,
    stages: &mut Vec<BatchStage<'i>>,
) {
    if slot.protocol_state.dump.is_some() {
        return;
    }
    let settings = &context.state.settings;
    let discarded = if slot.protocol_state.discard_bytes > 0 { discard(slot, input) } else { 0 };
    slot.protocol_state.has_unparsed_input = false;
    slot.protocol_state.awaited_lane = None;
    slot.protocol_state.wanted_bytes = 0;
    let mut at = discarded;
    let Some(protocol) = protocol_of(&mut slot.protocol_state, &input[at..]) else {
        slot.consumed = at;
        return;
    };
    let Resumption { answered_keys: mut answered, mut most_keys, most_bytes } =
        std::mem::take(&mut slot.protocol_state.resumption);
    let limits = Limits {
        authentication: match (&context.state.users, slot.protocol_state.is_authenticated) {
            (None, _) => Authentication::NotOffered,
            (Some(_), false) => Authentication::Missing,
            (Some(_), true) => Authentication::Given,
        },
        ..context.state.limits
    };
    let mut requests_left = settings.requests_per_batch.unwrap_or(usize::MAX);
    let parse_end = match most_bytes {
        0 => usize::MAX,
        bytes => at + bytes as usize,
    };
    let mut response_budget = ResponseBudget::new(settings);
    let mut stage = 0;
    let mut is_in_writes = false;
    while at < input.len() {
        if requests_left == 0 {
            if slot.protocol_state.has_unparsed_input {
                break;
            }
            slot.protocol_state.has_unparsed_input = true;
            context.counts.conn_yields += 1;
            break;
        }
        if at >= parse_end {
            slot.protocol_state.has_unparsed_input = true;
            slot.protocol_state.resumption.most_bytes = (PARSE_GROWTH * at) as u32;
            break;
        }
        requests_left -= 1;
        let mut step = {
            let is_starved = slot.is_starved && at == discarded;
            parse_one(context, protocol, &input[at..], &limits, is_starved)
        };
        if !response_budget.admits(&mut step) {
            context.counts.responses_refused += 1;
            if !matches!(step, Step::Refused { .. }) {
                return slot.abort(input.len());
            }
        }
        let used = match step {
            Step::Request { used, .. } | Step::Refused { used, .. } => used,
            Step::Incomplete { at_least } => {
                let wanted = wanted_bytes(&input[at..], at_least);
                let has_memory =
                    wanted > 0 && context.state.buffers.allows(wanted - (input.len() - at));
                if slot.is_starved && at == discarded && !has_memory {
                    context.counts.read_buf_oom += 1;
                    if protocol == Protocol::Text {
                        slot.output.bytes.extend_from_slice(OUT_OF_MEMORY_READING);
                    }
                    return slot.abort(input.len());
                }
                slot.protocol_state.wanted_bytes = wanted;
                break;
            }
        };
        let mut span =
            RequestSpan { slot: number as u32, start: at as u32, end: (at + used) as u32 };
        at += used;
        let is_read = matches!(step, Step::Request { request: Request::Read(_), .. });
        stage += usize::from(is_in_writes && is_read);
        is_in_writes = !is_read;
        if stage == stages.len() {
            stages.push(BatchStage::default());
        }
        let stage = &mut stages[stage];
        let operation = match step {
            Step::Request { request: Request::Read(read), .. } => {
                if answered | most_keys == 0 {
                    push_read(context, stage, read.answer, span, read.keys);
                } else {
                    let keys = (std::mem::take(&mut answered), std::mem::take(&mut most_keys));
                    push_resumed_read(context, stage, read, span, keys);
                }
                continue;
            }
            Step::Request { request, .. } => {
                to_operation(context, request, std::mem::take(&mut answered) as usize)
            }
            Step::Refused { refusal, .. } => {
                at += refusal.swallow;
                if refusal.closes {
                    at = input.len();
                }
                // The value is no request, wherever the next batch begins.
                span.end = at.min(input.len()) as u32;
                // A client that has not sent the value yet does not expect an answer.
                let is_held = at > input.len() && slot.is_connection();
                Operation::Refusal { refusal, is_held }
            }
            Step::Incomplete { .. } => break,
        };
        if let Operation::Command { command, .. } = &operation {
            match command {
                Command::Stats(_) if context.turn.reports == 0 => {
                    at = span.start as usize;
                    slot.protocol_state.has_unparsed_input = true;
                    slot.protocol_state.awaits_report = true;
                    // Datagrams do not wait: this one is dropped, or the rest if some is answered.
                    slot.is_stalled = !slot.is_connection() && slot.output.is_empty();
                    break;
                }
                Command::Stats(_) => {
                    context.turn.reports -= 1;
                    slot.protocol_state.awaits_report = false;
                    slot.protocol_state.has_unparsed_input = at < input.len();
                    requests_left = 0;
                }
                Command::Quit => at = input.len(),
                // What follows is parsed under other limits once this is done, or waits for a dump.
                // A flush waits for the batches of other workers, and a watcher sends no requests.
                Command::LogIn { .. }
                | Command::Authenticate { .. }
                | Command::LruCrawler(_)
                | Command::Watch(_)
                | Command::FlushAll { .. } => {
                    slot.protocol_state.has_unparsed_input = at < input.len();
                    requests_left = 0;
                }
                _ => {}
            }
        }
        stage.writes.push(WriteRequest { span, operation });
    }
    slot.protocol_state.discard_bytes += at.saturating_sub(input.len());
    slot.consumed = at.min(input.len());
}

/// Parses the first request of `rest`. Refuses one whose value has not fully arrived if it is
/// starved: there is no memory for it.
#[inline]
fn parse_one<'i, S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    protocol: Protocol,
    rest: &'i [u8],
    limits: &Limits,
    is_starved: bool,
) -> Step<'i> {
    let step = protocol.parse(rest, limits);
    if let Step::Incomplete { at_least } = step
        && at_least > OWN_BUFFER_BYTES
        && is_starved
    {
        // Under a stricter limit the same bytes are a refusal, which knows how many to discard.
        let strict = Limits { max_item_bytes: 0, ..*limits };
        if let Step::Refused { refusal, used } = protocol.parse(rest, &strict) {
            context.counts.read_buf_oom += 1;
            return Step::Refused { refusal: refusal.out_of_memory(), used };
        }
    }
    step
}

/// The length of the request at the start of `rest` in bytes, or 0 if its line is not complete.
fn wanted_bytes(rest: &[u8], at_least: usize) -> usize {
    let is_exact = at_least > rest.len() + 1 || rest.contains(&b'\n');
    if is_exact { at_least } else { 0 }
}

/// Discards what has arrived of the value of a refused request, which is answered when all of it
/// has. Returns how many bytes these are.
#[cold]
fn discard(slot: &mut RequestSlot, input: &[u8]) -> usize {
    let discarded = slot.protocol_state.discard_bytes.min(input.len());
    slot.protocol_state.discard_bytes -= discarded;
    if discarded > 0 && slot.protocol_state.discard_bytes == 0 {
        slot.output.bytes.extend_from_slice(&std::mem::take(&mut slot.protocol_state.held_answer));
    }
    discarded
}

/// The protocol of the connection: as set, or told by the first byte. None before that has arrived.
fn protocol_of(protocol_state: &mut ProtocolState, input: &[u8]) -> Option<Protocol> {
    if protocol_state.protocol.is_none() {
        protocol_state.protocol = Some(Protocol::detect(*input.first()?));
    }
    protocol_state.protocol
}

/// Appends a read to the stage, with those of its keys that are looked up in this batch.
#[inline]
fn push_read<'i, S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    stage: &mut BatchStage<'i>,
    answer: ReadAnswer<'i>,
    span: RequestSpan,
    keys: impl Iterator<Item = &'i [u8]>,
) {
    let seed = context.state.index.seed();
    for key in keys {
        let key = Key::new(key, seed);
        if context.recorder.is_sampled(key.hash()) {
            stage.push_sampled();
        }
        stage.keys.push(key);
    }
    let keys_end = stage.keys.len() as u32;
    stage.reads.push(ReadRequest { answer, span, keys_end, left_out: LeftOut::default() });
}

/// Appends a read of a connection that stalled, without the keys that were answered and with at
/// most `most` of the others; 0 for all.
#[cold]
fn push_resumed_read<'i, S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    stage: &mut BatchStage<'i>,
    read: Read<'i>,
    span: RequestSpan,
    (answered, most): (u32, u32),
) {
    let mut keys = read.keys.skip(answered as usize);
    let most = if most == 0 { usize::MAX } else { most as usize };
    push_read(context, stage, read.answer, span, keys.by_ref().take(most));
    if let Some(request) = stage.reads.last_mut() {
        request.left_out = LeftOut::new(answered as usize, keys.next().is_some());
    }
}

/// What a request other than a read asks for; the bucket of its key is prefetched.
fn to_operation<'i, S: Store>(
    context: &BatchContext<'_, '_, S>,
    request: Request<'i>,
    skipped: usize,
) -> Operation<'i> {
    match request {
        Request::Apply(apply) => {
            let mut scratch: KeyScratch = [0; _];
            let key = Key::new(apply.key.resolve(&mut scratch), context.state.index.seed());
            context.index.prefetch(&key);
            Operation::Apply { apply, hash: key.hash() }
        }
        Request::Each(each) => Operation::Each { each, skipped },
        Request::Command { command, reply } => Operation::Command { command, reply },
        Request::Read(_) => unreachable!("the caller has taken reads out"),
    }
}
