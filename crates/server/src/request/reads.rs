//! Executes the reads of a stage as one batch of the index.

use std::ops::ControlFlow;

use amalgam_index::{Found, Patience, Sink, Store, Worker};
use amalgam_op::{Get, Key, Now, Op, Outcome, Verb};
use amalgam_protocol::{Problem, Reply};

use crate::connections::budget::BATCH_OUTPUT_BYTES;
use crate::request::context::BatchContext;
use crate::request::late::{begin_ahead, wait_for};
use crate::request::observer::Observer;
use crate::request::slot::{PARSE_GROWTH, RequestSlot};
use crate::request::stage::{BatchStage, ReadRequest};
use crate::watch::lines::ReadResult;

/// Values of this length and more are sent from where they lie, without a copy.
const PIN_BYTES: usize = 16 << 10;

/// Why the store stopped before the end of a batch of reads.
#[derive(Clone, Copy, Default, PartialEq)]
enum Stop {
    #[default]
    Not,
    /// The item must be changed to be answered.
    MustApply,
    /// The connection's output is full, or the rest of its request is left to a later batch.
    Full,
    /// The answer to the next key comes later.
    Later,
}

/// Writes the answers to a stage's reads into the outputs of their connections.
struct ReadAnswers<'r, 'i> {
    reads: &'r [ReadRequest<'i>],
    keys: &'r [Key<'i>],
    slots: &'r mut [RequestSlot],
    now: &'r Now,
    observer: Option<Observer<'r>>,
    /// How far they are answered.
    progress: Progress,
    /// The position in `keys` of the first key handed to the store.
    first: usize,
    hits: u64,
    misses: u64,
    expired: u64,
    flushed: u64,
}

/// How far a stage's reads are answered.
#[derive(Default)]
struct Progress {
    /// The position in the stage's reads of the request that is being answered.
    current: usize,
    stop: Stop,
    /// Whether a key of the current request could not be read. Its answer then ends in an error.
    has_failed: bool,
}

