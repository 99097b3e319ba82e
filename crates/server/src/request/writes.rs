//! Executes the requests of a stage that are not reads: plain sets that follow one another as one
//! batch of the index, the others one by one.

use amalgam_index::{NullSink, Store, Worker};
use amalgam_op::{Delete, Get, Key, Op, Outcome, PlainSet, StoreMode, Verb};
use amalgam_protocol::{Apply, Each, KeyScratch, Problem, Refusal};

use crate::connections::copy_lanes::CopyLane;
use crate::request::command_counters::count_operation;
use crate::request::commands;
use crate::request::context::BatchContext;
use crate::request::late::{begin_ahead, wait_for};
use crate::request::observer::AppliedOperation;
use crate::request::reads::SingleAnswer;
use crate::request::slot::RequestSlot;
use crate::request::stage::{BatchStage, Operation, RequestSpan, WriteRequest};
use crate::watch::lines::ReadResult;

/// The fewest sets that are worth a batch.
const LEAST_SETS: usize = 4;
/// The most sets of a batch.
const BATCH_SETS: usize = 32;
/// A value of at least this many bytes is long.
const LONG_VALUE_BYTES: usize = 32 << 10;
/// A set's answer is shorter: a line of the protocol's with the key and an opaque number in it.
const SET_ANSWER_BYTES: usize = 1 << 10;

/// Executes the requests of a stage that are not reads.
pub fn execute_writes<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    stage: &BatchStage<'_>,
    slots: &mut [RequestSlot],
) {
    let mut next = 0;
    while let Some(write) = stage.writes.get(next) {
        let sets = count_sets(context, &stage.writes[next..], slots);
        if sets >= LEAST_SETS {
            execute_sets(context, &stage.writes[next..next + sets], slots);
            next += sets;
            continue;
        }
        next += 1;
        let slot = &mut slots[write.span.slot as usize];
        if slot.is_stalled {
            if slot.ahead.is_some() {
                begin_write_ahead(context, slot, write);
            }
            continue;
        }
        match &write.operation {
            Operation::Apply { apply, hash } => {
                if !stalls_for_copy(context, slot, (&apply.verb, *hash), (write.span.start, 0)) {
                    execute_apply(context, slot, apply, *hash, write.span.start);
                }
            }
            Operation::Each { each, skipped } => {
                execute_each(context, slot, each, *skipped, write.span);
            }
            Operation::Command { command, reply } => {
                commands::run(context, slot, command, reply, write.span.start);
            }
            Operation::Refusal { refusal, is_held } => {
                execute_refusal(context, slot, refusal, *is_held);
            }
        }
        if slot.is_full() && !slot.is_stalled {
            slot.stall(write.span.end as usize, 0);
        }
    }
}

/// Stalls the connection and returns true if the operation at `place` may copy the value that it
/// finds, and enough was copied in this iteration of the worker's loop, or other workers are to go
/// on first ([`CopyLane`]). A store whose answers come later copies elsewhere, or here if it has
/// the value.
#[inline]
fn stalls_for_copy<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    (verb, hash): (&Verb<'_>, u64),
    (start, number): (u32, usize),
) -> bool {
    if !may_copy(verb) {
        return false;
    }
    // A datagram that stalls is lost.
    let lane = match slot.protocol_state.copies_short || !slot.is_connection() {
        true => CopyLane::SHORT,
        false => CopyLane::of(hash),
    };
    let turn = &mut *context.turn;
    let lanes = &context.state.copy_lanes;
    let is_stalled = turn.copied_bytes == 0 || !turn.lanes.enter(lane, lanes, context.worker);
    if is_stalled {
        slot.stall(start as usize, number);
        slot.protocol_state.awaited_lane = Some(lane);
    }
    is_stalled
}

/// Whether an operation adds to a value, or touches its item, which has no space for an expiry if
/// it had none.
#[inline]
fn may_copy(verb: &Verb<'_>) -> bool {
    match verb {
        Verb::Store(store) => matches!(store.mode, StoreMode::Append | StoreMode::Prepend),
        Verb::Get(get) => get.touch.is_some(),
        Verb::Arithmetic(_) | Verb::Delete(_) => false,
    }
}

/// Deducts what an operation may have copied from what an iteration may copy.
#[inline]
fn charge_copy<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    op: &Op<'_>,
    bytes: usize,
) {
    if may_copy(&op.verb) {
        context.turn.copied_bytes = context.turn.copied_bytes.saturating_sub(bytes);
        if bytes > 0 {
            slot.protocol_state.copies_short = bytes < LONG_VALUE_BYTES;
        }
    }
}

