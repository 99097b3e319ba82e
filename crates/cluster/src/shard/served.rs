//! What a node serves, for threads that execute operations on items by themselves while the thread
//! of the [`ChunkService`](super::ChunkService) does everything else.
//!
//! The service *publishes* the ids, and *withdraws* the publication before it changes anything
//! about them. Other threads read the items of published ids in the engine, and write them where
//! nothing else has to know of a write: without backups, and while the ids do not move.
//!
//! Invariants of this module:
//! 1. A read is answered only if the lease ran when it began, and, after the engine was read, the
//!    publication still stood and backups lacked no change of the id. So no other node had changed
//!    the item before it began, and what it found will not be taken back: its linearization point
//!    is the engine's, or its begin if the lease has ended meanwhile. (Without backups a node whose
//!    lease ends loses its items: a read may then show a write that ended as unknown.)
//! 2. A write begins while a publication permits it, and the service takes no step that rests on
//!    the end of such writes (a scan for what is to move, or to be removed) before all have ended
//!    that began under an earlier publication.
//!
//! Its orderings are three. *Reads*: the service withdraws before it tells another node anything.
//! So a request that began after another node had answered something about the id happens after
//! that, and the version which is loaded behind the engine's read is not the old one.
//! *Unacknowledged changes*: the service counts a change before the engine has it, and the engine
//! publishes items with release. So a read that finds the change finds the count too, unless all
//! backups have the change. *Writes*: a writer stores that it writes, then loads the version; who
//! withdraws stores the version, then loads who writes. With a sequentially consistent fence
//! between each pair, one of the two sees the other (Dekker). A writer that ends stores that with
//! release, and pairs with the load of the service, whose scan then finds what was written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering, fence},
};

use amalgam_op::IgnorePoison;
use amalgam_sketch::AccessSampler;

use crate::ids::{COUNTER_BITS, ChunkId, NAMED_FIRST, PARTITIONS};
use crate::replication::UnacknowledgedIds;

/// Sampled ids that wait for the service at most; more are left out.
const SAMPLES_MAX: usize = 1 << 12;
/// Operations of a thread after which the service learns of them.
const COUNTED_TOGETHER: u64 = 256;

/// A set of named ids: whole partitions, and the rest as ascending spans.
#[derive(Debug)]
struct NamedIds {
    whole: Vec<u64>,
    rest: Vec<Range<u64>>,
}

impl NamedIds {
    fn of(spans: impl Iterator<Item = Range<u64>>) -> Self {
        let (mut whole, mut rest) = (vec![0_u64; usize::from(PARTITIONS).div_ceil(64)], Vec::new());
        let at = |partition: u64| (u64::from(NAMED_FIRST) + partition) << COUNTER_BITS;
        for span in spans {
            let mut start = span.start;
            while start < span.end {
                let partition = partition_of(start);
                let end = span.end.min(at(partition + 1));
                if start == at(partition) && end == at(partition + 1) {
                    whole[partition as usize / 64] |= 1 << (partition % 64);
                } else {
                    rest.push(start..end);
                }
                start = end;
            }
        }
        Self { whole, rest }
    }

    #[inline]
    fn contains(&self, id: ChunkId) -> bool {
        let partition = partition_of(id.bits());
        let word = self.whole.get(partition as usize / 64).copied().unwrap_or(0);
        word >> (partition % 64) & 1 == 1 || !self.rest.is_empty() && self.is_in_rest(id.bits())
    }

    fn is_in_rest(&self, id: u64) -> bool {
        let after = self.rest.partition_point(|span| span.start <= id);
        self.rest[..after].last().is_some_and(|span| id < span.end)
    }
}

fn partition_of(named: u64) -> u64 {
    (named >> COUNTER_BITS) - u64::from(NAMED_FIRST)
}

/// One publication.
#[derive(Debug)]
struct Publication {
    version: u64,
    readable: NamedIds,
    writable: NamedIds,
}

/// The version under which a thread writes; 0 while it does not. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Writer(AtomicU64);

/// The named ids that a node serves. Any thread may call it, but only one publishes.
#[derive(Debug)]
pub struct Served {
    /// Even: that of the publication; odd while there is none.
    version: AtomicU64,
    publication: Mutex<Arc<Publication>>,
    /// Until when the node is certain to be a member.
    deadline_ms: AtomicU64,
    unacknowledged: Arc<UnacknowledgedIds>,
    /// By number of the thread.
    writers: Mutex<BTreeMap<u64, Arc<Writer>>>,
    /// Operations of all threads that the service has not counted yet, and samples of their ids.
    operations: AtomicU64,
    samples: Mutex<Vec<ChunkId>>,
}

impl Served {
    /// Nothing is published yet. `unacknowledged` are the ids with a change that backups lack.
    pub(super) fn new(unacknowledged: Arc<UnacknowledgedIds>) -> Self {
        let [readable, writable] = [(); 2].map(|()| NamedIds::of(std::iter::empty()));
        Self {
            version: AtomicU64::new(1),
            publication: Mutex::new(Arc::new(Publication { version: 0, readable, writable })),
            deadline_ms: AtomicU64::new(0),
            unacknowledged,
            writers: Mutex::default(),
            operations: AtomicU64::new(0),
            samples: Mutex::default(),
        }
    }