impl Progress {
    /// Ends the answer to the key at `position` of the stage, of the current request; breaks if the
    /// output is full.
    #[inline]
    fn next(
        &mut self,
        request: &ReadRequest<'_>,
        slot: &mut RequestSlot,
        position: usize,
    ) -> ControlFlow<()> {
        if position + 1 == request.keys_end as usize {
            if request.left_out.is_partial() | self.has_failed {
                return self.end_seldom(request, slot);
            }
            request.answer.reply.end(&mut slot.output.bytes);
            self.current += 1;
        }
        if slot.is_full() {
            self.stop = Stop::Full;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Ends the answer to a request of which further keys are left to a later batch, or one could
    /// not be read.
    #[cold]
    fn end_seldom(&mut self, request: &ReadRequest<'_>, slot: &mut RequestSlot) -> ControlFlow<()> {
        if !request.left_out.is_partial() {
            end_failed(&request.answer.reply, slot, &mut self.has_failed);
            self.current += 1;
        }
        if request.left_out.is_partial() || slot.is_full() {
            self.stop = Stop::Full;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl ReadAnswers<'_, '_> {
    /// The position in the stage of the first key of a request.
    fn first_key(&self, request: usize) -> usize {
        request.checked_sub(1).map_or(0, |before| self.reads[before].keys_end as usize)
    }

    /// The number of the key at `position` in the current request.
    fn key_number(&self, position: usize) -> usize {
        let request = &self.reads[self.progress.current];
        request.left_out.answered() + position - self.first_key(self.progress.current)
    }

    /// Has the connection of the current request wait for the answer to the key at `position`, and
    /// begins what it reads behind that. `verb` is the operation on that key.
    #[cold]
    fn wait<S: Store>(
        &mut self,
        context: &mut BatchContext<'_, '_, S>,
        position: usize,
        verb: Verb<'_>,
    ) {
        let (first, number) = (self.progress.current, self.key_number(position));
        let (span, reply) = (self.reads[first].span, &self.reads[first].answer.reply);
        let slot = &mut self.slots[span.slot as usize];
        if self.progress.has_failed {
            // The answer ends here: the next batch would not know that it lacks a key.
            end_failed(reply, slot, &mut self.progress.has_failed);
            return slot.stall(span.end as usize, 0);
        }
        wait_for(context, slot, &Op { key: self.keys[position], verb }, (span.start, number));
        let mut next = position + 1;
        let mut number = number + 1;
        for request in &self.reads[first..] {
            let end = request.keys_end as usize;
            if request.span.slot == span.slot {
                for key in &self.keys[next..end] {
                    let op = Op { key: *key, verb: Verb::Get(Get::default()) };
                    if !begin_ahead(context, slot, &op, (request.span.start, number)) {
                        return;
                    }
                    number += 1;
                }
                if request.left_out.is_partial() {
                    // What follows comes after the keys that are left out.
                    slot.ahead = None;
                    return;
                }
            }
            (next, number) = (end, 0);
        }
    }

    /// Stalls the connection whose output the answer before `position` filled. Returns the number
    /// of its slot.
    fn stall(&mut self, position: usize) -> usize {
        let before = self.first_key(self.progress.current);
        if position == before {
            let span = self.reads[self.progress.current - 1].span;
            self.slots[span.slot as usize].stall(span.end as usize, 0);
            return span.slot as usize;
        }
        let request = &self.reads[self.progress.current];
        let (span, answered) = (request.span, position - before);
        let slot = &mut self.slots[span.slot as usize];
        if self.progress.has_failed {
            // The answer ends here: the next batch would not know that it lacks a key.
            end_failed(&request.answer.reply, slot, &mut self.progress.has_failed);
            slot.stall(span.end as usize, 0);
            return span.slot as usize;
        }
        slot.stall(span.start as usize, request.left_out.answered() + answered);
        slot.protocol_state.resumption.most_keys = (PARSE_GROWTH * answered) as u32;
        span.slot as usize
    }

    /// Stalls the connections of all requests that are not answered yet.
    fn stall_rest(&mut self) {
        for request in &self.reads[self.progress.current..] {
            let slot = &mut self.slots[request.span.slot as usize];
            if !slot.is_stalled {
                slot.stall(request.span.start as usize, request.left_out.answered());
            }
        }
    }

    /// The longest run of keys, from `position` on, of connections that are not stalled.
    fn runnable(&mut self, mut position: usize) -> std::ops::Range<usize> {
        let is_stalled =
            |request: &ReadRequest<'_>| self.slots[request.span.slot as usize].is_stalled;
        while self.reads.get(self.progress.current).is_some_and(is_stalled) {
            position = self.reads[self.progress.current].keys_end as usize;
            self.progress.current += 1;
        }
        let rest = &self.reads[self.progress.current..];
        let count = rest.iter().position(is_stalled).unwrap_or(rest.len());
        let end = count.checked_sub(1).map_or(position, |last| rest[last].keys_end as usize);
        position..end
    }
}

impl ReadAnswers<'_, '_> {
    /// Ends the answer to the key at `position` of the stage; breaks if the output is full.
    fn next(&mut self, position: usize) -> ControlFlow<()> {
        let request = &self.reads[self.progress.current];
        let slot = &mut self.slots[request.span.slot as usize];
        self.progress.next(request, slot, position)
    }

    #[inline]
    fn missed(&mut self, position: usize, result: ReadResult) -> ControlFlow<()> {
        let request = &self.reads[self.progress.current];
        let slot = &mut self.slots[request.span.slot as usize];
        request.answer.reply.miss(&mut slot.output.bytes);
        self.misses += 1;
        if let Some(observer) = &self.observer {
            observer.read(self.keys[self.first + position].bytes(), result, slot.number);
        }
        self.progress.next(request, slot, self.first + position)
    }
}

impl Sink for ReadAnswers<'_, '_> {
    #[inline]
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        let request = &self.reads[self.progress.current];
        if request.answer.must_apply(&found.item) {
            self.progress.stop = Stop::MustApply;
            return ControlFlow::Break(());
        }
        let slot = &mut self.slots[request.span.slot as usize];
        answer_hit(&request.answer.reply, slot, found, self.now);
        self.hits += 1;
        if let Some(observer) = &self.observer {
            observer.read(found.item.key, ReadResult::Found(found.item.value.len()), slot.number);
        }
        self.progress.next(request, slot, self.first + position)
    }

    #[inline]
    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        self.missed(position, ReadResult::NotFound)
    }

    #[cold]
    fn dead(&mut self, position: usize, is_flushed: bool) -> ControlFlow<()> {
        *(if is_flushed { &mut self.flushed } else { &mut self.expired }) += 1;
        self.missed(position, if is_flushed { ReadResult::Flushed } else { ReadResult::Expired })
    }

    #[cold]
    fn unanswered(&mut self, position: usize) -> ControlFlow<()> {
        self.progress.has_failed = true;
        self.next(self.first + position)
    }

    fn patience(&self, position: usize) -> Patience {
        let request = &self.reads[self.progress.current];
        let slot = &self.slots[request.span.slot as usize];
        slot.patience(request.span.start, self.key_number(self.first + position))
    }

    #[cold]
    fn later(&mut self, _: usize) {
        self.progress.stop = Stop::Later;
    }
}

/// Ends the answer to a read of which a key could not be read.
#[cold]
fn end_failed(reply: &Reply<'_>, slot: &mut RequestSlot, has_failed: &mut bool) {
    reply.problem(&mut slot.output.bytes, Problem::UNAVAILABLE);
    *has_failed = false;
}

/// Appends a found item to the output, pinned where it is large.
#[inline]
fn answer_hit(reply: &Reply<'_>, slot: &mut RequestSlot, found: &Found<'_>, now: &Now) {
    let output = &mut slot.output;
    if !reply.hit_head(&mut output.bytes, &found.item, found.hit, now) {
        return;
    }
    let value = found.item.value.as_bytes();
    if !slot.allows_pins {
        // An answer that passes the limit is not sent, so the rest need not be copied.
        let left = slot.output_limit_bytes.saturating_sub(output.bytes.len());
        output.bytes.extend_from_slice(&value[..value.len().min(left)]);
    } else if value.len() >= PIN_BYTES
        && let Some(value) = found.pin()
    {
        output.push_pinned(value);
    } else {
        output.bytes.extend_from_slice(value);
    }
    reply.hit_tail(&mut output.bytes);
}

/// Executes the reads of a stage.
pub fn execute_reads<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    stage: &BatchStage<'_>,
    slots: &mut [RequestSlot],
) {
    let now = context.now;
    let mut answers = ReadAnswers {
        reads: &stage.reads,
        keys: &stage.keys,
        slots,
        now: &now,
        observer: context.observer,
        progress: Progress::default(),
        first: 0,
        hits: 0,
        misses: 0,
        expired: 0,
        flushed: 0,
    };
    let mut position = 0;
    // Bytes of the outputs that are full: values that cannot be pinned may be large.
    let mut full_bytes = 0;
    loop {
        let keys = answers.runnable(position);
        if keys.is_empty() {
            break;
        }
        answers.first = keys.start;
        let done = context.index.get_batch(&stage.keys[keys.clone()], &now, &mut answers);
        position = keys.start + done;
        let read = &stage.keys[keys.start..position];
        context.sampler.record(read, now.seconds);
        if !stage.sampled.is_empty() {
            record(context, stage, keys.start..position);
        }
        let mut verb = Verb::Get(Get::default());
        if answers.progress.stop == Stop::MustApply {
            answers.progress.stop = Stop::Not;
            let applied = answers.reads[answers.progress.current].answer.verb();
            if apply_read(context, position - 1, applied, &mut answers) {
                let _ = answers.next(position - 1);
            } else {
                (position, verb, answers.progress.stop) = (position - 1, applied, Stop::Later);
            }
        }
        if answers.progress.stop == Stop::Later {
            answers.progress.stop = Stop::Not;
            answers.wait(context, position, verb);
        }
        if answers.progress.stop == Stop::Full {
            answers.progress.stop = Stop::Not;
            let slot = answers.stall(position);
            full_bytes += answers.slots[slot].output.bytes.len();
            if full_bytes >= BATCH_OUTPUT_BYTES {
                answers.stall_rest();
            }
        }
    }
    context.counts.cmd_get += answers.hits + answers.misses;
    context.counts.get_hits += answers.hits;
    context.counts.get_misses += answers.misses;
    context.counts.get_expired += answers.expired;
    context.counts.get_flushed += answers.flushed;
}

/// Records the reads of the sampled keys at these positions of the stage.
#[cold]
fn record<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    stage: &BatchStage<'_>,
    read: std::ops::Range<usize>,
) {
    for position in &stage.sampled {
        if read.contains(&(*position as usize)) {
            let key = &stage.keys[*position as usize];
            context.recorder.read(key, context.index, &context.now);
        }
    }
}

/// Answers the key at a position by an operation, as its item has to change for it: such as one
/// that gets its CAS id now. False if the answer comes later.
fn apply_read<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    position: usize,
    verb: Verb<'_>,
    answers: &mut ReadAnswers<'_, '_>,
) -> bool {
    let key_number = answers.key_number(position);
    let request = &answers.reads[answers.progress.current];
    let key = &answers.keys[position];
    let slot = &mut answers.slots[request.span.slot as usize];
    let number = slot.number;
    let op = Op { key: *key, verb };
    let place = (request.span.start, key_number);
    let mut sink = SingleAnswer::new(&request.answer.reply, slot, answers.now, place);
    let mut result = ReadResult::Found(0);
    let outcome = context.index.apply(&op, answers.now, &mut sink);
    if sink.is_later {
        return false;
    }
    match outcome {
        Outcome::Hit(_) => answers.hits += 1,
        Outcome::Unavailable | Outcome::Unknown => answers.progress.has_failed = true,
        outcome => {
            request.answer.reply.outcome(&mut slot.output.bytes, &outcome, answers.now);
            answers.misses += 1;
            result = ReadResult::NotFound;
        }
    }
    if let Some(observer) = &answers.observer {
        observer.read(key.bytes(), result, number);
    }
    true
}

/// Writes the answer to an operation on one key.
pub struct SingleAnswer<'r, 'i> {
    /// How to answer.
    pub reply: &'r Reply<'i>,
    /// The connection that asked.
    pub slot: &'r mut RequestSlot,
    /// The time of the batch.
    pub now: &'r Now,
    /// The first byte of the request, and the number of its key.
    place: (u32, usize),
    /// Whether the answer comes later.
    pub is_later: bool,
    /// The length of the value that was found.
    pub found_bytes: usize,
}

impl<'r, 'i> SingleAnswer<'r, 'i> {
    /// A writer of the answer for the key of this number in the request at this byte.
    pub fn new(
        reply: &'r Reply<'i>,
        slot: &'r mut RequestSlot,
        now: &'r Now,
        place: (u32, usize),
    ) -> Self {
        Self { reply, slot, now, place, is_later: false, found_bytes: 0 }
    }
}

impl Sink for SingleAnswer<'_, '_> {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.found_bytes = found.item.value.len();
        answer_hit(self.reply, self.slot, found, self.now);
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn patience(&self, _: usize) -> Patience {
        self.slot.patience(self.place.0, self.place.1)
    }

    fn later(&mut self, _: usize) {
        self.is_later = true;
    }
}
