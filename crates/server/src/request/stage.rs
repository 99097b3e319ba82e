//! A stage of a batch: parsed requests that are executed together.

use amalgam_op::Key;
use amalgam_protocol::{Apply, Command, Each, ReadAnswer, Refusal, Reply};

/// Where a request lies in the input of its connection.
#[derive(Clone, Copy)]
pub struct RequestSpan {
    /// The number of the connection's slot.
    pub slot: u32,
    /// The offset of the request's first byte.
    pub start: u32,
    /// The offset behind its last byte.
    pub end: u32,
}

/// A read; its keys stand in [`BatchStage::keys`].
pub struct ReadRequest<'t> {
    /// How its keys are answered.
    pub answer: ReadAnswer<'t>,
    /// Where it lies.
    pub span: RequestSpan,
    /// The position in the stage's keys behind the request's last key.
    pub keys_end: u32,
    /// What is not in the stage.
    pub left_out: LeftOut,
}

/// Keys of a request that are not in its stage, in one word: how many were answered before the
/// connection stalled, and whether further ones are left to a later batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftOut(u32);

impl LeftOut {
    const IS_PARTIAL: u32 = 1 << 31;

    /// `answered` keys of the request were answered before; `is_partial` if more keys follow in a
    /// later batch.
    pub fn new(answered: usize, is_partial: bool) -> Self {
        Self(answered as u32 | if is_partial { Self::IS_PARTIAL } else { 0 })
    }

    /// The number of keys that were answered.
    pub fn answered(self) -> usize {
        (self.0 & !Self::IS_PARTIAL) as usize
    }

    /// Whether further keys are left to a later batch.
    #[inline]
    pub fn is_partial(self) -> bool {
        self.0 >= Self::IS_PARTIAL
    }
}

/// A request that is executed by itself: everything but plain reads.
pub struct WriteRequest<'t> {
    /// Where it lies.
    pub span: RequestSpan,
    /// What it asks for.
    pub operation: Operation<'t>,
}

/// What a [`WriteRequest`] asks for.
pub enum Operation<'t> {
    /// An operation on one key, with the hash of the key.
    Apply {
        /// The parsed request.
        apply: Apply<'t>,
        /// The hash of its key.
        hash: u64,
    },
    /// The same operation on each of several keys.
    Each {
        /// The parsed request.
        each: Each<'t>,
        /// Keys that were answered before the connection stalled.
        skipped: usize,
    },
    /// A request about the server itself.
    Command {
        /// The parsed request.
        command: Command<'t>,
        /// How to answer it.
        reply: Reply<'t>,
    },
    /// A request that was refused when it was parsed.
    Refusal {
        /// The refusal.
        refusal: Refusal<'t>,
        /// Whether its answer waits for the rest of the value, which is discarded.
        is_held: bool,
    },
}

/// Requests of a batch that may be executed together: reads, then writes.
#[derive(Default)]
pub struct BatchStage<'t> {
    /// The keys of all reads, in the order of the reads.
    pub keys: Vec<Key<'t>>,
    /// The positions in `keys` of those whose reads are recorded for the miss ratio curve.
    pub sampled: Vec<u32>,
    /// The reads, executed first.
    pub reads: Vec<ReadRequest<'t>>,
    /// The other requests, executed after the reads.
    pub writes: Vec<WriteRequest<'t>>,
}

/// Empties a vector and gives its memory to one of another lifetime.
fn recycle<T, U>(mut vector: Vec<T>) -> Vec<U> {
    vector.clear();
    // The standard library collects in place, as source and target have the same layout.
    vector.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

impl BatchStage<'_> {
    /// Bytes of its lists.
    pub fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key<'_>>()
            + self.sampled.capacity() * size_of::<u32>()
            + self.reads.capacity() * size_of::<ReadRequest<'_>>()
            + self.writes.capacity() * size_of::<WriteRequest<'_>>()
    }

    /// An empty stage in the memory of this one.
    pub fn recycle<'u>(self) -> BatchStage<'u> {
        BatchStage {
            keys: recycle(self.keys),
            sampled: recycle(self.sampled),
            reads: recycle(self.reads),
            writes: recycle(self.writes),
        }
    }

    /// Notes that the next key is sampled.
    #[cold]
    pub fn push_sampled(&mut self) {
        self.sampled.push(self.keys.len() as u32);
    }

    /// Whether the stage holds no request.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}