/// Begins a request of a connection that waits for one before it.
fn begin_write_ahead<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    write: &WriteRequest<'_>,
) {
    let Operation::Apply { apply, hash } = &write.operation else {
        slot.ahead = None;
        return;
    };
    let mut scratch: KeyScratch = [0; _];
    let key = Key::with_hash(apply.key.resolve(&mut scratch), *hash);
    begin_ahead(context, slot, &Op { key, verb: apply.verb }, (write.span.start, 0));
}

fn execute_apply<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    apply: &Apply<'_>,
    hash: u64,
    start: u32,
) {
    let mut scratch: KeyScratch = [0; _];
    let key = Key::with_hash(apply.key.resolve(&mut scratch), hash);
    let op = Op { key, verb: apply.verb };
    let before = lookup_before(context, &op.key);
    let mut sink = SingleAnswer::new(&apply.reply, &mut *slot, &context.now, (start, 0));
    let outcome = context.index.apply(&op, &context.now, &mut sink);
    // Engines have no late answers: this is nothing for them.
    if sink.is_later && context.index.late_answers().is_some() {
        return wait_for(context, slot, &op, (start, 0));
    }
    let found_bytes = sink.found_bytes;
    charge_copy(context, slot, &op, found_bytes);
    answer_apply(context, slot, apply, &op, &outcome);
    if let Some(observer) = &context.observer {
        let (is_meta, number) = (apply.reply.is_meta(), slot.number);
        let applied = AppliedOperation { op: &op, outcome: &outcome, before, is_meta, number };
        observer.applied(&applied, &context.now);
    }
    if is_lost_set(&op, &outcome) {
        remove(context, key);
    }
}

/// Answers an operation that was executed, and counts it.
#[inline]
fn answer_apply<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    apply: &Apply<'_>,
    op: &Op<'_>,
    outcome: &Outcome,
) {
    if context.recorder.is_sampled(op.key.hash()) {
        context.recorder.operation(op, outcome, context.index, &context.now);
    }
    context.sampler.record(std::slice::from_ref(&op.key), context.now.seconds);
    apply.reply.outcome(&mut slot.output.bytes, outcome, &context.now);
    count_operation(context.counts, &op.verb, outcome);
    if let Outcome::Stored(written) = outcome {
        charge_copy(context, slot, op, written.value_bytes);
    }
}

/// Whether the outcome is that of a set that failed. Its key is removed, so that no client reads
/// the value that it meant to replace.
fn is_lost_set(op: &Op<'_>, outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::OutOfMemory | Outcome::TooLarge)
        && matches!(op.verb, Verb::Store(store)
            if store.mode == StoreMode::Set && store.compare.is_none())
}

/// The number of requests, from the first on, that are plain sets which can be executed as one
/// batch: none of their connections stalls, whatever the answers are, and nobody observes them. 0
/// for a store whose answers come later.
fn count_sets<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    writes: &[WriteRequest<'_>],
    slots: &[RequestSlot],
) -> usize {
    if writes.len() < LEAST_SETS
        || context.observer.is_some()
        || context.index.late_answers().is_some()
    {
        return 0;
    }
    let is_plain = |write: &&WriteRequest<'_>| {
        let slot = &slots[write.span.slot as usize];
        matches!(&write.operation, Operation::Apply { apply, .. }
            if PlainSet::is(&apply.verb) && apply.key.as_sent().is_some())
            && !slot.is_stalled
            && slot.room_bytes() > BATCH_SETS * SET_ANSWER_BYTES
    };
    writes.iter().take(BATCH_SETS).take_while(is_plain).count()
}

/// Executes plain sets as one batch. Requires: [`count_sets`] counted them.
fn execute_sets<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    writes: &[WriteRequest<'_>],
    slots: &mut [RequestSlot],
) {
    let applies = writes.iter().filter_map(|write| match &write.operation {
        Operation::Apply { apply, hash } => {
            let key = Key::with_hash(apply.key.as_sent()?, *hash);
            Some((write.span.slot as usize, apply, Op { key, verb: apply.verb }))
        }
        _ => None,
    });
    let mut ops =
        [Op { key: Key::with_hash(b"-", 0), verb: Verb::Get(Get::default()) }; BATCH_SETS];
    ops.iter_mut().zip(applies.clone()).for_each(|(op, (_, _, set))| *op = set);
    let ops = &ops[..writes.len()];
    let mut outcomes = [Outcome::Unknown; BATCH_SETS];
    context.index.apply_batch(ops, &context.now, &mut NullSink, &mut outcomes);
    for (at, (slot, apply, _)) in applies.enumerate() {
        answer_apply(context, &mut slots[slot], apply, &ops[at], &outcomes[at]);
        if !is_lost_set(&ops[at], &outcomes[at]) {
            continue;
        }
        // A later set of the same key has replaced the value, or its key is removed then.
        if ops[at + 1..].iter().all(|later| later.key.bytes() != ops[at].key.bytes()) {
            remove(context, ops[at].key);
        }
    }
}

