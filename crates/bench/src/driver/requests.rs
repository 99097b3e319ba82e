//! The loop of one thread, which turns requests into calls of the engine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_op::{HashSeed, Key};

use crate::measure::Timing;
use crate::target::{ReadSink, TargetWorker};
use crate::workload::{Action, KeySpace, Request, Stream};

/// The number of requests between two checks of the stop flag; a batch is never split.
const TURN: usize = 256;

/// A thread's position in its stream of requests, kept across rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position {
    /// The index of the next request.
    next: usize,
    /// The number of keys that the thread has inserted.
    inserted: u64,
}

impl Position {
    /// Moves to the start of another stream; the number of inserted keys is kept.
    pub fn begin_again(&mut self) {
        self.next = 0;
    }

    /// The progress that a thread at this position publishes.
    pub fn progress(&self) -> Progress {
        Progress { operations: AtomicU64::new(0), inserted: AtomicU64::new(self.inserted) }
    }
}

/// A thread's progress, published to the others. Aligned to two cache lines, because the
/// prefetcher fetches pairs, so that threads do not share lines.
#[derive(Default)]
#[repr(align(128))]
pub struct Progress {
    /// The number of operations in this round.
    pub operations: AtomicU64,
    /// The number of keys inserted since the index was loaded; all of them can be found.
    pub inserted: AtomicU64,
}

/// The state that all threads of a round share.
pub struct Round<'r> {
    /// The number of keys that were loaded; inserts continue from there.
    pub loaded: u64,
    /// The mapping of ids to keys.
    pub key_space: KeySpace,
    /// Length of values in bytes.
    pub value_bytes: usize,
    /// The number of keys per call.
    pub batch: usize,
    /// Reads count back from the last insert.
    pub reads_latest: bool,
    /// A key that a read misses is written; a call then has one key.
    pub fills_misses: bool,
    /// A thread ends after this many operations.
    pub most_operations: u64,
    /// All threads end once this is set.
    pub stop: &'r AtomicBool,
    /// Set when the hot spot has shifted.
    pub is_shifted: &'r AtomicBool,
    /// The progress of each thread.
    pub progress: &'r [Progress],
    /// The seed with which keys are hashed.
    pub seed: &'r HashSeed,
}

/// Counts of a thread's operations in a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The number of operations.
    pub operations: u64,
    /// The number of reads among them (a read-modify-write counts as a read too).
    pub reads: u64,
    /// The number of reads that hit.
    pub hits: u64,
    /// The number of writes that failed for lack of memory.
    pub refused: u64,
}

/// Runs requests until the round ends. `timing`, where given, times each call.
pub fn run_thread<W: TargetWorker>(
    worker: &mut W,
    round: &Round<'_>,
    thread: usize,
    stream: &Stream,
    position: &mut Position,
    timing: Option<&mut Timing>,
) -> Tally {
    let mut run = Run {
        worker,
        round,
        thread: thread as u64,
        inserted: position.inserted,
        readable: position.inserted,
        known_latest: 0,
        keys: KeyBuffer::new(round),
        value: vec![0x5a; round.value_bytes],
        writes: 0,
        sink: ReadSink::new(round.value_bytes),
        tally: Tally::default(),
        timing,
        write_ids: Vec::with_capacity(round.batch),
    };
    let step = round.batch.max(TURN / round.batch * round.batch);
    // At least one step, so that a round has a rate where the thread got no core before its end.
    let mut has_run = false;
    while run.tally.operations < round.most_operations
        && !(has_run && round.stop.load(Ordering::Relaxed))
    {
        has_run = true;
        let requests = match &stream.shifted {
            Some(shifted) if round.is_shifted.load(Ordering::Relaxed) => shifted,
            _ => &stream.first,
        };
        let from = if position.next >= requests.len() { 0 } else { position.next };
        let left = round.most_operations - run.tally.operations;
        let most = step.min(usize::try_from(left).unwrap_or(usize::MAX));
        let to = requests.len().min(from + most);
        position.next = to;
        run.turn(&requests[from..to]);
    }
    position.inserted = run.inserted;
    run.sink.finish();
    run.tally.hits = run.sink.hits;
    run.tally
}

struct Run<'a, 'r, W> {
    worker: &'a mut W,
    round: &'a Round<'r>,
    thread: u64,
    inserted: u64,
    /// The part of those keys whose writes are complete: a batch does not read what it writes.
    readable: u64,
    /// The number of keys that the slowest of the other threads has inserted.
    known_latest: u64,
    keys: KeyBuffer,
    value: Vec<u8>,
    writes: u32,
    sink: ReadSink,
    tally: Tally,
    timing: Option<&'a mut Timing>,
    write_ids: Vec<u32>,
}

