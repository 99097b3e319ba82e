//! The traits between a server and what holds its items: [`Store`], [`Engine`], [`Worker`] and
//! [`Sink`].

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_op::{HashSeed, Hit, ItemView, Key, Now, Op, Outcome};

use crate::late::{LateAnswers, Patience};
use crate::mem::{Evictions, ItemRef, Memory, Pinned};
use crate::signal::Signal;
use crate::{Configuration, Eviction, OpenError, Statistics};

/// What a server needs of whatever holds its items: an [`Engine`] in this process, or a gateway to
/// other machines that hold them. Shared by reference between threads.
pub trait Store: Send + Sync + Sized + 'static {
    /// The name in statistics and logs, which `--engine` takes if this is an [`Engine`].
    const NAME: &'static str;

    /// Whether a set that finds no memory, or is too long, is to remove the item that it meant to
    /// replace, as memcached does. False for a store whose refusals must leave the old value.
    const FAILED_SETS_REMOVE: bool = true;

    /// One thread's access to the store.
    type Worker<'i>: Worker
    where
        Self: 'i;

    /// Registers the calling thread.
    ///
    /// # Panics
    ///
    /// If more workers exist at once than [`Configuration::workers`].
    fn worker(&self) -> Self::Worker<'_>;

    /// The seed that keys must be hashed with.
    fn seed(&self) -> &HashSeed;

    /// Sums over all workers. Each number is exact by itself, but they are read one after another,
    /// not at one instant. What only a sample of buckets shows is left zero.
    fn statistics(&self) -> Statistics;

    /// Looks at some thousands of buckets for [`Statistics::length_histogram`] and
    /// [`Statistics::hot_heads`]. Apart from the rest, as each bucket may be a cache miss and a
    /// lock: clients may ask for the rest as often as they like.
    fn sample_buckets(&self, statistics: &mut Statistics) {
        let _ = statistics;
    }

    /// Changes the memory limit, in bytes. Items above a lower limit are evicted over time.
    fn set_memory_limit(&self, bytes: usize);

    /// Changes how the victims of eviction are chosen from now on; no item leaves for it. A store
    /// that has no choice ignores it.
    fn set_eviction(&self, policy: Eviction) {
        let _ = policy;
    }

    /// Bytes of the values that [`Found::pin`] keeps in memory, each counted once.
    fn pinned_bytes(&self) -> usize {
        0
    }

    /// Why it can answer nothing at the moment, for the operator; None if it can.
    fn unready(&self) -> Option<&'static str> {
        None
    }

    /// Shows numbers that only this store has. Those of one name follow one another.
    fn show_metrics(&self, show: &mut dyn FnMut(&Metric<'_>)) {
        let _ = show;
    }

    /// What the machines behind this store told of themselves, in JSON; None if there are none.
    /// Never waits for them.
    fn cluster(&self) -> Option<String> {
        None
    }

    /// Drops all items, now if `delay_seconds` is 0, else at a time given as clients give expiries.
    /// An engine leaves this to the generation in [`Now`]; a store that stands for other machines
    /// asks those.
    fn flush(&self, delay_seconds: i64) -> Flush {
        let _ = delay_seconds;
        Flush::ByClock
    }
}

/// A number that a store shows to its operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric<'m> {
    /// The name, as Prometheus' conventions have it: `_total` at the end of what only grows.
    pub name: &'m str,
    /// What it is.
    pub help: &'m str,
    /// What tells it from others of its name: a label and its value.
    pub label: Option<(&'m str, &'m str)>,
    /// The number.
    pub value: f64,
}