/// What a key holds before it is changed, if an observer wants to know.
#[inline]
fn lookup_before<S: Store>(context: &mut BatchContext<'_, '_, S>, key: &Key<'_>) -> ReadResult {
    match context.observer {
        Some(observer) => observer.lookup_before(&mut *context.index, key, &context.now),
        None => ReadResult::NotFound,
    }
}

/// Deletes a key without an answer, where the store wants that after a set that failed.
fn remove<S: Store>(context: &mut BatchContext<'_, '_, S>, key: Key<'_>) {
    if !S::FAILED_SETS_REMOVE {
        return;
    }
    let op = Op { key, verb: Verb::Delete(Delete::default()) };
    context.index.apply(&op, &context.now, &mut NullSink);
}

fn execute_each<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    each: &Each<'_>,
    skipped: usize,
    span: RequestSpan,
) {
    let verb = Verb::Get(each.get);
    for (number, key) in each.keys.enumerate().skip(skipped) {
        if slot.is_full() {
            slot.stall(span.start as usize, number);
            return;
        }
        let place = (span.start, number);
        let op = Op { key: Key::new(key, context.state.index.seed()), verb };
        if stalls_for_copy(context, slot, (&verb, op.key.hash()), place) {
            return;
        }
        let before = lookup_before(context, &op.key);
        let mut sink = SingleAnswer::new(&each.reply, &mut *slot, &context.now, place);
        let outcome = context.index.apply(&op, &context.now, &mut sink);
        if sink.is_later && context.index.late_answers().is_some() {
            wait_for(context, slot, &op, place);
            for (number, key) in each.keys.enumerate().skip(number + 1) {
                let op = Op { key: Key::new(key, context.state.index.seed()), verb };
                if !begin_ahead(context, slot, &op, (span.start, number)) {
                    break;
                }
            }
            slot.ahead = None;
            return;
        }
        let found_bytes = sink.found_bytes;
        charge_copy(context, slot, &op, found_bytes);
        if context.recorder.is_sampled(op.key.hash()) {
            context.recorder.operation(&op, &outcome, context.index, &context.now);
        }
        context.sampler.record(std::slice::from_ref(&op.key), context.now.seconds);
        if let Outcome::Unavailable | Outcome::Unknown = outcome {
            let is_known = outcome == Outcome::Unavailable;
            let problem = if is_known { Problem::UNAVAILABLE } else { Problem::OUTCOME_UNKNOWN };
            return each.reply.problem(&mut slot.output.bytes, problem);
        }
        each.reply.outcome(&mut slot.output.bytes, &outcome, &context.now);
        count_operation(context.counts, &verb, &outcome);
        if let Some(observer) = &context.observer {
            let number = slot.number;
            let applied =
                AppliedOperation { op: &op, outcome: &outcome, before, is_meta: false, number };
            observer.applied(&applied, &context.now);
        }
        context.counts.cmd_get += 1;
        let is_hit = matches!(outcome, Outcome::Hit(_));
        context.counts.get_hits += u64::from(is_hit);
        context.counts.get_misses += u64::from(!is_hit);
    }
    each.reply.end(&mut slot.output.bytes);
}

fn execute_refusal<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    refusal: &Refusal<'_>,
    is_held: bool,
) {
    if is_held {
        let mut answer = Vec::new();
        refusal.write(&mut answer);
        slot.protocol_state.held_answer = answer.into();
    } else {
        refusal.write(&mut slot.output.bytes);
    }
    match refusal.problem() {
        Some(Problem::TOO_LARGE) => context.counts.store_too_large += 1,
        Some(Problem::OUT_OF_MEMORY) => context.counts.store_no_memory += 1,
        _ => {}
    }
    slot.is_closing |= refusal.closes;
    slot.is_broken |= refusal.closes;
    if let Some(key) = &refusal.removes {
        let mut scratch: KeyScratch = [0; _];
        let key = Key::new(key.resolve(&mut scratch), context.state.index.seed());
        remove(context, key);
    }
}