impl<W: TargetWorker> Run<'_, '_, W> {
    /// One iteration of the loop: some calls, then the work that a server does once per iteration.
    fn turn(&mut self, requests: &[Request]) {
        self.look_around();
        if let Some(timing) = &mut self.timing {
            timing.start();
        }
        let is_plain = !self.round.reads_latest && !self.round.fills_misses;
        if self.round.batch == 1 && self.timing.is_none() && is_plain {
            match self.round.key_space.key_bytes() {
                8 => self.singles::<8>(requests),
                16 => self.singles::<16>(requests),
                24 => self.singles::<24>(requests),
                _ => requests.iter().for_each(|request| self.single(*request)),
            }
        } else if self.round.batch == 1 {
            for request in requests {
                self.single(*request);
                self.lap(1);
            }
        } else {
            for group in requests.chunks(self.round.batch) {
                self.group(group);
                self.lap(group.len() as u64);
            }
        }
        self.tally.operations += requests.len() as u64;
        let progress = &self.round.progress[self.thread as usize];
        progress.operations.store(self.tally.operations, Ordering::Relaxed);
        // Release: a thread that reads the new count may request the keys that it counts.
        progress.inserted.store(self.inserted, Ordering::Release);
        self.worker.quiesce();
    }

    #[inline]
    fn lap(&mut self, operations: u64) {
        self.readable = self.inserted;
        if let Some(timing) = &mut self.timing {
            timing.lap(operations);
        }
    }

    /// Updates the number of keys that all threads have inserted.
    fn look_around(&mut self) {
        if self.round.reads_latest {
            let own = self.thread as usize;
            let others = self.round.progress.iter().enumerate().filter(|(i, _)| *i != own);
            let slowest = others.map(|(_, other)| other.inserted.load(Ordering::Acquire)).min();
            self.known_latest = slowest.unwrap_or(u64::MAX);
        }
    }

    /// The id of the key that a request refers to.
    #[inline]
    fn id_of(&mut self, request: Request) -> u32 {
        let number = request.number();
        let threads = self.round.progress.len() as u64;
        match request.action() {
            Action::Insert => {
                let id = self.round.loaded + self.inserted * threads + self.thread;
                self.inserted += 1;
                id as u32
            }
            Action::Read if self.round.reads_latest => {
                let inserted = self.readable.min(self.known_latest) * threads;
                // Popularity ranks are below the number of loaded keys, so this is
                // at least 0.
                (self.round.loaded + inserted - 1 - u64::from(number)) as u32
            }
            _ => number,
        }
    }

    /// Runs requests one by one, with little code of the driver in between: the number of
    /// instructions between two cache misses decides how many operations overlap.
    #[inline]
    fn singles<const KEY_BYTES: usize>(&mut self, requests: &[Request]) {
        let key_space = self.round.key_space;
        for request in requests {
            if request.action() == Action::Read {
                let id = request.number();
                let bytes: [u8; KEY_BYTES] = key_space.array(id);
                let key = Key::new(&bytes, self.round.seed);
                self.sink.expect([id].into_iter());
                self.worker.get_batch(std::slice::from_ref(&key), &mut self.sink);
                self.tally.reads += 1;
            } else {
                self.single(*request);
            }
        }
    }

    #[inline]
    fn single(&mut self, request: Request) {
        let id = self.id_of(request);
        let action = request.action();
        self.keys.fill(0, id);
        let hits = self.sink.hits;
        let reads = matches!(action, Action::Read | Action::ReadModifyWrite);
        if reads {
            self.sink.expect([id].into_iter());
            let key = self.keys.key(0, self.round.seed);
            self.worker.get_batch(&[key], &mut self.sink);
            self.tally.reads += 1;
        }
        let has_missed = reads && self.sink.hits == hits;
        if action != Action::Read || has_missed && self.round.fills_misses {
            self.write(0, id);
        }
    }

    #[inline]
    fn write(&mut self, slot: usize, id: u32) {
        self.writes = self.writes.wrapping_add(1);
        let mut front = [0; 8];
        front[..4].copy_from_slice(&id.to_le_bytes());
        front[4..].copy_from_slice(&self.writes.to_le_bytes());
        let length = self.value.len().min(8);
        self.value[..length].copy_from_slice(&front[..length]);
        let key = self.keys.key(slot, self.round.seed);
        self.tally.refused += u64::from(!self.worker.set(key, &self.value));
    }