    /// Whether nothing is published.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.version.load(Ordering::Relaxed) % 2 == 1
    }

    /// Withdraws the publication. From its return on no read under it is answered that another node
    /// could contradict, and no write under it begins.
    pub(super) fn withdraw(&self) {
        if !self.is_withdrawn() {
            self.version.fetch_add(1, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// Publishes ids after [`Self::withdraw`]. Requires: ascending spans of named ids.
    pub(super) fn publish(
        &self,
        readable: impl Iterator<Item = Range<u64>>,
        writable: impl Iterator<Item = Range<u64>>,
    ) {
        let version = self.version.load(Ordering::Relaxed) + 1;
        let (readable, writable) = (NamedIds::of(readable), NamedIds::of(writable));
        let publication = Arc::new(Publication { version, readable, writable });
        *self.publication.lock().ignore_poison() = publication;
        self.version.store(version, Ordering::Release);
    }

    /// Sets the time until which the node is certain to be a member.
    pub(super) fn set_deadline(&self, deadline_ms: u64) {
        self.deadline_ms.store(deadline_ms, Ordering::Release);
    }

    /// From its return on no other thread answers a read or a write that begins, and no write that
    /// runs. Nothing may be published afterwards: the service has ended.
    pub fn end(&self) {
        self.set_deadline(0);
    }

    /// Whether every write has ended that began under an earlier publication. It stays so until
    /// the next [`Self::withdraw`].
    pub(super) fn earlier_writes_have_ended(&self) -> bool {
        // The fence of `withdraw` lies between the store of this version and the loads below.
        let version = self.version.load(Ordering::Relaxed);
        self.writers.lock().ignore_poison().values().all(|writer| {
            let under = writer.0.load(Ordering::Acquire);
            under == 0 || under >= version
        })
    }

    /// Takes the operations that were counted since the last call, and samples of their ids.
    pub(super) fn take_load(&self) -> (u64, Vec<ChunkId>) {
        let samples = std::mem::take(&mut *self.samples.lock().ignore_poison());
        (self.operations.swap(0, Ordering::Relaxed), samples)
    }

    /// Registers a thread that is to execute operations.
    pub fn thread(self: Arc<Self>) -> ServedThread {
        let writer = Arc::new(Writer::default());
        let mut writers = self.writers.lock().ignore_poison();
        let number = writers.last_key_value().map_or(0, |(last, _)| last + 1);
        writers.insert(number, Arc::clone(&writer));
        drop(writers);
        let publication = Arc::clone(&self.publication.lock().ignore_poison());
        let sampler = AccessSampler::new(number as u32);
        let (operations, samples) = (0, Vec::new());
        ServedThread { served: self, publication, number, writer, sampler, operations, samples }
    }
}

/// One thread that executes operations on items of published ids.
#[derive(Debug)]
pub struct ServedThread {
    served: Arc<Served>,
    publication: Arc<Publication>,
    number: u64,
    writer: Arc<Writer>,
    sampler: AccessSampler,
    /// Operations and samples that the service has not been told.
    operations: u64,
    samples: Vec<ChunkId>,
}

impl ServedThread {
    /// Looks at the present publication. Call it before each batch of operations.
    #[inline]
    pub fn refresh(&mut self) {
        if self.served.version.load(Ordering::Acquire) != self.publication.version {
            self.publication = Arc::clone(&self.served.publication.lock().ignore_poison());
        }
    }

    /// Whether the node serves an id. Requires: it is a named id, here and below.
    #[inline]
    pub fn serves(&self, id: ChunkId) -> bool {
        self.publication.readable.contains(id)
    }

    /// Whether this thread may try to read an item in the engine. What it finds may be answered if
    /// [`Self::may_answer`] says so, which is likely then.
    #[inline]
    pub fn may_read(&self, id: ChunkId) -> bool {
        self.serves(id) && !self.served.unacknowledged.has(id)
    }

    /// Whether what was just found under `id` may be answered. `began_ms` is a time between the
    /// request's arrival and the engine's read. Requires: no [`Self::refresh`] since
    /// [`Self::may_read`] was true.
    #[inline]
    pub fn may_answer(&self, id: ChunkId, began_ms: u64) -> bool {
        fence(Ordering::Acquire);
        // In this order: who sees that the service has dropped a change sees the withdrawal before.
        !self.served.unacknowledged.has(id) && self.is_current() && self.is_in_time(began_ms)
    }

    /// Whether this thread may try to write an item in the engine.
    #[inline]
    pub fn may_write(&self, id: ChunkId) -> bool {
        self.publication.writable.contains(id)
    }

    /// Begins a write to `id` in the engine; if true, [`Self::end_write`] must follow. If false the
    /// service has to execute it.
    #[inline]
    pub fn begin_write(&self, id: ChunkId, now_ms: u64) -> bool {
        if !self.may_write(id) {
            return false;
        }
        self.writer.0.store(self.publication.version, Ordering::Release);
        fence(Ordering::SeqCst);
        let may_write = self.is_current() && self.is_in_time(now_ms);
        if !may_write {
            self.writer.0.store(0, Ordering::Release);
        }
        may_write
    }

    /// Ends a write. Whether it may be answered: if not, its outcome is unknown, since the lease
    /// has ended meanwhile. `now_ms` was read after the engine was written.
    #[inline]
    pub fn end_write(&self, now_ms: u64) -> bool {
        self.writer.0.store(0, Ordering::Release);
        self.is_in_time(now_ms)
    }

    #[inline]
    fn is_current(&self) -> bool {
        self.served.version.load(Ordering::Acquire) == self.publication.version
    }

    /// Whether the lease runs at a time, as far as the event loop knows.
    #[inline]
    pub fn is_in_time(&self, now_ms: u64) -> bool {
        now_ms < self.served.deadline_ms.load(Ordering::Acquire)
    }

    /// Counts operations that this thread has executed, for the load balancer; `id` tells the id of
    /// the one at a position.
    #[inline]
    pub fn record(&mut self, count: usize, id: impl Fn(usize) -> ChunkId) {
        self.operations += count as u64;
        if !self.sampler.skip(count as u32) {
            let samples = &mut self.samples;
            self.sampler.choose(count, |position| samples.push(id(position)));
        }
        if self.operations >= COUNTED_TOGETHER {
            self.report();
        }
    }

    fn report(&mut self) {
        let operations = std::mem::take(&mut self.operations);
        self.served.operations.fetch_add(operations, Ordering::Relaxed);
        let mut samples = self.served.samples.lock().ignore_poison();
        let room = SAMPLES_MAX - samples.len();
        samples.extend(self.samples.drain(..).take(room));
        self.samples.clear();
    }
}

impl Drop for ServedThread {
    fn drop(&mut self) {
        self.report();
        self.served.writers.lock().ignore_poison().remove(&self.number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn id(partition: u64, counter: u64) -> ChunkId {
        let bits = ((u64::from(NAMED_FIRST) + partition) << COUNTER_BITS) + counter;
        ChunkId::from_bits(bits).expect("a named id")
    }

    #[test]
    fn whole_partitions_and_parts_of_them_are_found() {
        let end = |partition: u64| id(partition + 1, 0).bits();
        let spans = [id(3, 5).bits()..end(5), id(70, 0).bits()..end(70), id(80, 7).bits()..end(80)];
        let ids = NamedIds::of(spans.iter().cloned());
        assert_eq!(ids.rest.len(), 2, "the others are whole");
        for partition in [0, 3, 4, 5, 6, 70, 71, 80, 81, 4_094] {
            for counter in [0, 4, 5, 6, 7, 1 << 40] {
                let id = id(partition, counter);
                let expected = spans.iter().any(|span| span.contains(&id.bits()));
                assert_eq!(ids.contains(id), expected, "{partition} {counter}");
            }
        }
    }

    #[test]
    fn a_thread_serves_what_is_published_while_the_lease_runs() {
        let served = Arc::new(Served::new(Arc::new(UnacknowledgedIds::new(true))));
        let mut thread = Arc::clone(&served).thread();
        let (mine, moving) = (id(7, 1), id(8, 1));
        thread.refresh();
        assert!(!thread.may_read(mine), "nothing is published yet");
        let of = |one: ChunkId, other: ChunkId| one.bits()..other.bits() + 1;
        let publish =
            || served.publish([of(mine, moving)].into_iter(), [of(mine, mine)].into_iter());
        publish();
        served.set_deadline(100);
        thread.refresh();
        assert!(thread.may_read(moving) && thread.may_answer(moving, 99));
        assert!(!thread.may_answer(moving, 100) && !thread.begin_write(mine, 100));
        assert!(!thread.begin_write(moving, 99), "it is to move");

        assert!(thread.begin_write(mine, 99));
        served.withdraw();
        assert!(!served.earlier_writes_have_ended() && !thread.may_answer(mine, 99));
        publish();
        assert!(!served.earlier_writes_have_ended(), "it began under the earlier one");
        assert!(thread.end_write(99) && served.earlier_writes_have_ended());
        thread.refresh();
        assert!(thread.begin_write(mine, 99) && served.earlier_writes_have_ended());
        assert!(!thread.end_write(100), "the lease has ended meanwhile");

        served.unacknowledged.add(mine);
        assert!(!thread.may_read(mine) && !thread.may_answer(mine, 99));
        served.unacknowledged.remove(mine);
        assert!(thread.may_answer(mine, 99));
        (0..200).for_each(|_| thread.record(5, |_| mine));
        drop(thread);
        let (operations, samples) = served.take_load();
        assert_eq!(operations, 1_000);
        assert!((30..100).contains(&samples.len()), "one in sixteen: {}", samples.len());
        assert!(served.writers.lock().ignore_poison().is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