/// A [`Store`] that keeps its items in this process's memory: a concurrent map from keys to items.
///
/// The engines are [`Mercury`](crate::Mercury), [`Memc3`](crate::Memc3),
/// [`HotRingR`](crate::HotRingR), [`HotRingS`](crate::HotRingS), [`Pipeline`](crate::Pipeline) and,
/// for tests, [`Model`](crate::model::Model). The trait is not meant to be implemented outside of
/// this repository.
pub trait Engine: Store<Worker<'static>: Send> {
    /// Builds an empty engine.
    ///
    /// # Errors
    ///
    /// If the configuration contradicts itself or the system refuses the memory.
    fn open(configuration: &Configuration) -> Result<Self, OpenError>;

    /// Wakes and parks the thread that calls [`Engine::maintain`] (see [`crate::maintenance`]).
    fn maintenance_signal(&self) -> &Signal;

    /// Does a bounded slice of background work: growth, sweeping, moving pages. Returns whether
    /// more waits. One thread at a time should call it; others may, and find nothing to do.
    fn maintain(worker: &mut Self::Worker<'_>, now: &Now) -> bool;

    /// The record of evicted items; None if the engine keeps none.
    fn evictions(&self) -> Option<&Evictions> {
        None
    }

    /// Replaces the item `old` (that item, not whatever its key holds) by its copy `new`, or
    /// unlinks it if `new` is None. Returns whether `old` was still linked under `hash`; only a
    /// caller that gets `true` may retire `old`. The engine carries over an in-place word that
    /// changed after the copy was made.
    fn compare_exchange_item(
        worker: &mut Self::Worker<'_>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool;
}

/// The result of [`Store::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// The store did nothing: the caller raises the generation in [`Now`], which makes items dead.
    ByClock,
    /// All items are gone, or will be at the time that was asked for.
    Done,
    /// Some items may still be there and stay alive.
    Incomplete,
}

/// One thread's access to a [`Store`]. Methods are linearizable operations on the store unless they
/// say otherwise.
pub trait Worker {
    /// Reads `keys` in order, handing each hit or miss to `sink` under the key's position. Each get
    /// is linearizable by itself; the batch is no transaction.
    ///
    /// Returns how many keys were answered: all of them, or up to and including the one on which
    /// the sink broke. Call again with the rest to resume.
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize;

    /// Carries out `op` atomically. If the outcome is [`Outcome::Hit`], the item went to
    /// `sink.hit(0, …)` first. If `sink.later(0)` was called, nothing was done.
    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome;

    /// Carries `ops` out one after the other, each as [`Worker::apply`] does and atomic by itself;
    /// the batch is no transaction. The outcome of each goes to its place in `outcomes`, an item
    /// that one hit to `sink` under its position first. Operations on one key take effect in their
    /// order.
    ///
    /// Faster than one call for each: the memory system fetches what later operations need while
    /// the processor works on earlier ones.
    ///
    /// # Panics
    ///
    /// If `outcomes` is shorter than `ops`.
    fn apply_batch(
        &mut self,
        ops: &[Op<'_>],
        now: &Now,
        sink: &mut impl Sink,
        outcomes: &mut [Outcome],
    ) {
        apply_each(self, ops, now, sink, outcomes);
    }

    /// Asks the memory system for the index words of `key`; a hint, for requests that are applied
    /// one by one.
    fn prefetch(&self, key: &Key<'_>);

    /// Visits items from `from` on, about `budget` buckets' worth, and returns where to go on, or
    /// none at the end. An item that is present from before the first call until after the last is
    /// visited at least once, also while the index grows and items move. Dead items are visited.
    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor>;

    /// Tells that the thread holds nothing from earlier calls: once a turn of its loop. Returns
    /// retired memory when it is cheap to.
    fn quiesce(&mut self);

    /// As [`Worker::quiesce`], for a thread that has no work now: gives up all free memory that is
    /// kept for later calls, as nothing reminds a thread that sleeps when others lack it. Returns
    /// whether retired memory is left that waits for other threads; call it again soon then.
    fn rest(&mut self) -> bool {
        self.quiesce();
        false
    }

    /// Whether items that this thread replaced or removed, and that other threads may still read,
    /// take a large part of the memory: copies of long values should then wait for the next turn of
    /// its loop. What one thread replaces while another one does not run would push out items that
    /// are in use.
    #[inline]
    fn has_much_retired(&self) -> bool {
        false
    }

    /// The part whose answers may come later; None if all are at hand.
    #[inline]
    fn late_answers(&mut self) -> Option<&mut dyn LateAnswers> {
        None
    }
}

/// Implements [`Worker::apply_batch`] by [`Worker::prefetch`] and [`Worker::apply`].
pub(crate) fn apply_each<W: Worker + ?Sized>(
    worker: &mut W,
    ops: &[Op<'_>],
    now: &Now,
    sink: &mut impl Sink,
    outcomes: &mut [Outcome],
) {
    ops.iter().for_each(|op| worker.prefetch(&op.key));
    for (position, (op, outcome)) in ops.iter().zip(&mut outcomes[..ops.len()]).enumerate() {
        *outcome = worker.apply(op, now, &mut SinkAt { sink, position });
    }
}

/// Where reads put what they find.
pub trait Sink {
    /// `position` was found. Breaking ends the batch after this key.
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()>;

    /// `position` was not found. Breaking ends the batch after this key.
    fn miss(&mut self, position: usize) -> ControlFlow<()>;

    /// `position` holds an item that is dead: flushed, or else expired. To a client that is a miss.
    /// (Where an item was unlinked already nobody can tell.)
    fn dead(&mut self, position: usize, is_flushed: bool) -> ControlFlow<()> {
        let _ = is_flushed;
        self.miss(position)
    }

    /// The key at `position` could not be read. Only a store that forwards to other machines calls
    /// this; by default it is reported as a miss.
    fn unanswered(&mut self, position: usize) -> ControlFlow<()> {
        self.miss(position)
    }

    /// What to do if the answer for `position` is not at hand. Only asked by a worker with
    /// [`Worker::late_answers`], for the position behind the last that was answered.
    fn patience(&self, position: usize) -> Patience {
        let _ = position;
        Patience::Waits
    }

    /// The answer for `position` is not at hand, and the caller does not wait for it. Ends the
    /// batch before this key.
    fn later(&mut self, position: usize) {
        let _ = position;
    }
}

/// The sink of an operation of a batch: what the operation tells under position 0, this passes on
/// under the operation's position.
pub(crate) struct SinkAt<'s, S> {
    /// The sink of the batch.
    pub(crate) sink: &'s mut S,
    /// The operation's position.
    pub(crate) position: usize,
}

impl<S: Sink> Sink for SinkAt<'_, S> {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.sink.hit(self.position, found)
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        self.sink.miss(self.position)
    }