    /// Runs a batch: hints for its writes, all its reads in one call, then its writes one by one.
    /// Reads and writes of one batch are unordered, as if they came from different connections.
    fn group(&mut self, requests: &[Request]) {
        let first_write = self.round.batch;
        let (mut reads, mut writes) = (0, 0);
        self.write_ids.clear();
        self.sink.expect(std::iter::empty());
        for request in requests {
            let id = self.id_of(*request);
            let action = request.action();
            if matches!(action, Action::Read | Action::ReadModifyWrite) {
                self.keys.fill(reads, id);
                self.sink.expect_also(id);
                reads += 1;
            }
            if action != Action::Read {
                self.keys.fill(first_write + writes, id);
                self.worker.prefetch(&self.keys.key(first_write + writes, self.round.seed));
                self.write_ids.push(id);
                writes += 1;
            }
        }
        if reads > 0 {
            self.keys.with_keys(reads, self.round.seed, |keys| {
                self.worker.get_batch(keys, &mut self.sink);
            });
            self.tally.reads += reads as u64;
        }
        for slot in 0..writes {
            self.write(first_write + slot, self.write_ids[slot]);
        }
    }
}

/// The bytes of the keys of a batch.
pub struct KeyBuffer {
    words: Vec<[u8; 8]>,
    words_per_key: usize,
    key_space: KeySpace,
    /// Always empty; keeps the allocation from batch to batch.
    spare: Vec<Key<'static>>,
}

impl KeyBuffer {
    /// Creates slots for the reads of a batch, then for its writes.
    fn new(round: &Round<'_>) -> Self {
        Self::with_slots(round.key_space, 2 * round.batch)
    }

    /// Buffers for `slots` keys.
    pub fn with_slots(key_space: KeySpace, slots: usize) -> Self {
        let words_per_key = key_space.key_bytes().div_ceil(8);
        let words = vec![[0; 8]; words_per_key * slots];
        Self { words, words_per_key, key_space, spare: Vec::new() }
    }

    /// Writes the key of `id` into a slot.
    #[inline]
    pub fn fill(&mut self, slot: usize, id: u32) {
        if self.words_per_key == 1 {
            self.words[slot] = self.key_space.array(id);
            return;
        }
        let start = slot * self.words_per_key;
        self.key_space.write(id, &mut self.words[start..start + self.words_per_key]);
    }

    /// The key in a slot.
    #[inline]
    pub fn key(&self, slot: usize, seed: &HashSeed) -> Key<'_> {
        let start = slot * self.words_per_key * 8;
        let bytes = self.words.as_flattened();
        Key::new(&bytes[start..start + self.key_space.key_bytes()], seed)
    }

    /// Calls `use_keys` with the keys in the first `count` slots.
    #[inline]
    pub fn with_keys(&mut self, count: usize, seed: &HashSeed, use_keys: impl FnOnce(&[Key<'_>])) {
        let mut keys = emptied(std::mem::take(&mut self.spare));
        if self.key_space.key_bytes() == 8 {
            keys.extend(self.words[..count].iter().map(|bytes| Key::new(bytes, seed)));
        } else {
            keys.extend((0..count).map(|slot| self.key(slot, seed)));
        }
        use_keys(&keys);
        self.spare = emptied(keys);
    }
}

/// An empty vector that reuses the allocation of `keys`, whose type differs only in its lifetime:
/// collecting in place reuses it.
fn emptied<'to>(mut keys: Vec<Key<'_>>) -> Vec<Key<'to>> {
    keys.clear();
    keys.into_iter().map(|_| unreachable!("it was cleared")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocation_of_a_batch_is_kept() {
        let space = KeySpace::new(8).expect("valid");
        let seed = HashSeed::new(3);
        let mut buffer = KeyBuffer::with_slots(space, 64);
        (0..64).for_each(|slot| buffer.fill(slot, slot as u32));
        let mut allocations = Vec::new();
        for _ in 0..3 {
            buffer.with_keys(64, &seed, |keys| {
                assert_eq!(keys.len(), 64);
                assert_eq!(keys[7], buffer_key(space, 7, &seed, &mut [[0; 8]]));
                allocations.push(keys.as_ptr() as usize);
            });
        }
        assert_eq!(allocations[1], allocations[2], "the second batch's memory serves the third");
    }

    fn buffer_key<'k>(
        space: KeySpace,
        id: u32,
        seed: &HashSeed,
        slot: &'k mut [[u8; 8]; 1],
    ) -> Key<'k> {
        space.write(id, slot);
        Key::new(&slot[0], seed)
    }
}
