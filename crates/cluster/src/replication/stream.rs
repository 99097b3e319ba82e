//! What an owner has for one of its backups.

use std::collections::VecDeque;
use std::sync::Arc;

use super::entry::EncodedEntry;
use super::{EntryBatch, ReplicationMessage};

/// Bytes of one message, about.
const MESSAGE_BYTES: usize = 1 << 20;

/// Changes whose memory is kept to be used again, and how long the longest of them is.
const POOL_BUFFERS_MAX: usize = 4_096;
const POOL_BUFFER_BYTES_MAX: usize = 1 << 10;

/// Memory of changes that are in no queue any more: all of it is empty, and nobody else has it.
#[derive(Debug, Default)]
pub(super) struct EntryBufferPool(Vec<Arc<Vec<u8>>>);

impl EntryBufferPool {
    /// Makes a change, in memory that was used before if there is some.
    pub fn encode(&mut self, version: u64, encode: impl FnOnce(u64, &mut Vec<u8>)) -> EncodedEntry {
        let mut bytes = self.0.pop().unwrap_or_default();
        encode(version, Arc::make_mut(&mut bytes));
        EncodedEntry { version, bytes }
    }

    /// Keeps the memory of one that a queue had, if it was the last and that is worth it.
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

/// A change that waits.
#[derive(Debug)]
struct QueuedEntry {
    entry: EncodedEntry,
    /// Whether somebody waits until this backup has it.
    is_awaited: bool,
}

/// What was sent to one backup and not answered.
#[derive(Debug)]
pub(super) struct ReplicationStream {
    /// Counts the attempts with this backup.
    pub number: u64,
    /// The number of the first that waits.
    first: u64,
    /// By version.
    queue: VecDeque<QueuedEntry>,
    /// How many of them were sent.
    sent: usize,
    sent_ms: u64,
    /// Since when it owes an answer, or its last sign of life while it does.
    pub awaiting_since_ms: Option<u64>,
}

impl ReplicationStream {
    /// Nothing was sent yet.
    pub fn new(number: u64) -> Self {
        let queue = VecDeque::new();
        Self { number, first: 1, queue, sent: 0, sent_ms: 0, awaiting_since_ms: None }
    }

    /// Changes that are not acknowledged.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The number of the last change.
    pub fn last(&self) -> u64 {
        self.first + self.queue.len() as u64 - 1
    }

    /// Whether all up to that number are acknowledged.
    pub fn has_acknowledged(&self, until: u64) -> bool {
        self.first > until
    }

    /// Queues a change, with a higher version than those before.
    pub fn push(&mut self, entry: EncodedEntry, is_awaited: bool) {
        self.queue.push_back(QueuedEntry { entry, is_awaited });
    }

    /// It has everything below `next`: hands that out, and whether somebody waits for it.
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
        self.queue.drain(..count).for_each(|queued| each(queued.entry, queued.is_awaited));
    }

    /// Whether somebody waits until it has that version; not any more if nobody `is_waited_for`.
    pub fn set_awaited(&mut self, version: u64, is_waited_for: bool) -> bool {
        let found = self.queue.binary_search_by_key(&version, |queued| queued.entry.version);
        let Ok(place) = found else { return false };
        let queued = &mut self.queue[place];
        queued.is_awaited &= is_waited_for;
        queued.is_awaited
    }

    /// What was sent long ago is sent again.
    pub fn resend_timed_out(&mut self, now_ms: u64, retry_ms: u64) {
        if self.sent > 0 && now_ms >= self.sent_ms + retry_ms {
            self.sent = 0;
        }
    }

    /// What was not sent yet, or as much of it as one message takes.
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