    fn dead(&mut self, _: usize, is_flushed: bool) -> ControlFlow<()> {
        self.sink.dead(self.position, is_flushed)
    }

    fn unanswered(&mut self, _: usize) -> ControlFlow<()> {
        self.sink.unanswered(self.position)
    }

    fn patience(&self, _: usize) -> Patience {
        self.sink.patience(self.position)
    }

    fn later(&mut self, _: usize) {
        self.sink.later(self.position);
    }
}

/// A sink that ignores what it is told, for operations whose outcome says enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl Sink for NullSink {
    fn hit(&mut self, _: usize, _: &Found<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// An item that a read found; borrowed until the sink returns.
#[derive(Clone, Copy)]
pub struct Found<'g> {
    /// The item that was found.
    pub item: ItemView<'g>,
    /// How [`Worker::apply`] hit, which is part of the answer's head; default from a batched get.
    pub hit: Hit,
    origin: Option<(&'g Arc<Memory>, ItemRef)>,
}

impl<'g> Found<'g> {
    /// An item that cannot be pinned.
    pub fn new(item: ItemView<'g>) -> Self {
        Self { item, hit: Hit::default(), origin: None }
    }

    /// An item of `memory`, read under a guard that outlives `'g`.
    pub fn in_memory(item: ItemView<'g>, memory: &'g Arc<Memory>, reference: ItemRef) -> Self {
        Self { item, hit: Hit::default(), origin: Some((memory, reference)) }
    }

    /// This item with the details of the [`Op`] that hit it.
    pub fn with_hit(self, hit: Hit) -> Self {
        Self { hit, ..self }
    }

    /// The same item in memory, shown with other properties; its value must be the same.
    pub fn with_item(self, item: ItemView<'g>) -> Self {
        Self { item, ..self }
    }

    /// The item's reference, for [`Engine::compare_exchange_item`]; None if the engine does not
    /// show it. Valid until the worker quiesces.
    pub fn reference(&self) -> Option<ItemRef> {
        self.origin.map(|(_, reference)| reference)
    }

    /// Keeps the value in memory beyond the guard, for a vectored write without a copy; none where
    /// the engine or the value does not allow it, so copy. Costs a lock: for large values only.
    pub fn pin(&self) -> Option<Pinned> {
        let (memory, reference) = self.origin?;
        match self.item.value {
            amalgam_op::Value::Word(..) => None,
            amalgam_op::Value::Bytes(bytes) => Some(memory.pin_value(reference, bytes)),
        }
    }
}

/// Where a scan stands. Opaque; starts at [`Cursor::START`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u64);

impl Cursor {
    /// The position before the first item.
    pub const START: Self = Self(0);
}
