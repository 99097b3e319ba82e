//! What an owner has queued for one of its backups.

use std::collections::VecDeque;
use std::sync::Arc;

use super::entry::EncodedEntry;
use super::{EntryBatch, ReplicationMessage};

/// Approximate limit of one message in bytes.
const MESSAGE_BYTES: usize = 1 << 20;

/// The most bytes queued for one backup, apart from the entry with which they are exceeded.
pub(super) const QUEUE_BYTES_MAX: usize = 32 << 20;

/// Bounds of the buffer pool: buffers, and the capacity of each in bytes.
const POOL_BUFFERS_MAX: usize = 4_096;
const POOL_BUFFER_BYTES_MAX: usize = 1 << 10;

/// Buffers of entries that are in no queue any more. Each is empty and has no other reference.
#[derive(Debug, Default)]
pub(super) struct EntryBufferPool(Vec<Arc<Vec<u8>>>);

impl EntryBufferPool {
    /// Encodes an entry, into a pooled buffer if there is one.
    pub fn encode(&mut self, version: u64, encode: impl FnOnce(u64, &mut Vec<u8>)) -> EncodedEntry {
        let mut bytes = self.0.pop().unwrap_or_default();
        encode(version, Arc::make_mut(&mut bytes));
        EncodedEntry { version, bytes }
    }

    /// Returns the buffer of an entry to the pool, if this was its last reference, the pool has
    /// room and the buffer is small enough to be worth keeping.
    pub fn recycle(&mut self, mut entry: EncodedEntry) {
        if self.0.len() < POOL_BUFFERS_MAX
            && let Some(bytes) = Arc::get_mut(&mut entry.bytes)
            && bytes.capacity() <= POOL_BUFFER_BYTES_MAX
        {
            bytes.clear();
            self.0.push(entry.bytes);
        }
    }
}

/// An entry that is not acknowledged.
#[derive(Debug)]
struct QueuedEntry {
    entry: EncodedEntry,
    /// Whether a reply waits until this backup has it.
    is_awaited: bool,
}

/// The stream of entries to one backup: those queued, sent and not yet acknowledged.
#[derive(Debug)]
pub(super) struct ReplicationStream {
    /// The stream's number among those to this backup.
    pub number: u64,
    /// The number of the first entry in `queue`.
    first: u64,
    /// Entries without an acknowledgement, ascending by version.
    queue: VecDeque<QueuedEntry>,
    /// Bytes of the entries in `queue`. Streams share their buffers, so this is an upper bound.
    bytes: usize,
    /// How many entries of `queue` were sent.
    sent: usize,
    sent_ms: u64,
    /// Since when an answer is outstanding, or the last sign of life since then; none if nothing
    /// is.
    pub awaiting_since_ms: Option<u64>,
}

impl ReplicationStream {
    /// Creates an empty stream.
    pub fn new(number: u64) -> Self {
        let queue = VecDeque::new();
        Self { number, first: 1, queue, bytes: 0, sent: 0, sent_ms: 0, awaiting_since_ms: None }
    }

    /// How many entries are not acknowledged.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// At most how many bytes of entries are not acknowledged.
    pub fn queued_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether 1/N of the capacity for `window` entries, or of that for their bytes, is used up.
    pub fn is_filled(&self, parts: usize, window: usize) -> bool {
        self.queue.len() >= window / parts || self.bytes >= QUEUE_BYTES_MAX / parts
    }

    /// The number of the last entry.
    pub fn last(&self) -> u64 {
        self.first + self.queue.len() as u64 - 1
    }

    /// Whether all entries up to `until` are acknowledged.
    pub fn has_acknowledged(&self, until: u64) -> bool {
        self.first > until
    }

    /// Queues an entry. Requires: its version is higher than those before.
    pub fn push(&mut self, entry: EncodedEntry, is_awaited: bool) {
        self.bytes += entry.bytes.len();
        self.queue.push_back(QueuedEntry { entry, is_awaited });
    }

    /// Removes the entries below `next`, which the backup has, and passes on each with whether a
    /// reply waits for it.
    pub fn acknowledge(
        &mut self,
        next: u64,
        now_ms: u64,
        mut each: impl FnMut(EncodedEntry, bool),
    ) {
        let count = next.saturating_sub(self.first).min(self.queue.len() as u64);
        self.first += count;
        let count = count as usize;
        self.sent = self.sent.saturating_sub(count);
        self.awaiting_since_ms = (self.sent > 0).then_some(now_ms);
        for queued in self.queue.drain(..count) {
            self.bytes -= queued.entry.bytes.len();
            each(queued.entry, queued.is_awaited);
        }
    }

    /// Returns whether a reply waits until the backup has `version`; clears the mark unless
    /// `is_waited_for`.
    pub fn set_awaited(&mut self, version: u64, is_waited_for: bool) -> bool {
        let found = self.queue.binary_search_by_key(&version, |queued| queued.entry.version);
        let Ok(place) = found else { return false };
        let queued = &mut self.queue[place];
        queued.is_awaited &= is_waited_for;
        queued.is_awaited
    }

    /// Marks everything as unsent if the last message was not answered for `retry_ms`.
    pub fn resend_timed_out(&mut self, now_ms: u64, retry_ms: u64) {
        if self.sent > 0 && now_ms >= self.sent_ms + retry_ms {
            self.sent = 0;
        }
    }

    /// The next message with unsent entries, as many as fit; none if all were sent.
    pub fn next_message(&mut self, now_ms: u64) -> Option<ReplicationMessage> {
        if self.sent >= self.queue.len() {
            return None;
        }
        let first = self.first + self.sent as u64;
        let (mut count, mut bytes) = (0, 0);
        for queued in self.queue.range(self.sent..) {
            if bytes >= MESSAGE_BYTES {
                break;
            }
            (count, bytes) = (count + 1, bytes + queued.entry.bytes.len());
        }
        let mut entries = EntryBatch::with_capacity(bytes);
        let unsent = self.queue.range(self.sent..).take(count);
        unsent.for_each(|queued| entries.push(&queued.entry));
        self.awaiting_since_ms.get_or_insert(now_ms);
        self.sent += count;
        self.sent_ms = now_ms;
        Some(ReplicationMessage::Append { stream: self.number, first, entries })
    }
}
